//! Certificates change under the requests of a real API server and of clients that make a connection for each request.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use holdfast_tests::bed::{Bed, wait};
use holdfast_tests::product::NAMESPACE;
use holdfast_tests::suite::TestResult;
use holdfast_tests::webhook_client::{Failure, WebhookClient};
use http::Method;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::support::{Place, bundle, clusters, let_one_lead, post, replicas, request, webhook_client};

const MINUTE: Duration = Duration::from_secs(60);
const DEPLOYMENT: &str = "deployment/garage-holdfast";
const CA_SECRET: &str = "garage-holdfast-ca";
/// The shortest that the product takes: renewed when 20 s are left.
const LEAF_SECONDS: &str = "60";

pub async fn a_stale_bundle_in_one_of_the_two_places_is_repaired(bed: Arc<Bed>) -> TestResult {
    let_one_lead(&bed).await?;
    let right = bundle(&bed, Place::Crd).await?;
    assert_eq!(bundle(&bed, Place::Configuration).await?, right);
    // Of an authority that nobody knows.
    let stale = rcgen::generate_simple_self_signed(vec!["stale".to_owned()])?.cert.pem();
    let stale = base64::engine::general_purpose::STANDARD.encode(stale);
    for place in [Place::Crd, Place::Configuration] {
        let field = match place {
            Place::Crd => "/spec/conversion/webhook/clientConfig/caBundle",
            Place::Configuration => "/webhooks/0/clientConfig/caBundle",
        };
        let change = json!([{"op": "replace", "path": field, "value": stale}]).to_string();
        bed.kubectl(&["patch", place.kind(), place.name(), "--type", "json", "-p", &change]).await?;
        let begun = Instant::now();
        while bundle(&bed, place).await? != right {
            assert!(begun.elapsed() < MINUTE, "the stale bundle of the {} stays", place.kind());
            sleep(Duration::from_millis(200)).await;
        }
        println!("the {}'s bundle was repaired after {:?}", place.kind(), begun.elapsed());
    }
    // Both work again.
    let said = bed.apply(&crate::support::probe("default", "not-a-pair").to_string()).await;
    assert!(said.is_err_and(|e| e.to_string().contains("V1 (")));
    bed.kubectl(&["-n", "many", "get", "garageclusters.v1beta1.garage.rajsingh.info"]).await?;
    Ok(())
}

pub async fn certificates_rotate_under_load_without_a_failed_request(bed: Arc<Bed>) -> TestResult {
    let_one_lead(&bed).await?;
    let load = Load::start(&bed).await?;
    // A rolling update, to leaves that live for a minute.
    let lifetime = format!("HOLDFAST_CERTS_LEAF_LIFETIME={LEAF_SECONDS}");
    bed.kubectl(&["-n", NAMESPACE, "set", "env", DEPLOYMENT, &lifetime]).await?;
    bed.kubectl(&["-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=120s"]).await?;
    let_one_lead(&bed).await?;

    let secrets: Api<Secret> = Api::namespaced(bed.client.clone(), NAMESPACE);
    let data = |secret: &Secret, key: &str| secret.data.as_ref().and_then(|data| data.get(key)).cloned();
    let first = data(&secrets.get(CA_SECRET).await?, "ca.crt").unwrap();
    let asked = ["annotate", "secret", CA_SECRET, "garage.rajsingh.info/rotate-webhook-ca=of-the-suite"];
    bed.kubectl(&[&["-n", NAMESPACE], &asked[..]].concat()).await?;
    wait::until(secrets.clone(), "the next CA published", MINUTE, |seen| {
        let secret = seen.get(CA_SECRET).ok_or("no Secret")?;
        data(secret, "next.crt").map(drop).ok_or_else(|| "no next CA".to_owned())
    })
    .await?;
    // A replica goes and another comes in the middle of it.
    let (leaving, _) = replicas(&bed).await?.into_iter().next().unwrap();
    bed.kubectl(&["-n", NAMESPACE, "delete", "pod", &leaving, "--wait=false"]).await?;
    wait::until(secrets, "the first CA retired", 4 * MINUTE, |seen| {
        let secret = seen.get(CA_SECRET).ok_or("no Secret")?;
        let switched = data(secret, "ca.crt").is_some_and(|now| now != first);
        if switched && data(secret, "previous.crt").is_none() && data(secret, "next.crt").is_none() {
            Ok(())
        } else {
            Err(format!("switched: {switched}"))
        }
    })
    .await?;
    // One more leaf of the new one.
    sleep(Duration::from_secs(45)).await;
    let report = load.stop().await?;
    println!("{}", report.summary());
    assert!(report.failures.is_empty(), "{}", report.table());
    // Two replicas, each with leaves of the first and of the second CA, renewed.
    assert!(report.certificates >= 6, "{}", report.summary());
    let text = String::from_utf8(bundle(&bed, Place::Crd).await?)?;
    assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 1, "the retired CA left the bundle");
    Ok(())
}

pub async fn a_killed_replica_is_replaced_and_no_certificate_is_refused(bed: Arc<Bed>) -> TestResult {
    let load = Load::start(&bed).await?;
    sleep(Duration::from_secs(5)).await;
    let victim = bed.replicas().await?.into_iter().next().unwrap();
    victim.agent.signal(NAMESPACE, &victim.pod, Signal::SIGKILL)?;
    let killed = Instant::now();
    while replicas(&bed).await?.len() == 2 && killed.elapsed() < Duration::from_secs(10) {
        sleep(Duration::from_millis(50)).await;
    }
    while replicas(&bed).await?.len() < 2 {
        assert!(killed.elapsed() < MINUTE, "{} was not replaced", victim.pod);
        sleep(Duration::from_millis(200)).await;
    }
    let replaced = Instant::now();
    sleep(Duration::from_secs(10)).await;
    let report = load.stop().await?;
    println!("replaced after {:?}; {}", replaced - killed, report.summary());
    // Requests that were under way to a process that is gone cannot be answered, nor those that go to its address
    // before Kubernetes knows; nobody is ever shown a certificate that he does not trust.
    let (during, other): (Vec<_>, Vec<_>) = report
        .failures
        .iter()
        .partition(|failure| failure.at >= killed && failure.at <= killed + Duration::from_secs(10));
    assert!(other.is_empty(), "{}", report.table());
    assert!(!during.iter().any(|failure| failure.of_certificate), "{}", report.table());
    Ok(())
}

/// A request that failed.
#[derive(Debug)]
struct Failed {
    at: Instant,
    of_certificate: bool,
    what: String,
}

#[derive(Default)]
struct Tally {
    by_api_server: AtomicU64,
    by_clients: AtomicU64,
    failures: Mutex<Vec<Failed>>,
    certificates: Mutex<BTreeSet<Vec<u8>>>,
}

impl Tally {
    fn failed(&self, what: String, of_certificate: bool) {
        self.failures.lock().unwrap().push(Failed { at: Instant::now(), of_certificate, what });
    }
}

struct Report {
    seconds: f64,
    by_api_server: u64,
    by_clients: u64,
    certificates: usize,
    failures: Vec<Failed>,
}

impl Report {
    #[allow(clippy::cast_precision_loss, reason = "printed")]
    fn summary(&self) -> String {
        format!(
            "{:.0} s, {} requests by the API server ({:.0}/s), {} by clients of their own connections ({:.0}/s), {} certificates seen, {} failures",
            self.seconds,
            self.by_api_server,
            self.by_api_server as f64 / self.seconds,
            self.by_clients,
            self.by_clients as f64 / self.seconds,
            self.certificates,
            self.failures.len()
        )
    }

    fn table(&self) -> String {
        let first = self.failures.iter().map(|failure| failure.at).min();
        let lines = self.failures.iter().take(30).map(|failure| {
            format!("+{:.2?} {}", first.map(|first| failure.at - first).unwrap_or_default(), failure.what)
        });
        format!("{}\n{}", self.summary(), lines.collect::<Vec<_>>().join("\n"))
    }
}

/// 100 requests a second from the API server, half of them admission and half conversion, and 25 a second of clients.
struct Load {
    tally: Arc<Tally>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    begun: Instant,
}

impl Load {
    async fn start(bed: &Arc<Bed>) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        if bed.kubectl(&["get", "namespace", "rotation"]).await.is_err() {
            bed.kubectl(&["create", "namespace", "rotation"]).await?;
            let object = json!({
                "apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster",
                "metadata": {"name": "rotating"},
                "spec": {"connectTo": {"adminApiEndpoint": "http://elsewhere:3903"}, "maintenance": {"suspended": true}},
            });
            post(&bed.client, &clusters("v1beta2", "rotation"), &object).await?;
        }
        let tally = Arc::<Tally>::default();
        let stop = CancellationToken::new();
        let tasks = vec![
            tokio::spawn(by_api_server(bed.clone(), tally.clone(), stop.clone())),
            tokio::spawn(by_clients(bed.clone(), tally.clone(), stop.clone())),
        ];
        Ok(Self { tally, stop, tasks, begun: Instant::now() })
    }

    async fn stop(self) -> Result<Report, tokio::task::JoinError> {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.stop.cancel();
        for task in self.tasks {
            task.await?;
        }
        let report = Report {
            seconds,
            by_api_server: self.tally.by_api_server.load(Ordering::Relaxed),
            by_clients: self.tally.by_clients.load(Ordering::Relaxed),
            certificates: self.tally.certificates.lock().unwrap().len(),
            failures: std::mem::take(&mut *self.tally.failures.lock().unwrap()),
        };
        assert!(report.by_api_server > 0 && report.by_clients > 0, "{}", report.summary());
        Ok(report)
    }
}

/// Every `every`, at most `at_once` under way: a machine that cannot do more is not asked for more.
async fn paced<F: Future<Output = ()> + Send + 'static>(
    every: Duration,
    at_once: u32,
    stop: &CancellationToken,
    mut ask: impl FnMut() -> F,
) {
    let slots = Arc::new(Semaphore::new(at_once as usize));
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !stop.is_cancelled() {
        ticks.tick().await;
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let asked = ask();
        tokio::spawn(async move {
            asked.await;
            drop(slot);
        });
    }
    let _ = slots.acquire_many(at_once).await;
}

async fn by_api_server(bed: Arc<Bed>, tally: Arc<Tally>, stop: CancellationToken) {
    let number = AtomicU64::new(0);
    paced(Duration::from_millis(10), 40, &stop, || {
        let (client, tally) = (bed.client.clone(), tally.clone());
        let number = number.fetch_add(1, Ordering::Relaxed);
        async move {
            let answer = if number.is_multiple_of(2) {
                let token = format!("t-{number}");
                let annotated =
                    json!({"metadata": {"annotations": {"garage.rajsingh.info/verify-redundancy": token}}});
                let path = format!("{}/rotating?dryRun=All", clusters("v1beta2", "rotation"));
                request(&client, Method::PATCH, &path, "application/merge-patch+json", Some(&annotated)).await
            } else {
                let path = format!("{}/rotating", clusters("v1beta1", "rotation"));
                request(&client, Method::GET, &path, "application/json", None).await
            };
            tally.by_api_server.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = answer {
                let what = error.to_string();
                let of_certificate = what.contains("x509") || what.contains("tls:");
                tally.failed(format!("API server: {what}"), of_certificate);
            }
        }
    })
    .await;
}

async fn by_clients(bed: Arc<Bed>, tally: Arc<Tally>, stop: CancellationToken) {
    // As an API server: the bundle and the endpoints come by watches of its own, a moment late.
    let known: Arc<Mutex<(Option<WebhookClient>, Vec<std::net::SocketAddr>)>> = Arc::default();
    let refresh = {
        let (bed, known, tally, stop) = (bed.clone(), known.clone(), tally.clone(), stop.clone());
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                match (webhook_client(&bed).await, replicas(&bed).await) {
                    (Ok(client), Ok(replicas)) => {
                        let addresses = replicas.into_iter().map(|(_, address)| address).collect();
                        *known.lock().unwrap() = (Some(client), addresses);
                    }
                    (Err(error), _) | (_, Err(error)) => tally.failed(format!("client: {error}"), false),
                }
                sleep(Duration::from_millis(500)).await;
            }
        })
    };
    let review = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "u", "desiredAPIVersion": "garage.rajsingh.info/v1beta1", "objects": [
            {"apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster", "metadata": {"name": "a"}, "spec": {}},
        ]},
    });
    let turn = AtomicUsize::new(0);
    paced(Duration::from_millis(40), 20, &stop, || {
        let (tally, review) = (tally.clone(), review.clone());
        let (client, addresses) = known.lock().unwrap().clone();
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        async move {
            let Some((client, address)) = client.zip(addresses.get(turn % addresses.len().max(1)).copied())
            else {
                return;
            };
            tally.by_clients.fetch_add(1, Ordering::Relaxed);
            match client.post(address, "/convert", &review).await {
                Ok(answer) if answer.status == 200 => {
                    tally.certificates.lock().unwrap().insert(answer.certificate);
                }
                Ok(answer) => tally.failed(format!("client: {address} answered {}", answer.status), false),
                Err(error) => {
                    tally.failed(format!("client: {address}: {error}"), matches!(error, Failure::Tls(_)));
                }
            }
        }
    })
    .await;
    let _ = refresh.await;
}
