//! The layout: the first version once `factor` members are up, later members one settled version at a
//! time, and never a removal (section 13).

use std::collections::BTreeSet;

use holdfast_crds::conditions::PoolsReason;
use holdfast_crds::ids::NodeId;
use holdfast_crds::names::tag;

use super::Input;
use super::condition::Problem;
use super::identity;
use super::membership::{Member, Members};
use super::site::Site;
use super::spec::ClusterView;
use crate::act::{Action, same_change};
use crate::observe::{Core, Role, StagedChange, judge};

/// The role that a member should have.
fn desired(site: &Site, member: &Member<'_>) -> Option<Role> {
    let address = identity::public_address(site, member);
    Some(Role {
        zone: identity::zone(site, member)?,
        capacity: Some(member.pool.capacity),
        tags: site.id.role_tags(
            &member.pair.pool,
            &member.pair.node,
            site.tags.iter().map(String::as_str),
            address.as_deref(),
        ),
    })
}

/// Whether a role is what it should be. Tags are a multiset; an `rpc-address:` that we would not write is
/// tolerated, a role that lacks only the uid tag is left as it is, and old roles may carry the bare
/// cluster name first (`compat.md` 1).
fn is_as_desired(site: &Site, role: &Role, wanted: &Role) -> bool {
    let strip = |role: &Role, keep_address: bool| {
        let mut tags: Vec<String> = role
            .tags
            .iter()
            .filter(|t| {
                (keep_address || !t.starts_with(tag::RPC_ADDRESS)) && !t.starts_with(tag::CLUSTER_UID)
            })
            .map(|t| if *t == site.id.name { site.id.cluster_tag() } else { t.clone() })
            .collect();
        tags.sort();
        tags
    };
    let keep = wanted.tags.iter().any(|t| t.starts_with(tag::RPC_ADDRESS));
    let uid_of = |role: &Role| role.tags.iter().find(|t| t.starts_with(tag::CLUSTER_UID)).cloned();
    let same_uid = uid_of(role).is_none_or(|uid| Some(uid) == uid_of(wanted));
    role.zone == wanted.zone
        && role.capacity == wanted.capacity
        && same_uid
        && strip(role, keep) == strip(wanted, keep)
}

/// Why the layout is not settled (O5), apart from what is staged; `None`: it is.
pub fn unsettled(core: &Core) -> Option<String> {
    let mut unstaged = core.clone();
    unstaged.layout.staged.clear();
    unstaged.layout.staged_parameters = None;
    judge::settled(&unstaged).err().map(|why| why.to_string())
}

/// Stages and applies what the layout lacks.
pub fn plan(
    site: &Site,
    members: &Members<'_>,
    input: &Input<'_>,
    cluster: &ClusterView,
    no_other_hand: bool,
    actions: &mut Vec<Action>,
    problems: &mut Vec<Problem>,
) {
    let Ok(core) = &input.observation.garage.core else { return };
    if members.stopped || !no_other_hand {
        return;
    }
    // Every change that may be ours: the roles of all members whose identity is persisted.
    let mut ours: Vec<(&Member<'_>, StagedChange)> = Vec::new();
    for member in members.all.values().filter(|member| !member.skipped) {
        let Some(id) = member.identity() else { continue };
        // Persisted in a pass of its own before the first layout write (`compat.md` 4).
        if member.record.and_then(super::record::Record::node_id) != Some(id) {
            continue;
        }
        match desired(site, member) {
            Some(role) => ours.push((member, StagedChange { id, role: Some(role) })),
            None => problems.push(Problem::new(
                PoolsReason::WaitingForMembers,
                format!(
                    "Node {} lacks the label {} that spec.zoneFrom names; set it",
                    member.pair.node,
                    site.zone_from.as_deref().unwrap_or_default()
                ),
            )),
        }
    }
    let due: Vec<&StagedChange> = ours
        .iter()
        .filter(|(_, change)| {
            let role = core.layout.roles.get(&change.id);
            !matches!((role, &change.role), (Some(role), Some(wanted)) if is_as_desired(site, role, wanted))
        })
        .map(|(_, change)| change)
        .collect();
    let is_ours = |have: &StagedChange| ours.iter().any(|(_, change)| same_change(change, have));
    let foreign: Vec<String> =
        core.layout.staged.iter().filter(|have| !is_ours(have)).map(describe).collect();
    let staged_in_vain =
        core.layout.staged_parameters.is_none() && judge::effective_changes(core).next().is_none();
    if due.is_empty() && staged_in_vain {
        return;
    }
    // Before what is staged is judged: a replacement stages its own two changes.
    if let Some(service) = cluster.service_in_progress() {
        if !due.is_empty() {
            problems.push(Problem::new(
                PoolsReason::WaitingForReplacement,
                format!("the layout is not changed while {service} is in progress"),
            ));
        }
        return;
    }
    if !foreign.is_empty() || core.layout.staged_parameters.is_some() {
        let mut told = foreign;
        told.extend(core.layout.staged_parameters.is_some().then(|| "layout parameters".to_owned()));
        problems.push(Problem::new(
            PoolsReason::WaitingForLayoutSync,
            format!(
                "layout changes of another hand are staged ({}); they are left alone: apply or revert them",
                told.join(", ")
            ),
        ));
        return;
    }
    if cluster.layout_is_manual() {
        problems.push(Problem::new(
            PoolsReason::WaitingForLayoutSync,
            "members are not in the layout and the layout policy is Manual: apply the layout by hand"
                .to_owned(),
        ));
        return;
    }
    if members.conflict {
        return;
    }
    let is_up = |id: &NodeId| core.nodes.get(id).is_some_and(|node| node.is_up);
    let storage: BTreeSet<&NodeId> =
        core.layout.roles.iter().filter(|(_, role)| role.is_storage()).map(|(id, _)| id).collect();

    let change: Vec<StagedChange> = if storage.is_empty() {
        let up: Vec<StagedChange> =
            due.iter().filter(|change| is_up(&change.id)).map(|change| (*change).clone()).collect();
        // Roles that are staged already count only while their members are up: the first layout is not
        // made of nodes that cannot take part.
        if up.len() < site.factor {
            problems.push(Problem::new(
                PoolsReason::WaitingForMembers,
                format!("{} of the {} members that the first layout needs are up", up.len(), site.factor),
            ));
            return;
        }
        up
    } else {
        if let Some(why) = unsettled(core) {
            problems.push(Problem::new(PoolsReason::WaitingForLayoutSync, why));
            return;
        }
        if let Some(down) = storage.iter().find(|id| !is_up(id)) {
            problems.push(Problem::new(
                PoolsReason::WaitingForMembers,
                format!("the layout is not changed while storage node {} is down", down.short()),
            ));
            return;
        }
        if core.layout.staged.is_empty() {
            let new =
                due.iter().find(|change| !core.layout.roles.contains_key(&change.id) && is_up(&change.id));
            match new {
                Some(change) => vec![(*change).clone()],
                // Zones, capacities and tags of members that are in the layout change together.
                None => due
                    .iter()
                    .filter(|change| core.layout.roles.contains_key(&change.id))
                    .map(|change| (*change).clone())
                    .collect(),
            }
        } else {
            Vec::new()
        }
    };

    // The same node in every try, whoever answers this pass (R3): a call without an answer may still run there.
    let own = ours.iter().map(|(_, change)| change.id).filter(|id| is_up(id));
    let at = own.filter(|id| storage.is_empty() || storage.contains(id)).min().or(core.answering);
    let mut staged = core.layout.staged.clone();
    let missing: Vec<StagedChange> =
        change.into_iter().filter(|new| !staged.iter().any(|have| same_change(new, have))).collect();
    staged.extend(missing.iter().cloned());
    if staged.is_empty() {
        return;
    }
    if !missing.is_empty() {
        actions.push(Action::UpdateLayout {
            at,
            base: core.layout.version,
            changes: missing,
            staged: staged.clone(),
        });
    }
    actions.push(Action::ApplyLayout { at, version: core.layout.version.next(), staged });
}

fn describe(change: &StagedChange) -> String {
    match &change.role {
        Some(_) => format!("a role for {}", change.id.short()),
        None => format!("the removal of {}", change.id.short()),
    }
}
