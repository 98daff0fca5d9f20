//! Progress per node, its throttle, and the status that a pass leaves (P18, P19, section 6).

use std::collections::BTreeMap;

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{
    Coordination, NodeRedundancy, NodeStage, Phase, Redundancy, Scope, StorageNodes, Time, Verification,
};

use super::Settings;
use super::facts::Facts;
use super::turns::Pass;
use crate::observe::judge::Room;

/// Most entries of `nodes` and `deferredNodes` (section 6).
const MAX_NODES: usize = 256;

/// The status of a pass, equal to the previous one where nothing is to be written.
pub(super) fn assemble(pass: &Pass<'_>, previous: Option<&Redundancy>) -> Redundancy {
    let f = pass.f;
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let total = f.storage.len();
    let local = f.local.len();
    let next = Redundancy {
        scope: Some(if local == total { Scope::Cluster } else { Scope::Local }),
        storage_nodes: Some(StorageNodes {
            total: count(total),
            local: count(local),
            remote: count(total - local),
            verified: count(pass.v.completed_node_ids.len()),
        }),
        verification: Some(pass.v.clone()),
        deferred_nodes: pass.deferred.values().take(MAX_NODES).cloned().collect(),
        coordination: pass.coordination.record.clone(),
        ..Redundancy::default()
    };
    let nodes = observe_nodes(f, previous, &pass.unscrubbed, Some((&pass.v, pass.e.repair_worker_id)));
    with_progress(next, nodes, previous, pass.notes.progressed, f.now, pass.settings)
}

/// P5, site role unset: `verification`, `scope` and `storageNodes` are absent, `nodes` is still filled.
pub(super) fn without_verification(
    f: &Facts<'_>,
    previous: Option<&Redundancy>,
    coordination: Option<Coordination>,
    settings: &Settings,
) -> Redundancy {
    let next = Redundancy { coordination, ..Redundancy::default() };
    let nodes = observe_nodes(f, previous, &unscrubbed(f, previous), None);
    with_progress(next, nodes, previous, false, f.now, settings)
}

/// P19: `nodes` is rewritten only when a value changed, at most once in 60 s unless something else of
/// redundancy changes in the same pass. P18: `lastProgressAt` moves in steps of 60 s.
fn with_progress(
    mut next: Redundancy,
    nodes: Vec<NodeRedundancy>,
    previous: Option<&Redundancy>,
    progressed: bool,
    now: Time,
    settings: &Settings,
) -> Redundancy {
    let step = settings.timings.progress_step;
    let due = |last: Option<Time>| last.is_none_or(|t| !(0..step).contains(&now.seconds_since(t)));
    let before: &[NodeRedundancy] = previous.map_or(&[], |r| &r.nodes);
    next.progress_observed_at = previous.and_then(|r| r.progress_observed_at);
    next.last_progress_at = previous.and_then(|r| r.last_progress_at);
    next.nodes = before.to_vec();
    if (progressed || shrank(before, &nodes)) && due(next.last_progress_at) {
        next.last_progress_at = Some(now);
    }
    let changed = previous != Some(&next);
    if nodes != before && (changed || due(next.progress_observed_at)) {
        next.nodes = nodes;
        next.progress_observed_at = Some(now);
    }
    next
}

/// P18: a queue shrank, or the adopted repair moved.
fn shrank(before: &[NodeRedundancy], now: &[NodeRedundancy]) -> bool {
    let before: BTreeMap<NodeId, &NodeRedundancy> = before.iter().map(|n| (n.node_id, n)).collect();
    now.iter().any(|n| {
        let Some(b) = before.get(&n.node_id) else { return false };
        n.resync_queue_length.zip(b.resync_queue_length).is_some_and(|(n, b)| n < b)
            || n.metadata_sync_partitions.zip(b.metadata_sync_partitions).is_some_and(|(n, b)| n < b)
            || n.metadata_queue_length.zip(b.metadata_queue_length).is_some_and(|(n, b)| n < b)
            || (n.block_repair_progress.is_some() && n.block_repair_progress != b.block_repair_progress)
    })
}

fn observe_nodes(
    f: &Facts<'_>,
    previous: Option<&Redundancy>,
    unscrubbed: &BTreeMap<NodeId, Time>,
    proof: Option<(&Verification, Option<i64>)>,
) -> Vec<NodeRedundancy> {
    let before: BTreeMap<NodeId, &NodeRedundancy> =
        previous.map(|r| r.nodes.iter().map(|n| (n.node_id, n)).collect()).unwrap_or_default();
    let small = |n: i64| i32::try_from(n).unwrap_or(i32::MAX);
    f.nodes
        .iter()
        .filter(|(id, n)| f.storage.contains(id) || n.block_errors.as_ref().is_some_and(|b| !b.is_empty()))
        .take(MAX_NODES)
        .map(|(id, n)| {
            let b = before.get(id);
            let workers = n.workers.as_ref();
            let adopted = proof.and_then(|(v, adopted)| adopted.filter(|_| v.current_node_id == Some(*id)));
            NodeRedundancy {
                node_id: *id,
                observed: n.reporting,
                resync_queue_length: workers
                    .map_or_else(|| b.and_then(|b| b.resync_queue_length), |w| w.resync.queue),
                resync_idle: workers.map_or_else(|| b.and_then(|b| b.resync_idle), |w| w.resync.idle),
                block_errors: n.block_errors.as_ref().map_or_else(
                    || b.and_then(|b| b.block_errors),
                    |e| Some(i32::try_from(e.len()).unwrap_or(i32::MAX)),
                ),
                metadata_sync_partitions: workers.map_or_else(
                    || b.and_then(|b| b.metadata_sync_partitions),
                    |w| w.tables.as_ref().and_then(|t| t.queue).map(small),
                ),
                metadata_queue_length: workers
                    .map_or_else(|| b.and_then(|b| b.metadata_queue_length), |w| w.metadata_queue),
                block_repair_progress: workers.and_then(|w| {
                    w.repairs.iter().find(|r| Some(r.id) == adopted && !r.done).map(|r| r.progress.clone())
                }),
                no_room_seen_at: unscrubbed.get(id).copied(),
            }
        })
        .collect()
}

/// O9, end: who had no room under a Garage that does not notice a failed block write, and since when no
/// scrub has looked. The time moves only when a scrub ended while there was still no room.
pub(super) fn unscrubbed(f: &Facts<'_>, previous: Option<&Redundancy>) -> BTreeMap<NodeId, Time> {
    let before: BTreeMap<NodeId, Time> = previous
        .map(|r| r.nodes.iter().filter_map(|n| Some((n.node_id, n.no_room_seen_at?))).collect())
        .unwrap_or_default();
    f.nodes
        .iter()
        .filter(|(id, _)| f.storage.contains(id))
        .filter_map(|(id, n)| {
            let seen = before.get(id).copied();
            let scrubbed = seen.zip(n.last_scrub).is_some_and(|(seen, scrub)| scrub > seen);
            let full = n.up && n.blind_to_failed_writes && matches!(n.room, Room::None(_));
            match (seen, full) {
                (None, true) => Some((*id, f.now)),
                (Some(_), true) if scrubbed => Some((*id, f.now)),
                (Some(seen), _) if !scrubbed => Some((*id, seen)),
                _ => None,
            }
        })
        .collect()
}

impl Pass<'_> {
    /// Section 9: the 30-minute window in which a growing count of block errors shows. It opens with the
    /// first listed error, so that a steady count reads `BlockErrors` from the start.
    pub(super) fn watch_block_errors(&mut self) {
        let count = i32::try_from(self.f.local_block_errors()).unwrap_or(i32::MAX);
        if !super::is_active(self.v.phase) || count == 0 {
            self.e.block_errors_baseline = None;
            self.e.block_errors_baseline_at = None;
            return;
        }
        let open = self
            .e
            .block_errors_baseline_at
            .and_then(|t| self.elapsed_since(t))
            .is_some_and(|s| s < self.t.stalled);
        if !open || self.e.block_errors_baseline.is_none() {
            self.e.block_errors_baseline = Some(count);
            self.e.block_errors_baseline_at = Some(self.now);
        }
    }

    /// What runs now, for messages.
    pub(super) fn stage_words(&self) -> String {
        let node = self.v.current_node_id.map(|id| id.short()).unwrap_or_default();
        match (self.v.phase, self.e.node_stage) {
            (_, Some(NodeStage::Tables)) => format!("the tables repair on node {node}"),
            (_, Some(NodeStage::Blocks)) => format!("the block repair on node {node}"),
            (_, Some(NodeStage::Pause)) => format!("the pause after the block repair on node {node}"),
            (Phase::Pending, None) => "the first turn".to_owned(),
            (Phase::Settling, None) => "the quiet period".to_owned(),
            (_, None) => "the next turn".to_owned(),
        }
    }
}
