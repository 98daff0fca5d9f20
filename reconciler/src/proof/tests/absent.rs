//! Nodes that are down or do not answer (P11, P12, D11).

use super::*;

#[test]
fn a_node_down_at_its_turn_is_deferred_the_others_go_on_and_it_is_finished_later() {
    let mut w = world();
    w.garage.kill(2);
    w.run(120, 60).unwrap();
    w.request("one");
    until(&mut w, Phase::Partial, 60);
    assert_eq!(deferred(&w, 2), Some(DeferReason::Down));
    assert_eq!(v(&w).completed_node_ids, BTreeSet::from([identity(0), identity(1)]), "P11");
    assert_eq!(w.reason(), "Partial");
    assert!(message(&w).starts_with("2 of 3 local storage nodes finished"), "{}", message(&w));
    assert!(message(&w).contains(&identity(2).short()));
    for _ in 0..3 {
        w.garage.write();
    }
    w.garage.start(2, false);
    until(&mut w, Phase::Verified, 90);
    assert_eq!(w.garage.missing(2), 0);
    // P12: the peers whose tables turn missed it had another one before its blocks turn.
    let tables = launched_on(&w, RepairKind::Tables);
    assert_eq!(tables, [0, 1, 2, 0, 1]);
}

#[test]
fn a_node_down_through_a_peers_tables_stage_leads_to_a_recheck() {
    let mut w = world();
    w.request("one");
    w.calm().unwrap();
    assert_eq!(v(&w).current_node_id, Some(identity(0)));
    w.garage.kill(1);
    w.run(20, 20).unwrap();
    w.garage.write();
    w.garage.start(1, false);
    w.run(60, 60).unwrap();
    let e = v(&w).evidence.clone().unwrap();
    assert!(e.peer_down_seen == Some(true) || e.tables_recheck_node_ids.contains(&identity(0)), "{e:?}");
    until(&mut w, Phase::Verified, 90);
    assert_eq!(launched_on(&w, RepairKind::Tables).iter().filter(|x| **x == 0).count(), 2, "P12");
}

#[test]
fn a_retried_node_waits_ten_minutes() {
    let mut w = world();
    w.garage.kill(0);
    w.run(120, 60).unwrap();
    w.request("one");
    w.run(60, 60).unwrap();
    assert_eq!(deferred(&w, 0), Some(DeferReason::Down));
    let since = w.garage.now;
    w.garage.start(0, false);
    while deferred(&w, 0).is_some() {
        w.run(60, 60).unwrap();
    }
    assert!(w.garage.now - since >= 540, "P11");
    until(&mut w, Phase::Verified, 90);
}

#[test]
fn a_node_that_is_up_but_does_not_answer_is_deferred_by_name_and_the_others_go_on() {
    let mut w = world();
    w.request("one");
    for _ in 0..30 {
        w.garage.advance(60);
        w.pass(PassFault { read: ReadFault::Silent(2), ..PassFault::default() }).unwrap();
    }
    assert_eq!(deferred(&w, 2), Some(DeferReason::NotReporting));
    assert_eq!(v(&w).completed_node_ids, BTreeSet::from([identity(0), identity(1)]));
    assert!(message(&w).contains(&identity(2).short()), "{}", message(&w));
}

#[test]
fn a_starved_node_in_a_launched_scan_keeps_its_evidence_for_five_minutes() {
    let mut w = world();
    w.garage.slowness = 0;
    w.request("one");
    until(&mut w, Phase::ScanningBlocks, 30);
    while v(&w).evidence.as_ref().unwrap().stage_launched_at.is_none() {
        w.run(5, 5).unwrap();
    }
    let x = w.launches.last().unwrap().node;
    w.garage.nodes[x].repairs[0].ends_at = i64::MAX;
    w.garage.nodes[x].repairs[0].done = false;
    let launched = w.launched;
    for _ in 0..3 {
        w.garage.advance(60);
        w.pass(PassFault { read: ReadFault::Silent(x), ..PassFault::default() }).unwrap();
        assert!(v(&w).evidence.as_ref().unwrap().silent_since.is_some());
    }
    w.run(60, 60).unwrap();
    assert_eq!((w.launched, deferred(&w, x)), (launched, None), "one launch in all");
    for _ in 0..7 {
        w.garage.advance(60);
        w.pass(PassFault { read: ReadFault::Silent(x), ..PassFault::default() }).unwrap();
    }
    assert_eq!(deferred(&w, x), Some(DeferReason::NotReporting), "P11");
}
