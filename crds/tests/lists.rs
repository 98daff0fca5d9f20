//! Reading objects as others wrote them: one that cannot be read never hides the rest.
#![allow(clippy::unwrap_used, clippy::panic, clippy::result_large_err, missing_docs)]

use holdfast_crds::node::{Backing, GarageNode};
use holdfast_crds::status::Phase;
use holdfast_crds::v1beta2::{ConsistencyMode, GarageCluster, HostPathType, SiteRole};
use kube::ResourceExt;
use kube::core::{DeserializeGuard, ObjectList};
use serde_json::{Value, json};

const LIST: &str = include_str!("fixtures/garageclusters.json");

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[test]
fn one_malformed_object_does_not_hide_the_others_of_a_list() {
    let list: ObjectList<DeserializeGuard<GarageCluster>> = serde_json::from_str(LIST).unwrap();
    let (readable, unreadable): (Vec<_>, Vec<_>) =
        list.items.into_iter().map(|g| g.0).partition(Result::is_ok);
    let names: Vec<String> = readable.into_iter().map(|r| r.unwrap().name_any()).collect();
    assert_eq!(names, ["site-a", "handle", "odd-evidence"]);
    let refused: Vec<_> = unreadable.into_iter().map(|r| r.unwrap_err()).collect();
    let names: Vec<_> = refused.iter().map(|r| r.metadata.name.clone().unwrap()).collect();
    assert_eq!(names, ["bad-pool-name", "bad-service"]);
    assert!(refused[0].error.contains("a pool name is a DNS label"), "{}", refused[0].error);
}

#[test]
fn a_site_written_for_the_full_operator_is_read() {
    let list: ObjectList<DeserializeGuard<GarageCluster>> = serde_json::from_str(LIST).unwrap();
    let site = list.items.into_iter().next().unwrap().0.unwrap();
    let spec = &site.spec;
    assert_eq!(spec.replication_factor(), 3);
    assert_eq!(spec.consistency_mode(), ConsistencyMode::Degraded);
    assert_eq!(spec.site_role(), Some(SiteRole::Follower));
    assert!(spec.verifies_on_topology_change() && !spec.is_suspended());
    assert_eq!(spec.network.as_ref().unwrap().effective_rpc_timeout().unwrap().as_secs(), 90);
    let [pool] = spec.node_local_pools() else { panic!("one pool") };
    assert_eq!(pool.capacity.bytes(), Ok(2 << 40));
    assert_eq!(pool.metadata.effective_type(), HostPathType::Directory);
    assert_eq!(pool.data_paths[1].capacity.as_ref().unwrap().bytes(), Ok(4096));
    assert_eq!(site.id().unwrap().uid, "2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c");
    assert_eq!(site.layout_in_other_hands(), Some("annotation purge-cluster-layout"));
}

#[test]
fn odd_evidence_is_a_marker_and_the_rest_of_the_status_is_read() {
    let list: ObjectList<DeserializeGuard<GarageCluster>> = serde_json::from_str(LIST).unwrap();
    let odd =
        list.items.into_iter().filter_map(|g| g.0.ok()).find(|c| c.name_any() == "odd-evidence").unwrap();
    let verification = odd.status.unwrap().redundancy.unwrap().verification.unwrap();
    assert_eq!(verification.phase, Phase::ScanningBlocks);
    assert!(verification.evidence.unwrap().unrecognized);
}

#[test]
fn what_a_spec_does_not_say_is_not_zero() {
    let cluster: GarageCluster = read(json!({ "metadata": {}, "spec": { "storage": {}, "network": {} } }));
    assert_eq!(cluster.spec.replication_factor(), 3);
    assert_eq!(cluster.spec.storage.as_ref().unwrap().effective_replicas(), 3);
    assert_eq!(cluster.spec.network.as_ref().unwrap().effective_rpc_timeout().unwrap().as_secs(), 300);
    assert_eq!(cluster.spec.consistency_mode(), ConsistencyMode::Consistent);
}

#[test]
fn an_unreadable_timeout_is_an_error_and_never_the_default() {
    let cluster: GarageCluster =
        read(json!({ "metadata": {}, "spec": { "network": { "rpcTimeout": "soon" } } }));
    assert!(cluster.spec.network.unwrap().effective_rpc_timeout().unwrap_err().to_string().contains("soon"));
}

#[test]
fn a_pools_member_knows_its_pair_and_its_identities() {
    let id = "0f".repeat(32);
    let member = |annotations: Value, status: Value| -> GarageNode {
        read(json!({
            "metadata": { "name": "n", "namespace": "objects", "annotations": annotations },
            "spec": {
                "clusterRef": { "name": "site-a" }, "zone": "rack-1", "backing": "NodeLocalPool",
                "kubernetesNodeName": "kn-1", "nodeLocalPoolName": "fast", "gateway": false, "capacity": "2Ti",
            },
            "status": status,
        }))
    };
    let pinned = member(
        json!({ "garage.rajsingh.info/node-local-pool-recovery-node-id": id.to_uppercase() }),
        json!({ "nodeId": id.to_uppercase(), "inLayout": true, "connected": true }),
    );
    assert_eq!(pinned.pair().unwrap().to_string(), "fast/kn-1");
    assert_eq!(pinned.recovery_pin().unwrap(), pinned.node_id());
    assert_eq!(pinned.node_id().unwrap().to_string(), id);
    assert!(pinned.belongs_to("site-a") && !pinned.belongs_to("site-b"));

    let new = member(json!({}), json!({ "nodeId": "" }));
    assert_eq!((new.node_id(), new.recovery_pin()), (None, Ok(None)));
    assert!(
        member(json!({ "garage.rajsingh.info/node-local-pool-recovery-node-id": "x" }), json!({}))
            .recovery_pin()
            .is_err()
    );
    assert_eq!(
        member(json!({ "garage.rajsingh.info/drain": "true" }), json!({})).in_other_hands(),
        Some("annotation drain")
    );
    assert_eq!(Backing::default(), Backing::StatefulSet);
}
