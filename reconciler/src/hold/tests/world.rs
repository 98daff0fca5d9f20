//! A small world, driven by the real step: every write may fail before or after it took effect, and the process
//! may be killed between any two.

use super::*;
use crate::sim::rng::Rng;
use crate::testing::faults::{Fault, Faults};

/// What is so, and what is stored.
#[allow(clippy::struct_excessive_bools, reason = "each is one thing that is so or not")]
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) now: i64,
    pub(super) request: Request,
    pub(super) label: bool,
    pub(super) pod: bool,
    pub(super) up: bool,
    pub(super) ready: bool,
    pub(super) others: bool,
    pub(super) proof: bool,
    pub(super) stored: Option<NodeLocalService>,
    pub(super) faults: Faults,
    crashed: bool,
    /// Labels that this product removed; what another hand put back and took away is not ours to account for.
    pub(super) removed: u32,
}

impl World {
    pub(super) fn new(faults: Faults) -> Self {
        Self {
            now: 0,
            request: Request::Gone,
            label: true,
            pod: true,
            up: true,
            ready: true,
            others: true,
            proof: true,
            stored: None,
            faults,
            crashed: false,
            removed: 0,
        }
    }

    /// The kubelet, the DaemonSet controller and Garage go on; `goes` says of each whether it does in this step.
    pub(super) fn advance(&mut self, seconds: i64, mut goes: impl FnMut() -> bool) {
        self.now += seconds;
        if self.ready && self.pod != self.label && goes() {
            self.pod = self.label;
        }
        if self.up != self.pod && goes() {
            self.up = self.pod;
        }
        if !self.up || !self.others {
            self.proof = false;
        }
    }

    fn facts(&self) -> Facts {
        let mut facts = whole();
        let judged = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
        facts.now = at(self.now);
        facts.request = self.request;
        facts.health = judged(self.others && self.up, "degraded");
        facts.members = judged(self.others, "another is down");
        facts.rest = judged(self.others, "another is down");
        facts.proof = judged(self.proof, "void");
        facts.is_up = Some(self.up);
        facts.is_back = judged(self.up, "down");
        facts.pods = Ok(if self.pod { whole().pods.unwrap() } else { Vec::new() });
        let node = node(&mut facts);
        node.label = self.label.then(|| "token".to_owned());
        node.ready = self.ready;
        node.heartbeat = Some(at(if self.ready { self.now } else { self.now - 1000 }));
        facts
    }

    /// A write that may fail; whether its answer came.
    fn write(&mut self, name: &'static str, change: impl FnOnce(&mut Self)) -> bool {
        match self.faults.next(name) {
            None => {
                change(self);
                return true;
            }
            Some(Fault::Before | Fault::Late) => {}
            Some(fault) => {
                self.crashed = fault == Fault::Crash;
                change(self);
            }
        }
        false
    }

    /// One pass. Returns whether the condition was True.
    pub(super) fn pass(&mut self) -> bool {
        self.crashed = false;
        let over = |service: &NodeLocalService| service.phase == Phase::InService;
        let previous = match (&self.stored, self.request) {
            (Some(service), Request::Stands) if over(service) => begin(&pair(), at(self.now)),
            (Some(service), _) if over(service) => return false,
            (Some(service), _) => service.clone(),
            (None, Request::Stands) => begin(&pair(), at(self.now)),
            (None, _) => return false,
        };
        let next = step(&self.facts(), &previous);
        let safe = next.condition.as_ref().is_some_and(|said| said.0 == ConditionStatus::True);
        if safe {
            assert!(!self.label && !self.pod && !self.up, "safe, although it is not off");
            assert!(self.others, "safe, although another is down");
            assert_eq!(self.request, Request::Stands, "safe, although nobody asks for it");
        }
        if next.service != self.stored
            && !self.write("status", |world| world.stored.clone_from(&next.service))
        {
            return safe;
        }
        for one in &next.actions {
            assert!(removes_only_the_label(std::slice::from_ref(one)), "{one:?}");
            let again = previous.activation_returns.is_some();
            assert!(self.others && (again || (self.proof && self.up)), "the label goes outside of the gate");
            assert_eq!(self.request, Request::Stands, "the label goes although nobody asks for it");
            assert_eq!(previous.phase, Phase::Deactivating, "the intent was not written before");
            assert!(self.label, "a patch that tests the label cannot go through without it");
            self.write("label", |world| {
                world.label = false;
                world.removed += 1;
            });
        }
        safe
    }

    /// What the pools do for a member that is not held.
    pub(super) fn activate(&mut self) {
        let held = self.stored.as_ref().is_some_and(|service| {
            matches!(service.phase, Phase::Deactivating | Phase::Terminating | Phase::OutOfService)
        });
        if !held && !self.label && !self.crashed {
            self.write("activation", |world| world.label = true);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stored.as_ref().is_none_or(|service| service.phase == Phase::InService)
    }
}

#[test]
fn whatever_fails_between_any_two_writes_no_label_goes_outside_the_gate_and_no_disk_is_called_safe_too_early()
{
    let mut safe = 0;
    for seed in 0..1_500 {
        let mut rng = Rng::new(seed);
        let fault = |rng: &mut Rng| rng.pick([Fault::Before, Fault::After, Fault::Crash]);
        let mut plan = Vec::new();
        for at in 0..60 {
            if rng.one_in(3) {
                plan.push((at, fault(&mut rng)));
            }
        }
        let mut world = World::new(Faults::of(plan));
        for _ in 0..60 {
            match rng.below(26) {
                0..=3 => world.request = Request::Stands,
                4 => world.request = Request::Gone,
                5 => world.request = Request::Differs,
                6 => world.others = !world.others,
                7 => world.label = true,
                8 => world.ready = !world.ready,
                9 if !world.ready => world.pod = false,
                10 | 11 if world.others && world.up => world.proof = true,
                _ => {}
            }
            let seconds = rng.between(1, 40);
            world.advance(seconds, || rng.one_in(2));
            safe += usize::from(world.pass());
            if rng.one_in(2) {
                world.activate();
            }
        }
        // The faults stop, and the request goes: it comes back.
        (world.request, world.others, world.ready) = (Request::Gone, true, true);
        world.faults = Faults::default();
        for _ in 0..40 {
            world.advance(10, || rng.one_in(2));
            world.pass();
            world.activate();
        }
        assert!(world.label && world.up, "seed {seed}: it did not come back ({:?})", world.stored);
        assert!(world.is_over(), "seed {seed}: {:?}", world.stored);
    }
    assert!(safe > 200, "the schedules seldom come to the point: {safe}");
}
