//! From an observation to what a hold decides from.

use std::collections::BTreeSet;

use holdfast_crds::conditions::{ConditionStatus, FullyReplicatedReason};
use holdfast_crds::ids::{NodeId, Pair};
use holdfast_crds::names::annotation;
use holdfast_crds::status::{NodeLocalService, Time};
use holdfast_crds::validate::{self, ClusterView, Fact, Lookup};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;

use super::{Input, Pairs};
use crate::digest;
use crate::hold::{Facts, Judged, NodeFacts, PairPod, Request};
use crate::observe::{Core, GarageView, judge};
use crate::pool::gate;
use crate::pool::membership::Member;
use crate::pool::site::Site;
use crate::proof::is_active;

/// Kubernetes' own statement that a machine is off.
const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

pub(super) fn of_hold(
    input: &Input<'_>,
    pair: &Pair,
    service: &NodeLocalService,
    request: Request,
    now: Time,
) -> Facts {
    let kubernetes = &input.observation.kubernetes;
    let garage = &input.observation.garage;
    let cluster = &kubernetes.cluster;
    let label_key = cluster.id().map(|id| id.activation_label(&pair.pool)).unwrap_or_default();
    let live = input.live.filter(|live| live.pair == *pair);
    let mut facts = Facts {
        now,
        pair: pair.clone(),
        namespace: kubernetes.cluster.namespace().unwrap_or_default(),
        request,
        allowed: allowed(input),
        free: digest::other_hands(kubernetes).map_or(Ok(()), |busy| Err(busy.what)),
        observed: match &garage.core {
            Ok(_) => Ok(()),
            Err(why) => Err(format!("Garage Admin API did not answer ({})", why.what)),
        },
        health: unasked(),
        layout: unasked(),
        members: Err("the members of the pools are not known".to_owned()),
        room: unasked(),
        proof: proof(input),
        rest: Err("the members of the pools are not known".to_owned()),
        node: node(live, &label_key),
        label_key,
        token: None,
        pools_managed: input.settings.manage,
        pods: pods(live),
        identity: service.garage_node_id,
        is_up: None,
        is_back: unasked(),
        other_identity: None,
    };
    with_members(input, &mut facts);
    if let Ok(core) = &garage.core {
        let storage: BTreeSet<NodeId> = judge::storage_nodes(core).collect();
        facts.health = health(garage, core, &storage, facts.identity);
        facts.layout = judge::settled(core).map_err(|why| why.to_string());
        facts.room = room(core, &storage, facts.identity);
        if let Some(id) = facts.identity {
            facts.is_up = Some(seen_up(garage, core, id));
            facts.is_back = is_back(garage, core, &storage, id);
            let rest: BTreeSet<NodeId> = storage.iter().copied().filter(|other| *other != id).collect();
            facts.rest = facts.rest.and_then(|()| keeps_quorum(garage, core, &rest));
        }
    }
    facts
}

/// Whether the activation label is back on the pair's Node (H6): until then the hold puts it there.
pub(super) fn is_active_again(input: &Input<'_>, pair: &Pair) -> bool {
    let Some(id) = input.observation.kubernetes.cluster.id() else { return false };
    let live = input.live.filter(|live| live.pair == *pair);
    node(live, &id.activation_label(&pair.pool)).is_ok_and(|node| node.label.is_some())
}

fn unasked() -> Judged {
    Err("Garage was not observed".to_owned())
}

/// V1 to V9 on what stands, by the rules of admission themselves.
pub(super) fn allowed(input: &Input<'_>) -> Judged {
    let stored = input.stored.to_string();
    let view = ClusterView::from_json("the GarageCluster", &stored).map_err(|error| error.to_string())?;
    let members = match &input.observation.kubernetes.garage_nodes {
        None => Fact::Unknown("the GarageNodes could not be read".into()),
        Some(nodes) => Fact::Known(
            nodes
                .values()
                .filter_map(|node| {
                    Some(validate::Member {
                        pool: node.spec.node_local_pool_name.clone()?,
                        kubernetes_node: node.spec.kubernetes_node_name.clone()?,
                        node_id: node.node_id().map(|id| id.to_string()),
                        pin: node
                            .metadata
                            .annotations
                            .as_ref()
                            .and_then(|all| all.get(annotation::node::RECOVERY_PIN))
                            .filter(|pin| !pin.is_empty())
                            .cloned(),
                    })
                })
                .collect(),
        ),
    };
    let lookup = Lookup { members, ..Lookup::default() };
    let verdict = validate::validate(&validate::standing(&view), &lookup);
    verdict.refusal.map_or(Ok(()), |refusal| Err(refusal.message))
}

/// H1: True/Verified, for the layout that this pass saw.
fn proof(input: &Input<'_>) -> Judged {
    let stands = input.proof.condition.as_ref().is_some_and(|condition| {
        condition.status == ConditionStatus::True && condition.reason == FullyReplicatedReason::Verified
    });
    let proven = input
        .proof
        .redundancy
        .as_ref()
        .and_then(|redundancy| redundancy.verification.as_ref())
        .and_then(|verification| verification.layout_version);
    let current = input.observation.garage.core.as_ref().ok().map(|core| core.layout.version);
    if stands && proven.is_some() && proven == current {
        return Ok(());
    }
    if input
        .proof
        .redundancy
        .as_ref()
        .and_then(|r| r.verification.as_ref())
        .is_some_and(|v| is_active(v.phase))
    {
        return Err(
            "FullyReplicated is not True/Verified for the current layout; its proof runs: wait for it, \
                    since a new request would begin it again"
                .to_owned(),
        );
    }
    Err(format!(
        "FullyReplicated is not True/Verified for the current layout; set {} to a new value and wait for it",
        annotation::cluster::VERIFY_REDUNDANCY
    ))
}

fn node(live: Option<&Pairs>, key: &str) -> Result<NodeFacts, String> {
    let live = live.ok_or_else(|| "the Node was not read".to_owned())?;
    Ok(live.node.clone()?.map(|node| node_facts(&node, key)).unwrap_or_default())
}

fn node_facts(node: &Node, key: &str) -> NodeFacts {
    let ready = node.status.iter().flat_map(|s| s.conditions.iter().flatten()).find(|c| c.type_ == "Ready");
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    NodeFacts {
        uid: node.uid().unwrap_or_default(),
        resource_version: node.resource_version().unwrap_or_default(),
        label: node.labels().get(key).cloned(),
        has_labels: node.metadata.labels.is_some(),
        ready: ready.is_some_and(|condition| condition.status == "True"),
        ready_since: ready.and_then(|c| c.last_transition_time.as_ref()).map(|t| Time::new(t.0)),
        heartbeat: ready.and_then(|condition| condition.last_heartbeat_time.as_ref()).map(|t| Time::new(t.0)),
        out_of_service: taints.any(|taint| taint.key == OUT_OF_SERVICE_TAINT),
    }
}

fn pods(live: Option<&Pairs>) -> Result<Vec<PairPod>, String> {
    let pods =
        live.ok_or_else(|| "the Pods were not read".to_owned())?.pods.as_ref().map_err(Clone::clone)?;
    let unscheduled = |pod: &Pod| {
        pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_none_or(String::is_empty))
    };
    let pair_pod = |pod: &Pod| PairPod {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        gated: gate::is_gated(pod) && unscheduled(pod),
    };
    Ok(pods.iter().map(pair_pod).collect())
}

/// What the pools' membership knows of the pair and of the others.
fn with_members(input: &Input<'_>, facts: &mut Facts) {
    let read = super::with_members(input, |site, members, problems| {
        if let Some(member) = members.all.get(&facts.pair) {
            facts.token.clone_from(&member.token);
            facts.identity = facts.identity.or(member.recorded).or_else(|| member.record?.node_id());
            let answered = member.process.as_ref().and_then(|process| process.id);
            facts.other_identity =
                answered.filter(|id| facts.identity.is_some_and(|recorded| recorded != *id));
        }
        let core = input.observation.garage.core.as_ref().ok();
        let mut others = members.all.values().filter(|member| member.pair != facts.pair);
        let wrong = others.find_map(|member| wrong_with(site, member, core));
        facts.rest = wrong.clone().map_or(Ok(()), Err);
        facts.members = if members.stopped || members.conflict {
            let why = problems.first().map(|problem| problem.message.clone());
            Err(why.unwrap_or_else(|| "the members of the pools contradict each other".to_owned()))
        } else if !members.all.contains_key(&facts.pair) {
            Err(format!("Node {} is not selected by pool {}", facts.pair.node, facts.pair.pool))
        } else {
            wrong.map_or(Ok(()), Err)
        };
    });
    if let Err(why) = read {
        (facts.members, facts.rest) = (Err(why.clone()), Err(why));
    }
}

fn wrong_with(site: &Site, member: &Member<'_>, core: Option<&Core>) -> Option<String> {
    let pair = &member.pair;
    if !member.is_active(site) {
        return Some(format!("{pair} does not carry the current activation"));
    }
    let Some(id) = member.identity() else {
        return Some(format!("{pair} does not run with the identity on record"));
    };
    let core = core?;
    if !judge::is_up(core, id) {
        return Some(format!("{pair} ({}) is down", id.short()));
    }
    (!core.layout.roles.contains_key(&id)).then(|| format!("{pair} ({}) is not in the layout", id.short()))
}

/// H1: the site is whole, in the view of every storage node.
fn health(garage: &GarageView, core: &Core, storage: &BTreeSet<NodeId>, own: Option<NodeId>) -> Judged {
    if let Some(id) = own.filter(|id| storage.contains(id) && !judge::is_up(core, *id)) {
        return Err(format!(
            "the member itself ({}) is down already; if its disk died, no hold is needed: swap it and replace its identity",
            id.short()
        ));
    }
    judge::all_healthy(garage.peer_views.as_ref(), storage, storage).map_err(|missed| missed.to_string())?;
    if judge::is_healthy(&core.health) {
        return Ok(());
    }
    let health = &core.health;
    Err(format!(
        "Garage is {}: {} of {} storage nodes are up, {} of {} partitions are complete",
        health.status,
        health.storage_nodes_up,
        health.storage_nodes,
        health.partitions_all_ok,
        health.partitions
    ))
}

fn room(core: &Core, storage: &BTreeSet<NodeId>, own: Option<NodeId>) -> Judged {
    for id in storage.iter().filter(|id| Some(**id) != own) {
        let state = core.nodes.get(id).map(judge::room);
        match state {
            Some(judge::Room::Enough) => {}
            Some(judge::Room::None(disk)) => {
                return Err(format!("storage node {} has no room in its {disk}", id.short()));
            }
            Some(judge::Room::Unknown(disk)) => {
                return Err(format!("storage node {} does not show the room in its {disk}", id.short()));
            }
            None => return Err(format!("storage node {} shows nothing of its room", id.short())),
        }
    }
    Ok(())
}

/// Whether anybody sees it up: a returning process is noticed by one node before the others.
fn seen_up(garage: &GarageView, core: &Core, id: NodeId) -> bool {
    let by_peers = garage.peer_views.iter().flat_map(|views| views.values()).flatten();
    judge::is_up(core, id) || by_peers.into_iter().any(|view| view.up.contains(&id))
}

fn is_back(garage: &GarageView, core: &Core, storage: &BTreeSet<NodeId>, id: NodeId) -> Judged {
    if !core.layout.roles.contains_key(&id) {
        return Err(format!("its identity {} has no role in the layout", id.short()));
    }
    let everybody = BTreeSet::from([id]);
    let missed = judge::peers_missed(garage.peer_views.as_ref(), storage.iter().copied(), &everybody);
    missed.first().map_or(Ok(()), |missed| Err(missed.to_string()))
}

/// The live part of H1 without the member: the others see each other, and every partition has its quorum.
fn keeps_quorum(garage: &GarageView, core: &Core, rest: &BTreeSet<NodeId>) -> Judged {
    let missed = judge::peers_missed(garage.peer_views.as_ref(), rest.iter().copied(), rest);
    if let Some(missed) = missed.first() {
        return Err(missed.to_string());
    }
    let views = garage.peer_views.iter().flat_map(|views| views.values()).flatten().map(|view| &view.health);
    let short = views.chain([&core.health]).find(|health| health.partitions_quorum != health.partitions);
    short.map_or(Ok(()), |health| {
        Err(format!(
            "only {} of {} partitions have their write quorum",
            health.partitions_quorum, health.partitions
        ))
    })
}
