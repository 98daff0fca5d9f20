//! A small world, driven by the real step: every write may fail before or after it took effect, and the process
//! may be killed between any two.

use super::*;
use crate::sim::rng::Rng;

/// What is so, and what is stored.
#[allow(clippy::struct_excessive_bools, reason = "each is one thing that is so or not")]
struct World {
    now: i64,
    asked: bool,
    label: bool,
    pod: bool,
    up: bool,
    ready: bool,
    others: bool,
    proof: bool,
    stored: Option<NodeLocalService>,
    /// Labels that another hand put back are not ours to account for.
    removed: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The status write, or the action, fails and nothing happened.
    Before,
    /// It took effect and its answer was lost: the pass ends there.
    After,
}

impl World {
    fn new() -> Self {
        Self {
            now: 0,
            asked: false,
            label: true,
            pod: true,
            up: true,
            ready: true,
            others: true,
            proof: true,
            stored: None,
            removed: 0,
        }
    }

    /// The kubelet, the DaemonSet controller and Garage go on.
    fn advance(&mut self, seconds: i64, rng: &mut Rng) {
        self.now += seconds;
        if self.ready {
            if self.label && !self.pod && rng.one_in(2) {
                self.pod = true;
            } else if !self.label && self.pod && rng.one_in(2) {
                self.pod = false;
            }
        }
        if self.up != self.pod && rng.one_in(2) {
            self.up = self.pod;
        }
        if !self.up || !self.others {
            self.proof = false;
        }
    }

    fn facts(&self) -> Facts {
        let mut facts = whole();
        let no = |what: &str| Err::<(), _>(what.to_owned());
        facts.now = at(self.now);
        facts.request = if self.asked { Request::Stands } else { Request::Gone };
        let healthy = self.others && self.up;
        facts.health = if healthy { Ok(()) } else { no("degraded") };
        facts.members = if self.others { Ok(()) } else { no("another is down") };
        facts.rest = if self.others { Ok(()) } else { no("another is down") };
        facts.proof = if self.proof { Ok(()) } else { no("void") };
        facts.is_up = Some(self.up);
        facts.is_back = if self.up { Ok(()) } else { no("down") };
        facts.pods = Ok(if self.pod { whole().pods.unwrap() } else { Vec::new() });
        let node = node(&mut facts);
        node.label = self.label.then(|| "token".to_owned());
        node.ready = self.ready;
        node.heartbeat = Some(at(if self.ready { self.now } else { self.now - 1000 }));
        facts
    }

    /// One pass. Returns whether the condition was True.
    fn pass(&mut self, write: Fault, action: Fault) -> bool {
        let facts = self.facts();
        let Some(service) = self.stored.clone().filter(|s| s.phase != Phase::InService || !self.asked) else {
            if self.asked && write == Fault::None {
                self.stored = Some(begin(&pair(), at(self.now)));
            }
            return false;
        };
        let next = step(&facts, &service);
        let safe = next.condition.as_ref().is_some_and(|said| said.0 == ConditionStatus::True);
        if safe {
            assert!(!self.label && !self.pod && !self.up, "safe, although it is not off");
            assert!(self.others, "safe, although another is down");
        }
        if write == Fault::Before {
            return false;
        }
        self.stored = next.service;
        if write == Fault::After {
            return safe;
        }
        for one in &next.actions {
            assert!(removes_only_the_label(std::slice::from_ref(one)), "{one:?}");
            let again = service.activation_returns.is_some();
            assert!(self.others && (again || (self.proof && self.up)), "the label goes outside of the gate");
            assert_eq!(service.phase, Phase::Deactivating, "the intent was not written before");
            if action != Fault::Before {
                assert!(self.label, "a patch that tests the label cannot go through without it");
                self.label = false;
                self.removed += 1;
            }
        }
        safe
    }

    /// What the pools do for a member that is not held.
    fn activate(&mut self) {
        let held = self.stored.as_ref().is_some_and(|service| {
            matches!(service.phase, Phase::Deactivating | Phase::Terminating | Phase::OutOfService)
        });
        if !held {
            self.label = true;
        }
    }
}

#[test]
fn whatever_fails_between_any_two_writes_no_label_goes_outside_the_gate_and_no_disk_is_called_safe_too_early()
{
    let mut safe = 0;
    for seed in 0..1_500 {
        let mut rng = Rng::new(seed);
        let mut world = World::new();
        for _ in 0..60 {
            match rng.below(24) {
                0..=2 => world.asked = true,
                3 => world.asked = false,
                4 => world.others = !world.others,
                5 => world.label = true,
                6 => world.ready = !world.ready,
                7 if !world.ready => world.pod = false,
                8 | 9 if world.others && world.up => world.proof = true,
                _ => {}
            }
            world.advance(rng.between(1, 40), &mut rng);
            let fault = |rng: &mut Rng| match rng.below(6) {
                0 => Fault::Before,
                1 => Fault::After,
                _ => Fault::None,
            };
            let (write, action) = (fault(&mut rng), fault(&mut rng));
            safe += usize::from(world.pass(write, action));
            if rng.one_in(2) {
                world.activate();
            }
        }
        // The faults stop, and the request goes: it comes back.
        (world.asked, world.others, world.ready) = (false, true, true);
        for _ in 0..40 {
            world.advance(10, &mut rng);
            world.pass(Fault::None, Fault::None);
            world.activate();
        }
        assert!(world.label && world.up, "seed {seed}: it did not come back ({:?})", world.stored);
        let ended = world.stored.as_ref().is_none_or(|service| service.phase == Phase::InService);
        assert!(ended, "seed {seed}: {:?}", world.stored);
    }
    assert!(safe > 200, "the schedules seldom come to the point: {safe}");
}

#[test]
fn a_hold_reaches_its_goal_when_nothing_fails() {
    let mut rng = Rng::new(1);
    let mut world = World::new();
    world.asked = true;
    let safe = (0..40).any(|_| {
        world.advance(5, &mut rng);
        world.pass(Fault::None, Fault::None)
    });
    assert!(safe, "{:?}", world.stored);
    assert_eq!(world.removed, 1);
}
