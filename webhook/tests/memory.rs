//! Memory of a server process: flat over a run of conversions and reviews, and bounded by the budgets, whatever is sent.
//!
//! `HOLDFAST_MEMORY_SECONDS` sets the length of the run: 12 in `make test`, 3600 for an hour.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::process::{self, Process};
use common::{CLUSTER, CONVERT, cluster, update};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MEBIBYTE: u64 = 1 << 20;

#[test]
#[ignore = "the server of the other tests: they start it themselves"]
fn serves_for_the_other_tests() {
    process::serve();
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
        let mut broken = process.connect(&["http/1.1"]).await;
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
    let mut stream = process.connect(&["http/1.1"]).await;
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
