//! Who decides about the layout, and where else the cluster lives.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SecretKeyRef;
use crate::schema;
use crate::units::Quantity;

/// `spec.layoutManagement`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayoutManagement {
    /// Whether layout changes are applied without asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_apply: Option<bool>,
    /// Fewest healthy nodes for a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_nodes_healthy: Option<i64>,
    /// How nodes are drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainSpec>,
    /// In a federation, whether this site decides about the layout. Exactly one site is the Writer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site_role: Option<SiteRole>,
    /// What starts a proof besides a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy_verification: Option<RedundancyVerification>,
}

/// `layoutManagement.siteRole`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SiteRole {
    /// It decides about the layout.
    Writer,
    /// It follows.
    Follower,
}

/// `layoutManagement.redundancyVerification`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RedundancyVerification {
    /// Whether a change of the storage nodes, their zones or capacities starts a proof (P2). Absent means no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_topology_change: Option<bool>,
}

/// `layoutManagement.drain`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainSpec {
    /// What to do about peers that cannot be verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Block"))]
    pub unverified_peers_policy: Option<UnverifiedPeersPolicy>,
}

/// `drain.unverifiedPeersPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum UnverifiedPeersPolicy {
    /// Wait.
    Block,
    /// Go on.
    AssumeConsistent,
}

/// `layoutPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum LayoutPolicy {
    /// Roles follow the spec.
    Auto,
    /// A person changes roles.
    Manual,
}

/// `spec.deletionPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// The roles stay.
    Destroy,
    /// Nodes are drained first.
    Drain,
}

/// `spec.zoneFrom`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ZoneFrom {
    /// Label of the Kubernetes Node that holds the zone.
    #[schemars(length(min = 1, max = 316))]
    pub node_label: String,
}

/// `spec.remoteClusters[]`: another site of the same Garage cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteCluster {
    /// Its name.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// How it is reached.
    pub connection: RemoteConnection,
    /// Refused by the full operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_capacity: Option<Quantity>,
}

/// `remoteClusters[].connection`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteConnection {
    /// URL of its Admin API.
    pub admin_api_endpoint: String,
    /// Its admin token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_token_secret_ref: Option<SecretKeyRef>,
    /// Address of a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_rpc_endpoint_template: Option<String>,
    /// Address of a storage node (v1beta2 only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_rpc_endpoint_template: Option<String>,
}

/// `spec.connectTo`: this object is a handle on, or a gateway of, another cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectTo {
    /// A GarageCluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_ref: Option<ConnectToClusterRef>,
    /// The RPC secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_secret_ref: Option<SecretKeyRef>,
    /// Peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bootstrap_peers: Vec<String>,
    /// URL of the Admin API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_api_endpoint: Option<String>,
    /// Its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_token_secret_ref: Option<SecretKeyRef>,
}

/// `connectTo.clusterRef`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectToClusterRef {
    /// Its name.
    pub name: String,
    /// Its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Refused by the full operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object")]
    pub kube_config_secret_ref: Option<SecretKeyRef>,
}

/// `maintenance`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceSpec {
    /// Stops every write and launch here (P15).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
}
