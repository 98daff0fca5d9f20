//! P20: what to write when the object changed under a pass.

use holdfast_crds::status::Redundancy;

/// The redundancy part to write after a status conflict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merged {
    /// Nobody touched it: write what this pass computed, and go on with its actions.
    Computed,
    /// Somebody did: keep what is there and drop this pass's actions. A stale pass never rolls evidence back.
    Fresh,
}

/// Decides from what this pass started from and what the fresh object holds.
pub fn merge(started_from: Option<&Redundancy>, fresh: Option<&Redundancy>) -> Merged {
    if started_from == fresh { Merged::Computed } else { Merged::Fresh }
}
