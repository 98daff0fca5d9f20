//! Our part of a GarageCluster's status (`behaviour.md` section 6), the same in both versions.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::cluster_status::GarageClusterStatus;
use crate::ids::{LayoutVersion, NodeId};
use crate::schema;

// Times are whole seconds, RFC 3339: `TimeSeconds` in this module guarantees it.
/// A point in time in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Timestamp);

impl Time {
    /// Cuts to whole seconds.
    pub fn new(t: Timestamp) -> Self {
        Self(Timestamp::from_second(t.as_second()).unwrap_or(t))
    }
    /// The timestamp.
    pub const fn timestamp(self) -> Timestamp {
        self.0
    }
    /// Seconds since the epoch.
    pub fn as_second(self) -> i64 {
        self.0.as_second()
    }
    /// Whole seconds from `earlier` to this; negative when the clock went back.
    pub fn seconds_since(self, earlier: Self) -> i64 {
        self.as_second() - earlier.as_second()
    }
    /// This many seconds later; saturates at the end of time.
    #[must_use]
    pub fn plus_seconds(self, seconds: i64) -> Self {
        Self(Timestamp::from_second(self.as_second().saturating_add(seconds)).unwrap_or(Timestamp::MAX))
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let s = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        s.parse::<Timestamp>().map(Self::new).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// `status.redundancy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Redundancy {
    /// Whether every storage role of the layout is local to this site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Counts of the current layout's storage roles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_nodes: Option<StorageNodes>,
    /// The proof. Absent under `SiteRoleUnset`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// When `nodes` was last rewritten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_observed_at: Option<Time>,
    /// Last time remaining work decreased; moves in steps of at least 60 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_progress_at: Option<Time>,
    /// Nodes whose turn is put off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["nodeId"]))]
    pub deferred_nodes: Vec<DeferredNode>,
    /// Federated sites only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordination: Option<Coordination>,
    /// Progress per node, sorted by node ID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["nodeId"]))]
    pub nodes: Vec<NodeRedundancy>,
}

/// `status.redundancy.scope`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Scope {
    /// Every storage role is local to this site.
    Cluster,
    /// Other sites hold storage roles too.
    Local,
}

/// `status.redundancy.storageNodes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StorageNodes {
    /// Storage roles of the current layout.
    #[schemars(range(min = 0))]
    pub total: i32,
    /// Of these, local.
    #[schemars(range(min = 0))]
    pub local: i32,
    /// Of these, remote.
    #[schemars(range(min = 0))]
    pub remote: i32,
    /// Local nodes finished in the current or last proof.
    #[schemars(range(min = 0))]
    pub verified: i32,
}

/// A node whose turn is put off (P11).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeferredNode {
    /// Which node.
    pub node_id: NodeId,
    /// Why.
    pub reason: DeferReason,
    /// Since when.
    pub since: Time,
    /// Not before. Absent for `RepairFailed`: only a new token retries such a node (P10).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Time>,
}

/// Why a node's turn is put off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum DeferReason {
    /// It is down.
    Down,
    /// It is up but does not answer.
    NotReporting,
    /// Its repair failed three times.
    RepairFailed,
}

/// `status.redundancy.coordination` (F1).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Coordination {
    /// Highest `Block repair worker` ID seen per remote storage node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::counters", extend("maxProperties" = 256))]
    pub remote_repair_worker_ids: BTreeMap<NodeId, i64>,
    /// Last activity of another site's proof; moves in steps of 60 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_remote_repair_at: Option<Time>,
    /// Where it was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_remote_repair_node_id: Option<NodeId>,
}

/// `status.redundancy.nodes[]`. A counter never observed is absent, not 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeRedundancy {
    /// Which node.
    pub node_id: NodeId,
    /// Whether it answered in this pass; if not, its counters keep their previous values.
    pub observed: bool,
    /// Blocks in its resync queue, delayed rechecks included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub resync_queue_length: Option<i64>,
    /// Every enabled resync worker is idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync_idle: Option<bool>,
    /// Blocks with resync errors there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub block_errors: Option<i32>,
    /// Sum over the five tables' sync queues; 0 between passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub metadata_sync_partitions: Option<i32>,
    /// Sum over the five tables' Merkle and insert queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub metadata_queue_length: Option<i64>,
    /// Garage's words for the repair that this proof adopted, only while it runs (max 64).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub block_repair_progress: Option<String>,
    /// When this node, of a Garage before 2.3.0, was last seen without room; absent again after a scrub
    /// that completed later (O9).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_room_seen_at: Option<Time>,
}

/// `status.redundancy.verification`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// Where the proof stands.
    pub phase: Phase,
    /// Why it runs or ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// When it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When this phase began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_started_at: Option<Time>,
    /// When a proof last completed; kept across invalidation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified_at: Option<Time>,
    /// Layout version that the proof or baseline is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout_version: Option<LayoutVersion>,
    /// First 32 hex over the storage node IDs, last 32 over ID, zone, capacity and parameters (D13).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub topology_hash: Option<String>,
    /// The last handled `verify-redundancy` token (max 253).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub request_token: Option<String>,
    /// Whose turn it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_node_id: Option<NodeId>,
    /// Nodes with both turns done.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(extend("maxItems" = 256, "x-kubernetes-list-type" = "set"))]
    pub completed_node_ids: BTreeSet<NodeId>,
    /// What the running proof must remember. Reading it never fails: see [`Evidence::unrecognized`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read_evidence")]
    pub evidence: Option<Evidence>,
}

/// `verification.phase`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Phase {
    /// No proof runs.
    #[default]
    Idle,
    /// A proof is asked for and waits.
    Pending,
    /// The tables round.
    SyncingMetadata,
    /// The blocks round.
    ScanningBlocks,
    /// The quiet period.
    Settling,
    /// Nothing left to do, but nodes are deferred or due a recheck (P13).
    Partial,
    /// The proof stands.
    Verified,
}

/// `verification.trigger`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Trigger {
    /// The annotation.
    Requested,
    /// The set of storage nodes changed.
    NodeChanged,
    /// A zone, a capacity or the parameters changed.
    LayoutChanged,
}

/// Evidence of a shape that this release does not know becomes a marker instead of an error: one bad sub-object must not
/// hide the object, nor pass for "nothing to remember".
fn read_evidence<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Evidence>, D::Error> {
    let value = Option::<serde_json::Value>::deserialize(deserializer)?;
    Ok(value.map(|v| {
        serde_json::from_value(v).unwrap_or_else(|_| Evidence { unrecognized: true, ..Evidence::default() })
    }))
}

/// `verification.evidence`. An unrecognized shape restarts the proof.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Evidence {
    /// Not stored: what was stored has a shape that this release does not know (a field, a word or a type of a later one, or
    /// a damaged one). Nothing else in here is then to be believed, and the proof starts again.
    #[serde(skip)]
    #[schemars(skip)]
    pub unrecognized: bool,
    /// The current node's stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_stage: Option<NodeStage>,
    /// When the stage's repair was launched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage_launched_at: Option<Time>,
    /// Highest worker ID before the launch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_baseline: Option<i64>,
    /// `errors` of the five sync workers before the launch, by worker name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::counters")]
    pub sync_error_baselines: BTreeMap<String, i64>,
    /// First of the two clean observations of a tables stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
    /// The adopted `Block repair worker`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair_worker_id: Option<i64>,
    /// Launches of this stage (0..3).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3))]
    pub launches: Option<i32>,
    /// End of the pause after a blocks turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_until: Option<Time>,
    /// A peer was missed in this tables stage (P12).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_down_seen: Option<bool>,
    /// Nodes with a clean tables turn.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(extend("maxItems" = 256, "x-kubernetes-list-type" = "set"))]
    pub tables_done_node_ids: BTreeSet<NodeId>,
    /// Nodes whose tables turn must be repeated.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(extend("maxItems" = 256, "x-kubernetes-list-type" = "set"))]
    pub tables_recheck_node_ids: BTreeSet<NodeId>,
    /// `persistentErrors` per `<nodeId>/<workerId>`; kept only in `Settling` with empty lists.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::counters")]
    pub resync_error_baselines: BTreeMap<String, i64>,
    /// Failed table-sync calls of the current node before the stage (P7, D2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_rpc_error_baseline: Option<i64>,
    /// When the adopted repair was first seen done (P8).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair_done_seen_at: Option<Time>,
    /// Per finished node, what would show that it went down between two passes (P16).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of::<Incarnation>", extend("maxProperties" = 256))]
    pub incarnations: BTreeMap<NodeId, Incarnation>,
    /// Nodes that may lack items which another node's tables turn should have pushed (P6, P12): their
    /// blocks turn waits until nobody is due a recheck.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(extend("maxItems" = 256, "x-kubernetes-list-type" = "set"))]
    pub missed_node_ids: BTreeSet<NodeId>,
    /// Blocks launches that an interrupted blocks turn has already used (P10).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::counters", extend("maxProperties" = 256))]
    pub blocks_launches: BTreeMap<NodeId, i32>,
    /// Passes after a blocks launch in which the node reported without a new worker (P10; 0..3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passes_without_worker: Option<i32>,
    /// Since when the current node is up but missing from the answers (P11).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<Time>,
    /// A tables stage of this proof ended without its counter of failed sync calls being readable (P7, D2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_metrics_unread: Option<bool>,
    /// Begin of the quiet period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet_since: Option<Time>,
    /// Scope `Local`: when, one anti-entropy interval after `quietSince`, the sync workers of all remote storage nodes
    /// were first seen idle together, so that each has ended a whole pass of its own since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_passes_seen_at: Option<Time>,
    /// Local nodes whose block resync was busy in every pass since the quiet period was over.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(extend("maxItems" = 256, "x-kubernetes-list-type" = "set"))]
    pub resync_busy_node_ids: BTreeSet<NodeId>,
    /// Listed block errors at the begin of the 30-minute window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_errors_baseline: Option<i32>,
    /// When that window began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_errors_baseline_at: Option<Time>,
}

/// `evidence.nodeStage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NodeStage {
    /// A tables repair.
    Tables,
    /// A blocks repair.
    Blocks,
    /// The pause after it.
    Pause,
}

/// What a node was at the end of its turn (P16, O9).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Incarnation {
    /// UID of its Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Restarts of its `garage` container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<i32>,
    /// Highest worker ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub highest_worker_id: Option<i64>,
    /// Bytes in all of its data partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_total: Option<i64>,
    /// Bytes in all of its metadata partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_total: Option<i64>,
}

/// `status.nodeLocalService`: a hold or a refill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeLocalService {
    /// The pool.
    pub pool: String,
    /// The Kubernetes Node.
    pub kubernetes_node: String,
    /// What is done.
    pub operation: ServiceOperation,
    /// Where it stands.
    pub phase: ServicePhase,
    /// The member's identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub garage_node_id: Option<NodeId>,
    /// The exact Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// When it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When this phase began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_started_at: Option<Time>,
    /// Since when the disk may be touched (H4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safe_since: Option<Time>,
    /// When the Pod was first seen gone while its Node was not Ready (H3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_unconfirmed_since: Option<Time>,
    /// How often the activation came back by another's hand (H5).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub activation_returns: Option<i32>,
    /// Since when every node has seen the returned identity up (H6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned_at: Option<Time>,
    /// Of a replacement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replacement: Option<Replacement>,
}

/// `nodeLocalService.operation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceOperation {
    /// A hold.
    OutOfService,
    /// A refill.
    ReplaceIdentity,
}

/// `nodeLocalService.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServicePhase {
    /// Preconditions do not hold yet (both).
    Waiting,
    /// The activation label goes (hold).
    Deactivating,
    /// The Pod ends (hold).
    Terminating,
    /// The disk may be touched (hold).
    OutOfService,
    /// The member returns (hold).
    Restoring,
    /// It is back (hold).
    InService,
    /// The layout is being applied (replace).
    Applying,
    /// The history settles (replace).
    Settling,
    /// Pins move (replace).
    RepairingPins,
    /// Done (replace).
    Completed,
}

/// `nodeLocalService.replacement`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replacement {
    /// The identity that goes.
    pub old_node_id: NodeId,
    /// The identity that comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_node_id: Option<NodeId>,
    /// The version before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_layout_version: Option<LayoutVersion>,
    /// The version after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout_version: Option<LayoutVersion>,
    /// When the dead identity was skipped (R4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_at: Option<Time>,
    /// When it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}
