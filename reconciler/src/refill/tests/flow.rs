//! What a replacement does step by step, and what another hand can do to it.

use holdfast_crds::ids::LayoutVersion;

use super::super::*;
use super::world::{B, NEW, OLD, World, id, reason, request, role};

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

#[test]
fn an_apply_conflict_is_judged_by_the_roles_and_one_version_is_applied_once() {
    let request = request();
    // (A) ours was applied.
    let mut done = World::new();
    done.run_to(Phase::Settling);
    assert_eq!(done.applies(), [(8, 1)]);
    // (B) another's version came between: planned again for the next one, written first.
    let mut other = World::new();
    other.run_to(Phase::Applying);
    other.garage.everywhere(|known| known.version = 8);
    let replanned = other.decide(&other.view(), &request);
    assert_eq!(replanned.actions, []);
    let replacement = replanned.service.as_ref().unwrap().replacement.clone().unwrap();
    assert_eq!(replacement.base_layout_version, Some(LayoutVersion(8)));
    other.stored = replanned.service;
    other.run_to(Phase::Completed);
    assert_eq!(other.applies(), [(9, 1)]);
    // (C) unchanged: tried again.
    let mut unchanged = World::new();
    unchanged.run_to(Phase::Applying);
    assert_eq!(unchanged.decide(&unchanged.view(), &request).actions.len(), 2);
}

#[test]
fn a_second_node_that_fails_while_the_history_settles_blocks_loudly_and_it_goes_on_when_it_is_back() {
    let mut world = World::new();
    world.run_to(Phase::Settling);
    world.down(B);
    let request = request();
    let blocked = world.decide(&world.view(), &request);
    assert_eq!(reason(&blocked), Reason::SettlingBlocked);
    assert!(blocked.condition.unwrap().2.contains(&id(B).short()));
    assert_eq!(blocked.actions, [], "no skip while another node is down");
    world.back(B);
    // Two that cannot reach each other, while the third reaches both.
    world.garage.cut = Some((id(B), id(NEW)));
    assert_eq!(reason(&world.decide(&world.view(), &request)), Reason::SettlingBlocked);
    world.garage.cut = None;
    world.run_to(Phase::Completed);
}

#[test]
fn the_skip_is_recorded_before_it_is_asked_for_and_not_asked_again_at_once() {
    let mut world = World::new();
    world.run_to(Phase::Settling);
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
    world.run_to(Phase::RepairingPins);
    // The annotation went by force: what was begun is finished all the same.
    world.asked = false;
    world.run_to(Phase::Completed);
    assert_eq!((world.node, world.pin, world.status), ([id(NEW); 2], id(NEW), id(NEW)));
    assert_eq!(world.applies(), [(8, 1)]);
}

#[test]
fn a_completed_request_does_nothing_however_often_and_a_later_wipe_needs_the_later_identity() {
    let mut world = World::new();
    world.run_to(Phase::Completed);
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
    world.run_to(Phase::Completed);
    world.roles(|roles| drop(roles.insert(id(OLD), role("kn-1"))));
    let request = request();
    let step = world.decide(&world.view(), &request);
    assert_eq!((reason(&step), step.actions.len()), (Reason::IdentityReappeared, 0));
}

#[test]
fn a_request_that_is_taken_back_before_the_intent_leaves_nothing() {
    let mut world = World::new();
    let request = request();
    world.down(NEW);
    world.stored = world.decide(&world.view(), &request).service;
    world.asked = false;
    assert_eq!(world.decide(&world.view(), &request), RefillStep::default());
}

#[test]
fn a_process_that_was_wiped_again_after_staging_is_told_how_to_go_on() {
    let mut world = World::new();
    world.run_to(Phase::Applying);
    let request = request();
    let staged = world.decide(&world.view(), &request).actions;
    assert!(world.perform(&staged[0]));
    let view = world.view();
    let mut facts = world.facts(&view, &request);
    facts.process = Ok(NewProcess { id: id(0x77), rpc: "10.0.0.4:3901".parse().unwrap() });
    let stuck = step(&facts, world.stored.as_ref());
    assert_eq!((reason(&stuck), stuck.actions.len()), (Reason::WaitingForNewProcess, 0));
    assert!(stuck.condition.unwrap().2.contains("revert the staged layout changes"));
    world.garage.revert();
    let view = world.view();
    let mut facts = world.facts(&view, &request);
    facts.process = Ok(NewProcess { id: id(0x77), rpc: "10.0.0.4:3901".parse().unwrap() });
    let anew = step(&facts, world.stored.as_ref()).service.unwrap();
    assert_eq!((anew.phase, anew.replacement), (Phase::Waiting, None));
}

#[test]
fn a_swap_that_is_in_the_layout_without_a_record_is_settled_and_its_pins_are_moved() {
    let mut world = World::new();
    world.run_to(Phase::Settling);
    world.stored = None;
    world.run_to(Phase::Completed);
    assert_eq!((world.node, world.pin, world.status), ([id(NEW); 2], id(NEW), id(NEW)));
    assert_eq!(world.applies(), [(8, 1)]);
}

#[test]
fn an_old_identity_that_reappears_while_pins_move_stops_them() {
    let mut world = World::new();
    world.run_to(Phase::RepairingPins);
    world.roles(|roles| drop(roles.insert(id(OLD), role("kn-1"))));
    let request = request();
    let step = world.decide(&world.view(), &request);
    assert_eq!((reason(&step), step.actions.len()), (Reason::IdentityReappeared, 0));
    world.roles(|roles| drop(roles.remove(&id(OLD))));
    world.roles(|roles| drop(roles.remove(&id(NEW))));
    let step = world.decide(&world.view(), &request);
    assert_eq!((reason(&step), step.actions.len()), (Reason::WaitingForLayoutRoles, 0));
}

#[test]
fn roles_that_another_hand_took_away_are_named_and_nothing_is_applied() {
    let request = request();
    for phase in [Phase::Applying, Phase::Settling] {
        let mut world = World::new();
        world.run_to(phase);
        world.roles(|roles| drop(roles.remove(&id(OLD))));
        world.roles(|roles| drop(roles.remove(&id(NEW))));
        let step = world.decide(&world.view(), &request);
        assert_eq!((reason(&step), step.actions.len()), (Reason::WaitingForLayoutRoles, 0), "{phase:?}");
        assert_eq!(step.service.unwrap().phase, phase);
    }
}

#[test]
fn an_intent_whose_preconditions_went_is_dropped_only_while_certainly_nothing_was_begun() {
    let mut world = World::new();
    world.run_to(Phase::Applying);
    let request = request();
    let mut worse = world.clone();
    worse.down(NEW);
    let dropped = worse.decide(&worse.view(), &request);
    assert_eq!((reason(&dropped), dropped.actions.len()), (Reason::WaitingForNewProcess, 0));
    let service = dropped.service.unwrap();
    assert_eq!((service.phase, service.replacement), (Phase::Waiting, None));
    // A node that is silent may have applied it before it told anybody.
    let mut silent = world.clone();
    silent.down(B);
    let kept = silent.decide(&silent.view(), &request);
    assert_eq!((reason(&kept), kept.service.unwrap().phase), (Reason::WaitingForQuorum, Phase::Applying));
    let staged = world.decide(&world.view(), &request).actions;
    assert!(world.perform(&staged[0]));
    world.down(NEW);
    let kept = world.decide(&world.view(), &request);
    assert_eq!((reason(&kept), kept.actions.len()), (Reason::WaitingForNewProcess, 0));
    assert_eq!(kept.service.unwrap().phase, Phase::Applying);
}
