//! What must hold after every event (`testbed.md`, layer 2).

use holdfast_crds::conditions::ConditionStatus;
use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{Phase, Redundancy};

use super::garage::{Alive, GarageVersion};
use super::world::World;
use crate::act::{Action, RepairKind};
use crate::observe::GarageView;
use crate::proof::{Step, is_active};

/// What was broken. Each is one family of invariants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// True although a local node misses something that could be known.
    FalseTrue {
        /// The node.
        node: usize,
        /// The items that it has not whole.
        missing: u16,
    },
    /// True in a pass that saw a local storage node down, without room, or silent about its room.
    TrueOverTrouble,
    /// A repair was launched while another of ours, or anybody's blocks repair, ran.
    TwoRepairs,
    /// A repair on a node that is not local.
    RemoteRepair,
    /// A launch that the written status does not account for.
    UnrecordedLaunch,
    /// More launches of one stage than allowed.
    TooManyLaunches,
    /// A launch without a proof that was asked for.
    UnaskedLaunch,
    /// A launch although a precondition failed.
    LaunchWhilePaused,
    /// Our repair made a node delete a block that it should keep.
    DeletedBlock(usize, usize),
    /// The same input gave two outputs.
    NotDeterministic,
    /// Evidence came back, or a finished list shrank without a reason.
    RolledBack,
    /// A blocks turn began although somebody's items were not pushed.
    ScanTooEarly,
    /// A status that nothing changed was to be written.
    NeedlessWrite,
    /// It did not converge when the faults stopped.
    NoProgress(String),
    /// A finished proof was not quiet.
    NotQuiet,
    /// A status field beyond its bounds.
    OutOfBounds(&'static str),
}

/// After a decision, before anything is written.
pub fn check_step(
    w: &World,
    view: &GarageView,
    step: &Step,
    previous: Option<&Redundancy>,
) -> Result<(), Broken> {
    let is_true = step.condition.as_ref().is_some_and(|c| c.status == ConditionStatus::True);
    if is_true {
        for (x, node) in w.garage.nodes.iter().enumerate().filter(|(_, n)| n.storage && !n.remote) {
            let missing = w.garage.missing(x);
            if missing != 0 {
                return Err(Broken::FalseTrue { node: x, missing });
            }
            let trouble = node.data_full || node.metadata_full;
            let shown = view.core.as_ref().ok().and_then(|c| c.nodes.get(&node.id)).is_some_and(|s| !s.is_up);
            if trouble || shown {
                return Err(Broken::TrueOverTrouble);
            }
        }
        if w.garage.version == GarageVersion::V200 && w.garage.nodes.iter().any(|n| n.storage && n.data_full)
        {
            return Err(Broken::TrueOverTrouble);
        }
    }
    let Some(next) = &step.redundancy else { return Ok(()) };
    check_bounds(next)?;
    let Some(v) = &next.verification else { return Ok(()) };
    if !step.actions.is_empty() {
        if v.trigger.is_none() || v.started_at.is_none() || !is_active(v.phase) {
            return Err(Broken::UnaskedLaunch);
        }
        if w.site.busy.is_some() || w.garage.layout.staged || w.garage.layout.draining_until.is_some() {
            return Err(Broken::LaunchWhilePaused);
        }
    }
    for action in &step.actions {
        let Action::LaunchRepair { node, .. } = action else { return Err(Broken::UnaskedLaunch) };
        let e = v.evidence.as_ref().ok_or(Broken::UnrecordedLaunch)?;
        // The launch is durable before Garage hears of it (P7, P8, P10).
        if e.launches.unwrap_or(0) < 1 || v.current_node_id != Some(*node) || e.worker_baseline.is_none() {
            return Err(Broken::UnrecordedLaunch);
        }
    }
    // Finished nodes go only when a proof restarts, stops, or a node may have lost something.
    if let Some(before) = previous.and_then(|r| r.verification.as_ref())
        && before.started_at == v.started_at
        && v.phase == Phase::Verified
        && before.completed_node_ids.len() > v.completed_node_ids.len()
    {
        return Err(Broken::RolledBack);
    }
    Ok(())
}

fn check_bounds(r: &Redundancy) -> Result<(), Broken> {
    if r.nodes.len() > 256 || r.deferred_nodes.len() > 256 {
        return Err(Broken::OutOfBounds("lists of 256"));
    }
    let Some(e) = r.verification.as_ref().and_then(|v| v.evidence.as_ref()) else { return Ok(()) };
    if e.launches.is_some_and(|n| !(0..=3).contains(&n)) {
        return Err(Broken::OutOfBounds("launches"));
    }
    Ok(())
}

/// Before a launch goes out, with the status that was written for it.
pub fn check_launch(w: &World, node: NodeId, kind: RepairKind) -> Result<(), Broken> {
    let Some(x) = w.garage.nodes.iter().position(|n| n.id == node) else { return Err(Broken::RemoteRepair) };
    if w.garage.nodes[x].remote || !w.garage.nodes[x].storage {
        return Err(Broken::RemoteRepair);
    }
    let v = w.stored.as_ref().and_then(|r| r.verification.as_ref()).ok_or(Broken::UnrecordedLaunch)?;
    let e = v.evidence.as_ref().ok_or(Broken::UnrecordedLaunch)?;
    if v.current_node_id != Some(node) || e.launches.unwrap_or(0) < 1 {
        return Err(Broken::UnrecordedLaunch);
    }
    // Blocks repairs are listed, so nobody's may run where it can be seen.
    let running = w.garage.nodes.iter().enumerate().any(|(y, n)| {
        let listed = n.storage && !n.remote && n.alive == Alive::Up && w.silent != Some(y);
        listed && n.repairs.iter().any(|r| !r.done) && reachable(w, n.id)
    });
    // Our own tables repairs of this proof: one that runs on a node which is there is not left behind.
    let deferred = |y: usize| {
        w.stored.as_ref().is_some_and(|r| r.deferred_nodes.iter().any(|d| d.node_id == w.garage.nodes[y].id))
    };
    let last = w.launches.last().filter(|l| l.node != x && l.kind == RepairKind::Tables);
    let tables = last.is_some_and(|l| {
        let node = &w.garage.nodes[l.node];
        node.alive == Alive::Up && node.syncing() && !deferred(l.node) && node.start_of_sync_is_ours(l.at)
    });
    if running || tables {
        return Err(Broken::TwoRepairs);
    }
    let in_a_row = w.launches.iter().rev().take_while(|l| l.node == x && l.kind == kind).count();
    // A recheck of the same node may follow its own turn; each turn has three.
    if kind == RepairKind::Blocks && in_a_row >= 3 && e.launches.unwrap_or(0) > 3 {
        return Err(Broken::TooManyLaunches);
    }
    if kind == RepairKind::Blocks {
        // P6 over the model: every other node that is there has pushed since it last got something alone.
        let have = w.garage.nodes[x].items;
        let early = w.garage.nodes.iter().enumerate().any(|(y, other)| {
            y != x
                && other.storage
                && !other.remote
                && other.alive == Alive::Up
                && w.garage.linked(x, y)
                && known_missing(w, x, other.items & !have) != 0
                && !w.garage.nodes.iter().any(|n| n.storage && n.alive != Alive::Up)
        });
        if early {
            return Err(Broken::ScanTooEarly);
        }
    }
    Ok(())
}

fn known_missing(w: &World, x: usize, items: u16) -> u16 {
    items & w.garage.missing(x)
}

fn reachable(w: &World, id: NodeId) -> bool {
    let at = w.garage.nodes.iter().position(|n| n.storage && !n.remote && n.alive == Alive::Up);
    let x = w.garage.nodes.iter().position(|n| n.id == id);
    matches!((at, x), (Some(at), Some(x)) if w.garage.linked(at, x))
}

/// After time has passed.
pub fn check_garage(w: &World) -> Result<(), Broken> {
    match w.garage.deleted_by_us.first() {
        Some((x, i)) => Err(Broken::DeletedBlock(*x, *i)),
        None => Ok(()),
    }
}
