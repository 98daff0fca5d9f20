//! GarageNode v1beta1.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a GarageNode asks for.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "garage.rajsingh.info", version = "v1beta1", kind = "GarageNode", namespaced)]
#[kube(status = "GarageNodeStatus", shortname = "gn")]
#[serde(rename_all = "camelCase")]
pub struct GarageNodeSpec {}

/// What is known of a GarageNode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GarageNodeStatus {}
