#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

//! The proof against the Garage model, one sentence a test.

use std::collections::BTreeSet;

use holdfast_crds::conditions::{ConditionStatus, FullyReplicatedReason as Reason};
use holdfast_crds::ids::{LayoutVersion, NodeId};
use holdfast_crds::status::{DeferReason, Evidence, Phase, Redundancy, Scope, Trigger, Verification};

use super::*;
use crate::act::RepairKind;
use crate::sim::garage::{Set, identity};
use crate::sim::observe::{ReadFault, observe};
use crate::sim::world::time;
use crate::sim::{Garage, GarageVersion, LaunchFault, PassFault, World, WriteFault};

fn world() -> World {
    World::new(Garage::new(7, GarageVersion::V250, 3, 0), SiteRole::Unset)
}

/// Runs a minute at a time until the phase is reached.
fn until(w: &mut World, phase: Phase, minutes: usize) {
    for _ in 0..minutes {
        if w.phase() == phase {
            return;
        }
        w.run(60, 60).unwrap();
    }
    panic!("{phase:?} was not reached in {minutes} minutes: {:?}, {:?}", w.phase(), w.site.condition);
}

fn verified() -> World {
    let mut w = world();
    w.request("one");
    until(&mut w, Phase::Verified, 60);
    w
}

fn v(w: &World) -> &Verification {
    w.stored.as_ref().unwrap().verification.as_ref().unwrap()
}

fn deferred(w: &World, x: usize) -> Option<DeferReason> {
    w.stored.as_ref().unwrap().deferred_nodes.iter().find(|d| d.node_id == identity(x)).map(|d| d.reason)
}

fn message(w: &World) -> String {
    w.site.condition.as_ref().unwrap().message.clone()
}

fn launched_on(w: &World, kind: RepairKind) -> Vec<usize> {
    w.launches.iter().filter(|l| l.kind == kind).map(|l| l.node).collect()
}

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

fn federated(role: SiteRole) -> World {
    World::new(Garage::new(3, GarageVersion::V250, 2, 1), role)
}

#[test]
fn a_follower_ignores_the_flag() {
    let mut w = federated(SiteRole::Follower);
    w.site.on_topology_change = true;
    w.run(120, 60).unwrap();
    w.garage.change_layout(false);
    w.run(3600, 60).unwrap();
    assert_eq!((w.phase(), w.launched), (Phase::Idle, 0));
}

#[test]
fn a_federated_site_without_a_role_runs_nothing_and_says_what_to_set() {
    let mut w = federated(SiteRole::Unset);
    w.request("one");
    w.run(600, 60).unwrap();
    let r = w.stored.as_ref().unwrap();
    assert_eq!((w.reason(), w.launched), ("SiteRoleUnset", 0));
    assert!(r.verification.is_none() && r.scope.is_none() && r.storage_nodes.is_none());
    assert_eq!(r.nodes.len(), 3, "P5: nodes are still filled");
}

#[test]
fn a_writer_never_repairs_nodes_declared_as_external_even_with_its_own_uid_tag() {
    let mut w = federated(SiteRole::Writer);
    let outside = w.garage.nodes[2].id;
    w.request("one");
    let mut previous: Option<Redundancy> = None;
    for _ in 0..120 {
        w.garage.advance(60);
        w.site.members = Some(
            (0..3).map(|x| Member { id: Some(identity(x)), external: x == 2, gateway: false }).collect(),
        );
        let mut view = observe(&mut w.garage, true, ReadFault::None);
        view.core.as_mut().unwrap().layout.roles.get_mut(&outside).unwrap().tags =
            vec!["cluster-uid:uid-here".to_owned()];
        let now = time(w.garage.now);
        let s = step(&w.site, &view, previous.as_ref(), now, &w.settings);
        let mut r = s.redundancy.unwrap();
        for action in &s.actions {
            let crate::act::Action::LaunchRepair { node, kind } = action else { panic!() };
            assert_ne!(*node, outside, "P4");
            let x = w.garage.nodes.iter().position(|n| n.id == *node).unwrap();
            match kind {
                RepairKind::Tables => w.garage.ask_sync(x),
                RepairKind::Blocks => w.garage.begin_blocks(x, true, 0),
            }
            r = after_launch(&r, action, LaunchOutcome::Accepted, now);
        }
        previous = Some(r);
    }
    let r = previous.unwrap();
    assert_eq!(r.verification.unwrap().phase, Phase::Verified);
    assert_eq!(r.storage_nodes.map(|s| (s.total, s.local, s.remote, s.verified)), Some((3, 2, 1, 2)));
    assert_eq!(r.scope, Some(Scope::Local));
}

#[test]
fn a_restart_of_a_remote_garage_is_no_activity() {
    let mut w = federated(SiteRole::Writer);
    w.garage.begin_blocks(2, false, 0);
    w.run(1200, 60).unwrap();
    let seen = w.stored.as_ref().unwrap().coordination.clone().unwrap();
    assert_eq!(seen.remote_repair_worker_ids[&identity(2)], 60);
    w.garage.kill(2);
    w.run(120, 60).unwrap();
    let away = w.stored.as_ref().unwrap().coordination.clone().unwrap();
    assert_eq!(away, seen, "F1: a node that is away keeps what is recorded");
    w.garage.start(2, false);
    w.run(300, 60).unwrap();
    let back = w.stored.as_ref().unwrap().coordination.clone().unwrap();
    assert_eq!(back.last_remote_repair_at, seen.last_remote_repair_at);
    assert_eq!(back.remote_repair_worker_ids[&identity(2)], 0, "it only rebases");
    w.garage.begin_blocks(2, false, 0);
    w.run(120, 60).unwrap();
    let active = w.stored.as_ref().unwrap().coordination.clone().unwrap();
    assert!(active.last_remote_repair_at > seen.last_remote_repair_at);
    assert_eq!(active.last_remote_repair_node_id, Some(identity(2)));
}

#[test]
fn a_requested_site_waits_for_another_sites_repair_and_starts_one_hold_down_after_it() {
    let mut w = federated(SiteRole::Writer);
    w.run(1200, 60).unwrap();
    w.garage.begin_blocks(2, false, 0);
    w.run(1, 1).unwrap();
    w.request("one");
    w.run(60, 60).unwrap();
    assert_eq!((w.phase(), w.reason(), w.launched), (Phase::Pending, "WaitingForOtherSite", 0));
    let begin = w.garage.now;
    until(&mut w, Phase::SyncingMetadata, 30);
    assert!(w.garage.now - begin >= 15 * 60 - 120, "F2");
}

#[test]
fn a_follower_yields_between_turns_and_a_writer_that_started_does_not() {
    for (role, yields) in [(SiteRole::Follower, true), (SiteRole::Writer, false)] {
        let mut w = federated(role);
        w.request("one");
        until(&mut w, Phase::SyncingMetadata, 40);
        w.garage.begin_blocks(2, false, 0);
        let launched = w.launched;
        w.run(600, 60).unwrap();
        assert_eq!(w.launched == launched, yields, "F3: {role:?}");
        assert_eq!(w.reason() == "WaitingForOtherSite", yields);
        until(&mut w, Phase::Verified, 200);
        let local = if yields { "(follower-local)" } else { "(writer-local)" };
        assert_eq!(w.reason(), "VerifiedLocal");
        assert!(message(&w).starts_with("2/3 federated storage nodes verified "), "{}", message(&w));
        assert!(message(&w).contains(local));
    }
}

#[test]
fn two_followers_wait_different_times() {
    let t = Timings::default();
    let a = hold_down("2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c", true, &t);
    let b = hold_down("6e0a5c3d-91c1-4d0f-9e54-7a40d7f1b2ee", true, &t);
    assert_ne!(a, b);
    for n in 0..1000 {
        let h = hold_down(&format!("uid-{n}"), true, &t);
        assert!((900 + 60..=900 + 600).contains(&h), "F2: {h}");
        assert_eq!(hold_down(&format!("uid-{n}"), false, &t), 900);
    }
}

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

#[test]
fn a_new_token_resets_a_running_proof_and_keeps_the_time_of_the_last_one() {
    let mut w = verified();
    let at = v(&w).verified_at;
    w.request("two");
    until(&mut w, Phase::ScanningBlocks, 30);
    w.request("three");
    w.calm().unwrap();
    assert_eq!(v(&w).verified_at, at);
    assert!(v(&w).completed_node_ids.is_empty());
    assert_eq!(v(&w).request_token.as_deref(), Some("three"));
    assert_ne!(w.phase(), Phase::ScanningBlocks);
}

#[test]
fn preconditions_pause_in_place_and_a_drain_drops_the_quiet_period() {
    let mut w = world();
    w.request("one");
    until(&mut w, Phase::Settling, 60);
    w.run(120, 60).unwrap();
    let since = v(&w).evidence.as_ref().unwrap().quiet_since;
    assert!(since.is_some());
    w.garage.layout.staged = true;
    w.run(60, 60).unwrap();
    assert_eq!((w.phase(), w.reason()), (Phase::Settling, "PreconditionsNotMet"));
    assert_eq!(v(&w).evidence.as_ref().unwrap().quiet_since, since, "P15: it pauses in place");
    w.garage.layout.staged = false;
    w.site.busy = Some(Busy { what: "a storage drain is active".to_owned(), moves_data: true });
    w.run(60, 60).unwrap();
    assert_eq!(message(&w), "a storage drain is active");
    let e = v(&w).evidence.clone().unwrap();
    assert!(e.quiet_since.is_none() && e.resync_error_baselines.is_empty());
    w.site.busy = None;
    until(&mut w, Phase::Verified, 60);
}

#[test]
fn messages_and_status_are_equal_across_passes_while_garages_counters_tick() {
    let mut w = verified();
    w.run(1800, 60).unwrap();
    let (before, condition, writes) = (w.stored.clone(), w.site.condition.clone(), w.writes);
    for _ in 0..10 {
        w.garage.nodes[1].sync_rpc_errors += 1;
        w.garage.nodes[0].sync_errors += 1;
        w.run(60, 60).unwrap();
    }
    assert_eq!((w.stored.clone(), w.site.condition.clone(), w.writes), (before, condition, writes), "P19");
}

#[test]
fn progress_is_rewritten_at_most_once_a_minute() {
    let mut w = verified();
    w.run(1800, 60).unwrap();
    let writes = w.writes;
    for i in 0..60i64 {
        w.garage.nodes[1].queue[15] = if i % 2 == 0 { i64::MAX } else { i64::MAX - 1 };
        w.run(1, 1).unwrap();
    }
    assert!(w.writes - writes <= 2, "P19: {}", w.writes - writes);
}

#[test]
fn contradicting_health_repeated_ids_and_torn_snapshots_launch_nothing_and_say_so() {
    let mut w = world();
    w.run(60, 60).unwrap();
    w.request("one");
    w.garage.advance(60);
    let s = w.pass(PassFault { read: ReadFault::OddHealth, ..PassFault::default() }).unwrap();
    assert_eq!(s.condition.as_ref().map(|c| c.reason), Some(Reason::NotObserved));
    assert!(s.actions.is_empty());
    let s = w.pass(PassFault { read: ReadFault::Torn, ..PassFault::default() }).unwrap();
    assert_eq!(s.condition.as_ref().map(|c| c.status), Some(ConditionStatus::Unknown));
    assert!(s.actions.is_empty());
    let mut view = observe(&mut w.garage, true, ReadFault::None);
    let list = view.workers.get_mut(&identity(0)).unwrap().as_mut().unwrap();
    let twice = list[1].clone();
    list.push(twice);
    let s = step(&w.site, &view, w.stored.as_ref(), time(w.garage.now), &w.settings);
    let r = s.redundancy.unwrap();
    assert!(!r.nodes.iter().find(|n| n.node_id == identity(0)).unwrap().observed, "O4");
    assert_eq!(r.deferred_nodes.first().map(|d| d.reason), Some(DeferReason::NotReporting));
}

#[test]
fn evidence_of_another_shape_restarts_a_running_proof_and_unmakes_a_finished_one() {
    let mut w = world();
    w.request("one");
    until(&mut w, Phase::ScanningBlocks, 30);
    let strange = Some(Evidence { unrecognized: true, ..Evidence::default() });
    let mut finished = verified();
    for w in [&mut w, &mut finished] {
        w.stored.as_mut().unwrap().verification.as_mut().unwrap().evidence.clone_from(&strange);
        w.garage.advance(10);
        w.calm().unwrap();
    }
    assert_eq!(v(&w).phase, Phase::SyncingMetadata);
    assert_eq!(v(&w).trigger, Some(Trigger::Requested));
    assert!(v(&w).completed_node_ids.is_empty());
    assert_eq!(finished.phase(), Phase::Idle);
}

#[test]
fn an_endpoint_that_answers_from_an_older_layout_is_not_believed() {
    let mut w = world();
    w.garage.layout.version = 5;
    w.run(60, 60).unwrap();
    let before = w.stored.clone();
    w.garage.layout.version = 4;
    w.run(60, 60).unwrap();
    assert_eq!(w.reason(), "NotObserved", "O6");
    assert_eq!(w.stored, before);
}

#[test]
fn nothing_observed_keeps_the_status_and_defers_nobody() {
    let mut w = verified();
    let before = w.stored.clone();
    for _ in 0..5 {
        w.garage.advance(60);
        w.pass(PassFault { read: ReadFault::NoAnswer, ..PassFault::default() }).unwrap();
    }
    assert_eq!((w.stored.clone(), w.reason()), (before, "NotObserved"), "O3");
    assert!(message(&w).contains("(last verified "), "{}", message(&w));
    w.site.members = None;
    let view = observe(&mut w.garage, false, ReadFault::None);
    let s = step(&w.site, &view, w.stored.as_ref(), time(w.garage.now), &w.settings);
    assert_eq!(s.condition.map(|c| c.reason), Some(Reason::NotObserved), "O3: the GarageNodes");
}

#[test]
fn a_remote_node_that_goes_away_voids_nothing_and_a_local_one_does() {
    let mut w = federated(SiteRole::Writer);
    w.request("one");
    until(&mut w, Phase::Verified, 200);
    w.garage.kill(2);
    w.run(600, 60).unwrap();
    assert_eq!(w.phase(), Phase::Verified, "D8");
    w.garage.kill(1);
    w.run(60, 60).unwrap();
    assert_eq!(w.phase(), Phase::Idle, "P16");
    assert!(message(&w).contains(&identity(1).short()));
}

#[test]
fn with_scope_local_blocks_turns_wait_for_the_other_sites_anti_entropy() {
    let mut w = federated(SiteRole::Writer);
    w.request("one");
    until(&mut w, Phase::ScanningBlocks, 60);
    let begin = w.garage.now;
    while !w.launches.iter().any(|l| l.kind == RepairKind::Blocks) {
        w.run(60, 60).unwrap();
    }
    assert!(w.garage.now - begin >= 660, "P6, D9: {}", w.garage.now - begin);
}

#[test]
fn a_cluster_without_a_storage_tier_has_no_redundancy_and_no_condition() {
    let mut w = world();
    w.site.storage_tier = false;
    let view = observe(&mut w.garage, false, ReadFault::None);
    let s = step(&w.site, &view, None, time(w.garage.now), &w.settings);
    assert_eq!(s, Step { redundancy: None, condition: None, actions: Vec::new() }, "P5");
}

#[test]
fn a_stale_pass_never_rolls_evidence_back() {
    let mut w = world();
    w.request("one");
    w.run(60, 60).unwrap();
    let (a, b) = (w.stored.clone(), Some(Redundancy::default()));
    assert_eq!(merge(a.as_ref(), a.as_ref()), Merged::Computed);
    assert_eq!(merge(a.as_ref(), b.as_ref()), Merged::Fresh, "P20");
    assert_eq!(merge(None, a.as_ref()), Merged::Fresh);
}

#[test]
fn the_status_of_256_nodes_stays_within_its_budget() {
    let mut g = Garage::new(1, GarageVersion::V250, 3, 0);
    let mut view = observe(&mut g, true, ReadFault::None);
    let ids: Vec<NodeId> = (0..256u32)
        .map(|n| {
            let mut b = [0xabu8; 32];
            b[..4].copy_from_slice(&n.to_be_bytes());
            NodeId::from_bytes(b)
        })
        .collect();
    let core = view.core.as_mut().unwrap();
    let (role, state) = (core.layout.roles[&identity(0)].clone(), core.nodes[&identity(0)].clone());
    core.layout.roles = ids.iter().map(|id| (*id, role.clone())).collect();
    core.nodes = ids.iter().map(|id| (*id, state.clone())).collect();
    let (workers, errors) = (view.workers[&identity(0)].clone(), view.block_errors[&identity(0)].clone());
    view.workers = ids.iter().map(|id| (*id, workers.clone())).collect();
    view.block_errors = ids.iter().map(|id| (*id, errors.clone())).collect();
    let all: BTreeSet<NodeId> = ids.iter().copied().collect();
    let peer = view.peer_views.as_ref().unwrap()[&identity(0)].clone();
    view.peer_views = Some(
        ids.iter()
            .map(|id| (*id, peer.clone().map(|p| crate::observe::PeerView { up: all.clone(), ..p })))
            .collect(),
    );
    view.sync_rpc_errors = ids.iter().map(|id| (*id, 0)).collect();
    let mut w = World::new(g, SiteRole::Unset);
    w.site.pods = ids
        .iter()
        .map(|id| {
            let uid = "9d9c7a4e-5d5b-4c55-8c49-3f1f62b1b2a1".to_owned();
            (*id, PodFacts { uid, restarts: 3, started_at: None })
        })
        .collect();
    w.site.token = Some("one".to_owned());
    let now = time(w.garage.now);
    let first = step(&w.site, &view, None, now, &w.settings).redundancy.unwrap();
    // The fullest evidence: everything done, in Settling with baselines.
    let mut full = first.clone();
    {
        let v = full.verification.as_mut().unwrap();
        v.phase = Phase::Settling;
        v.current_node_id = None;
        v.completed_node_ids.clone_from(&all);
        let incarnation = v.evidence.as_ref().unwrap().incarnations.values().next().unwrap().clone();
        v.evidence = Some(Evidence {
            tables_done_node_ids: all.clone(),
            incarnations: ids.iter().map(|id| (*id, incarnation.clone())).collect(),
            ..Evidence::default()
        });
    }
    let s = step(&w.site, &view, Some(&full), time(w.garage.now + 60), &w.settings);
    let r = s.redundancy.unwrap();
    assert_eq!(r.verification.as_ref().unwrap().phase, Phase::Settling);
    assert!(r.verification.as_ref().unwrap().evidence.as_ref().unwrap().quiet_since.is_some());
    assert_eq!((r.nodes.len(), r.storage_nodes.unwrap().verified), (256, 256));
    let bytes = serde_json::to_vec(&r).unwrap().len();
    assert!(bytes < 400_000, "{bytes} bytes: far below etcd's 1.5 MB beside a full drain");
    let again = step(&w.site, &view, Some(&full), time(w.garage.now + 60), &w.settings).redundancy.unwrap();
    assert_eq!(serde_json::to_vec(&again).unwrap(), serde_json::to_vec(&r).unwrap(), "P19: equal bytes");
}
