//! Turn-taking of the proof (`proof/turns.rs`, P6 to P12): two nodes and one reconciler. Reading, writing the status,
//! launching and recording the launch are steps of their own; each may fail before or after it took effect, a launch
//! may run later, and the process may be killed between any two. Nodes die and come back, gossip lags, people launch
//! repairs and ask for new proofs.
//!
//! The status is the product's own type, written by [`proof::step`] and [`proof::after_launch`] from what
//! [`observe`](crate::sim::observe::observe) shows of a Garage.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{Phase, Redundancy, Verification};
use stateright::{Model, Property};

use super::{Bounds, catches, check, is_sample};
use crate::act::{Action as Launch, RepairKind};
use crate::observe::GarageView;
use crate::proof::{self, LaunchOutcome, Member, PodFacts, Settings, Site, SiteRole, Timings};
use crate::sim::garage::{FIRST_REPAIR, Garage, RepairRun};
use crate::sim::observe::{ReadFault, observe};
use crate::sim::world::time;
use crate::sim::{Alive, GarageVersion};

const NODES: usize = 2;
/// The number of no proof.
const NOBODYS: u8 = 0;

const TWO: &str = "never two repairs of a proof";
const RECORDED: &str = "no launch that the status does not account for";
const OVER: &str = "no repair is launched where the pass saw one running";
const THREE: &str = "at most three scans of a node in a turn";
const TRUE: &str = "verified only when nothing of ours runs and every node is up";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A launch goes out although the status was not written.
    LaunchesUnwritten,
    /// Running block repairs are not looked at.
    IgnoresRunningRepairs,
    /// A launch without a worker is taken for lost at once.
    GivesUpLaunchesAtOnce,
    /// Launches are not counted.
    DoesNotCount,
    /// The next turn begins when its launch was accepted.
    DoesNotWaitForTheEnd,
}

/// The shortest times in the order of the real ones.
static SETTINGS: LazyLock<Settings> = LazyLock::new(|| Settings {
    timings: Timings {
        clean_gap: 1,
        pause: 1,
        retry: 2,
        silence: 3,
        lost_launch: 2,
        lost_passes: 2,
        rpc_timeout: 0,
        quiet_margin: 1,
        quiet_min: 1,
        settled_start: 0,
        ..Timings::default()
    },
});

static GARAGE: LazyLock<Garage> = LazyLock::new(|| {
    let mut garage = Garage::new(1, GarageVersion::V250, NODES, 0);
    garage.rpc_timeout = 0;
    garage
});

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Repair {
    id: u64,
    done: bool,
    /// The proof that launched it; a person's has none.
    ours: Option<u8>,
    errors: bool,
    /// A second has passed since it began: it ends in this one.
    old: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    alive: bool,
    restarts: i32,
    /// What its peer believes.
    seen: bool,
    repairs: Vec<Repair>,
    /// A tables pass runs that this proof asked for.
    syncing: Option<u8>,
    /// A second has passed since it began.
    old: bool,
    /// A blocks launch of a proof that timed out: it runs at the latest when it would count as lost.
    late: Option<(i64, u8)>,
    /// Scans of this turn.
    scans: u8,
}

/// A status with what the API server keeps of it. States are hashed far more often than statuses are written, so each
/// is hashed once.
#[derive(Clone, Debug, PartialEq)]
struct Status {
    hash: u64,
    redundancy: Option<Arc<Redundancy>>,
}

impl Status {
    fn new(redundancy: Option<Redundancy>) -> Self {
        let mut hasher = DefaultHasher::new();
        serde_json::to_string(&redundancy).unwrap().hash(&mut hasher);
        Self { hash: hasher.finish(), redundancy: redundancy.map(Arc::new) }
    }

    fn get(&self) -> Option<&Redundancy> {
        self.redundancy.as_deref()
    }

    fn verification(&self) -> Option<&Verification> {
        self.get()?.verification.as_ref()
    }
}

impl Eq for Status {}

impl Hash for Status {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// A launch that a pass decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Due {
    at: usize,
    blocks: bool,
    /// For which proof.
    token: u8,
    /// Which run of the process the pass saw.
    restarts: i32,
    /// The pass saw a block repair that runs.
    over_a_repair: bool,
}

/// A pass under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Pass {
    /// It read and decided; nothing is written.
    Decided { next: Status, launch: Option<Due> },
    /// The status is written; the launch is due.
    Written(Due),
    /// It was launched, and what became of it is to be recorded.
    Launched { launch: Due, accepted: Option<bool> },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: i64,
    nodes: [Node; NODES],
    stored: Status,
    pass: Option<Pass>,
    /// Number of the proof that is asked for.
    token: u8,
    faults: u8,
    /// Passes in this second: one at least, two at most.
    passes: u8,
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Tick,
    Reads,
    Writes,
    WriteFailsBefore,
    WriteFailsAfter,
    Launches,
    /// Certainly not executed.
    Refused,
    /// Nobody knows: not executed, executed, or to be executed later.
    LostBefore,
    LostAfter,
    Late,
    LateRuns(usize),
    Records,
    RecordFails,
    /// The process is killed; the next one begins with what is stored.
    Killed,
    SyncEnds(usize),
    RepairEnds(usize),
    RepairFails(usize),
    Dies(usize),
    Returns(usize),
    Gossip(usize),
    /// A person launches a blocks repair.
    ByHand(usize),
    /// Another proof is asked for.
    Asks,
}

struct Turns {
    bug: Bug,
    bounds: Bounds,
}

impl Turns {
    fn garage(world: &World) -> Garage {
        let mut garage = GARAGE.clone();
        garage.now += world.now;
        let now = garage.now;
        for (node, has) in garage.nodes.iter_mut().zip(&world.nodes) {
            node.alive = if has.alive { Alive::Up } else { Alive::Down };
            node.restarts = has.restarts;
            node.sync_ends = if has.syncing.is_some() { now + 1 } else { i64::MAX };
            node.next_worker = FIRST_REPAIR + has.repairs.len() as u64;
            node.repairs = has
                .repairs
                .iter()
                .map(|repair| RepairRun {
                    id: FIRST_REPAIR + repair.id,
                    ends_at: now,
                    done: repair.done,
                    errors: u64::from(repair.errors),
                    ours: repair.ours.is_some(),
                    lacked: 0,
                })
                .collect();
        }
        garage
    }

    fn view(world: &World, site: &Site) -> GarageView {
        let views = proof::needs_peer_views(site, world.stored.get());
        let mut garage = Self::garage(world);
        let mut view = observe(&mut garage, views, ReadFault::None);
        let ids: Vec<NodeId> = garage.nodes.iter().map(|node| node.id).collect();
        let hidden: Vec<NodeId> = (0..NODES).filter(|x| !world.nodes[*x].seen).map(|x| ids[x]).collect();
        let (Ok(core), false) = (&mut view.core, hidden.is_empty()) else { return view };
        let answering = core.answering;
        let mut unseen = 0;
        for id in hidden.iter().filter(|id| Some(**id) != answering) {
            core.nodes.get_mut(id).unwrap().is_up = false;
            unseen += 1;
        }
        let short = |health: &mut crate::observe::Health, by: u32| {
            if by > 0 {
                health.storage_nodes_up -= by;
                health.connected_nodes -= by;
                health.partitions_all_ok = 0;
            }
        };
        short(&mut core.health, unseen);
        for (viewer, peer) in view.peer_views.iter_mut().flatten() {
            let Ok(peer) = peer else { continue };
            let before = peer.up.len();
            peer.up.retain(|id| id == viewer || !hidden.contains(id));
            short(&mut peer.health, u32::try_from(before - peer.up.len()).unwrap());
        }
        view
    }

    fn site(world: &World) -> Site {
        let garage = &*GARAGE;
        let member = |id| Member { id: Some(id), external: false, gateway: false };
        let pod = |node: &Node| PodFacts {
            uid: "pod".to_owned(),
            restarts: node.restarts,
            started_at: Some(time(garage.now - 100)),
        };
        let running = garage.nodes.iter().zip(&world.nodes).filter(|(_, node)| node.alive);
        Site {
            namespace: "objects".to_owned(),
            name: "site-a".to_owned(),
            uid: "uid-here".to_owned(),
            storage_tier: true,
            site_role: SiteRole::Unset,
            token: Some(format!("t{}", world.token)),
            members: Some(garage.nodes.iter().map(|node| member(node.id)).collect()),
            pods: running.map(|(node, has)| (node.id, pod(has))).collect(),
            ..Site::default()
        }
    }

    fn reads(&self, world: &mut World) {
        let site = Self::site(world);
        let mut view = Self::view(world, &site);
        let shown = world.nodes.iter().any(|node| node.alive && node.repairs.iter().any(|r| !r.done));
        if self.bug == Bug::IgnoresRunningRepairs {
            for worker in view.workers.values_mut().flatten().flatten() {
                if worker.name == "Block repair worker" {
                    worker.state = crate::observe::WorkerState::Done;
                }
            }
        }
        let mut settings = SETTINGS.clone();
        if self.bug == Bug::GivesUpLaunchesAtOnce {
            (settings.timings.lost_launch, settings.timings.lost_passes) = (0, 1);
        }
        let now = time(GARAGE.now + world.now);
        let mut step = proof::step(&site, &view, world.stored.get(), now, &settings);
        let evidence = step
            .redundancy
            .as_mut()
            .and_then(|redundancy| redundancy.verification.as_mut()?.evidence.as_mut());
        if let (Bug::DoesNotCount, Some(evidence)) = (self.bug, evidence) {
            evidence.launches = evidence.launches.map(|_| 0);
            evidence.blocks_launches.clear();
        }
        let launch = step.actions.iter().find_map(|action| match action {
            Launch::LaunchRepair { node, kind } => {
                let at = GARAGE.nodes.iter().position(|known| known.id == *node).unwrap();
                Some(Due {
                    at,
                    blocks: *kind == RepairKind::Blocks,
                    token: world.token,
                    restarts: world.nodes[at].restarts,
                    over_a_repair: shown,
                })
            }
            _ => None,
        });
        assert!(step.actions.len() < 2, "at most one launch a pass");
        let next = Status::new(step.redundancy);
        if launch.is_some() || next != world.stored {
            world.pass = Some(Pass::Decided { next, launch });
        }
    }

    /// A launch goes out.
    fn launches(&self, world: &mut World, due: Due) {
        if due.over_a_repair {
            world.broken.get_or_insert(OVER);
        }
        let written = world.stored.verification();
        let counted = written.is_some_and(|v| {
            let used = v.evidence.as_ref().and_then(|evidence| evidence.launches);
            v.current_node_id == Some(GARAGE.nodes[due.at].id) && used.is_some_and(|n| n > 0)
        });
        if !counted {
            world.broken.get_or_insert(RECORDED);
        }
        self.executes(world, due);
    }

    fn executes(&self, world: &mut World, Due { at, blocks, token, restarts, .. }: Due) {
        let node = &mut world.nodes[at];
        if !node.alive {
            return;
        }
        if blocks {
            let id = node.repairs.len() as u64;
            node.repairs.push(Repair { id, done: false, ours: Some(token), errors: false, old: false });
            node.scans += 1;
        } else {
            // A process that was restarted since the pass saw it: its turn is put off, and this pass is no turn of ours
            // any more, as one that comes late.
            node.syncing = Some(if node.restarts == restarts { token } else { NOBODYS });
            node.old = false;
        }
        if self.bug == Bug::DoesNotWaitForTheEnd {
            // As the product would, if the end of a turn were its launch.
            let mut stored = world.stored.get().cloned();
            if let Some(verification) = stored.as_mut().and_then(|r| r.verification.as_mut()) {
                verification.current_node_id = None;
                if let Some(evidence) = &mut verification.evidence {
                    evidence.node_stage = None;
                    evidence.tables_done_node_ids.insert(GARAGE.nodes[at].id);
                }
            }
            world.stored = Status::new(stored);
        }
    }

    fn record(world: &mut World, launch: Due, outcome: LaunchOutcome) {
        let Some(written) = world.stored.get() else { return };
        let kind = if launch.blocks { RepairKind::Blocks } else { RepairKind::Tables };
        let action = Launch::LaunchRepair { node: GARAGE.nodes[launch.at].id, kind };
        let now = time(GARAGE.now + world.now);
        world.stored = Status::new(Some(proof::after_launch(written, &action, outcome, now)));
    }

    fn phase(world: &World) -> Phase {
        let verification = world.stored.verification();
        verification.map(|v| v.phase).unwrap_or_default()
    }

    /// Repairs that run for the proof that is asked for. Those of one before may end beside its first: a tables pass
    /// cannot be told from Garage's own, and a scan is waited for as far as it is seen.
    fn running(world: &World) -> usize {
        let of_it = |repair: &&Repair| repair.ours == Some(world.token) && !repair.done;
        let scans = |node: &Node| node.repairs.iter().filter(of_it).count();
        world
            .nodes
            .iter()
            .filter(|node| node.alive)
            .map(|node| scans(node) + usize::from(node.syncing == Some(world.token)))
            .sum()
    }

    /// Nothing fails any more, and a proof is asked for: it is verified.
    fn settles(&self, world: &World) -> bool {
        let mut world = world.clone();
        world.token += 1;
        (world.pass, world.passes) = (None, 0);
        for at in 0..NODES {
            world.nodes[at].alive = true;
            world.nodes[at].seen = true;
        }
        for _ in 0..40 {
            for action in [Action::Reads, Action::Writes, Action::Launches, Action::Records] {
                world = self.next_state(&world, action).unwrap_or(world);
            }
            if Self::phase(&world) == Phase::Verified && world.pass.is_none() {
                return true;
            }
            for at in 0..NODES {
                for action in [Action::LateRuns(at), Action::SyncEnds(at), Action::RepairEnds(at)] {
                    world = self.next_state(&world, action).unwrap_or(world);
                }
            }
            (world.now, world.passes) = (world.now + 1, 0);
        }
        false
    }
}

impl Model for Turns {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let node = Node {
            alive: true,
            restarts: 0,
            seen: true,
            repairs: Vec::new(),
            syncing: None,
            old: false,
            late: None,
            scans: 0,
        };
        vec![World {
            now: 0,
            nodes: [node.clone(), node],
            stored: Status::new(None),
            pass: None,
            token: 1,
            faults: self.bounds.faults,
            passes: 0,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let may_fail = world.faults > 0;
        match &world.pass {
            None => actions.extend([Action::Tick, Action::Reads]),
            Some(pass) => {
                let faults: &[Action] = match pass {
                    Pass::Decided { .. } => {
                        actions.push(Action::Writes);
                        &[Action::WriteFailsBefore, Action::WriteFailsAfter]
                    }
                    Pass::Written { .. } => {
                        actions.push(Action::Launches);
                        &[
                            Action::Refused,
                            Action::LostBefore,
                            Action::LostAfter,
                            Action::Late,
                            Action::Killed,
                        ]
                    }
                    Pass::Launched { .. } => {
                        actions.push(Action::Records);
                        &[Action::RecordFails]
                    }
                };
                if may_fail {
                    actions.extend(faults);
                }
            }
        }
        for (at, node) in world.nodes.iter().enumerate() {
            if node.late.is_some() {
                actions.push(Action::LateRuns(at));
            }
            if node.syncing.is_some() {
                actions.push(Action::SyncEnds(at));
            }
            if node.repairs.iter().any(|repair| !repair.done) {
                actions.push(Action::RepairEnds(at));
                if may_fail {
                    actions.push(Action::RepairFails(at));
                }
            }
            if node.seen != node.alive {
                actions.push(Action::Gossip(at));
            }
            if !node.alive {
                actions.push(Action::Returns(at));
            } else if may_fail {
                actions.extend([Action::Dies(at), Action::ByHand(at)]);
            }
        }
        if may_fail {
            actions.push(Action::Asks);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        let now = world.now;
        match action {
            Action::Tick => {
                let ends = |node: &Node| {
                    let scan = node.repairs.iter().any(|repair| repair.old && !repair.done);
                    scan || (node.syncing.is_some() && node.old)
                };
                let late = |node: &Node| node.late.is_some_and(|(until, _)| now >= until);
                if world.passes == 0 || world.nodes.iter().any(|node| late(node) || ends(node)) {
                    return None;
                }
                for node in &mut world.nodes {
                    node.old = node.syncing.is_some();
                    node.repairs.iter_mut().for_each(|repair| repair.old = !repair.done);
                }
                (world.now, world.passes) = (now + 1, 0);
            }
            Action::Reads => {
                if world.pass.is_some() || world.passes == 2 {
                    return None;
                }
                world.passes += 1;
                self.reads(&mut world);
            }
            Action::Writes | Action::WriteFailsBefore | Action::WriteFailsAfter => {
                let Some(Pass::Decided { next, launch }) = world.pass.take() else { return None };
                if action != Action::WriteFailsBefore {
                    let asked = |status: &Status| status.verification().and_then(|v| v.request_token.clone());
                    if asked(&next) != asked(&world.stored) {
                        // A new proof: what is left of the last one is counted no longer.
                        world.nodes.iter_mut().for_each(|node| node.scans = 0);
                    }
                    world.stored = next;
                }
                if action == Action::Writes || self.bug == Bug::LaunchesUnwritten {
                    world.pass = launch.map(Pass::Written);
                }
                world.faults -= u8::from(action != Action::Writes);
            }
            Action::Launches
            | Action::Refused
            | Action::LostBefore
            | Action::LostAfter
            | Action::Late
            | Action::Killed => {
                let Some(Pass::Written(launch)) = world.pass.take() else { return None };
                world.faults -= u8::from(action != Action::Launches);
                let alive = world.nodes[launch.at].alive;
                match action {
                    Action::Launches | Action::LostAfter => self.launches(&mut world, launch),
                    // A tables launch that comes late is no turn of ours any more; a scan is.
                    Action::Late if alive && launch.blocks => {
                        let until = now + SETTINGS.timings.lost_launch - 1;
                        world.nodes[launch.at].late = Some((until, launch.token));
                    }
                    _ => {}
                }
                let accepted = match action {
                    Action::Killed => return Some(world),
                    Action::Launches if alive => Some(true),
                    Action::Launches | Action::Refused => Some(false),
                    _ => None,
                };
                world.pass = Some(Pass::Launched { launch, accepted });
            }
            Action::Records | Action::RecordFails => {
                let Some(Pass::Launched { launch, accepted }) = world.pass.take() else { return None };
                if action == Action::Records {
                    let outcome = match accepted {
                        Some(true) => LaunchOutcome::Accepted,
                        Some(false) => LaunchOutcome::NotExecuted,
                        None => LaunchOutcome::Unknown,
                    };
                    Self::record(&mut world, launch, outcome);
                } else {
                    world.faults -= 1;
                }
            }
            Action::LateRuns(at) => {
                let (_, token) = world.nodes[at].late.take()?;
                let restarts = world.nodes[at].restarts;
                self.executes(&mut world, Due { at, blocks: true, token, restarts, over_a_repair: false });
            }
            Action::SyncEnds(at) => {
                world.nodes[at].syncing.take()?;
                world.nodes[at].old = false;
            }
            Action::RepairEnds(at) | Action::RepairFails(at) => {
                let repair = world.nodes[at].repairs.iter_mut().find(|repair| !repair.done)?;
                (repair.done, repair.old) = (true, false);
                if matches!(action, Action::RepairFails(_)) {
                    repair.errors = true;
                    world.faults -= 1;
                }
            }
            Action::Dies(at) => {
                world.faults -= 1;
                let node = &mut world.nodes[at];
                (node.alive, node.syncing, node.old, node.late) = (false, None, false, None);
                node.repairs.clear();
                // Its turn is put off, and a new one counts from the start (P11).
                node.scans = 0;
            }
            Action::Returns(at) => {
                let node = &mut world.nodes[at];
                node.alive = true;
                node.restarts += 1;
            }
            Action::Gossip(at) => {
                let node = &mut world.nodes[at];
                if node.seen == node.alive {
                    return None;
                }
                node.seen = node.alive;
            }
            Action::ByHand(at) => {
                world.faults -= 1;
                let node = &mut world.nodes[at];
                let id = node.repairs.len() as u64;
                node.repairs.push(Repair { id, done: false, ours: None, errors: false, old: false });
            }
            Action::Asks => {
                world.faults -= 1;
                world.token += 1;
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(TWO, |_, world: &World| Self::running(world) < 2),
            Property::always(OVER, |_, world: &World| world.broken != Some(OVER)),
            Property::always(RECORDED, |_, world: &World| world.broken != Some(RECORDED)),
            Property::always(THREE, |_, world: &World| world.nodes.iter().all(|node| node.scans <= 3)),
            Property::always(TRUE, |_, world: &World| match &world.pass {
                Some(Pass::Decided { next, .. }) => {
                    let phase = next.verification().map(|v| v.phase);
                    let becomes = phase == Some(Phase::Verified) && Self::phase(world) != Phase::Verified;
                    !becomes || Self::running(world) == 0
                }
                _ => true,
            }),
            Property::always("a proof ends when nothing fails any more", |model: &Self, world: &World| {
                world.now < model.bounds.end || !is_sample(world) || model.settles(world)
            }),
            Property::sometimes("a proof is verified", |_, world: &World| {
                Self::phase(world) == Phase::Verified
            }),
            Property::sometimes("a node is scanned twice", |_, world: &World| world.nodes[0].scans == 2),
            Property::sometimes("a proof is partial", |_, world: &World| {
                Self::phase(world) == Phase::Partial
            }),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.now <= self.bounds.end
    }
}

#[test]
#[ignore = "a minute of processor time when it is optimized; tests/simulation.sh runs it"]
fn one_repair_of_ours_runs_at_a_time_whatever_fails_and_every_proof_ends() {
    // Long enough for a proof to be verified, for a scan that is launched again, and for a partial proof.
    check("turns", Turns { bug: Bug::None, bounds: Bounds::of(9, 1) }, 500_000);
}

#[test]
fn the_model_of_the_turns_finds_each_seeded_bug() {
    for (bug, faults, property) in [
        (Bug::LaunchesUnwritten, 1, RECORDED),
        (Bug::IgnoresRunningRepairs, 1, OVER),
        (Bug::GivesUpLaunchesAtOnce, 1, TWO),
        (Bug::DoesNotCount, 0, THREE),
        (Bug::DoesNotWaitForTheEnd, 0, TWO),
    ] {
        catches(&format!("{bug:?}"), Turns { bug, bounds: Bounds { end: 15, faults } }, property);
    }
}
