//! Figures of the passes and of the sites. No object names beyond namespace and cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_crds::v1beta2::GarageCluster;
use kube::runtime::reflector::ObjectRef;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::figures::{Figures, Sites};
use crate::observe::{GarageView, judge};
use crate::status::Parts;

/// Which site.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct Cluster {
    pub namespace: String,
    pub cluster: String,
}

impl Cluster {
    fn new(namespace: &str, cluster: &str) -> Self {
        Self { namespace: namespace.to_owned(), cluster: cluster.to_owned() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pass {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Done {
    action: String,
    result: &'static str,
}

/// Figures of all passes of this process.
#[derive(Debug, Clone)]
pub struct Metrics {
    passes: Family<Pass, Counter>,
    duration: Histogram,
    calls: Family<Cluster, Counter>,
    errors: Family<Cluster, Counter>,
    observed: Family<Cluster, Gauge>,
    actions: Family<Done, Counter>,
    sites: Arc<Mutex<BTreeMap<Cluster, Figures>>>,
}

impl Metrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            passes: Family::default(),
            duration: Histogram::new([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]),
            calls: Family::default(),
            errors: Family::default(),
            observed: Family::default(),
            actions: Family::default(),
            sites: Arc::default(),
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
            "admin_errors",
            "Admin API answers that a pass missed, by node or for the whole site",
            metrics.errors.clone(),
        );
        registry.register(
            "garage_observed",
            "1 while Garage could be observed in the last pass",
            metrics.observed.clone(),
        );
        registry.register(
            "actions",
            "writes to Kubernetes and Garage, by kind and result",
            metrics.actions.clone(),
        );
        registry.register_collector(Box::new(Sites(metrics.sites.clone())));
        metrics
    }

    pub(super) fn pass(&self, cluster: &ObjectRef<GarageCluster>, took: Duration, ok: bool) {
        tracing::debug!(%cluster, ?took, ok, "pass");
        self.passes.get_or_create(&Pass { result: if ok { "ok" } else { "error" } }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    pub(super) fn observed(&self, namespace: &str, cluster: &str, view: &GarageView) {
        let labels = Cluster::new(namespace, cluster);
        self.calls.get_or_create(&labels).inc_by(u64::from(view.calls));
        self.errors.get_or_create(&labels).inc_by(silences(view));
        self.observed.get_or_create(&labels).set(i64::from(view.core.is_ok()));
        self.figures(labels, |figures| figures.room(view));
    }

    /// What a pass says of the site; without `news` only where nothing is known of it yet.
    pub(super) fn said(&self, namespace: &str, cluster: &str, parts: &Parts, news: bool) {
        self.figures(Cluster::new(namespace, cluster), |figures| {
            if news || !figures.is_known() {
                figures.take(parts);
            }
        });
    }

    /// `action` is its name, of which the first word is counted: the rest has names of objects.
    pub(super) fn action(&self, action: &str, result: &'static str) {
        let action = action.split(' ').next().unwrap_or_default().to_owned();
        self.actions.get_or_create(&Done { action, result }).inc();
    }

    /// Drops the figures of a cluster that is gone.
    pub(super) fn forget(&self, namespace: &str, cluster: &str) {
        let labels = Cluster::new(namespace, cluster);
        self.calls.remove(&labels);
        self.errors.remove(&labels);
        self.observed.remove(&labels);
        self.sites.lock().unwrap_or_else(PoisonError::into_inner).remove(&labels);
    }

    fn figures(&self, labels: Cluster, change: impl FnOnce(&mut Figures)) {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        change(sites.entry(labels).or_default());
    }
}

/// Answers that did not come.
fn silences(view: &GarageView) -> u64 {
    let missing = [
        usize::from(view.core.is_err()),
        view.workers.values().filter(|answer| answer.is_err()).count(),
        view.block_errors.values().filter(|answer| answer.is_err()).count(),
        view.peer_views.iter().flat_map(BTreeMap::values).filter(|answer| answer.is_err()).count(),
    ];
    missing.into_iter().map(|n| u64::try_from(n).unwrap_or(u64::MAX)).sum()
}

/// Storage nodes of the layout without room (O9). A partition that is not known is not counted: it is told elsewhere.
pub(super) fn without_room(view: &GarageView) -> Option<i64> {
    let core = view.core.as_ref().ok()?;
    let storage = core.layout.roles.iter().filter(|(_, role)| role.capacity.is_some_and(|c| c > 0));
    let full = storage
        .filter_map(|(id, _)| core.nodes.get(id))
        .filter(|node| matches!(judge::room(node), judge::Room::None(_)))
        .count();
    i64::try_from(full).ok()
}
