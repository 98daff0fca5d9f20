//! Digests the Kubernetes half of an observation to what the proof looks at. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_crds::conditions::ConditionType;
use holdfast_crds::ids::{NodeId, Pair, RequestToken};
use holdfast_crds::names::{HostPathClaim, annotation, label};
use holdfast_crds::spec;
use holdfast_crds::status::{ServiceOperation, ServicePhase, Time};
use holdfast_crds::v1beta2::GarageCluster;
use k8s_openapi::api::core::v1::Pod;
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

/// The running Pod of each identity: the one whose process answered with it, else the one in its member's place. Where
/// another identity runs now, or a process that did not answer yet, that is another run than the one which was proven
/// (P16), long before Garage's peers miss the one that is gone (FACTS 14).
fn pods(view: &KubernetesView, memory: &pool::Memory) -> BTreeMap<NodeId, PodFacts> {
    let answered = |pod: &Arc<Pod>| {
        let run = identity::incarnation(pod)?;
        Some((*memory.identities.get(&run)?, running(pod)?))
    };
    let mut pods: BTreeMap<NodeId, PodFacts> = view.pods.iter().filter_map(answered).collect();
    for node in
        view.garage_nodes.iter().flat_map(|nodes| nodes.values()).filter(|node| node.spec.external.is_none())
    {
        let (Some(id), Some(pair)) = (node.node_id(), node.pair()) else { continue };
        if pods.contains_key(&id) {
            continue;
        }
        let in_place = view.pods.iter().filter(|pod| is_in_place(pod, &pair)).find_map(|pod| running(pod));
        pods.extend(in_place.map(|facts| (id, facts)));
    }
    pods
}

/// The run of a Pod's `garage` process.
fn running(pod: &Pod) -> Option<PodFacts> {
    let run = identity::incarnation(pod)?;
    let garage = pod.status.as_ref()?.container_statuses.iter().flatten().find(|c| c.name == "garage")?;
    let started = garage.state.as_ref()?.running.as_ref()?.started_at.as_ref()?;
    Some(PodFacts { uid: run.pod_uid, restarts: run.restarts, started_at: Some(Time::new(started.0)) })
}

fn is_in_place(pod: &Pod, pair: &Pair) -> bool {
    pod.labels().get(label::NODE_LOCAL_POOL).is_some_and(|pool| *pool == *pair.pool.as_str())
        && pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(pair.node.as_str())
}

/// P15: another hand, or a service of ours.
fn busy(view: &KubernetesView) -> Option<Busy> {
    other_hands(view).or_else(|| under_service(&view.cluster))
}

/// P15: a hold or a replacement of ours that is under way, or a replacement that is asked for.
fn under_service(cluster: &GarageCluster) -> Option<Busy> {
    let service = cluster.status.as_ref()?.node_local_service.as_ref()?;
    let pair = format!("{}/{}", service.pool, service.kubernetes_node);
    match (service.operation, service.phase) {
        // Somebody says that this member's disk is gone: nothing is True over that until it is settled or withdrawn.
        (ServiceOperation::ReplaceIdentity, ServicePhase::Waiting) => {
            Some(Busy { what: format!("the identity of {pair} is to be replaced"), moves_data: false })
        }
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
    for node in view.garage_nodes.iter().flat_map(|nodes| nodes.values()) {
        if let Some(what) = node.in_other_hands() {
            return Some(stays(format!("GarageNode {} carries {what}", node.name_any())));
        }
        if node.is_suspended() {
            return Some(stays(format!("GarageNode {} is suspended", node.name_any())));
        }
    }
    let id = cluster.id()?;
    let claims: Vec<_> = cluster
        .spec
        .node_local_pools()
        .iter()
        .map(|pool| (pool, id.host_path_claim_annotation(&pool.name)))
        .collect();
    for node in view.nodes.values() {
        for (pool, annotation) in &claims {
            let claim = node.annotations().get(annotation).map(|text| HostPathClaim::parse(text));
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use serde_json::{Value, json};

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    /// One member with an identity, and a Pod in its place that was restarted once.
    fn view(id: NodeId) -> KubernetesView {
        let cluster = json!({
            "apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster",
            "metadata": {"name": "site", "namespace": "objects"}, "spec": {"storage": {}},
        });
        let node = json!({
            "apiVersion": "garage.rajsingh.info/v1beta1", "kind": "GarageNode",
            "metadata": {"name": "member", "namespace": "objects"},
            "spec": {
                "clusterRef": {"name": "site"}, "zone": "rack-1", "capacity": "1Gi", "backing": "NodeLocalPool",
                "nodeLocalPoolName": "fast", "kubernetesNodeName": "kn-1",
            },
            "status": {"nodeId": id.to_string()},
        });
        let pod = json!({
            "metadata": {"name": "pod", "uid": "of-the-pod", "labels": {(label::NODE_LOCAL_POOL): "fast"}},
            "spec": {"nodeName": "kn-1", "containers": []},
            "status": {"podIP": "10.0.0.1", "containerStatuses": [{
                "name": "garage", "restartCount": 1, "ready": true, "image": "", "imageID": "",
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }]},
        });
        KubernetesView {
            cluster: read(cluster),
            garage_nodes: Some(Arc::new(BTreeMap::from([("member".to_owned(), read(node))]))),
            pods: vec![read(pod)],
            nodes: Arc::default(),
            daemon_sets: Arc::default(),
            config_maps: Arc::default(),
            services: Arc::default(),
            disruption_budgets: Arc::default(),
            secrets: BTreeMap::new(),
        }
    }

    #[test]
    fn an_identity_whose_place_runs_another_one_or_does_not_say_has_the_run_of_that_place() {
        let [old, new] = ["0a", "0b"].map(|half| half.repeat(32).parse::<NodeId>().unwrap());
        let view = view(old);
        let run = identity::incarnation(&view.pods[0]).unwrap();
        let mut memory = pool::Memory::default();
        let facts =
            |memory: &pool::Memory| pods(&view, memory).get(&old).cloned().map(|p| (p.uid, p.restarts));
        let place = Some(("of-the-pod".to_owned(), 1));
        assert_eq!(facts(&memory), place, "nobody was asked yet");
        memory.identities.insert(run, new);
        assert_eq!(facts(&memory), place, "metadata was lost");
        assert!(pods(&view, &memory).contains_key(&new));
    }

    #[test]
    fn a_replacement_that_is_only_asked_for_pauses_a_proof_like_one_that_runs_and_a_requested_hold_does_not()
    {
        let id = "0a".repeat(32).parse::<NodeId>().unwrap();
        let mut view = view(id);
        for (operation, phase, what) in [
            ("ReplaceIdentity", "Waiting", Some("the identity of fast/kn-1 is to be replaced")),
            ("ReplaceIdentity", "Applying", Some("the identity of fast/kn-1 is being replaced")),
            ("ReplaceIdentity", "Completed", None),
            ("OutOfService", "Waiting", None),
            ("OutOfService", "Terminating", Some("fast/kn-1 is held out of service")),
        ] {
            let mut cluster = serde_json::to_value(&*view.cluster).unwrap();
            cluster["status"] = json!({"nodeLocalService": {
                "pool": "fast", "kubernetesNode": "kn-1", "operation": operation, "phase": phase,
            }});
            view.cluster = read(cluster);
            assert_eq!(busy(&view).map(|busy| busy.what).as_deref(), what, "{operation} {phase}");
        }
    }

    #[test]
    fn a_pod_in_another_place_says_nothing_of_an_identity() {
        let id = "0a".repeat(32).parse::<NodeId>().unwrap();
        let mut view = view(id);
        let mut pod = (*view.pods[0]).clone();
        pod.spec.as_mut().unwrap().node_name = Some("kn-2".to_owned());
        view.pods = vec![Arc::new(pod)];
        assert_eq!(pods(&view, &pool::Memory::default()), BTreeMap::new());
    }
}
