#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::garage::wire as parse;
use crate::observe::{LayoutParameters, PeerView, Role, ZoneRedundancy};
use crate::testing::{body, node};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A core of recorded answers.
fn core(version: &str, health: &str, status: &str, layout: &str, history: &str) -> Core {
    let of = |name: &str| body(version, name).into_bytes();
    let (status_layout_version, nodes) = parse::status(&of(status)).unwrap();
    Core {
        answering: None,
        health: parse::health(&of(health)).unwrap(),
        status_layout_version,
        nodes,
        layout: parse::layout(&of(layout)).unwrap(),
        history: parse::history(&of(history)).unwrap(),
    }
}

fn whole(version: &str) -> Core {
    core(version, "GetClusterHealth", "GetClusterStatus", "GetClusterLayout", "GetClusterLayoutHistory")
}

fn after_replace(version: &str) -> Core {
    core(
        version,
        "replace-5-settled-GetClusterHealth",
        "replace-5-settled-GetClusterStatus",
        "replace-5-settled-GetClusterLayout",
        "replace-5-settled-GetClusterLayoutHistory",
    )
}

fn with_history(mut core: Core, history: &Value) -> Core {
    core.history = parse::history(history.to_string().as_bytes()).unwrap();
    core.layout.version = core.history.current;
    core.status_layout_version = core.history.current;
    core
}

fn versions(of: &[(u64, &str)]) -> Value {
    of.iter().map(|(v, s)| json!({"version": v, "status": s, "storageNodes": 3, "gatewayNodes": 0})).collect()
}

fn role() -> Role {
    Role { zone: "dc1".into(), capacity: Some(1 << 40), tags: vec![] }
}

#[test]
fn a_recorded_site_is_settled_before_and_after_a_replace_on_both_versions() {
    for version in ["2.0.0", "2.5.0"] {
        assert_eq!(settled(&whole(version)), Ok(()));
        assert_eq!(settled(&after_replace(version)), Ok(()));
    }
}

#[test]
fn a_replaced_dead_identity_keeps_its_version_draining_and_is_named_among_those_that_lag() {
    let mut core = after_replace("2.5.0");
    core.history =
        parse::history(body("2.5.0", "replace-3-draining-GetClusterLayoutHistory").as_bytes()).unwrap();
    let unsettled = settled(&core).unwrap_err();
    assert_eq!(unsettled, Unsettled::NotSynced { draining: LayoutVersion(1), node: node(0x11), lagging: 4 });
    assert_eq!(
        unsettled.to_string(),
        "layout version 1 is still draining: node 1111111111111111 and 3 more have not synced"
    );
}

/// garage-operator#304.
#[test]
fn trackers_that_vanish_when_the_sync_finishes_mean_settled() {
    let mut site = whole("2.5.0");
    site.layout.roles = [(node(9), role())].into();
    let first = json!({"currentVersion": 8, "minAck": 7, "versions": versions(&[(8, "Current"), (7, "Draining")]),
        "updateTrackers": {(node(9).to_string()): {"ack": 8, "sync": 7, "syncAck": 7}}});
    assert_eq!(
        settled(&with_history(site.clone(), &first)),
        Err(Unsettled::NotSynced { draining: LayoutVersion(7), node: node(9), lagging: 1 })
    );
    let mut second = json!({"currentVersion": 8, "minAck": 8,
        "versions": versions(&[(8, "Current"), (7, "Historical")]), "updateTrackers": null});
    assert_eq!(settled(&with_history(site.clone(), &second)), Ok(()));
    second.as_object_mut().unwrap().remove("updateTrackers");
    assert_eq!(settled(&with_history(site, &second)), Ok(()));
}

/// garage-operator#336.
#[test]
fn a_lagging_sync_ack_is_housekeeping_and_a_lagging_sync_is_not() {
    let mut site = whole("2.5.0");
    site.layout.roles = [(node(1), role())].into();
    let history = |sync: u64| {
        json!({"currentVersion": 2, "minAck": 2, "versions": versions(&[(2, "Current"), (1, "Draining")]),
            "updateTrackers": {(node(1).to_string()): {"ack": 2, "sync": sync, "syncAck": 1}}})
    };
    assert_eq!(settled(&with_history(site.clone(), &history(2))), Ok(()));
    let unsettled = settled(&with_history(site, &history(1))).unwrap_err();
    assert_eq!(
        unsettled.to_string(),
        "layout version 1 is still draining: node 0101010101010101 has not synced"
    );
}

#[test]
fn a_draining_version_without_trackers_is_not_settled() {
    for trackers in [json!(null), json!({})] {
        let history = json!({"currentVersion": 2, "minAck": 2, "updateTrackers": trackers,
            "versions": versions(&[(2, "Current"), (1, "Draining")])});
        let mut site = whole("2.5.0");
        site.layout.roles.clear();
        assert_eq!(settled(&with_history(site, &history)), Err(Unsettled::Draining(LayoutVersion(1))));
    }
}

#[test]
fn a_storage_node_without_a_tracker_lags() {
    let trackers: serde_json::Map<_, _> = [0x11, 0x22]
        .iter()
        .map(|&b| (node(b).to_string(), json!({"ack": 2, "sync": 2, "syncAck": 2})))
        .collect();
    let history = json!({"currentVersion": 2, "minAck": 2, "updateTrackers": trackers,
        "versions": versions(&[(2, "Current"), (1, "Draining")])});
    assert_eq!(
        settled(&with_history(whole("2.5.0"), &history)),
        Err(Unsettled::NotSynced { draining: LayoutVersion(1), node: node(0x33), lagging: 1 })
    );
}

#[test]
fn versions_that_disagree_are_not_settled() {
    for edit in [
        (|c: &mut Core| c.status_layout_version = LayoutVersion(2)) as fn(&mut Core),
        |c| c.layout.version = LayoutVersion(2),
        |c| c.history.current = LayoutVersion(2),
    ] {
        let mut site = whole("2.5.0");
        edit(&mut site);
        assert!(matches!(settled(&site), Err(Unsettled::VersionsDisagree { .. })), "{:?}", settled(&site));
    }
    let mut site = whole("2.5.0");
    site.history.versions.clear();
    assert_eq!(settled(&site), Err(Unsettled::NoCurrentVersion(LayoutVersion(1))));
}

/// D12.
#[test]
fn a_staged_removal_of_an_id_without_a_role_is_no_change_and_everything_else_is() {
    let mut site = whole("2.5.0");
    site.layout.staged = vec![StagedChange { id: node(0x55), role: None }];
    assert_eq!(settled(&site), Ok(()));
    site.layout.staged = vec![StagedChange { id: node(0x33), role: None }];
    assert_eq!(settled(&site), Err(Unsettled::StagedRole(node(0x33))));
    site.layout.staged = vec![StagedChange { id: node(0x55), role: Some(role()) }];
    assert_eq!(settled(&site), Err(Unsettled::StagedRole(node(0x55))));
    // What a staging call leaves that ran after the version was made: the role as it is.
    let (own, same) = site.layout.roles.iter().next().map(|(id, role)| (*id, role.clone())).unwrap();
    site.layout.staged = vec![StagedChange { id: own, role: Some(same.clone()) }];
    assert_eq!(settled(&site), Ok(()));
    site.layout.staged = vec![StagedChange { id: own, role: Some(Role { zone: "other".into(), ..same }) }];
    assert_eq!(settled(&site), Err(Unsettled::StagedRole(own)));
    site.layout.staged.clear();
    site.layout.staged_parameters = Some(LayoutParameters { zone_redundancy: ZoneRedundancy::AtLeast(2) });
    assert_eq!(settled(&site), Err(Unsettled::StagedParameters));
}

/// O9: 1 % or 256 MiB, whichever is more, never more than a quarter.
#[rstest]
#[case::one_percent_of_a_big_disk(100 * GIB, GIB, true)]
#[case::just_below_one_percent(100 * GIB, GIB - 1, false)]
#[case::the_floor_of_a_middling_disk(10 * GIB, 256 * MIB, true)]
#[case::just_below_the_floor(10 * GIB, 256 * MIB - 1, false)]
#[case::a_quarter_of_a_small_disk(512 * MIB, 128 * MIB, true)]
#[case::just_below_a_quarter(512 * MIB, 128 * MIB - 1, false)]
#[case::a_file_system_of_no_size(0, 0, false)]
fn room_is_judged_by_the_size_of_the_file_system(
    #[case] total: u64,
    #[case] available: u64,
    #[case] room: bool,
) {
    assert_eq!(has_room(Partition { available, total }), room);
}

#[test]
fn an_absent_partition_is_unknown_and_a_full_one_is_told_first() {
    let site = whole("2.5.0");
    let mut n = site.nodes[&node(0x11)].clone();
    assert_eq!(room(&n), Room::Enough);
    n.data_partition = None;
    assert_eq!(room(&n), Room::Unknown(Disk::Data));
    n.metadata_partition = Some(Partition { available: 0, total: GIB });
    assert_eq!(room(&n), Room::None(Disk::Metadata));
}

#[rstest]
#[case(Some("cargo:2.5.0"), true)]
#[case(Some("v2.3.0"), true)]
#[case(Some("2.3"), true)]
#[case(Some("3.0.0-rc1"), true)]
#[case(Some("cargo:2.2.9"), false)]
#[case(Some("2.0.0"), false)]
#[case(Some("main"), false)]
#[case(Some(""), false)]
#[case(None, false)]
fn garage_notices_failed_block_writes_from_2_3_0_on(#[case] version: Option<&str>, #[case] notices: bool) {
    assert_eq!(notices_failed_writes(version), notices);
}

/// FACTS 3: 2.0.0 calls a node without layout healthy, with 256 of 256.
#[test]
fn a_node_without_layout_is_never_healthy() {
    for version in ["2.0.0", "2.5.0"] {
        let health = parse::health(body(version, "roleless-GetClusterHealth").as_bytes()).unwrap();
        assert!(!is_healthy(&health), "{version}");
        assert!(is_healthy(&whole(version).health), "{version}");
    }
}

#[test]
fn a_view_that_is_missing_or_not_healthy_is_named() {
    let all: BTreeSet<NodeId> = [node(1), node(2)].into();
    let good = PeerView { health: whole("2.5.0").health, up: all.clone() };
    let mut views: BTreeMap<NodeId, Result<PeerView, Silence>> =
        all.iter().map(|&id| (id, Ok(good.clone()))).collect();
    assert_eq!(all_healthy(Some(&views), &all, &all), Ok(()));

    let mut sick = good;
    sick.health.partitions_all_ok = 255;
    views.insert(node(2), Ok(sick));
    assert_eq!(
        all_healthy(Some(&views), &all, &all).unwrap_err().to_string(),
        "node 0202020202020202 does not call the site healthy"
    );
    views.insert(node(2), Err(Silence::TimedOut));
    assert_eq!(
        all_healthy(Some(&views), &all, &all).unwrap_err().to_string(),
        "the own view of node 0202020202020202 is not known (no answer in time)"
    );
    assert!(all_healthy(None, &all, &all).is_err(), "nobody was asked");
}
