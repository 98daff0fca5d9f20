//! Killed after any write, the reconciler comes to the same end and is then quiet.

use proptest::prelude::*;
use rstest::rstest;

use super::world::{World, id};
use crate::act::{Action, Answer, Kind, Outcome};

#[test]
fn a_site_comes_up_in_one_layout_version_and_is_then_quiet() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.settle();
    assert_eq!(world.versions.len(), 1, "one version holds all members");
    assert_eq!(world.versions[0].len(), 3);
    let cluster = world.get(Kind::GarageCluster, "site-a").unwrap();
    let ready = cluster["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["type"] == "NodeLocalPoolsReady")
        .unwrap();
    assert_eq!(
        (ready["status"].as_str(), ready["reason"].as_str()),
        (Some("True"), Some("Converged")),
        "{ready}"
    );
    assert_eq!(cluster["status"]["phase"], "Running");
    assert_eq!(cluster["status"]["replicas"], 3);
    let writes = world.writes;
    for _ in 0..10 {
        let planned = world.plan();
        assert!(planned.actions.is_empty(), "{:?}", planned.actions);
        assert!(!world.write_status(&planned));
    }
    assert_eq!(world.writes, writes);
}

#[rstest]
fn killed_after_every_write_it_comes_to_the_same_end(#[values(0, 1, 2, 3, 5, 7)] which: usize) {
    let mut calm = World::new(&["kn-1", "kn-2", "kn-3"]);
    calm.settle();
    let mut crashed = World::new(&["kn-1", "kn-2", "kn-3"]);
    let mut count = 0;
    crashed.settle_crashing(|_| {
        count += 1;
        which * count
    });
    same(&calm, &crashed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_single_write_happens_before_each_kill_the_end_is_the_same(picks in prop::collection::vec(0usize..32, 1..40)) {
        let mut calm = World::new(&["kn-1", "kn-2", "kn-3"]);
        calm.settle();
        let mut crashed = World::new(&["kn-1", "kn-2", "kn-3"]);
        let mut next = picks.iter().cycle();
        crashed.settle_crashing(|_| *next.next().unwrap());
        same(&calm, &crashed);
    }
}

/// The same objects but for what numbers and times they got.
fn same(a: &World, b: &World) {
    let strip = |world: &World| {
        let mut objects = world.objects.clone();
        for value in objects.values_mut() {
            value["metadata"]["resourceVersion"] = "".into();
            if value["kind"] == "Pod" {
                value["metadata"]["uid"] = "".into();
            }
            if let Some(conditions) = value["status"]["conditions"].as_array_mut() {
                conditions.sort_by_key(|condition| condition["type"].as_str().map(str::to_owned));
            }
            if !value["status"]["observedPodUid"].is_null() {
                value["status"]["observedPodUid"] = "".into();
            }
        }
        objects
    };
    let (a_objects, b_objects) = (strip(a), strip(b));
    assert_eq!(a_objects.keys().collect::<Vec<_>>(), b_objects.keys().collect::<Vec<_>>());
    for (target, value) in &a_objects {
        assert_eq!(value, &b_objects[target], "{target}");
    }
    assert_eq!(a.layout.roles, b.layout.roles);
    assert!(b.versions.first().is_some_and(|roles| roles.len() == 3), "the first version holds all three");
}

#[test]
fn a_fourth_member_comes_in_a_version_of_its_own() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.settle();
    for (name, byte) in [("kn-4", 0x44), ("kn-5", 0x55)] {
        world.put(
            Kind::Node,
            serde_json::json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "uid": format!("node-{name}"), "labels": {"disk": "fast"}}}),
        );
        world.disks.insert(name.to_owned(), super::world::Disk { id: id(byte), mounted: true });
    }
    world.settle();
    let sizes: Vec<usize> = world.versions.iter().map(std::collections::BTreeMap::len).collect();
    assert_eq!(sizes, [3, 4, 5]);
}

#[test]
fn a_layout_is_changed_at_the_same_node_whoever_answers() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    let changes = |world: &World, answering: u8| {
        let mut observation = world.observe();
        if let Ok(core) = &mut observation.garage.core {
            core.answering = Some(id(answering));
        }
        let at = |action: &Action| match action {
            Action::UpdateLayout { at, .. } | Action::ApplyLayout { at, .. } => Some(*at),
            _ => None,
        };
        world.plan_on(&observation).actions.iter().filter_map(at).collect::<Vec<_>>()
    };
    for _ in 0..50 {
        if !changes(&world, 0x11).is_empty() {
            break;
        }
        for action in &world.plan().actions {
            world.perform(action);
        }
        world.controllers();
    }
    for answering in [0x11, 0x22, 0x33] {
        assert_eq!(changes(&world, answering), [Some(id(0x11)); 2]);
    }
}

#[test]
fn a_pod_that_comes_back_with_another_address_is_reconnected() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.settle();
    world.connected.clear();
    let planned = world.plan();
    assert!(
        planned
            .actions
            .iter()
            .any(|a| matches!(a, crate::act::Action::ConnectNodes { peers, .. } if peers.len() == 2)),
        "{:?}",
        planned.actions
    );
}

#[test]
fn worker_variables_are_set_after_every_start() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.edit(Kind::GarageCluster, "site-a", |cluster| {
        cluster["spec"]["workers"] = serde_json::json!({"resyncTranquility": 0, "resyncWorkerCount": 4});
    });
    world.settle();
    assert_eq!(world.variables[&(id(0x11), "resync-tranquility".to_owned())], "0");
    assert_eq!(world.variables.len(), 6);
    world.variables.clear();
    let planned = world.plan();
    assert_eq!(planned.actions.len(), 6);
    assert_eq!(planned.variables.len(), 6);
    let mut memory = crate::pool::Memory::default();
    for index in 0..planned.actions.len() {
        planned.note(index, &Outcome::Executed(Answer::Done), &mut memory);
    }
    assert_eq!(memory.variables.values().map(std::collections::BTreeMap::len).sum::<usize>(), 6);
}

#[test]
fn the_shell_finds_every_running_process_and_the_token_it_takes() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.settle();
    let observation = world.observe();
    let memory = world.memory(&observation);
    let (endpoints, _) = crate::observe::kubernetes::endpoints(&observation.kubernetes, &memory).unwrap();
    let found: Vec<(String, Option<holdfast_crds::ids::NodeId>)> =
        endpoints.iter().map(|endpoint| (endpoint.address.to_string(), endpoint.node)).collect();
    assert_eq!(
        found,
        [
            ("10.20.1.11:3903".to_owned(), Some(id(0x11))),
            ("10.20.1.12:3903".to_owned(), Some(id(0x22))),
            ("10.20.1.13:3903".to_owned(), Some(id(0x33))),
        ]
    );
}

#[test]
fn a_pass_reads_only_the_secrets_that_the_site_names() {
    let mut world = World::new(&["kn-1", "kn-2", "kn-3"]);
    world.settle();
    let view = world.observe().kubernetes;
    let none = std::collections::BTreeMap::new();
    let first = crate::pool::secrets_to_read(&view.cluster, &world.settings, &none);
    assert_eq!(first.iter().collect::<Vec<_>>(), ["site-a-admin", "site-a-rpc-secret"]);
    let second = crate::pool::secrets_to_read(&view.cluster, &world.settings, &view.secrets);
    assert!(second.contains("site-a-credentials-7b5744d04e99a2f3"));
    assert_eq!(second.len(), 3);
}
