//! Random schedules of faults, with every node's own and late knowledge of the layout.

use super::world::{A, B, NEW, World, id};
use crate::sim::rng::Rng;
use crate::testing::faults::{Fault, Faults, sampled};

fn schedule(seed: u64, gossip_every: u32) -> World {
    let mut rng = Rng::new(seed);
    let mut plan = Vec::new();
    for at in 0..60 {
        if rng.one_in(6) {
            let fault = rng.pick([Fault::Before, Fault::After, Fault::Crash, Fault::Late]);
            plan.push((at, fault));
        }
    }
    let mut world = World::new();
    world.garage.faults = Faults::of(plan);
    world.garage.gossip_every = gossip_every;
    for _ in 0..50 {
        match rng.below(44) {
            0 => world.down(B),
            1..=3 => world.back(B),
            4 => world.garage.cut = Some((id(A), id(NEW))),
            5..=7 => world.garage.cut = None,
            8 => world.down(NEW),
            9..=11 => world.back(NEW),
            // Another hand's version: tags of A. One that meets a call of ours that hangs is nobody's to keep apart.
            12 if !world.garage.has_late_calls() => {
                let (newest, at) = (world.garage.newest(), id(B));
                let free = newest.staged.is_empty() && newest.trackers.is_none();
                let number = newest.version;
                if free && world.garage.nodes[&at].version == number && world.garage.up.contains(&at) {
                    world.garage.apply(at, number + 1).unwrap();
                }
            }
            13 => world.asked = false,
            14..=20 => world.asked = true,
            // The answers of one node do not reach the reconciler, and those of another come first.
            21 => {
                world.garage.silent.insert(id(A));
            }
            22..=25 => world.garage.silent.clear(),
            26 => world.first = rng.pick([A, B, NEW]),
            _ => {}
        }
        world.advance(rng.between(1, 20));
        world.pass();
    }
    world
}

#[test]
fn whatever_fails_between_any_two_writes_it_converges_with_one_apply_per_version() {
    for seed in sampled(0..1_000, 3) {
        let mut world = schedule(seed, u32::try_from(seed % 7).unwrap());
        (world.asked, world.garage.cut) = (true, None);
        world.garage.silent.clear();
        world.garage.faults = Faults::default();
        world.garage.up.extend([B, NEW].map(id));
        for _ in 0..80 {
            world.advance(20);
            world.pass();
        }
        world.assert_replaced(&seed);
        let swaps = world.garage.made.values().filter(|made| made[0].contains_key(&id(NEW))).count();
        assert!(swaps >= 1, "seed {seed}");
    }
}
