//! GarageCluster v1beta2: the hub and stored version.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a GarageCluster asks for.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "garage.rajsingh.info", version = "v1beta2", kind = "GarageCluster", namespaced)]
#[kube(status = "GarageClusterStatus", shortname = "gc")]
#[serde(rename_all = "camelCase")]
pub struct GarageClusterSpec {}

/// What is known of a GarageCluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GarageClusterStatus {
    /// Our part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<crate::status::Redundancy>,
    /// Hold and refill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_local_service: Option<crate::status::NodeLocalService>,
}
