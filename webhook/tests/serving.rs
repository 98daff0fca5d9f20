//! What a client of the webhook server sees when all goes well, and when the process comes and goes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::time::Duration;

use common::{Bed, CLUSTER, CONVERT, Client, HOLD, NODE, certificate, cluster, members, review, update};
use serde_json::{Value, json};

fn to_bytes(value: &Value) -> bytes::Bytes {
    value.to_string().into()
}

#[tokio::test]
async fn an_allowed_request_gets_its_uid_back_and_no_patch() {
    let bed = Bed::start();
    *bed.facts.members.lock().unwrap() = members();
    let body = update(&cluster(json!({})), &cluster(json!({HOLD: "fast/kn-2"})));
    let (status, answer) = bed.post(CLUSTER, to_bytes(&body)).await;
    assert_eq!(status, 200);
    assert_eq!(
        answer,
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
               "response": {"uid": "2b7c9e10-0000-4a6b-8c21-0f5e6d7a8b9c", "allowed": true}})
    );
}

#[tokio::test]
async fn a_refused_request_carries_rule_message_and_code() {
    let bed = Bed::start();
    *bed.facts.members.lock().unwrap() = members();
    let body = update(&cluster(json!({})), &cluster(json!({HOLD: "fast/kn-9"})));
    let (status, answer) = bed.post(CLUSTER, to_bytes(&body)).await;
    assert_eq!(status, 200);
    let response = &answer["response"];
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 403);
    assert_eq!(response["status"]["reason"], "Forbidden");
    assert_eq!(response["auditAnnotations"]["rule"], "V4");
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.contains("kn-9") && message.contains("kn-1, kn-2, kn-3"), "{message}");
    assert!(response.get("patch").is_none());
    assert!(
        bed.metrics()
            .contains(r#"webhook_verdicts_total{kind="GarageCluster",verdict="refused",rule="V4"} 1"#),
        "{}",
        bed.metrics()
    );
}

#[tokio::test]
async fn an_unfilled_cache_refuses_as_unavailable_and_warnings_reach_the_client() {
    let bed = Bed::start();
    let body = update(&cluster(json!({})), &cluster(json!({HOLD: "fast/kn-2"})));
    let (_, answer) = bed.post(CLUSTER, to_bytes(&body)).await;
    assert_eq!(answer["response"]["status"]["code"], 503);

    *bed.facts.members.lock().unwrap() = members();
    let mut without_budget = cluster(json!({HOLD: "fast/kn-2"}));
    without_budget["spec"]["storage"]["podDisruptionBudget"]["enabled"] = json!(false);
    let (_, answer) = bed.post(CLUSTER, to_bytes(&update(&cluster(json!({})), &without_budget))).await;
    assert_eq!(answer["response"]["allowed"], true);
    assert!(answer["response"]["warnings"][0].as_str().unwrap().contains("podDisruptionBudget"), "{answer}");
}

#[tokio::test]
async fn only_a_pin_change_reads_the_parent_live() {
    let bed = Bed::start();
    let node = |pin: &str| {
        json!({"apiVersion": "garage.rajsingh.info/v1beta1", "kind": "GarageNode",
               "metadata": {"name": "n", "namespace": "objects",
                            "annotations": {"garage.rajsingh.info/node-local-pool-recovery-node-id": pin}},
               "spec": {"clusterRef": {"name": "site-a"}, "backing": "NodeLocalPool",
                        "nodeLocalPoolName": "fast", "kubernetesNodeName": "kn-1"}})
    };
    let (old, new) = (node(&"0f".repeat(32)), node(&"c3".repeat(32)));
    let (_, answer) = bed.post(NODE, to_bytes(&review("UPDATE", "GarageNode", "v1beta1", &old, &old))).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    assert_eq!(bed.facts.live_reads.load(std::sync::atomic::Ordering::Relaxed), 0);
    let (_, answer) = bed.post(NODE, to_bytes(&review("UPDATE", "GarageNode", "v1beta1", &old, &new))).await;
    assert_eq!(answer["response"]["status"]["code"], 503, "an unknown parent fails closed: {answer}");
    assert_eq!(bed.facts.live_reads.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test]
async fn both_http_versions_serve_many_requests_on_one_connection() {
    let bed = Bed::start();
    let body = to_bytes(&update(&cluster(json!({})), &cluster(json!({"note": "x"}))));
    for mut client in [Client::h1(&bed).await, Client::h2(&bed).await] {
        for _ in 0..50 {
            let (status, text) = client.send(CLUSTER, "application/json; charset=utf-8", body.clone()).await;
            assert_eq!(status, 200);
            assert!(text.contains(r#""allowed":true"#));
        }
    }
    assert!(bed.metrics().contains(r#"webhook_requests_total{route="garagecluster",result="allowed"} 100"#));
}

fn conversion(objects: &[Value], desired: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
           "request": {"uid": "c-1", "desiredAPIVersion": desired, "objects": objects}})
}

#[tokio::test]
async fn a_long_list_is_converted_in_order_and_in_number() {
    let bed = Bed::start();
    let objects: Vec<Value> = (0..500)
        .map(|i| {
            let mut object = cluster(json!({"pad": "x".repeat(1000)}));
            object["metadata"]["name"] = json!(format!("c-{i}"));
            object
        })
        .collect();
    let (status, answer) =
        bed.post(CONVERT, to_bytes(&conversion(&objects, "garage.rajsingh.info/v1beta1"))).await;
    assert_eq!(status, 200);
    assert_eq!(answer["response"]["uid"], "c-1");
    assert_eq!(answer["response"]["result"], json!({"status": "Success"}));
    let converted = answer["response"]["convertedObjects"].as_array().unwrap();
    assert_eq!(converted.len(), 500);
    for (i, object) in converted.iter().enumerate() {
        assert_eq!(object["metadata"]["name"], format!("c-{i}"));
        assert_eq!(object["apiVersion"], "garage.rajsingh.info/v1beta1");
    }
}

#[tokio::test]
async fn a_conversion_to_an_unserved_version_fails_in_its_envelope() {
    let bed = Bed::start();
    let (status, answer) = bed
        .post(CONVERT, to_bytes(&conversion(&[cluster(json!({}))], "garage.rajsingh.info/v1alpha1")))
        .await;
    assert_eq!(status, 200);
    assert_eq!(answer["response"]["uid"], "c-1");
    assert_eq!(answer["response"]["result"]["status"], "Failed");
    assert!(answer["response"]["result"]["message"].as_str().unwrap().contains("v1alpha1"));
}

#[tokio::test]
async fn readiness_needs_a_certificate_and_falls_with_the_shutdown_signal_while_serving_goes_on() {
    let bed = Bed::with(|c| c.drain_time = Duration::from_millis(400));
    assert!(bed.readiness.is_ready());
    bed.slot.store(None);
    assert_eq!(bed.readiness.missing(), Some("no serving certificate is loaded yet"));
    bed.slot.store(Some(bed.cert.key.clone()));
    assert!(bed.readiness.is_ready());

    let body = to_bytes(&update(&cluster(json!({})), &cluster(json!({}))));
    let mut kept = Client::h2(&bed).await;
    kept.send(CLUSTER, "application/json", body.clone()).await;
    bed.shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!bed.readiness.is_ready());
    assert_eq!(kept.send(CLUSTER, "application/json", body.clone()).await.0, 200, "an open connection");
    assert_eq!(bed.post(CLUSTER, body).await.0, 200, "a new connection, during the drain time");
    tokio::time::timeout(Duration::from_secs(3), bed.ended).await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(bed.address).await.is_err());
}

#[tokio::test]
async fn a_connection_before_the_first_certificate_waits_for_it() {
    let bed = Bed::start();
    // The server's task has not run yet.
    bed.slot.store(None);
    let (slot, key) = (bed.slot.clone(), bed.cert.key.clone());
    let filled = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        slot.store(Some(key));
    });
    let begun = std::time::Instant::now();
    let body = to_bytes(&update(&cluster(json!({})), &cluster(json!({}))));
    assert_eq!(bed.post(CLUSTER, body).await.0, 200);
    assert!(begun.elapsed() >= Duration::from_millis(250));
    filled.await.unwrap();
}

#[tokio::test]
async fn certificates_swap_under_a_hundred_concurrent_requests_without_a_failed_handshake() {
    let bed = Bed::start();
    let other = certificate();
    let config = std::sync::Arc::new(common::client_config(&[&bed.cert, &other], &["http/1.1"]));
    let body = to_bytes(&update(&cluster(json!({})), &cluster(json!({}))));
    let kept = std::sync::Arc::new(tokio::sync::Mutex::new(Client::h2(&bed).await));
    let tasks: Vec<_> = (0..100)
        .map(|i| {
            let (config, body, address, kept) = (config.clone(), body.clone(), bed.address, kept.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(i * 3)).await;
                let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
                let tls = tokio_rustls::TlsConnector::from(config).connect(name, stream).await.unwrap();
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(tls)).await.unwrap();
                tokio::spawn(connection);
                let request = http::Request::post(CLUSTER)
                    .header("content-type", "application/json")
                    .body(http_body_util::Full::new(body.clone()))
                    .unwrap();
                assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
                assert_eq!(kept.lock().await.send(CLUSTER, "application/json", body).await.0, 200);
            })
        })
        .collect();
    for i in 0..30 {
        bed.slot.store(Some(if i % 2 == 0 { other.key.clone() } else { bed.cert.key.clone() }));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
}
