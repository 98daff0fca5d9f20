//! A node's tables turn (P7, P10, P11, P12, D1, D2).

use std::collections::BTreeSet;

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::DeferReason;

use super::losses::Loss;
use super::turns::{Flow, MAX_LAUNCHES, Pass};
use super::workers::{REPAIRED_TABLES, Tables, Workers};
use crate::act::{Action, RepairKind};

impl Pass<'_> {
    pub(super) fn tables(&mut self, node: NodeId) -> Flow {
        let f = self.f;
        let Some(workers) = f.workers(node) else {
            if self.e.launches.unwrap_or(0) == 0 {
                self.defer_absent(node);
                return Flow::Again;
            }
            self.e.idle_since = None;
            self.note_missed(node);
            return self.silent(node);
        };
        self.e.silent_since = None;
        let Some(launched_at) = self.e.stage_launched_at else { return self.launch_tables(node, workers) };
        self.note_missed(node);
        let Some(tables) = &workers.tables else {
            self.e.idle_since = None;
            self.notes.waits_for = Some(format!("node {} to list its five sync workers", node.short()));
            return Flow::Wait;
        };

        let baselines = REPAIRED_TABLES.map(|t| self.e.sync_error_baselines.get(t).copied());
        let pairs = || baselines.iter().zip(tables.errors);
        let failed_calls = f.node(node).and_then(|n| n.sync_rpc_errors);
        let fell = |then: Option<i64>, now: i64| then.is_none_or(|then| now < then);
        // P10: a counter below its baseline (or without one) is another process than the one launched on.
        if fell(self.e.worker_baseline, workers.highest_id)
            || pairs().any(|(then, now)| fell(*then, now))
            || matches!((self.e.sync_rpc_error_baseline, failed_calls), (Some(then), Some(now)) if now < then)
        {
            self.lose(node, Loss::Restarted);
            return self.launch_tables(node, workers);
        }
        // D2: a failed sync call is a peer that was missed. Where no observation of the stage says which, it
        // may have been any.
        if self.e.peer_down_seen.is_none()
            && matches!((self.e.sync_rpc_error_baseline, failed_calls), (Some(then), Some(now)) if now > then)
        {
            let all: BTreeSet<NodeId> = f.local.iter().copied().filter(|id| *id != node).collect();
            self.mark_missed(&all);
        }
        let missed = self.e.peer_down_seen == Some(true);
        if !missed && pairs().any(|(then, now)| then.is_some_and(|then| now > then)) {
            self.notes.worker_errors =
                Some(format!("a sync worker of node {} reported errors", node.short()));
            self.e.idle_since = None;
            return if tables.idle_and_empty { self.launch_tables(node, workers) } else { Flow::Wait };
        }

        let clean = tables.idle_and_empty
            && workers.metadata_queue == Some(0)
            && self.elapsed_since(launched_at).is_some();
        if !clean {
            self.e.idle_since = None;
            return Flow::Wait;
        }
        match self.e.idle_since.and_then(|t| self.elapsed_since(t)) {
            Some(s) if s >= self.t.clean_gap => self.finish_tables(node, failed_calls),
            Some(_) => Flow::Wait,
            None => {
                self.e.idle_since = Some(self.now);
                Flow::Wait
            }
        }
    }

    fn launch_tables(&mut self, node: NodeId, workers: &Workers) -> Flow {
        let used = self.e.launches.unwrap_or(0);
        if used >= MAX_LAUNCHES {
            self.defer(node, DeferReason::RepairFailed);
            return Flow::Again;
        }
        if let Some(busy) = self.running_repair() {
            self.notes.waits_for = Some(format!("the block repair that runs on node {}", busy.short()));
            return Flow::Wait;
        }
        let Some(Tables { errors, .. }) = &workers.tables else {
            self.notes.waits_for = Some(format!("node {} to list its five sync workers", node.short()));
            return Flow::Wait;
        };
        let facts = self.f.node(node);
        self.e.worker_baseline = Some(workers.highest_id);
        self.e.sync_error_baselines =
            REPAIRED_TABLES.iter().zip(errors).map(|(t, n)| ((*t).to_owned(), *n)).collect();
        self.e.sync_rpc_error_baseline = facts.and_then(|n| n.sync_rpc_errors);
        self.e.stage_launched_at = None;
        self.e.idle_since = None;
        self.e.launches = Some(used + 1);
        if let Some(facts) = facts {
            self.e.incarnations.insert(node, facts.incarnation.clone());
        }
        // A node that restarts quickly during another's stage may be missed without a trace (FACTS 9): who
        // it was when the stage began shows it (P16).
        for id in &self.f.local {
            if let Some(other) = self.f.node(*id).filter(|n| n.up && n.reporting) {
                self.e.incarnations.entry(*id).or_insert_with(|| other.incarnation.clone());
            }
        }
        self.note_missed(node);
        self.actions.push(Action::LaunchRepair { node, kind: RepairKind::Tables });
        Flow::Wait
    }

    /// P12: somebody is not there, or is not seen by somebody, at this observation of the stage.
    fn note_missed(&mut self, node: NodeId) {
        if let Some(missed) = self.f.missed_by(node) {
            self.mark_missed(&missed);
        }
    }

    fn mark_missed(&mut self, missed: &BTreeSet<NodeId>) {
        self.e.peer_down_seen = Some(true);
        self.e.missed_node_ids.extend(missed.intersection(&self.f.local));
    }

    fn finish_tables(&mut self, node: NodeId, failed_calls: Option<i64>) -> Flow {
        if self.e.sync_rpc_error_baseline.is_none() || failed_calls.is_none() {
            self.e.sync_metrics_unread = Some(true);
        }
        self.e.tables_done_node_ids.insert(node);
        if self.e.peer_down_seen == Some(true) {
            self.e.tables_recheck_node_ids.insert(node);
        } else {
            self.e.tables_recheck_node_ids.remove(&node);
        }
        self.notes.progressed = true;
        self.clear_turn();
        Flow::Again
    }
}
