//! What the server counts. The caller's registry gives the prefix.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Labels of `webhook_requests`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    /// Route, or `other`.
    pub route: &'static str,
    /// What became of it.
    pub result: &'static str,
}

/// Labels of `webhook_verdicts`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct VerdictLabels {
    /// `GarageCluster` or `GarageNode`.
    pub kind: &'static str,
    /// `allowed`, `refused`, `undecided` or `unreadable`.
    pub verdict: &'static str,
    /// The rule that refused, else empty.
    pub rule: &'static str,
}

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RouteLabel {
    /// Route.
    pub route: &'static str,
}

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabel {
    /// How it ended.
    pub outcome: &'static str,
}

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct LimitLabel {
    /// Which limit.
    pub limit: &'static str,
}

/// The server's metrics; clones share the values.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub requests: Family<RequestLabels, Counter>,
    pub verdicts: Family<VerdictLabels, Counter>,
    pub duration: Family<RouteLabel, Histogram>,
    pub converted: Histogram,
    pub open_connections: Gauge,
    pub connections: Family<OutcomeLabel, Counter>,
    pub overload: Family<LimitLabel, Counter>,
}

/// Seconds: 50 us, doubled up to about 13 s.
fn duration_histogram() -> Histogram {
    Histogram::new((0..19).map(|i| 0.000_05 * f64::from(1u32 << i)))
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            verdicts: Family::default(),
            duration: Family::new_with_constructor(duration_histogram),
            converted: Histogram::new([0.0, 1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0]),
            open_connections: Gauge::default(),
            connections: Family::default(),
            overload: Family::default(),
        };
        registry.register("webhook_requests", "Requests by route and result", metrics.requests.clone());
        registry.register(
            "webhook_verdicts",
            "Admission verdicts by kind and by the rule that refused",
            metrics.verdicts.clone(),
        );
        registry.register(
            "webhook_request_duration_seconds",
            "From the headers of a request to its answer, the body's arrival included",
            metrics.duration.clone(),
        );
        registry.register(
            "webhook_conversion_objects",
            "Objects in one conversion request",
            metrics.converted.clone(),
        );
        registry.register("webhook_open_connections", "Connections now", metrics.open_connections.clone());
        registry.register(
            "webhook_connections",
            "Connections by how they began",
            metrics.connections.clone(),
        );
        registry.register("webhook_overload_refusals", "Refusals for a limit", metrics.overload.clone());
        metrics
    }

    pub fn connection(&self, outcome: &'static str) {
        self.connections.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub fn overloaded(&self, limit: &'static str) {
        self.overload.get_or_create(&LimitLabel { limit }).inc();
    }
}
