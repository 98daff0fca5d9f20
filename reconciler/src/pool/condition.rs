//! The condition `NodeLocalPoolsReady` (section 13; `compat.md` 11).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use holdfast_crds::conditions::{ConditionStatus, PoolsReason, cut_message};
use holdfast_crds::ids::Pair;
use holdfast_crds::names::annotation;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::membership::{Member, Members};
use super::record::Record;
use super::site::Site;
use super::spec::ClusterView;
use super::{Input, gate};

/// How long a scheduled Pod may take to start before a missing marker is named.
const START_GRACE: SignedDuration = SignedDuration::from_secs(20);
/// Most problems that one message names.
const NAMED: usize = 4;

/// Something that keeps the pools from being ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its reason.
    pub reason: PoolsReason,
    /// What a person reads: the fact and the next step.
    pub message: String,
}

impl Problem {
    /// A problem.
    pub const fn new(reason: PoolsReason, message: String) -> Self {
        Self { reason, message }
    }
}

/// What the condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolsCondition {
    /// The reason.
    pub reason: PoolsReason,
    /// The message.
    pub message: String,
    /// Whether it is not known at all.
    pub unknown: bool,
}

/// Which reason is shown first.
const ORDER: &[PoolsReason] = &[
    PoolsReason::Suspended,
    PoolsReason::ConfigurationInvalid,
    PoolsReason::IdentityCollision,
    PoolsReason::RecordDamaged,
    PoolsReason::MemberLimitExceeded,
    PoolsReason::SelectorConflict,
    PoolsReason::HostPathConflict,
    PoolsReason::NotManaged,
    PoolsReason::RemovalNotManaged,
    PoolsReason::NoNodesSelected,
    PoolsReason::WaitingForReplacement,
    PoolsReason::MarkerMissing,
    PoolsReason::WaitingForPreviousNodeLocalPoolPod,
    PoolsReason::WaitingForMembers,
    PoolsReason::WaitingForLayoutSync,
    PoolsReason::NotObserved,
];

impl PoolsCondition {
    /// The condition from everything that was found: the first reason in the order above, and the
    /// messages of all.
    pub fn from_problems(mut problems: Vec<Problem>, members: usize) -> Self {
        let rank = |problem: &Problem| ORDER.iter().position(|r| *r == problem.reason).unwrap_or(ORDER.len());
        problems.sort_by_key(rank);
        problems.dedup();
        let Some(first) = problems.first() else {
            return Self {
                reason: PoolsReason::Converged,
                message: format!("all {members} selected members are active, connected and in the layout"),
                unknown: false,
            };
        };
        let reason = first.reason;
        let mut message = problems
            .iter()
            .take(NAMED)
            .map(|problem| problem.message.as_str())
            .collect::<Vec<_>>()
            .join("; ");
        if problems.len() > NAMED {
            let _ = write!(message, "; and {} more", problems.len() - NAMED);
        }
        Self { reason, message: cut_message(message), unknown: reason == PoolsReason::NotObserved }
    }

    /// Adds how many members run an older template: with `OnDelete` a Pod takes the new one when it is
    /// deleted, which is left to a person.
    pub fn note_outdated(&mut self, members: &Members<'_>) {
        let outdated = members
            .all
            .values()
            .filter(|member| {
                member.pod.is_some_and(|pod| !gate::is_gated(pod) && !gate::is_from_template(member, pod))
            })
            .count();
        if self.reason == PoolsReason::Converged && outdated > 0 {
            let _ = write!(
                self.message,
                "; {outdated} of them run an older configuration: delete their Pods one at a time, each when the cluster is healthy"
            );
        }
    }

    /// `status` of the condition.
    pub const fn status(&self) -> ConditionStatus {
        match (self.reason, self.unknown) {
            (PoolsReason::Converged, _) => ConditionStatus::True,
            (_, true) => ConditionStatus::Unknown,
            _ => ConditionStatus::False,
        }
    }

    /// Whether a person must act before anything goes on.
    pub const fn is_failure(&self) -> bool {
        matches!(
            self.reason,
            PoolsReason::ConfigurationInvalid
                | PoolsReason::IdentityCollision
                | PoolsReason::RecordDamaged
                | PoolsReason::MemberLimitExceeded
                | PoolsReason::SelectorConflict
                | PoolsReason::HostPathConflict
        )
    }
}

/// The other ways in which a member or the layout is in somebody's hands (P15). While there is one, no
/// Node is activated and no layout is written.
pub fn other_hands(
    cluster: &ClusterView,
    records: &BTreeMap<Pair, Record>,
    members: &Members<'_>,
) -> Vec<Problem> {
    let mut hands: Vec<Problem> = cluster
        .other_operations()
        .into_iter()
        .map(|what| {
            Problem::new(
                PoolsReason::WaitingForLayoutSync,
                format!("{what} is another operator's: members and layout are left alone until it is gone"),
            )
        })
        .collect();
    for (pair, record) in records {
        if let Some(what) = record.other_hand() {
            hands.push(Problem::new(
                PoolsReason::RemovalNotManaged,
                format!("GarageNode {} ({pair}) carries the annotation {what}, which is another operator's to handle", record.name),
            ));
        }
    }
    for member in members.all.values() {
        if member.claim.as_ref().is_some_and(|claim| claim.retiring) {
            hands.push(Problem::new(
                PoolsReason::RemovalNotManaged,
                format!(
                    "the HostPath claim of {} is retiring: that member is being drained by another operator",
                    member.pair
                ),
            ));
        }
    }
    hands
}

/// Names every member that is not there yet. Answers when time alone will change what is said.
pub fn waiting(
    site: &Site,
    members: &Members<'_>,
    input: &Input<'_>,
    now: Timestamp,
    problems: &mut Vec<Problem>,
) -> Option<SignedDuration> {
    let mut wake = None;
    let mut silent = false;
    for member in members.all.values() {
        if member.record.is_some_and(Record::is_suspended) {
            problems.push(Problem::new(
                PoolsReason::Suspended,
                format!("{} is suspended: nothing is written or launched there", member.pair),
            ));
            continue;
        }
        if let Some(problem) = different_identity(member, input) {
            problems.push(problem);
        } else if let Some(problem) = start(site, member, now, &mut wake) {
            problems.push(problem);
        } else {
            match &input.observation.garage.core {
                Err(_) => silent = true,
                Ok(core) => {
                    let Some(id) = member.identity() else { continue };
                    let what = if !core.nodes.get(&id).is_some_and(|node| node.is_up) {
                        "is not connected to its peers"
                    } else if !core.layout.roles.contains_key(&id) {
                        "is not in the layout"
                    } else {
                        continue;
                    };
                    problems.push(Problem::new(
                        PoolsReason::WaitingForMembers,
                        format!("{} ({}) {what}", member.pair, id.short()),
                    ));
                }
            }
        }
    }
    if silent && let Err(error) = &input.observation.garage.core {
        problems.push(Problem::new(
            PoolsReason::NotObserved,
            format!("Garage Admin API did not answer ({})", error.what),
        ));
    }
    wake
}

/// A process under another identity than recorded (H7): nothing is inferred from it.
fn different_identity(member: &Member<'_>, input: &Input<'_>) -> Option<Problem> {
    let (recorded, actual) = member.other_identity()?;
    if super::identity::replacement(input).is_some_and(|(pair, ..)| pair == member.pair) {
        return Some(Problem::new(
            PoolsReason::WaitingForReplacement,
            format!("the identity of {} is being replaced", member.pair),
        ));
    }
    Some(Problem::new(
        PoolsReason::WaitingForReplacement,
        format!(
            "{} answers with the identity {} but is recorded as {}; it is kept out of the layout. If its disk was wiped or replaced on purpose, set the annotation {}={}/{recorded}; else put the right disk back",
            member.pair,
            actual.short(),
            recorded.short(),
            annotation::cluster::REPLACE_IDENTITY,
            member.pair,
        ),
    ))
}

/// What a member lacks until its process runs and has told its identity.
fn start(
    site: &Site,
    member: &Member<'_>,
    now: Timestamp,
    wake: &mut Option<SignedDuration>,
) -> Option<Problem> {
    let pair = &member.pair;
    let waits = |what: String| Some(Problem::new(PoolsReason::WaitingForMembers, what));
    if member.held {
        return waits(format!("{pair} is held out of service"));
    }
    if member.token.is_none() {
        return waits(format!("{pair} waits for its DaemonSet"));
    }
    if !member.is_active(site) {
        return waits(format!("{pair} is not active on Node {}", pair.node));
    }
    let Some(pod) = member.pod else { return waits(format!("{pair} has no Pod yet")) };
    if gate::is_gated(pod) {
        return waits(format!("Pod {} of {pair} waits for its scheduling gate", pod.name_any()));
    }
    if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
        return waits(format!("Pod {} of {pair} is not scheduled on Node {}", pod.name_any(), pair.node));
    }
    let Some(process) = &member.process else {
        return Some(not_started(member, pod, now, wake));
    };
    if process.id.is_none() {
        return waits(format!("Pod {} of {pair} has not told its identity", pod.name_any()));
    }
    None
}

/// A Pod that is scheduled and does not start: after a while the marker files are named (section 13).
fn not_started(member: &Member<'_>, pod: &Pod, now: Timestamp, wake: &mut Option<SignedDuration>) -> Problem {
    let pair = &member.pair;
    let waits = Problem::new(
        PoolsReason::WaitingForMembers,
        format!("Pod {} of {pair} on Node {} does not run", pod.name_any(), pair.node),
    );
    let status = pod.status.as_ref();
    let container = status.and_then(|s| s.container_statuses.iter().flatten().find(|c| c.name == "garage"));
    // Once the container was made, its volumes were mounted. A container that is being made again after its
    // Node restarted has a history, and its volumes are mounted anew.
    let state = container.and_then(|container| container.state.as_ref());
    let waiting =
        state.and_then(|state| state.waiting.as_ref()).and_then(|waiting| waiting.reason.as_deref());
    let made = waiting != Some("ContainerCreating")
        && container.is_some_and(|container| {
            container.restart_count > 0
                || state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
                || container.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
                || waiting.is_some_and(|reason| reason.contains("Image") || reason == "CrashLoopBackOff")
        });
    let markers = member.pool.markers();
    // Since it was scheduled, or since its containers were last seen ready.
    let since = status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .filter(|c| c.type_ == "PodScheduled" || (c.type_ == "ContainersReady" && c.status == "False"))
        .filter_map(|c| c.last_transition_time.as_ref())
        .map(|time| time.0)
        .max();
    if made || markers.is_empty() {
        return waits;
    }
    if let Some(since) = since {
        let waited = now.duration_since(since);
        if waited < START_GRACE {
            let rest = START_GRACE - waited;
            *wake = Some(wake.map_or(rest, |other: SignedDuration| other.min(rest)));
            return waits;
        }
    }
    let told = container
        .and_then(|container| container.state.as_ref()?.waiting.as_ref()?.message.clone())
        .unwrap_or_default();
    let named: Vec<&str> =
        markers.iter().map(String::as_str).filter(|marker| told.contains(marker)).collect();
    let named = if named.is_empty() { markers.iter().map(String::as_str).collect() } else { named };
    Problem::new(
        PoolsReason::MarkerMissing,
        format!(
            "{pair} does not start on Node {}: a disk counts as not mounted while its marker file is missing ({}); mount the disk, and on a new one create the file once inside the mounted file system",
            pair.node,
            named.join(", "),
        ),
    )
}
