//! Figures of the passes. No object names beyond namespace and cluster.

use std::time::Duration;

use holdfast_crds::v1beta2::GarageCluster;
use kube::runtime::reflector::ObjectRef;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::observe::GarageView;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cluster {
    namespace: String,
    cluster: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pass {
    result: &'static str,
}

/// Figures of all passes of this process.
#[derive(Debug, Clone)]
pub struct Metrics {
    passes: Family<Pass, Counter>,
    duration: Histogram,
    calls: Family<Cluster, Counter>,
    observed: Family<Cluster, Gauge>,
    actions: Family<Pass, Counter>,
}

impl Metrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            passes: Family::default(),
            duration: Histogram::new([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]),
            calls: Family::default(),
            observed: Family::default(),
            actions: Family::default(),
        };
        registry.register("passes", "passes over a GarageCluster, by result", metrics.passes.clone());
        registry.register_with_unit(
            "pass_duration",
            "time of one pass",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register("admin_calls", "Admin API calls of the passes", metrics.calls.clone());
        registry.register(
            "garage_observed",
            "1 while Garage could be observed in the last pass",
            metrics.observed.clone(),
        );
        registry.register("actions", "writes to Kubernetes and Garage, by result", metrics.actions.clone());
        metrics
    }

    pub(super) fn pass(&self, cluster: &ObjectRef<GarageCluster>, took: Duration, ok: bool) {
        tracing::debug!(%cluster, ?took, ok, "pass");
        self.passes.get_or_create(&Pass { result: if ok { "ok" } else { "error" } }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    pub(super) fn observed(&self, namespace: &str, cluster: &str, view: &GarageView) {
        let labels = Cluster { namespace: namespace.to_owned(), cluster: cluster.to_owned() };
        self.calls.get_or_create(&labels).inc_by(u64::from(view.calls));
        self.observed.get_or_create(&labels).set(i64::from(view.core.is_ok()));
    }

    pub(super) fn action(&self, result: &'static str) {
        self.actions.get_or_create(&Pass { result }).inc();
    }

    /// Drops the figures of a cluster that is gone.
    pub(super) fn forget(&self, namespace: &str, cluster: &str) {
        let labels = Cluster { namespace: namespace.to_owned(), cluster: cluster.to_owned() };
        self.calls.remove(&labels);
        self.observed.remove(&labels);
    }
}
