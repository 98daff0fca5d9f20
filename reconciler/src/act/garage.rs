//! Writes to Garage.

use std::future::Future;
use std::net::SocketAddr;

use holdfast_crds::ids::{LayoutVersion, NodeId};

use super::{Action, Answer, Outcome, Peer, Refusal, RepairKind, is_exactly_staged, roles_hold, same_change};
use crate::observe::{Layout, StagedChange};

/// How a call to Garage failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallFailure {
    /// It certainly was not executed: connection refused, 4xx, `Not connected` (P10).
    NotExecuted(Refusal),
    /// It may have been, or may still be. A fixed phrase.
    Unknown(String),
}

impl From<CallFailure> for Outcome {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::NotExecuted(refusal) => Self::NotExecuted(refusal),
            CallFailure::Unknown(why) => Self::Unknown(why),
        }
    }
}

/// The calls that change something in Garage. `at: None` is the endpoint that the pass believed.
pub trait GarageCalls: Sync {
    /// `GetClusterLayout` on one node.
    fn layout(&self, at: Option<NodeId>) -> impl Future<Output = Result<Layout, CallFailure>> + Send;
    /// `UpdateClusterLayout` with role changes; answers the layout with everything staged.
    fn update_layout(
        &self,
        at: Option<NodeId>,
        changes: &[StagedChange],
    ) -> impl Future<Output = Result<Layout, CallFailure>> + Send;
    /// `ApplyClusterLayout`; answers the new layout.
    fn apply_layout(
        &self,
        at: Option<NodeId>,
        version: LayoutVersion,
    ) -> impl Future<Output = Result<Layout, CallFailure>> + Send;
    /// `ClusterLayoutSkipDeadNodes` with `allowMissingData: false`; answers `ackUpdated`.
    fn skip_dead_nodes(
        &self,
        at: Option<NodeId>,
        version: LayoutVersion,
    ) -> impl Future<Output = Result<Vec<NodeId>, CallFailure>> + Send;
    /// `ConnectClusterNodes` at the endpoint of one Pod; answers per peer whether it worked.
    fn connect_nodes(
        &self,
        at: SocketAddr,
        peers: &[Peer],
    ) -> impl Future<Output = Result<Vec<bool>, CallFailure>> + Send;
    /// `LaunchRepairOperation?node=<node>`; `Ok` only if the node is in the `success` map (O7).
    fn launch_repair(
        &self,
        node: NodeId,
        kind: RepairKind,
    ) -> impl Future<Output = Result<(), CallFailure>> + Send;
    /// `SetWorkerVariable?node=<node>`; `Ok` only if the node is in the `success` map.
    fn set_worker_variable(
        &self,
        node: NodeId,
        variable: &str,
        value: &str,
    ) -> impl Future<Output = Result<(), CallFailure>> + Send;
}

pub(super) async fn perform<G: GarageCalls>(action: &Action, garage: &G) -> Outcome {
    let done = |result: Result<(), CallFailure>| match result {
        Ok(()) => Outcome::Executed(Answer::Done),
        Err(failure) => failure.into(),
    };
    match action {
        Action::UpdateLayout { at, base, changes, staged } => {
            update(garage, *at, *base, changes, staged).await
        }
        Action::ApplyLayout { at, version, staged } => apply(garage, *at, *version, staged).await,
        Action::SkipDeadNodes { at, version } => match garage.skip_dead_nodes(*at, *version).await {
            Ok(acked) => Outcome::Executed(Answer::Skipped(acked)),
            Err(failure) => failure.into(),
        },
        Action::ConnectNodes { at, peers } => match garage.connect_nodes(*at, peers).await {
            Ok(connected) => Outcome::Executed(Answer::Connected(connected)),
            Err(failure) => failure.into(),
        },
        Action::LaunchRepair { node, kind } => done(garage.launch_repair(*node, *kind).await),
        Action::SetWorkerVariable { node, variable, value } => {
            done(garage.set_worker_variable(*node, variable, value).await)
        }
        Action::Create(_)
        | Action::Update(_)
        | Action::Patch { .. }
        | Action::MergeStatus { .. }
        | Action::Delete { .. }
        | Action::Event(_) => Outcome::NotExecuted(Refusal::Garage("not a call to Garage".to_owned())),
    }
}

/// Stages `changes` if the node is at `base` and nothing else than `staged` is there.
async fn update<G: GarageCalls>(
    garage: &G,
    at: Option<NodeId>,
    base: LayoutVersion,
    changes: &[StagedChange],
    staged: &[StagedChange],
) -> Outcome {
    // A failure here is certain: nothing was sent that could change anything.
    let Ok(before) = garage.layout(at).await else {
        return Outcome::NotExecuted(Refusal::Garage("the layout could not be read".to_owned()));
    };
    if before.version != base {
        return refuse(format!("version {} instead of {base}", before.version));
    }
    if before.staged_parameters.is_some() || before.staged.iter().any(|have| !staged.iter().any(|own| same_change(own, have))) {
        return refuse("changes that are not ours are staged".to_owned());
    }
    if changes.iter().all(|change| before.staged.iter().any(|have| same_change(have, change))) {
        return Outcome::Executed(Answer::Layout(before));
    }
    match garage.update_layout(at, changes).await {
        Ok(after) if is_exactly_staged(&after, staged) => Outcome::Executed(Answer::Layout(after)),
        Ok(_) => refuse("changes that are not ours were staged at the same time".to_owned()),
        Err(failure) => failure.into(),
    }
}

/// Applies if exactly `staged` is staged on the node, and checks the roles of the answer (R4).
async fn apply<G: GarageCalls>(
    garage: &G,
    at: Option<NodeId>,
    version: LayoutVersion,
    staged: &[StagedChange],
) -> Outcome {
    let Ok(before) = garage.layout(at).await else {
        return Outcome::NotExecuted(Refusal::Garage("the layout could not be read".to_owned()));
    };
    if before.version.next() != version {
        return if before.version == version && roles_hold(&before, staged) {
            Outcome::Executed(Answer::Layout(before))
        } else {
            refuse(format!("version {} does not come before {version}", before.version))
        };
    }
    // An apply with nothing staged succeeds and makes a version (R4a).
    if staged.is_empty() || !is_exactly_staged(&before, staged) {
        return refuse("what is staged is not exactly ours".to_owned());
    }
    match garage.apply_layout(at, version).await {
        Ok(after) if roles_hold(&after, staged) => Outcome::Executed(Answer::Layout(after)),
        Ok(_) => Outcome::Unknown("the applied layout does not hold the roles that were staged".to_owned()),
        Err(failure) => failure.into(),
    }
}

fn refuse(why: String) -> Outcome {
    Outcome::NotExecuted(Refusal::Layout(why))
}
