//! R2 to R4: one version with exactly our two changes, and what must follow before the site can bear another
//! failure.

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_crds::conditions::IdentityReplacedReason as Reason;
use holdfast_crds::ids::{LayoutVersion, NodeId};
use holdfast_crds::status::{NodeLocalService, Replacement, ServicePhase as Phase};

use super::preconditions;
use super::{Facts, RefillStep, Said, no, reappeared};
use crate::act::Action;
use crate::observe::{Core, judge};
use crate::pool::layout::unsettled;

/// A skip that changed nothing yet is asked for again after this many seconds.
const SKIP_AGAIN: i64 = 10;

pub(super) fn applies(facts: &Facts<'_>, old: NodeId, new: NodeId) -> Said {
    no(
        Reason::Applying,
        format!(
            "the identity of {} goes from {} to {} in one layout version",
            facts.pair,
            old.short(),
            new.short()
        ),
    )
}

fn stands(service: &NodeLocalService, said: Said) -> RefillStep {
    RefillStep {
        service: Some(service.clone()),
        condition: Some(said),
        wake_after: Some(Duration::from_secs(2)),
        ..RefillStep::default()
    }
}

/// The phase in which the layout is being applied. What happened is read from the roles (R3).
pub(super) fn applying(facts: &Facts<'_>, service: &NodeLocalService, intent: &Replacement) -> RefillStep {
    let old = intent.old_node_id;
    let (Some(new), Some(base)) = (intent.new_node_id, intent.base_layout_version) else {
        let why = format!(
            "status.nodeLocalService.replacement of {} lacks the new identity or the base version; nothing is done: restore the status, or remove the record",
            facts.pair
        );
        return stands(service, no(Reason::Applying, why));
    };
    let core = match &facts.garage.core {
        Ok(core) => core,
        Err(why) => {
            let why = format!(
                "the identity of {} is being replaced, and Garage Admin API does not answer ({})",
                facts.pair, why.what
            );
            return stands(service, no(Reason::Applying, why));
        }
    };
    let roles = &core.layout.roles;
    match (roles.contains_key(&old), roles.contains_key(&new)) {
        (false, true) => applied(facts, service, core),
        (true, true) => stands(
            service,
            no(
                Reason::BothIdentitiesInLayout,
                format!(
                    "the layout holds {} and {} of {} at once, by another hand: remove the role of {} again; then it goes on",
                    old.short(),
                    new.short(),
                    facts.pair,
                    new.short()
                ),
            ),
        ),
        (false, false) => stands(
            service,
            no(
                Reason::WaitingForLayoutRoles,
                format!(
                    "the layout holds neither {} nor {} of {}: another hand removed the old role; give {} a role by hand, with zone, capacity and tags of the old one",
                    old.short(),
                    new.short(),
                    facts.pair,
                    new.short()
                ),
            ),
        ),
        (true, false) => not_applied(facts, service, intent, core, base),
    }
}

/// Ours, or equal to ours: the new version must be seen by another node than the one that answered (R4).
fn applied(facts: &Facts<'_>, service: &NodeLocalService, core: &Core) -> RefillStep {
    let version = core.layout.version;
    if !seen_by_another(core, version) {
        let why = format!(
            "layout version {version} with the new identity of {} is applied and not yet confirmed by a second node",
            facts.pair
        );
        return stands(service, no(Reason::Applying, why));
    }
    let mut next = service.clone();
    next.phase = Phase::Settling;
    next.phase_started_at = Some(facts.now);
    if let Some(replacement) = &mut next.replacement {
        replacement.layout_version = Some(version);
    }
    let why =
        format!("layout version {version} with the new identity of {} is applied and settles", facts.pair);
    stands(&next, no(Reason::Settling, why))
}

/// A node that acknowledged the version has it; without trackers one version is live everywhere.
fn seen_by_another(core: &Core, version: LayoutVersion) -> bool {
    core.history.trackers.as_ref().is_none_or(|trackers| {
        let other = |id: NodeId| core.answering.is_some_and(|answering| answering != id);
        trackers.iter().any(|(id, tracker)| other(*id) && tracker.ack >= version)
    })
}

/// Whether it is certain that nothing of an intent was staged or applied: a node that is silent may have applied it
/// and died before it told anybody.
fn nothing_was_begun(facts: &Facts<'_>, core: &Core, old: NodeId) -> bool {
    let answered = |id: NodeId| {
        let views = facts.garage.peer_views.as_ref();
        judge::is_up(core, id) && views.is_some_and(|views| matches!(views.get(&id), Some(Ok(_))))
    };
    core.layout.staged.is_empty()
        && core.layout.staged_parameters.is_none()
        && judge::storage_nodes(core).filter(|id| *id != old).all(answered)
}

fn not_applied(
    facts: &Facts<'_>,
    service: &NodeLocalService,
    intent: &Replacement,
    core: &Core,
    base: LayoutVersion,
) -> RefillStep {
    let ready = match preconditions::judge(facts, intent.old_node_id, Some(intent)) {
        Ok(ready) => ready,
        Err((reason, why)) => {
            let why = format!("the identity of {} is not replaced yet: {why}", facts.pair);
            if nothing_was_begun(facts, core, intent.old_node_id) {
                // The next attempt writes an intent of its own.
                let mut next = service.clone();
                next.phase = Phase::Waiting;
                next.phase_started_at = Some(facts.now);
                next.replacement = None;
                return stands(&next, no(reason, why));
            }
            return stands(service, no(reason, why));
        }
    };
    let said = applies(facts, intent.old_node_id, ready.new);
    if ready.base < base {
        let why = format!("the answering node shows layout version {}, and {base} was seen", ready.base);
        return stands(service, no(Reason::WaitingForLayout, why));
    }
    if ready.base > base {
        // Another's version came between: the plan rests on it now, and is written before anything is done (R3).
        let mut next = service.clone();
        if let Some(replacement) = &mut next.replacement {
            replacement.base_layout_version = Some(ready.base);
        }
        return stands(&next, said);
    }
    let mut step = stands(service, said);
    // The same node in every try, whoever answers this pass: a call without an answer may still run there, and one
    // node makes a version once, while two that have not heard of each other make it twice (R3, R4).
    let at = judge::storage_nodes(core).find(|id| *id != intent.old_node_id);
    step.actions.push(Action::UpdateLayout {
        at,
        base,
        changes: ready.changes.clone(),
        staged: ready.changes.clone(),
    });
    step.actions.push(Action::ApplyLayout { at, version: base.next(), staged: ready.changes });
    step
}

/// From here until the history settles one more failed node stops the whole site: settle at once (R4).
pub(super) fn settling(facts: &Facts<'_>, service: &NodeLocalService, intent: &Replacement) -> RefillStep {
    let old = intent.old_node_id;
    let core = match &facts.garage.core {
        Ok(core) => core,
        Err(why) => {
            let why = format!(
                "the layout of {} settles, and Garage Admin API does not answer ({}); do not touch another node",
                facts.pair, why.what
            );
            return stands(service, no(Reason::Settling, why));
        }
    };
    if core.layout.roles.contains_key(&old) {
        return stands(service, reappeared(&facts.pair, old));
    }
    if intent.new_node_id.is_none_or(|new| !core.layout.roles.contains_key(&new)) {
        let why = format!(
            "the layout no longer holds the new identity of {}: another hand removed its role; give it the role again, with zone, capacity and tags of the old one",
            facts.pair
        );
        return stands(service, no(Reason::WaitingForLayoutRoles, why));
    }
    let Some(why) = unsettled(core) else {
        let mut next = service.clone();
        next.phase = Phase::RepairingPins;
        next.phase_started_at = Some(facts.now);
        let why = format!("the layout is settled; the pins of {} move to the new identity", facts.pair);
        let mut step = stands(&next, no(Reason::RepairingPins, why));
        step.wake_after = Some(Duration::from_secs(1));
        return step;
    };
    if let Some(blocked) = blocked(facts, core, old) {
        return stands(
            service,
            no(
                Reason::SettlingBlocked,
                format!(
                    "the replacement of {} cannot settle yet: {blocked}; every layout node but the replaced one must be up, and one more failure stops the site",
                    facts.pair
                ),
            ),
        );
    }
    let mut next = service.clone();
    let said = no(
        Reason::Settling,
        format!("the replacement of {} settles ({why}); do not touch another node", facts.pair),
    );
    if let Err(hand) = &facts.free {
        let why = format!(
            "the replacement of {} settles ({why}), and the dead identity is not skipped while {hand}; do not touch another node",
            facts.pair
        );
        return stands(service, no(Reason::SettlingBlocked, why));
    }
    let asked = intent.skipped_at.is_some_and(|at| facts.now.seconds_since(at) < SKIP_AGAIN);
    if asked || !holds_back(core, old) || core.answering.is_none() {
        return stands(&next, said);
    }
    if let Some(replacement) = &mut next.replacement {
        replacement.skipped_at = Some(facts.now);
    }
    let mut step = stands(&next, said);
    step.actions.push(Action::SkipDeadNodes { at: core.answering, version: core.layout.version });
    step
}

/// Whether the dead identity's acknowledgement is what keeps the old version.
fn holds_back(core: &Core, old: NodeId) -> bool {
    let current = core.layout.version;
    let trackers = core.history.trackers.as_ref();
    trackers.is_some_and(|trackers| trackers.get(&old).is_some_and(|tracker| tracker.ack < current))
}

/// R4: the only layout node of the live versions that is down, in the view of every living node, must be the
/// removed identity.
fn blocked(facts: &Facts<'_>, core: &Core, old: NodeId) -> Option<String> {
    let trackers = core.history.trackers.iter().flat_map(|trackers| trackers.keys());
    let live: BTreeSet<NodeId> =
        core.layout.roles.keys().chain(trackers).copied().filter(|id| *id != old).collect();
    if let Some(down) = live.iter().find(|id| !judge::is_up(core, **id)) {
        return Some(format!("node {} is down as well", down.short()));
    }
    let peers = facts.garage.peer_views.iter().flat_map(|views| views.values()).flatten();
    if judge::is_up(core, old) || peers.into_iter().any(|view| view.up.contains(&old)) {
        return Some(format!("the replaced identity {} is seen up", old.short()));
    }
    let viewers = judge::storage_nodes(core);
    let missed = judge::peers_missed(facts.garage.peer_views.as_ref(), viewers, &live);
    missed.first().map(ToString::to_string)
}
