//! The full-redundancy proof: `behaviour.md` sections 6, 8, 9, 10 and 14, as pure steps.
//!
//! One pass of the shell is:
//!
//! 1. read an observation; ask the nodes for their own views when [`needs_peer_views`] says so (O8);
//! 2. [`step`]: the next `status.redundancy`, the `FullyReplicated` condition, and at most one launch;
//! 3. write the status if it changed (compare-and-swap, [`merge`] on a conflict). **Only if that write
//!    succeeded and came back whole** perform the actions: `launches` and the blocks baseline are then
//!    durable before Garage hears of the launch (P7, P8, P10);
//! 4. feed each launch's [`LaunchOutcome`] to [`after_launch`] and write what it returns.
//!
//! A crash between any two of these costs at most one extra repair, which counts (section 14): after a
//! crash between 3 and 4 a tables launch is repeated, and a blocks launch is adopted by its worker's ID.
//! Nothing is held in memory.

mod blocks;
mod condition;
mod facts;
mod federation;
mod launch;
mod losses;
mod merge;
mod preconditions;
mod progress;
mod settling;
mod site;
mod start;
mod tables;
mod timings;
mod topology;
mod turns;
mod workers;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod transitions;

use holdfast_crds::status::{Phase, Redundancy, Time};

pub use condition::Condition;
pub use facts::{Facts, NodeFacts};
pub use federation::hold_down;
pub use launch::{LaunchOutcome, after_launch};
pub use merge::{Merged, merge};
pub use site::{Busy, Member, PodFacts, PreviousCondition, Site, SiteRole};
pub use timings::{GARAGE_START_SYNC_SECONDS, Timings};
pub use topology::{Difference, difference, topology_hash};
pub use workers::{REPAIRED_TABLES, Repair, Resync, Tables, Workers};

use crate::act::Action;
use crate::observe::GarageView;

/// What the proof is set to. The product uses [`Settings::default`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Waiting times.
    pub timings: Timings,
}

/// What one pass decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The next `status.redundancy`; `None` where it is to be absent (P5). Equal to the previous one when
    /// there is nothing to write (P19).
    pub redundancy: Option<Redundancy>,
    /// The `FullyReplicated` condition; `None` where the cluster has none (P5).
    pub condition: Option<Condition>,
    /// At most one launch, to be performed only after the status was written.
    pub actions: Vec<Action>,
}

/// Whether a proof is active (section 9): not in `Partial`.
pub fn is_active(phase: Phase) -> bool {
    matches!(phase, Phase::Pending | Phase::SyncingMetadata | Phase::ScanningBlocks | Phase::Settling)
}

/// Whether the next pass must ask each local storage node for its own view (O8): while a proof is active,
/// and in `Partial`, which may launch a retry. Passes that are idle or verified do without.
pub fn needs_peer_views(site: &Site, status: Option<&Redundancy>) -> bool {
    let Some(v) = status.and_then(|r| r.verification.as_ref()) else { return site.token.is_some() };
    is_active(v.phase)
        || v.phase == Phase::Partial
        || site.token.as_deref().is_some_and(|t| v.request_token.as_deref() != Some(t))
}

/// Decides one pass. Pure: equal input gives equal output.
///
/// `previous` is `status.redundancy` as this pass read it. The returned condition is first match of the
/// table of section 9.
pub fn step(
    site: &Site,
    garage: &GarageView,
    previous: Option<&Redundancy>,
    now: Time,
    settings: &Settings,
) -> Step {
    if !site.storage_tier {
        // P5: no storage tier, or a handle.
        return Step { redundancy: None, condition: None, actions: Vec::new() };
    }
    let facts = match Facts::read(site, garage, now, settings).and_then(|f| believed(f, previous)) {
        Ok(facts) => facts,
        Err(what) => {
            return Step {
                redundancy: previous.cloned(),
                condition: Some(condition::not_observed(&what, previous)),
                actions: Vec::new(),
            };
        }
    };
    let coordination = federation::observe(&facts, previous, &settings.timings);
    if facts.federated && site.site_role == SiteRole::Unset {
        return Step {
            redundancy: Some(progress::without_verification(&facts, previous, coordination.record, settings)),
            condition: Some(condition::site_role_unset()),
            actions: Vec::new(),
        };
    }
    let mut pass = turns::Pass::new(&facts, settings, previous, coordination);
    pass.start();
    pass.take_losses();
    pass.check_preconditions();
    pass.run();
    pass.finish(previous)
}

/// O6: a layout version lower than one already recorded is not believed. Snapshots that disagree pause an
/// active proof (P15); without one to pause, nothing can be said of a layout that changes while it is read.
fn believed<'a>(facts: Facts<'a>, previous: Option<&Redundancy>) -> Result<Facts<'a>, String> {
    let v = previous.and_then(|r| r.verification.as_ref());
    let seen = facts.core.layout.version.min(facts.core.status_layout_version);
    if let Some(recorded) = v.and_then(|v| v.layout_version)
        && seen < recorded
    {
        return Err(format!("an endpoint with layout version {recorded} or later"));
    }
    if !facts.snapshots_agree() && !v.is_some_and(|v| is_active(v.phase)) {
        return Err("status, layout and history of one layout version".to_owned());
    }
    Ok(facts)
}
