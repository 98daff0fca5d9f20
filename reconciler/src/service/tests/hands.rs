//! What other hands do between any two passes of the story.

use serde_json::json;

use super::super::*;
use super::story::passes;
use super::world::{NEW, PAIR, SERVICED, STAYS, World};
use crate::act::Kind;
use crate::observe::StagedChange;
use crate::pool::tests::world::id;
use crate::testing::faults::sampled;

/// After each pass of the story something is done by another hand; some passes later it is taken back.
fn disturbed(done: impl Fn(&mut World), mended: impl Fn(&mut World)) {
    for (at, before) in sampled(passes().iter().enumerate(), 2) {
        let mut world = before.clone();
        world.hands_off = true;
        done(&mut world);
        for _ in 0..6 {
            world.turn();
        }
        mended(&mut world);
        world.hands_off = false;
        world.finish(&at);
        assert!(world.garage.made.values().any(|made| made[0].contains_key(&id(NEW))), "after pass {at}");
    }
}

fn with_annotations(hold: Option<&'static str>, replace: Option<&'static str>) {
    disturbed(
        move |world| {
            world.annotate(OUT_OF_SERVICE, hold);
            world.annotate(REPLACE_IDENTITY, replace);
        },
        |world| {
            // What was begun for another machine ends before anything else begins (V6).
            let other = |world: &World| {
                world.service().is_some_and(|s| is_under_way(&s) && pair_of(&s).unwrap().to_string() != PAIR)
            };
            if other(world) {
                world.annotate(OUT_OF_SERVICE, None);
                world.annotate(REPLACE_IDENTITY, None);
            }
            for _ in 0..20 {
                if other(world) {
                    world.turn();
                }
            }
            world.annotations_of_the_wish();
        },
    );
}

// By force, as if the webhook were down: V3 and V6 to V8 would refuse most of these.

#[test]
fn annotations_that_are_removed_and_set_again_between_any_two_passes() {
    with_annotations(None, None);
}

#[test]
fn annotations_that_are_garbage_for_a_while_between_any_two_passes() {
    with_annotations(Some("fast/kn-3/"), Some("fast"));
}

#[test]
fn a_hold_of_another_machine_between_any_two_passes() {
    with_annotations(Some("fast/kn-1"), None);
}

#[test]
fn a_replacement_of_another_machine_between_any_two_passes() {
    with_annotations(
        None,
        Some("fast/kn-1/1111111111111111111111111111111111111111111111111111111111111111"),
    );
}

#[test]
fn a_replacement_with_another_old_identity_between_any_two_passes() {
    with_annotations(
        None,
        Some("fast/kn-3/7777777777777777777777777777777777777777777777777777777777777777"),
    );
}

#[test]
fn both_annotations_at_once_between_any_two_passes() {
    with_annotations(
        Some(PAIR),
        Some("fast/kn-3/3333333333333333333333333333333333333333333333333333333333333333"),
    );
}

#[test]
fn a_node_object_that_is_made_anew_between_any_two_passes() {
    disturbed(
        |world| {
            let uid = format!("anew-{}", world.now);
            world.kube.put(
                Kind::Node,
                json!({"apiVersion": "v1", "kind": "Node",
                       "metadata": {"name": SERVICED, "uid": uid, "labels": {"disk": "fast"}}}),
            );
        },
        |_| {},
    );
}

#[test]
fn a_machine_that_is_cordoned_and_drained_between_any_two_passes() {
    disturbed(
        |world| {
            world.kube.edit(Kind::Node, SERVICED, |node| {
                node["spec"] = json!({"unschedulable": true,
                    "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]});
            });
            world
                .kube
                .objects
                .retain(|target, _| target.kind != Kind::Pod || !target.name.ends_with(SERVICED));
        },
        |world| world.kube.edit(Kind::Node, SERVICED, |node| node["spec"] = json!({})),
    );
}

#[test]
fn a_change_that_somebody_staged_and_reverted_between_any_two_passes() {
    disturbed(
        |world| {
            let role = world.garage.newest().roles[&id(0x11)].clone();
            let role = crate::observe::Role { zone: "rack-2".to_owned(), ..role };
            let change = StagedChange { id: id(0x11), role: Some(role) };
            world.garage.everywhere(|known| known.staged.push(change.clone()));
        },
        |world| world.garage.revert(),
    );
}

#[test]
fn a_version_that_somebody_applied_between_any_two_passes() {
    disturbed(
        |world| {
            let known = world.garage.newest();
            if known.staged.is_empty() && known.trackers.is_none() {
                let next = known.version + 1;
                world.garage.apply(id(0x22), next).unwrap();
            }
        },
        |_| {},
    );
}

#[test]
fn a_label_that_somebody_takes_or_puts_back_between_any_two_passes() {
    disturbed(
        |world| {
            let stays = world.kube.get(Kind::Node, STAYS[0]).unwrap()["metadata"]["labels"].clone();
            world.kube.edit(Kind::Node, SERVICED, |node| {
                let labels = node["metadata"]["labels"].as_object_mut().unwrap();
                let (key, value) =
                    stays.as_object().unwrap().iter().find(|(key, _)| key.contains("-pool-")).unwrap();
                if labels.remove(key).is_none() {
                    labels.insert(key.clone(), value.clone());
                }
            });
        },
        |_| {},
    );
}

#[test]
fn a_garage_node_that_is_deleted_between_any_two_passes() {
    disturbed(
        |world| {
            let records = world.kube.of(Kind::GarageNode);
            let record = records.iter().find(|record| record["spec"]["kubernetesNodeName"] == SERVICED);
            let name = record.unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
            world.kube.objects.retain(|target, _| target.kind != Kind::GarageNode || target.name != name);
        },
        |_| {},
    );
}

#[test]
fn the_machine_itself_is_powered_off_between_any_two_passes() {
    disturbed(
        |world| {
            world.off = Some(SERVICED.to_owned());
        },
        |world| {
            world.off = None;
            world.advance(1);
        },
    );
}
