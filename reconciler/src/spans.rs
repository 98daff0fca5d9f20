//! Spans of a pass, of its Admin API calls and of its writes to Kubernetes, for a collector of traces. Without one
//! their callsites are off, and none is made. No names but those of the namespace and the cluster.

use tracing::Span;
use tracing::field::Empty;

use crate::act::{Action, Outcome};
use crate::garage::Error as CallError;

/// The target of this crate's spans: a subscriber that wants no traces switches it off.
pub const SPANS: &str = "holdfast_reconciler::spans";

/// Begins the span of one pass over a cluster: the root of what it does.
pub(crate) fn pass(namespace: Option<&str>, cluster: &str) -> Span {
    tracing::info_span!(
        target: SPANS,
        parent: None,
        "pass",
        otel.status_code = Empty,
        namespace = namespace.unwrap_or_default(),
        cluster,
        result = Empty,
    )
}

/// Begins the span of one call to a Garage process; `endpoint` is the call's name alone.
pub(crate) fn admin_call(endpoint: &str) -> Span {
    tracing::info_span!(
        target: SPANS,
        "admin call",
        otel.kind = "client",
        otel.status_code = Empty,
        endpoint,
        outcome = Empty,
    )
}

/// Says how a call ended: `ok`, or why it has no usable answer.
pub(crate) fn answered<T>(span: &Span, answer: &Result<T, CallError>) {
    if span.is_disabled() {
        return;
    }
    match answer {
        Ok(_) => span.record("outcome", "ok"),
        Err(error) => {
            span.record("outcome", tracing::field::display(error)).record("otel.status_code", "error")
        }
    };
}

/// Begins the span of one write to Kubernetes; none for what goes to Garage, whose calls have their own.
pub(crate) fn write(action: &Action) -> Span {
    let (verb, kind) = match action {
        Action::Create(object) => ("create", object.kind),
        Action::Update(object) => ("update", object.kind),
        Action::Patch { target, dry_run: true, .. } => ("dry run", target.kind),
        Action::Patch { target, .. } => ("patch", target.kind),
        Action::MergeStatus { target, .. } => ("status", target.kind),
        Action::Delete { target, .. } => ("delete", target.kind),
        Action::Event(event) => ("event", event.regarding.kind),
        Action::ConnectNodes { .. }
        | Action::UpdateLayout { .. }
        | Action::ApplyLayout { .. }
        | Action::SkipDeadNodes { .. }
        | Action::LaunchRepair { .. }
        | Action::SetWorkerVariable { .. } => return Span::none(),
    };
    tracing::info_span!(
        target: SPANS,
        "kubernetes write",
        otel.kind = "client",
        otel.status_code = Empty,
        action = verb,
        kind = kind.as_str(),
        outcome = Empty,
    )
}

/// Says what became of a write, in the words of `garage_holdfast_actions_total`.
pub(crate) fn done(span: &Span, outcome: &Outcome) {
    let word = match outcome {
        Outcome::Executed(_) => "executed",
        Outcome::NotExecuted(_) => "refused",
        Outcome::Unknown(_) => {
            span.record("otel.status_code", "error");
            "unknown"
        }
    };
    span.record("outcome", word);
}
