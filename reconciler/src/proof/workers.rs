//! What a node's worker list says about its tables, blocks and repairs (FACTS 6 to 8).

use crate::observe::{Worker, WorkerState};

/// The five tables that a tables repair walks (FACTS 7), in the order of [`Tables::errors`].
pub const REPAIRED_TABLES: [&str; 5] = ["bucket_v2", "object", "version", "block_ref", "key"];

const BLOCK_REPAIR: &str = "Block repair worker";
const DEFERRED_RESYNC: &str = "Block resync queue deferred worker";
const RESYNC_PREFIX: &str = "Block resync worker #";

/// Most that waits in the deferred worker of a Garage that keeps up: it hands over what it has after 2 s, and
/// sooner once there are more than this (2.5.0).
const DEFERRED_BATCH: i64 = 1024;

/// One node's workers, digested. What was not observed is `None`, never 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workers {
    /// The highest worker ID; it falls only with a restart (FACTS 6).
    pub highest_id: i64,
    /// The five tables' workers; `None` while one of the five sync workers is missing.
    pub tables: Option<Tables>,
    /// Sum of the Merkle and insert queues of the five tables; `None` while one is unknown.
    pub metadata_queue: Option<i64>,
    /// Every `Block repair worker`, by ID.
    pub repairs: Vec<Repair>,
    /// The block resync workers.
    pub resync: Resync,
}

/// The five `<table> sync` workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    /// All five are idle with an empty queue.
    pub idle_and_empty: bool,
    /// Sum of their queues; `None` while one is unknown.
    pub queue: Option<i64>,
    /// `errors` of each, as [`REPAIRED_TABLES`].
    pub errors: [i64; 5],
}

/// A `Block repair worker`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// Its ID.
    pub id: i64,
    /// It is done.
    pub done: bool,
    /// Its failed steps.
    pub errors: i64,
    /// Garage's words for how far it is, at most 64 bytes: the percentage, then the phase or the
    /// iterator position, since the percentage stays 0.00% through the whole first part (FACTS 8).
    pub progress: String,
}

/// The block resync workers of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resync {
    /// At least one is enabled and every enabled one is idle; `None` where none is enabled.
    pub idle: Option<bool>,
    /// Length of the queue, delayed rechecks included.
    pub queue: Option<i64>,
    /// `persistentErrors` by worker ID; an enabled worker without a number is unknown (`None`).
    pub persistent_errors: Vec<(i64, Option<i64>)>,
    /// Queue of the deferred worker: `None` where it does not exist (before 2.5.0), `Some(None)` where it
    /// shows no number or fails.
    pub deferred: Option<Option<i64>>,
}

impl Resync {
    /// The deferred worker does not exist or has nothing.
    pub fn nothing_deferred(&self) -> bool {
        self.deferred.is_none_or(|queue| queue == Some(0))
    }

    /// What the deferred worker has is no more than what it hands over within seconds. On a site that is written to
    /// it always has something: every reference that comes or goes passes through it.
    pub fn deferred_flows(&self) -> bool {
        self.deferred.is_none_or(|queue| queue.is_some_and(|queue| queue <= DEFERRED_BATCH))
    }

    /// Nothing is due: every check whose time has come was made (P14).
    pub fn nothing_due(&self) -> bool {
        self.idle == Some(true) && self.deferred_flows()
    }
}

impl Workers {
    /// Digests a worker list; `None` where it contradicts itself (an ID twice): such a node counts as
    /// not reporting.
    pub fn read(list: &[Worker]) -> Option<Self> {
        let mut out = Self::default();
        let mut ids: Vec<u64> = list.iter().map(|w| w.id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return None;
        }
        let mut sync: [Option<&Worker>; 5] = [None; 5];
        let mut queues: [[Option<i64>; 2]; 5] = [[None; 2]; 5];
        for worker in list {
            let id = signed(worker.id);
            out.highest_id = out.highest_id.max(id);
            if worker.name == BLOCK_REPAIR {
                out.repairs.push(Repair {
                    id,
                    done: worker.state == WorkerState::Done,
                    errors: signed(worker.errors),
                    progress: words(worker),
                });
                continue;
            }
            if worker.name == DEFERRED_RESYNC {
                let works = worker.consecutive_errors == 0;
                out.resync.deferred = Some(worker.queue_length.map(signed).filter(|_| works));
            } else if worker.name.starts_with(RESYNC_PREFIX) {
                out.resync.read(worker, id);
            } else if let Some((table, kind)) = worker.name.split_once(' ') {
                let Some(index) = REPAIRED_TABLES.iter().position(|t| *t == table) else { continue };
                let (Some(slot), Some(queue)) = (sync.get_mut(index), queues.get_mut(index)) else {
                    continue;
                };
                match kind {
                    "sync" => *slot = Some(worker),
                    "Merkle" => queue[0] = worker.queue_length.map(signed),
                    "queue" => queue[1] = worker.queue_length.map(signed),
                    _ => {}
                }
            }
        }
        out.repairs.sort_by_key(|r| r.id);
        out.metadata_queue =
            queues.iter().flatten().try_fold(0i64, |sum, q| q.map(|q| sum.saturating_add(q)));
        if let [Some(a), Some(b), Some(c), Some(d), Some(e)] = sync {
            let five = [a, b, c, d, e];
            out.tables = Some(Tables {
                idle_and_empty: five
                    .iter()
                    .all(|w| w.state == WorkerState::Idle && w.queue_length == Some(0)),
                queue: five
                    .iter()
                    .try_fold(0i64, |sum, w| w.queue_length.map(|q| sum.saturating_add(signed(q)))),
                errors: five.map(|w| signed(w.errors)),
            });
        }
        Some(out)
    }

    /// A `Block repair worker` that is not done, whoever started it (P6).
    pub fn running_repair(&self) -> Option<&Repair> {
        self.repairs.iter().find(|r| !r.done)
    }

    /// The `Block repair worker`s with an ID above a baseline (P8).
    pub fn repairs_above(&self, baseline: i64) -> impl Iterator<Item = &Repair> {
        self.repairs.iter().filter(move |r| r.id > baseline)
    }

    /// Whether the process still has this `Block repair worker`: gone, or its ID under another name, is a
    /// restart (P10).
    pub fn has_repair(&self, id: i64) -> bool {
        self.repairs.iter().any(|r| r.id == id)
    }
}

impl Resync {
    fn read(&mut self, worker: &Worker, id: i64) {
        // Only enabled workers have numbers (FACTS 6); a disabled one is idle without any.
        let enabled = worker.queue_length.is_some()
            || worker.persistent_errors.is_some()
            || worker.state != WorkerState::Idle;
        if !enabled {
            return;
        }
        let idle = worker.state == WorkerState::Idle;
        self.idle = Some(self.idle.unwrap_or(true) && idle);
        // All workers of a node serve one queue; each shows it as it was at its own last step.
        self.queue = self.queue.max(worker.queue_length.map(signed));
        self.persistent_errors.push((id, worker.persistent_errors.map(signed)));
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn words(worker: &Worker) -> String {
    let mut out = worker.progress.clone().unwrap_or_default();
    for line in &worker.freeform {
        if !out.is_empty() {
            out.push(' ');
        }
        // Garage's words, shortened so that the position, which moves, stays within 64 bytes.
        out.push_str(line.strip_prefix("Currently in ").unwrap_or(line));
    }
    let end = (0..=out.len().min(64)).rev().find(|&i| out.is_char_boundary(i)).unwrap_or(0);
    out.truncate(end);
    out
}
