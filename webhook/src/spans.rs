//! The span of a request, for a collector of traces. Without one its callsite is off, and none is made.

use tracing::Span;
use tracing::field::Empty;

/// The target of this crate's spans: a subscriber that wants no traces switches it off.
pub const SPANS: &str = "holdfast_webhook::spans";

/// Longest name that Kubernetes allows. Whoever writes a longer one is no API server.
const LONGEST_NAME: usize = 253;

/// Begins the span of one request. It ends when it is dropped.
pub(crate) fn request(route: &'static str) -> Span {
    tracing::info_span!(
        target: SPANS,
        parent: None,
        "webhook request",
        otel.kind = "server",
        otel.status_code = Empty,
        route,
        result = Empty,
        verdict = Empty,
        rule = Empty,
        namespace = Empty,
        cluster = Empty,
        objects = Empty,
    )
}

/// Says whose request it is. Of a GarageNode only the namespace: its name has the Node's in it.
pub(crate) fn whose(span: &Span, namespace: Option<&str>, cluster: Option<&str>) {
    if span.is_disabled() {
        return;
    }
    for (field, name) in [("namespace", namespace), ("cluster", cluster)] {
        if let Some(name) = name.filter(|name| !name.is_empty() && name.len() <= LONGEST_NAME) {
            span.record(field, name);
        }
    }
}

/// Says what became of it, in the words of the metrics.
pub(crate) fn ended(span: &Span, result: &'static str, fault: bool) {
    if fault {
        span.record("otel.status_code", "error");
    }
    span.record("result", result);
}
