//! The Garage half of an observation: one believed endpoint's view, and what each node answered.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use holdfast_crds::ids::{LayoutVersion, NodeId};

/// What Garage said in one pass.
#[derive(Debug, Clone)]
pub struct GarageView {
    /// Health, status, layout and history, all from one endpoint and believed (O2, O3, O6); else what
    /// did not answer.
    pub core: Result<Core, NotObserved>,
    /// `ListWorkers` per node: a node without an entry was not asked; `Err` did not report (O4).
    pub workers: BTreeMap<NodeId, Result<Vec<Worker>, Silence>>,
    /// `ListBlockErrors` per node, as `workers`.
    pub block_errors: BTreeMap<NodeId, Result<Vec<BlockError>, Silence>>,
    /// O8: each local storage node's own view, asked at its own endpoint. `None` when this pass did
    /// not ask (idle and verified passes do not).
    pub peer_views: Option<BTreeMap<NodeId, Result<PeerView, Silence>>>,
    /// D2: per local storage node the sum of its failed table-sync calls since its start (undelivered, in
    /// error or timed out, of `garage_table/sync.rs`), where its metrics page could be read.
    pub sync_rpc_errors: BTreeMap<NodeId, u64>,
    /// Garage's own `rpc_timeout` per node, where `GetNodeInfo` shows it. Up to 2.5.0 none does: its
    /// `connectionParameters` are about S3.
    pub rpc_timeouts: BTreeMap<NodeId, Duration>,
    /// Admin API calls this pass made (O1: does not grow with the number of nodes).
    pub calls: u32,
}

impl GarageView {
    /// Of a pass that could not ask.
    pub const fn not_observed(why: NotObserved) -> Self {
        Self {
            core: Err(why),
            workers: BTreeMap::new(),
            block_errors: BTreeMap::new(),
            peer_views: None,
            sync_rpc_errors: BTreeMap::new(),
            rpc_timeouts: BTreeMap::new(),
            calls: 0,
        }
    }
}

/// Why Garage counts as not observed (O3). A fixed phrase, never raw error text (section 9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotObserved {
    /// What did not answer, e.g. "no Pod with an address", "GetClusterHealth", "an endpoint with layout version 7".
    pub what: String,
}

/// Why one node has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Silence {
    /// Garage says it is not connected to it.
    NotConnected,
    /// No answer within the deadline.
    TimedOut,
    /// It answered with an error, or with something that could not be read.
    Failed,
    /// It is in neither map of the answer.
    Missing,
}

/// Health, status, layout and history as one endpoint sees them.
#[derive(Debug, Clone)]
pub struct Core {
    /// The node that answered, where it is known.
    pub answering: Option<NodeId>,
    /// `GetClusterHealth`.
    pub health: Health,
    /// `GetClusterStatus.layoutVersion`.
    pub status_layout_version: LayoutVersion,
    /// `GetClusterStatus.nodes[]`.
    pub nodes: BTreeMap<NodeId, NodeState>,
    /// `GetClusterLayout`.
    pub layout: Layout,
    /// `GetClusterLayoutHistory`.
    pub history: History,
}

/// `GetClusterHealth`. Storage counts and partitions are over the union of all active layout versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// `healthy`, `degraded` or `unavailable`, as Garage wrote it.
    pub status: String,
    /// Nodes that the answering node knows.
    pub known_nodes: u32,
    /// Nodes that it is connected to (itself included).
    pub connected_nodes: u32,
    /// Storage nodes of the active layout versions.
    pub storage_nodes: u32,
    /// Of these, up. From `storageNodesUp` or `storageNodesOk` (O2).
    pub storage_nodes_up: u32,
    /// Partitions (256).
    pub partitions: u32,
    /// Partitions with a write quorum.
    pub partitions_quorum: u32,
    /// Partitions with every node up.
    pub partitions_all_ok: u32,
}

/// One entry of `GetClusterStatus.nodes[]`.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeState {
    /// The answering node's connection to it is up. Lags (O7).
    pub is_up: bool,
    /// It holds a role only in an older active version.
    pub draining: bool,
    /// Its RPC address, where known.
    pub addr: Option<SocketAddr>,
    /// Hostname of its last gossip. Never an identity (O7).
    pub hostname: Option<String>,
    /// Garage's version string, e.g. `cargo:2.5.0`.
    pub version: Option<String>,
    /// Seconds since it was last heard; `None` for the answering node or when never.
    pub last_seen_secs_ago: Option<u64>,
    /// File system under `data_dir`. Absent is unknown, and unknown is not room (O9).
    pub data_partition: Option<Partition>,
    /// File system under `metadata_dir`.
    pub metadata_partition: Option<Partition>,
}

/// A file system's size, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Bytes available.
    pub available: u64,
    /// Bytes in all.
    pub total: u64,
}

/// A role in the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Zone.
    pub zone: String,
    /// Bytes; `None` is a gateway.
    pub capacity: Option<u64>,
    /// Tags, in Garage's order.
    pub tags: Vec<String>,
}

impl Role {
    /// Whether this is a storage role: a positive capacity (section 2).
    pub fn is_storage(&self) -> bool {
        self.capacity.is_some_and(|c| c > 0)
    }
}

/// `GetClusterLayout`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Current version; 0 before the first layout.
    pub version: LayoutVersion,
    /// Current roles.
    pub roles: BTreeMap<NodeId, Role>,
    /// Layout parameters.
    pub parameters: LayoutParameters,
    /// Staged role changes, in Garage's order.
    pub staged: Vec<StagedChange>,
    /// Staged parameters, if any.
    pub staged_parameters: Option<LayoutParameters>,
}

/// Layout parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutParameters {
    /// Zone redundancy.
    pub zone_redundancy: ZoneRedundancy,
}

/// Zone redundancy of the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneRedundancy {
    /// As many zones as possible.
    Maximum,
    /// At least this many.
    AtLeast(u32),
}

/// A staged role change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedChange {
    /// Whom it concerns.
    pub id: NodeId,
    /// The new role; `None` removes it.
    pub role: Option<Role>,
}

/// `GetClusterLayoutHistory`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Current version.
    pub current: LayoutVersion,
    /// Lowest acknowledged version.
    pub min_ack: LayoutVersion,
    /// Kept versions, newest first as Garage lists them.
    pub versions: Vec<HistoryVersion>,
    /// Per node; `None` exactly when one version is live (FACTS 5).
    pub trackers: Option<BTreeMap<NodeId, Tracker>>,
}

/// One kept layout version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryVersion {
    /// The version.
    pub version: LayoutVersion,
    /// Its state.
    pub status: HistoryStatus,
}

/// State of a layout version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryStatus {
    /// The current one.
    Current,
    /// Older but still read from.
    Draining,
    /// Retired.
    Historical,
}

/// A node's progress through the live versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracker {
    /// Highest version it acknowledged.
    pub ack: LayoutVersion,
    /// Highest version its tables were synced for.
    pub sync: LayoutVersion,
    /// Highest version whose sync it acknowledged.
    pub sync_ack: LayoutVersion,
}

/// One background worker: its state at its last step, not now (O7).
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Its number in this process.
    pub id: u64,
    /// Its name, e.g. `object sync`.
    pub name: String,
    /// Its state.
    pub state: WorkerState,
    /// Failed steps since the process started; never goes down.
    pub errors: u64,
    /// Failed steps in a row.
    pub consecutive_errors: u64,
    /// Seconds since its last error, where it had one. The text is not kept: it may hold anything.
    pub last_error_secs_ago: Option<u64>,
    /// Garage's own words, e.g. `12.50%`.
    pub progress: Option<String>,
    /// Its queue, where it has one.
    pub queue_length: Option<u64>,
    /// A gauge of blocks in error (resync workers), a count elsewhere.
    pub persistent_errors: Option<u64>,
    /// Free text lines.
    pub freeform: Vec<String>,
}

/// A worker's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// Working.
    Busy,
    /// Pausing on purpose, or backing off after an error.
    Throttled,
    /// Nothing is due.
    Idle,
    /// Finished for good.
    Done,
    /// A state that this release does not know: never idle, never done.
    Unknown,
}

/// One block with resync errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockError {
    /// Block hash, 64 hex.
    pub hash: String,
    /// References to it on that node.
    pub refcount: u64,
    /// Failed tries.
    pub error_count: u64,
    /// Seconds since the last try.
    pub last_try_secs_ago: u64,
    /// Seconds until the next try.
    pub next_try_in_secs: u64,
}

/// O8: one node's own view of the site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerView {
    /// Its `GetClusterHealth`.
    pub health: Health,
    /// Nodes that it sees up, itself included.
    pub up: BTreeSet<NodeId>,
}
