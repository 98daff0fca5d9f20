//! A hold (`hold`, H1 to H6): one member, its Node, Pod and process. Reading, writing the status and acting are steps of
//! their own, each of which may fail before or after it took effect. The machine may be cut off, its Pod object deleted
//! by force meanwhile, its label put back by another hand, another member may go down, and gossip lags.
//!
//! What the model takes for granted: a kubelet that is back ends a process without a Pod within its grace; Garage notices
//! a cut later than Kubernetes (FACTS 14: 80 s against 50 s); and whoever deletes a Pod by force on a Ready Node does so
//! while Garage still sees its process.

use std::hash::{Hash, Hasher};

use holdfast_crds::conditions::ConditionStatus;
use holdfast_crds::ids::Pair;
use holdfast_crds::status::{NodeLocalService, ServicePhase as Phase, Time};
use stateright::{Model, Property};

use super::{Bounds, catches, check, is_sample};
use crate::hold::{Facts, NodeFacts, PairPod, Request, begin, step};
use crate::service::is_off;

/// Seconds of a tick: a kubelet's grace, and Garage's return (H6).
const TICK: i64 = 30;
const SAFE: &str = "safe to touch only while no process of the member runs";
const GATE: &str = "the label goes only while the others carry the site";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A Node that is Ready again vouches at once for what runs on it.
    TrustsTheFirstHeartbeat,
    /// A Pod that vanished is a Pod that ended.
    TrustsVanishedPods,
    /// Garage's view is not asked.
    IgnoresGarage,
    /// What was announced is done, whatever happened since.
    ActsOnAnOldGate,
    /// A label that came back is removed again, whatever became of the others.
    IgnoresTheRest,
}

/// `status.nodeLocalService` as it is stored.
#[derive(Clone, Debug, PartialEq)]
struct Stored(Option<NodeLocalService>);

impl Eq for Stored {}

impl Hash for Stored {
    fn hash<H: Hasher>(&self, state: &mut H) {
        serde_json::to_string(&self.0).unwrap().hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pod {
    deleting: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Pass {
    Decided { next: Stored, remove: bool, safe: bool },
    Written,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own.
struct World {
    now: i64,
    asked: bool,
    /// The activation label.
    label: bool,
    pod: Option<Pod>,
    /// What is true on the machine.
    process: bool,
    /// It reaches the API server and its peers.
    linked: bool,
    ready: bool,
    ready_since: i64,
    heartbeat: i64,
    /// Since when a process runs that has no Pod, on a machine that is linked.
    orphan: Option<i64>,
    /// Somebody sees the identity up.
    up: bool,
    others: bool,
    proof: bool,
    stored: Stored,
    pass: Option<Pass>,
    faults: u8,
    wishes: u8,
    /// The last decision, against what was true then.
    unsafe_true: bool,
    ungated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Tick,
    Asks,
    TakesBack,
    Reads,
    Writes,
    WriteFailsBefore,
    WriteFailsAfter,
    Acts,
    /// The action is lost, or the process is killed before it.
    ActIsLost,
    /// The pools do what they do for a member that is not held.
    Activates,
    /// Another hand puts the label back.
    LabelReturns,
    DaemonSet,
    Kubelet,
    DeletedByForce,
    Cut,
    Linked,
    NotReady,
    Heartbeat,
    Gossip,
    OtherDown,
    OtherUp,
    Proves,
}

struct Hold {
    bug: Bug,
    bounds: Bounds,
}

fn at(tick: i64) -> Time {
    Time::new(jiff::Timestamp::from_second(1_800_000_000 + tick * TICK).unwrap())
}

fn pair() -> Pair {
    Pair { pool: "fast".parse().unwrap(), node: "kn-3".parse().unwrap() }
}

impl World {
    /// The member is whole and so are the others.
    fn healthy(&self) -> bool {
        self.others && self.up
    }

    fn service(&self) -> Option<&NodeLocalService> {
        self.stored.0.as_ref()
    }
}

impl Hold {
    fn facts(&self, world: &World) -> Facts {
        let no = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
        let others = world.others;
        let pods = world.pod.is_some();
        let trusts = self.bug == Bug::TrustsVanishedPods;
        let since = if self.bug == Bug::TrustsTheFirstHeartbeat { -100 } else { world.ready_since };
        let announced = world.service().is_some_and(|service| service.phase == Phase::Deactivating);
        let old = self.bug == Bug::ActsOnAnOldGate && announced;
        Facts {
            now: at(world.now),
            pair: pair(),
            namespace: "objects".to_owned(),
            request: if world.asked { Request::Stands } else { Request::Gone },
            allowed: Ok(()),
            free: Ok(()),
            observed: Ok(()),
            health: no(old || others && world.up, "degraded"),
            layout: Ok(()),
            members: no(old || others, "another is down"),
            room: Ok(()),
            proof: no(old || world.proof, "void"),
            rest: no(others || self.bug == Bug::IgnoresTheRest, "another is down"),
            label_key: "garage.rajsingh.info/gc-x".to_owned(),
            token: Some("token".to_owned()),
            pools_managed: true,
            node: Ok(NodeFacts {
                uid: "node".to_owned(),
                resource_version: "7".to_owned(),
                label: world.label.then(|| "token".to_owned()),
                has_labels: true,
                ready: world.ready || trusts,
                ready_since: Some(at(if trusts { -100 } else { since })),
                heartbeat: Some(at(world.heartbeat)),
                out_of_service: false,
            }),
            pods: Ok(if pods {
                vec![PairPod { name: "pod".to_owned(), uid: "uid".to_owned(), gated: false }]
            } else {
                Vec::new()
            }),
            identity: Some("33".repeat(32).parse().unwrap()),
            is_up: Some(world.up && self.bug != Bug::IgnoresGarage),
            is_back: no(world.up, "down"),
            other_identity: None,
        }
    }

    fn reads(&self, world: &mut World) {
        // As `service::step`: what is finished stays on record until it is asked for anew.
        let waiting = world.service().is_none_or(|service| service.phase == Phase::InService);
        if waiting && !world.asked {
            return;
        }
        let begun = begin(&pair(), at(world.now));
        let service = if waiting { begun } else { world.stored.0.clone().unwrap() };
        let decided = step(&self.facts(world), &service);
        let safe = decided.condition.as_ref().is_some_and(|said| said.0 == ConditionStatus::True);
        let remove = !decided.actions.is_empty();
        world.unsafe_true |= safe && (world.process || world.label || world.pod.is_some());
        world.ungated |= remove && !world.others;
        let next = Stored(decided.service);
        if remove || safe || next != world.stored {
            world.pass = Some(Pass::Decided { next, remove, safe });
        }
    }

    /// Nothing fails any more. Asked: it becomes safe. Not asked: it is back in service.
    fn settles(&self, world: &World, asked: bool) -> bool {
        let mut world = world.clone();
        (world.asked, world.others, world.pass) = (asked, true, None);
        for _ in 0..16 {
            for action in
                [Action::Linked, Action::Heartbeat, Action::Activates, Action::DaemonSet, Action::Kubelet]
            {
                world = self.next_state(&world, action).unwrap_or(world);
            }
            for action in [Action::DaemonSet, Action::Kubelet, Action::Gossip, Action::Proves] {
                world = self.next_state(&world, action).unwrap_or(world);
            }
            for _ in 0..3 {
                for action in [Action::Reads, Action::Writes, Action::Acts] {
                    let safe = matches!(&world.pass, Some(Pass::Decided { safe: true, .. }));
                    if asked && safe {
                        return true;
                    }
                    world = self.next_state(&world, action).unwrap_or(world);
                }
            }
            let back = world.service().is_none_or(|service| service.phase == Phase::InService);
            if !asked && back && world.up && world.label {
                return true;
            }
            world.now += 1;
        }
        false
    }
}

impl Model for Hold {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            now: 0,
            asked: false,
            label: true,
            pod: Some(Pod { deleting: false }),
            process: true,
            linked: true,
            ready: true,
            ready_since: -100,
            heartbeat: 0,
            orphan: None,
            up: true,
            others: true,
            proof: true,
            stored: Stored(None),
            pass: None,
            faults: self.bounds.faults,
            wishes: 2,
            unsafe_true: false,
            ungated: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        use Action::*;
        actions.extend([
            Tick, Reads, Writes, Acts, Activates, DaemonSet, Kubelet, Linked, NotReady, Heartbeat, Gossip,
            OtherUp, Proves,
        ]);
        if world.wishes > 0 {
            actions.extend([Asks, TakesBack]);
        }
        if world.faults > 0 {
            actions.extend([
                WriteFailsBefore,
                WriteFailsAfter,
                ActIsLost,
                LabelReturns,
                DeletedByForce,
                Cut,
                OtherDown,
            ]);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        let now = world.now;
        match action {
            Action::Tick => {
                // The grace of a kubelet; and a kubelet that is back reports.
                let overdue = world.orphan.is_some_and(|since| now > since);
                if overdue || world.pass.is_some() {
                    return None;
                }
                world.now += 1;
            }
            Action::Asks if !world.asked => {
                world.asked = true;
                world.wishes -= 1;
            }
            Action::TakesBack if world.asked => {
                world.asked = false;
                world.wishes -= 1;
            }
            Action::Reads => {
                if world.pass.is_some() {
                    return None;
                }
                self.reads(&mut world);
            }
            Action::Writes | Action::WriteFailsBefore | Action::WriteFailsAfter => {
                let Some(Pass::Decided { next, remove, .. }) = world.pass.take() else { return None };
                if action != Action::WriteFailsBefore {
                    world.stored = next;
                }
                world.pass = (remove && action == Action::Writes).then_some(Pass::Written);
                world.faults -= u8::from(action != Action::Writes);
            }
            Action::Acts => {
                world.pass.take_if(|pass| *pass == Pass::Written)?;
                world.label = false;
            }
            Action::ActIsLost => {
                world.pass.take_if(|pass| *pass == Pass::Written)?;
                world.faults -= 1;
            }
            Action::Activates if !world.label && !world.service().is_some_and(is_off) => world.label = true,
            Action::LabelReturns if !world.label => {
                world.label = true;
                world.faults -= 1;
            }
            Action::DaemonSet => match &mut world.pod {
                Some(pod) if !world.label && !pod.deleting => pod.deleting = true,
                None if world.label => world.pod = Some(Pod { deleting: false }),
                _ => return None,
            },
            Action::Kubelet => {
                if !world.linked || !world.ready {
                    return None;
                }
                let wanted = world.pod.as_ref().is_some_and(|pod| !pod.deleting);
                if world.process == wanted && world.pod.as_ref().is_none_or(|pod| !pod.deleting) {
                    return None;
                }
                world.process = wanted;
                world.pod.take_if(|pod| pod.deleting);
                world.orphan = None;
            }
            Action::DeletedByForce if world.pod.is_some() && (!world.ready || world.up) => {
                world.faults -= 1;
                world.pod = None;
                world.orphan = (world.process && world.linked).then_some(now);
            }
            Action::Cut if world.linked => {
                world.faults -= 1;
                (world.linked, world.orphan) = (false, None);
            }
            Action::Linked if !world.linked => {
                world.linked = true;
                world.orphan = (world.process && world.pod.is_none()).then_some(now);
            }
            Action::NotReady if !world.linked && world.ready => {
                (world.ready, world.ready_since) = (false, now);
            }
            Action::Heartbeat if world.linked && (!world.ready || world.heartbeat < now) => {
                world.heartbeat = now;
                if !std::mem::replace(&mut world.ready, true) {
                    world.ready_since = now;
                    // From now on it ends what it finds.
                    world.orphan = world.orphan.map(|_| now);
                }
            }
            Action::Gossip => {
                let truth = world.process && world.linked;
                if world.up == truth || (!truth && world.process && world.ready) {
                    return None;
                }
                world.up = truth;
                world.proof &= truth;
            }
            Action::OtherDown if world.others => {
                world.faults -= 1;
                (world.others, world.proof) = (false, false);
            }
            Action::OtherUp if !world.others => world.others = true,
            Action::Proves if world.healthy() && !world.proof => world.proof = true,
            _ => return None,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(SAFE, |_, world: &World| !world.unsafe_true),
            Property::always(GATE, |_, world: &World| !world.ungated),
            Property::always("it becomes safe when nothing fails any more", |model: &Self, world: &World| {
                world.now < model.bounds.end || !is_sample(world) || model.settles(world, true)
            }),
            Property::always("it comes back when nothing fails any more", |model: &Self, world: &World| {
                world.now < model.bounds.end || !is_sample(world) || model.settles(world, false)
            }),
            Property::sometimes("the disk may be touched", |_, world: &World| {
                matches!(&world.pass, Some(Pass::Decided { safe: true, .. }))
            }),
            Property::sometimes("a termination is not confirmed", |_, world: &World| {
                world.service().is_some_and(|service| service.termination_unconfirmed_since.is_some())
            }),
            Property::sometimes("the label is removed twice", |_, world: &World| {
                world.service().is_some_and(|service| service.activation_returns == Some(1)) && !world.label
            }),
            Property::sometimes("the member is back", |_, world: &World| {
                world.service().is_some_and(|service| service.phase == Phase::InService)
            }),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.now <= self.bounds.end
    }
}

#[test]
fn a_disk_is_safe_to_touch_only_while_nothing_runs_on_it_and_every_hold_ends() {
    check("hold", Hold { bug: Bug::None, bounds: Bounds::of(2, 1) }, 20_000);
}

#[test]
fn the_model_of_the_hold_finds_each_seeded_bug() {
    for (bug, faults, property) in [
        (Bug::TrustsTheFirstHeartbeat, 2, SAFE),
        (Bug::TrustsVanishedPods, 2, SAFE),
        (Bug::IgnoresGarage, 1, SAFE),
        (Bug::ActsOnAnOldGate, 1, GATE),
        (Bug::IgnoresTheRest, 2, GATE),
    ] {
        catches(&format!("{bug:?}"), Hold { bug, bounds: Bounds { end: 2, faults } }, property);
    }
}
