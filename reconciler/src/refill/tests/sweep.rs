//! Every call and every write of a replacement fails, before or after it took effect, alone and in pairs, and a second
//! node fails at each of them.

use rstest::rstest;

use super::super::*;
use super::world::{A, B, NEW, World, id, reason};
use crate::testing::faults::{Fault, pairs, sampled, singles};

/// What a replacement without trouble writes and asks, in order.
fn writes(gossip_every: u32) -> Vec<&'static str> {
    let mut world = World::with_faults(Vec::new(), gossip_every);
    world.run_to(Phase::Completed);
    world.garage.faults.names
}

#[test]
fn a_sweep_knows_every_write_of_a_replacement() {
    let expected = [
        "status",
        "GetClusterLayout",
        "UpdateClusterLayout",
        "GetClusterLayout",
        "PreviewClusterLayoutChanges",
        "ApplyClusterLayout",
        "status",
        "status",
        "ClusterLayoutSkipDeadNodes",
        "status",
        "Node",
        "pin",
        "status.nodeId",
        "status",
    ];
    assert_eq!(writes(0), expected);
}

/// Passes until it is done, whoever answers first.
fn replaced(plan: &[(usize, Fault)], gossip_every: u32, turns: bool) {
    let mut world = World::with_faults(plan.to_vec(), gossip_every);
    for pass in 0..80 {
        if world.phase() == Some(Phase::Completed) {
            break;
        }
        if turns {
            world.first = [A, B, NEW][pass % 3];
        }
        world.advance(5);
        world.pass();
        assert!(world.garage.serves(), "{plan:?}: the site lost its quorum");
    }
    world.assert_replaced(&plan);
    assert_eq!(world.garage.made.len(), 1, "{plan:?}: {:?}", world.garage.made.keys());
}

#[rstest]
fn whichever_write_fails_and_however_it_converges_with_one_apply(
    #[values(0, 2, 5)] gossip_every: u32,
    #[values(false, true)] turns: bool,
) {
    for plan in singles(writes(gossip_every).len() + 2) {
        replaced(&plan, gossip_every, turns);
    }
}

#[test]
fn whichever_two_writes_fail_and_however_it_converges_with_one_apply() {
    for plan in sampled(pairs(writes(3).len() + 2), 5) {
        replaced(&plan, 3, true);
    }
}

/// One of the two that still hold the data fails after each write of a replacement, and comes back later.
#[rstest]
fn a_second_node_that_fails_after_any_write_stops_it_and_it_goes_on_when_the_node_is_back(
    #[values(A, B)] second: u8,
    #[values(0, 3)] gossip_every: u32,
) {
    for at in 0..writes(gossip_every).len() {
        let mut world = World::with_faults(Vec::new(), gossip_every);
        while world.garage.faults.made() <= at {
            world.advance(5);
            world.pass();
        }
        let before = world.garage.made.len();
        world.down(second);
        let phase = world.phase().unwrap();
        let mut said = Vec::new();
        for _ in 0..12 {
            world.advance(5);
            let step = world.pass();
            let skips = |action: &Action| matches!(action, Action::SkipDeadNodes { .. });
            assert!(!step.actions.iter().any(skips), "a skip after write {at} with {second:x} down");
            said.push(step.condition.unwrap());
        }
        assert_eq!(world.garage.made.len(), before, "an apply after write {at} with {second:x} down");
        // Once settled the rest needs no second node.
        let (_, last, message) = said.last().unwrap();
        match phase {
            Phase::Applying | Phase::Settling if world.phase() != Some(Phase::Completed) => {
                assert!(
                    matches!(last, Reason::SettlingBlocked | Reason::WaitingForQuorum | Reason::Applying),
                    "write {at}: {last:?}: {message}"
                );
                assert!(message.contains(&id(second).short()), "write {at}: {message}");
            }
            _ => assert_eq!(world.phase(), Some(Phase::Completed), "write {at}: {message}"),
        }
        world.back(second);
        world.run_to(Phase::Completed);
        world.assert_replaced(&(at, second));
    }
}

/// The new process itself fails after each write of a replacement.
#[test]
fn a_new_process_that_fails_after_any_write_is_waited_for() {
    for at in 0..writes(0).len() {
        let mut world = World::with_faults(Vec::new(), 0);
        while world.garage.faults.made() <= at {
            world.advance(5);
            world.pass();
        }
        world.down(NEW);
        for _ in 0..12 {
            world.advance(5);
            let step = world.pass();
            assert!(step.condition.is_some());
        }
        world.back(NEW);
        world.run_to(Phase::Completed);
        world.assert_replaced(&at);
    }
}

/// Somebody applies tags of another node between any two writes.
#[test]
fn a_version_of_another_hand_between_any_two_writes_is_kept_and_never_made_twice() {
    for at in 0..writes(0).len() {
        let mut world = World::with_faults(Vec::new(), 0);
        while world.garage.faults.made() <= at {
            world.advance(5);
            world.pass();
        }
        let staged = world.garage.nodes[&id(B)].staged.clone();
        let number = world.garage.nodes[&id(B)].version;
        let ours = !staged.is_empty() || world.garage.newest().trackers.is_some();
        if !ours {
            world.garage.apply(id(B), number + 1).unwrap();
        }
        world.run_to(Phase::Completed);
        world.assert_replaced(&at);
        assert_eq!(reason(&world.decided()), Reason::Replaced);
    }
}
