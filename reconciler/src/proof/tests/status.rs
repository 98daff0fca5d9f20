//! What is written and said, and what is not believed (P2, P15, P18 to P20, O3, O6, section 9).

use super::*;

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
