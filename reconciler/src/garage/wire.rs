//! Answers of the Admin API as they are on the wire, and their reading into the observation's data.
//!
//! Reading is total: any bytes give a value or [`Error::Malformed`]. Keys that we do not know are ignored
//! (later releases add some), keys that we need and that are missing are not guessed.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;

use holdfast_crds::ids::{LayoutVersion, NodeId};
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::error::Error;
use crate::observe::{
    BlockError, Health, History, HistoryStatus, HistoryVersion, Layout, LayoutParameters, NodeState,
    Partition, Role, Silence, StagedChange, Tracker, Worker, WorkerState, ZoneRedundancy,
};

/// A JSON object with its entries in order, a repeated key included: `serde_json`'s own map would keep the
/// last one and hide that the answer contradicts itself.
struct Entries<V>(Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for InOrder<V> {
            type Value = Entries<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder(PhantomData))
    }
}

impl<V> Default for Entries<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|_| Error::Malformed)
}

/// Collects into a map; the same node twice is a contradiction.
fn unique<T>(entries: impl Iterator<Item = (NodeId, T)>) -> Result<BTreeMap<NodeId, T>, Error> {
    let mut map = BTreeMap::new();
    for (id, value) in entries {
        if map.insert(id, value).is_some() {
            return Err(Error::Malformed);
        }
    }
    Ok(map)
}

// ---- GetClusterHealth

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HealthAnswer {
    status: String,
    known_nodes: u32,
    connected_nodes: u32,
    storage_nodes: u32,
    storage_nodes_up: Option<u32>,
    storage_nodes_ok: Option<u32>,
    partitions: u32,
    partitions_quorum: u32,
    partitions_all_ok: u32,
}

/// `GetClusterHealth`. O2: 2.0.0 says `storageNodesOk`, later releases `storageNodesUp`; neither, or both
/// with different values, is no observation.
pub fn health(body: &[u8]) -> Result<Health, Error> {
    let a: HealthAnswer = json(body)?;
    let storage_nodes_up = match (a.storage_nodes_up, a.storage_nodes_ok) {
        (Some(up), Some(ok)) if up == ok => up,
        (Some(n), None) | (None, Some(n)) => n,
        (Some(_), Some(_)) | (None, None) => return Err(Error::Malformed),
    };
    Ok(Health {
        status: a.status,
        known_nodes: a.known_nodes,
        connected_nodes: a.connected_nodes,
        storage_nodes: a.storage_nodes,
        storage_nodes_up,
        partitions: a.partitions,
        partitions_quorum: a.partitions_quorum,
        partitions_all_ok: a.partitions_all_ok,
    })
}

// ---- GetClusterStatus

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusAnswer {
    layout_version: LayoutVersion,
    nodes: Vec<StatusNode>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusNode {
    id: NodeId,
    garage_version: Option<String>,
    addr: Option<SocketAddr>,
    hostname: Option<String>,
    is_up: bool,
    last_seen_secs_ago: Option<u64>,
    draining: bool,
    data_partition: Option<PartitionAnswer>,
    metadata_partition: Option<PartitionAnswer>,
}

#[derive(Deserialize)]
struct PartitionAnswer {
    available: u64,
    total: u64,
}

impl From<PartitionAnswer> for Partition {
    fn from(p: PartitionAnswer) -> Self {
        Self { available: p.available, total: p.total }
    }
}

/// `GetClusterStatus`: the layout version and every node it knows.
pub fn status(body: &[u8]) -> Result<(LayoutVersion, BTreeMap<NodeId, NodeState>), Error> {
    let a: StatusAnswer = json(body)?;
    let nodes = unique(a.nodes.into_iter().map(|n| {
        let state = NodeState {
            is_up: n.is_up,
            draining: n.draining,
            addr: n.addr,
            hostname: n.hostname,
            version: n.garage_version,
            last_seen_secs_ago: n.last_seen_secs_ago,
            data_partition: n.data_partition.map(Into::into),
            metadata_partition: n.metadata_partition.map(Into::into),
        };
        (n.id, state)
    }))?;
    Ok((a.layout_version, nodes))
}

// ---- GetClusterLayout and the calls that answer with a layout

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LayoutAnswer {
    version: LayoutVersion,
    roles: Vec<RoleAnswer>,
    parameters: ParametersWire,
    staged_role_changes: Vec<StagedAnswer>,
    staged_parameters: Option<ParametersWire>,
}

#[derive(Deserialize)]
struct RoleAnswer {
    id: NodeId,
    zone: String,
    // Null for a gateway.
    capacity: Option<u64>,
    tags: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum StagedAnswer {
    Remove { id: NodeId, remove: bool },
    Assign(RoleAnswer),
}

/// Layout parameters, both ways.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParametersWire {
    zone_redundancy: ZoneRedundancyWire,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ZoneRedundancyWire {
    Maximum,
    AtLeast(u32),
}

impl From<ParametersWire> for LayoutParameters {
    fn from(p: ParametersWire) -> Self {
        Self {
            zone_redundancy: match p.zone_redundancy {
                ZoneRedundancyWire::Maximum => ZoneRedundancy::Maximum,
                ZoneRedundancyWire::AtLeast(n) => ZoneRedundancy::AtLeast(n),
            },
        }
    }
}

impl From<LayoutParameters> for ParametersWire {
    fn from(p: LayoutParameters) -> Self {
        Self {
            zone_redundancy: match p.zone_redundancy {
                ZoneRedundancy::Maximum => ZoneRedundancyWire::Maximum,
                ZoneRedundancy::AtLeast(n) => ZoneRedundancyWire::AtLeast(n),
            },
        }
    }
}

impl RoleAnswer {
    fn read(self) -> (NodeId, Role) {
        (self.id, Role { zone: self.zone, capacity: self.capacity, tags: self.tags })
    }
}

impl TryFrom<LayoutAnswer> for Layout {
    type Error = Error;
    fn try_from(a: LayoutAnswer) -> Result<Self, Error> {
        let staged = a
            .staged_role_changes
            .into_iter()
            .map(|change| match change {
                StagedAnswer::Remove { id, remove: true } => Ok(StagedChange { id, role: None }),
                StagedAnswer::Remove { remove: false, .. } => Err(Error::Malformed),
                StagedAnswer::Assign(role) => {
                    let (id, role) = role.read();
                    Ok(StagedChange { id, role: Some(role) })
                }
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            version: a.version,
            roles: unique(a.roles.into_iter().map(RoleAnswer::read))?,
            parameters: a.parameters.into(),
            staged,
            staged_parameters: a.staged_parameters.map(Into::into),
        })
    }
}

/// `GetClusterLayout`, `UpdateClusterLayout`, `RevertClusterLayout`.
pub fn layout(body: &[u8]) -> Result<Layout, Error> {
    json::<LayoutAnswer>(body)?.try_into()
}

/// `ApplyClusterLayout`: the layout that it made.
pub fn applied(body: &[u8]) -> Result<Layout, Error> {
    #[derive(Deserialize)]
    struct Applied {
        layout: LayoutAnswer,
    }
    json::<Applied>(body)?.layout.try_into()
}

/// `PreviewClusterLayoutChanges`: the layout that an apply would make, or Garage's text why it would not.
pub fn preview(body: &[u8]) -> Result<Result<Layout, String>, Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum PreviewAnswer {
        Refused {
            error: String,
        },
        Accepted {
            #[serde(rename = "newLayout")]
            new_layout: LayoutAnswer,
        },
    }
    match json::<PreviewAnswer>(body)? {
        PreviewAnswer::Refused { error } => Ok(Err(error)),
        PreviewAnswer::Accepted { new_layout } => Layout::try_from(new_layout).map(Ok),
    }
}

/// One change in the body of `UpdateClusterLayout`.
#[derive(Serialize)]
#[serde(untagged)]
pub enum RoleChangeBody<'a> {
    /// Assigns.
    Assign {
        /// Whom.
        id: NodeId,
        /// Zone.
        zone: &'a str,
        /// Bytes; null for a gateway.
        capacity: Option<u64>,
        /// Required, also when empty.
        tags: &'a [String],
    },
    /// Removes.
    Remove {
        /// Whom.
        id: NodeId,
        /// Always true; Garage refuses false.
        remove: bool,
    },
}

impl<'a> From<&'a StagedChange> for RoleChangeBody<'a> {
    fn from(change: &'a StagedChange) -> Self {
        match &change.role {
            Some(role) => {
                Self::Assign { id: change.id, zone: &role.zone, capacity: role.capacity, tags: &role.tags }
            }
            None => Self::Remove { id: change.id, remove: true },
        }
    }
}

// ---- GetClusterLayoutHistory

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HistoryAnswer {
    current_version: LayoutVersion,
    min_ack: LayoutVersion,
    versions: Vec<HistoryVersionAnswer>,
    // Null exactly when one version is live (FACTS 5); a missing key is read the same.
    update_trackers: Option<Entries<TrackerAnswer>>,
}

#[derive(Deserialize)]
struct HistoryVersionAnswer {
    version: LayoutVersion,
    status: HistoryStatusAnswer,
}

#[derive(Deserialize)]
enum HistoryStatusAnswer {
    Current,
    Draining,
    Historical,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TrackerAnswer {
    ack: LayoutVersion,
    sync: LayoutVersion,
    sync_ack: LayoutVersion,
}

/// `GetClusterLayoutHistory`.
pub fn history(body: &[u8]) -> Result<History, Error> {
    let a: HistoryAnswer = json(body)?;
    let versions = a
        .versions
        .into_iter()
        .map(|v| HistoryVersion {
            version: v.version,
            status: match v.status {
                HistoryStatusAnswer::Current => HistoryStatus::Current,
                HistoryStatusAnswer::Draining => HistoryStatus::Draining,
                HistoryStatusAnswer::Historical => HistoryStatus::Historical,
            },
        })
        .collect();
    let trackers = a
        .update_trackers
        .map(|Entries(entries)| {
            let read = entries
                .into_iter()
                .map(|(id, t)| {
                    let tracker = Tracker { ack: t.ack, sync: t.sync, sync_ack: t.sync_ack };
                    id.parse().map(|id| (id, tracker)).map_err(|_| Error::Malformed)
                })
                .collect::<Result<Vec<_>, _>>()?;
            unique(read.into_iter())
        })
        .transpose()?;
    Ok(History { current: a.current_version, min_ack: a.min_ack, versions, trackers })
}

/// `ClusterLayoutSkipDeadNodes`: the nodes whose ack and whose sync it moved.
pub fn skipped(body: &[u8]) -> Result<(Vec<NodeId>, Vec<NodeId>), Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Skipped {
        ack_updated: Vec<NodeId>,
        sync_updated: Vec<NodeId>,
    }
    let a: Skipped = json(body)?;
    Ok((a.ack_updated, a.sync_updated))
}

/// `ConnectClusterNodes`: success per peer, in the order asked. The error texts are not kept.
pub fn connected(body: &[u8]) -> Result<Vec<bool>, Error> {
    #[derive(Deserialize)]
    struct Connected {
        success: bool,
    }
    Ok(json::<Vec<Connected>>(body)?.into_iter().map(|c| c.success).collect())
}

// ---- calls that take `node=`

#[derive(Deserialize)]
struct MultiAnswer {
    success: Entries<Box<RawValue>>,
    error: Entries<String>,
}

/// Reads a multi-node answer. What one node answered never costs another its answer: a value that cannot be
/// read, and a node that stands in it twice, are that node's [`Silence::Failed`].
pub fn multi<T>(
    body: &[u8],
    read: impl Fn(&str) -> Result<T, Error>,
) -> Result<BTreeMap<NodeId, Result<T, Silence>>, Error> {
    let a: MultiAnswer = json(body)?;
    let mut answers: BTreeMap<NodeId, Result<T, Silence>> = BTreeMap::new();
    let values =
        a.success.0.into_iter().map(|(id, value)| (id, read(value.get()).map_err(|_| Silence::Failed)));
    let errors = a.error.0.into_iter().map(|(id, text)| (id, Err(silence(&text))));
    for (id, answer) in values.chain(errors) {
        // A key that is no node ID names no node; whoever it was meant for is missing.
        let Ok(id) = id.parse::<NodeId>() else { continue };
        answers.entry(id).and_modify(|seen| *seen = Err(Silence::Failed)).or_insert(answer);
    }
    Ok(answers)
}

/// What an `error` entry means. Only Garage's own refusal before anything was sent counts as not connected:
/// a remote node's error may quote the same words about a third one.
fn silence(text: &str) -> Silence {
    if ["Not connected", "Network error: Not connected"].iter().any(|known| text.starts_with(known)) {
        Silence::NotConnected
    } else if text.trim() == "Timeout" {
        Silence::TimedOut
    } else {
        Silence::Failed
    }
}

// ---- ListWorkers

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkerAnswer {
    id: u64,
    name: String,
    state: serde_json::Value,
    errors: u64,
    consecutive_errors: u64,
    last_error: Option<LastErrorAnswer>,
    progress: Option<String>,
    queue_length: Option<u64>,
    persistent_errors: Option<u64>,
    #[serde(default)]
    freeform: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LastErrorAnswer {
    secs_ago: u64,
}

/// `"idle"`, `"busy"`, `"done"`, or an object whose one key is the state (`throttled` with its duration).
fn worker_state(state: &serde_json::Value) -> WorkerState {
    let name = match state {
        serde_json::Value::String(name) => name.as_str(),
        serde_json::Value::Object(object) if object.len() == 1 => {
            object.keys().next().map_or("", String::as_str)
        }
        _ => "",
    };
    match (name, state.is_string()) {
        ("idle", true) => WorkerState::Idle,
        ("busy", true) => WorkerState::Busy,
        ("done", true) => WorkerState::Done,
        ("throttled", _) => WorkerState::Throttled,
        _ => WorkerState::Unknown,
    }
}

/// One node's workers, in the order of their IDs. The same ID twice is a contradiction.
pub fn workers(value: &str) -> Result<Vec<Worker>, Error> {
    let mut workers: Vec<Worker> = json::<Vec<WorkerAnswer>>(value.as_bytes())?
        .into_iter()
        .map(|w| Worker {
            id: w.id,
            name: w.name,
            state: worker_state(&w.state),
            errors: w.errors,
            consecutive_errors: w.consecutive_errors,
            last_error_secs_ago: w.last_error.map(|e| e.secs_ago),
            progress: w.progress,
            queue_length: w.queue_length,
            persistent_errors: w.persistent_errors,
            freeform: w.freeform,
        })
        .collect();
    workers.sort_by_key(|w| w.id);
    if workers.windows(2).any(|pair| pair[0].id == pair[1].id) {
        return Err(Error::Malformed);
    }
    Ok(workers)
}

// ---- ListBlockErrors

/// One node's block errors.
pub fn block_errors(value: &str) -> Result<Vec<BlockError>, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct BlockErrorAnswer {
        block_hash: String,
        refcount: u64,
        error_count: u64,
        last_try_secs_ago: u64,
        next_try_in_secs: u64,
    }
    json::<Vec<BlockErrorAnswer>>(value.as_bytes())?
        .into_iter()
        .map(|e| {
            let hash = e.block_hash;
            if hash.len() != 64 || !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(Error::Malformed);
            }
            Ok(BlockError {
                hash,
                refcount: e.refcount,
                error_count: e.error_count,
                last_try_secs_ago: e.last_try_secs_ago,
                next_try_in_secs: e.next_try_in_secs,
            })
        })
        .collect()
}

// ---- GetNodeInfo, worker variables, launches

/// What one node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its identity.
    pub node_id: NodeId,
    /// Garage's version string, e.g. `cargo:2.5.0`.
    pub version: String,
    /// Its `rpc_timeout`, where it shows it. 2.5.0's `connectionParameters` are about S3 alone; a release
    /// that adds the timeout is read under the name that the configuration gives it.
    pub rpc_timeout: Option<std::time::Duration>,
}

/// One node's `GetNodeInfo`.
pub fn node_info(value: &str) -> Result<NodeInfo, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct NodeInfoAnswer {
        node_id: NodeId,
        garage_version: String,
        connection_parameters: Option<serde_json::Value>,
    }
    let a: NodeInfoAnswer = json(value.as_bytes())?;
    let rpc_timeout = a
        .connection_parameters
        .and_then(|p| p.get("rpcTimeoutMsec").and_then(serde_json::Value::as_u64))
        .map(std::time::Duration::from_millis);
    Ok(NodeInfo { node_id: a.node_id, version: a.garage_version, rpc_timeout })
}

/// One node's worker variables.
pub fn variables(value: &str) -> Result<BTreeMap<String, String>, Error> {
    json(value.as_bytes())
}

/// One node's answer to a changed worker variable: the variable and the value it has now.
pub fn variable_set(value: &str) -> Result<(String, String), Error> {
    #[derive(Deserialize)]
    struct Set {
        variable: String,
        value: String,
    }
    let a: Set = json(value.as_bytes())?;
    Ok((a.variable, a.value))
}

/// Garage's error code of an answer that is no success.
pub fn error_code(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct ErrorAnswer {
        code: String,
    }
    json::<ErrorAnswer>(body).ok().map(|e| e.code)
}
