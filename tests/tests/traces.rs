//! The product's traces: what reaches a real collector, what a bad one changes (nothing), and what there is without one
//! (nothing).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use axum::routing::post;
use holdfast_tests::bed::beside_the_program;
use holdfast_tests::stand_in::{SERVICE, SITE, SITE_NAMESPACE, StandIn, serve};
use holdfast_tests::webhook_client::WebhookClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const CLUSTERS: &str = "/validate-garage-rajsingh-info-v1beta2-garagecluster";
const OTLP: &str = "application/x-protobuf";

/// What a collector was sent: each body as it came.
type Sent = Arc<Mutex<Vec<Bytes>>>;

/// A collector that takes everything.
async fn collector(servers: &mut JoinSet<()>) -> (SocketAddr, Sent) {
    let sent = Sent::default();
    let kept = sent.clone();
    let take = move |headers: HeaderMap, body: Bytes| async move {
        assert_eq!(headers[header::CONTENT_TYPE], OTLP);
        kept.lock().unwrap().push(body);
        ([(header::CONTENT_TYPE, OTLP)], Bytes::new())
    };
    let address = serve(Router::new().route("/v1/traces", post(take)), servers).await.unwrap();
    (address, sent)
}

fn requests(sent: &Sent) -> Vec<ExportTraceServiceRequest> {
    let sent = sent.lock().unwrap();
    sent.iter().map(|body| ExportTraceServiceRequest::decode(body.clone()).unwrap()).collect()
}

fn spans(sent: &Sent) -> Vec<Span> {
    let resources = requests(sent).into_iter().flat_map(|request| request.resource_spans);
    resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
}

fn word(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value?;
    Some(match value {
        Any::StringValue(word) => word,
        Any::IntValue(number) => number.to_string(),
        other => panic!("{key}: {other:?}"),
    })
}

fn named<'s>(spans: &'s [Span], name: &str) -> Vec<&'s Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// A hold is asked for, by an annotation's value.
fn review(hold: &str) -> Value {
    let object = |annotations: Value| {
        json!({"apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster",
            "metadata": {"name": SITE, "namespace": SITE_NAMESPACE, "annotations": annotations},
            "spec": {"replication": {"factor": 3}, "storage": {"nodeLocalPools": [{"name": "fast"}]}}})
    };
    let kind = json!({"group": "garage.rajsingh.info", "version": "v1beta2", "kind": "GarageCluster"});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "kind": kind, "requestKind": kind, "operation": "UPDATE",
        "namespace": SITE_NAMESPACE, "name": SITE, "userInfo": {"username": "somebody"},
        "object": object(json!({"garage.rajsingh.info/node-local-out-of-service": hold})),
        "oldObject": object(json!({}))}})
}

fn conversion() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {
        "uid": "c-1", "desiredAPIVersion": "garage.rajsingh.info/v1beta1", "objects": [
            {"apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster",
             "metadata": {"name": "converted-name", "namespace": SITE_NAMESPACE},
             "spec": {"replication": {"factor": 3}}}]}})
}

/// The passes that went well, by the metrics page.
async fn passes(product: &StandIn) -> u64 {
    let page = product.page().await.unwrap();
    let line = page.lines().find(|line| line.starts_with("garage_holdfast_passes_total{result=\"ok\"}"));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn the_spans_of_requests_and_of_a_pass_reach_a_collector() {
    let mut servers = JoinSet::new();
    let (address, sent) = collector(&mut servers).await;
    let endpoint = format!("http://{address}/");
    let mut product = StandIn::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "200"),
        ("POD_NAME", "replica-0"),
        ("POD_NAMESPACE", "default"),
        // A log that wants everything gets no spans either.
        ("HOLDFAST_LOG", "info,holdfast_webhook=trace,holdfast_reconciler=trace"),
    ])
    .await
    .unwrap();
    let client = WebhookClient::new(product.ca.as_bytes(), SERVICE).unwrap();
    for hold in ["fast/secret-node", "not a hold"] {
        let answer = client.post(product.webhooks, CLUSTERS, &review(hold)).await.unwrap();
        assert_eq!(answer.status, 200, "{:?}", answer.body);
    }
    let answer = client.post(product.webhooks, "/convert", &conversion()).await.unwrap();
    assert_eq!(answer.body["response"]["result"]["status"], "Success", "{:?}", answer.body);
    client.post(product.webhooks, CLUSTERS, &json!({"kind": "nonsense"})).await.ok();
    let complete = || {
        let spans = spans(&sent);
        let all = ["webhook request", "pass", "admin call", "kubernetes write"];
        let there = all.iter().all(|name| !named(&spans, name).is_empty());
        std::future::ready(there && named(&spans, "webhook request").len() == 4)
    };
    product.until("traced", complete).await.unwrap();

    let resource = requests(&sent).remove(0).resource_spans.remove(0).resource.unwrap().attributes;
    assert_eq!(word(&resource, "service.name").unwrap(), "garage-holdfast");
    assert_eq!(word(&resource, "service.version").unwrap(), env!("CARGO_PKG_VERSION"));
    assert_eq!(word(&resource, "k8s.pod.name").unwrap(), "replica-0");
    assert_eq!(word(&resource, "k8s.namespace.name").unwrap(), "default");

    let spans = spans(&sent);
    let of = |route: &str| -> Vec<&Span> {
        let of_route = |span: &&Span| word(&span.attributes, "route").as_deref() == Some(route);
        named(&spans, "webhook request").into_iter().filter(of_route).collect()
    };
    let verdicts: Vec<_> = of("garagecluster")
        .iter()
        .map(|span| {
            let get = |key| word(&span.attributes, key).unwrap_or_default();
            (get("result"), get("verdict"), get("rule"), get("namespace"), get("cluster"))
        })
        .collect();
    let (ns, site) = (SITE_NAMESPACE.to_owned(), SITE.to_owned());
    let refused =
        |rule: &str| ("refused".to_owned(), "refused".to_owned(), rule.to_owned(), ns.clone(), site.clone());
    assert!(verdicts.contains(&refused("V1")), "{verdicts:?}");
    assert_eq!(verdicts.iter().filter(|v| v.3 == SITE_NAMESPACE && v.4 == SITE).count(), 2, "{verdicts:?}");
    assert!(verdicts.iter().any(|v| v.0 == "no_uid" && v.1.is_empty()), "{verdicts:?}");
    let converted = of("convert");
    assert_eq!(word(&converted[0].attributes, "objects").unwrap(), "1");
    assert_eq!(word(&converted[0].attributes, "result").unwrap(), "success");
    assert!(named(&spans, "webhook request").iter().all(|span| span.parent_span_id.is_empty()));

    let passes = named(&spans, "pass");
    assert_eq!(word(&passes[0].attributes, "namespace").unwrap(), SITE_NAMESPACE);
    assert_eq!(word(&passes[0].attributes, "cluster").unwrap(), SITE);
    assert_eq!(word(&passes[0].attributes, "result").unwrap(), "ok", "{}", product.log());
    assert!(passes[0].parent_span_id.is_empty());
    let within = |span: &&Span| passes.iter().any(|pass| pass.span_id == span.parent_span_id);
    let calls: Vec<_> = named(&spans, "admin call").into_iter().filter(within).collect();
    for endpoint in ["GetNodeInfo", "GetClusterHealth", "GetClusterStatus", "GetClusterLayout"] {
        let call = calls.iter().find(|call| word(&call.attributes, "endpoint").unwrap() == endpoint);
        let call = call.unwrap_or_else(|| panic!("no call of {endpoint} within a pass"));
        assert_eq!(word(&call.attributes, "outcome").unwrap(), "ok");
    }
    let writes: Vec<_> = named(&spans, "kubernetes write").into_iter().filter(within).collect();
    let status = writes.iter().find(|write| word(&write.attributes, "action").unwrap() == "status");
    let status = status.expect("no write of the status within a pass");
    assert_eq!(word(&status.attributes, "kind").unwrap(), "GarageCluster");
    assert_eq!(word(&status.attributes, "outcome").unwrap(), "executed");

    // No content of objects, and no names but those of the namespace and the cluster.
    let all: Vec<u8> = sent.lock().unwrap().concat();
    for secret in ["secret-node", "not a hold", "kn-1", "somebody", "converted-name", "1111111111", "token"] {
        assert!(
            !all.windows(secret.len()).any(|window| window == secret.as_bytes()),
            "{secret} is in a trace"
        );
    }
    // The last ones come when the product ends.
    client.post(product.webhooks, CLUSTERS, &review("fast/x")).await.unwrap();
    let (_, well) = product.end().await.unwrap();
    assert!(well, "{}", product.log());
    let requests = crate::spans(&sent).iter().filter(|span| span.name == "webhook request").count();
    assert_eq!(requests, 5);
    assert!(!product.log().contains("webhook request"), "a span in the log:\n{}", product.log());
    assert!(!product.log().contains("does not take our spans"), "{}", product.log());
}

/// Requests are answered and passes go on with this collector; the log says once what is wrong, and the end is not held
/// up.
async fn changes_nothing(endpoint: &str, why: &str) {
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        // A queue that is full after a moment.
        ("OTEL_BSP_MAX_QUEUE_SIZE", "16"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16"),
    ];
    let mut product = StandIn::start(&environment).await.unwrap();
    let client = WebhookClient::new(product.ca.as_bytes(), SERVICE).unwrap();
    let told = |log: String| log.matches("does not take our spans").count();
    let mut slowest = Duration::ZERO;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(12) {
        let asked = Instant::now();
        let answer = client.post(product.webhooks, CLUSTERS, &review("fast/x")).await.unwrap();
        assert_eq!(answer.status, 200);
        slowest = slowest.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // An export may take five seconds; a request that waited for one would show it.
    assert!(slowest < Duration::from_secs(3), "a request took {slowest:?}");
    assert!(passes(&product).await >= 2, "{}", product.log());
    let log = product.log();
    assert_eq!(told(log.clone()), 1, "{log}");
    assert!(log.contains(why), "{log}");
    let (took, well) = product.end().await.unwrap();
    assert!(well, "{}", product.log());
    assert!(took < Duration::from_secs(20), "the end took {took:?}");
    assert_eq!(told(product.log()), 1, "{}", product.log());
}

#[tokio::test]
async fn a_collector_that_never_answers_changes_nothing() {
    // It is connected to by the system, and nobody ever reads.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    changes_nothing(&format!("http://{}", silent.local_addr().unwrap()), "deadline has elapsed").await;
}

#[tokio::test]
async fn a_collector_that_is_not_there_changes_nothing() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    changes_nothing(&format!("http://{gone}"), "Connection refused").await;
}

#[tokio::test]
async fn a_collector_that_answers_nonsense_changes_nothing() {
    let mut servers = JoinSet::new();
    let nonsense = || async { ([(header::CONTENT_TYPE, "text/html")], "<html>") };
    let address = serve(Router::new().fallback(nonsense), &mut servers).await.unwrap();
    changes_nothing(&format!("http://{address}"), "its answer is not one of OTLP").await;
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_started() {
    for environment in [&[][..], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")][..]] {
        let product = StandIn::start(environment).await.unwrap();
        let threads = product.threads();
        assert!(threads.len() > 1 && !threads.iter().any(|name| name.starts_with("OpenTel")), "{threads:?}");
        assert!(!product.log().contains("traces"), "{}", product.log());
    }
}

#[test]
fn a_malformed_url_is_one_clear_error() {
    let product = || {
        let mut command = Command::new(beside_the_program("garage-holdfast"));
        command.arg("serve").env_remove("OTEL_EXPORTER_OTLP_ENDPOINT");
        command
    };
    let by_flag = product().args(["--otlp-endpoint", "collector:4318"]).output().unwrap();
    let by_environment = product().env("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318").output().unwrap();
    for output in [by_flag, by_environment] {
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        for part in
            ["--otlp-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", "\"collector:4318\"", "write http://HOST:4318"]
        {
            assert!(said.contains(part), "{part} is missing: {said}");
        }
    }
}
