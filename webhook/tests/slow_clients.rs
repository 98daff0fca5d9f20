//! Clients that are slow, or many: each ends at its limit, gives back what it held, and good requests pass meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::{Bed, CLUSTER, CONVERT, Client, cluster, update};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(300);

async fn still_serves(bed: &Bed) {
    let body = update(&cluster(json!({})), &cluster(json!({}))).to_string();
    let begun = Instant::now();
    let (status, answer) = bed.post(CLUSTER, body).await;
    assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)));
    assert!(begun.elapsed() < 2 * SECOND, "a good request took {:?}", begun.elapsed());
}

/// Waits until no connection is open, and checks that nothing is held any more: the whole budget can be taken.
async fn everything_is_given_back(bed: &Bed) {
    let begun = Instant::now();
    while !bed.metrics().contains("webhook_open_connections 0") {
        assert!(begun.elapsed() < 10 * SECOND, "{}", bed.metrics());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    still_serves(bed).await;
}

/// Sends a byte now and then until the server closes; how long that took, and what it said.
async fn drips(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) -> (Duration, String) {
    let begun = Instant::now();
    let mut got = Vec::new();
    for byte in bytes.iter().cycle() {
        if stream.write_all(&[*byte]).await.is_err() || stream.flush().await.is_err() {
            break;
        }
        let mut some = [0; 4096];
        match tokio::time::timeout(Duration::from_millis(20), stream.read(&mut some)).await {
            Ok(Ok(0) | Err(_)) => break,
            Ok(Ok(n)) => got.extend_from_slice(&some[..n]),
            Err(_) => {}
        }
        assert!(begun.elapsed() < 10 * SECOND, "the connection is not closed");
    }
    (begun.elapsed(), String::from_utf8_lossy(&got).into_owned())
}

fn head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

#[tokio::test]
async fn a_head_that_drips_ends_with_the_time_for_the_first_request_however_often_a_byte_comes() {
    let bed = Bed::with(|c| c.first_request_timeout = MOMENT);
    let mut stream = bed.connect(&["http/1.1"]).await;
    let name = format!("POST {CLUSTER} HTTP/1.1\r\nX-Long: {}", "a".repeat(10_000));
    let (took, said) = drips(&mut stream, name.as_bytes()).await;
    assert!(took < 8 * SECOND && !said.contains("200"), "{took:?} {said}");
    everything_is_given_back(&bed).await;
}

#[tokio::test]
async fn the_head_of_a_second_request_has_no_more_time_than_an_idle_connection() {
    let bed = Bed::with(|c| c.idle_timeout = MOMENT);
    let mut stream = bed.connect(&["http/1.1"]).await;
    let body = update(&cluster(json!({})), &cluster(json!({}))).to_string();
    stream.write_all(format!("{}{body}", head(CLUSTER, body.len())).as_bytes()).await.unwrap();
    let mut answer = [0; 4096];
    assert!(stream.read(&mut answer).await.unwrap() > 0);
    let (took, said) = drips(&mut stream, head(CLUSTER, 7).trim_end().as_bytes()).await;
    assert!(took < 8 * SECOND && !said.contains(" 200 "), "{took:?} {said}");
    everything_is_given_back(&bed).await;
}

#[tokio::test]
async fn a_body_that_drips_ends_at_the_deadline_of_its_route() {
    let bed = Bed::with(|c| {
        c.admission_deadline = MOMENT;
        c.conversion_deadline = MOMENT;
        c.stall_timeout = SECOND;
    });
    for path in [CLUSTER, CONVERT] {
        let mut stream = bed.connect(&["http/1.1"]).await;
        stream.write_all(head(path, 1_000_000).as_bytes()).await.unwrap();
        let (took, said) = drips(&mut stream, b" ").await;
        assert!(said.starts_with("HTTP/1.1 408"), "{path}: {said}");
        assert!(took < 3 * SECOND, "{path}: {took:?}");
    }
    everything_is_given_back(&bed).await;
}

/// A list whose answer no socket takes at once.
fn large_list() -> String {
    let mut object = cluster(json!({}));
    object["spec"]["filler"] = Value::String("x".repeat(20_000));
    let objects = vec![object; 500];
    json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
        "request": {"uid": "c-1", "desiredAPIVersion": "garage.rajsingh.info/v1beta1", "objects": objects}})
    .to_string()
}

#[tokio::test]
async fn an_answer_that_is_not_taken_is_dropped_and_gives_back_its_budget() {
    let list = large_list();
    let size = list.len();
    let bed = Bed::with(|c| {
        c.stall_timeout = SECOND;
        // One such list at a time.
        c.conversion_budget = size + size / 2;
    });
    let mut deaf = bed.connect(&["http/1.1"]).await;
    deaf.write_all(head(CONVERT, size).as_bytes()).await.unwrap();
    deaf.write_all(list.as_bytes()).await.unwrap();
    // It is converted, and its answer fills the socket; whoever asks for as much meanwhile is told to come back.
    let mut refused = 0;
    let begun = Instant::now();
    loop {
        let (status, _) = bed.send(CONVERT, "application/json", list.clone()).await;
        if status == 200 {
            break;
        }
        assert_eq!(status, 429);
        refused += 1;
        assert!(begun.elapsed() < 20 * SECOND, "the budget is not given back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(refused > 0, "the first answer was never held");
    drop(deaf);
    everything_is_given_back(&bed).await;
}

#[tokio::test]
async fn streams_of_one_connection_that_never_send_their_body_end_at_their_deadline() {
    let bed = Bed::with(|c| {
        c.admission_deadline = MOMENT;
        c.max_requests = 50;
    });
    let stream = bed.connect(&["h2"]).await;
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let mut answers = Vec::new();
    for _ in 0..100 {
        let body = http_body_util::StreamBody::new(futures::stream::pending::<
            Result<hyper::body::Frame<bytes::Bytes>, std::convert::Infallible>,
        >());
        let request = http::Request::post(format!("https://localhost{CLUSTER}"))
            .header("content-type", "application/json")
            .body(body)
            .unwrap();
        sender.ready().await.unwrap();
        answers.push(sender.send_request(request));
    }
    let mut seen = std::collections::BTreeMap::new();
    for answer in futures::future::join_all(answers).await {
        *seen.entry(answer.unwrap().status().as_u16()).or_insert(0) += 1;
    }
    // Half of them had room and waited for their body; the others were told to come back.
    assert_eq!(seen, [(408, 50), (429, 50)].into());
    drop(sender);
    everything_is_given_back(&bed).await;
}

#[tokio::test]
async fn five_hundred_clients_that_stop_in_the_midst_of_a_request_end_and_good_requests_pass_meanwhile() {
    let bed = Bed::with(|c| {
        c.admission_deadline = 3 * SECOND;
        c.max_requests = 600;
        c.first_request_timeout = 5 * SECOND;
    });
    let mut half = Vec::new();
    for n in 0..500 {
        let mut stream = bed.connect(&["http/1.1"]).await;
        let text = head(CLUSTER, 1000);
        let end = if n % 2 == 0 { text.len() } else { text.len() / 2 };
        stream.write_all(&text.as_bytes()[..end]).await.unwrap();
        half.push(stream);
        if n % 100 == 0 {
            still_serves(&bed).await;
        }
    }
    for stream in &mut half {
        let mut got = Vec::new();
        let _ =
            tokio::time::timeout(20 * SECOND, stream.read_to_end(&mut got)).await.expect("it is not closed");
    }
    drop(half);
    everything_is_given_back(&bed).await;
}

#[tokio::test]
async fn when_every_place_is_taken_by_the_slow_the_others_are_told_and_served_as_soon_as_one_is_free() {
    let bed = Bed::with(|c| {
        c.admission_deadline = SECOND;
        c.max_requests = 20;
    });
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = bed.connect(&["http/1.1"]).await;
        stream.write_all(head(CLUSTER, 1000).as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let body = update(&cluster(json!({})), &cluster(json!({}))).to_string();
    let mut client = Client::h1(&bed).await;
    let begun = Instant::now();
    let mut told = 0;
    loop {
        let (status, _) = client.send(CLUSTER, "application/json", body.clone().into()).await;
        if status == 200 {
            break;
        }
        assert_eq!(status, 429);
        told += 1;
        assert!(begun.elapsed() < 5 * SECOND, "no place became free");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(told > 0);
}
