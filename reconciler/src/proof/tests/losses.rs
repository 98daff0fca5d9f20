//! Lost blocks and items, broken links, disks (P6, P14, P16, O8, O9).

use super::*;

#[test]
fn data_only_loss_reads_healthy_until_a_proof_finds_and_mends_it() {
    let mut w = verified();
    w.garage.kill(1);
    w.garage.lose_blocks(1, Set::MAX);
    w.run(60, 30).unwrap();
    w.garage.start(1, false);
    w.run(1800, 60).unwrap();
    assert_eq!((w.phase(), w.reason()), (Phase::Idle, "NotVerified"), "P16");
    assert_eq!(w.garage.nodes[1].blocks, 0, "nothing passive mends it");
    w.request("two");
    until(&mut w, Phase::Verified, 60);
    assert_eq!(w.garage.missing(1), 0);
}

#[test]
fn a_new_identity_is_filled_before_it_is_scanned() {
    let mut w = verified();
    w.garage.kill(2);
    w.run(120, 60).unwrap();
    w.garage.replace(2);
    w.run(300, 60).unwrap();
    assert_eq!(w.phase(), Phase::Idle, "P3");
    w.request("two");
    until(&mut w, Phase::Verified, 90);
    assert_eq!(w.garage.missing(3), 0);
    assert!(w.garage.deleted_by_us.is_empty());
}

#[test]
fn two_nodes_that_do_not_reach_each_other_never_end_in_true_and_both_are_named() {
    let mut w = world();
    w.request("one");
    w.run(30, 30).unwrap();
    w.garage.cut(1, 2);
    w.garage.write();
    w.run(4 * 3600, 60).unwrap();
    assert_ne!(w.phase(), Phase::Verified);
    assert_eq!(w.reason(), "Partial");
    let m = message(&w);
    assert!(m.contains(&identity(1).short()) && m.contains(&identity(2).short()), "{m}");
    w.garage.heal();
    until(&mut w, Phase::Verified, 90);
}

#[test]
fn a_block_missing_everywhere_reads_block_errors_and_is_never_true() {
    let mut w = world();
    for x in 0..3 {
        w.garage.lose_blocks(x, 1);
    }
    w.request("one");
    until(&mut w, Phase::Settling, 90);
    w.run(2 * 3600, 60).unwrap();
    assert_eq!((w.phase(), w.reason()), (Phase::Settling, "BlockErrors"));
    assert_eq!(message(&w), "1 block has resync errors");
    assert_eq!(w.launched, 6, "nothing is launched again");
}

#[test]
fn growing_block_errors_read_stalled() {
    let mut w = world();
    for x in 0..3 {
        w.garage.lose_blocks(x, 1);
    }
    w.request("one");
    until(&mut w, Phase::Settling, 90);
    assert_eq!(w.reason(), "BlockErrors");
    w.garage.nodes[0].errored |= 2;
    w.run(1, 1).unwrap();
    assert_eq!(w.reason(), "Stalled");
    w.run(2400, 60).unwrap();
    assert_eq!(w.reason(), "BlockErrors", "a new window");
}

#[test]
fn block_errors_while_verified_cost_a_whole_new_quiet_period_and_no_launch() {
    let mut w = verified();
    let launched = w.launched;
    w.garage.nodes[0].errored |= 1;
    w.run(1, 1).unwrap();
    assert_eq!((w.phase(), w.reason()), (Phase::Settling, "BlockErrors"));
    w.garage.nodes[0].errored = 0;
    let begin = w.garage.now;
    until(&mut w, Phase::Verified, 60);
    assert!(w.garage.now - begin >= 670, "P14, D10");
    assert_eq!(w.launched, launched);
}

#[test]
fn a_queue_that_is_never_empty_is_verified_but_a_persistent_error_is_not() {
    let mut w = world();
    w.request("one");
    until(&mut w, Phase::Settling, 60);
    for n in &mut w.garage.nodes {
        n.queue[15] = i64::MAX - 1;
    }
    let mut stuck = w.clone();
    until(&mut w, Phase::Verified, 30);
    stuck.garage.nodes[1].persistent_shown = 1;
    stuck.run(3600, 60).unwrap();
    assert_eq!(stuck.phase(), Phase::Settling);
}

#[test]
fn every_silent_disk_fault_pauses_or_voids_and_the_next_proof_mends_it() {
    for (data, unmount) in [(true, false), (false, false), (true, true)] {
        let mut w = verified();
        if unmount {
            w.garage.unmount(1);
        } else {
            w.garage.fill(1, data, true);
        }
        for _ in 0..3 {
            w.garage.write();
        }
        w.run(1200, 60).unwrap();
        assert_eq!(w.phase(), Phase::Idle, "P16: data {data}, unmounted {unmount}");
        w.request("two");
        w.run(1200, 60).unwrap();
        if !unmount {
            assert_eq!(w.reason(), "PreconditionsNotMet", "P15");
            assert!(message(&w).contains(&identity(1).short()), "{}", message(&w));
            assert!(message(&w).contains(if data { "data" } else { "metadata" }));
        }
        if unmount {
            w.garage.mount(1);
        } else {
            w.garage.fill(1, data, false);
        }
        until(&mut w, Phase::Verified, 120);
        assert_eq!(w.garage.missing(1), 0);
    }
}

#[test]
fn an_old_garage_that_had_no_room_needs_a_scrub() {
    let mut w = World::new(Garage::new(7, GarageVersion::V200, 3, 0), SiteRole::Unset);
    w.run(60, 60).unwrap();
    w.garage.fill(1, true, true);
    w.garage.write();
    w.run(120, 60).unwrap();
    w.garage.fill(1, true, false);
    w.request("one");
    w.run(7200, 60).unwrap();
    assert_eq!((w.reason(), w.launched), ("PreconditionsNotMet", 0), "O9");
    assert!(message(&w).contains("2.0.0") && message(&w).contains("scrub"), "{}", message(&w));
    w.garage.scrub(1);
    until(&mut w, Phase::Verified, 90);
    assert_eq!(w.garage.missing(1), 0);
}
