//! R1, each with a reason of its own, in the order in which a person can mend them.

use std::collections::BTreeSet;

use holdfast_crds::conditions::IdentityReplacedReason as Reason;
use holdfast_crds::ids::{LayoutVersion, NodeId};
use holdfast_crds::names::tag;
use holdfast_crds::status::Replacement;

use super::{Facts, Waits};
use crate::act::is_exactly_staged;
use crate::observe::{Core, GarageView, Role, StagedChange, judge};
use crate::pool::layout::unsettled;

/// Everything holds.
pub(super) struct Ready {
    /// The new identity.
    pub(super) new: NodeId,
    /// The version that the decision rests on.
    pub(super) base: LayoutVersion,
    /// What is to be staged: the new identity with the old one's role, and the removal of the old one (R2).
    pub(super) changes: Vec<StagedChange>,
}

/// The changes of R2. An `rpc-address:` tag is the dead Pod's: dropped, or the new one where there is one.
pub(super) fn changes(old: NodeId, role: &Role, new: NodeId, rpc_tag: Option<&str>) -> Vec<StagedChange> {
    let mut role = role.clone();
    role.tags.retain(|have| !have.starts_with(tag::RPC_ADDRESS));
    role.tags.extend(rpc_tag.map(str::to_owned));
    vec![StagedChange { id: new, role: Some(role) }, StagedChange { id: old, role: None }]
}

/// R1. `intent` is what was recorded: from then on admission's rules are not asked again, since V7 itself
/// forbids to change what stands, and the process must be the recorded one.
pub(super) fn judge(facts: &Facts<'_>, old: NodeId, intent: Option<&Replacement>) -> Result<Ready, Waits> {
    if intent.is_none() {
        facts.allowed.clone().map_err(|why| (Reason::Refused, why))?;
    }
    facts.free.clone().map_err(|why| (Reason::WaitingForOtherOperation, why))?;
    let core = match &facts.garage.core {
        Ok(core) => core,
        Err(why) => {
            return Err((
                Reason::WaitingForQuorum,
                format!("Garage Admin API did not answer ({})", why.what),
            ));
        }
    };
    let role = old_role(facts, core, old)?;
    let new = new_process(facts, old, intent)?;
    if core.layout.roles.contains_key(&new) {
        return Err((
            Reason::BothIdentitiesInLayout,
            format!(
                "the layout holds the old identity {} and the new one {} at once, by another hand; with the old one dead that has to be mended by hand: remove the role of {} again",
                old.short(),
                new.short(),
                new.short()
            ),
        ));
    }
    counts(facts, core, old)?;
    quorum(facts.garage, core, old)?;
    if let Some(why) = unsettled(core) {
        return Err((Reason::WaitingForLayout, why));
    }
    let changes = changes(old, role, new, facts.rpc_tag.as_deref());
    staging(core, &changes)?;
    peers(facts.garage, core, old, new)?;
    if let Some(other) = &facts.used_by {
        return Err((
            Reason::IdentityInUse,
            format!("the new identity {} belongs to GarageNode {other} (was a disk copied?)", new.short()),
        ));
    }
    room(core, new, role)?;
    Ok(Ready { new, base: core.layout.version, changes })
}

/// R3: the swap is in the layout although no record says so: an intent whose answer and record were lost, or a person
/// who applied it by hand. What must follow is the same.
pub(super) fn applied_already(facts: &Facts<'_>, old: NodeId) -> Option<Replacement> {
    if facts.allowed.is_err() || facts.free.is_err() || facts.used_by.is_some() {
        return None;
    }
    let core = facts.garage.core.as_ref().ok()?;
    let new = facts.process.as_ref().ok()?.id;
    let role = core.layout.roles.get(&new).filter(|role| role.is_storage() && is_of_pair(facts, role))?;
    if new == old || core.layout.roles.contains_key(&old) || role.capacity.is_none() {
        return None;
    }
    Some(Replacement {
        old_node_id: old,
        new_node_id: Some(new),
        base_layout_version: None,
        layout_version: Some(core.layout.version),
        skipped_at: None,
        completed_at: None,
    })
}

fn is_of_pair(facts: &Facts<'_>, role: &Role) -> bool {
    let pool = format!("{}{}", tag::NODE_LOCAL_POOL, facts.pair.pool);
    let node = format!("{}{}", tag::KUBERNETES_NODE, facts.pair.node);
    role.tags.contains(&pool) && role.tags.contains(&node)
}

/// The old identity holds the pair's role, and nobody sees it up.
fn old_role<'a>(facts: &Facts<'_>, core: &'a Core, old: NodeId) -> Result<&'a Role, Waits> {
    let lacks = |what: String| Err((Reason::WaitingForOldIdentity, what));
    let Some(role) = core.layout.roles.get(&old).filter(|role| role.is_storage()) else {
        return lacks(format!("the old identity {} has no storage role in the layout", old.short()));
    };
    if !is_of_pair(facts, role) {
        return lacks(format!("the role of {} is not tagged as the one of {}", old.short(), facts.pair));
    }
    let peers = facts.garage.peer_views.iter().flat_map(|views| views.values()).flatten();
    if judge::is_up(core, old) || peers.into_iter().any(|view| view.up.contains(&old)) {
        return lacks(format!(
            "the old identity {} is still seen up; a member that runs is not replaced",
            old.short()
        ));
    }
    Ok(role)
}

fn new_process(facts: &Facts<'_>, old: NodeId, intent: Option<&Replacement>) -> Result<NodeId, Waits> {
    let lacks = |what: String| Err((Reason::WaitingForNewProcess, what));
    let process = match &facts.process {
        Ok(process) => process,
        Err(why) => return lacks(why.clone()),
    };
    if process.id == old {
        return lacks(format!(
            "the process of {} still answers with the old identity {}: its disk was not replaced, and nothing has to be done",
            facts.pair,
            old.short()
        ));
    }
    let staged = facts.garage.core.as_ref().is_ok_and(|core| !core.layout.staged.is_empty());
    match intent.and_then(|intent| intent.new_node_id) {
        Some(recorded) if recorded != process.id => lacks(format!(
            "the process of {} answers with {} now and not with the recorded {}{}",
            facts.pair,
            process.id.short(),
            recorded.short(),
            if staged { "; revert the staged layout changes, then it is planned anew" } else { "" },
        )),
        _ => Ok(process.id),
    }
}

/// Exactly `factor` storage roles, and all of them but the old one up.
fn counts(facts: &Facts<'_>, core: &Core, old: NodeId) -> Result<(), Waits> {
    let storage: BTreeSet<NodeId> = judge::storage_nodes(core).collect();
    if storage.len() != facts.factor {
        return Err((
            Reason::WaitingForLayoutRoles,
            format!(
                "the layout has {} storage roles and replication.factor is {}; a site with more nodes than that drains the dead one instead",
                storage.len(),
                facts.factor
            ),
        ));
    }
    if let Some(down) = storage.iter().find(|id| **id != old && !judge::is_up(core, **id)) {
        return Err((Reason::WaitingForQuorum, format!("storage node {} is down too", down.short())));
    }
    let up = usize::try_from(core.health.storage_nodes_up).unwrap_or(usize::MAX);
    if up + 1 != facts.factor {
        return Err((
            Reason::WaitingForQuorum,
            format!("Garage counts {up} storage nodes up, and {} are needed", facts.factor.saturating_sub(1)),
        ));
    }
    Ok(())
}

/// Every living storage node sees every other, and every partition has its quorum in each of their views (O8).
fn quorum(garage: &GarageView, core: &Core, old: NodeId) -> Result<(), Waits> {
    let living: BTreeSet<NodeId> = judge::storage_nodes(core).filter(|id| *id != old).collect();
    let lacks = |what: String| Err((Reason::WaitingForQuorum, what));
    let views = garage.peer_views.as_ref();
    if let Some(missed) = judge::peers_missed(views, living.iter().copied(), &living).first() {
        return lacks(missed.to_string());
    }
    let own = views.iter().flat_map(|views| living.iter().filter_map(|id| views.get(id)?.as_ref().ok()));
    let short = own
        .map(|view| &view.health)
        .chain([&core.health])
        .find(|health| health.partitions == 0 || health.partitions_quorum != health.partitions);
    short.map_or(Ok(()), |health| {
        lacks(format!(
            "only {} of {} partitions have their quorum",
            health.partitions_quorum, health.partitions
        ))
    })
}

/// Staging is empty, or exactly ours (R3).
fn staging(core: &Core, ours: &[StagedChange]) -> Result<(), Waits> {
    let layout = &core.layout;
    if (layout.staged.is_empty() && layout.staged_parameters.is_none()) || is_exactly_staged(layout, ours) {
        return Ok(());
    }
    let told: Vec<String> = layout
        .staged
        .iter()
        .map(|change| match &change.role {
            Some(_) => format!("a role for {}", change.id.short()),
            None => format!("the removal of {}", change.id.short()),
        })
        .chain(layout.staged_parameters.is_some().then(|| "layout parameters".to_owned()))
        .collect();
    Err((
        Reason::ForeignStagedChanges,
        format!("changes of another hand are staged ({}); apply or revert them", told.join(", ")),
    ))
}

/// Every living storage node sees the new identity up.
fn peers(garage: &GarageView, core: &Core, old: NodeId, new: NodeId) -> Result<(), Waits> {
    let lacks = |what: String| Err((Reason::WaitingForPeers, what));
    if !judge::is_up(core, new) {
        return lacks(format!("its peers do not see the new identity {} up", new.short()));
    }
    let living = judge::storage_nodes(core).filter(|id| *id != old);
    let missed = judge::peers_missed(garage.peer_views.as_ref(), living, &BTreeSet::from([new]));
    missed.first().map_or(Ok(()), |missed| lacks(missed.to_string()))
}

/// The new disks are there and hold what the role promises.
fn room(core: &Core, new: NodeId, role: &Role) -> Result<(), Waits> {
    let lacks = |what: String| Err((Reason::WaitingForRoom, what));
    let Some(state) = core.nodes.get(&new) else {
        return lacks(format!("the new identity {} shows nothing of its disks", new.short()));
    };
    match judge::room(state) {
        judge::Room::Enough => {}
        judge::Room::None(disk) => {
            return lacks(format!("the new identity {} has no room in its {disk}", new.short()));
        }
        judge::Room::Unknown(disk) => {
            return lacks(format!("the new identity {} does not show the room in its {disk}", new.short()));
        }
    }
    let total = state.data_partition.map_or(0, |partition| partition.total);
    let promised = role.capacity.unwrap_or(0);
    if total < promised {
        return lacks(format!(
            "the new data disk has {total} bytes and the role promises {promised}: is the right disk mounted?"
        ));
    }
    Ok(())
}
