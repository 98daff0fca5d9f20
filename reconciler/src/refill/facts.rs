//! From an observation to what a refill decides from.

use holdfast_crds::ids::{NodeId, Pair};
use holdfast_crds::names::{HostPathClaim, annotation, tag};
use holdfast_crds::requests::ReplaceRequest;
use holdfast_crds::status::{NodeLocalService, ServicePhase as Phase, Time};
use kube::ResourceExt as _;

use super::{Facts, Judged, NewProcess, Pins, Write};
use crate::act::{Kind, PatchBuilder, Target};
use crate::digest;
use crate::observe::judge;
use crate::pool::membership::{Member, Members};
use crate::pool::site::Site;
use crate::pool::{gate, identity};
use crate::service::{self, Input, Pairs};

/// Reads what a refill of a pair decides from. `allowed` is admission's verdict on what stands.
pub fn read<'a>(
    input: &Input<'a>,
    pair: &Pair,
    request: Option<&'a ReplaceRequest>,
    previous: Option<&NodeLocalService>,
    allowed: Judged,
    now: Time,
) -> Facts<'a> {
    let kubernetes = &input.observation.kubernetes;
    let unknown = || "the members of the pools are not known".to_owned();
    let mut facts = Facts {
        now,
        pair: pair.clone(),
        request,
        allowed,
        free: digest::other_hands(kubernetes).map_or(Ok(()), |busy| Err(busy.what)),
        garage: &input.observation.garage,
        factor: 0,
        process: Err(unknown()),
        pod_uid: None,
        used_by: None,
        rpc_tag: None,
        pools_managed: input.settings.manage,
        introduce_at: None,
        pins: Err(unknown()),
        dry_run: input.dry_run.clone(),
    };
    let read = service::with_members(input, |site, members, _| {
        facts.factor = site.factor;
        of_pair(input, site, members, previous, &mut facts);
    });
    if let Err(why) = read {
        (facts.process, facts.pins) = (Err(why.clone()), Err(why));
    }
    facts
}

fn of_pair(
    input: &Input<'_>,
    site: &Site,
    members: &Members<'_>,
    previous: Option<&NodeLocalService>,
    facts: &mut Facts<'_>,
) {
    let Some(member) = members.all.get(&facts.pair) else {
        let why = format!("Node {} is not selected by pool {}", facts.pair.node, facts.pair.pool);
        (facts.process, facts.pins) = (Err(why.clone()), Err(why));
        return;
    };
    let live = input.live.filter(|live| live.pair == facts.pair);
    facts.process = proven(site, member, live);
    facts.pod_uid = member.process.as_ref().map(|process| process.incarnation.pod_uid.clone());
    facts.rpc_tag =
        identity::public_address(site, member).map(|address| format!("{}{address}", tag::RPC_ADDRESS));
    if let Ok(core) = &facts.garage.core {
        let others = members.all.values().filter(|other| other.pair != facts.pair);
        facts.introduce_at = others
            .filter_map(|other| other.process.as_ref())
            .find(|process| process.id.is_some_and(|id| judge::is_up(core, id)))
            .map(|process| process.admin);
    }
    let recorded = previous
        .filter(|service| matches!(service.phase, Phase::Applying | Phase::Settling | Phase::RepairingPins))
        .and_then(|service| service.replacement.as_ref()?.new_node_id);
    let new = recorded.or(facts.process.as_ref().ok().map(|process| process.id));
    facts.used_by = new.and_then(|new| used_by(input, member, new));
    facts.pins = match new {
        Some(new) => pins(site, member, live, new),
        None => Err("the new identity is not known".to_owned()),
    };
}

/// R1: the exact current Pod of the current DaemonSet on that Node, running, whose own Admin API answered.
fn proven(site: &Site, member: &Member<'_>, live: Option<&Pairs>) -> Result<NewProcess, String> {
    let pair = &member.pair;
    if !member.is_active(site) {
        return Err(format!("{pair} does not carry the current activation"));
    }
    let Some(pod) = member.pod else { return Err(format!("{pair} has no Pod")) };
    let name = pod.name_any();
    if !gate::is_from_template(member, pod) {
        return Err(format!("Pod {name} of {pair} is of an older template; delete it"));
    }
    let claims = |claim: &HostPathClaim| {
        let paths = member.pool.host_paths();
        paths.iter().all(|path| claim.host_paths().contains(&holdfast_crds::names::clean_path(path)))
    };
    if !member.claim.as_ref().is_some_and(claims) {
        return Err(format!("the HostPath claim of {pair} does not cover the pool's directories"));
    }
    let live =
        live.ok_or_else(|| "its Pods were not read".to_owned())?.pods.as_ref().map_err(Clone::clone)?;
    let [only] = live.as_slice() else {
        return Err(format!("{pair} has {} Pods; wait until it has one", live.len()));
    };
    if only.metadata.uid != pod.metadata.uid || only.metadata.deletion_timestamp.is_some() {
        return Err(format!("the Pod of {pair} is being changed"));
    }
    let Some(process) = &member.process else { return Err(format!("Pod {name} of {pair} does not run")) };
    match process.id {
        Some(id) => Ok(NewProcess { id, rpc: process.rpc }),
        None => Err(format!("Pod {name} of {pair} has not told its identity")),
    }
}

/// Another GarageNode that names the identity anywhere.
fn used_by(input: &Input<'_>, member: &Member<'_>, new: NodeId) -> Option<String> {
    let own = member.record.map(|record| record.name.as_str());
    let nodes = input.observation.kubernetes.garage_nodes.as_ref()?;
    let pinned = |node: &holdfast_crds::node::GarageNode| {
        let annotations = node.metadata.annotations.as_ref()?;
        annotations.get(annotation::node::RECOVERY_PIN)?.parse::<NodeId>().ok()
    };
    nodes
        .iter()
        .find(|(name, node)| {
            Some(name.as_str()) != own && (node.node_id() == Some(new) || pinned(node) == Some(new))
        })
        .map(|(name, _)| name.clone())
}

/// The pair's records, and the writes that move them to an identity.
fn pins(site: &Site, member: &Member<'_>, live: Option<&Pairs>, new: NodeId) -> Result<Pins, String> {
    let pair = &member.pair;
    let record = member.record.ok_or_else(|| format!("{pair} has no GarageNode"))?;
    let node = live.ok_or_else(|| "its Node was not read".to_owned())?.node.as_ref().map_err(Clone::clone)?;
    let node = node.as_ref().ok_or_else(|| format!("Node {} is not there", pair.node))?;
    let claim_key = site.id.host_path_claim_annotation(&pair.pool);
    let identity_key = site.id.identity_annotation(&pair.pool);
    let annotations = node.annotations();
    let mut claim = match annotations.get(&claim_key).map(|text| HostPathClaim::parse(text)) {
        Some(Ok(claim)) => claim,
        Some(Err(error)) => return Err(format!("the HostPath claim of {pair} cannot be read: {error}")),
        // The Node object was made anew: it is claimed again with the identity that it has now.
        None => HostPathClaim::new(&site.id, &pair.pool, member.pool.host_paths()),
    };
    let current = |key: &str| annotations.get(key).map(String::as_str);
    let named = [claim.garage_node_id, current(&identity_key).and_then(|id| id.parse().ok())];
    claim.garage_node_id = Some(new);
    let move_node = PatchBuilder::new()
        .unchanged(&node.uid().unwrap_or_default(), &node.resource_version().unwrap_or_default())
        .ensure_map("annotations", node.metadata.annotations.is_some())
        .set_entry("annotations", &claim_key, current(&claim_key), claim.to_annotation())
        .set_entry("annotations", &identity_key, current(&identity_key), new.to_string());
    let target = Target::namespaced(Kind::GarageNode, &site.id.namespace, &record.name);
    let on_record = || PatchBuilder::new().unchanged(record.uid(), record.resource_version());
    let has_annotations = record.value["metadata"]["annotations"].is_object();
    let move_pin = on_record().ensure_map("annotations", has_annotations).set_entry(
        "annotations",
        annotation::node::RECOVERY_PIN,
        record.annotation(annotation::node::RECOVERY_PIN),
        new.to_string(),
    );
    let move_status = if record.value["status"].is_object() {
        on_record().add(["status", "nodeId"], new.to_string())
    } else {
        on_record().add(["status"], serde_json::json!({ "nodeId": new.to_string() }))
    };
    let write = |target: &Target, status, patch: PatchBuilder| Write {
        target: target.clone(),
        status,
        patch: patch.build(),
    };
    Ok(Pins {
        node: named,
        pin: record.pin(),
        status: record.node_id(),
        move_node: write(&Target::node(pair.node.as_str()), false, move_node),
        move_pin: write(&target, false, move_pin),
        move_status: write(&target, true, move_status),
    })
}
