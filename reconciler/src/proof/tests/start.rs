//! Baseline, start and staleness (P1 to P3), and a whole proof (P6 to P9, P14).

use super::*;

#[test]
fn an_upgrade_starts_nothing_and_reads_not_verified() {
    let mut w = world();
    w.run(3600, 60).unwrap();
    assert_eq!((v(&w).phase, v(&w).trigger, w.launched), (Phase::Idle, None, 0));
    assert_eq!(w.reason(), "NotVerified");
    assert!(message(&w).contains("garage.rajsingh.info/verify-redundancy"), "{}", message(&w));
    assert_eq!(v(&w).layout_version, Some(LayoutVersion(1)));
    assert_eq!(v(&w).topology_hash.as_ref().map(String::len), Some(64));
}

#[test]
fn a_requested_proof_scans_all_nodes_in_order_and_ends_true_after_the_quiet_period() {
    let mut w = world();
    w.request("one");
    let begin = w.garage.now;
    until(&mut w, Phase::Settling, 60);
    assert_eq!(launched_on(&w, RepairKind::Tables), [0, 1, 2], "P6: every tables turn, in node-ID order");
    assert_eq!(launched_on(&w, RepairKind::Blocks), [0, 1, 2]);
    let first_blocks = w.launches.iter().position(|l| l.kind == RepairKind::Blocks);
    assert_eq!(first_blocks, Some(3), "P6: tables everywhere before blocks anywhere");
    let settling = w.garage.now;
    until(&mut w, Phase::Verified, 60);
    assert!(w.garage.now - settling >= 670, "P14");
    let c = w.site.condition.clone().unwrap();
    assert_eq!((c.status.as_str(), c.reason.as_str()), ("True", "Verified"));
    assert!(c.message.starts_with("Full redundancy verified on layout version 1 for all 3 storage nodes"));
    assert_eq!(w.launched, 6);
    let r = w.stored.as_ref().unwrap();
    assert_eq!(r.scope, Some(Scope::Cluster));
    assert_eq!(r.storage_nodes.map(|s| (s.total, s.local, s.remote, s.verified)), Some((3, 3, 0, 3)));
    assert_eq!(v(&w).request_token.as_deref(), Some("one"));
    assert!(v(&w).verified_at.unwrap() >= time(begin));
}

#[test]
fn the_quiet_period_follows_the_rpc_timeout_with_a_margin() {
    let mut w = world();
    w.garage.rpc_timeout = 400;
    w.request("one");
    until(&mut w, Phase::Settling, 90);
    let settling = w.garage.now;
    until(&mut w, Phase::Verified, 60);
    assert!(w.garage.now - settling >= 2 * 400 + 60, "D4");
}

#[test]
fn a_site_that_is_written_to_all_the_time_is_verified() {
    for version in [GarageVersion::V250, GarageVersion::V200] {
        let mut w = World::new(Garage::new(7, version, 3, 0), SiteRole::Unset);
        w.garage.busy = true;
        w.request("one");
        until(&mut w, Phase::Settling, 60);
        let settling = w.garage.now;
        until(&mut w, Phase::Verified, 30);
        assert!(w.garage.now - settling >= 670, "P14");
        assert_eq!(w.launched, 6);
    }
}

#[test]
fn a_node_that_is_never_seen_without_checks_due_after_the_quiet_period_is_named_and_not_verified() {
    let mut w = world();
    w.request("one");
    until(&mut w, Phase::Settling, 60);
    for _ in 0..60 {
        w.garage.advance(60);
        w.garage.nodes[1].queue[15] = w.garage.now;
        w.calm().unwrap();
        assert_eq!(w.phase(), Phase::Settling);
    }
    assert_eq!(v(&w).evidence.as_ref().unwrap().resync_busy_node_ids, BTreeSet::from([identity(1)]));
    let named = format!("waits for the block resync of node {}", identity(1).short());
    assert!(message(&w).ends_with(&named), "{}", message(&w));
    assert_eq!(w.reason(), "Stalled");
    w.garage.nodes[1].queue[15] = i64::MAX;
    w.calm().unwrap();
    assert_eq!(w.phase(), Phase::Verified);
}

#[test]
fn findings_that_a_scan_left_in_the_deferred_worker_are_waited_for_but_not_what_is_written() {
    let mut w = world();
    w.garage.busy = true;
    w.request("one");
    until(&mut w, Phase::ScanningBlocks, 60);
    let mut failing = w.clone();
    until(&mut w, Phase::Settling, 30);
    // A worker that fails hands nothing over, whatever its queue says.
    failing.garage.deferred_fails = true;
    failing.run(3600, 60).unwrap();
    assert_eq!((failing.phase(), failing.reason()), (Phase::ScanningBlocks, "Stalled"));
    assert!(message(&failing).contains("its findings to reach the resync queue"), "{}", message(&failing));
}

#[test]
fn a_rollout_a_restart_a_tag_only_change_an_outage_and_new_block_errors_start_nothing() {
    let mut w = world();
    w.site.on_topology_change = true;
    w.run(120, 60).unwrap();
    for x in 0..3 {
        w.garage.kill(x);
        w.run(90, 30).unwrap();
        w.garage.start(x, x == 1);
        w.run(90, 30).unwrap();
    }
    w.garage.change_layout(true);
    w.run(300, 60).unwrap();
    for x in 0..3 {
        w.garage.lose_blocks(x, 1);
    }
    w.garage.begin_blocks(0, false, 0);
    w.run(900, 60).unwrap();
    assert_eq!((w.phase(), v(&w).trigger, w.launched), (Phase::Idle, None, 0));
    assert_eq!(v(&w).layout_version, Some(LayoutVersion(2)), "P3: the version follows an equal hash");
}

#[test]
fn a_tag_only_change_lets_a_finished_proof_stand() {
    let mut w = verified();
    w.garage.change_layout(true);
    w.run(600, 60).unwrap();
    assert_eq!((w.phase(), w.reason()), (Phase::Verified, "Verified"));
    assert!(message(&w).contains("layout version 2"));
}

#[test]
fn the_first_layout_is_no_proof_and_a_member_added_later_with_the_flag_on_is_node_changed() {
    let mut w = world();
    w.site.on_topology_change = true;
    for n in &mut w.garage.nodes {
        n.storage = false;
    }
    let view = {
        let mut g = w.garage.clone();
        for n in &mut g.nodes {
            n.storage = true;
        }
        let mut view = observe(&mut g, false, ReadFault::None);
        view.core.as_mut().unwrap().layout.roles.clear();
        view
    };
    let first = step(&w.site, &view, None, time(w.garage.now), &w.settings);
    let r = first.redundancy.unwrap();
    assert_eq!(r.verification.as_ref().unwrap().topology_hash, None, "P1: no baseline without storage roles");
    for n in &mut w.garage.nodes[..2] {
        n.storage = true;
    }
    let view = observe(&mut w.garage, false, ReadFault::None);
    let second = step(&w.site, &view, Some(&r), time(w.garage.now + 60), &w.settings);
    let r = second.redundancy.unwrap();
    assert_eq!(r.verification.as_ref().map(|v| (v.phase, v.trigger)), Some((Phase::Idle, None)));
    w.garage.nodes[2].storage = true;
    w.garage.layout.version = 2;
    let view = observe(&mut w.garage, false, ReadFault::None);
    let third = step(&w.site, &view, Some(&r), time(w.garage.now + 120), &w.settings);
    let v = third.redundancy.unwrap().verification.unwrap();
    assert_eq!((v.phase, v.trigger), (Phase::Pending, Some(Trigger::NodeChanged)));
}

#[test]
fn a_changed_capacity_with_the_flag_on_is_layout_changed_and_with_it_off_makes_a_proof_stale() {
    let mut w = verified();
    let mut off = w.clone();
    w.site.on_topology_change = true;
    w.garage.change_layout(false);
    w.run(1, 1).unwrap();
    assert_eq!(v(&w).trigger, Some(Trigger::LayoutChanged));
    off.garage.change_layout(false);
    off.run(1, 1).unwrap();
    assert_eq!((off.phase(), off.reason()), (Phase::Idle, "NotVerified"));
    assert!(message(&off).starts_with("the layout changed after the last proof"), "{}", message(&off));
    let kept = message(&off);
    off.run(600, 60).unwrap();
    assert_eq!(message(&off), kept, "the reason stays while it is idle");
    off.site.on_topology_change = true;
    off.run(600, 60).unwrap();
    assert_eq!(off.phase(), Phase::Idle, "P3: switching the flag on later starts nothing for an old change");
}

#[test]
fn with_the_flag_off_a_running_requested_proof_stops_when_the_layout_changes() {
    let mut w = world();
    w.request("one");
    until(&mut w, Phase::ScanningBlocks, 30);
    let launched = w.launched;
    w.garage.change_layout(false);
    w.run(3600, 60).unwrap();
    assert_eq!((w.phase(), w.launched), (Phase::Idle, launched));
    assert_eq!(v(&w).evidence, None);
    assert!(v(&w).completed_node_ids.is_empty() && v(&w).verified_at.is_none());
}
