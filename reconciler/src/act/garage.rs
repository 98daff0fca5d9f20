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
    /// `PreviewClusterLayoutChanges`: the layout that an apply of everything staged would make; `None`: Garage would
    /// refuse it.
    fn preview_layout(
        &self,
        at: Option<NodeId>,
    ) -> impl Future<Output = Result<Option<Layout>, CallFailure>> + Send;
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

pub(crate) async fn perform<G: GarageCalls>(action: &Action, garage: &G) -> Outcome {
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
    if before.staged_parameters.is_some()
        || before.staged.iter().any(|have| !staged.iter().any(|own| same_change(own, have)))
    {
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
    // R2: what would come of it. A preview changes nothing, so that its failure is certain.
    match garage.preview_layout(at).await {
        Ok(Some(preview)) if roles_hold(&preview, staged) => {}
        Ok(Some(_)) => return refuse("the preview does not hold the roles that are staged".to_owned()),
        Ok(None) => return refuse("Garage would refuse it (preview)".to_owned()),
        Err(_) => {
            return Outcome::NotExecuted(Refusal::Garage("the layout could not be previewed".to_owned()));
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::sync::Mutex;

    use super::*;
    use crate::observe::{LayoutParameters, Role, ZoneRedundancy};

    fn id(byte: u8) -> NodeId {
        NodeId::from_bytes([byte; 32])
    }

    fn change(byte: u8) -> StagedChange {
        StagedChange {
            id: id(byte),
            role: Some(Role { zone: "z".into(), capacity: Some(1 << 30), tags: vec![] }),
        }
    }

    /// One node's layout; `late` is staged by another hand between a read and the next call.
    struct Node {
        layout: Mutex<Layout>,
        late: Option<StagedChange>,
        fail: bool,
        refuses: bool,
        applied: Mutex<u32>,
    }

    fn node(staged: Vec<StagedChange>) -> Node {
        Node {
            layout: Mutex::new(Layout {
                version: LayoutVersion(1),
                roles: std::collections::BTreeMap::new(),
                parameters: LayoutParameters { zone_redundancy: ZoneRedundancy::Maximum },
                staged,
                staged_parameters: None,
            }),
            late: None,
            fail: false,
            refuses: false,
            applied: Mutex::new(0),
        }
    }

    impl GarageCalls for Node {
        async fn layout(&self, _: Option<NodeId>) -> Result<Layout, CallFailure> {
            Ok(self.layout.lock().unwrap().clone())
        }
        async fn update_layout(
            &self,
            _: Option<NodeId>,
            changes: &[StagedChange],
        ) -> Result<Layout, CallFailure> {
            let mut layout = self.layout.lock().unwrap();
            layout.staged.extend(changes.iter().cloned());
            layout.staged.extend(self.late.clone());
            Ok(layout.clone())
        }
        async fn preview_layout(&self, _: Option<NodeId>) -> Result<Option<Layout>, CallFailure> {
            let mut layout = self.layout.lock().unwrap().clone();
            for change in std::mem::take(&mut layout.staged) {
                layout.roles.insert(change.id, change.role.unwrap());
            }
            Ok((!self.refuses).then_some(layout))
        }
        async fn apply_layout(
            &self,
            _: Option<NodeId>,
            version: LayoutVersion,
        ) -> Result<Layout, CallFailure> {
            *self.applied.lock().unwrap() += 1;
            let mut layout = self.layout.lock().unwrap();
            layout.version = version;
            for change in std::mem::take(&mut layout.staged) {
                layout.roles.insert(change.id, change.role.unwrap());
            }
            if self.fail {
                Err(CallFailure::Unknown("the connection was cut".into()))
            } else {
                Ok(layout.clone())
            }
        }
        async fn skip_dead_nodes(
            &self,
            _: Option<NodeId>,
            _: LayoutVersion,
        ) -> Result<Vec<NodeId>, CallFailure> {
            Ok(vec![])
        }
        async fn connect_nodes(&self, _: SocketAddr, peers: &[Peer]) -> Result<Vec<bool>, CallFailure> {
            Ok(vec![true; peers.len()])
        }
        async fn launch_repair(&self, _: NodeId, _: RepairKind) -> Result<(), CallFailure> {
            Ok(())
        }
        async fn set_worker_variable(&self, _: NodeId, _: &str, _: &str) -> Result<(), CallFailure> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn nothing_is_staged_beside_changes_of_another_hand() {
        let node = node(vec![change(9)]);
        let outcome = update(&node, None, LayoutVersion(1), &[change(1)], &[change(1)]).await;
        assert!(matches!(outcome, Outcome::NotExecuted(Refusal::Layout(_))), "{outcome:?}");
        assert_eq!(node.layout.lock().unwrap().staged, [change(9)]);
    }

    #[tokio::test]
    async fn nothing_is_applied_when_another_hand_staged_in_between() {
        let mut node = node(vec![]);
        node.late = Some(change(9));
        let staged = update(&node, None, LayoutVersion(1), &[change(1)], &[change(1)]).await;
        assert!(matches!(staged, Outcome::NotExecuted(Refusal::Layout(_))), "{staged:?}");
        let applied = apply(&node, None, LayoutVersion(2), &[change(1)]).await;
        assert!(matches!(applied, Outcome::NotExecuted(Refusal::Layout(_))), "{applied:?}");
        assert_eq!(*node.applied.lock().unwrap(), 0);
    }

    #[tokio::test]
    async fn an_apply_with_nothing_staged_is_never_sent() {
        let node = node(vec![]);
        let outcome = apply(&node, None, LayoutVersion(2), &[]).await;
        assert!(matches!(outcome, Outcome::NotExecuted(_)), "{outcome:?}");
        assert_eq!(*node.applied.lock().unwrap(), 0);
    }

    #[tokio::test]
    async fn a_layout_that_the_preview_refuses_is_never_applied() {
        let mut node = node(vec![change(1)]);
        node.refuses = true;
        let outcome = apply(&node, None, LayoutVersion(2), &[change(1)]).await;
        assert!(matches!(outcome, Outcome::NotExecuted(Refusal::Layout(_))), "{outcome:?}");
        assert_eq!(*node.applied.lock().unwrap(), 0);
    }

    #[tokio::test]
    async fn after_a_lost_answer_the_roles_say_that_it_was_done_and_it_is_not_done_twice() {
        let mut node = node(vec![change(1)]);
        node.fail = true;
        let lost = apply(&node, None, LayoutVersion(2), &[change(1)]).await;
        assert!(matches!(lost, Outcome::Unknown(_)), "{lost:?}");
        let again = apply(&node, None, LayoutVersion(2), &[change(1)]).await;
        assert!(again.executed(), "{again:?}");
        assert_eq!(*node.applied.lock().unwrap(), 1);
    }

    #[tokio::test]
    async fn a_version_that_another_hand_made_is_not_taken_for_ours() {
        let node = node(vec![change(9)]);
        node.apply_layout(None, LayoutVersion(2)).await.unwrap();
        let outcome = apply(&node, None, LayoutVersion(2), &[change(1)]).await;
        assert!(matches!(outcome, Outcome::NotExecuted(Refusal::Layout(_))), "{outcome:?}");
    }
}
