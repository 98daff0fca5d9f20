//! The queries that the chart's dashboard, the alerts and the documentation ask Prometheus.
// What they read is part of this checkout; a test that finds it broken has found what it looks for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::missing_panics_doc)]

use serde_json::Value;

use crate::bed::tools::workspace;

/// A query and where it stands.
pub struct Query {
    /// The panel, alert or page.
    pub place: String,
    /// PromQL.
    pub expression: String,
    /// Whether it finds something whenever its metrics are there: an alert's mostly does not.
    pub finds: bool,
}

/// Those of the dashboard, with every variable at "All", as Grafana writes it.
pub fn of_dashboard() -> Vec<Query> {
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

/// Those of the alerts, of the `spec` of a PrometheusRule.
pub fn of_alerts(rules: &Value) -> Vec<Query> {
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
pub fn of_documentation() -> Vec<Query> {
    let page = std::fs::read_to_string(workspace().join("docs/src/metrics.md")).unwrap();
    let blocks = page.split("```promql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks
        .flat_map(str::lines)
        .map(|line| Query { place: "metrics.md".to_owned(), expression: line.to_owned(), finds: true })
        .collect()
}
