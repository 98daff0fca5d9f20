//! GarageCluster v1beta2: the hub and stored version (`compat.md` 6 and 9).
//!
//! Reading: an object that these types cannot read must not hide the others of a LIST or watch, so list and watch
//! `DeserializeGuard<GarageCluster>` (kube's error boundary) and report the one that cannot be read by name; it is then not
//! acted upon. What the schema cannot guard is lenient by type: quantities and durations are read where they are counted,
//! evidence becomes a marker ([`Evidence::unrecognized`](crate::status::Evidence)), and another operator's
//! `storageDrain`, `storageRollout` and `factorMigration` are any JSON, present or not.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::PoolName;
use crate::names::{ClusterId, annotation};
use crate::schema;
pub use crate::spec::*;
pub use crate::status::GarageClusterStatus;
use crate::units::Quantity;

/// What a GarageCluster asks for.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "garage.rajsingh.info", version = "v1beta2", kind = "GarageCluster", namespaced)]
#[kube(status = "GarageClusterStatus", shortname = "gc", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.storage) || has(self.gateway) || has(self.connectTo)",
        "message": "one of storage, gateway and connectTo is required"
    },
    {
        "rule": "!has(self.gateway) || has(self.storage) || has(self.connectTo)",
        "message": "a gateway tier needs storage beside it, or connectTo"
    }
]))]
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
    /// Zone of the roles; absent means `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Zone from a label of the Kubernetes Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_from: Option<ZoneFrom>,
    /// The storage tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageTier>,
    /// The gateway tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayTier>,
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
    /// Tags of every role, after the computed ones.
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

/// `spec.storage`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageTier {
    /// Nodes of the default group. A site of pools alone says 0: absent means 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 3))]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Metadata volume of the default group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<VolumeSpec>,
    /// Data volume of the default group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<VolumeSpec>,
    /// Address under which others reach a node of the default group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_public_addr: Option<String>,
    /// Where metadata snapshots go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_snapshots_dir: Option<String>,
    /// How often they are taken, in Garage's words.
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
    /// Part of a disk that Garage is not told of, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 50))]
    pub capacity_reserve_percent: Option<i32>,
    /// Its disruption budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudgetSpec>,
    /// Whether roles follow the spec. Any word when read: v1beta1 takes any, and conversion keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LayoutPolicy>")]
    pub layout_policy: Option<String>,
    /// Pools of members that are bound to a Kubernetes Node and its disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub node_local_pools: Vec<NodeLocalPool>,
    /// Pod fields of the default group.
    #[serde(flatten)]
    pub pod: PodFields,
    /// Environment of the default group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::core::<Vec<EnvVar>>")]
    pub env: Vec<EnvVar>,
    /// Environment from elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::core::<Vec<EnvFromSource>>")]
    pub env_from: Vec<EnvFromSource>,
}

/// `spec.storage.nodeLocalPools[]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.data) != (has(self.dataPaths) && size(self.dataPaths) > 0)",
    "message": "exactly one of data and a non-empty dataPaths is required"
}]))]
pub struct NodeLocalPool {
    /// Its name: a DNS label, unique in the cluster.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: PoolName,
    /// Which Kubernetes Nodes are members.
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: LabelSelector,
    /// Capacity of each member's role; at least 1Ki.
    pub capacity: Quantity,
    /// Directory of the metadata.
    pub metadata: HostPathSpec,
    /// Directory of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<HostPathSpec>,
    /// Several directories instead of one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"]))]
    pub data_paths: Vec<PoolDataPath>,
    /// How others reach a member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<PoolNetwork>,
    /// Pod fields of the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PoolPodTemplate>,
}

/// A directory of the Kubernetes Node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPathSpec {
    /// Where it is.
    pub host_path: String,
    /// What must be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Directory"))]
    pub host_path_type: Option<HostPathType>,
}

impl HostPathSpec {
    /// What must be there; absent means `Directory`.
    pub fn effective_type(&self) -> HostPathType {
        self.host_path_type.unwrap_or_default()
    }
}

/// `dataPaths[]` of a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.readOnly) && self.readOnly) != has(self.capacity)",
    "message": "capacity is required unless readOnly, and not allowed with it"
}]))]
pub struct PoolDataPath {
    /// Where the Pod sees it.
    pub path: String,
    /// Where it is on the Node.
    pub host_path: String,
    /// What must be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Directory"))]
    pub host_path_type: Option<HostPathType>,
    /// Its capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
    /// Garage writes nothing new there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

impl PoolDataPath {
    /// What must be there; absent means `Directory`.
    pub fn effective_type(&self) -> HostPathType {
        self.host_path_type.unwrap_or_default()
    }
}

/// `network` of a pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolNetwork {
    /// Address of each member with `{nodeName}` in it; it makes the tag `rpc-address:` stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"\{nodeName\}"))]
    pub rpc_public_addr_template: Option<String>,
}

/// `podTemplate` of a pool: Pod fields without a node selector.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.env) || self.env.all(e, e.name != 'GARAGE_CONFIG_FILE')",
    "message": "GARAGE_CONFIG_FILE is set by the controller"
}]))]
pub struct PoolPodTemplate {
    /// Pod fields.
    #[serde(flatten)]
    pub pod: PodFields,
    /// Environment of the garage container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::core::<Vec<EnvVar>>", extend("maxItems" = 256))]
    pub env: Vec<EnvVar>,
    /// Environment from elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::core::<Vec<EnvFromSource>>")]
    pub env_from: Vec<EnvFromSource>,
}

/// `spec.gateway`: not run here; reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayTier {
    /// Its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 2))]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Address under which others reach a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_public_addr: Option<String>,
    /// Its metadata volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<VolumeSpec>,
    /// What happens to claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc_retention_policy: Option<PvcRetentionPolicy>,
    /// Its disruption budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudgetSpec>,
    /// Its readiness probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object")]
    pub readiness_probe: Option<Value>,
    /// Pod fields.
    #[serde(flatten)]
    pub pod: PodFields,
    /// Environment of the garage container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::core::<Vec<EnvVar>>")]
    pub env: Vec<EnvVar>,
    /// Environment from elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::core::<Vec<EnvFromSource>>")]
    pub env_from: Vec<EnvFromSource>,
}

impl StorageTier {
    /// Nodes of the default group where nothing is written: not zero.
    pub const DEFAULT_REPLICAS: i32 = 3;

    /// Nodes of the default group; absent means 3.
    pub fn effective_replicas(&self) -> i32 {
        self.replicas.unwrap_or(Self::DEFAULT_REPLICAS)
    }
}

impl GarageClusterSpec {
    /// `replication.factor`; absent means 3.
    pub fn replication_factor(&self) -> i32 {
        self.replication.as_ref().and_then(|r| r.factor).unwrap_or(ReplicationSpec::DEFAULT_FACTOR)
    }

    /// `replication.consistencyMode`; absent means consistent.
    pub fn consistency_mode(&self) -> ConsistencyMode {
        self.replication.as_ref().and_then(|r| r.consistency_mode).unwrap_or_default()
    }

    /// The node-local pools; none without a storage tier.
    pub fn node_local_pools(&self) -> &[NodeLocalPool] {
        self.storage.as_ref().map_or(&[], |s| &s.node_local_pools)
    }

    /// `layoutManagement.siteRole`.
    pub fn site_role(&self) -> Option<SiteRole> {
        self.layout_management.as_ref().and_then(|l| l.site_role)
    }

    /// Whether a topology change starts a proof (P2); absent means no.
    pub fn verifies_on_topology_change(&self) -> bool {
        self.layout_management
            .as_ref()
            .and_then(|l| l.redundancy_verification.as_ref())
            .and_then(|v| v.on_topology_change)
            .unwrap_or(false)
    }

    /// Whether `maintenance.suspended` stops our writes and launches (P15).
    pub fn is_suspended(&self) -> bool {
        self.maintenance.as_ref().and_then(|m| m.suspended).unwrap_or(false)
    }
}

impl GarageCluster {
    /// What names are computed from; `None` for an object that the API server has not stored.
    pub fn id(&self) -> Option<ClusterId> {
        let meta = &self.metadata;
        Some(ClusterId::new(meta.namespace.clone()?, meta.name.clone()?, meta.uid.clone()?))
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// What shows that the layout is in somebody else's hands, by name (P15): a drain, a rollout or a factor migration that
    /// is written in status, or the annotation that asks for a migration. A shape that is not known counts.
    pub fn layout_in_other_hands(&self) -> Option<&'static str> {
        self.status.as_ref().and_then(GarageClusterStatus::other_hand).or_else(|| {
            self.annotation(annotation::cluster::PURGE_CLUSTER_LAYOUT)
                .map(|_| "annotation purge-cluster-layout")
        })
    }
}
