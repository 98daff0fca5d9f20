//! Hold, swap, release, replace: every write and every call of it fails, and a second machine after each pass.

use std::sync::OnceLock;

use super::world::{STAYS, World};
use crate::testing::faults::{Fault, sampled};

/// A story without trouble, as it stands after each pass.
pub fn passes() -> &'static [World] {
    static PASSES: OnceLock<Vec<World>> = OnceLock::new();
    PASSES.get_or_init(|| {
        let mut world = World::new();
        let mut passes = vec![world.clone()];
        while !world.is_at_its_end() {
            assert!(passes.len() < 100, "no end");
            world.turn();
            passes.push(world.clone());
        }
        passes
    })
}

#[test]
fn a_disk_is_swapped_in_one_version_and_nothing_is_left_to_do() {
    let mut world = passes().last().unwrap().clone();
    world.finish(&"calm");
    assert_eq!(world.garage.made.len(), 1, "one version");
    let names = &world.garage.faults.names;
    for call in ["UpdateClusterLayout", "ApplyClusterLayout", "ClusterLayoutSkipDeadNodes"] {
        assert_eq!(names.iter().filter(|one| **one == call).count(), 1, "{call}: {names:?}");
    }
}

#[test]
fn whichever_write_or_call_fails_and_however_the_whole_story_ends_well() {
    let passes = passes();
    let names = &passes.last().unwrap().garage.faults.names;
    let cases = names.iter().enumerate().flat_map(|(at, name)| {
        // A server answers late or does nothing; a Garage that hangs may do it late.
        let faults = if name.contains("Cluster") && *name != "GarageCluster" {
            [Some(Fault::Before), Some(Fault::After), Some(Fault::Late)]
        } else {
            [Some(Fault::Before), Some(Fault::Crash), None]
        };
        faults.into_iter().flatten().map(move |fault| (at, fault))
    });
    for (at, fault) in sampled(cases, 3) {
        // Up to there it is the story without trouble.
        let same = passes.iter().rev().find(|world| world.garage.faults.made() <= at).unwrap();
        let mut world = same.clone();
        world.garage.faults.fail(at, fault);
        world.finish(&(at, fault));
        assert_eq!(world.garage.made.len(), 1, "{at} {fault:?}");
    }
}

/// One of the two that stay is powered off after each pass of the story, and comes back.
#[test]
fn a_second_machine_that_fails_after_any_pass_loses_nothing_and_the_story_goes_on_when_it_is_back() {
    for (at, before) in sampled(passes().iter().enumerate(), 2) {
        let mut world = before.clone();
        (world.second_failure, world.hands_off) = (true, true);
        world.off = Some(STAYS[1].to_owned());
        for _ in 0..6 {
            world.turn();
        }
        (world.off, world.hands_off) = (None, false);
        world.advance(1);
        world.second_failure = false;
        world.finish(&at);
        assert_eq!(world.garage.made.len(), 1, "after pass {at}");
    }
}
