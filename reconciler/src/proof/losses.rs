//! Who has lost, or may have lost, items or blocks since its turn (P6, P11, P16, O8, O9, D7, D10).

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{DeferReason, Evidence, Incarnation, NodeStage, Phase};

use super::facts::NodeFacts;
use super::turns::Pass;
use crate::observe::judge::Room;

/// How a node may have lost something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// It is down.
    Down,
    /// It was down between two passes: another Pod, another start, or worker IDs that fell.
    Restarted,
    /// Another file system lies under it.
    OtherFileSystem,
    /// It is missing writes for want of room.
    NoRoom,
}

impl Loss {
    fn words(self) -> &'static str {
        match self {
            Self::Down => "was down",
            Self::Restarted => "was restarted",
            Self::OtherFileSystem => "has another file system under it",
            Self::NoRoom => "had no room",
        }
    }
}

/// P16: what differs from the end of its turn.
fn changed(then: &Incarnation, now: &Incarnation) -> Option<Loss> {
    fn differs<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
        matches!((a, b), (Some(a), Some(b)) if a != b)
    }
    let fell = matches!((then.highest_worker_id, now.highest_worker_id), (Some(a), Some(b)) if b < a);
    if differs(then.pod_uid.as_ref(), now.pod_uid.as_ref())
        || differs(then.restart_count, now.restart_count)
        || fell
    {
        Some(Loss::Restarted)
    } else if differs(then.data_total, now.data_total) || differs(then.metadata_total, now.metadata_total) {
        Some(Loss::OtherFileSystem)
    } else {
        None
    }
}

fn loss(node: &NodeFacts, then: Option<&Incarnation>) -> Option<Loss> {
    if !node.up {
        return Some(Loss::Down);
    }
    then.and_then(|then| changed(then, &node.incarnation))
        .or((node.room != Room::Enough).then_some(Loss::NoRoom))
}

impl Pass<'_> {
    /// Takes evidence back where it no longer holds. Runs in every pass, paused or not.
    pub(super) fn take_losses(&mut self) {
        match self.v.phase {
            // Nothing was proven yet.
            Phase::Idle | Phase::Pending => {}
            Phase::Verified => {
                self.void();
                // P14: the error list empties on a retry while the blocks are still missing, so True needs a
                // whole new quiet period.
                if self.v.phase == Phase::Verified && self.f.local_block_errors() > 0 {
                    self.enter(Phase::Settling);
                    self.drop_quiet_period();
                }
            }
            Phase::SyncingMetadata | Phase::ScanningBlocks | Phase::Settling | Phase::Partial => {
                for id in self.f.local.clone() {
                    let loss =
                        self.f.node(id).map_or(Some(Loss::Down), |n| loss(n, self.e.incarnations.get(&id)));
                    if let Some(loss) = loss {
                        self.lose(id, loss);
                    }
                }
                self.take_broken_links();
                if self.v.phase == Phase::Settling && !self.all_finished() {
                    self.drop_quiet_period();
                }
            }
        }
    }

    /// P16: a finished proof falls. Coming back starts nothing.
    fn void(&mut self) {
        let fallen = self.f.storage.iter().find_map(|id| {
            let node = self.f.node(*id)?;
            if self.f.local.contains(id) {
                loss(node, self.e.incarnations.get(id)).map(|l| (*id, l))
            } else {
                // D8: a remote node that is away voids nothing; one without room misses writes without an error.
                (node.up && node.room != Room::Enough).then_some((*id, Loss::NoRoom))
            }
        });
        if let Some((id, loss)) = fallen {
            self.notes.idle_because =
                Some(format!("storage node {} {} after the last proof", id.short(), loss.words()));
            self.enter(Phase::Idle);
            self.clear_turn();
            self.e = Evidence::default();
            self.deferred.clear();
        }
    }

    /// A local node may lack items now: it loses what it had, and the others must push to it again before
    /// its blocks turn (P6). A completed one that is down is deferred (P11, D7).
    pub(super) fn lose(&mut self, id: NodeId, loss: Loss) {
        let completed = self.v.completed_node_ids.remove(&id);
        self.e.missed_node_ids.insert(id);
        let others = self.e.tables_done_node_ids.iter().copied().filter(|other| *other != id);
        let others: Vec<NodeId> = others.collect();
        self.e.tables_recheck_node_ids.extend(others);
        if loss != Loss::NoRoom {
            self.e.incarnations.remove(&id);
        }
        let stage = (self.v.current_node_id == Some(id)).then_some(self.e.node_stage).flatten();
        match (stage, loss) {
            (Some(_), Loss::Down) => self.defer(id, DeferReason::Down),
            // P10: the stage is launched again. What it pushes is not touched by what it may lack itself.
            (Some(NodeStage::Tables), Loss::Restarted | Loss::OtherFileSystem) => {
                self.e.stage_launched_at = None;
                self.e.idle_since = None;
            }
            (Some(NodeStage::Tables), Loss::NoRoom) => self.e.idle_since = None,
            (Some(NodeStage::Blocks), _) => self.interrupt_blocks(id),
            (Some(NodeStage::Pause), _) => {
                self.clear_turn();
                self.e.tables_done_node_ids.remove(&id);
            }
            (None, _) => {
                self.e.tables_done_node_ids.remove(&id);
                if completed && loss == Loss::Down {
                    self.defer(id, DeferReason::Down);
                }
            }
        }
    }

    /// P10 with P6: a restarted node is scanned again only after the others' tables turns; the launches
    /// that its blocks turn has used stay counted.
    pub(super) fn interrupt_blocks(&mut self, id: NodeId) {
        let used = self.e.launches.unwrap_or(0);
        self.clear_turn();
        self.e.tables_done_node_ids.remove(&id);
        if used > 0 {
            self.e.blocks_launches.insert(id, used);
        }
    }

    /// O8: two local nodes that do not reach each other miss each other's writes without a word; what was
    /// pushed before does not cover it.
    fn take_broken_links(&mut self) {
        for (viewer, unseen) in &self.f.unseen {
            if !self.f.local.contains(unseen) {
                continue;
            }
            self.e.missed_node_ids.insert(*viewer);
            self.e.missed_node_ids.insert(*unseen);
            let done = self.e.tables_done_node_ids.clone();
            self.e.tables_recheck_node_ids.extend(done);
        }
    }
}
