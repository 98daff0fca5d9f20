//! The queries of the dashboard, of the alerts and of the documentation, on a real Prometheus that scrapes the product's
//! own page and a recorded one of Garage: none is refused, each finds what it looks for, and every name is of a metric
//! that is there, or that is known to appear only after something happened.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeSet;

use axum::Router;
use axum::http::header;
use axum::routing::get;
use holdfast_tests::bed::tools::workspace;
use holdfast_tests::chart::{EVERYTHING, of_kind, template};
use holdfast_tests::prometheus::{Prometheus, Target};
use holdfast_tests::queries::{Query, of_alerts, of_dashboard, of_documentation};
use holdfast_tests::stand_in::{SERVICE, SITE, SITE_NAMESPACE, StandIn, serve};
use holdfast_tests::webhook_client::WebhookClient;
use serde_json::json;
use tokio::task::JoinSet;

/// Metrics that this site has not, and why.
const LATER: &[(&str, &str)] =
    &[("garage_holdfast_deferred_since_timestamp_seconds", "there only while a node is deferred")];

/// Panels that find nothing here although their metrics are there, and why.
const EMPTY: &[(&str, &str)] = &[(
    "Seconds since the last proof",
    "the time of the last proof is 0 before the first, and then left out",
)];

/// A request of each route, so that what counts them has something to show.
async fn knock(product: &StandIn) {
    let client = WebhookClient::new(product.ca.as_bytes(), SERVICE).unwrap();
    let kind = json!({"group": "garage.rajsingh.info", "version": "v1beta2", "kind": "GarageCluster"});
    let object = json!({"apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster",
        "metadata": {"name": SITE, "namespace": SITE_NAMESPACE}, "spec": {"replication": {"factor": 3}}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "kind": kind, "requestKind": kind, "operation": "UPDATE", "object": object, "oldObject": object}});
    let path = "/validate-garage-rajsingh-info-v1beta2-garagecluster";
    client.post(product.webhooks, path, &review).await.unwrap();
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {
        "uid": "c", "desiredAPIVersion": "garage.rajsingh.info/v1beta1", "objects": [object]}});
    client.post(product.webhooks, "/convert", &review).await.unwrap();
}

/// A page of a real Garage with a queue of blocks, as it was recorded but for the buckets of histograms.
async fn garage(servers: &mut JoinSet<()>) -> Target {
    let page = workspace().join("tests/fixtures/garage/2.5.0/metrics-resyncing.txt");
    let page = std::fs::read_to_string(page).unwrap();
    let give = move || async move { ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page) };
    let address = serve(Router::new().route("/metrics", get(give)), servers).await.unwrap();
    Target::new("garage", address)
}

#[tokio::test]
async fn every_query_of_dashboard_alerts_and_documentation_runs_and_finds_what_it_looks_for() {
    let Some(documents) = template(EVERYTHING).unwrap() else { return };
    let rules = of_kind(&documents, "PrometheusRule")[0]["spec"].clone();
    let mut servers = JoinSet::new();
    let product = StandIn::start(&[]).await.unwrap();
    knock(&product).await;
    let observed = || async {
        let page = product.page().await.unwrap();
        page.contains("garage_holdfast_service_phase{")
    };
    product.until("observed", observed).await.unwrap();
    let targets = [Target::new("garage-holdfast", product.metrics), garage(&mut servers).await];
    let Some(prometheus) = Prometheus::start(&targets, Some(&rules)).await.unwrap() else { return };

    let mut queries = of_dashboard();
    let panels = queries.len();
    queries.extend(of_alerts(&rules));
    let alerts = queries.len() - panels;
    queries.extend(of_documentation());
    assert!(panels >= 18 && alerts == 11 && queries.len() - panels - alerts == 3, "{}", queries.len());

    let there = prometheus.names().await.unwrap();
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for Query { place, expression, finds } in &queries {
        let found = match prometheus.query(expression).await {
            Ok(found) => found,
            Err(error) => {
                wrong.push(format!("{place}: {error}"));
                continue;
            }
        };
        let names = prometheus.selected(expression).await.unwrap();
        assert!(!names.is_empty(), "{place}: {expression} selects nothing by name");
        for name in names.difference(&there) {
            if !LATER.iter().any(|(later, _)| later == name) {
                wrong.push(format!("{place}: {name} is on no page"));
            }
        }
        if *finds && names.is_subset(&there) {
            let empty = EMPTY.iter().any(|(panel, _)| *place == format!("panel {panel:?}"));
            match (found.is_empty(), empty) {
                (true, false) => wrong.push(format!("{place}: {expression} finds nothing")),
                (false, true) => wrong.push(format!("{place}: {expression} finds something after all")),
                _ => {}
            }
        }
        used.extend(names);
    }
    for (later, why) in LATER {
        if there.contains(*later) || !used.contains(*later) {
            wrong.push(format!(
                "{later} is said to be missing ({why}), yet it is there, or nobody asks for it"
            ));
        }
    }
    let rules = prometheus.rules().await.unwrap();
    assert_eq!(rules.len(), alerts);
    for rule in rules.iter().filter(|rule| rule["health"] != "ok") {
        wrong.push(format!("alert {}: {}", rule["name"], rule["lastError"]));
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), product.page().await.unwrap());
    println!("{} queries of {} metrics", queries.len(), used.len());
}
