//! GarageCluster v1beta1: served, deprecated, converted (`compat.md` 7). Its status is that of v1beta2.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema;
pub use crate::spec::*;
pub use crate::status::GarageClusterStatus;

/// What a GarageCluster asks for: one flat tier.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "garage.rajsingh.info", version = "v1beta1", kind = "GarageCluster", namespaced)]
#[kube(status = "GarageClusterStatus", shortname = "gc", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.gateway) && self.gateway) == has(self.connectTo)",
    "message": "gateway: true and connectTo go together"
}]))]
pub struct GarageClusterSpec {
    /// Garage's image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Its repository, with the default tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_repository: Option<String>,
    /// When it is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "IfNotPresent"))]
    pub image_pull_policy: Option<String>,
    /// Secrets to pull it with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalSecretRef>,
    /// Account of the Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Zone of the roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Zone from a label of the Kubernetes Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_from: Option<ZoneFrom>,
    /// Nodes of the tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 3))]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Whether the tier is a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<bool>,
    /// Volumes of the tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,
    /// Pod fields of the tier.
    #[serde(flatten)]
    pub pod: PodFields,
    /// Disruption budget of the tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudgetSpec>,
    /// Part of a disk that Garage is not told of, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 50))]
    pub capacity_reserve_percent: Option<i32>,
    /// How objects are replicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication: Option<ReplicationSpec>,
    /// RPC and Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkSpec>,
    /// The S3 API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3_api: Option<S3ApiSpec>,
    /// The K2V API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k2v_api: Option<K2vApiSpec>,
    /// Bucket websites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web_api: Option<WebApiSpec>,
    /// The Admin API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<AdminSpec>,
    /// The metadata engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<DatabaseSpec>,
    /// Blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlocksSpec>,
    /// Where peers are found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<DiscoverySpec>,
    /// Security.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<SecuritySpec>,
    /// Logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<LoggingSpec>,
    /// How other sites reach the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object")]
    pub public_endpoint: Option<Value>,
    /// The other sites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote_clusters: Vec<RemoteCluster>,
    /// Who decides about the layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout_management: Option<LayoutManagement>,
    /// Whether roles follow the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Auto"))]
    pub layout_policy: Option<LayoutPolicy>,
    /// What happens to roles on deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
    /// Tags of every role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub default_node_tags: Vec<String>,
    /// A handle on, or a gateway of, another cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_to: Option<ConnectTo>,
    /// Monitoring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object")]
    pub monitoring: Option<Value>,
    /// Maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceSpec>,
    /// Garage's worker variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersSpec>,
}

/// `spec.storage`: volumes of the flat tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// Metadata volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<VolumeSpec>,
    /// Data volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<VolumeSpec>,
    /// Address under which others reach a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_public_addr: Option<String>,
    /// Whether roles follow the spec; any word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout_policy: Option<String>,
    /// Where metadata snapshots go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_snapshots_dir: Option<String>,
    /// How often they are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_auto_snapshot_interval: Option<String>,
    /// Whether metadata is flushed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_fsync: Option<bool>,
    /// Whether data is flushed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_fsync: Option<bool>,
    /// What happens to claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc_retention_policy: Option<PvcRetentionPolicy>,
    /// Environment of the garage container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::core::<Vec<EnvVar>>")]
    pub env: Vec<EnvVar>,
    /// Environment from elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::core::<Vec<EnvFromSource>>")]
    pub env_from: Vec<EnvFromSource>,
}
