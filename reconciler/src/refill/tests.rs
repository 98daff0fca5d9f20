#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::ids::LayoutVersion;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::act::{Kind, PatchBuilder, Target, is_exactly_staged, roles_hold, same_change};
use crate::observe::{
    Core, Health, History, HistoryStatus, HistoryVersion, Layout, LayoutParameters, NodeState, NotObserved,
    Partition, PeerView, Role, Silence, StagedChange, Tracker, ZoneRedundancy,
};
use crate::sim::rng::Rng;

fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

const A: u8 = 0x11;
const B: u8 = 0x22;
const OLD: u8 = 0x0f;
const NEW: u8 = 0xc3;

fn at(second: i64) -> Time {
    Time::new(jiff::Timestamp::from_second(1_800_000_000 + second).unwrap())
}

fn pair() -> Pair {
    Pair { pool: "fast".parse().unwrap(), node: "kn-1".parse().unwrap() }
}

fn request() -> ReplaceRequest {
    format!("fast/kn-1/{}", id(OLD)).parse().unwrap()
}

fn role(node: &str) -> Role {
    let tags = ["cluster:a/b", "node-local-pool:fast"].map(str::to_owned).into_iter();
    Role {
        zone: "z".to_owned(),
        capacity: Some(1 << 30),
        tags: tags
            .chain([format!("kubernetes-node:{node}"), "rpc-address:10.0.0.9:3901".to_owned()])
            .collect(),
    }
}

/// What is so in Garage and in Kubernetes.
#[derive(Debug, Clone)]
struct World {
    now: i64,
    version: u64,
    roles: BTreeMap<NodeId, Role>,
    staged: Vec<StagedChange>,
    /// Nodes that live.
    up: BTreeSet<NodeId>,
    /// While an older version is live: who has acknowledged and synced the current one.
    trackers: Option<BTreeMap<NodeId, Tracker>>,
    node: [NodeId; 2],
    pin: NodeId,
    status: NodeId,
    asked: bool,
    stored: Option<NodeLocalService>,
    applied: BTreeMap<u64, u32>,
    /// A link that is cut, both ways.
    cut: Option<(NodeId, NodeId)>,
    refused: bool,
}

impl World {
    fn new() -> Self {
        let roles = [(A, "kn-2"), (B, "kn-3"), (OLD, "kn-1")];
        Self {
            now: 0,
            version: 7,
            roles: roles.into_iter().map(|(byte, node)| (id(byte), role(node))).collect(),
            staged: Vec::new(),
            up: [A, B, NEW].map(id).into(),
            trackers: None,
            node: [id(OLD); 2],
            pin: id(OLD),
            status: id(OLD),
            asked: true,
            stored: None,
            applied: BTreeMap::new(),
            cut: None,
            refused: false,
        }
    }

    fn sees(&self, viewer: NodeId) -> BTreeSet<NodeId> {
        let linked = |other: &NodeId| {
            self.cut.is_none_or(|(x, y)| (viewer, *other) != (x, y) && (viewer, *other) != (y, x))
        };
        self.up.iter().copied().filter(linked).collect()
    }

    fn health(&self, viewer: NodeId) -> Health {
        let nodes: BTreeSet<NodeId> =
            self.roles.keys().chain(self.trackers.iter().flat_map(BTreeMap::keys)).copied().collect();
        let seen = self.sees(viewer);
        let count = |n: usize| u32::try_from(n).unwrap();
        let storage_up = nodes.intersection(&seen).count();
        let quorum = self.roles.keys().filter(|id| seen.contains(id)).count() >= 2;
        Health {
            status: if storage_up == nodes.len() { "healthy" } else { "degraded" }.to_owned(),
            known_nodes: count(self.up.len()),
            connected_nodes: count(seen.len()),
            storage_nodes: count(nodes.len()),
            storage_nodes_up: count(storage_up),
            partitions: 256,
            partitions_quorum: if quorum { 256 } else { 0 },
            partitions_all_ok: if storage_up == nodes.len() { 256 } else { 0 },
        }
    }

    fn view(&self) -> GarageView {
        let answering = [A, B].map(id).into_iter().find(|node| self.up.contains(node));
        let mut view = GarageView::not_observed(NotObserved { what: "nobody".to_owned() });
        let Some(answering) = answering else { return view };
        let seen = self.sees(answering);
        let disk = Partition { available: 1 << 31, total: 1 << 31 };
        let node = |node: NodeId| NodeState {
            is_up: seen.contains(&node),
            draining: false,
            addr: None,
            hostname: None,
            version: Some("cargo:2.5.0".to_owned()),
            last_seen_secs_ago: None,
            data_partition: Some(disk),
            metadata_partition: Some(disk),
        };
        let version = LayoutVersion(self.version);
        let mut versions = vec![HistoryVersion { version, status: HistoryStatus::Current }];
        if self.trackers.is_some() {
            let version = LayoutVersion(self.version - 1);
            versions.push(HistoryVersion { version, status: HistoryStatus::Draining });
        }
        view.core = Ok(Core {
            answering: Some(answering),
            health: self.health(answering),
            status_layout_version: version,
            nodes: [A, B, OLD, NEW].map(id).into_iter().map(|one| (one, node(one))).collect(),
            layout: Layout {
                version,
                roles: self.roles.clone(),
                parameters: LayoutParameters { zone_redundancy: ZoneRedundancy::Maximum },
                staged: self.staged.clone(),
                staged_parameters: None,
            },
            history: History {
                current: version,
                min_ack: version,
                versions,
                trackers: self.trackers.clone(),
            },
        });
        let asked = self.roles.keys().copied();
        view.peer_views = Some(
            asked
                .map(|node| {
                    let up = self.up.contains(&node);
                    let view = PeerView { health: self.health(node), up: self.sees(node) };
                    (node, if up { Ok(view) } else { Err(Silence::TimedOut) })
                })
                .collect(),
        );
        view
    }

    fn facts<'a>(&self, view: &'a GarageView, request: &'a ReplaceRequest) -> Facts<'a> {
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
            process: if self.up.contains(&id(NEW)) {
                Ok(NewProcess { id: id(NEW), rpc: "10.0.0.4:3901".parse().unwrap() })
            } else {
                Err("it does not run".to_owned())
            },
            pod_uid: Some("pod".to_owned()),
            used_by: None,
            rpc_tag: None,
            pools_managed: true,
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

    fn decide(&self, view: &GarageView, request: &ReplaceRequest) -> RefillStep {
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

    /// What Garage and Kubernetes make of an action. Answers whether it was executed.
    fn perform(&mut self, action: &Action) -> bool {
        match action {
            Action::UpdateLayout { base, changes, staged, .. } => {
                let foreign = self.staged.iter().any(|have| !staged.iter().any(|own| same_change(own, have)));
                if base.0 != self.version || foreign {
                    return false;
                }
                self.staged.clone_from(changes);
                true
            }
            Action::ApplyLayout { version, staged, .. } => {
                let view = self.view();
                let layout = view.core.unwrap().layout;
                if version.0 != self.version + 1 {
                    return version.0 == self.version && roles_hold(&layout, staged);
                }
                if !is_exactly_staged(&layout, staged) {
                    return false;
                }
                *self.applied.entry(version.0).or_default() += 1;
                self.apply();
                true
            }
            Action::SkipDeadNodes { version, .. } => {
                assert_eq!(version.0, self.version);
                let current = LayoutVersion(self.version);
                for (node, tracker) in self.trackers.iter_mut().flatten() {
                    if !self.up.contains(node) {
                        assert_eq!(*node, id(OLD), "only the removed identity is skipped");
                        tracker.ack = current;
                        tracker.sync = current;
                    }
                }
                true
            }
            Action::Patch { target, dry_run: false, .. } => {
                match target.name.as_str() {
                    "node" => self.node = [id(NEW); 2],
                    "pin" => {
                        assert_eq!(self.node, [id(NEW); 2], "the Node comes first");
                        self.pin = id(NEW);
                    }
                    _ => {
                        assert_eq!(self.pin, id(NEW), "the pin comes before the status");
                        self.status = id(NEW);
                    }
                }
                true
            }
            other => panic!("{other:?}"),
        }
    }

    fn apply(&mut self) {
        let before = LayoutVersion(self.version);
        let tracker = Tracker { ack: before, sync: before, sync_ack: before };
        let mut trackers: BTreeMap<NodeId, Tracker> = self.roles.keys().map(|id| (*id, tracker)).collect();
        for change in std::mem::take(&mut self.staged) {
            match change.role {
                Some(role) => self.roles.insert(change.id, role),
                None => self.roles.remove(&change.id),
            };
        }
        trackers.extend(self.roles.keys().map(|id| (*id, tracker)));
        self.trackers = Some(trackers);
        self.version += 1;
    }

    /// Living nodes acknowledge and sync; when all have, the old version retires.
    fn advance(&mut self, seconds: i64, rng: &mut Rng) {
        self.now += seconds;
        let current = LayoutVersion(self.version);
        let Some(trackers) = &mut self.trackers else { return };
        for (node, tracker) in trackers.iter_mut() {
            if self.up.contains(node) && rng.one_in(2) {
                tracker.ack = current;
                tracker.sync = current;
            }
        }
        if trackers.values().all(|tracker| tracker.ack >= current && tracker.sync >= current) {
            self.trackers = None;
        }
    }

    fn check(&self) {
        let (old, new) = (self.roles.contains_key(&id(OLD)), self.roles.contains_key(&id(NEW)));
        assert!(old != new, "never both, never neither");
        assert!(self.applied.values().all(|n| *n == 1), "one Apply per version: {:?}", self.applied);
        assert_eq!(self.node[0], self.node[1], "claim and identity annotation are never seen to differ");
    }

    fn phase(&self) -> Option<Phase> {
        self.stored.as_ref().map(|service| service.phase)
    }
}

fn reason(step: &RefillStep) -> Reason {
    step.condition.as_ref().expect("a condition").1
}

type Break = fn(&mut World);
type BreakFacts = fn(&mut Facts<'_>);

#[rstest]
#[case::too_many_roles(|w: &mut World| { w.roles.insert(id(0x33), role("kn-9")); w.up.insert(id(0x33)); }, Reason::WaitingForLayoutRoles)]
#[case::another_node_is_down(|w: &mut World| { w.up.remove(&id(B)); }, Reason::WaitingForQuorum)]
#[case::a_link_is_broken(|w: &mut World| w.cut = Some((id(A), id(B))), Reason::WaitingForQuorum)]
#[case::the_old_one_is_up(|w: &mut World| { w.up.insert(id(OLD)); }, Reason::WaitingForOldIdentity)]
#[case::no_role(|w: &mut World| { w.roles.remove(&id(OLD)); }, Reason::WaitingForOldIdentity)]
#[case::the_role_of_another_member(|w: &mut World| { w.roles.insert(id(OLD), role("kn-8")); }, Reason::WaitingForOldIdentity)]
#[case::both_roles(|w: &mut World| { w.roles.insert(id(NEW), role("kn-1")); }, Reason::BothIdentitiesInLayout)]
#[case::foreign_staging(
    |w: &mut World| w.staged = vec![StagedChange { id: id(A), role: None }],
    Reason::ForeignStagedChanges
)]
#[case::half_of_ours(
    |w: &mut World| w.staged = vec![StagedChange { id: id(OLD), role: None }],
    Reason::ForeignStagedChanges
)]
#[case::unsettled(|w: &mut World| w.trackers = Some(BTreeMap::new()), Reason::WaitingForLayout)]
#[case::no_process(|w: &mut World| { w.up.remove(&id(NEW)); }, Reason::WaitingForNewProcess)]
#[case::a_peer_does_not_see_it(|w: &mut World| w.cut = Some((id(B), id(NEW))), Reason::WaitingForPeers)]
#[case::a_pin_write_is_refused(|w: &mut World| w.refused = true, Reason::PinWriteRefused)]
#[case::stale(|w: &mut World| { w.pin = id(0x77); w.status = id(0x77); }, Reason::Refused)]
fn each_precondition_broken_alone_waits_with_its_own_reason_and_changes_nothing(
    #[case] broken: Break,
    #[case] expected: Reason,
) {
    let mut world = World::new();
    broken(&mut world);
    let (view, request) = (world.view(), request());
    let waiting = world.decide(&view, &request);
    assert_eq!(reason(&waiting), expected, "{:?}", waiting.condition);
    assert_eq!(waiting.actions, []);
    let service = waiting.service.clone().unwrap();
    assert_eq!((service.phase, service.replacement.as_ref()), (Phase::Waiting, None));
    // It goes on when it is mended.
    let mut mended = World::new();
    mended.stored = Some(service);
    let view = mended.view();
    let next = mended.decide(&view, &request);
    assert_eq!((reason(&next), next.service.unwrap().phase), (Reason::Applying, Phase::Applying));
    assert_eq!(next.actions, [], "the intent is written first (R2)");
}

#[rstest]
#[case::another_hand(|f: &mut Facts<'_>| f.free = Err("a drain".into()), Reason::WaitingForOtherOperation)]
#[case::used_elsewhere(|f: &mut Facts<'_>| f.used_by = Some("other".into()), Reason::IdentityInUse)]
#[case::a_rule(|f: &mut Facts<'_>| f.allowed = Err("V8".into()), Reason::Refused)]
#[case::pins_unread(|f: &mut Facts<'_>| f.pins = Err("unread".into()), Reason::WaitingForNewProcess)]
#[case::the_old_disk_is_still_there(
    |f: &mut Facts<'_>| f.process = Ok(NewProcess { id: id(OLD), ..*f.process.as_ref().unwrap() }),
    Reason::WaitingForNewProcess
)]
fn what_kubernetes_shows_is_asked_for_too(#[case] broken: BreakFacts, #[case] expected: Reason) {
    let world = World::new();
    let (view, request) = (world.view(), request());
    let mut facts = world.facts(&view, &request);
    broken(&mut facts);
    let waiting = step(&facts, None);
    assert_eq!((reason(&waiting), waiting.actions.len()), (expected, 0));
}

#[test]
fn a_disk_that_is_smaller_than_the_role_or_full_or_unknown_is_not_taken() {
    let world = World::new();
    let request = request();
    for (partition, word) in [
        (Some(Partition { available: 1 << 29, total: 1 << 29 }), "right disk"),
        (Some(Partition { available: 0, total: 1 << 31 }), "no room"),
        (None, "does not show"),
    ] {
        let mut view = world.view();
        view.core.as_mut().unwrap().nodes.get_mut(&id(NEW)).unwrap().data_partition = partition;
        let waiting = step(&world.facts(&view, &request), None);
        assert_eq!(reason(&waiting), Reason::WaitingForRoom);
        assert!(waiting.condition.unwrap().2.contains(word));
    }
}

#[test]
fn one_body_takes_over_zone_capacity_and_tags_but_not_the_dead_pods_address() {
    let mut world = World::new();
    let request = request();
    world.stored = world.decide(&world.view(), &request).service;
    let step = world.decide(&world.view(), &request);
    let [Action::UpdateLayout { at, base, changes, staged }, Action::ApplyLayout { at: same, version, .. }] =
        step.actions.as_slice()
    else {
        panic!("{:?}", step.actions)
    };
    assert_eq!((at, base.0, version.0), (same, 7, 8));
    assert_eq!(changes, staged);
    let [new, old] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!((new.id, old.id, &old.role), (id(NEW), id(OLD), &None));
    let role = new.role.as_ref().unwrap();
    assert_eq!((role.zone.as_str(), role.capacity), ("z", Some(1 << 30)));
    assert!(role.tags.contains(&"kubernetes-node:kn-1".to_owned()));
    assert!(!role.tags.iter().any(|tag| tag.starts_with("rpc-address:")), "{:?}", role.tags);
}

/// Runs passes without faults until the phase is reached.
fn run_to(world: &mut World, phase: Phase) {
    let (mut rng, request) = (Rng::new(3), request());
    for _ in 0..100 {
        if world.phase() == Some(phase) {
            return;
        }
        world.advance(5, &mut rng);
        let step = world.decide(&world.view(), &request);
        world.stored = step.service;
        for action in &step.actions {
            if !world.perform(action) {
                break;
            }
        }
        world.check();
    }
    panic!("{phase:?} was not reached: {:?}", world.stored);
}

#[test]
fn an_apply_conflict_is_judged_by_the_roles_and_one_version_is_applied_once() {
    let request = request();
    // (A) ours was applied.
    let mut done = World::new();
    run_to(&mut done, Phase::Settling);
    assert_eq!(done.applied, BTreeMap::from([(8, 1)]));
    // (B) another's version came between: planned again for the next one, written first.
    let mut other = World::new();
    run_to(&mut other, Phase::Applying);
    other.version = 8;
    let replanned = other.decide(&other.view(), &request);
    assert_eq!(replanned.actions, []);
    let replacement = replanned.service.as_ref().unwrap().replacement.clone().unwrap();
    assert_eq!(replacement.base_layout_version, Some(LayoutVersion(8)));
    other.stored = replanned.service;
    run_to(&mut other, Phase::Completed);
    assert_eq!(other.applied, BTreeMap::from([(9, 1)]));
    // (C) unchanged: tried again.
    let mut unchanged = World::new();
    run_to(&mut unchanged, Phase::Applying);
    assert_eq!(unchanged.decide(&unchanged.view(), &request).actions.len(), 2);
}

#[test]
fn a_second_node_that_fails_while_the_history_settles_blocks_loudly_and_it_goes_on_when_it_is_back() {
    let mut world = World::new();
    run_to(&mut world, Phase::Settling);
    world.up.remove(&id(B));
    let request = request();
    let blocked = world.decide(&world.view(), &request);
    assert_eq!(reason(&blocked), Reason::SettlingBlocked);
    assert!(blocked.condition.unwrap().2.contains(&id(B).short()));
    assert_eq!(blocked.actions, [], "no skip while another node is down");
    world.up.insert(id(B));
    // Two that cannot reach each other, while the third reaches both.
    world.cut = Some((id(B), id(NEW)));
    assert_eq!(reason(&world.decide(&world.view(), &request)), Reason::SettlingBlocked);
    world.cut = None;
    run_to(&mut world, Phase::Completed);
}

#[test]
fn the_skip_is_recorded_before_it_is_asked_for_and_not_asked_again_at_once() {
    let mut world = World::new();
    run_to(&mut world, Phase::Settling);
    let request = request();
    let skip = world.decide(&world.view(), &request);
    let is_skip = |action: &Action| matches!(action, Action::SkipDeadNodes { version: LayoutVersion(8), .. });
    assert!(matches!(skip.actions.as_slice(), [action] if is_skip(action)), "{:?}", skip.actions);
    assert!(skip.service.as_ref().unwrap().replacement.as_ref().unwrap().skipped_at.is_some());
    world.stored = skip.service;
    world.now += 5;
    assert_eq!(world.decide(&world.view(), &request).actions, []);
    world.now += 30;
    assert_eq!(world.decide(&world.view(), &request).actions.len(), 1);
}

#[test]
fn after_a_crash_between_apply_and_pins_they_are_finished_from_the_layout_without_a_second_apply() {
    let mut world = World::new();
    run_to(&mut world, Phase::RepairingPins);
    // The annotation went by force: what was begun is finished all the same.
    world.asked = false;
    run_to(&mut world, Phase::Completed);
    assert_eq!((world.node, world.pin, world.status), ([id(NEW); 2], id(NEW), id(NEW)));
    assert_eq!(world.applied, BTreeMap::from([(8, 1)]));
}

#[test]
fn a_completed_request_does_nothing_however_often_and_a_later_wipe_needs_the_later_identity() {
    let mut world = World::new();
    run_to(&mut world, Phase::Completed);
    let (before, again) = (world.stored.clone(), request());
    for _ in 0..3 {
        let step = world.decide(&world.view(), &again);
        assert_eq!((step.service.as_ref(), step.actions.len()), (before.as_ref(), 0));
        assert_eq!(reason(&step), Reason::Replaced);
    }
    // The same old identity after the record was overwritten is V5's business.
    world.stored = None;
    assert_eq!(reason(&world.decide(&world.view(), &again)), Reason::Refused);
}

#[test]
fn an_old_identity_that_reappears_is_named_and_not_fought() {
    let mut world = World::new();
    run_to(&mut world, Phase::Completed);
    world.roles.insert(id(OLD), role("kn-1"));
    let request = request();
    let step = world.decide(&world.view(), &request);
    assert_eq!((reason(&step), step.actions.len()), (Reason::IdentityReappeared, 0));
}

#[test]
fn a_request_that_is_taken_back_before_the_intent_leaves_nothing() {
    let mut world = World::new();
    let request = request();
    world.up.remove(&id(NEW));
    world.stored = world.decide(&world.view(), &request).service;
    world.asked = false;
    assert_eq!(world.decide(&world.view(), &request), RefillStep::default());
}

#[test]
fn a_process_that_was_wiped_again_after_staging_is_told_how_to_go_on() {
    let mut world = World::new();
    run_to(&mut world, Phase::Applying);
    let request = request();
    let staged = world.decide(&world.view(), &request).actions;
    assert!(world.perform(&staged[0]));
    let view = world.view();
    let mut facts = world.facts(&view, &request);
    facts.process = Ok(NewProcess { id: id(0x77), rpc: "10.0.0.4:3901".parse().unwrap() });
    let stuck = step(&facts, world.stored.as_ref());
    assert_eq!((reason(&stuck), stuck.actions.len()), (Reason::WaitingForNewProcess, 0));
    assert!(stuck.condition.unwrap().2.contains("revert the staged layout changes"));
    world.staged.clear();
    let view = world.view();
    let mut facts = world.facts(&view, &request);
    facts.process = Ok(NewProcess { id: id(0x77), rpc: "10.0.0.4:3901".parse().unwrap() });
    let anew = step(&facts, world.stored.as_ref()).service.unwrap();
    assert_eq!((anew.phase, anew.replacement), (Phase::Waiting, None));
}

#[test]
fn a_swap_that_is_in_the_layout_without_a_record_is_settled_and_its_pins_are_moved() {
    let mut world = World::new();
    run_to(&mut world, Phase::Settling);
    world.stored = None;
    run_to(&mut world, Phase::Completed);
    assert_eq!((world.node, world.pin, world.status), ([id(NEW); 2], id(NEW), id(NEW)));
    assert_eq!(world.applied, BTreeMap::from([(8, 1)]));
}

#[test]
fn an_old_identity_that_reappears_while_pins_move_stops_them() {
    let mut world = World::new();
    run_to(&mut world, Phase::RepairingPins);
    world.roles.insert(id(OLD), role("kn-1"));
    let request = request();
    let step = world.decide(&world.view(), &request);
    assert_eq!((reason(&step), step.actions.len()), (Reason::IdentityReappeared, 0));
    world.roles.remove(&id(OLD));
    world.roles.remove(&id(NEW));
    let step = world.decide(&world.view(), &request);
    assert_eq!((reason(&step), step.actions.len()), (Reason::WaitingForLayoutRoles, 0));
}

#[test]
fn roles_that_another_hand_took_away_are_named_and_nothing_is_applied() {
    let request = request();
    for phase in [Phase::Applying, Phase::Settling] {
        let mut world = World::new();
        run_to(&mut world, phase);
        world.roles.remove(&id(OLD));
        world.roles.remove(&id(NEW));
        let step = world.decide(&world.view(), &request);
        assert_eq!((reason(&step), step.actions.len()), (Reason::WaitingForLayoutRoles, 0), "{phase:?}");
        assert_eq!(step.service.unwrap().phase, phase);
    }
}

#[test]
fn an_intent_whose_preconditions_went_is_dropped_only_while_certainly_nothing_was_begun() {
    let mut world = World::new();
    run_to(&mut world, Phase::Applying);
    let request = request();
    let mut worse = world.clone();
    worse.up.remove(&id(NEW));
    let dropped = worse.decide(&worse.view(), &request);
    assert_eq!((reason(&dropped), dropped.actions.len()), (Reason::WaitingForNewProcess, 0));
    let service = dropped.service.unwrap();
    assert_eq!((service.phase, service.replacement), (Phase::Waiting, None));
    // A node that is silent may have applied it before it told anybody.
    let mut silent = world.clone();
    silent.up.remove(&id(B));
    let kept = silent.decide(&silent.view(), &request);
    assert_eq!((reason(&kept), kept.service.unwrap().phase), (Reason::WaitingForQuorum, Phase::Applying));
    let staged = world.decide(&world.view(), &request).actions;
    assert!(world.perform(&staged[0]));
    world.up.remove(&id(NEW));
    let kept = world.decide(&world.view(), &request);
    assert_eq!((reason(&kept), kept.actions.len()), (Reason::WaitingForNewProcess, 0));
    assert_eq!(kept.service.unwrap().phase, Phase::Applying);
}

#[test]
fn whatever_fails_between_any_two_writes_it_converges_with_one_apply_per_version() {
    let mut completed = 0;
    for seed in 0..1_000 {
        let mut rng = Rng::new(seed);
        let mut world = World::new();
        let request = request();
        for _ in 0..50 {
            match rng.below(40) {
                0 => {
                    world.up.remove(&id(B));
                }
                1..=3 => {
                    world.up.insert(id(B));
                }
                4 => world.cut = Some((id(A), id(NEW))),
                5..=7 => world.cut = None,
                8 => {
                    world.up.remove(&id(NEW));
                }
                9..=11 => {
                    world.up.insert(id(NEW));
                }
                // Another hand's version: tags of A, settled at once.
                12 if world.staged.is_empty() && world.trackers.is_none() => world.version += 1,
                13 => world.asked = false,
                14..=20 => world.asked = true,
                _ => {}
            }
            world.advance(rng.between(1, 20), &mut rng);
            // Each write may fail before or after it took effect, and the process dies with it.
            let step = world.decide(&world.view(), &request);
            let before = world.stored.clone();
            match rng.below(8) {
                0 => continue,
                1 => {
                    world.stored = step.service;
                    continue;
                }
                _ => world.stored = step.service,
            }
            for action in &step.actions {
                assert_ne!(before.as_ref().map(|s| s.phase), Some(Phase::Completed), "{action:?}");
                let fault = rng.below(5);
                if fault == 0 || !world.perform(action) {
                    break;
                }
                world.check();
                if fault == 1 {
                    break;
                }
            }
        }
        (world.asked, world.cut) = (true, None);
        world.up.extend([B, NEW].map(id));
        for _ in 0..60 {
            world.advance(20, &mut rng);
            let step = world.decide(&world.view(), &request);
            world.stored = step.service;
            for action in &step.actions {
                if !world.perform(action) {
                    break;
                }
            }
            world.check();
        }
        assert_eq!(world.phase(), Some(Phase::Completed), "seed {seed}: {:?}", world.stored);
        assert_eq!((world.node, world.pin, world.status), ([id(NEW); 2], id(NEW), id(NEW)), "seed {seed}");
        completed += world.applied.len();
    }
    assert_eq!(completed, 1_000, "one version of ours in each");
}
