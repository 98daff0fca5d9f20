//! Taking one member out of service, and back (`behaviour.md` section 11, H1 to H7). Pure.
//!
//! Each pass decides from what it saw and from `status.nodeLocalService`. A phase is written before the action
//! that it announces: the action goes out in a later pass, on facts that were read anew, so that a process
//! killed between any two writes goes on, and a gate that closed meanwhile holds.

use std::time::Duration;

use holdfast_crds::conditions::{ConditionStatus, OutOfServiceReason as Reason};
use holdfast_crds::ids::{NodeId, Pair};
use holdfast_crds::names::annotation::cluster::REPLACE_IDENTITY;
use holdfast_crds::status::{NodeLocalService, ServiceOperation, ServicePhase as Phase, Time};

use crate::act::{Action, Kind, PatchBuilder, Target};

#[cfg(test)]
mod tests;

/// H6: so long the returned identity must be up in every view.
const BACK_FOR: i64 = 30;
/// H3: so long a Node must have been Ready again before a Pod that vanished meanwhile is taken for ended. A kubelet
/// that comes back reports first, and then ends what it finds running without a Pod: within its grace, 30 s.
const ENDED_FOR: i64 = 60;
/// From the second time on, a label that returns is somebody's doing and no accident (H5).
const CONTESTED: i32 = 2;

/// Why something does not hold, in words that do not change from pass to pass.
pub type Judged = Result<(), String>;

/// The Node of the pair as the API server has it now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its UID; empty where there is no such Node.
    pub uid: String,
    /// The version that was read.
    pub resource_version: String,
    /// The value of the activation label.
    pub label: Option<String>,
    /// Whether it has labels at all.
    pub has_labels: bool,
    /// Its `Ready` condition is `True`.
    pub ready: bool,
    /// Since when that condition is as it is; absent is not known, and no Node is believed for it.
    pub ready_since: Option<Time>,
    /// When its kubelet last reported.
    pub heartbeat: Option<Time>,
    /// It carries `node.kubernetes.io/out-of-service`: Kubernetes' own statement that the machine is off.
    pub out_of_service: bool,
}

/// A Pod of the pair that is not over, whether or not it is on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairPod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// It waits for its scheduling gate and no Node has it: it never ran, and nobody else would remove it.
    pub gated: bool,
}

/// What a hold decides from. All of it is of one pass.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Now.
    pub now: Time,
    /// Whom it is about.
    pub pair: Pair,
    /// Namespace of the cluster and of its Pods.
    pub namespace: String,
    /// What the hold annotation asks for.
    pub request: Request,
    /// V1 to V9 on the request that stands (section 4).
    pub allowed: Judged,
    /// Nobody has suspended us or has the members in hand (P15).
    pub free: Judged,
    /// Garage answered (O3).
    pub observed: Judged,
    /// H1: healthy, every node up, every partition complete, in the view of every node (O8).
    pub health: Judged,
    /// H1: the layout is settled (O5).
    pub layout: Judged,
    /// H1: every other selected member is active and up.
    pub members: Judged,
    /// H1: every other storage node has room (O9).
    pub room: Judged,
    /// H1: True/Verified for the current layout version and topology.
    pub proof: Judged,
    /// The live part of H1 without this member: the others are active and up, and keep the write quorum.
    pub rest: Judged,
    /// Key of the activation label.
    pub label_key: String,
    /// The current token of the member's DaemonSet.
    pub token: Option<String>,
    /// Whether the pools are run here: then they put the label back (H6).
    pub pools_managed: bool,
    /// The Node, live; `Err` when it could not be read.
    pub node: Result<NodeFacts, String>,
    /// The Pods of the pair, live; `Err` when they could not be read.
    pub pods: Result<Vec<PairPod>, String>,
    /// The identity on which the member's records agree.
    pub identity: Option<NodeId>,
    /// Whether any node sees the identity up; `None` is unknown.
    pub is_up: Option<bool>,
    /// The identity is up in the layout and in every node's view (H6).
    pub is_back: Judged,
    /// The process answers with another identity (H7).
    pub other_identity: Option<NodeId>,
}

/// What the annotation says about the pair of [`Facts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// It asks for this hold.
    Stands,
    /// It is gone.
    Gone,
    /// It asks for something else, or for nothing that can be understood: a hold that is there stays.
    Differs,
}

/// A condition to set: status, reason, message.
pub type Said = (ConditionStatus, Reason, String);

/// What [`step`] decided.
#[derive(Debug, Clone, PartialEq)]
pub struct HoldStep {
    /// The next `status.nodeLocalService`; `None` removes it.
    pub service: Option<NodeLocalService>,
    /// `NodeLocalOutOfService`; `None` removes it.
    pub condition: Option<Said>,
    /// To be done after the status was written, if it stood.
    pub actions: Vec<Action>,
    /// Another pass is due then at the latest.
    pub wake_after: Option<Duration>,
}

/// A new hold, before anything was done.
pub fn begin(pair: &Pair, now: Time) -> NodeLocalService {
    NodeLocalService {
        pool: pair.pool.to_string(),
        kubernetes_node: pair.node.to_string(),
        operation: ServiceOperation::OutOfService,
        phase: Phase::Waiting,
        garage_node_id: None,
        pod_uid: None,
        started_at: Some(now),
        phase_started_at: Some(now),
        safe_since: None,
        termination_unconfirmed_since: None,
        activation_returns: None,
        returned_at: None,
        replacement: None,
    }
}

/// One pass of a hold.
pub fn step(facts: &Facts, previous: &NodeLocalService) -> HoldStep {
    let mut next = previous.clone();
    let mut actions = Vec::new();
    let condition = match previous.phase {
        Phase::Deactivating => deactivate(facts, &mut next, &mut actions),
        Phase::Terminating => Some(terminate(facts, &mut next)),
        Phase::OutOfService => Some(holding(facts, &mut next)),
        Phase::Restoring => Some(restore(facts, &mut next, &mut actions)),
        Phase::InService => Some(in_service(&facts.pair)),
        _ => gate(facts, &mut next),
    };
    if previous.phase == Phase::Terminating && next.phase == Phase::Terminating && facts.free.is_ok() {
        actions.extend(never_ran(facts));
    }
    let Some(condition) = condition else {
        return HoldStep { service: None, condition: None, actions: Vec::new(), wake_after: None };
    };
    let wake = if next.phase == previous.phase { 10 } else { 2 };
    let wake_after = (next.phase != Phase::InService).then_some(Duration::from_secs(wake));
    HoldStep { service: Some(next), condition: Some(condition), actions, wake_after }
}

/// A Pod that came while the label was back and whose gate was never taken off would stay for good.
fn never_ran(facts: &Facts) -> impl Iterator<Item = Action> {
    facts.pods.iter().flatten().filter(|pod| pod.gated).map(|pod| Action::Delete {
        target: Target::namespaced(Kind::Pod, &facts.namespace, &pod.name),
        uid: pod.uid.clone(),
    })
}

fn enter(service: &mut NodeLocalService, phase: Phase, now: Time) {
    if service.phase != phase {
        service.phase = phase;
        service.phase_started_at = Some(now);
    }
}

const fn no(reason: Reason, message: String) -> Said {
    (ConditionStatus::False, reason, message)
}

/// H1, in the order in which a person can mend it: the proof last, since everything else voids or blocks one.
fn judge(facts: &Facts) -> Result<(), (Reason, String)> {
    let named = |judged: &Judged, reason| judged.clone().map_err(|why| (reason, why));
    named(&facts.allowed, Reason::Refused)?;
    named(&facts.free, Reason::WaitingForLayout)?;
    named(&facts.observed, Reason::WaitingForHealth)?;
    named(&facts.health, Reason::WaitingForHealth)?;
    named(&facts.layout, Reason::WaitingForLayout)?;
    named(&facts.members, Reason::WaitingForMembers)?;
    named(&facts.room, Reason::WaitingForRoom)?;
    named(&facts.proof, Reason::WaitingForProof)
}

fn waits(facts: &Facts, reason: Reason, why: &str) -> Said {
    no(reason, format!("{} is not taken out of service yet: {why}; its disk must not be touched", facts.pair))
}

/// H1: nothing is changed until everything holds, and then the intent is written first (H2).
fn gate(facts: &Facts, next: &mut NodeLocalService) -> Option<Said> {
    if facts.request == Request::Gone {
        return None;
    }
    if let Err((reason, why)) = judge(facts) {
        enter(next, Phase::Waiting, facts.now);
        return Some(match reason {
            Reason::Refused => no(reason, why),
            reason => waits(facts, reason, &why),
        });
    }
    let pods = match &facts.pods {
        Ok(pods) => pods,
        Err(why) => return Some(waits(facts, Reason::WaitingForMembers, why)),
    };
    let ([pod], Some(identity)) = (pods.as_slice(), facts.identity) else {
        let why = format!(
            "{} Pods of it are there and its identity is {}; wait until it runs as one Pod with a known identity",
            pods.len(),
            facts.identity.map_or_else(|| "unknown".to_owned(), |id| id.short()),
        );
        return Some(waits(facts, Reason::WaitingForMembers, &why));
    };
    if let Err(why) = &facts.node {
        return Some(waits(facts, Reason::WaitingForMembers, why));
    }
    next.garage_node_id = Some(identity);
    next.pod_uid = Some(pod.uid.clone());
    enter(next, Phase::Deactivating, facts.now);
    Some(deactivating(facts))
}

fn deactivating(facts: &Facts) -> Said {
    no(
        Reason::Deactivating,
        format!(
            "the activation of {} is being removed from its Node; its disk must not be touched",
            facts.pair
        ),
    )
}

/// H2: exactly the activation label goes, on a gate that was judged anew.
fn deactivate(facts: &Facts, next: &mut NodeLocalService, actions: &mut Vec<Action>) -> Option<Said> {
    let node = match &facts.node {
        Ok(node) => node,
        Err(why) => return Some(unknown(facts, why)),
    };
    let Some(label) = &node.label else {
        // Ours or another's hand: it is off, and what runs now ends.
        if facts.request == Request::Gone {
            return Some(release(facts, next));
        }
        enter(next, Phase::Terminating, facts.now);
        return Some(terminating(facts));
    };
    let returns = next.activation_returns.unwrap_or(0);
    if facts.request != Request::Stands && returns == 0 {
        // The label stands: nothing was done yet that would have to be undone.
        return None;
    }
    if facts.request == Request::Gone {
        return Some(release(facts, next));
    }
    // The proof is void once the member was down: a label that came back is judged by the live part alone (H5).
    let open = if returns == 0 { judge(facts) } else { again(facts) };
    if let Err((reason, why)) = open {
        if returns == 0 {
            // Nothing was changed yet.
            next.garage_node_id = None;
            next.pod_uid = None;
            enter(next, Phase::Waiting, facts.now);
            return Some(match reason {
                Reason::Refused => no(reason, why),
                reason => waits(facts, reason, &why),
            });
        }
        return Some(no(
            Reason::ActivationContested,
            format!(
                "the activation of {} was put back by another hand and stays, because {why}; its disk must not be touched",
                facts.pair
            ),
        ));
    }
    let key = facts.label_key.as_str();
    actions.push(Action::Patch {
        target: Target::node(facts.pair.node.as_str()),
        status: false,
        patch: PatchBuilder::new()
            .test(["metadata", "uid"], node.uid.clone())
            .test(["metadata", "labels", key], label.clone())
            .remove(["metadata", "labels", key])
            .build(),
        dry_run: false,
    });
    Some(if returns >= CONTESTED { contested(facts, returns) } else { deactivating(facts) })
}

/// H5: what must hold before a label that came back is removed again.
fn again(facts: &Facts) -> Result<(), (Reason, String)> {
    if facts.request != Request::Stands {
        return Err((Reason::Refused, "the annotation no longer asks for this hold".to_owned()));
    }
    let named = |judged: &Judged| judged.clone().map_err(|why| (Reason::QuorumLost, why));
    named(&facts.free)?;
    named(&facts.observed)?;
    named(&facts.rest)
}

fn contested(facts: &Facts, returns: i32) -> Said {
    no(
        Reason::ActivationContested,
        format!(
            "the activation of {} came back {returns} times by another hand and is removed again; find who sets the label on its Node; its disk must not be touched",
            facts.pair
        ),
    )
}

fn terminating(facts: &Facts) -> Said {
    no(
        Reason::Terminating,
        format!(
            "the Pod of {} ends; its disk must not be touched before this condition is True/SafeToService",
            facts.pair
        ),
    )
}

fn unknown(facts: &Facts, why: &str) -> Said {
    (
        ConditionStatus::Unknown,
        Reason::NotObserved,
        format!("it is not known whether the disk of {} may be touched: {why}; do not touch it", facts.pair),
    )
}

/// What contradicts that the member is out of service; `Err` where it cannot be told.
enum Alive {
    No,
    Label,
    Pod(String),
    Up,
}

fn alive(facts: &Facts) -> Result<Alive, String> {
    let node = facts.node.as_ref().map_err(Clone::clone)?;
    if node.label.is_some() {
        return Ok(Alive::Label);
    }
    if let Some(pod) = facts.pods.as_ref().map_err(Clone::clone)?.first() {
        return Ok(Alive::Pod(pod.name.clone()));
    }
    facts.observed.clone()?;
    match facts.is_up {
        Some(false) => Ok(Alive::No),
        Some(true) => Ok(Alive::Up),
        None => Err("no node answered whether it sees its identity".to_owned()),
    }
}

/// The label is back by another hand: withdrawn, counted, and judged before it is removed again (H5).
fn returned(facts: &Facts, next: &mut NodeLocalService) -> Said {
    let returns = next.activation_returns.unwrap_or(0).saturating_add(1);
    next.activation_returns = Some(returns);
    next.safe_since = None;
    next.termination_unconfirmed_since = None;
    // A Pod that starts under it is another one than the one that ended.
    enter(next, Phase::Deactivating, facts.now);
    if returns >= CONTESTED { contested(facts, returns) } else { deactivating(facts) }
}

/// H3.
fn terminate(facts: &Facts, next: &mut NodeLocalService) -> Said {
    if facts.request == Request::Gone {
        return release(facts, next);
    }
    let node = match &facts.node {
        Ok(node) => node,
        Err(why) => return unknown(facts, why),
    };
    match alive(facts) {
        Err(why) if facts.pods.is_err() => unknown(facts, &why),
        Ok(Alive::Label) => returned(facts, next),
        Ok(Alive::Pod(pod)) => no(
            Reason::Terminating,
            format!(
                "Pod {pod} of {} ends; its disk must not be touched before this condition is True/SafeToService",
                facts.pair
            ),
        ),
        rest => match (unconfirmed(facts, node, next), rest) {
            (Some(said), _) => said,
            (None, Err(why)) => unknown(facts, &why),
            (None, Ok(Alive::No)) => {
                enter(next, Phase::OutOfService, facts.now);
                off(facts, next)
            }
            (None, Ok(_)) => no(
                Reason::Terminating,
                format!(
                    "the Pod of {} is gone and its identity is still seen up; its disk must not be touched before this condition is True/SafeToService",
                    facts.pair
                ),
            ),
        },
    }
}

/// A Pod object that vanished while its Node was not Ready proves nothing: the process may still run (H3). So may it for
/// a moment after the Node is Ready again.
fn unconfirmed(facts: &Facts, node: &NodeFacts, next: &mut NodeLocalService) -> Option<Said> {
    let ready_for = node.ready_since.filter(|_| node.ready).map(|since| facts.now.seconds_since(since));
    let ready = ready_for.is_some_and(|seconds| seconds >= ENDED_FOR);
    let confirmed = match next.termination_unconfirmed_since {
        None => ready || node.out_of_service,
        Some(gone) => node.out_of_service || (ready && node.heartbeat.is_some_and(|at| at > gone)),
    };
    if confirmed {
        next.termination_unconfirmed_since = None;
        return None;
    }
    next.termination_unconfirmed_since.get_or_insert(facts.now);
    if ready_for.is_some() {
        return Some(no(
            Reason::TerminationUnconfirmed,
            format!(
                "the Node of {} is Ready again and has yet to end what may run there without a Pod: a minute, and its kubelet's next report, are waited for; its disk must not be touched",
                facts.pair
            ),
        ));
    }
    Some(no(
        Reason::TerminationUnconfirmed,
        format!(
            "the Pod of {} vanished while its Node was not Ready, so that its process may still run: bring the Node back to Ready, or, once the machine is certainly off, taint it node.kubernetes.io/out-of-service:NoExecute; its disk must not be touched",
            facts.pair
        ),
    ))
}

fn safe(facts: &Facts) -> Said {
    (
        ConditionStatus::True,
        Reason::SafeToService,
        format!(
            "the disk of {} may be touched: its Pod is gone, its activation is off and no node sees its identity; remove the annotation to bring it back",
            facts.pair
        ),
    )
}

/// H4, H5.
fn holding(facts: &Facts, next: &mut NodeLocalService) -> Said {
    if facts.request == Request::Gone {
        return release(facts, next);
    }
    match alive(facts) {
        Ok(Alive::No) => {}
        Ok(Alive::Label) => return returned(facts, next),
        Ok(Alive::Pod(_) | Alive::Up) => {
            next.safe_since = None;
            enter(next, Phase::Terminating, facts.now);
            return terminating(facts);
        }
        Err(why) => {
            next.safe_since = None;
            return unknown(facts, &why);
        }
    }
    off(facts, next)
}

/// The member is off: its disk may be touched as long as the others carry the site (H4, H5).
fn off(facts: &Facts, next: &mut NodeLocalService) -> Said {
    if facts.request == Request::Differs {
        // Whoever waits for True waits for what the annotation says now.
        next.safe_since = None;
        return no(
            Reason::Refused,
            format!(
                "V6 (one hold at a time): {} is still out of service and the annotation asks for something else; set it back to {}, or remove it and wait until this one is InService",
                facts.pair, facts.pair
            ),
        );
    }
    if let Err(why) = &facts.rest {
        next.safe_since = None;
        return no(
            Reason::QuorumLost,
            format!(
                "{} is out of service and {why}: do not touch its disk, it may be needed; mend the others, or remove the annotation to bring it back",
                facts.pair
            ),
        );
    }
    next.safe_since.get_or_insert(facts.now);
    safe(facts)
}

fn release(facts: &Facts, next: &mut NodeLocalService) -> Said {
    next.safe_since = None;
    next.termination_unconfirmed_since = None;
    next.returned_at = None;
    enter(next, Phase::Restoring, facts.now);
    restoring(facts, "its activation returns to its Node")
}

fn restoring(facts: &Facts, what: &str) -> Said {
    no(Reason::Restoring, format!("{} returns to service: {what}", facts.pair))
}

/// H6, H7. A request that comes meanwhile waits for the end of this one.
fn restore(facts: &Facts, next: &mut NodeLocalService, actions: &mut Vec<Action>) -> Said {
    let pair = &facts.pair;
    if let Err(why) = &facts.free {
        return restoring(facts, &format!("nothing is done while {why}"));
    }
    let node = match &facts.node {
        Ok(node) if !node.uid.is_empty() => node,
        Ok(_) => return restoring(facts, "its Node is not there"),
        Err(why) => return restoring(facts, why),
    };
    let Some(token) = &facts.token else {
        return restoring(facts, "its DaemonSet has no activation token yet");
    };
    if node.label.as_ref() != Some(token) {
        if !facts.pools_managed {
            let key = facts.label_key.as_str();
            actions.push(Action::Patch {
                target: Target::node(pair.node.as_str()),
                status: false,
                patch: PatchBuilder::new()
                    .unchanged(&node.uid, &node.resource_version)
                    .ensure_map("labels", node.has_labels)
                    .set_entry("labels", key, node.label.as_deref(), token.clone())
                    .build(),
                dry_run: false,
            });
        }
        return restoring(facts, "its activation returns to its Node");
    }
    if let (Some(other), Some(recorded)) = (facts.other_identity, facts.identity.or(next.garage_node_id)) {
        next.returned_at = None;
        return no(
            Reason::DifferentIdentity,
            format!(
                "{pair} came back as {} and is recorded as {}; nothing is inferred from that: if its disk was wiped or replaced on purpose, set the annotation {REPLACE_IDENTITY}={pair}/{recorded}, else put the right disk back",
                other.short(),
                recorded.short(),
            ),
        );
    }
    if let Err(why) = &facts.is_back {
        next.returned_at = None;
        return restoring(facts, why);
    }
    let since = *next.returned_at.get_or_insert(facts.now);
    if facts.now.seconds_since(since) < BACK_FOR {
        return restoring(facts, "its identity is up and is watched for 30 s");
    }
    next.pod_uid = None;
    next.activation_returns = None;
    next.returned_at = None;
    enter(next, Phase::InService, facts.now);
    in_service(pair)
}

/// What a hold that is over says (H6).
pub fn in_service(pair: &Pair) -> Said {
    no(
        Reason::InService,
        format!(
            "{pair} is back in service with the identity that it had; request a proof before the next hold"
        ),
    )
}
