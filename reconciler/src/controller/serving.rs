//! The shell of a hold or a refill: what is written, said and done of a [`ServiceStep`].

use holdfast_crds::explain::{Urgency, explain};
use holdfast_crds::names::annotation::cluster::{OUT_OF_SERVICE, REPLACE_IDENTITY};
use kube::ResourceExt as _;

use super::pass::{kubernetes_only, perform, target};
use super::read::{self, Live};
use super::{Error, Shared};
use crate::act::{Action, Answer, Clients, Endpoints, Event, Outcome, Refusal};
use crate::service::ServiceStep;
use crate::status::Parts;

/// R1: asks the API server, and with it every admission webhook, whether it would accept writes that are to come.
/// `None`: an object changed since it was read.
pub(super) async fn check(shared: &Shared, checks: &[Action]) -> Result<Option<Result<(), String>>, Error> {
    for action in checks {
        match perform(shared, action, &kubernetes_only(shared)).await? {
            Outcome::Executed(_) => {}
            Outcome::NotExecuted(Refusal::Conflict(_)) => return Ok(None),
            // A fail-closed webhook that is down answers so: the real write would fail as well.
            Outcome::Unknown(why) => return Ok(Some(Err(why))),
            Outcome::NotExecuted(refusal) => return Ok(Some(Err(refusal.to_string()))),
        }
    }
    Ok(Some(Ok(())))
}

/// Puts the step into the pass's one status write.
pub(crate) fn say(step: &ServiceStep, parts: &mut Parts) -> Result<(), Error> {
    let service = step.service.as_ref().map(serde_json::to_value).transpose();
    let service = service
        .map_err(|e| Error::Status(format!("status.nodeLocalService cannot be written as JSON: {e}")))?;
    parts.node_local_service = Some(service);
    for (kind, said) in step.conditions() {
        match said {
            Some((status, reason, message)) => {
                parts.condition(kind.as_str(), *status, reason, message.clone());
            }
            None => parts.removed_conditions.push(kind.as_str().to_owned()),
        }
    }
    Ok(())
}

/// An Event for each reason that is new: what a person waits for is told once.
pub(super) async fn publish(shared: &Shared, live: &Live, step: &ServiceStep) -> Result<(), Error> {
    let before = live.cluster.status.as_ref();
    for (kind, said) in step.conditions() {
        let Some((_, reason, message)) = said else { continue };
        if before
            .and_then(|status| status.condition(kind.as_str()))
            .is_some_and(|condition| condition.reason == *reason)
        {
            continue;
        }
        let event = Event {
            regarding: target(&live.cluster),
            uid: live.cluster.metadata.uid.clone().unwrap_or_default(),
            warning: asks_for_a_person(kind.as_str(), reason),
            reason: (*reason).to_owned(),
            note: message.clone(),
        };
        let outcome = perform(shared, &Action::Event(event), &kubernetes_only(shared)).await?;
        if !outcome.executed() {
            tracing::debug!(?outcome, "event");
        }
    }
    Ok(())
}

/// Whether a person has to do something about it.
fn asks_for_a_person(kind: &str, reason: &str) -> bool {
    explain(kind, reason).is_some_and(|explanation| explanation.urgency == Urgency::Act)
}

/// Performs the step's actions in their order, and ends at the first that was not executed. Right before, the
/// requests are read once more (H2): one that changed since this pass began is judged by the next pass.
pub(super) async fn act(
    shared: &Shared,
    live: &Live,
    step: &ServiceStep,
    clients: &Clients<Endpoints>,
) -> Result<bool, Error> {
    // R7: the cluster's memory is locked for the whole pass, so one hand of this process is on its layout; and a
    // layout that several GarageClusters share is federated, where V8 lets no service begin.
    let (namespace, name) = (live.cluster.namespace().unwrap_or_default(), live.cluster.name_any());
    let Some(fresh) = read::live(&shared.client, &namespace, &name).await? else { return Ok(false) };
    let same = |key: &str| fresh.cluster.annotation(key) == live.cluster.annotation(key);
    if fresh.cluster.metadata.uid != live.cluster.metadata.uid
        || !same(OUT_OF_SERVICE)
        || !same(REPLACE_IDENTITY)
    {
        tracing::info!(cluster = %name, "the request changed during the pass; the next one judges it");
        return Ok(true);
    }
    let replaced = step.service.as_ref().and_then(|service| service.replacement.as_ref());
    for action in &step.actions {
        let outcome = perform(shared, action, clients).await?;
        if let Outcome::Executed(Answer::Skipped(acked)) = &outcome
            && let Some(other) = acked.iter().find(|id| Some(**id) != replaced.map(|r| r.old_node_id))
        {
            // R4: judged by the history; but somebody else was down at that very moment.
            tracing::warn!(node = %other.short(), "a skip of dead nodes acknowledged for another node than the replaced one");
        }
        if !outcome.executed() {
            break;
        }
    }
    Ok(true)
}
