//! Memory of a server process: flat over a run of conversions and reviews, and bounded by the budgets, whatever is sent.
//!
//! `HOLDFAST_MEMORY_SECONDS` sets the length of the run: 12 in `make test`, 3600 for an hour.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{CLUSTER, CONVERT, Cert, Facts, cluster, members, update};
use holdfast_webhook::{CertSlot, Config, Server};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const AS_SERVER: &str = "HOLDFAST_MEMORY_SERVER";
const MEBIBYTE: u64 = 1 << 20;

/// This very program as a server, in a process of its own. Ends with the test.
struct Process {
    child: Child,
    address: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
}

impl Process {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serves_for_the_other_tests", "--ignored", "--nocapture"])
            .env(AS_SERVER, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line =
            lines.find_map(|line| line.unwrap().split_once("listens ").map(|(_, l)| l.to_owned())).unwrap();
        let (address, der) = line.split_once(' ').unwrap();
        let der: Vec<u8> =
            (0..der.len() / 2).map(|i| u8::from_str_radix(&der[2 * i..2 * i + 2], 16).unwrap()).collect();
        let cert = Cert { der: CertificateDer::from(der), ..common::certificate() };
        let tls = Arc::new(common::client_config(&[&cert], &["http/1.1"]));
        Self { child, address: address.parse().unwrap(), tls }
    }

    /// A line of `/proc/PID/status` in bytes.
    fn memory(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(self.tls.clone());
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    async fn keep(&self) -> hyper::client::conn::http1::SendRequest<Full<Bytes>> {
        let io = TokioIo::new(self.connect().await);
        let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "the server of the other tests: they start it themselves"]
fn serves_for_the_other_tests() {
    if std::env::var_os(AS_SERVER).is_none() {
        return;
    }
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
        println!("listens {} {}", server.local_addr(), der.concat());
        server.run(tokio_util::sync::CancellationToken::new()).await.unwrap();
    });
}

fn list(objects: usize, desired: &str) -> Bytes {
    let mut object = cluster(json!({"note": "x".repeat(800)}));
    object["status"] = json!({"phase": "Running", "readyReplicas": 3});
    let objects: Vec<Value> = vec![object; objects];
    let review = json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
        "request": {"uid": "c-1", "desiredAPIVersion": desired, "objects": objects}});
    review.to_string().into()
}

/// Asks for everything that a server is asked for, good and bad, over kept and new connections, until `until`.
async fn load(process: &Process, until: Instant) -> usize {
    let good = [list(500, "garage.rajsingh.info/v1beta1"), list(1, "garage.rajsingh.info/v1beta1")];
    let review: Bytes = update(&cluster(json!({})), &cluster(json!({"a": "b"}))).to_string().into();
    let damaged: Bytes = good[0].slice(..good[0].len() / 2);
    let mut rounds = 0;
    while Instant::now() < until {
        let mut kept = process.keep().await;
        let bodies = [(CONVERT, &good[0]), (CONVERT, &good[1]), (CLUSTER, &review), (CONVERT, &damaged)];
        for (path, body) in bodies.into_iter().cycle().take(20) {
            let request = http::Request::post(path)
                .header("host", "localhost")
                .header("content-type", "application/json")
                .body(Full::new(body.clone()))
                .unwrap();
            kept.ready().await.unwrap();
            let answer = kept.send_request(request).await.unwrap();
            assert_eq!(answer.status(), 200);
            answer.into_body().collect().await.unwrap();
        }
        // One that goes away in the midst of a request.
        let mut broken = process.connect().await;
        let head = format!(
            "POST {CONVERT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            good[0].len()
        );
        broken.write_all(head.as_bytes()).await.unwrap();
        broken.write_all(&damaged).await.unwrap();
        rounds += 1;
    }
    rounds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_flat_over_a_run_of_conversions_and_reviews() {
    let seconds = std::env::var("HOLDFAST_MEMORY_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    let process = Process::start();
    let begun = Instant::now();
    let (early, late) = (begun + Duration::from_secs(seconds) / 3, begun + Duration::from_secs(seconds));
    let two = async |until| {
        let (one, other) = tokio::join!(load(&process, until), load(&process, until));
        one + other
    };
    let first = two(early).await;
    let before = process.memory("VmRSS:");
    let rounds = two(late).await;
    let after = process.memory("VmRSS:");
    println!("{first} and {rounds} rounds: {before} and {after} bytes resident");
    assert!(first > 0 && rounds > 0, "nothing was asked");
    // What two clients have in flight, a body and its answer each, is there at one look and not at another.
    let in_flight = 4 * list(500, "garage.rajsingh.info/v1beta1").len() as u64;
    assert!(after < before * 12 / 10 + in_flight, "{before} bytes became {after}, {in_flight} in flight");
}

/// 100 MB in pieces, without saying so before.
async fn send_a_hundred_megabytes(process: &Process, path: &str) -> String {
    let mut stream = process.connect().await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 100_000, "[".repeat(100_000));
    for _ in 0..1000 {
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let mut got = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut got)).await;
    String::from_utf8_lossy(&got).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_bodies_of_a_hundred_megabytes_at_once_cost_no_more_than_the_budgets() {
    let process = Process::start();
    load(&process, Instant::now() + Duration::from_secs(1)).await;
    let idle = process.memory("VmHWM:");
    let bodies = [CONVERT, CONVERT, CONVERT, CONVERT, CONVERT, CLUSTER, CLUSTER, CLUSTER, CLUSTER, CLUSTER];
    let answers = bodies.map(|path| send_a_hundred_megabytes(&process, path));
    let answers = futures::future::join_all(answers).await;
    let refused =
        answers.iter().filter(|a| a.starts_with("HTTP/1.1 413") || a.starts_with("HTTP/1.1 429")).count();
    // A client that goes on writing may lose the answer to the reset; none is accepted.
    assert!(refused > 0 && !answers.iter().any(|a| a.starts_with("HTTP/1.1 200")), "{answers:?}");
    let peak = process.memory("VmHWM:");
    println!("{idle} bytes before, {peak} at most, {refused} of 10 told why");
    // 64 MiB for conversion and 32 MiB for admission, each held twice while a vector grows.
    assert!(peak < idle + 2 * (64 + 32) * MEBIBYTE, "{idle} bytes became {peak}");
    load(&process, Instant::now() + Duration::from_secs(1)).await;
}
