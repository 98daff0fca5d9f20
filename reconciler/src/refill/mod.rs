//! Replacing a wiped member's identity in one layout version, and repairing its pins (`behaviour.md` section 12,
//! R1 to R7). Pure.
//!
//! Each pass decides from what it saw and from `status.nodeLocalService`. The intent is written before the layout
//! is touched; from there on what is done follows from the *roles* that Garage shows and from the pins that
//! Kubernetes shows, never from what an action answered. A process killed between any two writes goes on.

mod apply;
mod facts;
mod pins;
mod preconditions;

use std::time::Duration;

use holdfast_crds::conditions::{ConditionStatus, IdentityReplacedReason as Reason};
use holdfast_crds::ids::{NodeId, Pair};
use holdfast_crds::names::annotation::cluster::VERIFY_REDUNDANCY;
use holdfast_crds::requests::ReplaceRequest;
use holdfast_crds::status::{NodeLocalService, Replacement, ServiceOperation, ServicePhase as Phase, Time};

use crate::act::{Action, Peer};
use crate::observe::GarageView;

#[cfg(test)]
mod tests;

/// Why something does not hold, in words that do not change from pass to pass.
pub type Judged = Result<(), String>;

/// The process that is to take the pair's role, proven: the exact current Pod of the current DaemonSet on that
/// Node, running, whose own Admin API answered with the identity (R1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewProcess {
    /// Its identity.
    pub id: NodeId,
    /// Where its peers reach it.
    pub rpc: std::net::SocketAddr,
}

/// A record of the pair's identity and the write that moves it.
#[derive(Debug, Clone, PartialEq)]
pub struct Pins {
    /// Node claim and identity annotation, HostPath claim first.
    pub node: [Option<NodeId>; 2],
    /// Recovery pin of the GarageNode.
    pub pin: Option<NodeId>,
    /// `status.nodeId` of the GarageNode.
    pub status: Option<NodeId>,
    /// Moves both of the Node in one patch to an identity: they are never seen to differ.
    pub move_node: Write,
    /// Moves the recovery pin.
    pub move_pin: Write,
    /// Moves `status.nodeId`.
    pub move_status: Write,
}

/// A write that is ready to go, or to be asked about in a dry run.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Which object.
    pub target: crate::act::Target,
    /// Whether it goes to the `status` subresource.
    pub status: bool,
    /// What is done; it tests what was read.
    pub patch: json_patch::Patch,
}

impl Write {
    fn action(&self, dry_run: bool) -> Action {
        Action::Patch { target: self.target.clone(), status: self.status, patch: self.patch.clone(), dry_run }
    }
}

/// What a refill decides from. All of it is of one pass.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Now.
    pub now: Time,
    /// Whom it is about.
    pub pair: Pair,
    /// The request that stands.
    pub request: Option<&'a ReplaceRequest>,
    /// V1 to V8 on it (section 4).
    pub allowed: Judged,
    /// Nobody has suspended us or has the members in hand (P15).
    pub free: Judged,
    /// What Garage said; the peers' own views included (O8).
    pub garage: &'a GarageView,
    /// `replication.factor`.
    pub factor: usize,
    /// The new process, or what it lacks.
    pub process: Result<NewProcess, String>,
    /// UID of its Pod.
    pub pod_uid: Option<String>,
    /// The GarageNode that has the new identity already.
    pub used_by: Option<String>,
    /// Stable RPC address tag of the member, where section 2 has one.
    pub rpc_tag: Option<String>,
    /// Whether the pools are run here: then they introduce the process to its peers.
    pub pools_managed: bool,
    /// The Admin API that is told of the new process where they are not.
    pub introduce_at: Option<std::net::SocketAddr>,
    /// The pair's pins; `Err` where they could not be read. Towards which identity the writes go: the recorded new
    /// one, else the new process'.
    pub pins: Result<Pins, String>,
    /// What the API server said to the dry runs of [`RefillStep::checks`]; `None`: not asked yet.
    pub dry_run: Option<Judged>,
}

/// A condition to set: status, reason, message.
pub type Said = (ConditionStatus, Reason, String);

/// What [`step`] decided.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RefillStep {
    /// The next `status.nodeLocalService`; `None` removes it.
    pub service: Option<NodeLocalService>,
    /// `NodeLocalIdentityReplaced`; `None` removes it.
    pub condition: Option<Said>,
    /// Dry runs to be performed before anything is written; then the step is asked again with what came of them.
    /// Empty: this step stands.
    pub checks: Vec<Action>,
    /// To be done after the status was written, if it stood; the first that was not executed ends the row.
    pub actions: Vec<Action>,
    /// Another pass is due then at the latest.
    pub wake_after: Option<Duration>,
}

/// Why a step stands where it stands.
type Waits = (Reason, String);

fn no(reason: Reason, message: String) -> Said {
    (ConditionStatus::False, reason, message)
}

/// One pass of a refill.
pub fn step(facts: &Facts<'_>, previous: Option<&NodeLocalService>) -> RefillStep {
    let ours = previous.filter(|service| service.operation == ServiceOperation::ReplaceIdentity);
    let under_way = ours.and_then(|service| Some((service, service.replacement.as_ref()?)));
    match under_way {
        Some((service, replacement)) => match service.phase {
            Phase::Applying => apply::applying(facts, service, replacement),
            Phase::Settling => apply::settling(facts, service, replacement),
            Phase::RepairingPins => pins::repair(facts, service, replacement),
            Phase::Completed if is_answered(facts.request, service) => {
                let mut step = RefillStep { service: Some(service.clone()), ..RefillStep::default() };
                step.condition = Some(completed(&facts.pair, replacement, facts.garage));
                step
            }
            _ => waiting(facts, ours),
        },
        None => waiting(facts, ours),
    }
}

/// R5: the request is the one that was completed. Without a request the record stands as well.
pub fn is_answered(request: Option<&ReplaceRequest>, service: &NodeLocalService) -> bool {
    let old = service.replacement.as_ref().map(|replacement| replacement.old_node_id);
    service.phase == Phase::Completed
        && request.is_none_or(|request| is_about(service, &request.pair) && Some(request.old_node_id) == old)
}

/// What a replacement that is done says (R6), or that another hand undid it (R5).
pub fn completed(pair: &Pair, replacement: &Replacement, garage: &GarageView) -> Said {
    let old = replacement.old_node_id;
    let core = garage.core.as_ref().ok();
    if core.is_some_and(|core| core.layout.roles.contains_key(&old)) {
        return reappeared(pair, old);
    }
    let new = replacement.new_node_id.map_or_else(|| "a new one".to_owned(), |id| id.short());
    (
        ConditionStatus::True,
        Reason::Replaced,
        format!(
            "the identity {} of {pair} was replaced by {new}; set {VERIFY_REDUNDANCY} to a new value and wait for FullyReplicated before the next node is touched",
            old.short(),
        ),
    )
}

fn reappeared(pair: &Pair, old: NodeId) -> Said {
    no(
        Reason::IdentityReappeared,
        format!(
            "the replaced identity {} of {pair} has a role in the layout again, by another hand; nothing is done about it: find who applies layouts, and remove that role",
            old.short(),
        ),
    )
}

/// R1: nothing is changed until everything holds, and then the intent is written first (R2).
fn waiting(facts: &Facts<'_>, previous: Option<&NodeLocalService>) -> RefillStep {
    let Some(request) = facts.request else { return RefillStep::default() };
    let mut service = previous
        .filter(|service| service.phase == Phase::Waiting && is_about(service, &facts.pair))
        .cloned()
        .unwrap_or_else(|| begin(&facts.pair, facts.now));
    let old = request.old_node_id;
    let mut step = RefillStep { wake_after: Some(Duration::from_secs(5)), ..RefillStep::default() };
    if let Some(done) = preconditions::applied_already(facts, old) {
        service.garage_node_id = Some(old);
        service.pod_uid.clone_from(&facts.pod_uid);
        service.phase = Phase::Settling;
        service.phase_started_at = Some(facts.now);
        step.condition = Some(no(
            Reason::Settling,
            format!("the new identity of {} has the old one's role already; it settles", facts.pair),
        ));
        service.replacement = Some(done);
        step.service = Some(service);
        return step;
    }
    match preconditions::judge(facts, old, None) {
        Err((reason, why)) => {
            if reason == Reason::WaitingForPeers && !facts.pools_managed {
                step.actions.extend(introduce(facts));
            }
            let message = if reason == Reason::Refused {
                why
            } else {
                format!("the identity of {} is not replaced yet: {why}", facts.pair)
            };
            step.condition = Some(no(reason, message));
            step.service = Some(service);
        }
        Ok(ready) => match (&facts.dry_run, &facts.pins) {
            (_, Err(why)) => {
                let message = format!("the identity of {} is not replaced yet: {why}", facts.pair);
                step.condition = Some(no(Reason::WaitingForNewProcess, message));
                step.service = Some(service);
            }
            (None, Ok(pins)) => {
                step.checks = pins.all().map(|write| write.action(true)).collect();
            }
            (Some(Err(why)), Ok(_)) => {
                step.condition = Some(no(
                    Reason::PinWriteRefused,
                    format!(
                        "the identity of {} is not replaced yet: a write that has to follow would be refused ({why}); mend what refuses it",
                        facts.pair
                    ),
                ));
                step.service = Some(service);
            }
            (Some(Ok(())), Ok(_)) => {
                service.garage_node_id = Some(old);
                service.pod_uid.clone_from(&facts.pod_uid);
                service.phase = Phase::Applying;
                service.phase_started_at = Some(facts.now);
                service.replacement = Some(Replacement {
                    old_node_id: old,
                    new_node_id: Some(ready.new),
                    base_layout_version: Some(ready.base),
                    layout_version: None,
                    skipped_at: None,
                    completed_at: None,
                });
                step.condition = Some(apply::applies(facts, old, ready.new));
                step.service = Some(service);
                step.wake_after = Some(Duration::from_secs(1));
            }
        },
    }
    step
}

fn is_about(service: &NodeLocalService, pair: &Pair) -> bool {
    service.pool == pair.pool.as_str() && service.kubernetes_node == pair.node.as_str()
}

fn begin(pair: &Pair, now: Time) -> NodeLocalService {
    NodeLocalService { operation: ServiceOperation::ReplaceIdentity, ..crate::hold::begin(pair, now) }
}

/// Without bootstrap peers a new process knows nobody, and nobody it (R1).
fn introduce(facts: &Facts<'_>) -> Option<Action> {
    let process = facts.process.as_ref().ok()?;
    Some(Action::ConnectNodes {
        at: facts.introduce_at?,
        peers: vec![Peer { id: process.id, address: process.rpc }],
    })
}

pub use facts::read;
