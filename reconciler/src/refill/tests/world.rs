//! A site in which one machine was wiped, its pins in Kubernetes, and the process that repairs it.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::*;
use crate::act::{Kind, PatchBuilder, Target};
use crate::observe::{Role, StagedChange};
use crate::testing::faults::{Fault, Faults};
use crate::testing::layout::Garage;

pub fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

pub const A: u8 = 0x11;
pub const B: u8 = 0x22;
pub const OLD: u8 = 0x0f;
pub const NEW: u8 = 0xc3;

pub fn at(second: i64) -> Time {
    Time::new(jiff::Timestamp::from_second(1_800_000_000 + second).unwrap())
}

pub fn pair() -> Pair {
    Pair { pool: "fast".parse().unwrap(), node: "kn-1".parse().unwrap() }
}

pub fn request() -> ReplaceRequest {
    format!("fast/kn-1/{}", id(OLD)).parse().unwrap()
}

pub fn role(node: &str) -> Role {
    let tags = ["cluster:a/b", "node-local-pool:fast"].map(str::to_owned).into_iter();
    Role {
        zone: "z".to_owned(),
        capacity: Some(1 << 30),
        tags: tags
            .chain([format!("kubernetes-node:{node}"), "rpc-address:10.0.0.9:3901".to_owned()])
            .collect(),
    }
}

pub fn reason(step: &RefillStep) -> Reason {
    step.condition.as_ref().expect("a condition").1
}

/// What is so in Garage and in Kubernetes.
#[derive(Debug, Clone)]
pub struct World {
    pub now: i64,
    pub garage: Garage,
    /// Whom a pass asks first.
    pub first: u8,
    pub node: [NodeId; 2],
    pub pin: NodeId,
    pub status: NodeId,
    pub asked: bool,
    pub stored: Option<NodeLocalService>,
    pub refused: bool,
    pub pools_managed: bool,
}

impl World {
    pub fn new() -> Self {
        let roles: BTreeMap<NodeId, Role> =
            [(A, "kn-2"), (B, "kn-3"), (OLD, "kn-1")].map(|(byte, node)| (id(byte), role(node))).into();
        let mut garage = Garage::settled(7, &roles, &[A, B].map(id));
        garage.start_empty(id(NEW));
        Self {
            now: 0,
            garage,
            first: A,
            node: [id(OLD); 2],
            pin: id(OLD),
            status: id(OLD),
            asked: true,
            stored: None,
            refused: false,
            pools_managed: true,
        }
    }

    pub fn down(&mut self, byte: u8) {
        self.garage.up.remove(&id(byte));
    }

    pub fn back(&mut self, byte: u8) {
        self.garage.up.insert(id(byte));
    }

    /// The roles of every node that knows a layout change: another hand's work, long settled.
    pub fn roles(&mut self, mut change: impl FnMut(&mut BTreeMap<NodeId, Role>)) {
        self.garage.everywhere(|known| change(&mut known.roles));
    }

    pub fn stage(&mut self, changes: &[StagedChange]) {
        self.garage.everywhere(|known| known.staged = changes.to_vec());
    }

    pub fn view(&self) -> GarageView {
        let mut order = [A, B, NEW].map(id);
        order.sort_by_key(|one| *one != id(self.first));
        let recorded = self.stored.as_ref().and_then(|service| service.replacement.as_ref()?.layout_version);
        self.garage.view(&order, recorded)
    }

    pub fn facts<'a>(&self, view: &'a GarageView, request: &'a ReplaceRequest) -> Facts<'a> {
        let write = |kind: &str| Write {
            target: Target::namespaced(Kind::GarageNode, "n", kind),
            status: kind == "status",
            patch: PatchBuilder::new().add(["x"], json!(1)).build(),
        };
        // V5 on what stands: the old ID is the current one.
        let current = self.status == request.old_node_id && self.pin == request.old_node_id;
        Facts {
            now: at(self.now),
            pair: pair(),
            request: self.asked.then_some(request),
            allowed: if current { Ok(()) } else { Err("V5: another identity".to_owned()) },
            free: Ok(()),
            garage: view,
            factor: 3,
            process: if self.garage.up.contains(&id(NEW)) {
                Ok(NewProcess { id: id(NEW), rpc: "10.0.0.4:3901".parse().unwrap() })
            } else {
                Err("it does not run".to_owned())
            },
            pod_uid: Some("pod".to_owned()),
            used_by: None,
            rpc_tag: None,
            pools_managed: self.pools_managed,
            introduce_at: Some("10.0.0.2:3903".parse().unwrap()),
            pins: Ok(Pins {
                node: self.node.map(Some),
                pin: Some(self.pin),
                status: Some(self.status),
                move_node: write("node"),
                move_pin: write("pin"),
                move_status: write("status"),
            }),
            dry_run: None,
        }
    }

    pub fn decide(&self, view: &GarageView, request: &ReplaceRequest) -> RefillStep {
        let mut facts = self.facts(view, request);
        let first = step(&facts, self.stored.as_ref());
        if first.checks.is_empty() {
            return first;
        }
        assert!(first.actions.is_empty(), "nothing is done before it was asked about");
        assert!(first.checks.iter().all(|check| matches!(check, Action::Patch { dry_run: true, .. })));
        facts.dry_run = Some(if self.refused { Err("no".to_owned()) } else { Ok(()) });
        step(&facts, self.stored.as_ref())
    }

    /// What this pass decides on what it sees now.
    pub fn decided(&self) -> RefillStep {
        self.decide(&self.view(), &request())
    }

    /// Performs an action; answers whether it was surely executed.
    pub fn perform(&mut self, action: &Action) -> bool {
        let Action::Patch { target, dry_run: false, .. } = action else {
            if matches!(action, Action::ApplyLayout { .. }) {
                assert!(
                    [A, B, NEW].map(id).iter().all(|id| self.garage.up.contains(id)),
                    "applied too early"
                );
            }
            return self.garage.perform(action).executed();
        };
        let (name, change): (_, fn(&mut Self)) = match target.name.as_str() {
            "node" => ("Node", |world| world.node = [id(NEW); 2]),
            "pin" => ("pin", |world| {
                assert_eq!(world.node, [id(NEW); 2], "the Node comes first");
                world.pin = id(NEW);
            }),
            _ => ("status.nodeId", |world| {
                assert_eq!(world.pin, id(NEW), "the pin comes before the status");
                world.status = id(NEW);
            }),
        };
        self.write(name, change)
    }

    /// A write to Kubernetes: counted, and it may fail. A server answers late, or it never does what it was told.
    fn write(&mut self, name: &'static str, change: impl FnOnce(&mut Self)) -> bool {
        match self.garage.faults.next(name) {
            None => {
                change(self);
                return true;
            }
            Some(Fault::Before | Fault::Late) => {}
            Some(fault) => {
                self.garage.crashed = fault == Fault::Crash;
                change(self);
            }
        }
        false
    }

    /// One pass: status first, and the actions only if that write stood.
    pub fn pass(&mut self) -> RefillStep {
        self.garage.crashed = false;
        let decided = self.decided();
        if decided.service != self.stored {
            let next = decided.service.clone();
            if !self.write("status", |world| world.stored = next) {
                self.check();
                return decided;
            }
        }
        for action in &decided.actions {
            let executed = self.perform(action);
            self.check();
            if !executed || self.garage.crashed {
                break;
            }
        }
        decided
    }

    /// Time goes on.
    pub fn advance(&mut self, seconds: i64) {
        self.now += seconds;
        self.garage.tick();
        self.check();
    }

    pub fn check(&self) {
        for (byte, known) in self.garage.nodes.iter().filter(|(_, known)| known.version > 0) {
            let (old, new) = (known.roles.contains_key(&id(OLD)), known.roles.contains_key(&id(NEW)));
            assert!(old != new, "never both, never neither: {}", byte.short());
        }
        for (number, made) in &self.garage.made {
            assert_eq!(made.len(), 1, "version {number} was applied more than once");
        }
        assert!(self.garage.skipped.iter().all(|skipped| *skipped == id(OLD)), "another node was skipped");
        assert_eq!(self.node[0], self.node[1], "claim and identity annotation are never seen to differ");
    }

    /// Which versions were applied here, and how often.
    pub fn applies(&self) -> Vec<(u64, usize)> {
        self.garage.made.iter().map(|(number, made)| (*number, made.len())).collect()
    }

    pub fn phase(&self) -> Option<Phase> {
        self.stored.as_ref().map(|service| service.phase)
    }

    /// Passes without further trouble until the phase is reached.
    pub fn run_to(&mut self, phase: Phase) {
        for _ in 0..120 {
            if self.phase() == Some(phase) {
                return;
            }
            self.advance(5);
            self.pass();
        }
        panic!("{phase:?} was not reached: {:?}\n{:?}", self.stored, self.garage);
    }

    /// Everything is as it should be at the end, and further passes change nothing.
    pub fn assert_replaced(&mut self, about: &dyn std::fmt::Debug) {
        assert_eq!(self.phase(), Some(Phase::Completed), "{about:?}: {:?}\n{:#?}", self.stored, self.garage);
        assert_eq!((self.node, self.pin, self.status), ([id(NEW); 2], id(NEW), id(NEW)), "{about:?}");
        assert_eq!(self.garage.newest().trackers, None, "{about:?}: settled");
        let (stored, made) = (self.stored.clone(), self.garage.faults.made());
        for _ in 0..3 {
            self.advance(30);
            let last = self.pass();
            assert_eq!(reason(&last), Reason::Replaced, "{about:?}");
        }
        assert_eq!((&self.stored, self.garage.faults.made()), (&stored, made), "{about:?}: quiet");
    }

    /// A world in which these writes fail.
    pub fn with_faults(plan: Vec<(usize, Fault)>, gossip_every: u32) -> Self {
        let mut world = Self::new();
        world.garage.faults = Faults::of(plan);
        world.garage.gossip_every = gossip_every;
        world
    }
}
