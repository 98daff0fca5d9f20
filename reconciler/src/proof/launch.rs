//! What becomes of a launch: the second half of a pass (P7, P10, section 14).

use holdfast_crds::status::{NodeStage, Redundancy, Time};

use crate::act::{Action, RepairKind};

/// How a `LaunchRepairOperation` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LaunchOutcome {
    /// The node is in the `success` map (O7).
    Accepted,
    /// It was certainly not executed: connection refused, a 4xx, `Not connected`. It does not count (P10).
    NotExecuted,
    /// An error or a time-out: it may have run, or may run later (O7).
    Unknown,
}

/// The status to write after a launch, given the status that was written before it.
///
/// Tables: an accepted launch is recorded (`stageLaunchedAt`); anything else is not, and the next pass
/// launches again. Blocks: the launch time is already there; the worker is adopted, or found lost.
/// Returns the status unchanged when it is no longer about this launch.
pub fn after_launch(written: &Redundancy, action: &Action, outcome: LaunchOutcome, now: Time) -> Redundancy {
    let mut next = written.clone();
    let Action::LaunchRepair { node, kind } = action else { return next };
    let Some(v) = next.verification.as_mut() else { return next };
    let Some(e) = v.evidence.as_mut() else { return next };
    let stage = match kind {
        RepairKind::Tables => NodeStage::Tables,
        RepairKind::Blocks => NodeStage::Blocks,
    };
    if v.current_node_id != Some(*node) || e.node_stage != Some(stage) {
        return next;
    }
    match outcome {
        LaunchOutcome::Accepted => {
            if *kind == RepairKind::Tables {
                e.stage_launched_at = Some(now);
            }
        }
        LaunchOutcome::NotExecuted => {
            e.launches = e.launches.map(|n| (n - 1).max(0));
            e.stage_launched_at = None;
        }
        LaunchOutcome::Unknown => {}
    }
    next
}
