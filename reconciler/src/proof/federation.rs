//! Turn-taking between sites by what their repairs show (F1 to F5): a best effort, not a lock.

use std::collections::BTreeMap;

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{Coordination, Redundancy};
use sha2::{Digest, Sha256};

use super::facts::Facts;
use super::timings::Timings;
use super::turns::Pass;

/// What a pass saw of other sites' repairs.
#[derive(Debug, Default)]
pub(super) struct Coordinated {
    /// `status.redundancy.coordination`; absent where the site is not federated (F4).
    pub(super) record: Option<Coordination>,
    /// A remote node with a repair that runs now.
    pub(super) running: Option<NodeId>,
}

/// F1: records the highest `Block repair worker` of each remote storage node, and activity.
pub(super) fn observe(f: &Facts<'_>, previous: Option<&Redundancy>, t: &Timings) -> Coordinated {
    if !f.federated {
        return Coordinated::default();
    }
    let before = previous.and_then(|r| r.coordination.clone()).unwrap_or_default();
    let mut ids: BTreeMap<NodeId, i64> = BTreeMap::new();
    let mut active = None;
    let mut running = None;
    for id in f.remote() {
        let known = before.remote_repair_worker_ids.get(&id).copied();
        // Down or missing is no activity, and what is recorded stays.
        let Some(workers) = f.workers(id).filter(|_| f.up(id)) else {
            if let Some(known) = known {
                ids.insert(id, known);
            }
            continue;
        };
        // 0: seen without a repair. A lower ID is a restart and only rebases.
        let highest = workers.repairs.last().map_or(0, |r| r.id);
        if workers.running_repair().is_some() {
            running = running.or(Some(id));
            active = active.or(Some(id));
        } else if known.is_some_and(|known| highest > known) {
            active = active.or(Some(id));
        }
        ids.insert(id, highest);
    }
    let mut record = Coordination { remote_repair_worker_ids: ids, ..before };
    let last = record.last_remote_repair_at.filter(|t| *t <= f.now);
    match last {
        // The first federated pass watches for one hold-down before anything starts.
        None => {
            record.last_remote_repair_at = Some(f.now);
            record.last_remote_repair_node_id = active.or(record.last_remote_repair_node_id);
        }
        Some(last) => {
            if let Some(node) = active
                && f.now.seconds_since(last) >= t.progress_step
            {
                record.last_remote_repair_at = Some(f.now);
                record.last_remote_repair_node_id = Some(node);
            }
        }
    }
    Coordinated { record: Some(record), running }
}

/// F2: the hold-down of this site, in seconds.
pub fn hold_down(uid: &str, follower: bool, t: &Timings) -> i64 {
    if !follower {
        return t.hold_down;
    }
    let digest = Sha256::digest(uid.as_bytes());
    let number = digest.iter().take(7).fold(0i64, |n, byte| (n << 8) | i64::from(*byte));
    let span = (t.follower_offset_max - t.follower_offset_min + 1).max(1);
    t.hold_down + t.follower_offset_min + number % span
}

impl Pass<'_> {
    /// F2, F3: another site's repair is too recent for a turn here; the notes say which.
    pub(super) fn must_yield(&mut self) -> bool {
        let Some(record) = &self.coordination.record else { return false };
        let wait = hold_down(&self.f.site.uid, self.f.follower(), self.t);
        let node = record.last_remote_repair_node_id.map(|id| id.short());
        let message = match (self.coordination.running, record.last_remote_repair_at) {
            (Some(id), _) => {
                let id = id.short();
                format!(
                    "a block repair runs on remote storage node {id}; this site starts {wait} s after it ended"
                )
            }
            (None, Some(last)) if self.now.seconds_since(last) < wait => {
                let start = last.plus_seconds(wait);
                match node {
                    Some(id) => format!(
                        "a block repair on remote storage node {id} was last seen at {last}; this site starts at {start}"
                    ),
                    None => format!(
                        "this site watches for block repairs of other sites since {last}; it starts at {start}"
                    ),
                }
            }
            (None, Some(_)) => return false,
            (None, None) => "this site has not yet looked for block repairs of other sites".to_owned(),
        };
        self.notes.other_site = Some(message);
        true
    }
}
