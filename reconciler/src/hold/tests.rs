#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;

use super::*;

const OWN: &str = "3333333333333333333333333333333333333333333333333333333333333333";
const OTHER: &str = "c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3";

fn at(second: i64) -> Time {
    Time::new(jiff::Timestamp::from_second(1_800_000_000 + second).unwrap())
}

fn pair() -> Pair {
    Pair { pool: "fast".parse().unwrap(), node: "kn-3".parse().unwrap() }
}

/// A whole site of three, the hold asked for, nothing done yet.
fn whole() -> Facts {
    Facts {
        now: at(0),
        pair: pair(),
        namespace: "objects".to_owned(),
        request: Request::Stands,
        allowed: Ok(()),
        free: Ok(()),
        observed: Ok(()),
        health: Ok(()),
        layout: Ok(()),
        members: Ok(()),
        room: Ok(()),
        proof: Ok(()),
        rest: Ok(()),
        label_key: "garage.rajsingh.info/gc-x".to_owned(),
        token: Some("token".to_owned()),
        pools_managed: true,
        node: Ok(NodeFacts {
            uid: "node-uid".to_owned(),
            resource_version: "7".to_owned(),
            label: Some("token".to_owned()),
            has_labels: true,
            ready: true,
            ready_since: Some(at(-1000)),
            heartbeat: Some(at(0)),
            out_of_service: false,
        }),
        pods: Ok(vec![PairPod { name: "pod-3".to_owned(), uid: "pod-uid".to_owned(), gated: false }]),
        identity: Some(OWN.parse().unwrap()),
        is_up: Some(true),
        is_back: Ok(()),
        other_identity: None,
    }
}

fn node(facts: &mut Facts) -> &mut NodeFacts {
    facts.node.as_mut().unwrap()
}

/// The member is off: no label, no Pod, not up.
fn off() -> Facts {
    let mut facts = whole();
    node(&mut facts).label = None;
    facts.pods = Ok(Vec::new());
    facts.is_up = Some(false);
    facts
}

fn in_phase(phase: Phase) -> NodeLocalService {
    let mut service = begin(&pair(), at(-100));
    service.phase = phase;
    service.garage_node_id = Some(OWN.parse().unwrap());
    service.pod_uid = Some("pod-uid".to_owned());
    service
}

fn reason(step: &HoldStep) -> Reason {
    step.condition.as_ref().unwrap().1
}

fn phase(step: &HoldStep) -> Phase {
    step.service.as_ref().unwrap().phase
}

fn removes_only_the_label(actions: &[Action]) -> bool {
    let [Action::Patch { target, status: false, patch, dry_run: false }] = actions else { return false };
    let text = serde_json::to_string(patch).unwrap();
    *target == Target::node("kn-3")
        && text.matches("\"remove\"").count() == 1
        && text.contains(r#"{"op":"remove","path":"/metadata/labels/garage.rajsingh.info~1gc-x"}"#)
        && text
            .contains(r#"{"op":"test","path":"/metadata/labels/garage.rajsingh.info~1gc-x","value":"token"}"#)
        && !text.contains("\"add\"")
        && !text.contains("\"replace\"")
}

type Break = fn(&mut Facts);

#[rstest]
#[case::a_rule_of_admission(|f: &mut Facts| f.allowed = Err("V9".into()), Reason::Refused)]
#[case::another_hand(|f: &mut Facts| f.free = Err("a drain".into()), Reason::WaitingForLayout)]
#[case::garage_is_silent(|f: &mut Facts| f.observed = Err("silent".into()), Reason::WaitingForHealth)]
#[case::health(|f: &mut Facts| f.health = Err("240 of 256".into()), Reason::WaitingForHealth)]
#[case::layout(|f: &mut Facts| f.layout = Err("draining".into()), Reason::WaitingForLayout)]
#[case::members(|f: &mut Facts| f.members = Err("fast/kn-2".into()), Reason::WaitingForMembers)]
#[case::room(|f: &mut Facts| f.room = Err("no room".into()), Reason::WaitingForRoom)]
#[case::proof(|f: &mut Facts| f.proof = Err("not proven".into()), Reason::WaitingForProof)]
#[case::no_pod(|f: &mut Facts| f.pods = Ok(Vec::new()), Reason::WaitingForMembers)]
#[case::unread_pods(|f: &mut Facts| f.pods = Err("unread".into()), Reason::WaitingForMembers)]
#[case::unread_node(|f: &mut Facts| f.node = Err("unread".into()), Reason::WaitingForMembers)]
#[case::no_identity(|f: &mut Facts| f.identity = None, Reason::WaitingForMembers)]
fn each_precondition_broken_alone_waits_with_its_own_reason_and_goes_on_when_it_is_mended(
    #[case] broken: Break,
    #[case] expected: Reason,
) {
    let mut facts = whole();
    broken(&mut facts);
    let waiting = step(&facts, &begin(&pair(), at(-5)));
    assert_eq!((reason(&waiting), phase(&waiting)), (expected, Phase::Waiting));
    assert_eq!(waiting.actions, []);
    assert_eq!(waiting.condition.as_ref().unwrap().0, ConditionStatus::False);
    // The same input gives the same status: no write in the next pass (P19).
    assert_eq!(step(&facts, waiting.service.as_ref().unwrap()), waiting);

    let mended = step(&whole(), waiting.service.as_ref().unwrap());
    assert_eq!((reason(&mended), phase(&mended)), (Reason::Deactivating, Phase::Deactivating));
    assert_eq!(mended.actions, [], "the intent is written before anything is done (H2)");
    let service = mended.service.unwrap();
    assert_eq!(service.garage_node_id.unwrap().to_string(), OWN);
    assert_eq!(service.pod_uid.as_deref(), Some("pod-uid"));
}

#[rstest]
#[case::garage_is_silent(|f: &mut Facts| f.observed = Err("silent".into()))]
#[case::two_of_three_are_up_at_act_time(|f: &mut Facts| f.health = Err("degraded".into()))]
#[case::layout(|f: &mut Facts| f.layout = Err("staged".into()))]
#[case::members(|f: &mut Facts| f.members = Err("fast/kn-2".into()))]
#[case::room(|f: &mut Facts| f.room = Err("no room".into()))]
#[case::proof(|f: &mut Facts| f.proof = Err("void".into()))]
#[case::another_hand(|f: &mut Facts| f.free = Err("suspended".into()))]
#[case::refused(|f: &mut Facts| f.allowed = Err("V8".into()))]
fn a_gate_that_closed_after_the_intent_removes_no_label(#[case] broken: Break) {
    let mut facts = whole();
    broken(&mut facts);
    let waiting = step(&facts, &in_phase(Phase::Deactivating));
    assert_eq!(waiting.actions, []);
    assert_eq!(phase(&waiting), Phase::Waiting);
    assert_eq!(waiting.service.unwrap().pod_uid, None);
}

#[test]
fn only_the_activation_label_is_removed_and_only_with_the_value_that_was_read() {
    let next = step(&whole(), &in_phase(Phase::Deactivating));
    assert!(removes_only_the_label(&next.actions), "{:?}", next.actions);
    assert_eq!(phase(&next), Phase::Deactivating);
}

#[rstest]
#[case(Phase::Waiting)]
#[case(Phase::Deactivating)]
fn a_hold_that_is_cancelled_before_the_label_went_leaves_nothing(#[case] before: Phase) {
    let mut facts = whole();
    facts.request = Request::Gone;
    let cancelled = step(&facts, &in_phase(before));
    assert_eq!((cancelled.service, cancelled.condition, cancelled.actions), (None, None, vec![]));
}

#[test]
fn a_process_killed_after_the_label_went_goes_on_with_the_pod() {
    let mut facts = whole();
    node(&mut facts).label = None;
    // The gate is no question any more: what was to be done is done.
    facts.health = Err("degraded".to_owned());
    let next = step(&facts, &in_phase(Phase::Deactivating));
    assert_eq!((phase(&next), reason(&next)), (Phase::Terminating, Reason::Terminating));
    assert_eq!(next.actions, []);
}

#[rstest]
#[case::the_pod_is_there(|f: &mut Facts| f.pods = whole().pods, Reason::Terminating)]
#[case::another_pod_is_there(
    |f: &mut Facts| f.pods = Ok(vec![PairPod { name: "new".into(), uid: "new".into(), gated: false }]),
    Reason::Terminating
)]
#[case::it_is_seen_up(|f: &mut Facts| f.is_up = Some(true), Reason::Terminating)]
#[case::nobody_knows_whether_it_is_up(|f: &mut Facts| f.is_up = None, Reason::NotObserved)]
#[case::garage_is_silent(|f: &mut Facts| f.observed = Err("silent".into()), Reason::NotObserved)]
#[case::the_pods_are_unread(|f: &mut Facts| f.pods = Err("unread".into()), Reason::NotObserved)]
#[case::the_node_is_unread(|f: &mut Facts| f.node = Err("unread".into()), Reason::NotObserved)]
#[case::the_label_is_back(|f: &mut Facts| node(f).label = Some("token".into()), Reason::Deactivating)]
fn nothing_but_the_whole_truth_makes_a_disk_safe(#[case] broken: Break, #[case] expected: Reason) {
    let mut facts = off();
    broken(&mut facts);
    for before in [Phase::Terminating, Phase::OutOfService] {
        let mut service = in_phase(before);
        service.safe_since = (before == Phase::OutOfService).then(|| at(-50));
        let next = step(&facts, &service);
        assert_eq!(reason(&next), expected, "{before:?}");
        assert_ne!(next.condition.unwrap().0, ConditionStatus::True);
        let unknown = expected == Reason::NotObserved;
        assert!(unknown || next.service.unwrap().safe_since.is_none());
    }
}

#[test]
fn a_pod_that_ended_on_a_ready_node_makes_the_disk_safe_and_it_stays_so() {
    let safe = step(&off(), &in_phase(Phase::Terminating));
    assert_eq!((phase(&safe), reason(&safe)), (Phase::OutOfService, Reason::SafeToService));
    assert_eq!(safe.condition.as_ref().unwrap().0, ConditionStatus::True);
    let service = safe.service.unwrap();
    assert_eq!(service.safe_since, Some(at(0)));
    let mut later = off();
    later.now = at(600);
    let still = step(&later, &service);
    assert_eq!(still.service, Some(service));
    assert_eq!(still.condition, safe.condition);
}

#[test]
fn a_pod_that_never_got_past_its_gate_is_removed_and_keeps_the_disk_unsafe_until_it_is_gone() {
    let mut facts = off();
    facts.pods = Ok(vec![PairPod { name: "gated".to_owned(), uid: "g".to_owned(), gated: true }]);
    let waiting = step(&facts, &in_phase(Phase::Terminating));
    assert_eq!(reason(&waiting), Reason::Terminating);
    let target = Target::namespaced(Kind::Pod, "objects", "gated");
    assert_eq!(waiting.actions, [Action::Delete { target, uid: "g".to_owned() }]);
    facts.free = Err("maintenance.suspended is set".to_owned());
    assert_eq!(step(&facts, &in_phase(Phase::Terminating)).actions, []);
    // One that runs is never deleted: the DaemonSet's controller ends it.
    facts.free = Ok(());
    facts.pods = whole().pods;
    assert_eq!(step(&facts, &in_phase(Phase::Terminating)).actions, []);
}

#[test]
fn a_pod_that_vanished_with_its_node_not_ready_is_no_proof_and_both_ways_out_work() {
    let mut facts = off();
    node(&mut facts).ready = false;
    let unconfirmed = step(&facts, &in_phase(Phase::Terminating));
    assert_eq!(reason(&unconfirmed), Reason::TerminationUnconfirmed);
    let said = &unconfirmed.condition.as_ref().unwrap().2;
    assert!(said.contains("Ready") && said.contains("node.kubernetes.io/out-of-service"), "{said}");
    let service = unconfirmed.service.unwrap();
    assert_eq!(service.termination_unconfirmed_since, Some(at(0)));

    // Ready again, but by a heartbeat from before: it may be the last word of the dead kubelet.
    facts.now = at(60);
    node(&mut facts).ready = true;
    assert_eq!(reason(&step(&facts, &service)), Reason::TerminationUnconfirmed);
    node(&mut facts).heartbeat = Some(at(50));
    assert_eq!(reason(&step(&facts, &service)), Reason::SafeToService);

    node(&mut facts).ready = false;
    node(&mut facts).heartbeat = Some(at(0));
    node(&mut facts).out_of_service = true;
    assert_eq!(reason(&step(&facts, &service)), Reason::SafeToService);
}

#[test]
fn a_node_that_has_only_just_become_ready_again_is_given_a_minute_to_end_what_it_finds() {
    // Cut off, its Pod deleted by force, and back, all between two passes: nothing was ever seen not Ready.
    let mut facts = off();
    node(&mut facts).ready_since = Some(at(-5));
    let unconfirmed = step(&facts, &in_phase(Phase::Terminating));
    assert_eq!(reason(&unconfirmed), Reason::TerminationUnconfirmed);
    assert!(unconfirmed.condition.as_ref().unwrap().2.contains("Ready again"), "{unconfirmed:?}");
    let service = unconfirmed.service.unwrap();
    node(&mut facts).heartbeat = Some(at(50));
    facts.now = at(54);
    assert_eq!(reason(&step(&facts, &service)), Reason::TerminationUnconfirmed);
    facts.now = at(55);
    assert_eq!(reason(&step(&facts, &service)), Reason::SafeToService);
}

#[test]
fn a_node_that_does_not_say_since_when_it_is_ready_vouches_for_nothing() {
    let mut facts = off();
    node(&mut facts).ready_since = None;
    assert_eq!(reason(&step(&facts, &in_phase(Phase::Terminating))), Reason::TerminationUnconfirmed);
    node(&mut facts).out_of_service = true;
    assert_eq!(reason(&step(&facts, &in_phase(Phase::Terminating))), Reason::SafeToService);
}

#[test]
fn a_node_object_that_is_gone_or_new_holds_the_member_all_the_same() {
    let mut facts = off();
    facts.node = Ok(NodeFacts::default());
    assert_eq!(reason(&step(&facts, &in_phase(Phase::Terminating))), Reason::TerminationUnconfirmed);
    let mut recreated = off();
    node(&mut recreated).uid = "another-uid".to_owned();
    assert_eq!(reason(&step(&recreated, &in_phase(Phase::OutOfService))), Reason::SafeToService);
}

#[test]
fn a_label_that_returns_is_withdrawn_counted_and_removed_only_while_the_others_carry_the_site() {
    let mut facts = off();
    node(&mut facts).label = Some("token".to_owned());
    let mut service = in_phase(Phase::OutOfService);
    service.safe_since = Some(at(-50));
    for returns in 1..=3 {
        let back = step(&facts, &service);
        let now = back.service.unwrap();
        assert_eq!(
            (now.phase, now.activation_returns, now.safe_since),
            (Phase::Deactivating, Some(returns), None)
        );
        assert_eq!(back.actions, [], "withdrawn first");
        let expected = if returns >= 2 { Reason::ActivationContested } else { Reason::Deactivating };
        assert_eq!(back.condition.unwrap().1, expected);

        // The proof is void by now and is not asked for.
        facts.proof = Err("void".to_owned());
        facts.health = Err("degraded".to_owned());
        assert!(removes_only_the_label(&step(&facts, &now).actions));
        for broken in [
            (|f: &mut Facts| f.rest = Err("fast/kn-1 is down".into())) as Break,
            |f: &mut Facts| f.observed = Err("silent".into()),
            |f: &mut Facts| f.free = Err("suspended".into()),
            |f: &mut Facts| f.request = Request::Differs,
        ] {
            let mut worse = facts.clone();
            broken(&mut worse);
            let stays = step(&worse, &now);
            assert_eq!(stays.actions, [], "somebody may be saving the site");
            assert_eq!(stays.condition.unwrap().1, Reason::ActivationContested);
        }
        service = NodeLocalService { phase: Phase::OutOfService, ..now };
    }
}

#[test]
fn another_member_that_goes_down_during_a_hold_is_said_at_once_and_nothing_is_undone() {
    let mut facts = off();
    facts.rest = Err("fast/kn-1 is down".to_owned());
    let mut service = in_phase(Phase::OutOfService);
    service.safe_since = Some(at(-50));
    let lost = step(&facts, &service);
    assert_eq!((reason(&lost), phase(&lost)), (Reason::QuorumLost, Phase::OutOfService));
    assert_eq!(lost.actions, []);
    assert!(lost.condition.unwrap().2.contains("fast/kn-1 is down"));
    assert_eq!(reason(&step(&off(), lost.service.as_ref().unwrap())), Reason::SafeToService);
}

#[test]
fn a_hold_stays_when_its_annotation_is_garbled_and_ends_only_when_it_is_gone() {
    let mut facts = off();
    facts.request = Request::Differs;
    let garbled = step(&facts, &in_phase(Phase::OutOfService));
    assert_eq!((reason(&garbled), phase(&garbled)), (Reason::Refused, Phase::OutOfService));
    assert!(garbled.condition.unwrap().2.contains("fast/kn-3 is still out of service"));
    facts.request = Request::Gone;
    for before in [Phase::Deactivating, Phase::Terminating, Phase::OutOfService] {
        let released = step(&facts, &in_phase(before));
        assert_eq!(
            (phase(&released), reason(&released)),
            (Phase::Restoring, Reason::Restoring),
            "{before:?}"
        );
        assert_eq!(released.service.unwrap().safe_since, None);
    }
}

#[test]
fn a_member_is_back_when_every_node_saw_it_up_for_half_a_minute() {
    let mut facts = whole();
    facts.request = Request::Gone;
    let first = step(&facts, &in_phase(Phase::Restoring)).service.unwrap();
    assert_eq!((first.phase, first.returned_at), (Phase::Restoring, Some(at(0))));
    facts.now = at(20);
    facts.is_back = Err("node 1111111111111111 does not see it up".to_owned());
    let flapped = step(&facts, &first).service.unwrap();
    assert_eq!(flapped.returned_at, None);
    facts.is_back = Ok(());
    facts.now = at(25);
    let again = step(&facts, &flapped).service.unwrap();
    facts.now = at(54);
    assert_eq!(step(&facts, &again).service.unwrap().phase, Phase::Restoring);
    facts.now = at(55);
    let back = step(&facts, &again);
    assert_eq!((phase(&back), reason(&back)), (Phase::InService, Reason::InService));
    assert_eq!(back.wake_after, None);
}

#[test]
fn the_label_comes_back_by_the_pools_or_beside_another_operator_by_the_hold_itself() {
    let mut facts = off();
    facts.request = Request::Gone;
    assert_eq!(step(&facts, &in_phase(Phase::Restoring)).actions, []);
    facts.pools_managed = false;
    let actions = step(&facts, &in_phase(Phase::Restoring)).actions;
    let [Action::Patch { patch, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    let text = serde_json::to_string(patch).unwrap();
    assert!(
        text.contains(r#""op":"add","path":"/metadata/labels/garage.rajsingh.info~1gc-x","value":"token""#)
    );
    assert!(text.contains("/metadata/resourceVersion"), "{text}");
    facts.token = None;
    assert_eq!(step(&facts, &in_phase(Phase::Restoring)).actions, []);
}

#[test]
fn another_identity_on_return_is_named_with_the_annotation_to_set_and_nothing_is_inferred() {
    let mut facts = whole();
    facts.request = Request::Gone;
    facts.other_identity = Some(OTHER.parse().unwrap());
    facts.is_back = Err("down".to_owned());
    let step = step(&facts, &in_phase(Phase::Restoring));
    assert_eq!((phase(&step), reason(&step)), (Phase::Restoring, Reason::DifferentIdentity));
    assert_eq!(step.actions, []);
    let said = step.condition.unwrap().2;
    let wanted = format!("garage.rajsingh.info/node-local-replace-identity=fast/kn-3/{OWN}");
    assert!(said.contains(&wanted) && said.contains(&OTHER[..16]) && said.contains(&OWN[..16]), "{said}");
    assert!(said.len() < 600, "{}", said.len());
}

#[test]
fn nothing_is_done_on_the_way_back_while_another_hand_is_on_the_members() {
    let mut facts = off();
    facts.request = Request::Gone;
    facts.pools_managed = false;
    facts.free = Err("maintenance.suspended is set".to_owned());
    let step = step(&facts, &in_phase(Phase::Restoring));
    assert_eq!((step.actions.len(), phase(&step)), (0, Phase::Restoring));
}

mod sweep;
mod world;
