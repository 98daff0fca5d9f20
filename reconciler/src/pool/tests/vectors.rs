//! The computed values of `compat.md`, and everything rendered as snapshots.

use holdfast_crds::names;
use serde_json::Value;

use super::world::{DAEMON_SET_UID, World};
use crate::act::{Action, Kind};

/// Without what numbers the world gave it.
fn shown(value: &Value) -> Value {
    let mut value = value.clone();
    value["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    if let Some(status) = value["status"].as_object_mut() {
        status.remove("observedPodUid");
    }
    value
}

fn settled() -> World {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.settle();
    world
}

#[test]
fn garage_toml_is_the_recorded_one_to_the_byte() {
    let world = settled();
    let map = world.get(Kind::ConfigMap, "site-a-storage-fast-config-14541b9490c9").unwrap();
    let text = map["data"]["garage.toml"].as_str().unwrap();
    insta::assert_snapshot!(text);
    assert_eq!(names::config_hash(text), "27c4fb668c89a080d6b423431c88e79bf45e0cb630d8b0c20765d080266b5f7f");
    assert!(world.get(Kind::ConfigMap, "site-a-config-27c4fb668c89").is_some());
}

#[test]
fn the_secrets_have_the_recorded_names_and_fingerprints() {
    let world = settled();
    let rpc = world.get(Kind::Secret, "site-a-rpc-secret").unwrap();
    let print = "630dcd2966c4336691125448bbb25b4ff412a49c732db2c8abc1b8581bd710dd";
    assert_eq!(rpc["metadata"]["annotations"]["garage.rajsingh.info/rpc-identity-sha256"], print);
    let cluster = world.get(Kind::GarageCluster, "site-a").unwrap();
    assert_eq!(cluster["metadata"]["annotations"]["garage.rajsingh.info/rpc-identity-sha256"], print);
    let copy = world.get(Kind::Secret, "site-a-credentials-7b5744d04e99a2f3").unwrap();
    assert_eq!(copy["immutable"], true);
}

#[test]
fn the_daemon_set_is_born_fenced_and_then_gets_its_token() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    let mut tokens: Vec<Value> = Vec::new();
    for _ in 0..40 {
        for action in world.plan().actions {
            world.perform(&action);
        }
        if let Some(set) = world.get(Kind::DaemonSet, "site-a-storage-fast") {
            let token =
                set["spec"]["template"]["spec"]["nodeSelector"].as_object().unwrap().values().next().unwrap();
            if tokens.last() != Some(token) {
                tokens.push(token.clone());
            }
        }
        world.controllers();
    }
    assert_eq!(tokens, ["rollout-adoption-fenced", "workload-b3c96c765129f7ca88d39d5d8ec7127e"]);
    assert_eq!(names::workload_token(DAEMON_SET_UID), "workload-b3c96c765129f7ca88d39d5d8ec7127e");
}

#[test]
fn the_daemon_set_is_rendered_as_the_full_operator_does() {
    let world = settled();
    insta::assert_yaml_snapshot!(shown(world.get(Kind::DaemonSet, "site-a-storage-fast").unwrap()));
}

#[test]
fn services_and_config_map_are_rendered_as_the_full_operator_does() {
    let world = settled();
    for (kind, name) in [
        (Kind::Service, "site-a"),
        (Kind::Service, "site-a-headless"),
        (Kind::ConfigMap, "site-a-storage-fast-config-14541b9490c9"),
    ] {
        insta::assert_yaml_snapshot!(
            format!("{}-{name}", kind.as_str()),
            shown(world.get(kind, name).unwrap())
        );
    }
}

#[test]
fn a_members_records_are_the_recorded_ones() {
    let world = settled();
    let node = world.get(Kind::Node, "kn-1").unwrap();
    let label = "garage.rajsingh.info/gc-f9cd9413b7e1ed0a-node-local-pool-115dc3606fbf8691";
    assert_eq!(node["metadata"]["labels"][label], "workload-b3c96c765129f7ca88d39d5d8ec7127e");
    let id = "11".repeat(32);
    let annotations = &node["metadata"]["annotations"];
    assert_eq!(
        annotations["garage.rajsingh.info/gc-5572c0d0d2fcde6b-node-local-pool-115dc3606fbf8691-node-id"],
        *id
    );
    assert_eq!(
        annotations["garage.rajsingh.info/gc-5572c0d0d2fcde6b-node-local-115dc3606fbf8691-hostpath-claim"],
        format!(
            r#"{{"version":1,"clusterNamespace":"objects","clusterName":"site-a","nodeLocalPoolName":"fast","hostPaths":["/srv/garage/fast/data","/srv/garage/fast/meta"],"garageNodeId":"{id}"}}"#
        ),
    );
    let record = world.get(Kind::GarageNode, "site-a-node-local-fast-kn-1").unwrap();
    assert_eq!(
        record["metadata"]["annotations"]["garage.rajsingh.info/node-local-pool-recovery-node-id"],
        *id
    );
    insta::assert_yaml_snapshot!("GarageNode", shown(record));
    let role = world.layout.roles.values().next().unwrap();
    assert_eq!(
        role.tags,
        [
            "cluster:site-a/objects",
            "cluster-uid:2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c",
            "tier:storage",
            "node-local-pool:fast",
            "kubernetes-node:kn-1",
            "row:7",
        ]
    );
    assert_eq!((role.zone.as_str(), role.capacity), ("rack-1", Some(2_199_023_255_552)));
}

#[test]
fn several_data_paths_are_sorted_and_each_has_its_volume_and_marker() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.edit(Kind::GarageCluster, "site-a", |cluster| {
        let pool = &mut cluster["spec"]["storage"]["nodeLocalPools"][0];
        pool.as_object_mut().unwrap().remove("data");
        pool["dataPaths"] = serde_json::json!([
            {"path": "/data/b", "hostPath": "/srv/b", "capacity": "1Ti"},
            {"path": "/data/a", "hostPath": "/srv/a", "readOnly": true, "hostPathType": "DirectoryOrCreate"},
        ]);
    });
    world.settle();
    let set = world.get(Kind::DaemonSet, "site-a-storage-fast").unwrap();
    let volumes = &set["spec"]["template"]["spec"]["volumes"];
    let names: Vec<&str> = volumes.as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "config",
            "metadata",
            "data-0",
            "data-1",
            "rpc-secret",
            "admin-token",
            "verify-metadata",
            "verify-data-1"
        ]
    );
    let map = world
        .of(Kind::ConfigMap)
        .into_iter()
        .find(|m| m["metadata"]["name"].as_str().unwrap().contains("storage-fast"))
        .unwrap();
    insta::assert_snapshot!("several_data_paths", map["data"]["garage.toml"].as_str().unwrap());
}

#[test]
fn every_option_stands_at_its_place_in_garage_toml() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.edit(Kind::GarageCluster, "site-a", |cluster| {
        let spec = &mut cluster["spec"];
        spec["database"] = serde_json::json!({"engine": "lmdb", "lmdbMapSize": "1Ti", "fjallBlockCacheSize": "64Mi"});
        spec["storage"]["metadataFsync"] = true.into();
        spec["storage"]["dataFsync"] = false.into();
        spec["storage"]["metadataSnapshotsDir"] = "/data/metadata/snapshots".into();
        spec["storage"]["metadataAutoSnapshotInterval"] = "6h".into();
        spec["blocks"] = serde_json::json!({"size": "1Mi", "ramBufferMax": "256Mi", "maxConcurrentReads": 16,
            "maxConcurrentWritesPerRequest": 3, "compressionLevel": "none", "disableScrub": true, "useLocalTZ": false});
        spec["security"] = serde_json::json!({"allowInsecureSecretPermissions": true, "allowPunycode": true});
        spec["network"] = serde_json::json!({"rpcBindPort": 4901, "rpcPublicAddrSubnet": "10.0.0.0/8", "rpcBindOutgoing": true,
            "rpcPingTimeout": "10s", "rpcTimeout": "1m30s", "bootstrapPeers": ["a@b:3901"]});
        spec["s3Api"] = serde_json::json!({"bindAddress": "0.0.0.0:4900", "region": "rack", "rootDomain": ".s3.example.net"});
        spec["k2vApi"] = serde_json::json!({});
        spec["webApi"] = serde_json::json!({"addHostToMetrics": true, "rootDomain": ".web.example.net"});
        spec["admin"]["metricsRequireToken"] = true.into();
        spec["admin"]["traceSink"] = "http://trace:4317".into();
        spec["discovery"] = serde_json::json!({"kubernetes": {"enabled": true, "serviceName": "peers", "skipCRD": true}});
    });
    world.settle();
    let map = world
        .of(Kind::ConfigMap)
        .into_iter()
        .find(|m| m["metadata"]["name"].as_str().unwrap().contains("storage-fast"))
        .unwrap();
    insta::assert_snapshot!("every_option", map["data"]["garage.toml"].as_str().unwrap());
}

#[test]
fn a_secret_is_never_in_what_is_printed() {
    let world = World::new(&["kn-1"]);
    let planned = world.plan();
    assert!(planned.actions.iter().any(|a| matches!(a, Action::Create(o) if o.kind == Kind::Secret)));
    let printed = format!("{planned:?}");
    assert!(!printed.contains("000102030405"), "{printed}");
}
