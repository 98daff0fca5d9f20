//! A GarageCluster's status: what this product fills or reads (`compat.md` 9); its own part is in
//! [`status`](crate::status).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema;
use crate::status::{NodeLocalService, Redundancy, Time};
use crate::units::Quantity;

/// What is known of a GarageCluster; the same in both versions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GarageClusterStatus {
    /// `Pending`, `Creating`, `Running`, `Ready`, `Degraded`, `Updating`, `Deleting`, `Failed` or `Unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Nodes of all tiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Of these, ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// For the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_replicas: Option<i32>,
    /// Label selector of the Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// For the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_selector: Option<String>,
    /// Nodes of the storage tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_replicas: Option<i32>,
    /// Of these, ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_ready_replicas: Option<i32>,
    /// Nodes of the gateway tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_replicas: Option<i32>,
    /// Of these, ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_ready_replicas: Option<i32>,
    /// Garage's name for the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// What runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_info: Option<BuildInfo>,
    /// Version of the layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout_version: Option<i64>,
    /// Nodes being drained, counted by the full operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining_nodes: Option<i64>,
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Garage's own word on its health.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthStatus>,
    /// Room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_stats: Option<StorageStats>,
    /// Garage's layout versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout_history: Option<LayoutHistoryStatus>,
    /// Where the APIs are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<EndpointsStatus>,
    /// What is wrong with the layout, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout_diagnosis: Option<String>,
    /// A factor migration of the full operator; any shape. Read only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object")]
    pub factor_migration: Option<Value>,
    /// A drain of the full operator; any shape. Read only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object")]
    pub storage_drain: Option<Value>,
    /// A rollout of the full operator; any shape. Read only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object")]
    pub storage_rollout: Option<Value>,
    /// Blocks with resync errors in the cluster; absent unless every storage node answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_errors: Option<i32>,
    /// Blocks in resync queues of the cluster; absent unless every storage node answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync_queue_length: Option<i64>,
    /// Some of the blocks with errors; absent unless every storage node answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_error_details: Option<BlockErrorDetails>,
    /// The proof that every object is on every node that should hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<Redundancy>,
    /// Hold and refill of a pool's member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_local_service: Option<NodeLocalService>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// `status.buildInfo`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    /// Garage's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// `status.health`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthStatus {
    /// Garage's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Whether that word is `healthy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy: Option<bool>,
    /// Whether requests are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<bool>,
    /// Nodes that Garage knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_nodes: Option<i64>,
    /// Of these, connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected_nodes: Option<i64>,
    /// Storage nodes of the live layout versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_nodes: Option<i64>,
    /// Of these, up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_nodes_ok: Option<i64>,
    /// Partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<i64>,
    /// Of these, with a quorum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions_quorum: Option<i64>,
    /// Of these, with every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions_all_ok: Option<i64>,
}

/// `status.storageStats`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageStats {
    /// Bytes in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_capacity: Option<Quantity>,
    /// Bytes used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_capacity: Option<Quantity>,
    /// Bytes left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_capacity: Option<Quantity>,
}

/// `status.layoutHistory`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayoutHistoryStatus {
    /// The current version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_version: Option<i64>,
    /// Lowest version that every node acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ack: Option<i64>,
    /// The versions that Garage shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub versions: Vec<LayoutHistoryVersion>,
}

/// `layoutHistory.versions[]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayoutHistoryVersion {
    /// Which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Garage's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Its storage nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_nodes: Option<i64>,
    /// Its gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_nodes: Option<i64>,
}

/// `status.endpoints`: `<service>.<namespace>.svc.<cluster domain>:<port>`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointsStatus {
    /// The S3 API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<String>,
    /// The Admin API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<String>,
    /// The RPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc: Option<String>,
}

/// `status.blockErrorDetails`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockErrorDetails {
    /// Blocks with errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
    /// The last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error_at: Option<Time>,
    /// Those with the most errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_errors: Vec<BlockError>,
}

/// `blockErrorDetails.topErrors[]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockError {
    /// Which block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_hash: Option<String>,
    /// How often it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_count: Option<i32>,
    /// In Garage's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When it was last tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<Time>,
    /// When it is tried next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry: Option<Time>,
}

impl GarageClusterStatus {
    /// What in here shows that the layout is in another operator's hands, by name (P15). A drain or a rollout is active
    /// while it is present; a factor migration unless its phase says that it ended. A shape that is not known is active.
    pub fn other_hand(&self) -> Option<&'static str> {
        let ended = |migration: &Value| {
            matches!(migration.get("phase").and_then(Value::as_str), Some("Completed" | "Failed"))
        };
        if self.storage_drain.is_some() {
            Some("status.storageDrain")
        } else if self.factor_migration.as_ref().is_some_and(|m| !ended(m)) {
            Some("status.factorMigration")
        } else if self.storage_rollout.is_some() {
            Some("status.storageRollout")
        } else {
            None
        }
    }

    /// The condition of this type.
    pub fn condition(&self, condition_type: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == condition_type)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn status(value: Value) -> GarageClusterStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn another_operators_work_is_seen_by_its_presence_whatever_its_shape() {
        assert_eq!(status(json!({ "storageDrain": {} })).other_hand(), Some("status.storageDrain"));
        assert_eq!(status(json!({ "storageRollout": "odd" })).other_hand(), Some("status.storageRollout"));
        for migration in [json!({ "phase": "Purging" }), json!({ "phase": 7 }), json!([]), json!({})] {
            assert_eq!(
                status(json!({ "factorMigration": migration })).other_hand(),
                Some("status.factorMigration")
            );
        }
        for phase in ["Completed", "Failed"] {
            assert_eq!(status(json!({ "factorMigration": { "phase": phase } })).other_hand(), None);
        }
        assert_eq!(status(json!({ "storageDrain": null })).other_hand(), None);
    }

    #[test]
    fn evidence_of_an_unknown_shape_becomes_a_marker_and_hides_nothing_else() {
        for evidence in [
            json!({ "nodeStage": "Later" }),
            json!({ "laterField": 1 }),
            json!([1]),
            json!("x"),
            json!({ "launches": "many" }),
            json!({ "tablesDoneNodeIds": ["not an id"] }),
        ] {
            let read = status(json!({ "redundancy": { "verification": {
                "phase": "ScanningBlocks", "requestToken": "t", "evidence": evidence,
            } } }));
            let verification = read.redundancy.unwrap().verification.unwrap();
            assert!(verification.evidence.unwrap().unrecognized);
            assert_eq!(verification.request_token.as_deref(), Some("t"));
        }
    }

    #[test]
    fn evidence_of_this_release_reads_back_as_it_was_written() {
        let written = json!({ "phase": "Settling", "evidence": {
            "nodeStage": "Blocks", "launches": 2, "quietSince": "2026-11-30T01:00:00Z",
            "incarnations": { "0f".repeat(32): { "podUid": "u", "restartCount": 1 } },
        } });
        let read: crate::status::Verification = serde_json::from_value(written.clone()).unwrap();
        assert!(!read.evidence.as_ref().unwrap().unrecognized);
        assert_eq!(serde_json::to_value(read).unwrap(), written);
    }

    #[test]
    fn absent_evidence_is_absent_and_no_marker() {
        for verification in [json!({ "phase": "Idle" }), json!({ "phase": "Idle", "evidence": null })] {
            let read: crate::status::Verification = serde_json::from_value(verification).unwrap();
            assert_eq!(read.evidence, None);
        }
    }
}
