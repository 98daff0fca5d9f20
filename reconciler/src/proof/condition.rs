//! The condition `FullyReplicated` (section 9): first match wins, and messages stay as they are while
//! Garage's counters tick.

use std::fmt::Write as _;

use holdfast_crds::conditions::{ConditionStatus, FullyReplicatedReason as Reason, cut_message};
use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{DeferReason, NodeStage, Phase, Redundancy, Scope};

use super::is_active;
use super::turns::Pass;

/// The annotation that requests a proof.
const ANNOTATION: &str = "garage.rajsingh.info/verify-redundancy";

/// Most nodes that a message names.
const NAMED: usize = 6;

/// A condition, but for its times, which the writer sets by the API convention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its status.
    pub status: ConditionStatus,
    /// Its reason.
    pub reason: Reason,
    /// Its message.
    pub message: String,
}

impl Condition {
    fn new(status: ConditionStatus, reason: Reason, message: String) -> Self {
        Self { status, reason, message: cut_message(message) }
    }
}

/// O3.
pub(super) fn not_observed(what: &str, previous: Option<&Redundancy>) -> Condition {
    let mut message =
        format!("Garage Admin API did not answer; redundancy cannot be observed: no answer from {what}");
    if let Some(at) = previous.and_then(|r| r.verification.as_ref()).and_then(|v| v.verified_at) {
        message = format!("{message} (last verified {at})");
    }
    Condition::new(ConditionStatus::Unknown, Reason::NotObserved, message)
}

/// P5.
pub(super) fn site_role_unset() -> Condition {
    Condition::new(
        ConditionStatus::Unknown,
        Reason::SiteRoleUnset,
        "this site is federated and spec.layoutManagement.siteRole is not set: set Writer on exactly one site \
         and Follower on the others"
            .to_owned(),
    )
}

/// The table of section 9, from `WaitingForOtherSite` on.
pub(super) fn judge(pass: &Pass<'_>, r: &Redundancy) -> Condition {
    let (f, v, notes) = (pass.f, &pass.v, &pass.notes);
    let unknown = |reason, message| Condition::new(ConditionStatus::Unknown, reason, message);
    let no = |reason, message| Condition::new(ConditionStatus::False, reason, message);
    let active = is_active(v.phase);
    if let Some(message) = &notes.other_site {
        return unknown(Reason::WaitingForOtherSite, message.clone());
    }
    if active {
        if let Some(message) = &notes.precondition {
            return unknown(Reason::PreconditionsNotMet, message.clone());
        }
        let errors = f.local_block_errors();
        if let Some(message) = stalled(pass, r, errors) {
            return no(Reason::Stalled, message);
        }
        if errors > 0 {
            let (blocks, have) = if errors == 1 { ("block", "has") } else { ("blocks", "have") };
            return no(Reason::BlockErrors, format!("{errors} {blocks} {have} resync errors"));
        }
        return no(Reason::Verifying, verifying(pass));
    }
    match v.phase {
        Phase::Partial => no(Reason::Partial, partial(pass)),
        Phase::Verified => verified(pass, r),
        _ => unknown(Reason::NotVerified, not_verified(pass)),
    }
}

fn stalled(pass: &Pass<'_>, r: &Redundancy, errors: usize) -> Option<String> {
    if let Some(message) = &pass.notes.worker_errors {
        return Some(message.clone());
    }
    let minutes = pass.t.stalled / 60;
    let grown = pass.e.block_errors_baseline.is_some_and(|b| i32::try_from(errors).is_ok_and(|n| n > b));
    if grown {
        let node = pass.f.local.iter().find(|id| {
            pass.f.node(**id).and_then(|n| n.block_errors.as_ref()).is_some_and(|b| !b.is_empty())
        });
        let node = node.map(NodeId::short).unwrap_or_default();
        return Some(format!(
            "the number of blocks with resync errors grew within {minutes} minutes; node {node} lists some"
        ));
    }
    // An undisturbed quiet period is no stall, before its end.
    let quiet = pass.v.phase == Phase::Settling && pass.e.quiet_since.is_some();
    if errors > 0 || (quiet && pass.notes.waits_for.is_none()) {
        return None;
    }
    // Every precondition, and every wait for another site, shows as Unknown: the time at which the
    // condition became False again is the end of the last one.
    let resumed = match &pass.f.site.condition {
        Some(c) if c.status == "False" => c.since,
        _ => Some(pass.now),
    };
    let quiet_end = pass.quiet_end().filter(|_| quiet);
    let since = [
        r.last_progress_at,
        pass.v.started_at,
        pass.v.phase_started_at,
        pass.e.pause_until,
        resumed,
        quiet_end,
    ]
    .into_iter()
    .flatten()
    .max()?;
    (pass.now.seconds_since(since) >= pass.t.stalled).then(|| match &pass.notes.waits_for {
        Some(what) => format!("no progress for {minutes} minutes; {} waits for {what}", pass.stage_words()),
        None => format!("no progress for {minutes} minutes in {}", pass.stage_words()),
    })
}

fn verifying(pass: &Pass<'_>) -> String {
    let phase = phase_name(pass.v.phase);
    if let Some(what) = &pass.notes.waits_for {
        return format!("{phase}: {} waits for {what}", pass.stage_words());
    }
    match (pass.quiet_end(), pass.e.pause_until) {
        (Some(end), _) if pass.v.phase == Phase::Settling => {
            format!("{phase}: the quiet period ends at {end}")
        }
        (_, Some(until)) if pass.e.node_stage == Some(NodeStage::Pause) => {
            format!("{phase}: {} ends at {until}", pass.stage_words())
        }
        _ => format!("{phase}: {}", pass.stage_words()),
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle => "Idle",
        Phase::Pending => "Pending",
        Phase::SyncingMetadata => "SyncingMetadata",
        Phase::ScanningBlocks => "ScanningBlocks",
        Phase::Settling => "Settling",
        Phase::Partial => "Partial",
        Phase::Verified => "Verified",
    }
}

/// At most [`NAMED`] of a list, and how many more there are.
fn listed(items: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = items.collect();
    let more = all.len().saturating_sub(NAMED);
    let mut out = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = write!(out, " and {more} more");
    }
    out
}

fn partial(pass: &Pass<'_>) -> String {
    let done = pass.v.completed_node_ids.len();
    let mut message = format!("{done} of {} local storage nodes finished", pass.f.local.len());
    if !pass.deferred.is_empty() {
        let names = listed(pass.deferred.values().map(|d| {
            let reason = match d.reason {
                DeferReason::Down => "Down",
                DeferReason::NotReporting => "NotReporting",
                DeferReason::RepairFailed => "RepairFailed",
            };
            format!("{} ({reason})", d.node_id.short())
        }));
        let _ = write!(message, "; deferred: {names}");
    }
    if !pass.e.tables_recheck_node_ids.is_empty() {
        let names = listed(pass.e.tables_recheck_node_ids.iter().map(NodeId::short));
        let _ = write!(message, "; a peer was missed in the tables turn of: {names}");
    }
    if let Some((viewer, unseen)) = pass.f.unseen.first() {
        let _ = write!(message, "; node {} does not see node {} up", viewer.short(), unseen.short());
    }
    if let Some(what) = &pass.notes.precondition {
        let _ = write!(message, "; {what}");
    }
    if pass.deferred.values().any(|d| d.reason == DeferReason::RepairFailed) {
        let _ = write!(message, "; a new value of {ANNOTATION} tries a failed repair again");
    }
    message
}

fn verified(pass: &Pass<'_>, r: &Redundancy) -> Condition {
    let counts = r.storage_nodes.unwrap_or_default();
    let version = pass.v.layout_version.unwrap_or_default();
    let (reason, mut message) = if r.scope == Some(Scope::Cluster) {
        (
            Reason::Verified,
            format!(
                "Full redundancy verified on layout version {version} for all {} storage nodes",
                counts.total
            ),
        )
    } else {
        let site = if pass.f.follower() { "follower-local" } else { "writer-local" };
        (
            Reason::VerifiedLocal,
            format!(
                "{}/{} federated storage nodes verified ({site}); metadata of the other sites rests on Garage's \
                 own anti-entropy",
                counts.verified, counts.total
            ),
        )
    };
    message.push_str("; presence of blocks is proven, not their content");
    if pass.e.sync_metrics_unread == Some(true) {
        message.push_str(
            "; failed sync calls could not be counted on every node, so tables turns rest on what was observed",
        );
    }
    Condition::new(ConditionStatus::True, reason, message)
}

fn not_verified(pass: &Pass<'_>) -> String {
    let here = if pass.f.federated { " on the GarageCluster of this site" } else { "" };
    let next = format!("set the annotation {ANNOTATION} to a new value{here} to request a proof");
    if let Some(why) = &pass.notes.idle_because {
        return format!("{why}; {next}");
    }
    // Why the last proof fell is known in the pass that saw it; afterwards its own message keeps it.
    if let Some(c) = &pass.f.site.condition
        && c.reason == Reason::NotVerified.as_str()
        && c.message.ends_with(&next)
        && pass.v.verified_at.is_some()
    {
        return c.message.clone();
    }
    let why = match (pass.v.verified_at, pass.f.storage.is_empty()) {
        (_, true) => "the layout has no storage node".to_owned(),
        (None, _) => "no proof was completed yet".to_owned(),
        (Some(at), _) => format!("the proof of {at} does not stand any more"),
    };
    format!("{why}; {next}")
}
