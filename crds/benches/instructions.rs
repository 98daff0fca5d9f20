//! The main paths, each so many times over, for `tests/instructions.sh` to count instructions of.
//!
//! `instructions NAME TIMES`; without arguments it lists the names. Nothing is timed here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::hint::black_box;

use holdfast_crds::convert::{Version, convert_value, review};
use holdfast_crds::validate::{Fact, Kind, Lookup, Member, Operation, Request, validate};
use serde_json::{Value, json};

/// Runs a path so many times.
type Path = fn(u32);

const PATHS: [(&str, Path); 3] =
    [("conversion-down", conversion_down), ("conversion-up", conversion_up), ("admission", admission)];

fn object() -> Value {
    json!({
        "apiVersion": "garage.rajsingh.info/v1beta2",
        "kind": "GarageCluster",
        "metadata": {"name": "site-a", "namespace": "objects", "uid": "2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c",
            "resourceVersion": "12345", "generation": 4, "creationTimestamp": "2026-11-30T00:00:00Z",
            "labels": {"team": "storage"}, "annotations": {"example.com/owner": "a"},
            "managedFields": [{"apiVersion": "garage.rajsingh.info/v1beta2", "fieldsType": "FieldsV1", "manager": "kubectl",
                "operation": "Apply", "time": "2026-11-30T00:00:00Z",
                "fieldsV1": {"f:spec": {"f:storage": {"f:nodeLocalPools": {"k:{\"name\":\"fast\"}": {".": {}, "f:capacity": {}}}}}}}]},
        "spec": {"zone": "rack-1", "replication": {"factor": 3, "consistencyMode": "consistent"},
            "admin": {"adminTokenSecretRef": {"name": "site-a-admin", "key": "admin-token"}},
            "storage": {"replicas": 0, "podDisruptionBudget": {"enabled": true}, "nodeLocalPools": [
                {"name": "fast", "selector": {"matchLabels": {"disk": "fast"}}, "capacity": "2Ti",
                 "metadata": {"hostPath": "/srv/garage/fast/meta", "hostPathType": "Directory"},
                 "data": {"hostPath": "/srv/garage/fast/data", "hostPathType": "Directory"}}]}},
        "status": {"phase": "Running", "replicas": 3, "selector": "app=garage", "readyReplicas": 3,
            "conditions": [{"type": "Ready", "status": "True", "reason": "ClusterReady", "message": "all nodes are ready",
                "lastTransitionTime": "2026-11-30T00:00:00Z"}]},
    })
}

/// A list of 50, so many times.
fn convert(times: u32, object: &Value, to: Version) {
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "u", "desiredAPIVersion": to.api_version(), "objects": vec![object; 50]}})
    .to_string();
    let mut out = Vec::with_capacity(2 * review.len());
    for _ in 0..times {
        out.clear();
        assert!(review::answer(black_box(review.as_bytes()), &mut out).unwrap().failure.is_none());
    }
}

fn conversion_down(times: u32) {
    convert(times, &object(), Version::V1beta1);
}

fn conversion_up(times: u32) {
    convert(times, &convert_value(&object(), Version::V1beta1).unwrap(), Version::V1beta2);
}

/// A hold is set and allowed.
fn admission(times: u32) {
    let member = |node: &str| Member {
        pool: "fast".to_owned(),
        kubernetes_node: node.to_owned(),
        node_id: Some("0f".repeat(32)),
        pin: None,
    };
    let lookup =
        Lookup { members: Fact::Known(["kn-1", "kn-2", "kn-3"].map(member).to_vec()), ..Lookup::default() };
    let mut held = object();
    held["metadata"]["annotations"]["garage.rajsingh.info/node-local-out-of-service"] = json!("fast/kn-2");
    let (old, new) = (object().to_string(), held.to_string());
    for _ in 0..times {
        let request = Request::from_json(
            Kind::GarageCluster,
            Operation::Update,
            Version::V1beta2,
            "",
            Some(black_box(&old)),
            Some(black_box(&new)),
        )
        .unwrap();
        assert!(validate(&request, &lookup).allowed());
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    match arguments.as_slice() {
        [name, times] => {
            let (_, path) = PATHS.into_iter().find(|(known, _)| known == name).expect("a known path");
            path(times.parse().expect("a number"));
        }
        _ => PATHS.iter().for_each(|(name, _)| println!("{name}")),
    }
}
