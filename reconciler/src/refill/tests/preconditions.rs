//! R1, each broken alone.

use std::collections::BTreeMap;

use rstest::rstest;

use super::super::*;
use super::world::{A, B, NEW, OLD, World, id, reason, request, role};
use crate::observe::{Partition, StagedChange};

type Break = fn(&mut World);
type BreakFacts = fn(&mut Facts<'_>);

#[rstest]
#[case::too_many_roles(|w: &mut World| { w.roles(|r| { r.insert(id(0x33), role("kn-9")); }); w.garage.start_empty(id(0x33)); }, Reason::WaitingForLayoutRoles)]
#[case::another_node_is_down(|w: &mut World| w.down(B), Reason::WaitingForQuorum)]
#[case::a_link_is_broken(|w: &mut World| w.garage.cut = Some((id(A), id(B))), Reason::WaitingForQuorum)]
#[case::the_old_one_is_up(|w: &mut World| w.garage.start_empty(id(OLD)), Reason::WaitingForOldIdentity)]
#[case::no_role(|w: &mut World| w.roles(|r| { r.remove(&id(OLD)); }), Reason::WaitingForOldIdentity)]
#[case::the_role_of_another_member(|w: &mut World| w.roles(|r| { r.insert(id(OLD), role("kn-8")); }), Reason::WaitingForOldIdentity)]
#[case::both_roles(|w: &mut World| w.roles(|r| { r.insert(id(NEW), role("kn-1")); }), Reason::BothIdentitiesInLayout)]
#[case::foreign_staging(
    |w: &mut World| w.stage(&[StagedChange { id: id(A), role: None }]),
    Reason::ForeignStagedChanges
)]
#[case::half_of_ours(
    |w: &mut World| w.stage(&[StagedChange { id: id(OLD), role: None }]),
    Reason::ForeignStagedChanges
)]
#[case::unsettled(|w: &mut World| w.garage.everywhere(|known| {
    known.trackers = Some(BTreeMap::new());
    known.before = known.roles.keys().copied().collect();
}), Reason::WaitingForLayout)]
#[case::no_process(|w: &mut World| w.down(NEW), Reason::WaitingForNewProcess)]
#[case::a_peer_does_not_see_it(|w: &mut World| w.garage.cut = Some((id(B), id(NEW))), Reason::WaitingForPeers)]
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
fn beside_another_operator_a_process_that_nobody_knows_is_introduced_first() {
    let mut world = World { pools_managed: false, ..World::new() };
    world.garage.strangers.insert(id(NEW));
    let waiting = world.decided();
    assert_eq!(reason(&waiting), Reason::WaitingForPeers);
    assert!(
        matches!(waiting.actions.as_slice(), [Action::ConnectNodes { peers, .. }] if peers[0].id == id(NEW))
    );
    world.run_to(Phase::Completed);
    world.assert_replaced(&"introduced");
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
