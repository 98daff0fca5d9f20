//! What the pools fill in the GarageCluster's status (section 6 end; `compat.md` 9).

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::conditions::{ConditionStatus, ConditionType, PoolsReason, QuorumReason, ReadyReason};
use holdfast_crds::ids::NodeId;
use holdfast_crds::names::label;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use super::Input;
use super::condition::PoolsCondition;
use super::membership::Members;
use super::site::Site;
use super::spec::ClusterView;
use crate::observe::Core;

/// Fields of the status, by name. Absent ones are left as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterPart {
    /// Fields that are written as soon as they change.
    pub fields: Map<String, Value>,
    /// Counters, which change all the time: written along with something else, never by themselves once
    /// they are there (P19). `null` removes one: unknown is absent.
    pub counters: Map<String, Value>,
    /// Conditions beside `NodeLocalPoolsReady`: type, status, reason, message.
    pub conditions: Vec<(ConditionType, ConditionStatus, &'static str, String)>,
}

/// Whether Kubernetes counts the Pod as ready.
pub fn is_ready(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
        && pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref())
            .is_some_and(|conditions| conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Fills the fields.
pub fn fill(
    site: &Site,
    members: &Members<'_>,
    input: &Input<'_>,
    condition: &PoolsCondition,
    cluster: &ClusterView,
    now: Timestamp,
) -> ClusterPart {
    let mut part = ClusterPart::default();
    let core = input.observation.garage.core.as_ref().ok();
    let count = members.all.len();
    let ready = members.all.values().filter(|member| member.pod.is_some_and(is_ready)).count();

    let healthy = core.is_some_and(|core| core.health.status == "healthy");
    let has_layout = core.map_or_else(
        || cluster.status_layout_version().is_some_and(|version| version > 0),
        |core| core.layout.roles.values().any(crate::observe::Role::is_storage),
    );
    let phase = if condition.is_failure() {
        "Failed"
    } else if !has_layout {
        "Pending"
    } else if condition.reason == PoolsReason::Converged && healthy {
        "Running"
    } else {
        "Degraded"
    };
    let fields = &mut part.fields;
    fields.insert("phase".into(), phase.into());
    fields.insert("replicas".into(), count.into());
    fields.insert("readyReplicas".into(), ready.into());
    fields.insert(
        "selector".into(),
        format!("{}={},{}={}", label::CLUSTER, site.id.name, label::TIER, label::TIER_STORAGE).into(),
    );
    fields.insert("storageReplicas".into(), count.into());
    fields.insert("storageReadyReplicas".into(), ready.into());
    fields.insert("observedGeneration".into(), site.generation.into());
    let host =
        |service: &str| format!("{service}.{}.svc.{}", site.id.namespace, input.settings.cluster_domain);
    fields.insert(
        "endpoints".into(),
        json!({
            "s3": format!("{}:{}", host(&site.id.name), site.ports.s3),
            "admin": format!("{}:{}", host(&site.id.name), site.ports.admin),
            "rpc": format!("{}:{}", host(&site.id.headless_service()), site.ports.rpc),
        }),
    );
    if let Some(core) = core {
        let health = &core.health;
        fields.insert("layoutVersion".into(), core.layout.version.0.into());
        fields
            .insert("drainingNodes".into(), core.nodes.values().filter(|node| node.draining).count().into());
        fields.insert(
            "health".into(),
            json!({
                "status": health.status,
                "healthy": health.status == "healthy",
                "available": health.status != "unavailable",
                "knownNodes": health.known_nodes,
                "connectedNodes": health.connected_nodes,
                "storageNodes": health.storage_nodes,
                "storageNodesOk": health.storage_nodes_up,
                "partitions": health.partitions,
                "partitionsQuorum": health.partitions_quorum,
                "partitionsAllOk": health.partitions_all_ok,
            }),
        );
        let missing = health.partitions.saturating_sub(health.partitions_quorum);
        if has_layout {
            part.conditions.push(if missing > 0 {
                (
                    ConditionType::QuorumAtRisk,
                    ConditionStatus::True,
                    QuorumReason::PartitionsBelowQuorum.as_str(),
                    "partitions without a write quorum: writes fail until enough members are back".to_owned(),
                )
            } else {
                (
                    ConditionType::QuorumAtRisk,
                    ConditionStatus::False,
                    QuorumReason::AllPartitionsQuorate.as_str(),
                    "every partition has its write quorum".to_owned(),
                )
            });
        }
        part.counters = counters(core, input, now);
    } else if has_layout {
        part.conditions.push((
            ConditionType::QuorumAtRisk,
            ConditionStatus::Unknown,
            QuorumReason::NotObserved.as_str(),
            "Garage Admin API did not answer".to_owned(),
        ));
    }
    part.conditions.push(if condition.reason != PoolsReason::Converged {
        (
            ConditionType::Ready,
            ConditionStatus::False,
            ReadyReason::NodeLocalPoolsNotReady.as_str(),
            "see NodeLocalPoolsReady".to_owned(),
        )
    } else if ready < count {
        (
            ConditionType::Ready,
            ConditionStatus::False,
            ReadyReason::NotAllReplicasReady.as_str(),
            "not every member's Pod is ready".to_owned(),
        )
    } else {
        (
            ConditionType::Ready,
            ConditionStatus::True,
            ReadyReason::ClusterReady.as_str(),
            "every member is ready".to_owned(),
        )
    });
    part
}

/// Queue and block errors over the storage nodes, only when every one of them answered; else they are
/// unknown, and unknown is absent.
fn counters(core: &Core, input: &Input<'_>, now: Timestamp) -> Map<String, Value> {
    let garage = &input.observation.garage;
    let storage: Vec<&NodeId> =
        core.layout.roles.iter().filter(|(_, role)| role.is_storage()).map(|(id, _)| id).collect();
    let mut counters = Map::new();

    let queues: Option<u64> = storage
        .iter()
        .map(|id| {
            let workers = garage.workers.get(*id)?.as_ref().ok()?;
            // All resync workers of a process show the one queue.
            workers
                .iter()
                .filter(|worker| worker.name.starts_with("Block resync worker"))
                .filter_map(|worker| worker.queue_length)
                .max()
        })
        .sum();
    let queues = queues.filter(|_| !storage.is_empty());
    counters.insert("resyncQueueLength".into(), queues.map_or(Value::Null, Value::from));

    let errors: Option<Vec<&Vec<crate::observe::BlockError>>> =
        storage.iter().map(|id| garage.block_errors.get(*id)?.as_ref().ok()).collect();
    match errors.filter(|_| !storage.is_empty()) {
        None => {
            counters.insert("blockErrors".into(), Value::Null);
            counters.insert("blockErrorDetails".into(), Value::Null);
        }
        Some(lists) => {
            let hashes: BTreeSet<&str> =
                lists.iter().flat_map(|list| list.iter()).map(|e| e.hash.as_str()).collect();
            counters.insert("blockErrors".into(), hashes.len().into());
            let mut worst: BTreeMap<&str, &crate::observe::BlockError> = BTreeMap::new();
            for error in lists.iter().flat_map(|list| list.iter()) {
                let known = worst.entry(&error.hash).or_insert(error);
                if error.error_count > known.error_count {
                    *known = error;
                }
            }
            let mut top: Vec<_> = worst.into_values().collect();
            top.sort_by(|a, b| b.error_count.cmp(&a.error_count).then_with(|| a.hash.cmp(&b.hash)));
            let details = if top.is_empty() {
                Value::Null
            } else {
                let ago = |secs: u64| i64::try_from(secs).map_or(now, |s| now - SignedDuration::from_secs(s));
                let ahead =
                    |secs: u64| i64::try_from(secs).map_or(now, |s| now + SignedDuration::from_secs(s));
                let last = top.iter().map(|error| error.last_try_secs_ago).min().unwrap_or(0);
                json!({
                    "count": hashes.len(),
                    "lastErrorAt": whole(ago(last)),
                    "topErrors": top.iter().take(10).map(|error| json!({
                        "blockHash": error.hash,
                        "errorCount": error.error_count,
                        "lastAttempt": whole(ago(error.last_try_secs_ago)),
                        "nextRetry": whole(ahead(error.next_try_in_secs)),
                    })).collect::<Vec<_>>(),
                })
            };
            counters.insert("blockErrorDetails".into(), details);
        }
    }
    counters
}

/// RFC 3339 in whole seconds.
pub fn whole(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}
