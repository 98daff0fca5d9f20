//! What is sent: reviews as the API server writes them.

use holdfast_crds::convert::{Version, convert_value};
use serde_json::{Value, json};

use crate::common;

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

/// A hold is set: the admission request that an administrator waits for.
pub fn admission() -> bytes::Bytes {
    let mut held = object("site-a", false);
    held["metadata"]["annotations"][common::HOLD] = json!("fast/kn-2");
    common::update(&object("site-a", false), &held).to_string().into()
}

/// A list of `count` objects, to `to`.
pub fn conversion(count: usize, large: bool, to: Version) -> bytes::Bytes {
    let objects: Vec<Value> = (0..count)
        .map(|i| {
            let object = object(&format!("c-{i}"), large);
            if to == Version::V1beta2 { convert_value(&object, Version::V1beta1).unwrap() } else { object }
        })
        .collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "c", "desiredAPIVersion": to.api_version(), "objects": objects}})
    .to_string()
    .into()
}
