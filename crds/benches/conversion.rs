//! What conversion costs: `cargo bench -p holdfast-crds --bench conversion`, one line a case.
//!
//! Processor time of this process, not the clock: other load on the machine hardly moves it. Lists are whole reviews,
//! read and answered. A controller-runtime webhook for the same kinds converts 8,700 objects of 1.4 KB a CPU-second.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::hint::black_box;

use common::measure;
use holdfast_crds::convert::{Converter, Version, convert_value, review};
use serde_json::{Value, json};

/// A cluster as the API server sends it: sorted keys, managedFields, status. About 1.4 KB, or 20 KB.
fn object(large: bool) -> Value {
    let managed = json!({
        "apiVersion": "garage.rajsingh.info/v1beta2", "fieldsType": "FieldsV1", "manager": "kubectl-client-side-apply",
        "operation": "Update", "time": "2026-01-01T00:00:00Z",
        "fieldsV1": {
            "f:metadata": {"f:annotations": {".": {}, "f:note": {}}},
            "f:spec": {
                ".": {}, "f:replication": {".": {}, "f:factor": {}}, "f:zone": {},
                "f:storage": {".": {}, "f:data": {".": {}, "f:size": {}}, "f:metadata": {".": {}, "f:size": {}}, "f:replicas": {}},
            },
        },
    });
    let mut object = json!({
        "apiVersion": "garage.rajsingh.info/v1beta2",
        "kind": "GarageCluster",
        "metadata": {
            "annotations": {"note": "hello"}, "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 3,
            "labels": {"site": "a"}, "managedFields": [managed], "name": "site-a", "namespace": "objects",
            "resourceVersion": "12345", "uid": "2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c",
        },
        "spec": {
            "image": "dxflrs/garage:v2.3.0", "network": {"rpcBindPort": 3901},
            "replication": {"consistencyMode": "consistent", "factor": 3},
            "s3Api": {"bindPort": 3900, "region": "garage"},
            "storage": {
                "data": {"size": "1Ti", "type": "PersistentVolumeClaim"},
                "metadata": {"size": "10Gi", "type": "PersistentVolumeClaim"},
                "replicas": 3, "resources": {"limits": {"memory": "1Gi"}},
            },
            "zone": "rack-1",
        },
        "status": {
            "conditions": [{
                "lastTransitionTime": "2026-01-01T00:00:00Z", "message": "all replicas are ready", "observedGeneration": 3,
                "reason": "ClusterReady", "status": "True", "type": "Ready",
            }],
            "phase": "Running", "readyReplicas": 3, "replicas": 3, "selector": "app.kubernetes.io/name=garage",
        },
    });
    if large {
        object["metadata"]["managedFields"] = vec![managed; 8].into();
        object["spec"]["gateway"] = json!({"env": [{"name": "A", "value": "b"}], "replicas": 2});
        object["spec"]["storage"]["nodeLocalPools"] = (0..2)
            .map(|i| {
                json!({
                    "capacity": "2Ti", "data": {"hostPath": "/srv/garage/data"}, "metadata": {"hostPath": "/srv/garage/meta"},
                    "name": format!("pool-{i}"), "selector": {"matchLabels": {"disk": "fast"}},
                })
            })
            .collect();
        object["status"]["redundancy"] = json!({"nodes": (0..72).map(|i| json!({
            "blockErrors": 0, "metadataQueueLength": 0, "metadataSyncPartitions": 0, "nodeId": format!("{i:064x}"),
            "observed": true, "resyncIdle": true, "resyncQueueLength": 0,
        })).collect::<Vec<_>>()});
    }
    object
}

fn main() {
    println!("{:<34} {:>8} {:>12} {:>18}", "case", "bytes", "ns/object", "objects/CPU-second");
    for (size, large) in [("1.4 KB", false), ("20 KB", true)] {
        let new = object(large);
        for to in [Version::V1beta1, Version::V1beta2] {
            let source = match to {
                Version::V1beta1 => new.clone(),
                Version::V1beta2 => convert_value(&new, Version::V1beta1).unwrap(),
            };
            let text = source.to_string();
            let line = |case: &str, ns: u64| {
                let name = format!("{size} to {to}, {case}");
                println!("{name:<34} {:>8} {ns:>12} {:>18}", text.len(), 1_000_000_000 / ns.max(1));
            };
            let budget = 100_000_000 / text.len() as u64;
            let mut out = Vec::with_capacity(2 * text.len());
            let mut converter = Converter::default();
            line(
                "the object alone",
                measure(budget, || {
                    out.clear();
                    converter.convert(black_box(text.as_bytes()), to, &mut out).unwrap();
                }),
            );
            for count in [1, 50, 500] {
                let review = format!(
                    r#"{{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{{"uid":"u","desiredAPIVersion":"{}","objects":[{}]}}}}"#,
                    to.api_version(),
                    vec![text.as_str(); count].join(",")
                );
                let calls = (budget / count as u64).max(1);
                let ns = measure(calls, || {
                    out.clear();
                    assert!(
                        review::answer(black_box(review.as_bytes()), &mut out).unwrap().failure.is_none()
                    );
                });
                line(&format!("review of {count}"), ns / count as u64);
            }
        }
    }
}
