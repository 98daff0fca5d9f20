//! What the benchmarks of several crates share: the object that they are about, and a clock of processor time.
#![allow(dead_code, missing_docs)]

use std::time::Instant;

use serde_json::{Value, json};

/// Nanoseconds of processor time so far; the clock where the kernel does not say.
pub fn spent(begin: Instant) -> u64 {
    std::fs::read_to_string("/proc/self/schedstat")
        .ok()
        .and_then(|s| s.split(' ').next().and_then(|n| n.parse().ok()))
        .unwrap_or_else(|| u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The best of five runs, in nanoseconds for each call.
pub fn measure(calls: u64, mut call: impl FnMut()) -> u64 {
    let begin = Instant::now();
    (0..5)
        .map(|_| {
            let before = spent(begin);
            for _ in 0..calls {
                call();
            }
            (spent(begin) - before) / calls
        })
        .min()
        .unwrap_or(0)
}

/// A GarageCluster of about 1.4 KB, or of 20 KB with the managedFields and the status of a large site.
pub fn object(name: &str, large: bool) -> Value {
    let managed = json!({"apiVersion": "garage.rajsingh.info/v1beta2", "fieldsType": "FieldsV1", "manager": "kubectl",
        "operation": "Apply", "time": "2026-11-30T00:00:00Z",
        "fieldsV1": {"f:spec": {"f:storage": {"f:nodeLocalPools": {"k:{\"name\":\"fast\"}": {".": {}, "f:capacity": {}}}}}}});
    let mut object = json!({
        "apiVersion": "garage.rajsingh.info/v1beta2",
        "kind": "GarageCluster",
        "metadata": {"name": name, "namespace": "objects", "uid": "2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c",
            "resourceVersion": "12345", "generation": 4, "creationTimestamp": "2026-11-30T00:00:00Z",
            "labels": {"team": "storage"}, "annotations": {"example.com/owner": "a"},
            "managedFields": vec![managed; if large { 12 } else { 1 }]},
        "spec": {"zone": "rack-1", "replication": {"factor": 3, "consistencyMode": "consistent"},
            "admin": {"adminTokenSecretRef": {"name": "site-a-admin", "key": "admin-token"}},
            "storage": {"replicas": 0, "podDisruptionBudget": {"enabled": true}, "nodeLocalPools": [
                {"name": "fast", "selector": {"matchLabels": {"disk": "fast"}}, "capacity": "2Ti",
                 "metadata": {"hostPath": "/srv/garage/fast/meta", "hostPathType": "Directory"},
                 "data": {"hostPath": "/srv/garage/fast/data", "hostPathType": "Directory"}}]}},
        "status": {"phase": "Running", "replicas": 3, "selector": "app=garage", "readyReplicas": 3,
            "conditions": [{"type": "Ready", "status": "True", "reason": "ClusterReady", "message": "all nodes are ready",
                "lastTransitionTime": "2026-11-30T00:00:00Z"}]},
    });
    if large {
        object["status"]["redundancy"] = json!({"nodes": (0..72).map(|i| json!({
            "blockErrors": 0, "metadataQueueLength": 0, "metadataSyncPartitions": 0, "nodeId": format!("{i:064x}"),
            "observed": true, "resyncIdle": true, "resyncQueueLength": 0,
        })).collect::<Vec<_>>()});
    }
    object
}
