//! The direction of dependencies: `src -> {webhook, reconciler, certs} -> crds`; the three never import each other, and
//! `crds` does no I/O.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

fn metadata() -> Value {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Direct normal and build dependencies of each workspace member, by name.
fn direct(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| {
            let dependencies = p["dependencies"].as_array().unwrap().iter();
            let names = dependencies
                .filter(|d| d["kind"] != "dev")
                .map(|d| d["name"].as_str().unwrap().to_owned())
                .collect();
            (p["name"].as_str().unwrap().to_owned(), names)
        })
        .collect()
}

#[test]
fn crates_of_the_product_depend_on_each_other_in_one_direction_only() {
    let direct = direct(&metadata());
    let ours = |name: &str| -> Vec<&str> {
        direct[name].iter().map(String::as_str).filter(|d| direct.contains_key(*d)).collect()
    };
    assert_eq!(ours("holdfast-crds"), [""; 0]);
    for middle in ["holdfast-webhook", "holdfast-reconciler", "holdfast-certs"] {
        assert_eq!(ours(middle), ["holdfast-crds"], "{middle}");
    }
    for (name, dependencies) in &direct {
        assert!(!dependencies.contains("holdfast-tests"), "{name} depends on the tests");
        if name != "holdfast-tests" {
            assert!(!dependencies.contains("garage-holdfast"), "{name} depends on the binary");
        }
    }
}

#[test]
fn the_typed_model_does_no_io() {
    let direct = direct(&metadata());
    for io in [
        "tokio",
        "futures",
        "reqwest",
        "hyper",
        "axum",
        "tower",
        "rustls",
        "http",
        "kube-client",
        "kube-runtime",
        "tracing",
        "prometheus-client",
        "rand",
        "clap",
    ] {
        assert!(!direct["holdfast-crds"].contains(io), "holdfast-crds depends on {io}");
    }
}

/// A dependency on `kube` is one on its client too where features are unified, so the sources are read: no module of the
/// client, of the runtime, of the operating system or of the clock is named in them.
#[test]
fn the_typed_model_names_no_client_no_clock_and_no_file() {
    fn sources(directory: &std::path::Path, out: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, out);
            } else if path.file_name().is_some_and(|name| name == "tests.rs") {
                // Tests may read their fixtures.
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(path);
            }
        }
    }
    let mut files = Vec::new();
    sources(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/src")), &mut files);
    assert!(files.len() > 5);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in [
            "kube::Client",
            "kube::Api",
            "kube::client",
            "kube::api::Api",
            "kube::runtime",
            "std::fs",
            "std::net",
            "std::env",
            "std::process",
            "std::io::",
            "SystemTime::now",
            "Instant::now",
            "Timestamp::now",
            "Zoned::now",
            "tokio::",
        ] {
            let used = text.lines().any(|l| l.contains(name) && !l.trim_start().starts_with("//"));
            assert!(!used, "{} names {name}", file.display());
        }
    }
}
