//! `garage-holdfast serve`: wires the parts and supervises them. Any part that ends, ends the process.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use holdfast_certs::inject::Places;
use holdfast_certs::manage::{Expiry, Files, SelfSigned, Trust};
use holdfast_certs::phase::Policy;
use holdfast_reconciler::controller::{self, Settings};
use holdfast_reconciler::lease::{Election, Timing};
use holdfast_reconciler::{caches, pool};
use holdfast_webhook::{CertSlot, Config, KubeLookups, Server};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::cli::{CertsSource, ServeArgs};
use crate::metrics::Observable;
use crate::traces::{Pod, Traces};
use crate::{fail, logging};

/// How long everything may take to end after the signal: below the chart's grace period of 30 s.
const SHUTDOWN: Duration = Duration::from_secs(25);

/// Runs until a signal (success) or until a part ends (failure).
pub fn main(args: Box<ServeArgs>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(format!("the runtime could not be started: {error}")),
    };
    let pod = Pod { name: &args.pod_name, namespace: &args.pod_namespace };
    let traces = match Traces::start(&args.otlp_endpoint, &pod, runtime.handle()) {
        Ok(traces) => traces,
        Err(what) => return fail(what),
    };
    if let Err(what) = logging::start(&args.log, args.log_format, traces.as_ref()) {
        return fail(what);
    }
    if let Some(traces) = &traces {
        tracing::info!(endpoint = traces.endpoint(), "traces are handed over");
    }
    let code = match runtime.block_on(serve(*args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            tracing::error!("{what}");
            ExitCode::FAILURE
        }
    };
    if let Some(traces) = traces {
        traces.finish();
    }
    // A part that does not end (a blocking read) must not hold the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

/// The Kubernetes client: bounded connects, no hidden retries (each caller has a deadline of its own).
async fn client() -> Result<Client, String> {
    let mut config = kube::Config::infer().await.map_err(|error| {
        format!(
            "no way to a Kubernetes API server: {error}; run in a Pod with a service account, or set KUBECONFIG to a file with a reachable cluster"
        )
    })?;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.default_retry = false;
    Client::try_from(config).map_err(|error| format!("the Kubernetes client could not be made: {error}; check the CA and the credentials in the kubeconfig"))
}

async fn serve(args: ServeArgs) -> Result<(), String> {
    let client = client().await?;
    let shutdown = CancellationToken::new();
    let mut registry = Registry::with_prefix("garage_holdfast");
    let mut parts: JoinSet<Result<(), String>> = JoinSet::new();
    // Those without an end of their own: stopped first, so that nothing is written while the rest drains.
    let mut endless: Vec<AbortHandle> = Vec::new();
    let mut watches: JoinSet<&'static str> = JoinSet::new();

    if args.unsafe_short_waits {
        tracing::warn!(
            "UNSAFE: the waiting times of the proof and of the CA's rotation are shortened; this process must not look after data that matters"
        );
    }

    // Leadership: one replica reconciles, rotates and injects.
    let me = format!("{}_{:08x}", args.pod_name, std::process::id() ^ started());
    let leases: Api<Lease> = Api::namespaced(client.clone(), &args.pod_namespace);
    let election = Election::new(leases, &args.lease, &me, Timing::default());
    let leadership = election.leadership();

    // Certificates.
    let slot = Arc::new(ArcSwapOption::empty());
    let expiry = Expiry::default();
    let mut policy = Policy::default().with_leaf_lifetime(args.certs_leaf_lifetime);
    if args.unsafe_short_waits {
        policy = policy.with_short_waits();
    }
    let trust = match args.certs_source {
        CertsSource::SelfSigned => Trust::default(),
        CertsSource::Files => Trust::of_others(),
    };
    match args.certs_source {
        CertsSource::SelfSigned => {
            let certs = SelfSigned {
                client: client.clone(),
                namespace: args.pod_namespace.clone(),
                secret: args.certs_secret.clone(),
                dns_names: dns_names(&args),
                places: Places {
                    webhook_configuration: args.inject_webhook_configuration.clone(),
                    crd: args.inject_crd.clone(),
                },
                policy,
                slot: slot.clone(),
                expiry: expiry.clone(),
                trust: trust.clone(),
            };
            let leads = leadership.clone();
            endless.push(parts.spawn(async move {
                certs.run(move || leads.is_leader()).await;
                Err("certificates: ended".to_owned())
            }));
        }
        CertsSource::Files => {
            let files = Files { dir: args.certs_dir.clone(), slot: slot.clone(), expiry: expiry.clone() };
            endless.push(parts.spawn(async move {
                files.run().await;
                Err("certificates: ended".to_owned())
            }));
        }
    }

    // Webhooks: on every replica, with or without leadership.
    let garage_nodes = namespaces(&args)
        .map(|namespace| caches::watch_garage_nodes(&client, namespace, &mut watches))
        .collect::<Vec<_>>();
    let lookups = Arc::new(KubeLookups::new(client.clone(), garage_nodes, Duration::from_secs(2)));
    let mut config = Config::new(args.webhook_listen);
    config.max_connections = config.max_connections.min(connections(descriptors()));
    let server = Server::bind(config, CertSlot::new(slot), lookups, &mut registry)
        .map_err(|error| error.to_string())?;
    let readiness = server.readiness();
    let drained = shutdown.clone();
    parts.spawn_blocking(move || {
        server.run_here(drained.clone()).map_err(|error| format!("webhooks: {error}"))?;
        if drained.is_cancelled() { Ok(()) } else { Err("webhooks: the listener ended".to_owned()) }
    });

    // The reconciler: in the leader only.
    let settings = Settings {
        pools: pool::Settings {
            manage: args.pools_manage,
            cluster_domain: args.cluster_domain.clone(),
            ..pool::Settings::default()
        },
        short_waits: args.unsafe_short_waits,
    };
    let metrics = controller::Metrics::register(&mut registry);
    for namespace in namespaces(&args) {
        let run = controller::run(
            client.clone(),
            namespace.map(str::to_owned),
            settings.clone(),
            leadership.clone(),
            metrics.clone(),
        );
        endless.push(parts.spawn(async move { Err(format!("reconciler: {}", run.await)) }));
    }
    let given_back = shutdown.clone();
    parts.spawn(
        async move { election.run(given_back.cancelled_owned()).await.map_err(|lost| lost.to_string()) },
    );

    // Health and metrics.
    registry.register_collector(Box::new(Process {
        expiry,
        leadership,
        short_waits: args.unsafe_short_waits,
    }));
    let missing = Box::new(move || readiness.missing().or_else(|| trust.missing()));
    let observable = Observable { registry, missing };
    parts.spawn(crate::metrics::serve(args.metrics_listen, observable, shutdown.clone()));

    tracing::info!(version = env!("CARGO_PKG_VERSION"), webhooks = %args.webhook_listen, metrics = %args.metrics_listen, "started");
    supervise(parts, endless, watches, shutdown).await
}

/// How many file descriptors this process may have, once it was allowed as many as it may be. Containers often begin
/// with 1,024, fewer than the webhooks' connections alone.
fn descriptors() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    /// More than all of this process needs, and no table of millions for the kernel.
    const ENOUGH: u64 = 16 << 10;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1024 };
    let wanted = hard.min(ENOUGH);
    if wanted > soft {
        match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
            Ok(()) => return wanted,
            Err(error) => tracing::warn!(%error, soft, "the limit of file descriptors could not be raised"),
        }
    }
    soft
}

/// How many of them the webhooks' connections may take: whoever floods them must not keep the reconciler from the API
/// server and from Garage.
fn connections(descriptors: u64) -> usize {
    usize::try_from(descriptors / 2).unwrap_or(usize::MAX)
}

/// Waits for a signal, or for the first part that ends; then lets the others finish.
async fn supervise(
    mut parts: JoinSet<Result<(), String>>,
    endless: Vec<AbortHandle>,
    mut watches: JoinSet<&'static str>,
    shutdown: CancellationToken,
) -> Result<(), String> {
    let mut terminate = signal(SignalKind::terminate()).map_err(|e| format!("no signal handler: {e}"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|e| format!("no signal handler: {e}"))?;
    let ended = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        Some(part) = parts.join_next() => Err(match part {
            Ok(Err(what)) => what,
            Ok(Ok(())) => "a part ended without a reason".to_owned(),
            Err(panic) => format!("a part failed: {panic}"),
        }),
        Some(watch) = watches.join_next() => Err(format!("the watch of {} ended", watch.unwrap_or("a kind"))),
    };
    tracing::info!(failed = ended.is_err(), "shutting down");
    endless.iter().for_each(AbortHandle::abort);
    watches.abort_all();
    // Now the webhooks drain, the lease is given back, and the metrics server closes.
    shutdown.cancel();
    let finish = async { while parts.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN, finish).await.is_err() {
        tracing::warn!("requests were still in flight at the end of the shutdown time");
    }
    ended
}

/// The watched namespaces; one `None` means all.
fn namespaces(args: &ServeArgs) -> impl Iterator<Item = Option<&str>> {
    let all = args.namespaces.is_empty().then_some(None);
    args.namespaces.iter().map(|n| Some(n.as_str())).chain(all)
}

/// Names under which the API server may call the Service.
fn dns_names(args: &ServeArgs) -> Vec<String> {
    let short = format!("{}.{}.svc", args.service, args.pod_namespace);
    vec![short.clone(), format!("{short}.{}", args.cluster_domain)]
}

/// Something that differs between two processes of the same Pod (a restarted container).
fn started() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.subsec_nanos()
}

/// Figures of the process itself, read when they are scraped.
#[derive(Debug)]
struct Process {
    expiry: Expiry,
    leadership: holdfast_reconciler::lease::Leadership,
    short_waits: bool,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: i64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        gauge("leader", "1 in the replica that reconciles", i64::from(self.leadership.is_leader()))?;
        gauge(
            "certificate_not_after_timestamp_seconds",
            "end of the serving certificate, seconds since the epoch; 0 until there is one",
            self.expiry.seconds(),
        )?;
        gauge(
            "unsafe_short_waits",
            "1 when the waiting times of the proof are shortened (test beds only)",
            i64::from(self.short_waits),
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_webhooks_leave_half_of_the_file_descriptors_to_the_reconciler() {
        assert_eq!(connections(1024), 512);
        let raised = descriptors();
        assert!(raised >= 1024, "{raised}");
        assert_eq!(raised, descriptors(), "once raised it stays");
    }

    /// Every series name that this process can show.
    fn names() -> BTreeSet<String> {
        let mut registry = Registry::with_prefix("garage_holdfast");
        let listen = "127.0.0.1:0".parse().unwrap();
        let slot = CertSlot::new(Arc::new(ArcSwapOption::empty()));
        let _server =
            Server::bind(Config::new(listen), slot, Arc::new(holdfast_webhook::NoLookups), &mut registry)
                .unwrap();
        let _metrics = controller::Metrics::register(&mut registry);
        let leases: Api<Lease> = Api::namespaced(
            Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap(),
            "x",
        );
        let leadership = Election::new(leases, "x", "x", Timing::default()).leadership();
        registry.register_collector(Box::new(Process {
            expiry: Expiry::default(),
            leadership,
            short_waits: false,
        }));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let mut names = BTreeSet::new();
        for line in text.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            let ends: &[&str] = match kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            names.extend(ends.iter().map(|end| format!("{name}{end}")));
        }
        // A family without a series writes no line; the registry's own words have its name.
        let registry = format!("{registry:?}");
        for (at, key) in registry.match_indices("name: \"") {
            let name = registry[at + key.len()..].split('"').next().unwrap();
            let name = format!("garage_holdfast_{}", name.trim_start_matches("garage_holdfast_"));
            if !names.iter().any(|known| known.starts_with(&name)) {
                names.insert(if name.ends_with("observed") || name.ends_with("_seconds") {
                    name
                } else {
                    name + "_total"
                });
            }
        }
        names
    }

    fn files(directory: &Path, out: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, out);
            } else {
                out.push(path);
            }
        }
    }

    #[tokio::test]
    async fn every_metric_that_alerts_dashboard_and_docs_name_exists() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let names = names();
        assert!(
            names.contains("garage_holdfast_leader") && names.contains("garage_holdfast_passes_total"),
            "{names:?}"
        );
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut sources = Vec::new();
        for folder in ["charts/garage-holdfast/templates", "docs/src"] {
            files(&root.join(folder), &mut sources);
        }
        sources.push(root.join("charts/garage-holdfast/files/dashboard.json"));
        let mut seen = 0;
        for file in sources {
            let Ok(text) = std::fs::read_to_string(&file) else { continue };
            for (at, prefix) in text.match_indices("garage_holdfast_") {
                let rest = &text[at + prefix.len()..];
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                if end == 0 {
                    continue;
                }
                seen += 1;
                let name = format!("{prefix}{}", &rest[..end]);
                let base = name.strip_suffix("_bucket").unwrap_or(&name);
                let known = [name.as_str(), base].iter().any(|n| names.contains(*n));
                let known = known || names.contains(&format!("{base}_bucket"));
                assert!(known, "{}: {name} is no metric of this binary", file.display());
            }
        }
        assert!(seen > 30, "only {seen} metrics are named");
    }

    #[tokio::test]
    async fn every_metric_is_described_in_the_docs() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/metrics.md"))
            .unwrap();
        for name in names() {
            let base =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
            assert!(page.contains(&format!("`{base}`")) || page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
