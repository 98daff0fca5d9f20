//! Bad input: an answer or a closed connection, and the server goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Bed, CLUSTER, CONVERT, Client, NODE, cluster, update};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SECOND: Duration = Duration::from_secs(1);
const UID: &str = "2b7c9e10-0000-4a6b-8c21-0f5e6d7a8b9c";

/// The server still answers a good request.
async fn still_serves(bed: &Bed) {
    let body = update(&cluster(json!({})), &cluster(json!({}))).to_string();
    let (status, answer) = bed.post(CLUSTER, body).await;
    assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)));
}

/// Reads what the server says until it closes.
async fn closes_within(stream: &mut TcpStream, wait: Duration) -> Vec<u8> {
    let mut got = Vec::new();
    // A reset is a closed connection too.
    let _ =
        tokio::time::timeout(wait, stream.read_to_end(&mut got)).await.expect("the connection is not closed");
    got
}

#[tokio::test]
async fn not_tls_is_closed() {
    let bed = Bed::start();
    let mut stream = TcpStream::connect(bed.address).await.unwrap();
    stream.write_all(b"POST /convert HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let got = closes_within(&mut stream, SECOND).await;
    assert!(!got.starts_with(b"HTTP"));
    still_serves(&bed).await;
    assert!(bed.metrics().contains(r#"webhook_connections_total{outcome="handshake_failed"} 1"#));
}

#[tokio::test]
async fn bad_tls_is_closed() {
    let bed = Bed::start();
    for garbage in [
        &b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"[..],
        b"\x16\x03\x01\xff\xff",
        b"\x15\x03\x03\x00\x02\x02\x28",
    ] {
        let mut stream = TcpStream::connect(bed.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        closes_within(&mut stream, SECOND).await;
    }
    still_serves(&bed).await;
}

#[tokio::test]
async fn a_handshake_that_stops_half_way_ends_at_its_time_limit() {
    let bed = Bed::with(|c| c.handshake_timeout = Duration::from_millis(300));
    let mut stream = TcpStream::connect(bed.address).await.unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01").await.unwrap();
    let begun = Instant::now();
    closes_within(&mut stream, SECOND).await;
    assert!(begun.elapsed() > Duration::from_millis(250));
    still_serves(&bed).await;
}

#[tokio::test]
async fn half_a_request_ends_at_its_deadline() {
    let bed = Bed::with(|c| {
        c.admission_deadline = Duration::from_millis(300);
        c.first_request_timeout = Duration::from_millis(300);
    });
    let head = bed.raw(b"POST /convert HT", SECOND).await;
    assert_eq!(head, "", "half a head gets no answer, only an end");
    let body = bed
        .raw(
            format!("POST {CLUSTER} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{{\"req").as_bytes(),
            SECOND,
        )
        .await;
    assert!(body.starts_with("HTTP/1.1 408"), "{body}");
    still_serves(&bed).await;
}

#[tokio::test]
async fn wrong_method_path_content_type_and_no_body_get_their_status() {
    let bed = Bed::start();
    assert_eq!(bed.send("/nowhere", "application/json", "{}").await.0, 404);
    assert_eq!(bed.send(CLUSTER, "text/yaml", "{}").await.0, 415);
    assert_eq!(bed.send(CLUSTER, "application/jsonp", "{}").await.0, 415);
    assert_eq!(bed.send(CLUSTER, "application/json", "").await.0, 400);
    assert_eq!(bed.send(CONVERT, "application/json", "").await.0, 400);
    let get = bed
        .raw(format!("GET {CLUSTER} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(), SECOND)
        .await;
    assert!(get.starts_with("HTTP/1.1 405") && get.to_lowercase().contains("allow: post"), "{get}");
    still_serves(&bed).await;
}

#[tokio::test]
async fn a_hundred_megabytes_are_refused_before_they_are_read() {
    let bed = Bed::start();
    let huge = 100_000_000;
    for path in [CLUSTER, NODE, CONVERT] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {huge}\r\n\r\n"
        );
        let answer = bed.raw(head.as_bytes(), SECOND).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{path}: {answer}");
    }
    still_serves(&bed).await;
}

#[tokio::test]
async fn a_body_without_a_length_is_cut_off_at_the_limit() {
    let bed = Bed::with(|c| c.admission_body_limit = 100_000);
    let mut stream = bed.connect(&["http/1.1"]).await;
    let head = format!(
        "POST {CLUSTER} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 10_000, " ".repeat(10_000));
    for _ in 0..20 {
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let mut got = Vec::new();
    let _ = tokio::time::timeout(SECOND, stream.read_to_end(&mut got)).await;
    assert!(got.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&got));
    still_serves(&bed).await;
}

#[tokio::test]
async fn the_budget_of_bytes_answers_429_and_recovers() {
    let bed = Bed::with(|c| c.admission_budget = 64 << 10);
    let mut holding = bed.connect(&["http/1.1"]).await;
    let head = format!(
        "POST {CLUSTER} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{}",
        " ".repeat(60_000)
    );
    holding.write_all(head.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let body = format!("{}{}", " ".repeat(20_000), update(&cluster(json!({})), &cluster(json!({}))));
    let (status, text) = bed.send(CLUSTER, "application/json", body.clone()).await;
    assert_eq!(status, 429, "{text}");
    drop(holding);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(bed.send(CLUSTER, "application/json", body).await.0, 200);
    assert!(bed.metrics().contains(r#"webhook_overload_refusals_total{limit="bytes"} 1"#));
}

#[tokio::test]
async fn too_many_requests_at_once_are_told_when_to_come_back() {
    let bed = Bed::with(|c| c.max_requests = 1);
    let mut holding = bed.connect(&["http/1.1"]).await;
    let head = format!(
        "POST {CLUSTER} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n"
    );
    holding.write_all(head.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let answer = bed
        .raw(
            format!("POST {CLUSTER} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}").as_bytes(),
            SECOND,
        )
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 429") && answer.to_lowercase().contains("retry-after: 1"),
        "{answer}"
    );
}

/// Bodies without a uid that can be found: HTTP 400, no envelope.
#[tokio::test]
async fn what_is_no_review_and_has_no_uid_is_a_bad_request() {
    let bed = Bed::start();
    let deep = "[".repeat(200_000);
    for body in [
        "not json",
        "{",
        "[]",
        "null",
        "7",
        "\"x\"",
        "{}",
        r#"{"request":null}"#,
        r#"{"request":{}}"#,
        r#"{"request":{"uid":""}}"#,
        r#"{"request":{"uid":7}}"#,
        "\u{0}\u{1}",
        &deep,
    ] {
        for path in [CLUSTER, NODE, CONVERT] {
            let (status, text) = bed.send(path, "application/json", body.to_owned()).await;
            assert_eq!(status, 400, "{path} {body:.40}: {text}");
        }
    }
    still_serves(&bed).await;
}

/// Bodies with a uid: an envelope with that uid, refused.
#[tokio::test]
async fn the_uid_comes_back_when_the_rest_cannot_be_read() {
    let bed = Bed::start();
    let good = update(&cluster(json!({})), &cluster(json!({})));
    let change = |f: &dyn Fn(&mut Value)| {
        let mut review = good.clone();
        f(&mut review);
        review.to_string()
    };
    let duplicate = good.to_string().replacen(
        r#""operation":"UPDATE""#,
        r#""operation":"UPDATE","operation":"DELETE""#,
        1,
    );
    let twice = {
        let mut review = update(
            &cluster(json!({})),
            &cluster(json!({"garage.rajsingh.info/node-local-out-of-service": "fast/kn-1"})),
        )
        .to_string();
        let end = review.rfind(r#""garage.rajsingh.info/node-local-out-of-service""#).unwrap();
        review.insert_str(end, r#""garage.rajsingh.info/node-local-out-of-service":"fast/kn-2","#);
        review
    };
    let truncated = good.to_string().split(r#""userInfo""#).next().unwrap().to_owned();
    let cases = [
        ("another review version", change(&|r| r["apiVersion"] = json!("admission.k8s.io/v1beta1"))),
        ("another envelope", change(&|r| r["kind"] = json!("ConversionReview"))),
        ("unknown kind", change(&|r| r["request"]["kind"]["kind"] = json!("Pod"))),
        ("unknown requestKind", change(&|r| r["request"]["requestKind"]["kind"] = json!("GarageNode"))),
        ("unknown version", change(&|r| r["request"]["requestKind"]["version"] = json!("v1alpha1"))),
        (
            "unknown apiVersion",
            change(&|r| r["request"]["object"]["apiVersion"] = json!("garage.rajsingh.info/v9")),
        ),
        ("unknown operation", change(&|r| r["request"]["operation"] = json!("PATCH"))),
        ("null object", change(&|r| r["request"]["object"] = Value::Null)),
        ("null oldObject", change(&|r| r["request"]["oldObject"] = Value::Null)),
        ("an object that is a string", change(&|r| r["request"]["object"] = json!("x"))),
        (
            "annotations that are a list",
            change(&|r| r["request"]["object"]["metadata"]["annotations"] = json!([1])),
        ),
        ("a spec that is a number", change(&|r| r["request"]["object"]["spec"] = json!(3))),
        ("no kind", change(&|r| drop(r["request"].as_object_mut().unwrap().remove("kind")))),
        ("no operation", change(&|r| drop(r["request"].as_object_mut().unwrap().remove("operation")))),
        ("a duplicate key", duplicate),
        ("a duplicate annotation", twice),
    ];
    for (what, body) in cases {
        let (status, answer) = bed.post(CLUSTER, body).await;
        assert_eq!(status, 200, "{what}: {answer}");
        assert_eq!(answer["response"]["uid"], UID, "{what}: {answer}");
        assert_eq!(answer["response"]["allowed"], false, "{what}");
        assert_eq!(answer["response"]["status"]["code"], 400, "{what}: {answer}");
    }
    // JSON whose keys come sorted has the uid near the end; the API server writes it first.
    let first = format!(
        r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":"{UID}","object":{{"a":"#
    );
    for body in [first, truncated.replacen("{\"apiVersion\"", "{\"x\":0,\"apiVersion\"", 1)] {
        let (status, answer) = bed.post(CLUSTER, body.clone()).await;
        if body.contains(UID) {
            assert_eq!((status, &answer["response"]["uid"]), (200, &json!(UID)), "{answer}");
        } else {
            assert_eq!(status, 400);
        }
    }
    still_serves(&bed).await;
}

#[tokio::test]
async fn conversion_answers_failed_to_what_it_cannot_read() {
    let bed = Bed::start();
    let review = |request: Value| {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request})
            .to_string()
    };
    let v1 = "garage.rajsingh.info/v1beta1";
    let cases = [
        review(json!({"uid": "c-1", "desiredAPIVersion": v1, "objects": [null]})),
        review(json!({"uid": "c-1", "desiredAPIVersion": v1, "objects": [7]})),
        review(json!({"uid": "c-1", "desiredAPIVersion": v1, "objects": "x"})),
        review(json!({"uid": "c-1", "desiredAPIVersion": 7, "objects": []})),
        review(
            json!({"uid": "c-1", "desiredAPIVersion": "garage.rajsingh.info/v7", "objects": [cluster(json!({}))]}),
        ),
        review(json!({"uid": "c-1", "objects": [cluster(json!({}))]})),
        review(
            json!({"uid": "c-1", "desiredAPIVersion": v1, "objects": [{"apiVersion": "v1", "kind": "Pod"}]}),
        ),
        format!(r#"{{"request":{{"uid":"c-1","desiredAPIVersion":"{v1}","objects":[{{"#),
        format!(
            r#"{{"request":{{"uid":"c-1","desiredAPIVersion":"{v1}","desiredAPIVersion":"{v1}","objects":[]}}}}"#
        ),
    ];
    for body in cases {
        let (status, answer) = bed.post(CONVERT, body.clone()).await;
        assert_eq!(status, 200, "{body:.120}: {answer}");
        assert_eq!(answer["response"]["uid"], "c-1", "{body:.120}");
        assert_eq!(answer["response"]["result"]["status"], "Failed", "{body:.120}: {answer}");
    }
    still_serves(&bed).await;
}

#[tokio::test]
async fn deep_nesting_in_parts_that_are_not_read_does_no_harm() {
    let bed = Bed::start();
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let body = update(&cluster(json!({})), &cluster(json!({}))).to_string();
    let body = body.replacen(r#""replicas":0"#, &format!(r#""replicas":0,"deep":{nested}"#), 1);
    let (status, answer) = bed.post(CLUSTER, body).await;
    assert_eq!(status, 200);
    assert_eq!(answer["response"]["uid"], UID);
    let object = format!(
        r#"{{"apiVersion":"garage.rajsingh.info/v1beta2","kind":"GarageCluster","spec":{{"x":{nested}}}}}"#
    );
    let body = format!(
        r#"{{"request":{{"uid":"c-1","desiredAPIVersion":"garage.rajsingh.info/v1beta1","objects":[{object}]}}}}"#
    );
    let (status, answer) = bed.post(CONVERT, body).await;
    assert_eq!((status, &answer["response"]["uid"]), (200, &json!("c-1")));
    still_serves(&bed).await;
}

#[tokio::test]
async fn a_thousand_connections_that_say_nothing_are_ended_and_good_requests_pass_meanwhile() {
    let bed = Bed::with(|c| c.handshake_timeout = Duration::from_secs(2));
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.push(TcpStream::connect(bed.address).await.unwrap());
    }
    let begun = Instant::now();
    still_serves(&bed).await;
    assert!(begun.elapsed() < SECOND, "a good request took {:?}", begun.elapsed());
    for stream in &mut silent {
        closes_within(stream, Duration::from_secs(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(bed.metrics().contains("webhook_open_connections 0"), "{}", bed.metrics());
    still_serves(&bed).await;
}

#[tokio::test]
async fn connections_that_finish_the_handshake_and_say_nothing_end_too() {
    let bed = Bed::with(|c| c.first_request_timeout = Duration::from_millis(300));
    for alpn in ["http/1.1", "h2"] {
        let mut stream = bed.connect(&[alpn]).await;
        let mut got = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(8), stream.read_to_end(&mut got)).await.expect(alpn);
    }
    still_serves(&bed).await;
}

#[tokio::test]
async fn more_connections_than_allowed_are_closed_at_once_and_room_returns() {
    let bed = Bed::with(|c| {
        c.max_connections = 5;
        c.handshake_timeout = Duration::from_millis(500);
    });
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(TcpStream::connect(bed.address).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut extra = TcpStream::connect(bed.address).await.unwrap();
    let begun = Instant::now();
    closes_within(&mut extra, SECOND).await;
    assert!(begun.elapsed() < Duration::from_millis(200));
    tokio::time::sleep(Duration::from_millis(700)).await;
    still_serves(&bed).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_time() {
    let bed = Bed::with(|c| c.idle_timeout = Duration::from_millis(300));
    let body = update(&cluster(json!({})), &cluster(json!({}))).to_string();
    for mut client in [Client::h1(&bed).await, Client::h2(&bed).await] {
        assert_eq!(client.send(CLUSTER, "application/json", body.clone().into()).await.0, 200);
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert!(client.try_send(CLUSTER, "application/json", body.clone().into()).await.is_err());
    }
}

/// Collects what is logged on this thread; the tests' runtime has no other.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn bad_input_leaves_a_log_line_without_its_payload() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("holdfast_webhook=trace,holdfast_crds=trace")
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let bed = Bed::start();
    *bed.facts.members.lock().unwrap() = common::members();
    let secret = "s3cr3t-payload";
    let good = update(&cluster(json!({"x": secret})), &cluster(json!({"x": secret})));
    let with = |pointer: &str, value: Value| {
        let mut review = good.clone();
        *review.pointer_mut(pointer).unwrap() = value;
        review.to_string()
    };
    let hold = json!({common::HOLD: format!("fast/{secret}")});
    let bodies = [
        format!("{{\"request\":{{\"uid\":\"u-1\",\"object\":\"{secret}"),
        with("/request/operation", json!(secret)),
        with("/request/kind/kind", json!(secret)),
        with("/request/requestKind/version", json!(secret)),
        with("/request/object/apiVersion", json!(secret)),
        with("/request/object/spec", json!(secret)),
        with("/request/object/metadata/annotations", json!([secret])),
        update(&cluster(json!({})), &cluster(hold)).to_string(),
        secret.to_owned(),
    ];
    for body in bodies {
        for path in [CLUSTER, NODE, CONVERT] {
            log.0.lock().unwrap().clear();
            bed.send(path, "application/json", body.clone()).await;
            let lines = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
            assert!(!lines.contains(secret), "{lines}");
            assert!(!lines.trim().is_empty(), "nothing was logged for {body:.80} to {path}");
        }
    }
    log.0.lock().unwrap().clear();
    let mut stream = TcpStream::connect(bed.address).await.unwrap();
    stream.write_all(format!("GET /{secret} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    closes_within(&mut stream, SECOND).await;
    let lines = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(lines.contains("handshake") && !lines.contains(secret), "{lines}");
}
