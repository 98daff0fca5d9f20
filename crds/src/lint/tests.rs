#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Each file in `tests/fixtures/lint` says in its last comments what is expected of it:
//! `# expect: LINE:COLUMN SEVERITY RULE` for each finding and `# unchecked: LINE:COLUMN RULES`; nothing for a good one.

use std::fs;
use std::path::Path;

use super::*;

fn fixtures() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/lint");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
        .into_iter()
        .map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&p).unwrap()))
        .collect()
}

#[test]
fn every_fixture_is_found_to_be_what_it_says() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 20, "only {} fixtures", fixtures.len());
    let mut wrong = String::new();
    for (file, text) in fixtures {
        let said = |prefix: &str| -> Vec<String> {
            text.lines().filter_map(|l| l.strip_prefix(prefix)).map(|l| l.trim().to_owned()).collect()
        };
        let report = lint(&file, &text, &Offline);
        let found: Vec<String> = report
            .findings
            .iter()
            .map(|f| {
                format!(
                    "{} {} {}",
                    f.at,
                    if f.severity == Severity::Error { "error" } else { "warning" },
                    f.rule
                )
            })
            .collect();
        let unchecked: Vec<String> =
            report.unchecked.iter().map(|u| format!("{} {}", u.at, u.rules)).collect();
        if found != said("# expect:") || unchecked != said("# unchecked:") {
            wrong.extend([format!("{file}: found {found:?}, unchecked {unchecked:?}\n"), report.to_text()]);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_message_is_short_and_names_its_value() {
    for (file, text) in fixtures() {
        for finding in lint(&file, &text, &Offline).findings {
            assert!(finding.message.chars().count() <= 600, "{file}: {}", finding.message);
        }
    }
}

#[test]
fn text_output_is_what_editors_read_and_json_says_the_same() {
    let text = "apiVersion: garage.rajsingh.info/v1beta2\nkind: GarageCluster\nmetadata:\n  name: a\n  namespace: o\n  annotations:\n    garage.rajsingh.info/node-local-out-of-service: fast\nspec: {}\n";
    let report = lint("dir/file.yaml", text, &Offline);
    assert!(report.failed());
    let shown = report.to_text();
    assert!(shown.starts_with("dir/file.yaml:7:5: error: GarageCluster o/a: V1 ("), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["findings"][0]["line"], 7);
    assert_eq!(json["findings"][0]["column"], 5);
    assert_eq!(json["findings"][0]["rule"], "V1");
    assert_eq!(json["findings"][0]["severity"], "error");
}

/// A cluster with one stored object of each kind.
struct Stored {
    cluster: Option<String>,
    node: Option<String>,
    members: Vec<Member>,
}

impl Live for Stored {
    fn cluster(&self, _: &str, _: &str) -> Fact<Option<String>> {
        Fact::Known(self.cluster.clone())
    }
    fn node(&self, _: &str, _: &str) -> Fact<Option<String>> {
        Fact::Known(self.node.clone())
    }
    fn members(&self, _: &str, _: &str) -> Fact<Vec<Member>> {
        Fact::Known(self.members.clone())
    }
}

#[test]
fn with_a_cluster_the_verdict_is_the_webhooks() {
    let cluster = |hold: &str| {
        format!(
            "apiVersion: garage.rajsingh.info/v1beta2\nkind: GarageCluster\nmetadata:\n  name: a\n  namespace: o\n  annotations:\n    note: x\n{hold}spec:\n  replication: {{factor: 3}}\n  storage:\n    replicas: 0\n    podDisruptionBudget: {{enabled: true}}\n    nodeLocalPools:\n    - name: fast\n      capacity: 1Ti\n      metadata: {{hostPath: /m}}\n      data: {{hostPath: /d}}\n      selector: {{}}\n"
        )
    };
    let hold = "    garage.rajsingh.info/node-local-out-of-service: fast/kn-1\n";
    let json = |yaml: &str| Some(read(yaml).1.pop().unwrap().content.unwrap().to_value().to_string());
    let member = |node: &str| Member {
        pool: "fast".into(),
        kubernetes_node: node.into(),
        node_id: Some("0f".repeat(32)),
        pin: None,
    };
    let mut live = Stored { cluster: json(&cluster("")), node: None, members: vec![member("kn-1")] };
    let report = lint("f", &cluster(hold), &live);
    assert_eq!((report.findings, report.unchecked), (vec![], vec![]));
    live.members = vec![member("kn-2")];
    let report = lint("f", &cluster(hold), &live);
    assert_eq!(report.findings[0].rule, "V4");
    assert_eq!(report.findings[0].at.to_string(), "8:5");
    live.cluster = None;
    assert_eq!(lint("f", &cluster(hold), &live).findings[0].rule, "V4", "on create there are no members");
    live.cluster = json(&cluster(hold));
    assert!(!lint("f", &cluster(hold), &live).failed(), "what is stored already is not judged again (V3)");
}

#[test]
fn with_a_cluster_a_moved_pin_is_refused() {
    let node = |pin: &str| {
        format!(
            "apiVersion: garage.rajsingh.info/v1beta1\nkind: GarageNode\nmetadata:\n  name: a-node-local-fast-kn-1\n  namespace: o\n  annotations:\n    garage.rajsingh.info/node-local-pool-recovery-node-id: '{}'\nspec:\n  clusterRef: {{name: a}}\n  zone: rack-1\n  capacity: 1Ti\n  backing: NodeLocalPool\n  nodeLocalPoolName: fast\n  kubernetesNodeName: kn-1\n",
            pin.repeat(32)
        )
    };
    let json = |yaml: &str| Some(read(yaml).1.pop().unwrap().content.unwrap().to_value().to_string());
    let live = Stored { cluster: None, node: json(&node("0f")), members: vec![] };
    assert!(!lint("f", &node("0f"), &live).failed());
    let report = lint("f", &node("c3"), &live);
    assert_eq!(report.findings[0].rule, "V10");
    assert_eq!(report.findings[0].at.to_string(), "7:5");
}

#[test]
fn nothing_makes_it_panic() {
    for text in [
        "",
        "---",
        "a",
        "[]",
        "- 1",
        "{",
        "\u{0}",
        "items: 5\nkind: List",
        "kind: List\nitems:\n- kind: List\n  items: [{}]",
    ] {
        lint("f", text, &Offline).to_text();
    }
}
