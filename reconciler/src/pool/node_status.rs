//! The status of each member's GarageNode (`compat.md` 4 and 10), written only when something changed.

use holdfast_crds::conditions::{ConditionStatus, ConditionType, NodeReadyReason};
use holdfast_crds::names::annotation;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Input;
use super::membership::{Member, Members};
use super::record::Record;
use super::site::Site;
use super::status::whole;
use crate::act::{Action, Kind, Target};
use crate::observe::{Core, Partition};
use crate::status::merge_conditions;

/// Plans at most one write for each GarageNode.
pub fn plan(
    site: &Site,
    members: &Members<'_>,
    input: &Input<'_>,
    now: Timestamp,
    actions: &mut Vec<Action>,
) {
    if members.stopped {
        return;
    }
    for member in members.all.values() {
        let Some(record) = member.record.filter(|record| !record.is_deleted() && !record.is_suspended())
        else {
            continue;
        };
        let wanted = fill(member, record, input, now);
        let changed = difference(&record.value["status"], wanted);
        if !changed.is_empty() {
            actions.push(Action::MergeStatus {
                target: Target::namespaced(Kind::GarageNode, &site.id.namespace, &record.name),
                resource_version: record.resource_version().to_owned(),
                status: Value::Object(changed),
            });
        }
    }
}

fn fill(member: &Member<'_>, record: &Record, input: &Input<'_>, now: Timestamp) -> Map<String, Value> {
    let core = input.observation.garage.core.as_ref().ok();
    let mut status = Map::new();
    // A contradicting identity changes nothing here (V11, H7); a refill writes it itself, last (R4).
    let refilling = super::identity::replacement(input).is_some_and(|(pair, ..)| pair == member.pair);
    let id = if refilling { None } else { member.identity() };
    if let Some(id) = id
        && record.node_id() != Some(id)
        && record.pin().is_none_or(|pin| pin == id)
    {
        status.insert("nodeId".into(), id.to_string().into());
    }
    // A GarageNode that was deleted and made again: what its Node still records, or no replacement could name the
    // identity that is to go (V5).
    if !refilling && record.node_id().is_none() && id.is_none() && record.pin() == member.recorded {
        status.extend(member.recorded.map(|id| ("nodeId".to_owned(), id.to_string().into())));
    }
    if let Some(pod) = id.and(member.pod) {
        status.insert("observedPodUid".into(), pod.metadata.uid.clone().unwrap_or_default().into());
    }
    if let Some(generation) = record.value["metadata"]["generation"].as_i64() {
        status.insert("observedGeneration".into(), generation.into());
    }
    let Some(core) = core else { return status };
    let shown = id.or_else(|| record.node_id());
    let node = shown.and_then(|id| core.nodes.get(&id));
    let role = shown.and_then(|id| core.layout.roles.get(&id));
    let connected = id.is_some() && node.is_some_and(|node| node.is_up);
    status.insert("inLayout".into(), role.is_some().into());
    status.insert("connected".into(), connected.into());
    status.insert("layoutVersion".into(), core.layout.version.0.into());
    if let Some(role) = role {
        status.insert("zone".into(), role.zone.clone().into());
        status.insert("tags".into(), json!(role.tags));
    }
    if let Some(process) = member.process.as_ref().filter(|_| id.is_some()) {
        status.insert("address".into(), process.rpc.to_string().into());
    }
    if let Some(node) = node {
        if let Some(hostname) = &node.hostname {
            status.insert("hostname".into(), hostname.clone().into());
        }
        if let Some(version) = &node.version {
            status.insert("version".into(), version.clone().into());
        }
        for (key, partition) in
            [("dataPartition", node.data_partition), ("metadataPartition", node.metadata_partition)]
        {
            if let Some(partition) = partition {
                status.insert(key.into(), room(partition, &record.value["status"][key]));
            }
        }
        // Written once, when the connection goes: a time that moves with every pass would be a write each.
        let just_gone =
            record.value["status"]["connected"] == true || record.value["status"]["lastSeen"].is_null();
        if !connected
            && just_gone
            && let Some(ago) = node.last_seen_secs_ago.and_then(|secs| i64::try_from(secs).ok())
        {
            status.insert("lastSeen".into(), whole(now - jiff::SignedDuration::from_secs(ago)).into());
        }
    }
    let (ready, reason, message) = readiness(member, core, connected, role.is_some());
    status.insert("phase".into(), if ready == ConditionStatus::True { "Ready" } else { "Pending" }.into());
    let conditions = merge_conditions(
        &record.value["status"]["conditions"],
        &[(ConditionType::Ready.as_str(), ready, reason.as_str(), message)],
        &[],
        record.value["metadata"]["generation"].as_i64(),
        now,
    );
    status.insert("conditions".into(), conditions);
    status
}

fn readiness(
    member: &Member<'_>,
    _core: &Core,
    connected: bool,
    in_layout: bool,
) -> (ConditionStatus, NodeReadyReason, String) {
    if let Some((recorded, actual)) = member.other_identity() {
        return (
            ConditionStatus::False,
            NodeReadyReason::ReconcileFailed,
            format!(
                "the process answers with the identity {} but this member is {}; if its disk was wiped or replaced on purpose, set the annotation {}={}/{recorded} on the GarageCluster",
                actual.short(),
                recorded.short(),
                annotation::cluster::REPLACE_IDENTITY,
                member.pair,
            ),
        );
    }
    if !connected {
        return (
            ConditionStatus::False,
            NodeReadyReason::NodeDisconnected,
            "Garage does not see this node up".to_owned(),
        );
    }
    if !in_layout {
        return (
            ConditionStatus::False,
            NodeReadyReason::NotInLayout,
            "this node has no role in the layout".to_owned(),
        );
    }
    (ConditionStatus::True, NodeReadyReason::NodeReady, "connected and in the layout".to_owned())
}

/// A file system's room. The bytes available move all the time; they are rewritten when the percentage
/// or the size changes.
fn room(partition: Partition, before: &Value) -> Value {
    let used = partition.total.saturating_sub(partition.available);
    let percent = used.saturating_mul(100).checked_div(partition.total).unwrap_or(0);
    let total = partition.total.to_string();
    if before["usedPercent"].as_u64() == Some(percent) && before["total"].as_str() == Some(&total) {
        return before.clone();
    }
    json!({ "available": partition.available.to_string(), "total": total, "usedPercent": percent })
}

/// The entries of `wanted` that differ from what is there.
fn difference(have: &Value, wanted: Map<String, Value>) -> Map<String, Value> {
    wanted.into_iter().filter(|(key, value)| have[key] != *value).collect()
}
