//! A refill (`refill`, R1 to R5): a site of three whose third disk was replaced. Reading, writing the status and each
//! action are steps of their own, each of which may fail before or after it took effect; an apply may come later. Other
//! nodes die and return, another hand stages, applies and reverts layout changes, and the request may be taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use holdfast_crds::ids::{LayoutVersion, NodeId, Pair};
use holdfast_crds::requests::ReplaceRequest;
use holdfast_crds::status::{NodeLocalService, ServicePhase as Phase, Time};
use serde_json::json;
use stateright::{Model, Property};

use super::{Bounds, catches, check, is_sample};
use crate::act::{Action as Do, Kind, PatchBuilder, Target, is_exactly_staged, roles_hold, same_change};
use crate::observe::{
    Core, GarageView, Health, History, HistoryStatus, HistoryVersion, Layout, LayoutParameters, NodeState,
    NotObserved, Partition, PeerView, Role, Silence, StagedChange, Tracker, ZoneRedundancy,
};
use crate::refill::{Facts, NewProcess, Pins, Write, step};

/// Seconds of a tick: a skip may be asked for again (R4).
const TICK: i64 = 10;

const ROLES: &str = "never both identities in the layout, and never neither";
const ONCE: &str = "one apply of ours";
const SKIP: &str = "a skip only while all others are up";
const ORDER: &str = "pins move in their order, and only once the layout is settled";

/// The nodes in the order of the arrays below.
const A: usize = 0;
const B: usize = 1;
const OLD: usize = 2;
const NEW: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The new identity is added in one version, and the old one removed in a later one (R4a).
    TwoVersions,
    /// An apply that was not answered is sent again without looking (R3).
    AppliesAgain,
    /// Whoever is down is skipped.
    SkipsBlindly,
    /// Pins move as soon as the roles are right.
    DoesNotSettle,
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

/// One thing to do, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Update { base: u64 },
    Apply { version: u64 },
    Skip { version: u64 },
    MoveNode,
    MovePin,
    MoveStatus,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Pass {
    Decided { next: Stored, acts: Vec<Act> },
    Acting(Vec<Act>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own.
struct World {
    now: i64,
    asked: bool,
    version: u64,
    /// Who has a role.
    roles: [bool; 4],
    /// Our two changes are staged.
    ours: bool,
    /// Another hand's change is staged.
    foreign: bool,
    up: [bool; 4],
    /// While the version before is live: who has acknowledged and synced the current one.
    acked: Option<[bool; 4]>,
    node: bool,
    pin: bool,
    status: bool,
    stored: Stored,
    pass: Option<Pass>,
    /// An apply that nobody waits for any more.
    late: Option<u64>,
    applied: u8,
    faults: u8,
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Tick,
    Reads,
    Writes,
    WriteFailsBefore,
    WriteFailsAfter,
    Acts,
    /// The process is killed before or after the next action.
    DiesBefore,
    DiesAfter,
    /// The next action takes effect when nobody waits for it any more.
    ActsLater,
    LateApplies,
    /// A living node acknowledges and syncs the current version.
    Acks(usize),
    Down(usize),
    Up(usize),
    /// Another hand.
    Stages,
    Reverts,
    AppliesByHand,
    TakesBack,
    AsksAgain,
}

struct Refill {
    bug: Bug,
    bounds: Bounds,
}

fn id(at: usize) -> NodeId {
    NodeId::from_bytes([[0x11, 0x22, 0x0f, 0xc3][at]; 32])
}

fn at(tick: i64) -> Time {
    Time::new(jiff::Timestamp::from_second(1_800_000_000 + tick * TICK).unwrap())
}

fn pair() -> Pair {
    Pair { pool: "fast".parse().unwrap(), node: "kn-1".parse().unwrap() }
}

fn request() -> ReplaceRequest {
    ReplaceRequest { pair: pair(), old_node_id: id(OLD) }
}

fn role(at: usize) -> Role {
    let node = ["kn-2", "kn-3", "kn-1", "kn-1"][at];
    let tags = vec!["node-local-pool:fast".to_owned(), format!("kubernetes-node:{node}")];
    Role { zone: "z".to_owned(), capacity: Some(1 << 30), tags }
}

fn changes() -> Vec<StagedChange> {
    vec![StagedChange { id: id(NEW), role: Some(role(NEW)) }, StagedChange { id: id(OLD), role: None }]
}

impl World {
    fn layout(&self) -> Layout {
        let mut staged = if self.ours { changes() } else { Vec::new() };
        if self.foreign {
            staged.push(StagedChange { id: id(A), role: Some(Role { capacity: Some(2 << 30), ..role(A) }) });
        }
        Layout {
            version: LayoutVersion(self.version),
            roles: (0..4).filter(|x| self.roles[*x]).map(|x| (id(x), role(x))).collect(),
            parameters: LayoutParameters { zone_redundancy: ZoneRedundancy::Maximum },
            staged,
            staged_parameters: None,
        }
    }

    fn health(&self) -> Health {
        let count = |n: usize| u32::try_from(n).unwrap();
        let known = |x: usize| self.roles[x] || (self.acked.is_some() && x == OLD);
        let storage = (0..4).filter(|x| known(*x)).count();
        let up = (0..4).filter(|x| known(*x) && self.up[*x]).count();
        let quorum = (0..4).filter(|x| self.roles[*x] && self.up[*x]).count() >= 2;
        Health {
            status: if up == storage { "healthy" } else { "degraded" }.to_owned(),
            known_nodes: 4,
            connected_nodes: count(self.up.iter().filter(|up| **up).count()),
            storage_nodes: count(storage),
            storage_nodes_up: count(up),
            partitions: 256,
            partitions_quorum: if quorum { 256 } else { 0 },
            partitions_all_ok: if up == storage { 256 } else { 0 },
        }
    }

    fn view(&self) -> GarageView {
        let mut view = GarageView::not_observed(NotObserved { what: "nobody".to_owned() });
        let Some(answering) = [A, B].into_iter().find(|x| self.up[*x]) else { return view };
        let disk = Some(Partition { available: 1 << 31, total: 1 << 31 });
        let node = |x: usize| NodeState {
            is_up: self.up[x],
            draining: false,
            addr: None,
            hostname: None,
            version: Some("cargo:2.5.0".to_owned()),
            last_seen_secs_ago: None,
            data_partition: disk,
            metadata_partition: disk,
        };
        let version = LayoutVersion(self.version);
        let older = LayoutVersion(self.version - 1);
        let mut versions = vec![HistoryVersion { version, status: HistoryStatus::Current }];
        if self.acked.is_some() {
            versions.push(HistoryVersion { version: older, status: HistoryStatus::Draining });
        }
        let trackers = self.acked.map(|acked| {
            let of = |x: usize| {
                let version = if acked[x] { version } else { older };
                (id(x), Tracker { ack: version, sync: version, sync_ack: version })
            };
            (0..4).map(of).collect::<BTreeMap<_, _>>()
        });
        view.core = Ok(Core {
            answering: Some(id(answering)),
            health: self.health(),
            status_layout_version: version,
            nodes: (0..4).map(|x| (id(x), node(x))).collect(),
            layout: self.layout(),
            history: History { current: version, min_ack: version, versions, trackers },
        });
        let up: BTreeSet<NodeId> = (0..4).filter(|x| self.up[*x]).map(id).collect();
        let own = |x: usize| {
            let peer = PeerView { health: self.health(), up: up.clone() };
            (id(x), if self.up[x] { Ok(peer) } else { Err(Silence::TimedOut) })
        };
        view.peer_views = Some((0..4).filter(|x| self.roles[*x]).map(own).collect());
        view
    }

    fn phase(&self) -> Option<Phase> {
        self.stored.0.as_ref().map(|service| service.phase)
    }

    fn break_it(&mut self, what: &'static str) {
        self.broken.get_or_insert(what);
    }

    /// A version with what is staged.
    fn apply(&mut self) {
        if self.ours {
            self.acked = Some([false; 4]);
            (self.roles[OLD], self.roles[NEW]) = (false, true);
        }
        (self.ours, self.foreign) = (false, false);
        self.version += 1;
    }
}

impl Refill {
    fn decide(world: &World) -> (Stored, Vec<Act>) {
        let (view, request) = (world.view(), request());
        let write = |name: &str| Write {
            target: Target::namespaced(Kind::GarageNode, "n", name),
            status: name == "status",
            patch: PatchBuilder::new().add(["x"], json!(1)).build(),
        };
        let named = |moved: bool| Some(id(if moved { NEW } else { OLD }));
        let rpc = "10.0.0.4:3901".parse().unwrap();
        let mut facts = Facts {
            now: at(world.now),
            pair: pair(),
            request: world.asked.then_some(&request),
            // V5 on what stands: the old ID is the current one.
            allowed: if world.pin || world.status { Err("V5".to_owned()) } else { Ok(()) },
            free: Ok(()),
            garage: &view,
            factor: 3,
            process: if world.up[NEW] { Ok(NewProcess { id: id(NEW), rpc }) } else { Err("down".to_owned()) },
            pod_uid: Some("pod".to_owned()),
            used_by: None,
            rpc_tag: None,
            pools_managed: true,
            introduce_at: None,
            pins: Ok(Pins {
                node: [named(world.node); 2],
                pin: named(world.pin),
                status: named(world.status),
                move_node: write("node"),
                move_pin: write("pin"),
                move_status: write("status"),
            }),
            dry_run: None,
        };
        let mut decided = step(&facts, world.stored.0.as_ref());
        if !decided.checks.is_empty() {
            assert!(decided.actions.is_empty(), "nothing is done before it was asked about");
            facts.dry_run = Some(Ok(()));
            decided = step(&facts, world.stored.0.as_ref());
        }
        let act = |action: &Do| match action {
            Do::UpdateLayout { base, changes: wanted, staged, .. } => {
                assert_eq!((wanted, staged), (&changes(), &changes()));
                Act::Update { base: base.0 }
            }
            Do::ApplyLayout { version, staged, .. } => {
                assert_eq!(staged, &changes());
                Act::Apply { version: version.0 }
            }
            Do::SkipDeadNodes { version, .. } => Act::Skip { version: version.0 },
            Do::Patch { target, dry_run: false, .. } => match target.name.as_str() {
                "node" => Act::MoveNode,
                "pin" => Act::MovePin,
                _ => Act::MoveStatus,
            },
            other => panic!("{other:?}"),
        };
        (Stored(decided.service), decided.actions.iter().map(act).collect())
    }

    fn reads(&self, world: &mut World) {
        let (mut next, mut acts) = Self::decide(world);
        let others = world.up[A] && world.up[B];
        if acts.iter().any(|act| matches!(act, Act::Skip { .. })) && !(others && world.up[NEW]) {
            world.break_it(SKIP);
        }
        match (self.bug, world.phase()) {
            (Bug::SkipsBlindly, Some(Phase::Settling)) if acts.is_empty() && world.acked.is_some() => {
                world.broken = world.broken.or((!others || !world.up[NEW]).then_some(SKIP));
                acts.push(Act::Skip { version: world.version });
            }
            (Bug::AppliesAgain, Some(Phase::Applying)) if acts.is_empty() => {
                acts.push(Act::Apply { version: world.version + 1 });
            }
            (Bug::DoesNotSettle, Some(Phase::Settling)) => {
                if let Some(service) = &mut next.0 {
                    service.phase = Phase::RepairingPins;
                }
            }
            _ => {}
        }
        if !acts.is_empty() || next != world.stored {
            world.pass = Some(Pass::Decided { next, acts });
        }
    }

    /// What Garage and Kubernetes make of it; whether it was executed.
    fn execute(&self, world: &mut World, act: Act) -> bool {
        match act {
            Act::Update { base } => {
                let layout = world.layout();
                let own = changes();
                let foreign = layout.staged.iter().any(|have| !own.iter().any(|own| same_change(own, have)));
                if base != world.version || foreign {
                    return false;
                }
                world.ours = true;
            }
            Act::Apply { version } => {
                let layout = world.layout();
                if self.bug == Bug::AppliesAgain
                    && version == world.version + 1
                    && !layout.roles.contains_key(&id(OLD))
                {
                    world.applied += 1;
                    world.version += 1;
                    return true;
                }
                if version != world.version + 1 {
                    return version == world.version && roles_hold(&layout, &changes());
                }
                if !is_exactly_staged(&layout, &changes()) {
                    return false;
                }
                world.applied += 1;
                world.apply();
                if self.bug == Bug::TwoVersions {
                    world.roles[OLD] = true;
                }
            }
            Act::Skip { version } => {
                if version != world.version {
                    return false;
                }
                let up = world.up;
                for (x, acked) in world.acked.iter_mut().flatten().enumerate() {
                    *acked |= !up[x];
                }
            }
            Act::MoveNode | Act::MovePin | Act::MoveStatus => {
                let before = match act {
                    Act::MoveNode => true,
                    Act::MovePin => world.node,
                    _ => world.pin,
                };
                if !before || world.acked.is_some() || !world.roles[NEW] {
                    world.break_it(ORDER);
                }
                match act {
                    Act::MoveNode => world.node = true,
                    Act::MovePin => world.pin = true,
                    _ => world.status = true,
                }
            }
        }
        true
    }

    fn settles(&self, world: &World) -> bool {
        let mut world = world.clone();
        (world.asked, world.pass, world.foreign) = (true, None, false);
        for x in [A, B, NEW] {
            world.up[x] = true;
        }
        for _ in 0..12 {
            for action in [Action::LateApplies, Action::Acks(A), Action::Acks(B), Action::Acks(NEW)] {
                world = self.next_state(&world, action).unwrap_or(world);
            }
            for action in [Action::Reads, Action::Writes, Action::Acts, Action::Acts] {
                world = self.next_state(&world, action).unwrap_or(world);
            }
            let pins = world.node && world.pin && world.status;
            if world.phase() == Some(Phase::Completed) && world.pass.is_none() {
                return pins && world.acked.is_none() && world.roles == [true, true, false, true];
            }
            world.now += 2;
        }
        false
    }
}

impl Model for Refill {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            now: 0,
            asked: true,
            version: 7,
            roles: [true, true, true, false],
            ours: false,
            foreign: false,
            up: [true, true, false, true],
            acked: None,
            node: false,
            pin: false,
            status: false,
            stored: Stored(None),
            pass: None,
            late: None,
            applied: 0,
            faults: self.bounds.faults,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        use Action::*;
        actions.extend([Tick, Reads, Writes, Acts, LateApplies, Reverts, AsksAgain]);
        actions.extend([A, B, NEW].map(Acks));
        actions.extend([A, B, NEW].map(Up));
        if world.faults > 0 {
            actions.extend([WriteFailsBefore, WriteFailsAfter, DiesBefore, DiesAfter, ActsLater]);
            actions.extend([B, NEW].map(Down));
            actions.extend([Stages, AppliesByHand, TakesBack]);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::Tick => {
                if world.pass.is_some() {
                    return None;
                }
                world.now += 1;
            }
            Action::Reads => {
                if world.pass.is_some() {
                    return None;
                }
                self.reads(&mut world);
            }
            Action::Writes | Action::WriteFailsBefore | Action::WriteFailsAfter => {
                let Some(Pass::Decided { next, acts }) = world.pass.take() else { return None };
                if action != Action::WriteFailsBefore {
                    world.stored = next;
                }
                world.pass = (action == Action::Writes && !acts.is_empty()).then_some(Pass::Acting(acts));
                world.faults -= u8::from(action != Action::Writes);
            }
            Action::Acts | Action::DiesBefore | Action::DiesAfter | Action::ActsLater => {
                let Some(Pass::Acting(mut acts)) = world.pass.take() else { return None };
                let act = acts.remove(0);
                let mut goes_on = false;
                match (action, act) {
                    (Action::DiesBefore, _) => {}
                    (Action::ActsLater, Act::Apply { version }) => world.late = Some(version),
                    (Action::ActsLater, _) => return None,
                    _ => goes_on = self.execute(&mut world, act) && action == Action::Acts,
                }
                world.faults -= u8::from(action != Action::Acts);
                world.pass = (goes_on && !acts.is_empty()).then_some(Pass::Acting(acts));
            }
            Action::LateApplies => {
                let version = world.late.take()?;
                self.execute(&mut world, Act::Apply { version });
            }
            Action::Acks(x) => {
                let up = world.up[x];
                let acked = world.acked.as_mut()?;
                if !up || std::mem::replace(&mut acked[x], true) {
                    return None;
                }
            }
            Action::Down(x) if world.up[x] => {
                world.faults -= 1;
                world.up[x] = false;
            }
            Action::Up(x) if !world.up[x] => world.up[x] = true,
            Action::Stages if !world.foreign => {
                world.faults -= 1;
                world.foreign = true;
            }
            Action::Reverts if world.foreign => (world.ours, world.foreign) = (false, false),
            // A version of another hand, with all that is staged; without ours it settles at once.
            Action::AppliesByHand if (world.foreign || world.ours) && world.acked.is_none() => {
                world.faults -= 1;
                world.apply();
            }
            Action::TakesBack if world.asked => {
                world.faults -= 1;
                world.asked = false;
            }
            Action::AsksAgain if !world.asked => world.asked = true,
            _ => return None,
        }
        if world.acked.is_some_and(|acked| acked.iter().all(|acked| *acked)) {
            world.acked = None;
        }
        if world.roles[OLD] == world.roles[NEW] {
            world.break_it(ROLES);
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let of = |name: &'static str, condition| Property::always(name, condition);
        vec![
            of(ROLES, |_, world: &World| world.broken != Some(ROLES)),
            of(ONCE, |_, world: &World| world.applied <= 1),
            of(SKIP, |_, world: &World| world.broken != Some(SKIP)),
            of(ORDER, |_, world: &World| world.broken != Some(ORDER)),
            of("it is completed when nothing fails any more", |model: &Self, world: &World| {
                world.now < model.bounds.end || !is_sample(world) || model.settles(world)
            }),
            Property::sometimes("it is completed", |_, world: &World| {
                world.phase() == Some(Phase::Completed)
            }),
            Property::sometimes("another hand applied it", |_, world: &World| {
                world.roles[NEW] && world.applied == 0
            }),
            Property::sometimes("it waits for a node while it settles", |_, world: &World| {
                world.phase() == Some(Phase::Settling) && !world.up[B]
            }),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.now <= self.bounds.end
    }
}

#[test]
fn an_identity_is_replaced_in_one_version_and_once_whatever_fails_and_every_refill_ends() {
    check("refill", Refill { bug: Bug::None, bounds: Bounds::of(3, 2) }, 10_000);
}

#[test]
fn the_model_of_the_refill_finds_each_seeded_bug() {
    for (bug, faults, property) in [
        (Bug::TwoVersions, 0, ROLES),
        (Bug::AppliesAgain, 0, ONCE),
        (Bug::SkipsBlindly, 1, SKIP),
        (Bug::DoesNotSettle, 0, ORDER),
    ] {
        catches(&format!("{bug:?}"), Refill { bug, bounds: Bounds { end: 2, faults } }, property);
    }
}
