//! Order and turns: whose turn is next, in which round (P6, P9, P11, P12, P13).

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{
    DeferReason, DeferredNode, Evidence, NodeStage, Phase, Redundancy, Time, Verification,
};

use super::facts::Facts;
use super::federation::Coordinated;
use super::timings::Timings;
use super::{Settings, Step, condition, progress};
use crate::act::Action;

/// Launches that a stage may use (P10).
pub(super) const MAX_LAUNCHES: i32 = 3;

/// One pass at work: the facts, the working copy of the proof, and what it found out on the way.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    pub(super) f: &'a Facts<'a>,
    pub(super) settings: &'a Settings,
    pub(super) t: &'a Timings,
    pub(super) now: Time,
    pub(super) v: Verification,
    pub(super) e: Evidence,
    pub(super) deferred: BTreeMap<NodeId, DeferredNode>,
    pub(super) coordination: Coordinated,
    pub(super) actions: Vec<Action>,
    pub(super) notes: Notes,
    /// Nodes that had no room under a Garage that does not notice it, and were not scrubbed since (O9).
    pub(super) unscrubbed: BTreeMap<NodeId, Time>,
}

/// What a pass found out that is not kept in status but shown in the condition.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// The first failing precondition (P15, P4), in words.
    pub(super) precondition: Option<String>,
    /// The site waits for another one (F2, F3), in words.
    pub(super) other_site: Option<String>,
    /// The adopted repair or a sync worker reported errors in this attempt (section 9).
    pub(super) worker_errors: Option<String>,
    /// What the turn waits for, in words.
    pub(super) waits_for: Option<String>,
    /// Why the phase became `Idle` in this pass.
    pub(super) idle_because: Option<String>,
    /// A stage or turn was finished (P18).
    pub(super) progressed: bool,
}

/// Whether a pass has more to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// Look again: something was finished, deferred or begun.
    Again,
    /// The rest is for a later pass.
    Wait,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        f: &'a Facts<'a>,
        settings: &'a Settings,
        previous: Option<&Redundancy>,
        coordination: Coordinated,
    ) -> Self {
        let mut v = previous.and_then(|r| r.verification.clone()).unwrap_or_default();
        let e = v.evidence.take().unwrap_or_default();
        let deferred = previous
            .map(|r| r.deferred_nodes.iter().map(|d| (d.node_id, d.clone())).collect())
            .unwrap_or_default();
        Self {
            f,
            settings,
            t: &settings.timings,
            now: f.now,
            v,
            e,
            deferred,
            coordination,
            actions: Vec::new(),
            notes: Notes::default(),
            unscrubbed: progress::unscrubbed(f, previous),
        }
    }

    /// Puts the working copy together again: status, condition, actions.
    pub(super) fn finish(mut self, previous: Option<&Redundancy>) -> Step {
        self.watch_block_errors();
        self.v.evidence = (self.e != Evidence::default()).then(|| self.e.clone());
        let redundancy = progress::assemble(&self, previous);
        let condition = condition::judge(&self, &redundancy);
        Step { redundancy: Some(redundancy), condition: Some(condition), actions: self.actions }
    }

    /// Goes to a phase; its start is kept when it is already there.
    pub(super) fn enter(&mut self, phase: Phase) {
        if self.v.phase != phase {
            self.v.phase = phase;
            self.v.phase_started_at = Some(self.now);
        }
    }

    /// A time in the future means that the clock went back: such a wait begins again.
    pub(super) fn elapsed_since(&self, t: Time) -> Option<i64> {
        let s = self.now.seconds_since(t);
        (s >= 0).then_some(s)
    }

    /// Runs the turns as far as this pass can take them. At most one launch comes of it.
    pub(super) fn run(&mut self) {
        let runs = matches!(
            self.v.phase,
            Phase::Pending
                | Phase::SyncingMetadata
                | Phase::ScanningBlocks
                | Phase::Settling
                | Phase::Partial
        );
        // P15 pauses in place. Without the nodes' own views (O8) nothing can be judged; the next pass has them.
        if !runs || self.notes.precondition.is_some() || self.f.blind.is_none() {
            return;
        }
        // Every round finishes, defers or begins something; the bound only guards against a mistake here.
        for _ in 0..4 * (self.f.local.len() + 2) {
            let flow = match (self.v.current_node_id, self.e.node_stage) {
                (Some(node), Some(NodeStage::Tables)) => self.tables(node),
                (Some(node), Some(NodeStage::Blocks)) => self.blocks(node),
                (Some(_), Some(NodeStage::Pause)) => self.pause(),
                _ => self.next_turn(),
            };
            if flow == Flow::Wait {
                return;
            }
        }
    }

    /// P9: two minutes after a blocks turn. Nothing follows the last one, so it needs no pause.
    fn pause(&mut self) -> Flow {
        let latest = self.now.plus_seconds(self.t.pause);
        let until = self.e.pause_until.map_or(self.now, |t| t.min(latest));
        if self.now < until && !self.all_finished() {
            return Flow::Wait;
        }
        self.clear_turn();
        Flow::Again
    }

    /// Picks what comes next (P6, P12, P13, P14).
    fn next_turn(&mut self) -> Flow {
        if self.v.phase == Phase::Pending && self.must_yield() {
            return Flow::Wait;
        }
        if let Some(node) = self.next_tables().or_else(|| self.next_recheck()) {
            return self.begin(node, NodeStage::Tables, Phase::SyncingMetadata);
        }
        if let Some(node) = self.next_blocks() {
            self.clear_turn();
            self.enter_scanning();
            // P6, D9: what a local node still lacks comes from the other sites' own anti-entropy.
            if self.f.remote().next().is_some() {
                let since = self.v.phase_started_at.and_then(|t| self.elapsed_since(t)).unwrap_or(0);
                if since < self.t.anti_entropy {
                    self.notes.waits_for = Some("the other sites' own anti-entropy".to_owned());
                    return Flow::Wait;
                }
            }
            return self.begin(node, NodeStage::Blocks, Phase::ScanningBlocks);
        }
        self.clear_turn();
        if self.all_finished() {
            return self.settle();
        }
        self.drop_quiet_period();
        self.enter(Phase::Partial);
        Flow::Wait
    }

    /// The blocks round starts; a phase start in the future (a clock that went back) starts it again.
    fn enter_scanning(&mut self) {
        if self.v.phase_started_at.is_none_or(|t| t > self.now) {
            self.v.phase_started_at = Some(self.now);
        }
        self.enter(Phase::ScanningBlocks);
    }

    fn begin(&mut self, node: NodeId, stage: NodeStage, phase: Phase) -> Flow {
        // F3: a Writer that started never yields, a Follower looks again before each turn.
        if self.f.follower() && self.must_yield() {
            return Flow::Wait;
        }
        self.clear_turn();
        self.drop_quiet_period();
        self.deferred.remove(&node);
        self.enter(phase);
        self.v.current_node_id = Some(node);
        self.e.node_stage = Some(stage);
        self.e.launches = Some(0);
        match stage {
            NodeStage::Tables => Flow::Again,
            NodeStage::Blocks => self.prepare_blocks(node),
            NodeStage::Pause => Flow::Wait,
        }
    }

    /// The tables round: nodes without a tables turn, and deferred ones whose time has come (P6, P11).
    fn next_tables(&mut self) -> Option<NodeId> {
        for node in self.f.local.clone() {
            let served = self.f.up(node) && self.f.reporting(node);
            match self.deferred.get(&node) {
                Some(d) if d.reason == DeferReason::RepairFailed => {}
                Some(d) => {
                    let latest = self.now.plus_seconds(self.t.retry);
                    if served && d.retry_after.is_none_or(|t| self.now >= t.min(latest)) {
                        return Some(node);
                    }
                }
                None if self.e.tables_done_node_ids.contains(&node) => {}
                None if served => return Some(node),
                None => self.defer_absent(node),
            }
        }
        None
    }

    /// P12: rechecks, once every storage node is up and seen, and nobody is deferred for being away.
    fn next_recheck(&self) -> Option<NodeId> {
        let away = self.deferred.values().any(|d| d.reason != DeferReason::RepairFailed);
        self.e
            .tables_recheck_node_ids
            .iter()
            .copied()
            .find(|node| !away && !self.deferred.contains_key(node) && self.f.missed_by(*node).is_none())
    }

    /// The blocks round (P6).
    fn next_blocks(&mut self) -> Option<NodeId> {
        for node in self.f.local.clone() {
            let due = self.e.tables_done_node_ids.contains(&node)
                && !self.v.completed_node_ids.contains(&node)
                && !self.deferred.contains_key(&node);
            if !due {
                continue;
            }
            if !(self.f.up(node) && self.f.reporting(node)) {
                self.defer_absent(node);
            } else if self.may_scan(node) {
                return Some(node);
            }
        }
        None
    }

    /// P6: a blocks repair deletes what the node has no references for, so every other local node that is
    /// there must have pushed its items first, in a turn in which this node was not missed.
    pub(super) fn may_scan(&self, node: NodeId) -> bool {
        let missed = self.e.missed_node_ids.contains(&node);
        self.f
            .local
            .iter()
            .filter(|other| **other != node && self.f.up(**other) && self.f.reporting(**other))
            .all(|other| {
                self.e.tables_done_node_ids.contains(other)
                    && !(missed && self.e.tables_recheck_node_ids.contains(other))
            })
    }

    /// P14: all local nodes finished, none deferred, no recheck due.
    pub(super) fn all_finished(&self) -> bool {
        !self.f.local.is_empty()
            && self.f.local.iter().all(|id| self.v.completed_node_ids.contains(id))
            && self.deferred.is_empty()
            && self.e.tables_recheck_node_ids.is_empty()
    }

    /// A local node, reporting, with a `Block repair worker` that is not done (P6).
    pub(super) fn running_repair(&self) -> Option<NodeId> {
        self.f
            .local
            .iter()
            .copied()
            .find(|id| self.f.workers(*id).is_some_and(|w| w.running_repair().is_some()))
    }

    /// P11, for a node that is down or not reporting.
    pub(super) fn defer_absent(&mut self, node: NodeId) {
        let reason = if self.f.up(node) { DeferReason::NotReporting } else { DeferReason::Down };
        self.defer(node, reason);
    }

    /// P11: puts a node's turn off. Its evidence does not carry over (P6).
    pub(super) fn defer(&mut self, node: NodeId, reason: DeferReason) {
        let failed_scan = reason == DeferReason::RepairFailed && self.e.node_stage == Some(NodeStage::Blocks);
        if self.v.current_node_id == Some(node) {
            self.clear_turn();
        }
        self.v.completed_node_ids.remove(&node);
        self.e.blocks_launches.remove(&node);
        if !failed_scan {
            // A node whose scan failed has still pushed its items: the others need not wait for it (P6).
            self.e.tables_done_node_ids.remove(&node);
            self.e.tables_recheck_node_ids.remove(&node);
            self.e.incarnations.remove(&node);
        }
        let retry_after = (reason != DeferReason::RepairFailed).then(|| self.now.plus_seconds(self.t.retry));
        self.deferred.insert(node, DeferredNode { node_id: node, reason, since: self.now, retry_after });
    }

    /// Ends the current turn: everything that belongs to one stage goes.
    pub(super) fn clear_turn(&mut self) {
        if self.v.current_node_id.is_none() && self.e.node_stage.is_none() {
            return;
        }
        self.v.current_node_id = None;
        let e = &mut self.e;
        e.node_stage = None;
        e.stage_launched_at = None;
        e.worker_baseline = None;
        e.sync_error_baselines = BTreeMap::new();
        e.sync_rpc_error_baseline = None;
        e.idle_since = None;
        e.repair_worker_id = None;
        e.repair_done_seen_at = None;
        e.launches = None;
        e.peer_down_seen = None;
        e.passes_without_worker = None;
        e.silent_since = None;
    }

    /// P11: up but missing from the answers of a launched stage: five minutes without one defer it.
    pub(super) fn silent(&mut self, node: NodeId) -> Flow {
        let since = self.e.silent_since.filter(|t| *t <= self.now).unwrap_or(self.now);
        self.e.silent_since = Some(since);
        if self.now.seconds_since(since) >= self.t.silence {
            self.defer_absent(node);
            return Flow::Again;
        }
        self.notes.waits_for = Some(format!("node {} to answer", node.short()));
        Flow::Wait
    }

    /// Keeps only local nodes in a set.
    pub(super) fn keep_local(local: &BTreeSet<NodeId>, set: &mut BTreeSet<NodeId>) {
        set.retain(|id| local.contains(id));
    }
}
