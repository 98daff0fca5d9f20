//! What is shown of a site, as data: read from the objects, with the table of reasons beside each condition.

use std::collections::BTreeMap;

use holdfast_crds::explain::{Urgency, explain};
use holdfast_crds::ids::NodeId;
use holdfast_crds::names::annotation::cluster as key;
use holdfast_crds::node::GarageNode;
use holdfast_crds::status::{
    DeferReason, NodeLocalService, NodeStage, Phase, Redundancy, Scope, StorageNodes, Time, Verification,
};
use holdfast_crds::v1beta2::GarageCluster;
use serde::Serialize;

/// A GarageCluster with its GarageNodes.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `status.phase`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// `status.layoutVersion`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout_version: Option<i64>,
    /// Garage's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub garage_version: Option<String>,
    /// The three request annotations that are set.
    pub requests: BTreeMap<&'static str, String>,
    /// Where the proof stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// A hold or a refill, as in status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<NodeLocalService>,
    /// Storage nodes and members.
    pub nodes: Vec<Node>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// The proof in short.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// Its phase.
    pub phase: Phase,
    /// Whether the layout has storage nodes elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_nodes: Option<StorageNodes>,
    /// When it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the phase began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_started_at: Option<Time>,
    /// When one last completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified_at: Option<Time>,
    /// Last time remaining work decreased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_progress_at: Option<Time>,
    /// A request that the leader has not seen yet.
    pub request_pending: bool,
}

/// A storage node of the layout, or a member that has no role yet.
#[expect(clippy::struct_field_names, reason = "the API's own name for an identity")]
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_id: Option<NodeId>,
    /// `pool/kubernetes-node`, or the GarageNode's name where it is of no pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Its place in the proof.
    pub state: State,
    /// Share of its two turns that is done; absent where there is no proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// Whether Garage sees it up, by its GarageNode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
    /// Whether it answered in the last pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<bool>,
    /// Blocks in its resync queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync_queue_length: Option<i64>,
    /// Partitions and items that its tables still have to sync.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_queue_length: Option<i64>,
    /// Blocks with resync errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_errors: Option<i32>,
    /// Garage's own words for the running repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<String>,
    /// Why it is put off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred: Option<DeferReason>,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Time>,
}

/// Where a node stands in the proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum State {
    /// Both turns are done.
    Done,
    /// Its tables turn runs.
    Tables,
    /// Its blocks turn runs.
    Blocks,
    /// The pause after its blocks turn.
    Pause,
    /// Its turn comes.
    Waiting,
    /// Its turn is put off.
    Deferred,
    /// Another site's.
    Remote,
    /// It has no role in the layout.
    NoRole,
    /// No proof runs or stands.
    Unproven,
}

impl State {
    /// As the table shows it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Tables => "tables",
            Self::Blocks => "blocks",
            Self::Pause => "pause",
            Self::Waiting => "waiting",
            Self::Deferred => "deferred",
            Self::Remote => "remote",
            Self::NoRole => "no role",
            Self::Unproven => "-",
        }
    }

    /// For the colour.
    pub const fn urgency(self) -> Option<Urgency> {
        match self {
            Self::Done => Some(Urgency::Good),
            Self::Tables | Self::Blocks | Self::Pause => Some(Urgency::Working),
            Self::Deferred | Self::NoRole => Some(Urgency::Waiting),
            Self::Waiting | Self::Remote | Self::Unproven => None,
        }
    }
}

/// A condition, and what the table of reasons says of it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its status.
    pub status: String,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Since when.
    pub since: Time,
    /// How much a person has to do; absent for a reason of another operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub urgency: Option<&'static str>,
    /// What to do next; absent when nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<&'static str>,
    /// For the colour.
    #[serde(skip)]
    pub weight: Option<Urgency>,
}

/// Builds the report of one cluster; `nodes` may hold those of others.
pub fn report(cluster: &GarageCluster, nodes: &[GarageNode]) -> Report {
    let status = cluster.status.clone().unwrap_or_default();
    let namespace = cluster.metadata.namespace.clone().unwrap_or_default();
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let members: Vec<&GarageNode> = nodes
        .iter()
        .filter(|n| n.metadata.namespace.as_deref().unwrap_or_default() == namespace && n.belongs_to(&name))
        .collect();
    let requests = [key::VERIFY_REDUNDANCY, key::OUT_OF_SERVICE, key::REPLACE_IDENTITY]
        .into_iter()
        .filter_map(|key| Some((key, cluster.annotation(key)?.to_owned())))
        .collect();
    Report {
        phase: status.phase,
        layout_version: status.layout_version,
        garage_version: status.build_info.and_then(|b| b.version),
        requests,
        proof: status.redundancy.as_ref().and_then(|r| proof(cluster, r)),
        nodes: self::nodes(status.redundancy.as_ref(), &members),
        service: status.node_local_service,
        conditions: status.conditions.iter().map(condition).collect(),
        namespace,
        name,
    }
}

/// Whether a proof is asked for by a token that the leader has not seen yet.
pub fn request_pending(cluster: &GarageCluster) -> bool {
    let handled = cluster
        .status
        .as_ref()
        .and_then(|s| s.redundancy.as_ref()?.verification.as_ref()?.request_token.as_deref());
    cluster.annotation(key::VERIFY_REDUNDANCY).is_some_and(|t| !t.is_empty() && Some(t) != handled)
}

fn proof(cluster: &GarageCluster, redundancy: &Redundancy) -> Option<Proof> {
    let v = redundancy.verification.as_ref()?;
    Some(Proof {
        phase: v.phase,
        scope: redundancy.scope,
        storage_nodes: redundancy.storage_nodes,
        started_at: v.started_at,
        phase_started_at: v.phase_started_at,
        verified_at: v.verified_at,
        last_progress_at: redundancy.last_progress_at,
        request_pending: request_pending(cluster),
    })
}

fn condition(c: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition) -> Condition {
    let known = explain(&c.type_, &c.reason).filter(|e| e.status == c.status);
    Condition {
        kind: c.type_.clone(),
        status: c.status.clone(),
        reason: c.reason.clone(),
        message: c.message.clone(),
        since: Time::new(c.last_transition_time.0),
        urgency: known.map(|e| e.urgency.word()),
        next: known.map(|e| e.next).filter(|next| *next != "Nothing."),
        weight: known.map(|e| e.urgency),
    }
}

fn member_name(node: &GarageNode) -> String {
    node.pair().map_or_else(|| node.metadata.name.clone().unwrap_or_default(), |pair| pair.to_string())
}

fn nodes(redundancy: Option<&Redundancy>, members: &[&GarageNode]) -> Vec<Node> {
    let of = |id: &NodeId| members.iter().find(|m| m.node_id() == Some(*id));
    let verification = redundancy.and_then(|r| r.verification.as_ref());
    let federated = redundancy.is_some_and(|r| r.scope == Some(Scope::Local));
    let mut out: Vec<Node> = redundancy
        .into_iter()
        .flat_map(|r| &r.nodes)
        .map(|n| {
            let member = of(&n.node_id);
            let deferred = redundancy.and_then(|r| r.deferred_nodes.iter().find(|d| d.node_id == n.node_id));
            let remote = federated && member.is_none();
            let (state, percent) = match verification {
                _ if remote => (State::Remote, None),
                Some(v) if v.phase != Phase::Idle => {
                    place(v, &n.node_id, deferred.is_some(), n.block_repair_progress.as_deref())
                }
                _ => (State::Unproven, None),
            };
            let metadata = [n.metadata_sync_partitions.map(i64::from), n.metadata_queue_length];
            Node {
                node_id: Some(n.node_id),
                member: member.map(|m| member_name(m)),
                state,
                percent,
                connected: member.and_then(|m| m.status.as_ref()).map(|s| s.connected),
                observed: Some(n.observed),
                resync_queue_length: n.resync_queue_length,
                metadata_queue_length: metadata.into_iter().flatten().reduce(|a, b| a + b),
                block_errors: n.block_errors,
                repair: n.block_repair_progress.clone(),
                deferred: deferred.map(|d| d.reason),
                retry_after: deferred.and_then(|d| d.retry_after),
            }
        })
        .collect();
    let listed: Vec<NodeId> = out.iter().filter_map(|n| n.node_id).collect();
    out.extend(members.iter().filter(|m| m.node_id().is_none_or(|id| !listed.contains(&id))).map(|m| {
        let status = m.status.as_ref();
        let in_layout = status.is_some_and(|s| s.in_layout);
        Node {
            node_id: m.node_id(),
            member: Some(member_name(m)),
            state: if in_layout { State::Unproven } else { State::NoRole },
            percent: None,
            connected: status.map(|s| s.connected),
            observed: None,
            resync_queue_length: None,
            metadata_queue_length: None,
            block_errors: None,
            repair: None,
            deferred: None,
            retry_after: None,
        }
    }));
    out.sort_by(|a, b| {
        (a.member.is_none(), &a.member, a.node_id).cmp(&(b.member.is_none(), &b.member, b.node_id))
    });
    out
}

/// A node's place, and the share of its two turns that is done: one half each.
fn place(v: &Verification, id: &NodeId, deferred: bool, repair: Option<&str>) -> (State, Option<u8>) {
    if deferred {
        return (State::Deferred, None);
    }
    let evidence = v.evidence.as_ref();
    // Once every node is finished the evidence of single turns is gone.
    if v.completed_node_ids.contains(id) || v.phase == Phase::Verified {
        return (State::Done, Some(100));
    }
    let tables_done = evidence.is_some_and(|e| e.tables_done_node_ids.contains(id));
    let before = if tables_done { 50 } else { 0 };
    if v.current_node_id != Some(*id) {
        return (State::Waiting, Some(before));
    }
    match evidence.and_then(|e| e.node_stage) {
        Some(NodeStage::Tables) => (State::Tables, Some(before)),
        Some(NodeStage::Blocks) => (State::Blocks, Some(50 + repair.and_then(percent_in).unwrap_or(0) / 2)),
        Some(NodeStage::Pause) => (State::Pause, Some(100)),
        None => (State::Waiting, Some(before)),
    }
}

/// The share in Garage's words for a repair, such as `12.34%`.
fn percent_in(text: &str) -> Option<u8> {
    let end = text.find('%')?;
    let start = text[..end].rfind(|c: char| !c.is_ascii_digit() && c != '.').map_or(0, |i| i + 1);
    let whole = text[start..end].split('.').next()?;
    whole.parse::<u8>().ok().map(|p| p.min(100))
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    /// The identity of the n-th node.
    pub fn id(n: u8) -> String {
        format!("{n:02x}").repeat(32)
    }

    /// A cluster with this status and these annotations.
    pub fn cluster(annotations: &Value, status: &Value) -> GarageCluster {
        serde_json::from_value(json!({
            "apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster",
            "metadata": {"name": "site-a", "namespace": "objects", "resourceVersion": "7", "annotations": annotations},
            "spec": {"replication": {"factor": 3}, "storage": {"replicas": 0, "nodeLocalPools": [{"name": "fast", "selector": {}, "capacity": "1Gi", "metadata": {"hostPath": "/srv/meta"}}]}},
            "status": status,
        }))
        .unwrap()
    }

    /// The member `fast/kn-<n>` with the n-th identity.
    pub fn member(n: u8) -> GarageNode {
        serde_json::from_value(json!({
            "apiVersion": "garage.rajsingh.info/v1beta1", "kind": "GarageNode",
            "metadata": {"name": format!("n{n}"), "namespace": "objects",
                "annotations": {"garage.rajsingh.info/node-local-pool-recovery-node-id": id(n)}},
            "spec": {"clusterRef": {"name": "site-a"}, "zone": "z", "backing": "NodeLocalPool", "nodeLocalPoolName": "fast",
                "kubernetesNodeName": format!("kn-{n}")},
            "status": {"nodeId": id(n), "connected": true, "inLayout": true},
        }))
        .unwrap()
    }

    /// A proof in its blocks round: the first node is done, the second runs, the third is put off.
    pub fn proving() -> Value {
        json!({
            "phase": "Running", "layoutVersion": 4, "buildInfo": {"version": "v2.5.0"},
            "conditions": [
                {"type": "FullyReplicated", "status": "False", "reason": "Verifying", "message": "scanning blocks of node 0202020202020202",
                 "lastTransitionTime": "2026-01-02T03:00:00Z"},
                {"type": "Foreign", "status": "True", "reason": "Whatever", "message": "", "lastTransitionTime": "2026-01-02T03:00:00Z"}
            ],
            "redundancy": {
                "scope": "Cluster", "storageNodes": {"total": 3, "local": 3, "remote": 0, "verified": 1},
                "verification": {
                    "phase": "ScanningBlocks", "startedAt": "2026-01-02T03:00:00Z", "phaseStartedAt": "2026-01-02T03:02:00Z",
                    "requestToken": "one", "currentNodeId": id(2), "completedNodeIds": [id(1)],
                    "evidence": {"nodeStage": "Blocks", "tablesDoneNodeIds": [id(1), id(2)]},
                },
                "deferredNodes": [{"nodeId": id(3), "reason": "Down", "since": "2026-01-02T03:01:00Z", "retryAfter": "2026-01-02T03:11:00Z"}],
                "nodes": [
                    {"nodeId": id(1), "observed": true, "resyncQueueLength": 0, "blockErrors": 0, "metadataSyncPartitions": 0, "metadataQueueLength": 0},
                    {"nodeId": id(2), "observed": true, "resyncQueueLength": 1200, "blockErrors": 2, "blockRepairProgress": "43.21%"},
                    {"nodeId": id(3), "observed": false},
                ],
            },
        })
    }

    #[test]
    fn nodes_are_named_by_their_members_and_have_their_share_of_the_proof() {
        let report = report(&cluster(&json!({}), &proving()), &[member(1), member(2), member(3)]);
        let seen: Vec<_> =
            report.nodes.iter().map(|n| (n.member.as_deref().unwrap(), n.state, n.percent)).collect();
        assert_eq!(
            seen,
            [
                ("fast/kn-1", State::Done, Some(100)),
                ("fast/kn-2", State::Blocks, Some(71)),
                ("fast/kn-3", State::Deferred, None),
            ]
        );
    }

    #[test]
    fn a_counter_that_was_never_observed_stays_absent() {
        let report = report(&cluster(&json!({}), &proving()), &[member(3)]);
        let third = report.nodes.iter().find(|n| n.member.is_some()).unwrap();
        assert_eq!(
            (third.resync_queue_length, third.metadata_queue_length, third.block_errors),
            (None, None, None)
        );
    }

    #[test]
    fn nodes_of_other_sites_are_remote_and_members_without_a_role_are_listed() {
        let mut status = proving();
        status["redundancy"]["scope"] = json!("Local");
        let mut fourth = member(4);
        fourth.status.as_mut().unwrap().in_layout = false;
        let mut stranger = member(5);
        stranger.spec.cluster_ref.name = "site-b".to_owned();
        let report = report(&cluster(&json!({}), &status), &[member(1), member(2), fourth, stranger]);
        let state =
            |n: u8| report.nodes.iter().find(|x| x.node_id.unwrap().to_string() == id(n)).map(|x| x.state);
        assert_eq!(state(3), Some(State::Remote));
        assert_eq!(state(4), Some(State::NoRole));
        assert_eq!(state(5), None);
    }

    #[test]
    fn a_condition_has_its_next_step_and_a_foreign_one_has_none() {
        let report = report(&cluster(&json!({}), &proving()), &[]);
        assert_eq!(report.conditions[0].urgency, Some("working"));
        assert!(report.conditions[0].next.unwrap().contains("kubectl holdfast wait"));
        assert_eq!((report.conditions[1].urgency, report.conditions[1].next), (None, None));
    }

    #[test]
    fn a_token_that_the_leader_has_not_recorded_is_pending() {
        let asked =
            |token: &str| cluster(&json!({ "garage.rajsingh.info/verify-redundancy": token }), &proving());
        assert!(request_pending(&asked("two")));
        assert!(!request_pending(&asked("one")));
        assert!(!request_pending(&asked("")));
    }

    #[test]
    fn shares_are_read_from_garages_own_words() {
        for (text, percent) in [
            ("43.21%", Some(43)),
            ("phase 1: 7%", Some(7)),
            ("0.00%", Some(0)),
            ("", None),
            ("%", None),
            ("many %", None),
            ("999%", None),
        ] {
            assert_eq!(percent_in(text), percent, "{text}");
        }
    }
}
