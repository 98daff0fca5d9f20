//! Digests the Kubernetes half of an observation to what the proof looks at. Pure.

use std::collections::BTreeMap;

use holdfast_crds::conditions::ConditionType;
use holdfast_crds::ids::{NodeId, RequestToken};
use holdfast_crds::names::{HostPathClaim, annotation};
use holdfast_crds::spec;
use holdfast_crds::status::{ServiceOperation, ServicePhase, Time};
use holdfast_crds::v1beta2::GarageCluster;
use kube::ResourceExt as _;

use crate::observe::KubernetesView;
use crate::pool::{self, identity};
use crate::proof::{Busy, Member, PodFacts, PreviousCondition, Site, SiteRole};

/// What the proof needs to know of this cluster.
pub fn site(view: &KubernetesView, memory: &pool::Memory) -> Site {
    let cluster = &view.cluster;
    let spec = &cluster.spec;
    Site {
        namespace: cluster.namespace().unwrap_or_default(),
        name: cluster.name_any(),
        uid: cluster.metadata.uid.clone().unwrap_or_default(),
        storage_tier: spec.storage.is_some() && spec.connect_to.is_none(),
        site_role: match spec.site_role() {
            None => SiteRole::Unset,
            Some(spec::SiteRole::Writer) => SiteRole::Writer,
            Some(spec::SiteRole::Follower) => SiteRole::Follower,
        },
        remote_clusters: !spec.remote_clusters.is_empty(),
        on_topology_change: spec.verifies_on_topology_change(),
        token: cluster
            .annotation(annotation::cluster::VERIFY_REDUNDANCY)
            .and_then(|value| RequestToken::parse(value).ok().flatten())
            .map(|token| token.to_string()),
        rpc_timeout: spec
            .network
            .as_ref()
            .filter(|n| n.rpc_timeout.is_some())
            .and_then(|n| n.effective_rpc_timeout().ok()),
        members: view.garage_nodes.as_ref().map(|nodes| {
            nodes
                .values()
                .map(|node| Member {
                    id: node.node_id(),
                    external: node.spec.external.is_some(),
                    gateway: node.spec.gateway.unwrap_or(false),
                })
                .collect()
        }),
        pods: pods(view, memory),
        busy: busy(view),
        condition: previous(cluster),
    }
}

/// The Pod of each identity that a running process answered with.
fn pods(view: &KubernetesView, memory: &pool::Memory) -> BTreeMap<NodeId, PodFacts> {
    view.pods
        .iter()
        .filter_map(|pod| {
            let run = identity::incarnation(pod)?;
            let id = *memory.identities.get(&run)?;
            let status = pod.status.as_ref()?;
            let garage = status.container_statuses.iter().flatten().find(|c| c.name == "garage")?;
            let started = garage.state.as_ref()?.running.as_ref()?.started_at.as_ref()?;
            let facts =
                PodFacts { uid: run.pod_uid, restarts: run.restarts, started_at: Some(Time::new(started.0)) };
            Some((id, facts))
        })
        .collect()
}

/// P15: another hand, or a service of ours.
fn busy(view: &KubernetesView) -> Option<Busy> {
    other_hands(view).or_else(|| under_service(&view.cluster))
}

/// P15: a hold or a replacement of ours that is under way.
fn under_service(cluster: &GarageCluster) -> Option<Busy> {
    let service = cluster.status.as_ref()?.node_local_service.as_ref()?;
    let pair = format!("{}/{}", service.pool, service.kubernetes_node);
    match (service.operation, service.phase) {
        (_, ServicePhase::Waiting | ServicePhase::InService | ServicePhase::Completed) => None,
        (ServiceOperation::OutOfService, _) => {
            Some(Busy { what: format!("{pair} is held out of service"), moves_data: false })
        }
        (ServiceOperation::ReplaceIdentity, _) => {
            Some(Busy { what: format!("the identity of {pair} is being replaced"), moves_data: true })
        }
    }
}

/// Who else has a member or the layout in hand (P15), the first of them, in words that do not change.
pub fn other_hands(view: &KubernetesView) -> Option<Busy> {
    let cluster = &view.cluster;
    let stays = |what: String| Busy { what, moves_data: false };
    if cluster.spec.is_suspended() {
        return Some(stays("maintenance.suspended is set".to_owned()));
    }
    if let Some(what) = cluster.layout_in_other_hands() {
        let moves_data = what != "status.storageRollout";
        return Some(Busy { what: format!("{what} is another operator's work on the layout"), moves_data });
    }
    for node in view.garage_nodes.iter().flat_map(BTreeMap::values) {
        if let Some(what) = node.in_other_hands() {
            return Some(stays(format!("GarageNode {} carries {what}", node.name_any())));
        }
        if node.is_suspended() {
            return Some(stays(format!("GarageNode {} is suspended", node.name_any())));
        }
    }
    let id = cluster.id()?;
    for node in view.nodes.values() {
        for pool in cluster.spec.node_local_pools() {
            let claim = node
                .annotations()
                .get(&id.host_path_claim_annotation(&pool.name))
                .map(|text| HostPathClaim::parse(text));
            if let Some(Ok(claim)) = claim
                && claim.retiring
            {
                return Some(stays(format!(
                    "the HostPath claim of {}/{} is retiring",
                    pool.name,
                    node.name_any()
                )));
            }
        }
    }
    None
}

/// The condition as the last pass wrote it.
fn previous(cluster: &GarageCluster) -> Option<PreviousCondition> {
    let condition = cluster.status.as_ref()?.condition(ConditionType::FullyReplicated.as_str())?;
    Some(PreviousCondition {
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: Some(Time::new(condition.last_transition_time.0)),
    })
}
