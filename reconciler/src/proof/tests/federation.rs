//! Sites of one layout (P4 to P6, P14, F1 to F5).

use super::*;

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

/// Settles with a remote node that is seen at work in the passes that `busy` picks, for so many minutes.
fn settles(minutes: usize, busy: impl Fn(usize) -> bool) -> (World, i64) {
    let mut w = federated(SiteRole::Writer);
    w.request("one");
    until(&mut w, Phase::Settling, 200);
    let begun = w.garage.now;
    for pass in 0..minutes {
        w.garage.advance(60);
        if busy(pass) {
            w.garage.ask_sync(2);
        }
        w.calm().unwrap();
        if w.phase() == Phase::Verified {
            break;
        }
    }
    let took = w.garage.now - begun;
    (w, took)
}

#[test]
fn a_remote_node_that_compares_its_tables_now_and_then_holds_nothing_up() {
    // FACTS 7: two of the five sync workers do so every ten seconds.
    let (calm, undisturbed) = settles(60, |_| false);
    assert_eq!(calm.phase(), Phase::Verified);
    assert!(undisturbed >= 1390, "P14: {undisturbed} s");
    for busy in [|pass: usize| pass.is_multiple_of(2), |pass: usize| !pass.is_multiple_of(3)] {
        let (w, took) = settles(60, busy);
        assert_eq!(w.phase(), Phase::Verified, "{}", message(&w));
        assert!((undisturbed..=undisturbed + 240).contains(&took), "{took} s, undisturbed {undisturbed}");
    }
}

#[test]
fn a_remote_pass_that_never_ends_is_named_and_never_true() {
    let (w, _) = settles(240, |_| true);
    assert_eq!((w.phase(), w.reason()), (Phase::Settling, "Stalled"));
    let words = format!("the table sync of remote storage node {}", identity(2).short());
    assert!(message(&w).contains(&words), "{}", message(&w));
}

#[test]
fn a_pass_that_began_before_and_ended_late_moves_the_end_of_the_quiet_period() {
    // Busy from a minute after the begin until half an hour later: what it brings last is checked two RPC timeouts on.
    let (w, took) = settles(120, |pass| (1..30).contains(&pass));
    assert_eq!(w.phase(), Phase::Verified, "{}", message(&w));
    assert!((30 * 60 + 670..=30 * 60 + 670 + 300).contains(&took), "{took} s");
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
