//! What a request costs: a server in a process of its own, asked over TLS.
//!
//! Prints CPU time of the server process per admission request and per converted object, latencies at 500 requests
//! a second, resident memory, and the time from exec to the first answer: medians over rounds, each with a new server,
//! beside those of a controller-runtime webhook for the same kinds on a machine of the same kind.
//! Arguments: seconds of load a round (default 10), `--rounds N` (default 3), `--json FILE` for the figures of all rounds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    missing_docs
)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{CLUSTER, CONVERT, Facts, members};
use holdfast_webhook::{CertSlot, Config, Server};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};

const SERVER: &str = "--as-server";
const RATE: u32 = 500;

/// A figure: its name in JSON, what it is, its unit, whether more is better, and the peer's.
type Figure = (&'static str, &'static str, &'static str, bool, f64);

const FIGURES: [Figure; 6] = [
    ("convertedPerCpuSecond", "conversion of a 500-object list", "objects a CPU-second", true, 8_700.0),
    ("admissionCpuMilliseconds", "admission, CPU of the server", "ms a request", false, 0.68),
    ("admissionP99Milliseconds", "admission at 500/s over TLS, p99", "ms", false, 1.7),
    ("admissionP50Milliseconds", "admission at 500/s over TLS, p50", "ms", false, f64::NAN),
    ("residentMegabytes", "resident memory after it all", "MB", false, 32.0),
    ("firstAnswerMilliseconds", "from exec to the first answer", "ms", false, 40.0),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|i| arguments.get(i + 1));
    if arguments.iter().any(|a| a == SERVER) {
        server();
    } else if !arguments.iter().any(|a| a == "--test") {
        let rounds = after("--rounds").map_or(3, |n| n.parse::<usize>().unwrap());
        let seconds = arguments.get(1).and_then(|a| a.parse().ok()).unwrap_or(10);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let rounds: Vec<[f64; 6]> = (0..rounds).map(|_| runtime.block_on(measure(seconds))).collect();
        print(&rounds, seconds, after("--json"));
    }
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
}

/// Medians and how many times better than the peer they are.
fn print(rounds: &[[f64; 6]], seconds: u32, json_file: Option<&String>) {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let machine =
        format!("{cores} x {}, Linux {}", model.trim_start_matches(['\t', ' ', ':']), said("uname", &["-r"]));
    let versions =
        format!("garage-holdfast {}, {}", env!("CARGO_PKG_VERSION"), said("rustc", &["--version"]));
    println!("{machine}\n{versions}\nmedians of {} rounds, {seconds} s of load each\n", rounds.len());
    println!("{:<34} {:>10} {:<21} {:>9} {:>7}", "", "median", "", "peer", "better");
    let mut figures = serde_json::Map::new();
    for (i, (name, what, unit, more_is_better, peer)) in FIGURES.into_iter().enumerate() {
        let mut values: Vec<f64> = rounds.iter().map(|round| round[i]).collect();
        values.sort_by(f64::total_cmp);
        let median = values[values.len() / 2];
        let ratio = if more_is_better { median / peer } else { peer / median };
        let digits = usize::from(median < 1000.0) * 3;
        let (peer_text, ratio_text) = if peer.is_nan() {
            (String::new(), String::new())
        } else {
            (format!("{peer}"), format!("{ratio:.1} x"))
        };
        println!("{what:<34} {median:>10.digits$} {unit:<21} {peer_text:>9} {ratio_text:>7}");
        figures.insert(
            name.to_owned(),
            json!({"unit": unit, "median": median, "rounds": rounds.iter().map(|r| r[i]).collect::<Vec<_>>(),
                "peer": (!peer.is_nan()).then_some(peer), "ratio": (!ratio.is_nan()).then_some(ratio)}),
        );
    }
    if let Some(file) = json_file {
        let all =
            json!({"machine": machine, "versions": versions, "secondsOfLoad": seconds, "figures": figures});
        std::fs::write(file, serde_json::to_string_pretty(&all).unwrap() + "\n").unwrap();
    }
}

/// Serves until killed; its first line tells where, and the certificate.
fn server() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cert = common::certificate();
        let slot = Arc::new(arc_swap::ArcSwapOption::from(Some(cert.key)));
        let facts = Arc::new(Facts::default());
        *facts.members.lock().unwrap() = members();
        let mut registry = prometheus_client::registry::Registry::default();
        let config = Config::new(([127, 0, 0, 1], 0).into());
        let server = Server::bind(config, CertSlot::new(slot), facts, &mut registry).unwrap();
        let der: Vec<String> = cert.der.iter().map(|b| format!("{b:02x}")).collect();
        println!("{} {}", server.local_addr(), der.concat());
        server.run(tokio_util::sync::CancellationToken::new()).await;
    });
}

/// Nanoseconds that all threads of a process ran.
fn cpu_nanos(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |path: std::path::PathBuf| -> Option<u64> {
        std::fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    threads.filter_map(|t| of(t.unwrap().path())).sum()
}

fn resident_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// A GarageCluster of about 1.4 KB, as the API server sends it.
fn object(name: &str) -> Value {
    let managed = json!([{"apiVersion": "garage.rajsingh.info/v1beta2", "fieldsType": "FieldsV1", "manager": "kubectl",
        "operation": "Apply", "time": "2026-11-30T00:00:00Z",
        "fieldsV1": {"f:spec": {"f:storage": {"f:nodeLocalPools": {"k:{\"name\":\"fast\"}": {".": {}, "f:capacity": {}}}}}}}]);
    json!({
        "apiVersion": "garage.rajsingh.info/v1beta2",
        "kind": "GarageCluster",
        "metadata": {"name": name, "namespace": "objects", "uid": "2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c",
            "resourceVersion": "12345", "generation": 4, "creationTimestamp": "2026-11-30T00:00:00Z",
            "labels": {"team": "storage"}, "annotations": {"example.com/owner": "a"}, "managedFields": managed},
        "spec": {"zone": "rack-1", "replication": {"factor": 3, "consistencyMode": "consistent"},
            "admin": {"adminTokenSecretRef": {"name": "site-a-admin", "key": "admin-token"}},
            "storage": {"replicas": 0, "podDisruptionBudget": {"enabled": true}, "nodeLocalPools": [
                {"name": "fast", "selector": {"matchLabels": {"disk": "fast"}}, "capacity": "2Ti",
                 "metadata": {"hostPath": "/srv/garage/fast/meta", "hostPathType": "Directory"},
                 "data": {"hostPath": "/srv/garage/fast/data", "hostPathType": "Directory"}}]}},
        "status": {"phase": "Running", "replicas": 3, "selector": "app=garage", "readyReplicas": 3,
            "conditions": [{"type": "Ready", "status": "True", "reason": "ClusterReady", "message": "all nodes are ready",
                "lastTransitionTime": "2026-11-30T00:00:00Z"}]},
    })
}

type Sender = hyper::client::conn::http2::SendRequest<Full<bytes::Bytes>>;

async fn connect(address: &str, der: &str) -> Sender {
    let der: Vec<u8> =
        (0..der.len() / 2).map(|i| u8::from_str_radix(&der[2 * i..2 * i + 2], 16).unwrap()).collect();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(der.into()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .handshake(TokioIo::new(tls))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

async fn ask(mut sender: Sender, path: &str, body: bytes::Bytes) -> bytes::Bytes {
    let request = http::Request::post(format!("https://localhost{path}"))
        .header("content-type", "application/json")
        .body(Full::new(body))
        .unwrap();
    sender.ready().await.unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.unwrap().to_bytes()
}

/// One round, in the order of [`FIGURES`].
async fn measure(seconds: u32) -> [f64; 6] {
    let begun = Instant::now();
    let mut child =
        Command::new(std::env::current_exe().unwrap()).arg(SERVER).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (address, der) = line.trim().split_once(' ').unwrap();
    let sender = connect(address, der).await;
    let pid = child.id();

    let mut held = object("site-a");
    held["metadata"]["annotations"][common::HOLD] = json!("fast/kn-2");
    let review = bytes::Bytes::from(common::update(&object("site-a"), &held).to_string());
    let first = ask(sender.clone(), CLUSTER, review.clone()).await;
    let first_answer = begun.elapsed().as_secs_f64() * 1e3;
    assert!(String::from_utf8_lossy(&first).contains(r#""allowed":true"#));

    // Open loop: a late answer delays no other request.
    let total = RATE * seconds;
    let before = cpu_nanos(pid);
    let start = tokio::time::Instant::now();
    let mut asked = Vec::new();
    for i in 0..total {
        tokio::time::sleep_until(start + Duration::from_secs(1) / RATE * i).await;
        let (sender, review) = (sender.clone(), review.clone());
        asked.push(tokio::spawn(async move {
            let begun = Instant::now();
            ask(sender, CLUSTER, review).await;
            begun.elapsed()
        }));
    }
    let mut took = Vec::new();
    for task in asked {
        took.push(task.await.unwrap());
    }
    let cpu = cpu_nanos(pid) - before;
    took.sort_unstable();
    let quantile = |q: f64| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let i = ((took.len() - 1) as f64 * q) as usize;
        took[i].as_secs_f64() * 1e3
    };
    let admission = cpu as f64 / 1e6 / f64::from(total);
    let (p50, p99) = (quantile(0.5), quantile(0.99));

    let objects: Vec<Value> = (0..500).map(|i| object(&format!("c-{i}"))).collect();
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "c", "desiredAPIVersion": "garage.rajsingh.info/v1beta1", "objects": objects}});
    let review = bytes::Bytes::from(review.to_string());
    ask(sender.clone(), CONVERT, review.clone()).await;
    let before = cpu_nanos(pid);
    let rounds = 40;
    for _ in 0..rounds {
        let answer = ask(sender.clone(), CONVERT, review.clone()).await;
        assert!(answer.ends_with(br#"{"status":"Success"}}}"#));
    }
    let cpu = cpu_nanos(pid) - before;
    let converted = 500.0 * f64::from(rounds) / (cpu as f64 / 1e9);
    let resident = resident_mb(pid);
    child.kill().unwrap();
    child.wait().unwrap();
    [converted, admission, p99, p50, resident, first_answer]
}
