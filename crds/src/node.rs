//! GarageNode v1beta1 (`compat.md` 4 and 10).
//!
//! Whoever decides from a list of GarageNodes counts one that cannot be read as "the list cannot be read" (O3).

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{KubernetesNodeName, NodeId, Pair, PoolName};
use crate::names::annotation;
use crate::schema;
use crate::spec::{LocalSecretRef, LoggingSpec, MaintenanceSpec, PodFields, SecretKeyRef, ZoneFrom};
use crate::status::Time;
use crate::units::Quantity;

/// What a GarageNode asks for.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "garage.rajsingh.info", version = "v1beta1", kind = "GarageNode", namespaced)]
#[kube(status = "GarageNodeStatus", shortname = "gn", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.gateway) && self.gateway) || has(self.external) || has(self.capacity)",
    "message": "a node that is neither a gateway nor external needs a capacity"
}]))]
pub struct GarageNodeSpec {
    /// Which GarageCluster it belongs to.
    pub cluster_ref: ClusterRef,
    /// Its zone.
    pub zone: String,
    /// Its zone from a label of the Kubernetes Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_from: Option<ZoneFrom>,
    /// Its identity; never on a pool's member.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::lenient::empty_as_none"
    )]
    #[schemars(with = "Option<String>", regex(pattern = r"^[0-9a-fA-F]{64}$"))]
    pub node_id: Option<NodeId>,
    /// Its capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Quantity>,
    /// Whether it is a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<bool>,
    /// User tags of its role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What runs it; absent means `StatefulSet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<Backing>,
    /// The Kubernetes Node of a pool's member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_node_name: Option<String>,
    /// The pool of a pool's member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_local_pool_name: Option<String>,
    /// A node that runs elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalNode>,
    /// Volumes of a node that a StatefulSet runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "node_storage")]
    pub storage: Option<Value>,
    /// Overrides the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Overrides the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_repository: Option<String>,
    /// Overrides the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// Overrides the cluster's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalSecretRef>,
    /// Overrides the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Overrides the cluster's.
    #[serde(flatten)]
    pub pod: PodFields,
    /// Overrides the cluster's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::core::<Vec<EnvVar>>")]
    pub env: Vec<EnvVar>,
    /// Overrides the cluster's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::core::<Vec<EnvFromSource>>")]
    pub env_from: Vec<EnvFromSource>,
    /// How others reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NodeNetwork>,
    /// How other sites reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object")]
    pub public_endpoint: Option<Value>,
    /// Maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceSpec>,
    /// Logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<LoggingSpec>,
}

/// `spec.clusterRef`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRef {
    /// Its name.
    pub name: String,
    /// Its namespace; only the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Refused by the full operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_config_secret_ref: Option<SecretKeyRef>,
}

/// `spec.backing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
pub enum Backing {
    /// A StatefulSet.
    #[default]
    StatefulSet,
    /// A pool's DaemonSet.
    NodeLocalPool,
}

/// `spec.external`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalNode {
    /// Its address.
    pub address: String,
    /// Its RPC port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 3901))]
    pub port: Option<i32>,
    /// Refused by the full operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object")]
    pub remote_cluster_ref: Option<Value>,
}

/// `spec.network`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeNetwork {
    /// Address of the `rpc-address:` tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_public_addr: Option<String>,
}

fn node_storage(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let any = serde_json::json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    schemars::json_schema!({
        "type": "object",
        "properties": {
            "metadata": any,
            "data": any,
            "dataPaths": { "type": "array", "items": any },
        },
        "x-kubernetes-validations": [{
            "rule": "!(has(self.data) && has(self.dataPaths))",
            "message": "data and dataPaths exclude each other",
        }],
    })
}

/// What is known of a GarageNode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GarageNodeStatus {
    /// Its identity, read from its own process.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::lenient::empty_as_none"
    )]
    #[schemars(with = "Option<String>")]
    pub node_id: Option<NodeId>,
    /// Zone of its role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The Pod that the identity was read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_pod_uid: Option<String>,
    /// Address of its RPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Its host's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Garage's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Tags of its role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// `Pending`, `Ready`, `Failed`, `Deleting`, and others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Whether it has a role. Always written.
    #[serde(default)]
    #[schemars(with = "Option<bool>")]
    pub in_layout: bool,
    /// Whether Garage sees it. Always written.
    #[serde(default)]
    #[schemars(with = "Option<bool>")]
    pub connected: bool,
    /// Version of the layout that it was seen in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout_version: Option<i64>,
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Written by the full operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_deletion_request_generation: Option<i64>,
    /// Partitions of its role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<i64>,
    /// When Garage last saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Time>,
    /// Room for data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_partition: Option<PartitionStatus>,
    /// Room for metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_partition: Option<PartitionStatus>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Room in a file system.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionStatus {
    /// Bytes left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<Quantity>,
    /// Bytes in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Quantity>,
    /// Percent used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_percent: Option<i32>,
}

impl GarageNode {
    /// The pair of a pool's member; `None` for another kind of node or for names that are none.
    pub fn pair(&self) -> Option<Pair> {
        if self.spec.backing != Some(Backing::NodeLocalPool) {
            return None;
        }
        Some(Pair {
            pool: self.spec.node_local_pool_name.as_ref()?.parse::<PoolName>().ok()?,
            node: self.spec.kubernetes_node_name.as_ref()?.parse::<KubernetesNodeName>().ok()?,
        })
    }

    /// Whether it belongs to the GarageCluster of this name in its own namespace.
    pub fn belongs_to(&self, cluster: &str) -> bool {
        self.spec.cluster_ref.name == cluster
            && self
                .spec
                .cluster_ref
                .namespace
                .as_ref()
                .is_none_or(|n| Some(n) == self.metadata.namespace.as_ref())
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The recovery pin as it stands; `Err` holds a value that is no identity.
    pub fn recovery_pin(&self) -> Result<Option<NodeId>, crate::ids::InvalidId> {
        self.annotation(annotation::node::RECOVERY_PIN).filter(|v| !v.is_empty()).map(str::parse).transpose()
    }

    /// The identity that is known: `status.nodeId`, else `spec.nodeId`.
    pub fn node_id(&self) -> Option<NodeId> {
        self.status.as_ref().and_then(|s| s.node_id).or(self.spec.node_id)
    }

    /// What shows that the member is in another operator's hands, by name (P15).
    pub fn in_other_hands(&self) -> Option<&'static str> {
        let set = |key| self.annotation(key).is_some_and(|v| !v.is_empty() && v != "false");
        if set(annotation::node::DRAIN) {
            Some("annotation drain")
        } else if set(annotation::node::ACKNOWLEDGE_LOST_SOURCE) {
            Some("annotation acknowledge-lost-source")
        } else {
            None
        }
    }

    /// Whether work on this member is suspended (P15).
    pub fn is_suspended(&self) -> bool {
        self.spec.maintenance.as_ref().and_then(|m| m.suspended).unwrap_or(false)
            || self.annotation(annotation::node::OPERATOR_SUSPENDED).is_some_and(|v| v == "true")
    }
}
