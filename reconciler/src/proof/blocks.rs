//! A node's blocks turn (P8, P10, P11).

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{DeferReason, NodeStage};

use super::losses::Loss;
use super::turns::{Flow, MAX_LAUNCHES, Pass};
use super::workers::{Repair, Workers};
use crate::act::{Action, RepairKind};

impl Pass<'_> {
    /// P8: the highest worker ID is made durable first; the launch is for a later pass.
    pub(super) fn prepare_blocks(&mut self, node: NodeId) -> Flow {
        let f = self.f;
        let (Some(workers), Some(facts)) = (f.workers(node), f.node(node)) else {
            self.defer_absent(node);
            return Flow::Again;
        };
        self.e.launches = Some(self.e.blocks_launches.remove(&node).unwrap_or(0));
        self.e.incarnations.insert(node, facts.incarnation.clone());
        self.rebase(workers);
        Flow::Wait
    }

    /// A new attempt begins from the worker IDs that are there now.
    fn rebase(&mut self, workers: &Workers) {
        self.e.worker_baseline = Some(workers.highest_id);
        self.e.repair_worker_id = None;
        self.e.repair_done_seen_at = None;
        self.e.stage_launched_at = None;
        self.e.passes_without_worker = None;
    }

    pub(super) fn blocks(&mut self, node: NodeId) -> Flow {
        let f = self.f;
        let used = self.e.launches.unwrap_or(0);
        let Some(workers) = f.workers(node) else {
            if used == 0 {
                self.defer_absent(node);
                return Flow::Again;
            }
            return self.silent(node);
        };
        self.e.silent_since = None;
        let Some(baseline) = self.e.worker_baseline else {
            self.rebase(workers);
            return Flow::Wait;
        };
        // P10: worker IDs that fell, or an adopted worker that is gone or goes by another name.
        if workers.highest_id < baseline || self.e.repair_worker_id.is_some_and(|id| !workers.has_repair(id))
        {
            self.lose(node, Loss::Restarted);
            return Flow::Again;
        }
        let above: Vec<&Repair> = workers.repairs_above(baseline).collect();
        if above.is_empty() {
            return self.without_worker(node, workers, baseline, used);
        }
        if used == 0 {
            // Somebody else's, started after the baseline was taken: it ends first, and is not ours.
            self.rebase(workers);
            return self.wait_for_repair(node);
        }
        self.adopt(node, workers, &above)
    }

    fn without_worker(&mut self, node: NodeId, workers: &Workers, baseline: i64, used: i32) -> Flow {
        match self.e.stage_launched_at {
            None => {
                if used >= MAX_LAUNCHES {
                    self.defer(node, DeferReason::RepairFailed);
                    return Flow::Again;
                }
                if workers.highest_id != baseline {
                    self.rebase(workers);
                    return Flow::Wait;
                }
                if let Some(busy) = self.running_repair() {
                    return self.wait_for_repair(busy);
                }
                // P6: while this turn waited, somebody may have been missed.
                if !self.may_scan(node) {
                    self.interrupt_waiting_blocks(node);
                    return Flow::Again;
                }
                self.e.launches = Some(used + 1);
                self.e.stage_launched_at = Some(self.now);
                self.actions.push(Action::LaunchRepair { node, kind: RepairKind::Blocks });
                Flow::Wait
            }
            // A worker may appear only after its first step (P8), or long after a launch that timed out.
            Some(at) => {
                let passes = (self.e.passes_without_worker.unwrap_or(0) + 1).min(self.t.lost_passes);
                self.e.passes_without_worker = Some(passes);
                let waited = self.elapsed_since(at);
                if waited.is_none() {
                    self.e.stage_launched_at = Some(self.now);
                }
                if waited.is_some_and(|s| s >= self.t.lost_launch) && passes >= self.t.lost_passes {
                    self.rebase(workers);
                    // `launches` rises, and the next launch goes out, on a later pass.
                }
                Flow::Wait
            }
        }
    }

    /// The turn goes back in the queue before its launch; its tables turn still counts.
    fn interrupt_waiting_blocks(&mut self, node: NodeId) {
        let used = self.e.launches.unwrap_or(0);
        self.clear_turn();
        if used > 0 {
            self.e.blocks_launches.insert(node, used);
        }
    }

    fn wait_for_repair(&mut self, node: NodeId) -> Flow {
        self.notes.waits_for = Some(format!("the block repair that runs on node {}", node.short()));
        Flow::Wait
    }

    /// P8: the lowest new worker is adopted; the stage ends when all new ones are done, a clean later one
    /// replacing one with errors, and on a later pass than that the findings have left the deferred queue.
    fn adopt(&mut self, node: NodeId, workers: &Workers, above: &[&Repair]) -> Flow {
        let adopted = self.e.repair_worker_id;
        let Some(mut ours) = above.iter().find(|r| Some(r.id) == adopted).or_else(|| above.first()).copied()
        else {
            return Flow::Wait;
        };
        if ours.errors > 0 {
            self.notes.worker_errors =
                Some(format!("the block repair on node {} reported errors", node.short()));
        }
        self.e.passes_without_worker = None;
        if above.iter().any(|r| !r.done) {
            self.e.repair_worker_id = Some(ours.id);
            self.e.repair_done_seen_at = None;
            return Flow::Wait;
        }
        if ours.errors > 0 {
            let Some(clean) = above.iter().find(|r| r.errors == 0) else {
                // P10: a scan that ended with errors is done again.
                self.rebase(workers);
                return Flow::Wait;
            };
            ours = clean;
        }
        self.e.repair_worker_id = Some(ours.id);
        let Some(seen) = self.e.repair_done_seen_at else {
            self.e.repair_done_seen_at = Some(self.now);
            return Flow::Wait;
        };
        let Some(elapsed) = self.elapsed_since(seen) else {
            self.e.repair_done_seen_at = Some(self.now);
            return Flow::Wait;
        };
        // FACTS 1.7: done up to 2 s before its findings reach the queue; they wait in the deferred worker. So does
        // what is written meanwhile, so that on a busy site it is never seen empty (D4).
        let resync = &workers.resync;
        if !(resync.nothing_deferred() || elapsed >= self.t.findings && resync.deferred_flows()) {
            self.notes.waits_for = Some("its findings to reach the resync queue".to_owned());
            return Flow::Wait;
        }
        self.finish_blocks(node)
    }

    fn finish_blocks(&mut self, node: NodeId) -> Flow {
        self.v.completed_node_ids.insert(node);
        self.e.blocks_launches.remove(&node);
        if let Some(facts) = self.f.node(node) {
            self.e.incarnations.insert(node, facts.incarnation.clone());
        }
        self.notes.progressed = true;
        self.clear_turn();
        self.v.current_node_id = Some(node);
        self.e.node_stage = Some(NodeStage::Pause);
        self.e.pause_until = Some(self.now.plus_seconds(self.t.pause));
        Flow::Again
    }
}
