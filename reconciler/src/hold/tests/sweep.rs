//! Every write of a hold and of its release fails, before or after it took effect, alone and in pairs; another member
//! fails, and the annotation changes, after each of them.

use super::world::World;
use super::*;
use crate::testing::faults::{Faults, pairs, singles};

/// One pass and what follows it.
fn turn(world: &mut World) -> bool {
    world.advance(10, || true);
    let safe = world.pass();
    world.activate();
    safe
}

/// Holds until the disk is safe, releases, and waits until it is over.
fn story(world: &mut World, about: &dyn std::fmt::Debug) {
    world.request = Request::Stands;
    assert!((0..30).any(|_| turn(world)), "{about:?}: never safe: {world:?}");
    world.request = Request::Gone;
    let back = (0..40).any(|_| {
        turn(world);
        world.is_over()
    });
    assert!(back, "{about:?}: it did not come back: {world:?}");
    assert!(world.label && world.pod && world.up, "{about:?}: {world:?}");
    let made = world.faults.made();
    for _ in 0..5 {
        turn(world);
    }
    assert_eq!(world.faults.made(), made, "{about:?}: quiet");
}

fn writes() -> Vec<&'static str> {
    let mut world = World::new(Faults::default());
    story(&mut world, &"calm");
    assert_eq!(world.removed, 1);
    world.faults.names
}

#[test]
fn a_sweep_knows_every_write_of_a_hold() {
    let expected = ["status", "label", "status", "status", "status", "activation", "status", "status"];
    assert_eq!(writes(), expected);
}

#[test]
fn whichever_writes_fail_and_however_it_converges() {
    let writes = writes().len() + 2;
    for plan in singles(writes).chain(pairs(writes)) {
        story(&mut World::new(Faults::of(plan.clone())), &plan);
    }
}

/// Runs a hold until so many writes were made, then changes the world, looks on, and mends it.
fn interrupted(at: usize, change: fn(&mut World), mend: fn(&mut World), look: impl Fn(Option<Phase>, bool)) {
    let mut world = World::new(Faults::default());
    world.request = Request::Stands;
    for _ in 0..30 {
        if world.faults.made() > at {
            break;
        }
        if turn(&mut world) {
            world.request = Request::Gone;
        }
    }
    let phase = world.stored.as_ref().map(|service| service.phase);
    change(&mut world);
    for _ in 0..10 {
        let safe = turn(&mut world);
        look(phase, safe);
    }
    mend(&mut world);
    // Whatever became of the first hold, a whole one is possible after it.
    world.request = Request::Gone;
    for _ in 0..30 {
        turn(&mut world);
    }
    assert!(world.is_over() && world.up, "after write {at}: {world:?}");
    world.proof = true;
    story(&mut world, &at);
}

#[test]
fn another_member_that_fails_after_any_write_makes_nothing_safe_and_it_goes_on_when_it_is_back() {
    for at in 0..writes().len() {
        interrupted(
            at,
            |w| w.others = false,
            |w| w.others = true,
            |_, safe| assert!(!safe, "after write {at}"),
        );
    }
}

#[test]
fn an_annotation_that_goes_or_changes_after_any_write_removes_no_label_any_more() {
    for at in 0..writes().len() {
        for change in [(|w: &mut World| w.request = Request::Gone) as fn(&mut World), |w| {
            w.request = Request::Differs;
        }] {
            // The pass itself asserts that no label goes and nothing is safe without the request.
            interrupted(at, change, |_| {}, |_, safe| assert!(!safe, "after write {at}"));
        }
    }
}

#[test]
fn a_machine_that_is_powered_off_after_any_write_is_not_safe_by_the_loss_of_its_pod_object() {
    for at in 0..writes().len() {
        let off = |w: &mut World| (w.ready, w.pod) = (false, false);
        // Where its end was confirmed before, nothing is contradicted by the machine being off.
        interrupted(
            at,
            off,
            |w| w.ready = true,
            |phase, safe| {
                assert!(!safe || phase == Some(Phase::OutOfService), "after write {at} in {phase:?}");
            },
        );
    }
}
