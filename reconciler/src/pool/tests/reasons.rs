//! One clear condition for each bad input, and nothing changed by it.

use holdfast_crds::conditions::{ConditionStatus, ConditionType, PoolsReason};
use serde_json::json;

use super::world::{NAMESPACE, World, id};
use crate::act::{Action, Kind};
use crate::observe::{NotObserved, Observation, Role, StagedChange};

fn site() -> World {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.settle();
    world
}

#[track_caller]
fn shows(world: &World, reason: PoolsReason, words: &[&str]) {
    let condition = world.plan().condition.unwrap();
    assert_eq!(condition.reason, reason, "{}", condition.message);
    for word in words {
        assert!(condition.message.contains(word), "{word:?} in {:?}", condition.message);
    }
}

fn layout_writes(world: &World) -> usize {
    world
        .plan()
        .actions
        .iter()
        .filter(|a| matches!(a, Action::UpdateLayout { .. } | Action::ApplyLayout { .. }))
        .count()
}

#[test]
fn nothing_of_this_acts_where_pools_are_not_managed() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.settings.manage = false;
    assert_eq!(world.plan(), crate::pool::PoolStep::default());
}

#[test]
fn a_silent_garage_leaves_the_quorum_unknown() {
    let world = site();
    let mut observation = world.observe();
    let quorum = |observation: &Observation| {
        let part = world.plan_on(observation).status.unwrap();
        part.conditions.into_iter().find(|c| c.0 == ConditionType::QuorumAtRisk).map(|c| (c.1, c.2))
    };
    assert_eq!(quorum(&observation), Some((ConditionStatus::False, "AllPartitionsQuorate")));
    observation.garage.core = Err(NotObserved { what: "GetClusterHealth".to_owned() });
    assert_eq!(quorum(&observation), Some((ConditionStatus::Unknown, "NotObserved")));
}

#[test]
fn a_suspended_cluster_is_left_alone_and_says_so() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.edit(Kind::GarageCluster, "site-a", |c| c["spec"]["maintenance"] = json!({"suspended": true}));
    shows(&world, PoolsReason::Suspended, &["maintenance.suspended"]);
    assert!(world.plan().actions.is_empty());
}

#[test]
fn a_missing_admin_token_is_named() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.objects.retain(|target, _| target.name != "site-a-admin");
    world.settle();
    shows(&world, PoolsReason::ConfigurationInvalid, &["site-a-admin", "admin-token", "create it"]);
    assert!(world.get(Kind::DaemonSet, "site-a-storage-fast").is_none());
}

#[test]
fn a_token_with_a_dot_is_refused() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.edit(Kind::Secret, "site-a-admin", |s| s["data"]["admin-token"] = "YS5i".into());
    world.settle();
    shows(&world, PoolsReason::ConfigurationInvalid, &["'.'"]);
}

#[test]
fn a_lost_rpc_secret_is_never_generated_a_second_time() {
    let mut world = site();
    world.objects.retain(|target, _| target.name != "site-a-rpc-secret");
    shows(&world, PoolsReason::ConfigurationInvalid, &["site-a-rpc-secret", "restore it"]);
    assert!(!world.plan().actions.iter().any(|a| matches!(a, Action::Create(_))));
}

#[test]
fn a_selector_that_matches_no_node_is_named() {
    let mut world = World::new(&[]);
    world.settle();
    shows(&world, PoolsReason::NoNodesSelected, &["fast", "label a Node"]);
}

#[test]
fn a_node_in_two_pools_is_named_and_not_activated() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.edit(Kind::GarageCluster, "site-a", |c| {
        let mut second = c["spec"]["storage"]["nodeLocalPools"][0].clone();
        second["name"] = "slow".into();
        second["selector"] = json!({"matchLabels": {"also": "slow"}});
        c["spec"]["storage"]["nodeLocalPools"].as_array_mut().unwrap().push(second);
    });
    world.edit(Kind::Node, "kn-2", |n| n["metadata"]["labels"]["also"] = "slow".into());
    world.settle();
    shows(&world, PoolsReason::SelectorConflict, &["kn-2", "fast and slow"]);
    let node = world.get(Kind::Node, "kn-2").unwrap();
    assert_eq!(node["metadata"]["labels"].as_object().unwrap().len(), 2, "{node}");
    assert!(world.versions.is_empty());
}

#[test]
fn directories_that_another_cluster_claims_are_named() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.edit(Kind::Node, "kn-2", |n| {
        n["metadata"]["annotations"] = json!({"garage.rajsingh.info/gc-0000000000000000-node-local-0000000000000000-hostpath-claim":
            r#"{"version":1,"clusterNamespace":"other","clusterName":"site-b","nodeLocalPoolName":"p","hostPaths":["/srv/garage"]}"#});
    });
    world.settle();
    shows(&world, PoolsReason::HostPathConflict, &["/srv/garage on Node kn-2", "other/site-b"]);
    assert!(world.versions.is_empty());
}

#[test]
fn directories_of_a_pool_that_lie_in_each_other_are_refused() {
    for data in ["/srv/garage/fast/meta/inside", "/srv/garage/fast", "/srv/garage/fast/./meta/"] {
        let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
        world.edit(Kind::GarageCluster, "site-a", |c| {
            c["spec"]["storage"]["nodeLocalPools"][0]["data"]["hostPath"] = data.into();
        });
        world.settle();
        shows(&world, PoolsReason::HostPathConflict, &["/srv/garage/fast/meta", "of pool fast", "choose"]);
        assert!(world.get(Kind::DaemonSet, "site-a-storage-fast").is_none(), "{data}");
    }
}

#[test]
fn more_nodes_than_fit_are_refused() {
    let names: Vec<String> = (0..256).map(|n| format!("n{n}")).collect();
    let mut world = World::new(&[]);
    for name in &names {
        world.put(Kind::Node, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name, "labels": {"disk": "fast"}}}));
    }
    shows(&world, PoolsReason::MemberLimitExceeded, &["256"]);
}

#[test]
fn records_that_differ_stop_all_work() {
    let mut world = site();
    world.edit(Kind::GarageNode, "site-a-node-local-fast-kn-1", |n| {
        n["metadata"]["annotations"]["garage.rajsingh.info/node-local-pool-recovery-node-id"] =
            id(0xee).to_string().into();
    });
    world.put(
        Kind::Node,
        json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "kn-4", "uid": "u", "labels": {"disk": "fast"}}}),
    );
    shows(
        &world,
        PoolsReason::IdentityCollision,
        &["fast/kn-1", "recovery pin eeeeeeeeeeeeeeee", "1111111111111111"],
    );
    assert!(world.plan().actions.is_empty(), "{:?}", world.plan().actions);
}

#[test]
fn a_wiped_disk_never_enters_the_layout_and_the_message_has_the_annotation_to_set() {
    let mut world = site();
    world.disks.get_mut("kn-1").unwrap().id = id(0x99);
    world.edit(Kind::Pod, "site-a-storage-fast-kn-1", |p| {
        p["status"]["containerStatuses"][0]["restartCount"] = 1.into();
    });
    world.settle();
    shows(
        &world,
        PoolsReason::WaitingForReplacement,
        &[
            "9999999999999999",
            "1111111111111111",
            &format!("garage.rajsingh.info/node-local-replace-identity=fast/kn-1/{}", id(0x11)),
        ],
    );
    assert_eq!(world.versions.len(), 1);
    let record = world.get(Kind::GarageNode, "site-a-node-local-fast-kn-1").unwrap();
    assert_eq!(record["status"]["nodeId"], id(0x11).to_string());
}

#[test]
fn foreign_staged_changes_are_named_and_never_touched() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.layout.staged.push(StagedChange {
        id: id(0xab),
        role: Some(Role { zone: "z".into(), capacity: Some(1 << 30), tags: vec![] }),
    });
    world.settle();
    shows(&world, PoolsReason::WaitingForMembers, &["a role for abababababababab", "another hand"]);
    assert_eq!(layout_writes(&world), 0);
    assert_eq!(world.layout.staged.len(), 1);
    assert!(world.versions.is_empty());
}

#[test]
fn the_first_layout_waits_for_factor_members() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.disks.get_mut("kn-3").unwrap().mounted = false;
    world.settle();
    assert!(world.versions.is_empty());
    shows(
        &world,
        PoolsReason::MarkerMissing,
        &["fast/kn-3", "/srv/garage/fast/data/.garage-volume-id", "Node kn-3", "2 of the 3"],
    );
    world.disks.get_mut("kn-3").unwrap().mounted = true;
    world.settle();
    assert_eq!(world.versions.len(), 1);
}

#[test]
fn a_disk_that_is_gone_after_its_node_restarted_is_named_too() {
    let mut world = site();
    world.edit(Kind::Pod, "site-a-storage-fast-kn-3", |p| {
        // What a kubelet reports of a Pod that ran before, and whose volumes cannot be mounted now.
        p["status"] = json!({
            "phase": "Running",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "ContainersReady", "status": "False", "lastTransitionTime": "2026-01-01T01:00:00Z"},
            ],
            "containerStatuses": [{
                "name": "garage", "image": "i", "imageID": "", "ready": false, "restartCount": 1,
                "state": {"waiting": {"reason": "ContainerCreating"}},
                "lastState": {"terminated": {"exitCode": 255, "reason": "Unknown"}},
            }],
        });
    });
    world.settle();
    let marker = "/srv/garage/fast/data/.garage-volume-id";
    shows(&world, PoolsReason::MarkerMissing, &["fast/kn-3", "Node kn-3", marker]);
}

#[test]
fn a_held_member_is_skipped_by_activation() {
    let mut world = site();
    let label = "garage.rajsingh.info/gc-f9cd9413b7e1ed0a-node-local-pool-115dc3606fbf8691";
    world.edit(Kind::Node, "kn-1", |n| {
        n["metadata"]["labels"].as_object_mut().unwrap().remove(label);
    });
    world.held =
        Some(holdfast_crds::ids::Pair { pool: "fast".parse().unwrap(), node: "kn-1".parse().unwrap() });
    world.settle();
    assert!(world.get(Kind::Node, "kn-1").unwrap()["metadata"]["labels"][label].is_null());
    shows(&world, PoolsReason::WaitingForMembers, &["fast/kn-1 is held out of service"]);
    world.held = None;
    world.settle();
    assert!(
        !world.get(Kind::Node, "kn-1").unwrap()["metadata"]["labels"][label].is_null(),
        "the label returns"
    );
    assert_eq!(world.plan().condition.unwrap().status(), ConditionStatus::True);
}

#[test]
fn a_node_that_is_no_longer_selected_is_left_alone() {
    let mut world = site();
    world.edit(Kind::Node, "kn-3", |n| {
        n["metadata"]["labels"].as_object_mut().unwrap().remove("disk");
    });
    world.settle();
    shows(&world, PoolsReason::RemovalNotManaged, &["fast/kn-3"]);
    assert_eq!(world.layout.roles.len(), 3);
    assert!(world.get(Kind::Pod, "site-a-storage-fast-kn-3").is_some());
}

#[test]
fn a_default_storage_group_is_named_and_the_pools_go_on() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.edit(Kind::GarageCluster, "site-a", |c| {
        c["spec"]["storage"].as_object_mut().unwrap().remove("replicas");
        c["spec"]["gateway"] = json!({"replicas": 2});
    });
    world.settle();
    shows(&world, PoolsReason::NotManaged, &["spec.storage.replicas", "spec.gateway"]);
    assert_eq!(world.versions.len(), 1);
}

#[test]
fn another_operators_drain_stops_layout_and_activation() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.edit(Kind::GarageCluster, "site-a", |c| {
        c["status"] = json!({"replicas": 0, "selector": "", "storageDrain": {"anything": 1}});
    });
    world.settle();
    assert!(world.versions.is_empty());
    shows(&world, PoolsReason::WaitingForMembers, &["storageDrain"]);
}

#[test]
fn an_object_of_somebody_else_under_our_name_is_not_overwritten() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.put(Kind::Service, json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "site-a", "namespace": NAMESPACE, "uid": "x"}, "spec": {"ports": [{"port": 80}]}}));
    world.settle();
    shows(&world, PoolsReason::ConfigurationInvalid, &["Service objects/site-a", "does not belong"]);
    assert_eq!(world.get(Kind::Service, "site-a").unwrap()["spec"]["ports"][0]["port"], 80);
}

/// One key too many in a selector and nothing is selected any more.
#[test]
fn a_selector_that_somebody_narrowed_is_set_back() {
    let mut world = site();
    world.edit(Kind::GarageCluster, "site-a", |c| {
        c["spec"]["storage"]["podDisruptionBudget"] = json!({"enabled": true});
    });
    world.settle();
    let selector = |world: &World, kind, name| world.get(kind, name).unwrap()["spec"]["selector"].clone();
    for (kind, name) in
        [(Kind::Service, "site-a"), (Kind::Service, "site-a-headless"), (Kind::PodDisruptionBudget, "site-a")]
    {
        let before = selector(&world, kind, name);
        world.edit(kind, name, |object| {
            let selector = &mut object["spec"]["selector"];
            let labels = if kind == Kind::Service { selector } else { &mut selector["matchLabels"] };
            labels["astray"] = json!("yes");
        });
        world.settle();
        assert_eq!(selector(&world, kind, name), before, "{kind:?} {name}");
    }
}

#[test]
fn a_retiring_claim_is_never_activated_again() {
    let mut world = site();
    let claim = "garage.rajsingh.info/gc-5572c0d0d2fcde6b-node-local-115dc3606fbf8691-hostpath-claim";
    let label = "garage.rajsingh.info/gc-f9cd9413b7e1ed0a-node-local-pool-115dc3606fbf8691";
    world.edit(Kind::Node, "kn-1", |n| {
        let mut value: serde_json::Value =
            serde_json::from_str(n["metadata"]["annotations"][claim].as_str().unwrap()).unwrap();
        value["retiring"] = true.into();
        n["metadata"]["annotations"][claim] = value.to_string().into();
        n["metadata"]["labels"].as_object_mut().unwrap().remove(label);
    });
    world.settle();
    let node = world.get(Kind::Node, "kn-1").unwrap();
    assert!(node["metadata"]["labels"][label].is_null());
    assert!(node["metadata"]["annotations"][claim].as_str().unwrap().contains("retiring"));
}

#[test]
fn a_changed_configuration_is_told_and_taken_when_a_pod_is_deleted() {
    let mut world = site();
    world.edit(Kind::GarageCluster, "site-a", |c| c["spec"]["s3Api"] = json!({"region": "rack"}));
    world.settle();
    let condition = world.plan().condition.unwrap();
    assert_eq!(condition.status(), ConditionStatus::True);
    assert!(condition.message.contains("3 of them run an older configuration"), "{}", condition.message);
    assert_eq!(world.of(Kind::ConfigMap).len(), 4, "nothing goes while the rollout is not complete");
    world.objects.retain(|target, _| target.kind != Kind::Pod);
    world.settle();
    assert_eq!(world.of(Kind::ConfigMap).len(), 2, "old revisions go when no Pod mounts them");
    assert!(!world.plan().condition.unwrap().message.contains("older"));
    assert_eq!(world.versions.len(), 1);
}

#[test]
fn a_gated_pod_of_an_older_template_is_made_anew() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    while world.of(Kind::Pod).is_empty() {
        for action in world.plan().actions {
            world.perform(&action);
        }
        world.controllers();
    }
    world.edit(Kind::GarageCluster, "site-a", |c| c["spec"]["s3Api"] = json!({"region": "rack"}));
    world.settle();
    assert_eq!(world.plan().condition.unwrap().status(), ConditionStatus::True);
}
