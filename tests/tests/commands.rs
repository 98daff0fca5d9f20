//! The commands that need no cluster, as a person or a pipeline runs them: exit codes, and what is on which stream.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use holdfast_tests::bed::beside_the_program;
use serde_json::Value;

/// Runs the product with something on its standard input.
fn run(args: &[&str], input: &str) -> Output {
    let product = beside_the_program("garage-holdfast");
    assert!(product.exists(), "{} is not built: cargo build --workspace --bins", product.display());
    let mut child = Command::new(product)
        .args(args)
        .env_remove("KUBECONFIG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // A command that does not read its input closes it.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/tests/fixtures/lint").canonicalize().unwrap()
}

/// `(file, expected findings, unchecked)`, by the comments at the end of each fixture.
fn manifests() -> Vec<(PathBuf, Vec<String>, usize)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 20, "{} manifests", files.len());
    let read = |path: PathBuf| {
        let content = std::fs::read_to_string(&path).unwrap();
        let lines = |prefix: &str| -> Vec<String> {
            content
                .lines()
                .filter_map(|line| line.strip_prefix(prefix))
                .map(|l| l.trim().to_owned())
                .collect()
        };
        (path, lines("# expect:"), lines("# unchecked:").len())
    };
    files.into_iter().map(read).collect()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stdout)))
}

/// `LINE:COLUMN SEVERITY RULE` of each finding of a JSON report.
fn findings(report: &Value) -> Vec<String> {
    let one = |f: &Value| {
        let word = |name: &str| f[name].as_str().unwrap_or_default().to_owned();
        format!("{}:{} {} {}", f["line"], f["column"], word("severity"), word("rule"))
    };
    report["findings"].as_array().unwrap().iter().map(one).collect()
}

#[test]
fn lint_judges_each_manifest_by_its_exit_code_in_words_and_in_json() {
    let mut wrong = Vec::new();
    let (mut good, mut bad) = (0, 0);
    for (path, expected, unchecked) in manifests() {
        let file = path.display().to_string();
        let fails = expected.iter().any(|finding| finding.contains(" error "));
        let said = run(&["lint", &file], "");
        let machine = run(&["lint", "-o", "json", &file], "");
        let code = i32::from(fails);
        if said.status.code() != Some(code) || machine.status.code() != Some(code) {
            wrong.push(format!("{file}: exit {:?} and {:?}, not {code}", said.status, machine.status));
        }
        if !said.stderr.is_empty() || !machine.stderr.is_empty() {
            wrong.push(format!("{file}: standard error: {}{}", text(&said.stderr), text(&machine.stderr)));
        }
        let report = json(&machine);
        if findings(&report) != expected {
            wrong.push(format!("{file}: found {:?}, not {expected:?}", findings(&report)));
        }
        if report["unchecked"].as_array().map(Vec::len) != Some(unchecked) {
            wrong.push(format!("{file}: unchecked {}", report["unchecked"]));
        }
        // The words say the same, each finding on a line that an editor can open.
        let words = text(&said.stdout);
        for finding in report["findings"].as_array().unwrap() {
            let line = format!("{file}:{}:{}: ", finding["line"], finding["column"]);
            let message = finding["message"].as_str().unwrap();
            if !words.lines().any(|l| l.starts_with(&line) && l.ends_with(message)) {
                wrong.push(format!("{file}: no line {line}… {message} in\n{words}"));
            }
        }
        if fails { bad += 1 } else { good += 1 }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(good >= 5 && bad >= 10, "{good} good, {bad} bad");
}

#[test]
fn lint_of_the_directory_is_the_lint_of_all_its_manifests() {
    let directory = fixtures().display().to_string();
    let output = run(&["lint", "-o", "json", &directory], "");
    assert_eq!(output.status.code(), Some(1));
    let report = json(&output);
    let expected: Vec<String> = manifests().into_iter().flat_map(|(_, expected, _)| expected).collect();
    assert_eq!(findings(&report), expected);
    let words = text(&run(&["lint", &directory], "").stdout);
    let errors = expected.iter().filter(|finding| finding.contains(" error ")).count();
    let warnings = expected.len() - errors;
    assert!(words.contains(&format!("{errors} errors, {warnings} warnings")), "{words}");
}

#[test]
fn lint_reads_standard_input_and_says_what_needs_a_cluster() {
    let hold = std::fs::read_to_string(fixtures().join("good-hold.yaml")).unwrap();
    let output = run(&["lint", "-"], &hold);
    assert_eq!(output.status.code(), Some(0));
    let words = text(&output.stdout);
    assert!(words.contains("standard input:") && words.contains("needs live state"), "{words}");
    let bad = std::fs::read_to_string(fixtures().join("bad-hold-empty.yaml")).unwrap();
    assert_eq!(run(&["lint", "-"], &bad).status.code(), Some(1));
    // A stream of nothing of ours is no finding.
    assert_eq!(run(&["lint", "-"], "kind: ConfigMap\napiVersion: v1\n").status.code(), Some(0));
}

#[test]
fn what_cannot_be_read_has_an_exit_code_of_its_own_and_is_named_on_standard_error() {
    for args in [
        &["lint", "no-such-file.yaml"][..],
        &["convert", "-f", "no-such-file.yaml", "--to", "v1beta2"],
        &["lint", "-", "--context", "no-such-context"],
    ] {
        let output = run(args, "");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("no-such-"), "{}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn convert_prints_nothing_when_one_document_cannot_be_converted_and_says_where() {
    let good = std::fs::read_to_string(fixtures().join("good-v1beta1.yaml")).unwrap();
    let damaged = std::fs::read_to_string(fixtures().join("bad-damaged-carrier.yaml")).unwrap();
    let output = run(&["convert", "-f", "-", "--to", "v1beta2"], &format!("{good}\n---\n{damaged}"));
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("v1beta2-node-local-pools"), "{}", text(&output.stderr));
}

#[test]
fn convert_there_and_back_is_the_same_in_yaml_and_in_json() {
    let yaml = std::fs::read_to_string(fixtures().join("good-pool-cluster.yaml")).unwrap();
    let value: Value = serde_norway::from_str(&yaml).unwrap();
    let there = |input: &str, to: &str| {
        let output = run(&["convert", "-f", "-", "--to", to], input);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let old = there(&yaml, "v1beta1");
    assert!(old.contains("garage.rajsingh.info/v1beta1") && !old.trim_start().starts_with('{'), "{old}");
    assert_eq!(serde_norway::from_str::<Value>(&there(&old, "v1beta2")).unwrap(), value);
    let old = there(&value.to_string(), "v1beta1");
    assert!(old.trim_start().starts_with('{'), "the output is in the input's format: {old}");
    assert_eq!(serde_json::from_str::<Value>(&there(&old, "v1beta2")).unwrap(), value);
}

#[test]
fn crds_prints_no_conversion_unless_it_is_told_the_service() {
    let without = text(&run(&["crds"], "").stdout);
    assert_eq!(without.matches("kind: CustomResourceDefinition").count(), 2);
    assert!(!without.contains("\n  conversion:"), "what is in the cluster is left alone");
    let with = text(&run(&["crds", "--conversion-service", "ns/svc"], "").stdout);
    assert!(with.contains("strategy: Webhook") && !with.contains("caBundle"), "the bundle is injected");
    let wrong = run(&["crds", "--conversion-service", "svc"], "");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("NAMESPACE/NAME"), "{}", text(&wrong.stderr));
}
