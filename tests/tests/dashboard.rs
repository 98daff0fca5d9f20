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
use holdfast_tests::stand_in::{SERVICE, SITE, SITE_NAMESPACE, StandIn, serve};
use holdfast_tests::webhook_client::WebhookClient;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Metrics that this site has not, and why.
const LATER: &[(&str, &str)] =
    &[("garage_holdfast_deferred_since_timestamp_seconds", "there only while a node is deferred")];

/// Panels that find nothing here although their metrics are there, and why.
const EMPTY: &[(&str, &str)] = &[(
    "Seconds since the last proof",
    "the time of the last proof is 0 before the first, and then left out",
)];

/// A query and where it stands.
struct Query {
    place: String,
    expression: String,
    /// Whether it finds something whenever its metrics are there: an alert's mostly does not.
    finds: bool,
}

/// Those of the dashboard, with every variable at "All", as Grafana writes it.
fn of_dashboard() -> Vec<Query> {
    let text =
        std::fs::read_to_string(workspace().join("charts/garage-holdfast/files/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let substituted = |expression: &str| {
        let mut expression = expression.to_owned();
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            expression = expression.replace(&format!("${}", variable["name"].as_str().unwrap()), ".*");
        }
        for (variable, value) in [("$__rate_interval", "5m"), ("$__interval", "1m"), ("$__range", "1h")] {
            expression = expression.replace(variable, value);
        }
        assert!(!expression.contains('$'), "a variable that is not known: {expression}");
        expression
    };
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(Query {
                place: format!("panel {}", panel["title"]),
                expression: substituted(target["expr"].as_str().unwrap()),
                finds: true,
            });
        }
    }
    // What fills the variables: label_values(SELECTOR, LABEL).
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(selector) = variable["query"].as_str().and_then(|q| q.strip_prefix("label_values(")) else {
            continue;
        };
        queries.push(Query {
            place: format!("variable {}", variable["name"]),
            expression: substituted(selector.rsplit_once(',').unwrap().0),
            finds: true,
        });
    }
    queries
}

fn of_alerts(rules: &Value) -> Vec<Query> {
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    rules
        .map(|rule| Query {
            place: format!("alert {}", rule["alert"]),
            expression: rule["expr"].as_str().unwrap().to_owned(),
            finds: false,
        })
        .collect()
}

/// Those in the documentation's blocks of PromQL, one a line.
fn of_documentation() -> Vec<Query> {
    let page = std::fs::read_to_string(workspace().join("docs/src/metrics.md")).unwrap();
    let blocks = page.split("```promql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks
        .flat_map(str::lines)
        .map(|line| Query { place: "metrics.md".to_owned(), expression: line.to_owned(), finds: true })
        .collect()
}

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
