//! The chart's alerts, judged by Prometheus' own promtool: `tests/prometheus/alerts.yaml` says when each fires and when
//! not. And the words that alerts and dashboard look for in labels are words that the product writes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use holdfast_crds::conditions::{ConditionType, FullyReplicatedReason};
use holdfast_crds::status::{ServiceOperation, ServicePhase};
use holdfast_tests::bed::{assets, tools::workspace};
use holdfast_tests::chart::{EVERYTHING, built, of_kind, template};
use serde_json::Value;

fn cases() -> String {
    std::fs::read_to_string(workspace().join("tests/prometheus/alerts.yaml")).unwrap()
}

/// The rules as an operator of Prometheus takes them out of the PrometheusRule.
fn rules() -> Option<Value> {
    let documents = template(EVERYTHING).unwrap()?;
    Some(of_kind(&documents, "PrometheusRule")[0]["spec"].clone())
}

fn alerts(rules: &Value) -> Vec<&Value> {
    let groups = rules["groups"].as_array().unwrap().iter();
    groups.flat_map(|group| group["rules"].as_array().unwrap()).collect()
}

fn promtool(promtool: &Path, arguments: &[&str], folder: &Path) {
    let output = Command::new(promtool).args(arguments).current_dir(folder).output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "promtool {}: {said}", arguments.join(" "));
}

#[test]
fn every_alert_fires_when_it_should_and_not_when_it_should_not() {
    let Some(rules) = rules() else { return };
    let Some(tool) = built(assets::prometheus("promtool")).unwrap() else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), serde_norway::to_string(&rules).unwrap()).unwrap();
    std::fs::write(folder.path().join("alerts.yaml"), cases()).unwrap();
    promtool(&tool, &["check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"], folder.path());
    promtool(&tool, &["test", "rules", "alerts.yaml"], folder.path());
}

#[test]
fn every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() {
    let Some(rules) = rules() else { return };
    let named: BTreeSet<&str> = alerts(&rules).iter().map(|rule| rule["alert"].as_str().unwrap()).collect();
    assert_eq!(named.len(), 11, "{named:?}");
    let cases: Value = serde_norway::from_str(&cases()).unwrap();
    let mut told: BTreeMap<&str, [bool; 2]> = BTreeMap::new();
    for case in cases["tests"].as_array().unwrap() {
        for said in case["alert_rule_test"].as_array().unwrap() {
            let fires = !said["exp_alerts"].as_array().unwrap().is_empty();
            told.entry(said["alertname"].as_str().unwrap()).or_default()[usize::from(fires)] = true;
        }
    }
    assert_eq!(told.keys().copied().collect::<BTreeSet<&str>>(), named);
    for (alert, told) in told {
        assert_eq!(told, [true, true], "{alert}: [does not fire, fires]");
    }
}

/// The values that an expression asks of a label, of equality and of alternatives: `a="b"`, `a=~"b|c"`.
fn asked(expression: &str, label: &str) -> Vec<String> {
    [format!("{label}=\""), format!("{label}!=\""), format!("{label}=~\"")]
        .iter()
        .flat_map(|start| expression.split(start.as_str()).skip(1))
        .flat_map(|rest| rest.split('"').next().unwrap().split('|').map(str::to_owned))
        .collect()
}

#[test]
fn the_words_that_alerts_look_for_are_words_that_the_product_writes() {
    let Some(rules) = rules() else { return };
    let mut seen = 0;
    for rule in alerts(&rules) {
        let expression = rule["expr"].as_str().unwrap();
        let mut check = |label: &str, known: &dyn Fn(&str) -> bool| {
            for word in asked(expression, label) {
                assert!(known(&word), "{}: {label}={word:?} is never written", rule["alert"]);
                seen += 1;
            }
        };
        let word = |word: &str| Value::String(word.to_owned());
        check("type", &|w| ConditionType::ALL.iter().any(|t| t.as_str() == w));
        check("reason", &|w| FullyReplicatedReason::ALL.iter().any(|r| r.as_str() == w));
        check("phase", &|w| serde_json::from_value::<ServicePhase>(word(w)).is_ok());
        check("operation", &|w| serde_json::from_value::<ServiceOperation>(word(w)).is_ok());
    }
    assert!(seen >= 10, "{seen}");
}
