//! What one pass would see of the model: an [`Observation`](crate::observe)'s Garage half.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_crds::ids::LayoutVersion;

use super::garage::{Alive, FIRST_REPAIR, FaultKind, Garage, GarageVersion, ITEMS, Node};
use super::rng::Rng;
use crate::observe::{
    BlockError, Core, GarageView, Health, History, HistoryStatus, HistoryVersion, Layout, LayoutParameters,
    NodeState, NotObserved, Partition, PeerView, Role, Silence, Tracker, Worker, WorkerState, ZoneRedundancy,
};

const TERABYTE: u64 = 1 << 40;

/// What is wrong with the reads of one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadFault {
    /// Nothing.
    #[default]
    None,
    /// The Admin API does not answer at all.
    NoAnswer,
    /// `ListWorkers` of this node times out.
    Silent(usize),
    /// This node's own endpoint cannot be asked (O8).
    NoView(usize),
    /// No metrics page can be read (D2).
    NoMetrics,
    /// Health contradicts itself.
    OddHealth,
    /// Layout and status of different versions.
    Torn,
}

/// One pass's view of the model, marking the faults that it shows.
pub fn observe(g: &mut Garage, ask_views: bool, fault: ReadFault) -> GarageView {
    let Some(at) = endpoint(g).filter(|_| fault != ReadFault::NoAnswer) else {
        return GarageView {
            core: Err(NotObserved { what: "GetClusterHealth".to_owned() }),
            workers: BTreeMap::new(),
            block_errors: BTreeMap::new(),
            peer_views: None,
            sync_rpc_errors: BTreeMap::new(),
            rpc_timeouts: BTreeMap::new(),
            calls: 6,
        };
    };
    let mut core = core(g, at);
    match fault {
        ReadFault::OddHealth => core.health.storage_nodes_up = core.health.storage_nodes + 1,
        ReadFault::Torn => core.status_layout_version = core.status_layout_version.next(),
        _ => {}
    }
    let mut workers = BTreeMap::new();
    let mut block_errors = BTreeMap::new();
    for (i, node) in g.nodes.iter().enumerate().filter(|(_, n)| n.storage) {
        let answer = answers(g, at, i)
            .and_then(|()| if fault == ReadFault::Silent(i) { Err(Silence::TimedOut) } else { Ok(()) });
        workers.insert(node.id, answer.map(|()| list_workers(g, node)));
        block_errors.insert(node.id, answer.map(|()| list_errors(node, g.now)));
    }
    let peer_views = ask_views.then(|| {
        let local = g.nodes.iter().enumerate().filter(|(_, n)| n.storage && !n.remote);
        local
            .map(|(i, n)| {
                let view = if n.alive == Alive::Up && fault != ReadFault::NoView(i) {
                    Ok(PeerView { health: health(g, i), up: up_set(g, i) })
                } else {
                    Err(Silence::TimedOut)
                };
                (n.id, view)
            })
            .collect()
    });
    let metrics = fault != ReadFault::NoMetrics;
    let alive = |n: &&Node| n.storage && !n.remote && n.alive == Alive::Up;
    let sync_rpc_errors =
        g.nodes.iter().filter(|n| metrics && alive(n)).map(|n| (n.id, n.sync_rpc_errors)).collect();
    let rpc_timeouts = g
        .nodes
        .iter()
        .filter(|n| g.version == GarageVersion::V250 && alive(n))
        .map(|n| (n.id, Duration::from_secs(u64::try_from(g.rpc_timeout).unwrap_or(300))))
        .collect();
    if fault != ReadFault::OddHealth && fault != ReadFault::Torn {
        mark_shown(g, at, ask_views, fault);
    }
    GarageView {
        core: Ok(core),
        workers,
        block_errors,
        peer_views,
        sync_rpc_errors,
        rpc_timeouts,
        calls: 6 + u32::from(ask_views) * 3,
    }
}

/// The first local node that answers.
fn endpoint(g: &Garage) -> Option<usize> {
    g.nodes.iter().position(|n| n.storage && !n.remote && n.alive == Alive::Up)
}

fn answers(g: &Garage, at: usize, i: usize) -> Result<(), Silence> {
    match g.nodes[i].alive {
        Alive::Up if g.linked(at, i) => Ok(()),
        Alive::Down => Err(Silence::NotConnected),
        _ if g.sees_up(at, i) => Err(Silence::TimedOut),
        _ => Err(Silence::NotConnected),
    }
}

/// Faults that this pass could have known of: what it shows cannot be excused later.
fn mark_shown(g: &mut Garage, at: usize, views: bool, fault: ReadFault) {
    let n = g.nodes.len();
    let seen: Vec<Vec<bool>> = (0..n).map(|o| (0..n).map(|t| g.sees_up(o, t)).collect()).collect();
    let up: Vec<bool> = g.nodes.iter().map(|n| n.alive == Alive::Up && !n.remote).collect();
    for x in 0..n {
        let node = &mut g.nodes[x];
        if !seen[at][x] {
            node.observe_fault(FaultKind::Down);
            node.observe_fault(FaultKind::Frozen);
        }
        if seen[at][x] || x == at {
            if node.data_full {
                node.observe_fault(FaultKind::DataFull);
            }
            if node.metadata_full {
                node.observe_fault(FaultKind::MetadataFull);
            }
            if node.unmounted.is_some() {
                node.observe_fault(FaultKind::Unmounted);
            }
        }
        for other in 0..n {
            let shown = other == at && !seen[at][x]
                || x == at && !seen[at][other]
                || views
                    && (up[other] && !seen[other][x] && fault != ReadFault::NoView(other)
                        || up[x] && !seen[x][other] && fault != ReadFault::NoView(x));
            if shown {
                node.observe_fault(FaultKind::Cut(other));
            }
        }
    }
}

fn core(g: &Garage, at: usize) -> Core {
    let version = LayoutVersion(g.layout.version);
    let draining = g.layout.draining_until.is_some();
    let role = |n: &Node| {
        let uid = if n.remote { "uid-remote" } else { "uid-here" };
        Role {
            zone: "dc1".to_owned(),
            capacity: Some(g.layout.capacity),
            tags: vec![format!("cluster-uid:{uid}"), format!("row:{}", g.layout.tag)],
        }
    };
    let nodes = g.nodes.iter().enumerate().map(|(i, n)| {
        let up = g.sees_up(at, i);
        let data_total = if n.unmounted.is_some() { TERABYTE / 8 } else { TERABYTE };
        let state = NodeState {
            is_up: up,
            draining: draining && !n.storage,
            addr: None,
            hostname: Some("kn".to_owned()),
            version: Some(match g.version {
                GarageVersion::V200 => "cargo:2.0.0".to_owned(),
                GarageVersion::V250 => "cargo:2.5.0".to_owned(),
            }),
            last_seen_secs_ago: None,
            data_partition: Some(Partition {
                available: if n.data_full { 1000 } else { data_total / 2 },
                total: data_total,
            }),
            metadata_partition: Some(Partition {
                available: if n.metadata_full { 0 } else { TERABYTE / 4 },
                total: TERABYTE / 2,
            }),
        };
        (n.id, state)
    });
    let mut versions = vec![HistoryVersion { version, status: HistoryStatus::Current }];
    if draining {
        let older = LayoutVersion(g.layout.version - 1);
        versions.push(HistoryVersion { version: older, status: HistoryStatus::Draining });
    }
    let lag = |n: &Node| {
        let older = LayoutVersion(g.layout.version - 1);
        (n.id, Tracker { ack: version, sync: older, sync_ack: older })
    };
    Core {
        answering: Some(g.nodes[at].id),
        health: health(g, at),
        status_layout_version: version,
        nodes: nodes.collect(),
        layout: Layout {
            version,
            roles: g.nodes.iter().filter(|n| n.storage).map(|n| (n.id, role(n))).collect(),
            parameters: LayoutParameters { zone_redundancy: ZoneRedundancy::Maximum },
            staged: Vec::new(),
            staged_parameters: g
                .layout
                .staged
                .then_some(LayoutParameters { zone_redundancy: ZoneRedundancy::AtLeast(2) }),
        },
        history: History {
            current: version,
            min_ack: version,
            versions,
            trackers: draining.then(|| g.nodes.iter().filter(|n| n.storage).map(lag).collect()),
        },
    }
}

fn up_set(g: &Garage, at: usize) -> BTreeSet<holdfast_crds::ids::NodeId> {
    (0..g.nodes.len()).filter(|i| g.sees_up(at, *i)).map(|i| g.nodes[i].id).collect()
}

fn health(g: &Garage, at: usize) -> Health {
    let count = |n: usize| u32::try_from(n).unwrap_or(0);
    let storage: Vec<usize> = (0..g.nodes.len()).filter(|i| g.nodes[*i].storage).collect();
    let up = storage.iter().filter(|i| g.sees_up(at, **i)).count();
    let whole = up == storage.len();
    Health {
        status: if whole { "healthy" } else { "degraded" }.to_owned(),
        known_nodes: count(g.nodes.len()),
        connected_nodes: count((0..g.nodes.len()).filter(|i| g.sees_up(at, *i)).count()),
        storage_nodes: count(storage.len()),
        storage_nodes_up: count(up),
        partitions: 256,
        partitions_quorum: if up * 2 > storage.len() { 256 } else { 0 },
        partitions_all_ok: if whole { 256 } else { 0 },
    }
}

fn worker(id: u64, name: String, state: WorkerState, errors: u64, queue: Option<u64>) -> Worker {
    Worker {
        id,
        name,
        state,
        errors,
        consecutive_errors: 0,
        last_error_secs_ago: None,
        progress: None,
        queue_length: queue,
        persistent_errors: None,
        freeform: Vec::new(),
    }
}

/// The workers of each repaired table that the proof looks at, as Garage names them.
const TABLE_WORKERS: [[&str; 3]; 5] = [
    ["bucket_v2 Merkle", "bucket_v2 sync", "bucket_v2 queue"],
    ["object Merkle", "object sync", "object queue"],
    ["version Merkle", "version sync", "version queue"],
    ["block_ref Merkle", "block_ref sync", "block_ref queue"],
    ["key Merkle", "key sync", "key queue"],
];

/// What a site that is written to shows at some moment: references on their way to the resync queue, and whether a
/// check of an earlier one is under way. Two of three moments show the first, one of three the other.
fn traffic(g: &Garage, node: &Node) -> (u64, bool) {
    if !g.busy {
        return (0, false);
    }
    let moment = Rng::new(g.now.unsigned_abs() ^ u64::from(node.pod) ^ node.next_worker << 32).below(9);
    (moment % 3, moment / 3 == 0)
}

fn list_workers(g: &Garage, node: &Node) -> Vec<Worker> {
    let mut out = Vec::with_capacity(20);
    let (written, checked) = traffic(g, node);
    if g.version == GarageVersion::V250 {
        let queue = node.deferred.map_or(0, |d| u64::from(d.1.count_ones())) + written;
        let state = if queue == 0 { WorkerState::Idle } else { WorkerState::Busy };
        let mut deferred = worker(1, "Block resync queue deferred worker".to_owned(), state, 0, Some(queue));
        deferred.consecutive_errors = u64::from(g.deferred_fails);
        out.push(deferred);
    }
    let due = node.resync_due(g.now) || checked;
    let mut resync = worker(
        2,
        "Block resync worker #1".to_owned(),
        if due { WorkerState::Busy } else { WorkerState::Idle },
        0,
        Some(node.queue_length() as u64),
    );
    resync.persistent_errors = Some(u64::from(node.persistent_shown));
    out.push(resync);
    let mut disabled = worker(3, "Block resync worker #2".to_owned(), WorkerState::Idle, 0, None);
    disabled.freeform = vec!["This worker is currently disabled".to_owned()];
    out.push(disabled);
    if let Some(at) = node.last_scrub {
        let mut scrub = worker(10, "Block scrub worker".to_owned(), WorkerState::Idle, 0, None);
        let at = jiff::Timestamp::from_second(at).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        scrub.freeform = vec![format!("Last scrub completed at {at}")];
        out.push(scrub);
    }
    for (k, names) in TABLE_WORKERS.iter().enumerate() {
        let id = 11 + 4 * k as u64;
        let (state, queue) = match (node.sync_throttled, node.syncing()) {
            (true, _) => (WorkerState::Throttled, 1),
            (_, true) => (WorkerState::Busy, 5),
            _ => (WorkerState::Idle, 0),
        };
        let [merkle, sync, insert] = names.map(str::to_owned);
        out.push(worker(id, merkle, WorkerState::Idle, 0, Some(0)));
        out.push(worker(id + 1, sync, state, node.sync_errors, Some(queue)));
        out.push(worker(id + 2, insert, WorkerState::Idle, 0, Some(0)));
    }
    for r in &node.repairs {
        let state = if r.done { WorkerState::Done } else { WorkerState::Busy };
        let mut w =
            worker(r.id, "Block repair worker".to_owned(), state, if r.done { r.errors } else { 0 }, None);
        w.progress = Some(if r.done { "100.00%" } else { "0.00%" }.to_owned());
        out.push(w);
    }
    // A worker of another kind now and then: the highest ID is not only about block repairs.
    debug_assert!(node.next_worker >= FIRST_REPAIR);
    out
}

fn list_errors(node: &Node, now: i64) -> Vec<BlockError> {
    (0..ITEMS)
        .filter(|i| node.errored & (1 << i) != 0)
        .map(|i| BlockError {
            hash: format!("{i:064x}"),
            refcount: 1,
            error_count: 1,
            last_try_secs_ago: 0,
            next_try_in_secs: u64::try_from(node.queue[i].saturating_sub(now)).unwrap_or(0),
        })
        .collect()
}
