//! The loop: which cluster gets a pass when, and what one pass does in which order.
//!
//! A pass reads (the cluster live, the rest from caches, Garage through one live endpoint), lets the pure
//! steps decide, writes the status once, and performs the actions. What must not be lost is in the status
//! before an action rests on it; a pass that could not write it performs nothing (section 14).

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use holdfast_crds::v1beta2::GarageCluster;
use kube::Client;
use kube::runtime::controller::{Action as Requeue, Config, ReconcileReason, ReconcileRequest, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use crate::caches::{self, Wake, Wakes};
use crate::garage::{Deadlines, Http};
use crate::lease::Leadership;
use crate::observe::kubernetes::Stores;
use crate::{pool, proof, spans};

mod figures;
mod metrics;
mod pass;
#[cfg(feature = "simulation")]
mod passes;
mod read;
mod serving;
#[cfg(test)]
pub(crate) use serving::say;

pub use metrics::Metrics;
#[cfg(feature = "simulation")]
pub use passes::Passes;

/// Passes under way at once. Each is mostly waiting; the bound is for the API servers' sake.
const CONCURRENCY: u16 = 8;
/// Wakes of one cluster within this time make one pass.
const DEBOUNCE: Duration = Duration::from_millis(300);
/// A pass comes at least this often, also when nothing happens (P16).
const IDLE: Duration = Duration::from_secs(60);
/// And this often while something is under way: membership, a proof, a hold, a refill.
const ACTIVE: Duration = Duration::from_secs(5);
/// After a pass that failed.
const FAILED: Duration = Duration::from_secs(10);
/// Deadline of one read of the API server.
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// What the reconciler is told (flags of `serve`).
#[derive(Debug, Clone)]
pub struct Settings {
    /// Pools.
    pub pools: pool::Settings,
    /// Shortened waiting times (test beds only).
    pub short_waits: bool,
}

/// Why a pass did not come to its end. The next one tries again; nothing is lost.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server could not be read.
    #[error("{0} could not be read from the API server")]
    Read(&'static str),
    /// What the pass rests on could not be read.
    #[error("{0}")]
    Load(String),
    /// The status could not be written; nothing was done that rests on it.
    #[error("the status could not be written: {0}")]
    Status(String),
    /// Leadership ran out in the middle; nothing more was written.
    #[error("leadership is running out")]
    NotLeading,
}

impl Error {
    /// The same in one word: the rest may quote what a server said.
    const fn word(&self) -> &'static str {
        match self {
            Self::Read(_) => "not read",
            Self::Load(_) => "not loaded",
            Self::Status(_) => "status not written",
            Self::NotLeading => "not leading",
        }
    }
}

/// What all passes share.
pub(crate) struct Shared {
    client: Client,
    http: Http,
    stores: Stores,
    settings: Settings,
    leadership: Leadership,
    metrics: Metrics,
    /// Per cluster what spares calls; losing it costs nothing else.
    memories: Mutex<HashMap<ObjectRef<GarageCluster>, Arc<AsyncMutex<pass::Memory>>>>,
}

impl Shared {
    /// The waiting times of the proof.
    fn timings(&self) -> proof::Timings {
        if self.settings.short_waits { proof::Timings::short() } else { proof::Timings::default() }
    }

    fn memory(&self, cluster: &ObjectRef<GarageCluster>) -> Arc<AsyncMutex<pass::Memory>> {
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        memories.entry(cluster.clone()).or_default().clone()
    }

    fn forget(&self, cluster: &ObjectRef<GarageCluster>) {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner).remove(cluster);
    }
}

/// Reconciles one namespace (or all) from the moment of leadership on. Returns only what ended it.
pub async fn run(
    client: Client,
    namespace: Option<String>,
    settings: Settings,
    mut leadership: Leadership,
    metrics: Metrics,
) -> String {
    let http = match Http::new(Deadlines::default()) {
        Ok(http) => http,
        Err(error) => return format!("the Admin API client could not be made: {error}"),
    };
    leadership.gained().await;
    let mut watches = JoinSet::new();
    let (clusters, stores, mut wakes) = caches::start(&client, namespace.as_deref(), &mut watches);
    while let Err(kind) = caches::filled(&clusters, &stores, &mut wakes, Duration::from_secs(30)).await {
        // The watches say why; this says what waits for them.
        tracing::error!(kind, "no pass yet: these could not be listed; see the watch's own message");
    }
    let shared =
        Arc::new(Shared { client, http, stores, settings, leadership, metrics, memories: Mutex::default() });
    let config = Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE);
    let passes = applier(reconcile, on_error, shared, clusters.clone(), requests(wakes, clusters), config);
    let mut passes = std::pin::pin!(passes);
    loop {
        tokio::select! {
            pass = passes.next() => match pass {
                // A cluster that is gone from the cache, or a pass whose error was already logged.
                Some(_) => {}
                None => return "the queue of passes ended".to_owned(),
            },
            watch = watches.join_next() => return match watch {
                Some(Ok(kind)) => format!("the watch of {kind} ended"),
                _ => "a watch failed".to_owned(),
            },
        }
    }
}

/// Turns wakes into requests; a wake of all is one for each cluster. Each is woken once to begin with: the wakes of the
/// first listing were thrown away.
fn requests(
    wakes: Wakes,
    clusters: Store<GarageCluster>,
) -> impl futures::Stream<Item = Result<ReconcileRequest<GarageCluster>, Infallible>> {
    let later = stream::unfold(wakes, |mut wakes| async move { Some((wakes.recv().await?, wakes)) });
    stream::once(std::future::ready(Wake::All)).chain(later).flat_map(move |wake| {
        let refs = match wake {
            Wake::Cluster(cluster) => vec![cluster],
            Wake::All => clusters.state().iter().map(|c| ObjectRef::from(&**c)).collect(),
        };
        stream::iter(
            refs.into_iter()
                .map(|obj_ref| Ok(ReconcileRequest { obj_ref, reason: ReconcileReason::Unknown })),
        )
    })
}

async fn reconcile_one(cluster: Arc<GarageCluster>, shared: Arc<Shared>) -> Result<Requeue, Error> {
    let name = ObjectRef::from(&*cluster);
    let memory = shared.memory(&name);
    let mut memory = memory.lock().await;
    let started = tokio::time::Instant::now();
    let span = spans::pass(name.namespace.as_deref(), &name.name);
    let result = pass::run(&cluster, &shared, &mut memory).instrument(span.clone()).await;
    shared.metrics.pass(&name, started.elapsed(), result.is_ok());
    match &result {
        Ok(_) => span.record("result", "ok"),
        Err(error) => span.record("result", error.word()).record("otel.status_code", "error"),
    };
    drop(span);
    match result {
        Ok(pass::Next::Gone) => {
            shared.forget(&name);
            Ok(Requeue::await_change())
        }
        Ok(pass::Next::Idle) => Ok(Requeue::requeue(IDLE)),
        Ok(pass::Next::Active(after)) => Ok(Requeue::requeue(after.min(IDLE))),
        Err(error) => Err(error),
    }
}

fn reconcile(
    cluster: Arc<GarageCluster>,
    shared: Arc<Shared>,
) -> futures::future::BoxFuture<'static, Result<Requeue, Error>> {
    Box::pin(reconcile_one(cluster, shared))
}

#[allow(clippy::needless_pass_by_value)] // The shape that `applier` asks for.
fn on_error(cluster: Arc<GarageCluster>, error: &Error, _: Arc<Shared>) -> Requeue {
    tracing::warn!(cluster = %ObjectRef::from(&*cluster), %error, "pass");
    Requeue::requeue(FAILED)
}
