//! Whose disk it is: the identity that a process answers with, and the records of it (`compat.md` 2 and 4).

use holdfast_crds::ids::{NodeId, Pair};
use holdfast_crds::names::{self, annotation, label, tag};
use holdfast_crds::status::{ServiceOperation, ServicePhase};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::compare;
use super::membership::Member;
use super::render::labels;
use super::site::Site;
use super::{Incarnation, Input, Memory};
use crate::act::{Action, Kind, Object, PatchBuilder, Target};
use crate::observe::KubernetesView;

/// The run of a Pod's `garage` process; `None` while it does not run or has no address.
pub fn incarnation(pod: &Pod) -> Option<Incarnation> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = pod.status.as_ref()?;
    let container =
        status.container_statuses.iter().flatten().find(|container| container.name == "garage")?;
    container.state.as_ref()?.running.as_ref()?;
    Some(Incarnation {
        pod_uid: pod.metadata.uid.clone()?,
        restarts: container.restart_count,
        address: status.pod_ip.as_deref()?.parse().ok()?,
    })
}

/// The Pods whose process was not asked for its identity yet, with the run to file the answer under.
/// In steady state there are none, so that the calls of a pass do not grow with the nodes (O1).
pub fn unread<'a>(kubernetes: &'a KubernetesView, memory: &Memory) -> Vec<(&'a Pod, Incarnation)> {
    kubernetes
        .pods
        .iter()
        .filter_map(|pod| incarnation(pod).map(|run| (pod.as_ref(), run)))
        .filter(|(_, run)| !memory.identities.contains_key(run))
        .collect()
}

/// Drops what is remembered of runs that are over.
pub fn forget(kubernetes: &KubernetesView, memory: &mut Memory) {
    let runs: std::collections::BTreeSet<Incarnation> =
        kubernetes.pods.iter().filter_map(|pod| incarnation(pod)).collect();
    memory.identities.retain(|run, _| runs.contains(run));
    memory.variables.retain(|run, _| runs.contains(run));
}

/// The pair whose pins a refill is moving just now, with the old and the new identity (R4).
pub fn replacement(input: &Input<'_>) -> Option<(Pair, NodeId, Option<NodeId>)> {
    let status = input.observation.kubernetes.cluster.status.as_ref()?;
    let service = status.node_local_service.as_ref()?;
    let moving = matches!(
        service.phase,
        ServicePhase::Applying | ServicePhase::Settling | ServicePhase::RepairingPins
    );
    if service.operation != ServiceOperation::ReplaceIdentity || !moving {
        return None;
    }
    let replacement = service.replacement.as_ref()?;
    let pair = Pair { pool: service.pool.parse().ok()?, node: service.kubernetes_node.parse().ok()? };
    Some((pair, replacement.old_node_id, replacement.new_node_id))
}

/// The identity of a replacement that holds the role now: what a Node that is made anew meanwhile is claimed for.
pub fn of_role(input: &Input<'_>) -> Option<NodeId> {
    let (_, from, to) = replacement(input)?;
    let roles = &input.observation.garage.core.as_ref().ok()?.layout.roles;
    [Some(from), to].into_iter().flatten().find(|id| roles.contains_key(id))
}

/// Everything that says which identity the pair has, and what says so.
pub fn known(site: &Site, member: &Member<'_>, input: &Input<'_>) -> Vec<(&'static str, NodeId)> {
    let record = member.record;
    let mut all: Vec<(&'static str, NodeId)> = [
        ("identity annotation", member.identity_annotation),
        ("HostPath claim", member.claim.as_ref().and_then(|claim| claim.garage_node_id)),
        ("recovery pin", record.and_then(super::record::Record::pin)),
        (
            "status.nodeId",
            record.filter(|record| record.in_layout()).and_then(super::record::Record::node_id),
        ),
    ]
    .into_iter()
    .filter_map(|(what, id)| id.map(|id| (what, id)))
    .collect();
    if all.is_empty() {
        all.extend(role_of_pair(site, member, input).map(|id| ("layout role", id)));
    }
    all
}

/// The committed role that carries the pair's tags: what is left when every record is gone.
fn role_of_pair(site: &Site, member: &Member<'_>, input: &Input<'_>) -> Option<NodeId> {
    let core = input.observation.garage.core.as_ref().ok()?;
    let has = |tags: &[String], wanted: String| tags.contains(&wanted);
    core.layout
        .roles
        .iter()
        .find(|(_, role)| {
            let uid_tag = role.tags.iter().any(|t| t.starts_with(tag::CLUSTER_UID));
            let ours = if uid_tag {
                has(&role.tags, site.id.cluster_uid_tag())
            } else {
                has(&role.tags, site.id.cluster_tag()) && Some(&role.zone) == zone(site, member).as_ref()
            };
            ours && has(&role.tags, format!("{}{}", tag::NODE_LOCAL_POOL, member.pair.pool))
                && has(&role.tags, format!("{}{}", tag::KUBERNETES_NODE, member.pair.node))
        })
        .map(|(id, _)| *id)
}

/// The member's zone: the Node's label where the spec names one, else `spec.zone`, else `default`.
/// `None`: the label is missing and there is no `spec.zone` to fall back on.
pub fn zone(site: &Site, member: &Member<'_>) -> Option<String> {
    match &site.zone_from {
        None => Some(site.zone.clone()),
        Some(key) => match member.node.labels().get(key) {
            Some(zone) if !zone.is_empty() => Some(zone.clone()),
            _ => (site.zone != "default").then(|| site.zone.clone()),
        },
    }
}

/// The stable RPC address of a member, where the pool has a template for it.
pub fn public_address(site: &Site, member: &Member<'_>) -> Option<String> {
    let template = member.pool.rpc_public_addr_template.as_ref()?;
    let address = template.replace("{nodeName}", member.pair.node.as_str());
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Some(if has_port { address } else { format!("{address}:{}", site.ports.rpc) })
}

/// The identity that the Node's records should name: what is recorded, else what holds the member's role.
pub fn to_record(member: &Member<'_>, input: &Input<'_>) -> Option<NodeId> {
    let core = input.observation.garage.core.as_ref().ok();
    member.recorded.or_else(|| {
        let id = member.record?.node_id()?;
        (Some(id) == member.identity() && core?.layout.roles.contains_key(&id)).then_some(id)
    })
}

/// The member's GarageNode: made once its Pod is scheduled, brought up to date after; the pin follows the
/// Node's records.
pub fn plan_record(site: &Site, member: &Member<'_>, _input: &Input<'_>) -> Vec<Action> {
    let labels = json!({
        label::CLUSTER: site.id.name,
        label::TIER: label::TIER_STORAGE,
        label::APP_MANAGED_BY: label::MANAGED_BY_NODE,
        label::NODE_LOCAL_POOL: member.pair.pool.as_str(),
        label::KUBERNETES_NODE: names::kubernetes_node_label_value(&member.pair.node),
    });
    let mut annotations = Map::new();
    annotations.insert(annotation::node::KUBERNETES_NODE.into(), member.pair.node.as_str().into());
    let claimed = member.claim.as_ref().and_then(|claim| claim.garage_node_id);
    if let Some(id) = member.identity_annotation.filter(|id| claimed == Some(*id)) {
        annotations.insert(annotation::node::RECOVERY_PIN.into(), id.to_string().into());
    }
    let Some(zone) = zone(site, member) else { return Vec::new() };
    let spec = spec(site, member, &zone);
    let name = names::garage_node_name(&site.id.name, &member.pair.pool, &member.pair.node);

    let Some(record) = member.record else {
        let scheduled =
            member.pod.is_some_and(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
        if !scheduled {
            return Vec::new();
        }
        return vec![Action::Create(Object::new(
            Kind::GarageNode,
            json!({
                "metadata": {
                    "name": name,
                    "namespace": site.id.namespace,
                    "labels": labels,
                    "annotations": annotations,
                    "ownerReferences": labels::owner(&site.id),
                },
                "spec": spec,
            }),
        ))];
    };
    if record.is_deleted() {
        return Vec::new();
    }
    update(site, record, &labels, &annotations.into(), &spec).into_iter().collect()
}

fn spec(site: &Site, member: &Member<'_>, zone: &str) -> Value {
    let mut spec = Map::new();
    spec.insert("clusterRef".into(), json!({ "name": site.id.name }));
    spec.insert("backing".into(), "NodeLocalPool".into());
    spec.insert("kubernetesNodeName".into(), member.pair.node.as_str().into());
    spec.insert("nodeLocalPoolName".into(), member.pair.pool.as_str().into());
    match &site.zone_from {
        Some(key) => {
            spec.insert("zone".into(), site.zone.clone().into());
            spec.insert("zoneFrom".into(), json!({ "nodeLabel": key }));
        }
        None => {
            spec.insert("zone".into(), zone.into());
        }
    }
    spec.insert("capacity".into(), member.pool.capacity_text.clone().into());
    if !site.tags.is_empty() {
        spec.insert("tags".into(), json!(site.tags));
    }
    spec.insert("gateway".into(), false.into());
    if let Some(address) = public_address(site, member) {
        spec.insert("network".into(), json!({ "rpcPublicAddr": address }));
    }
    Value::Object(spec)
}

/// One patch with what differs; entries of others stay.
fn update(
    site: &Site,
    record: &super::record::Record,
    labels: &Value,
    annotations: &Value,
    spec: &Value,
) -> Option<Action> {
    let metadata = &record.value["metadata"];
    let mut patch = PatchBuilder::new().unchanged(record.uid(), record.resource_version());
    let mut changed = false;
    for (map, wanted) in [("labels", labels), ("annotations", annotations)] {
        let have = &metadata[map];
        let differing: Vec<(&String, &Value)> = wanted
            .as_object()
            .into_iter()
            .flatten()
            // A pin that is set is never changed here (V10): only a refill moves it.
            .filter(|(key, value)| {
                have[*key] != **value && (*key != annotation::node::RECOVERY_PIN || have[*key].is_null())
            })
            .collect();
        if !differing.is_empty() {
            changed = true;
            patch = patch.ensure_map(map, have.is_object());
            for (key, value) in differing {
                patch = patch.add(["metadata", map, key], value.clone());
            }
        }
    }
    let have = &record.value["spec"];
    for (key, value) in spec.as_object().into_iter().flatten() {
        let same = match key.as_str() {
            "capacity" => {
                let bytes = |value: &Value| value.as_str().and_then(compare::bytes);
                have[key] == *value || (bytes(value).is_some() && bytes(&have[key]) == bytes(value))
            }
            _ => compare::covers(&have[key], value),
        };
        if !same {
            changed = true;
            patch = patch.add(["spec", key], value.clone());
        }
    }
    for key in ["tags", "zoneFrom", "network"] {
        if spec.get(key).is_none()
            && have[key].as_array().map_or(have[key].is_object(), |tags| !tags.is_empty())
        {
            changed = true;
            patch = patch.remove(["spec", key]);
        }
    }
    changed.then(|| Action::Patch {
        target: Target::namespaced(Kind::GarageNode, &site.id.namespace, &record.name),
        status: false,
        patch: patch.build(),
        dry_run: false,
    })
}
