//! Launches that fail, are lost or are repeated (P10, P17, section 14).

use super::*;

#[test]
fn a_restart_in_the_tables_stage_launches_it_again_and_in_the_blocks_stage_after_the_others_tables_turns() {
    let mut w = world();
    w.request("one");
    w.calm().unwrap();
    w.garage.kill(0);
    w.garage.start(0, false);
    w.run(15, 15).unwrap();
    assert_eq!(v(&w).evidence.as_ref().unwrap().launches, Some(2), "P10");
    until(&mut w, Phase::ScanningBlocks, 30);
    while v(&w).evidence.as_ref().unwrap().stage_launched_at.is_none() {
        w.run(5, 5).unwrap();
    }
    let x = w.launches.last().unwrap().node;
    w.garage.kill(x);
    w.garage.start(x, true);
    w.run(15, 15).unwrap();
    assert_eq!(w.phase(), Phase::SyncingMetadata, "P6: the others push to it again first");
    assert_eq!(v(&w).evidence.as_ref().unwrap().blocks_launches.get(&identity(x)), Some(&1));
    until(&mut w, Phase::Verified, 90);
}

#[test]
fn a_node_that_crashes_in_every_scan_is_given_up_after_three_launches_until_a_new_token() {
    let mut w = world();
    w.request("one");
    for _ in 0..2000 {
        w.run(10, 10).unwrap();
        let scanning = v(&w).current_node_id == Some(identity(1))
            && v(&w)
                .evidence
                .as_ref()
                .is_some_and(|e| e.repair_worker_id.is_some() || e.passes_without_worker.is_some())
            && w.launches.last().is_some_and(|l| l.node == 1 && l.kind == RepairKind::Blocks);
        if scanning {
            w.garage.kill(1);
            w.garage.start(1, false);
        }
        if deferred(&w, 1) == Some(DeferReason::RepairFailed) {
            break;
        }
    }
    assert_eq!(deferred(&w, 1), Some(DeferReason::RepairFailed));
    assert_eq!(launched_on(&w, RepairKind::Blocks).iter().filter(|x| **x == 1).count(), 3, "P10");
    w.run(3600, 60).unwrap();
    assert_eq!((w.phase(), w.reason()), (Phase::Partial, "Partial"));
    assert_eq!(launched_on(&w, RepairKind::Blocks).iter().filter(|x| **x == 1).count(), 3);
    w.request("two");
    until(&mut w, Phase::Verified, 90);
}

#[test]
fn a_blocks_launch_whose_answer_was_lost_is_adopted_and_not_repeated() {
    let mut w = world();
    w.request("one");
    until(&mut w, Phase::ScanningBlocks, 30);
    let mut counted = 0;
    for _ in 0..200 {
        w.garage.advance(10);
        w.pass(PassFault {
            launch: LaunchFault::LostAfter,
            after: WriteFault::Before,
            ..PassFault::default()
        })
        .unwrap();
        counted = launched_on(&w, RepairKind::Blocks).len();
        if w.phase() == Phase::Settling {
            break;
        }
    }
    assert_eq!((w.phase(), counted), (Phase::Settling, 3));
}

#[test]
fn a_blocks_launch_is_lost_only_after_180_seconds_and_three_passes() {
    let mut w = world();
    w.request("one");
    until(&mut w, Phase::ScanningBlocks, 30);
    while w.launches.last().is_none_or(|l| l.kind == RepairKind::Tables) {
        w.garage.advance(5);
        w.pass(PassFault { launch: LaunchFault::Late(80), ..PassFault::default() }).unwrap();
    }
    let launched = w.launched;
    let begin = w.garage.now;
    while w.launched == launched && w.garage.now < begin + 150 {
        w.run(10, 10).unwrap();
    }
    assert_eq!(w.launched, launched, "P10: a timed-out launch was seen to run 80 s later");
    let mut lost = world();
    lost.request("one");
    until(&mut lost, Phase::ScanningBlocks, 30);
    while lost.launches.last().is_none_or(|l| l.kind == RepairKind::Tables) {
        lost.garage.advance(5);
        lost.pass(PassFault { launch: LaunchFault::LostBefore, ..PassFault::default() }).unwrap();
    }
    let (launched, begin) = (lost.launched, lost.garage.now);
    while lost.launched == launched {
        lost.run(10, 10).unwrap();
    }
    assert!(lost.garage.now - begin >= 180);
    assert_eq!(v(&lost).evidence.as_ref().unwrap().launches, Some(2));
}

#[test]
fn an_attempt_that_was_certainly_not_executed_does_not_count() {
    let mut w = world();
    w.request("one");
    for _ in 0..8 {
        w.garage.advance(5);
        w.pass(PassFault { launch: LaunchFault::Refused, ..PassFault::default() }).unwrap();
    }
    assert_eq!(v(&w).evidence.as_ref().unwrap().launches, Some(0), "P10");
    assert!(w.stored.as_ref().unwrap().deferred_nodes.is_empty());
    until(&mut w, Phase::Verified, 60);
}

#[test]
fn nothing_is_launched_when_the_status_write_fails() {
    let mut w = world();
    w.run(60, 60).unwrap();
    w.request("one");
    for write in [WriteFault::Before, WriteFault::After] {
        w.garage.advance(60);
        w.pass(PassFault { write, ..PassFault::default() }).unwrap();
        assert_eq!(w.launched, 0);
    }
    until(&mut w, Phase::Verified, 60);
}
