#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use holdfast_crds::ids::LayoutVersion;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::act::RepairKind;
use crate::observe::{HistoryStatus, Layout, Role, Silence, StagedChange, WorkerState};
use crate::testing::garage::{Fake, Reply, TOKEN};
use crate::testing::{body, node, recorded};

const VERSIONS: [&str; 2] = ["2.0.0", "2.5.0"];

fn index(version: &str) -> serde_json::Map<String, Value> {
    serde_json::from_str(&body(version, "index")).unwrap()
}

/// Reads a recorded body as its call is read; `None` for calls that the product does not make.
fn read(call: &str, body: &[u8]) -> Option<Result<(), Error>> {
    Some(match call {
        "GetClusterHealth" => wire::health(body).map(drop),
        "GetClusterStatus" => wire::status(body).map(drop),
        "GetClusterLayout" | "UpdateClusterLayout" | "RevertClusterLayout" => wire::layout(body).map(drop),
        "GetClusterLayoutHistory" => wire::history(body).map(drop),
        "ApplyClusterLayout" => wire::applied(body).map(drop),
        "PreviewClusterLayoutChanges" => wire::preview(body).map(drop),
        "ClusterLayoutSkipDeadNodes" => wire::skipped(body).map(drop),
        "ConnectClusterNodes" => wire::connected(body).map(drop),
        "ListWorkers" => all_read(wire::multi(body, wire::workers)),
        "ListBlockErrors" => all_read(wire::multi(body, wire::block_errors)),
        "GetNodeInfo" => all_read(wire::multi(body, wire::node_info)),
        "GetWorkerVariable" => all_read(wire::multi(body, wire::variables)),
        "LaunchRepairOperation" => all_read(wire::multi(body, |_| Ok(()))),
        _ => return None,
    })
}

fn all_read<T>(
    answer: Result<std::collections::BTreeMap<holdfast_crds::ids::NodeId, Result<T, Silence>>, Error>,
) -> Result<(), Error> {
    if answer?.values().any(|a| matches!(a, Err(Silence::Failed))) { Err(Error::Malformed) } else { Ok(()) }
}

fn call_of(entry: &Value) -> &str {
    let path = entry["path"].as_str().unwrap();
    path.trim_start_matches("/v2/").split('?').next().unwrap()
}

#[test]
fn every_recorded_answer_of_both_versions_is_read_whole() {
    for version in VERSIONS {
        let mut seen = 0;
        for (name, entry) in index(version) {
            let file = recorded(version).join(format!("{name}.json"));
            let Ok(body) = std::fs::read(&file) else { continue };
            if entry["status"] != 200 {
                assert!(wire::error_code(&body).is_some(), "{version}/{name}");
                continue;
            }
            // Two files are excerpts: the array of one node alone.
            let excerpt = entry["note"].as_str().is_some_and(|n| n.starts_with("excerpt"));
            let result = if excerpt {
                Some(wire::workers(std::str::from_utf8(&body).unwrap()).map(drop))
            } else {
                read(call_of(&entry), &body)
            };
            if let Some(result) = result {
                assert_eq!(result, Ok(()), "{version}/{name}");
                seen += 1;
            }
        }
        assert!(seen >= 45, "only {seen} answers of {version} were read");
    }
}

#[test]
fn storage_nodes_up_is_read_under_either_name_and_never_guessed() {
    let of = |edit: fn(&mut Value)| {
        let mut value: Value = serde_json::from_str(&body("2.5.0", "GetClusterHealth")).unwrap();
        value.as_object_mut().unwrap().remove("storageNodesUp");
        edit(&mut value);
        wire::health(value.to_string().as_bytes()).map(|h| h.storage_nodes_up)
    };
    assert_eq!(of(|v| v["storageNodesOk"] = json!(3)), Ok(3));
    assert_eq!(of(|v| v["storageNodesUp"] = json!(3)), Ok(3));
    assert_eq!(of(|v| (v["storageNodesUp"], v["storageNodesOk"]) = (json!(3), json!(3))), Ok(3));
    assert_eq!(
        of(|v| (v["storageNodesUp"], v["storageNodesOk"]) = (json!(3), json!(2))),
        Err(Error::Malformed)
    );
    assert_eq!(of(|_| ()), Err(Error::Malformed));
    assert_eq!(of(|v| v["storageNodesUp"] = json!(-1)), Err(Error::Malformed));
    assert_eq!(of(|v| v["storageNodesUp"] = json!(5_000_000_000u64)), Err(Error::Malformed));
}

#[test]
fn the_draining_history_shows_the_dead_node_behind() {
    let history =
        wire::history(body("2.5.0", "replace-3-draining-GetClusterLayoutHistory").as_bytes()).unwrap();
    assert_eq!((history.current, history.min_ack), (LayoutVersion(2), LayoutVersion(1)));
    let statuses: Vec<_> = history.versions.iter().map(|v| v.status).collect();
    assert_eq!(statuses, [HistoryStatus::Current, HistoryStatus::Draining]);
    let trackers = history.trackers.unwrap();
    assert_eq!(trackers[&node(0x33)].ack, LayoutVersion(1));
    assert_eq!(trackers[&node(0x44)].ack, LayoutVersion(2));
}

#[test]
fn trackers_absent_and_trackers_null_are_the_same() {
    let mut value: Value = serde_json::from_str(&body("2.5.0", "GetClusterLayoutHistory")).unwrap();
    assert!(wire::history(value.to_string().as_bytes()).unwrap().trackers.is_none());
    value.as_object_mut().unwrap().remove("updateTrackers");
    assert!(wire::history(value.to_string().as_bytes()).unwrap().trackers.is_none());
}

#[test]
fn staged_changes_keep_assignments_and_removals_apart() {
    let layout = wire::layout(body("2.5.0", "replace-1-UpdateClusterLayout").as_bytes()).unwrap();
    assert_eq!(layout.staged.len(), 2);
    assert_eq!(layout.staged[0], StagedChange { id: node(0x33), role: None });
    assert_eq!(layout.staged[1].id, node(0x44));
    assert_eq!(layout.staged[1].role.as_ref().unwrap().capacity, Some(2_000_000_000));
}

#[test]
fn worker_states_beyond_those_known_are_never_idle_and_never_done() {
    let worker = |state: Value| {
        json!([{"id": 1, "name": "x", "state": state, "errors": 0, "consecutiveErrors": 0}]).to_string()
    };
    let state = |v: Value| wire::workers(&worker(v)).unwrap()[0].state;
    assert_eq!(state(json!("idle")), WorkerState::Idle);
    assert_eq!(state(json!("busy")), WorkerState::Busy);
    assert_eq!(state(json!("done")), WorkerState::Done);
    assert_eq!(state(json!({"throttled": {"durationSecs": 0.04}})), WorkerState::Throttled);
    for odd in [json!("sleeping"), json!({"idle": {}}), json!({"a": 1, "b": 2}), json!(7), json!(null)] {
        assert_eq!(state(odd.clone()), WorkerState::Unknown, "{odd}");
    }
}

#[test]
fn one_nodes_nonsense_is_that_nodes_alone() {
    let good = r#"[{"id":1,"name":"a","state":"idle","errors":0,"consecutiveErrors":0}]"#;
    for bad in [
        // The same worker twice, a huge number, a negative one, a key missing, another type.
        r#"[{"id":1,"name":"a","state":"idle","errors":0,"consecutiveErrors":0},{"id":1,"name":"b","state":"idle","errors":0,"consecutiveErrors":0}]"#,
        r#"[{"id":1e40,"name":"a","state":"idle","errors":0,"consecutiveErrors":0}]"#,
        r#"[{"id":1,"name":"a","state":"idle","errors":-1,"consecutiveErrors":0}]"#,
        r#"[{"id":1,"name":"a","state":"idle","consecutiveErrors":0}]"#,
        r#"[{"id":1,"name":"a","state":"idle","errors":0,"consecutiveErrors":0,"queueLength":-5}]"#,
        r#"{"workers":[]}"#,
        "null",
    ] {
        let text = format!(
            r#"{{"success":{{"{}":{good},"{}":{bad}}},"error":{{"{}":"Timeout"}}}}"#,
            node(1),
            node(2),
            node(3)
        );
        let answers = wire::multi(text.as_bytes(), wire::workers).unwrap();
        assert!(answers[&node(1)].is_ok(), "{bad}");
        assert_eq!(answers[&node(2)], Err(Silence::Failed), "{bad}");
        assert_eq!(answers[&node(3)], Err(Silence::TimedOut), "{bad}");
    }
}

#[test]
fn a_node_that_answers_twice_did_not_answer() {
    let (a, b) = (node(1), node(2));
    let text = format!(r#"{{"success":{{"{a}":[],"{a}":[],"{b}":[]}},"error":{{"{b}":"Timeout"}}}}"#);
    let answers = wire::multi(text.as_bytes(), wire::block_errors).unwrap();
    assert_eq!(answers[&a], Err(Silence::Failed));
    assert_eq!(answers[&b], Err(Silence::Failed));
    let upper = format!(
        r#"{{"success":{{"{}":[],"{}":[]}},"error":{{}}}}"#,
        node(0xab),
        node(0xab).to_string().to_uppercase()
    );
    assert_eq!(wire::multi(upper.as_bytes(), wire::block_errors).unwrap()[&node(0xab)], Err(Silence::Failed));
}

#[test]
fn only_garages_own_words_mean_not_connected() {
    let of = |text: &str| {
        let body = json!({"success": {}, "error": {(node(3).to_string()): text}}).to_string();
        wire::multi(body.as_bytes(), |_| Ok(())).unwrap().remove(&node(3)).unwrap().unwrap_err()
    };
    assert_eq!(of("Network error: Not connected: 3333333333333333"), Silence::NotConnected);
    assert_eq!(of("Not connected"), Silence::NotConnected);
    assert_eq!(of("Timeout"), Silence::TimedOut);
    assert_eq!(of("Network error: oneshot receive error: channel closed"), Silence::Failed);
    assert_eq!(of("InternalError (500): Network error: Not connected: 2222222222222222"), Silence::Failed);
}

#[test]
fn failed_table_syncs_are_summed_over_tables_peers_and_ways_to_fail() {
    let page = r#"
# HELP rpc_netapp_error_counter Number of communication errors
# TYPE rpc_netapp_error_counter counter
rpc_netapp_error_counter{from="1111111111111111",rpc_endpoint="garage_table/sync.rs/Rpc:version",to="3333333333333333"} 256
rpc_netapp_error_counter{from="1111111111111111",rpc_endpoint="garage_table/sync.rs/Rpc:object",to="3333333333333333"} 1
rpc_netapp_error_counter{from="1111111111111111",rpc_endpoint="garage_block/manager.rs/Rpc",to="3333333333333333"} 9
rpc_timeout_counter{rpc_endpoint="garage_table/sync.rs/Rpc:key",to="3333333333333333"} 2 1700000000000
rpc_netapp_request_counter{rpc_endpoint="garage_table/sync.rs/Rpc:key"} 7000
"#;
    assert_eq!(failed_table_syncs(page), Some(259));
    assert_eq!(failed_table_syncs("garage_build_info{version=\"2.5.0\"} 1\n"), Some(0));
    assert_eq!(failed_table_syncs(""), None);
    assert_eq!(failed_table_syncs("<html>not found</html>"), None);
    for broken in ["NaN", "-1", "x", "", "1e300"] {
        let line =
            format!("rpc_netapp_error_counter{{rpc_endpoint=\"garage_table/sync.rs/Rpc:key\"}} {broken}");
        assert_eq!(failed_table_syncs(&line), None, "{line}");
    }
    assert_eq!(failed_table_syncs("rpc_netapp_error_counter{rpc_endpoint=\"garage_ta"), None);
}

/// Recorded on 2.5.0: a tables repair while one of three was frozen, and another once it was dead.
#[test]
fn a_recorded_page_counts_the_frozen_peer_and_the_dead_one() {
    let page = std::fs::read_to_string(recorded("2.5.0").join("metrics-peer-frozen-then-dead.txt")).unwrap();
    assert_eq!(failed_table_syncs(&page), Some(8 + 6));
}

#[test]
fn a_token_is_never_shown() {
    let secret = Secret::new(" example-admin-token\n");
    assert_eq!(format!("{secret:?}"), "Secret(…)");
    let http = Http::new(Deadlines::default()).unwrap();
    let client = Client::new(&http, "127.0.0.1:1".parse().unwrap(), secret);
    assert!(!format!("{client:?}").contains("example"), "{client:?}");
}

fn quick() -> Http {
    Http::new(Deadlines {
        connect: Duration::from_secs(1),
        read: Duration::from_secs(1),
        write: Duration::from_secs(1),
    })
    .unwrap()
}

fn client(fake: &Fake) -> Client {
    Client::new(&quick(), fake.address, Secret::new(TOKEN))
}

#[tokio::test]
async fn calls_that_change_something_send_what_garage_wants() {
    let fake = Fake::start(1, 3).await;
    let client = client(&fake);
    let id = node(3);

    fake.set(
        "LaunchRepairOperation",
        Reply::json(&json!({"success": {(id.to_string()): null}, "error": {}})),
    );
    client.launch_repair(id, RepairKind::Blocks).await.unwrap();
    assert_eq!(fake.last_body(), r#"{"repairType":"blocks"}"#);
    assert_eq!(fake.requests().last().unwrap(), &format!("POST /v2/LaunchRepairOperation?node={id}"));

    fake.set(
        "ClusterLayoutSkipDeadNodes",
        Reply::Body(200, body("2.5.0", "replace-4-ClusterLayoutSkipDeadNodes")),
    );
    let skipped = client.skip_dead_nodes(LayoutVersion(2)).await.unwrap();
    assert_eq!(fake.last_body(), r#"{"version":2,"allowMissingData":false}"#);
    assert_eq!(skipped.ack_updated, [node(0x33)].into());

    fake.set("UpdateClusterLayout", Reply::Body(200, body("2.5.0", "replace-1-UpdateClusterLayout")));
    let role = Role { zone: "dc1".into(), capacity: Some(2_000_000_000), tags: vec!["node3".into()] };
    let changes = [StagedChange { id: node(4), role: Some(role) }, StagedChange { id, role: None }];
    let staged = client.update_layout(&changes, None).await.unwrap();
    assert_eq!(staged.staged.len(), 2);
    let sent: Value = serde_json::from_str(&fake.last_body()).unwrap();
    let wanted = json!({"roles": [
        {"id": node(4), "zone": "dc1", "capacity": 2_000_000_000u64, "tags": ["node3"]},
        {"id": id, "remove": true},
    ]});
    assert_eq!(sent, wanted);

    fake.set("ApplyClusterLayout", Reply::Body(200, body("2.5.0", "replace-2-ApplyClusterLayout")));
    let applied: Layout = client.apply_layout(LayoutVersion(2)).await.unwrap();
    assert_eq!(fake.last_body(), r#"{"version":2}"#);
    assert!(applied.roles.contains_key(&node(0x44)) && !applied.roles.contains_key(&node(0x33)));

    fake.set(
        "PreviewClusterLayoutChanges",
        Reply::Body(200, body("2.5.0", "replace-0-remove-only-PreviewClusterLayoutChanges")),
    );
    assert_eq!(client.preview_layout().await.unwrap(), Preview::Refused(PreviewRefusal::TooFewStorageNodes));

    fake.set("ConnectClusterNodes", Reply::Body(200, body("2.5.0", "ConnectClusterNodes-failed")));
    let peer = "127.0.0.12:3901".parse().unwrap();
    let connected = client.connect(&[(id, peer), (node(5), peer)]).await.unwrap();
    assert_eq!(connected.iter().map(|c| c.success).collect::<Vec<_>>(), [false, false]);
    assert_eq!(client.connect(&[(id, peer)]).await, Err(Error::Malformed), "one peer asked, two answers");

    let echo =
        json!({"success": {(id.to_string()): {"variable": "resync-tranquility", "value": "0"}}, "error": {}});
    fake.set("SetWorkerVariable", Reply::json(&echo));
    client.set_worker_variable(id, "resync-tranquility", "0").await.unwrap();
    assert_eq!(client.set_worker_variable(id, "resync-tranquility", "2").await, Err(Error::Malformed));
}

#[tokio::test]
async fn the_ways_to_fail_are_told_apart() {
    let fake = Fake::start(1, 3).await;
    let client = client(&fake);
    let apply = || client.apply_layout(LayoutVersion(7));

    fake.set("ApplyClusterLayout", Reply::Body(500, body("2.5.0", "error-apply-wrong-version")));
    let error = apply().await.unwrap_err();
    assert_eq!(error, Error::Status { code: 500, kind: StatusKind::InternalError });
    assert!(!error.certainly_not_executed());

    fake.set("ApplyClusterLayout", Reply::Body(400, body("2.5.0", "error-missing-body")));
    let error = apply().await.unwrap_err();
    assert_eq!(error, Error::Status { code: 400, kind: StatusKind::InvalidRequest });
    assert!(error.certainly_not_executed());

    for (reply, expected) in [
        (Reply::Hang, Error::Timeout),
        (Reply::Drip, Error::Timeout),
        (Reply::Cut, Error::Cut),
        (Reply::Huge(40 << 20), Error::Malformed),
        (Reply::Body(200, "garbage".into()), Error::Malformed),
        (Reply::Body(302, String::new()), Error::Status { code: 302, kind: StatusKind::Other }),
    ] {
        fake.set("ApplyClusterLayout", reply.clone());
        let start = Instant::now();
        let error = apply().await.unwrap_err();
        assert_eq!(error, expected, "{reply:?}");
        assert!(!error.certainly_not_executed(), "{reply:?}");
        assert!(start.elapsed() < Duration::from_secs(5), "{reply:?} took {:?}", start.elapsed());
    }

    let wrong = Client::new(&quick(), fake.address, Secret::new("example-other-token"));
    let error = wrong.health().await.unwrap_err();
    assert_eq!(error, Error::Status { code: 403, kind: StatusKind::AccessDenied });
    assert!(!error.to_string().contains("example"), "{error}");
    let broken = Client::new(&quick(), fake.address, Secret::new("two\nlines"));
    assert_eq!(broken.health().await, Err(Error::BadToken));

    // A port that was just free: nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Client::new(&quick(), free, Secret::new(TOKEN)).health().await.unwrap_err();
    assert_eq!(error, Error::Refused);
    assert!(error.certainly_not_executed());
}

#[tokio::test]
async fn a_launch_on_a_node_that_is_down_was_certainly_not_executed() {
    let fake = Fake::start(1, 3).await;
    fake.set("LaunchRepairOperation", Reply::Body(200, body("2.5.0", "hold-LaunchRepairOperation-down")));
    let error = client(&fake).launch_repair(node(0x33), RepairKind::Tables).await.unwrap_err();
    assert_eq!(error, Error::Node(Silence::NotConnected));
    assert!(error.certainly_not_executed());
    let error = client(&fake).launch_repair(node(0x22), RepairKind::Tables).await.unwrap_err();
    assert_eq!(error, Error::Node(Silence::Missing), "in neither map");
    assert!(!error.certainly_not_executed());
}

#[tokio::test]
async fn the_own_identity_is_believed_only_when_the_answer_agrees_with_itself() {
    let fake = Fake::start(2, 3).await;
    assert_eq!(client(&fake).own_info().await.unwrap().node_id, node(2));
    fake.edit("GetNodeInfo?node=self", |v| v["success"][node(2).to_string()]["nodeId"] = json!(node(3)));
    assert_eq!(client(&fake).own_info().await, Err(Error::Malformed));
}

#[tokio::test]
async fn the_metrics_page_gets_the_metrics_token_and_never_the_admin_token() {
    let fake = Fake::start(1, 3).await;
    assert_eq!(client(&fake).failed_table_syncs(None).await, Ok(0));
    fake.set("metrics", Reply::Body(403, String::new()));
    let error = client(&fake).failed_table_syncs(Some(&Secret::new("example-metrics"))).await.unwrap_err();
    assert_eq!(error, Error::Status { code: 403, kind: StatusKind::AccessDenied });
}

/// Any JSON, with numbers and strings that hurt.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-zA-Z*{}\" 0-9]{0,12}".prop_map(Value::from),
        (0u8..4).prop_map(|b| json!(node(b))),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let key = prop_oneof![
            "[a-zA-Z]{1,10}",
            (0u8..4).prop_map(|b| node(b).to_string()),
            proptest::sample::select(
                &[
                    "success",
                    "error",
                    "id",
                    "state",
                    "nodes",
                    "roles",
                    "versions",
                    "updateTrackers",
                    "throttled"
                ][..]
            )
            .prop_map(str::to_owned),
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((key, inner), 0..6)
                .prop_map(|e| Value::Object(e.into_iter().collect())),
        ]
    })
}

const CALLS: [&str; 13] = [
    "GetClusterHealth",
    "GetClusterStatus",
    "GetClusterLayout",
    "GetClusterLayoutHistory",
    "ApplyClusterLayout",
    "PreviewClusterLayoutChanges",
    "ClusterLayoutSkipDeadNodes",
    "ConnectClusterNodes",
    "ListWorkers",
    "ListBlockErrors",
    "GetNodeInfo",
    "GetWorkerVariable",
    "LaunchRepairOperation",
];

fn read_everything(body: &[u8]) {
    for call in CALLS {
        let _ = read(call, body);
    }
    let _ = wire::error_code(body);
    if let Ok(text) = std::str::from_utf8(body) {
        let _ = failed_table_syncs(text);
        if let Ok(workers) = wire::workers(text) {
            let _ = crate::proof::Workers::read(&workers);
        }
    }
}

/// Puts `with` in the place of the `n`th value of a tree, counted from its root.
fn replace(tree: &mut Value, n: &mut usize, with: &Value) {
    if *n == 0 {
        *tree = with.clone();
    }
    *n = n.wrapping_sub(1);
    match tree {
        Value::Array(items) => items.iter_mut().for_each(|v| replace(v, n, with)),
        Value::Object(entries) => entries.values_mut().for_each(|v| replace(v, n, with)),
        _ => (),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read_everything(&bytes);
    }

    #[test]
    fn any_json_is_read_without_a_panic(value in any_json()) {
        read_everything(value.to_string().as_bytes());
    }

    #[test]
    fn any_metrics_page_is_read_without_a_panic(page in "(rpc_netapp_error_counter[ -~\n]{0,60}\n?){0,4}") {
        let _ = failed_table_syncs(&page);
    }

    #[test]
    fn a_recorded_answer_with_one_value_changed_is_read_without_a_panic(
        name in proptest::sample::select(&[
            "GetClusterHealth", "GetClusterStatus", "replace-1-UpdateClusterLayout", "replace-2-ApplyClusterLayout",
            "replace-3-draining-GetClusterLayoutHistory", "hold-ListBlockErrors", "ListBlockErrors-lost",
            "GetNodeInfo", "GetWorkerVariable",
        ][..]),
        place in 0usize..120,
        with in any_json(),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut value: Value = serde_json::from_str(&body("2.5.0", name)).unwrap();
        replace(&mut value, &mut place.clone(), &with);
        let text = value.to_string();
        read_everything(text.as_bytes());
        read_everything(&text.as_bytes()[..cut.index(text.len())]);
    }
}
