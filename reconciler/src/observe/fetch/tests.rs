#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::garage::Deadlines;
use crate::observe::judge;
use crate::testing::garage::{Fake, Reply, TOKEN};
use crate::testing::node;

fn http() -> Http {
    let second = Duration::from_secs(1);
    Http::new(Deadlines { connect: second, read: second, write: second }).unwrap()
}

fn tokens() -> Tokens {
    Tokens { admin: Secret::new(TOKEN), metrics: None }
}

fn limits() -> Limits {
    Limits { pass: Duration::from_secs(6), failover: Duration::from_secs(4), at_once: 16 }
}

/// Endpoints of the nodes 1, 2, …
fn endpoints(fakes: &[&Fake]) -> Vec<Endpoint> {
    let ids = 1u8..;
    fakes.iter().zip(ids).map(|(f, i)| Endpoint { address: f.address, node: Some(node(i)) }).collect()
}

async fn observe(fakes: &[&Fake], known: Option<u64>, ask: Ask) -> GarageView {
    let start = std::time::Instant::now();
    let known = known.map(LayoutVersion);
    let view = observe_garage(&http(), &tokens(), &endpoints(fakes), known, ask, &limits()).await;
    assert!(start.elapsed() < limits().pass + Duration::from_secs(2), "a pass took {:?}", start.elapsed());
    view
}

fn what(view: &GarageView) -> &str {
    &view.core.as_ref().unwrap_err().what
}

#[tokio::test]
async fn a_pass_makes_six_calls_at_three_nodes_and_at_thirty() {
    for nodes in [3, 30] {
        let fake = Fake::start(1, nodes).await;
        let view = observe(&[&fake], Some(1), Ask::default()).await;
        let mut requests = fake.requests();
        requests.sort();
        assert_eq!(
            requests,
            [
                "GET /v2/GetClusterHealth",
                "GET /v2/GetClusterLayout",
                "GET /v2/GetClusterLayoutHistory",
                "GET /v2/GetClusterStatus",
                "GET /v2/ListBlockErrors?node=*",
                "POST /v2/ListWorkers?node=*",
            ]
        );
        assert_eq!(view.calls, 6);
        let core = view.core.as_ref().unwrap();
        assert_eq!(core.answering, Some(node(1)));
        assert_eq!(core.nodes.len(), usize::from(nodes));
        assert!((1..=nodes).all(|n| judge::reporting(&view, node(n)).is_ok()));
        assert_eq!(judge::settled(core), Ok(()));
    }
}

/// garage-operator#29, D5.
#[tokio::test]
async fn a_black_hole_behind_the_endpoint_hides_only_itself() {
    let fake = Fake::start(1, 3).await;
    for call in ["ListWorkers", "ListBlockErrors"] {
        fake.set(&format!("{call}?node=*"), Reply::Hang)
            .set(&format!("{call}?node={}", node(3)), Reply::Hang);
    }
    let view = observe(&[&fake], Some(1), Ask::default()).await;
    assert!(view.core.is_ok());
    assert_eq!(judge::reporting(&view, node(1)), Ok(()));
    assert_eq!(judge::reporting(&view, node(2)), Ok(()));
    assert_eq!(judge::reporting(&view, node(3)), Err(Silence::TimedOut));
}

#[tokio::test]
async fn thirty_nodes_that_all_hang_end_with_the_pass() {
    let fake = Fake::start(1, 30).await;
    fake.set("ListWorkers?node=*", Reply::Hang);
    for n in 2..=30 {
        fake.set(&format!("ListWorkers?node={}", node(n)), Reply::Hang);
    }
    let limits = Limits { pass: Duration::from_secs(4), failover: Duration::from_secs(2), at_once: 4 };
    let start = std::time::Instant::now();
    let view = observe_garage(&http(), &tokens(), &endpoints(&[&fake]), None, Ask::default(), &limits).await;
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    assert!(view.workers[&node(1)].is_ok());
    assert!((2..=30).all(|n| view.workers[&node(n)] == Err(Silence::TimedOut)), "{:?}", view.workers.keys());
}

/// Garage#1345.
#[tokio::test]
async fn a_node_that_is_up_and_does_not_answer_is_not_reporting() {
    let fake = Fake::start(1, 3).await;
    fake.edit("ListWorkers?node=*", |v| {
        v["success"].as_object_mut().unwrap().remove(&node(3).to_string());
        v["error"] = json!({(node(3).to_string()): "Not connected"});
    });
    fake.edit("ListBlockErrors?node=*", |v| {
        v["success"].as_object_mut().unwrap().remove(&node(2).to_string());
    });
    let view = observe(&[&fake], Some(1), Ask::default()).await;
    assert!(judge::is_up(view.core.as_ref().unwrap(), node(3)));
    assert_eq!(judge::reporting(&view, node(1)), Ok(()));
    assert_eq!(judge::reporting(&view, node(2)), Err(Silence::Missing));
    assert_eq!(judge::reporting(&view, node(3)), Err(Silence::NotConnected));
    assert_eq!(view.calls, 6, "an answer of node=* is not asked again");
}

#[tokio::test]
async fn an_endpoint_that_misbehaves_is_left_for_the_next() {
    for reply in [
        Reply::Hang,
        Reply::Drip,
        Reply::Cut,
        Reply::Huge(40 << 20),
        Reply::Body(200, "garbage".into()),
        Reply::Body(200, "{}".into()),
        Reply::Body(503, String::new()),
    ] {
        let (bad, good) = (Fake::start(1, 3).await, Fake::start(2, 3).await);
        bad.set_all(&reply);
        let view = observe(&[&bad, &good], Some(1), Ask::default()).await;
        assert_eq!(view.core.as_ref().unwrap().answering, Some(node(2)), "{reply:?}");
        assert!((1..=3).all(|n| judge::reporting(&view, node(n)).is_ok()), "{reply:?}");
    }
}

#[tokio::test]
async fn one_core_call_that_hangs_is_enough_to_leave_an_endpoint() {
    let (bad, good) = (Fake::start(1, 3).await, Fake::start(2, 3).await);
    bad.set("GetClusterLayoutHistory", Reply::Hang);
    let view = observe(&[&bad, &good], Some(1), Ask::default()).await;
    assert_eq!(view.core.unwrap().answering, Some(node(2)));
}

#[tokio::test]
async fn what_did_not_answer_is_told_in_words_that_stay() {
    assert_eq!(what(&observe(&[], None, Ask::default()).await), "no Pod with an address");

    let fake = Fake::start(1, 3).await;
    fake.set("GetClusterHealth", Reply::Body(200, "secret-looking garbage".into()));
    let view = observe(&[&fake], None, Ask::default()).await;
    assert_eq!(what(&view), "GetClusterHealth: answered something that cannot be read");
    fake.set("GetClusterHealth", Reply::Hang);
    assert_eq!(what(&observe(&[&fake], None, Ask::default()).await), "GetClusterHealth: no answer in time");

    let wrong = Tokens { admin: Secret::new("example-other-token"), metrics: None };
    let view = observe_garage(&http(), &wrong, &endpoints(&[&fake]), None, Ask::default(), &limits()).await;
    assert_eq!(what(&view), "GetClusterHealth: the admin token was refused");
    assert!(!format!("{view:?}{wrong:?}").contains("example-other"));
}

/// O6: a returning node answers from its old layout for some seconds.
#[tokio::test]
async fn an_endpoint_that_answers_from_an_older_layout_is_not_believed() {
    let (old, good) = (Fake::start(1, 3).await, Fake::start(2, 3).await);
    good.edit("GetClusterStatus", |v| v["layoutVersion"] = json!(2))
        .edit("GetClusterLayout", |v| v["version"] = json!(2))
        .edit("GetClusterLayoutHistory", |v| v["currentVersion"] = json!(2));
    let view = observe(&[&old, &good], Some(2), Ask::default()).await;
    assert_eq!(view.core.unwrap().answering, Some(node(2)));

    let view = observe(&[&old], Some(2), Ask::default()).await;
    assert_eq!(what(&view), "an endpoint with layout version 1, which is older than the recorded one");
    assert!(view.workers.is_empty() && view.block_errors.is_empty());
}

#[tokio::test]
async fn an_endpoint_without_any_layout_is_believed_only_when_no_other_knows_one() {
    let (blank, good) = (Fake::start(1, 3).await, Fake::start(2, 3).await);
    blank
        .set("GetClusterStatus", Reply::Body(200, crate::testing::body("2.0.0", "roleless-GetClusterStatus")))
        .set("GetClusterHealth", Reply::Body(200, crate::testing::body("2.0.0", "roleless-GetClusterHealth")))
        .set("GetClusterLayout", Reply::Body(200, crate::testing::body("2.0.0", "roleless-GetClusterLayout")))
        .set(
            "GetClusterLayoutHistory",
            Reply::Body(200, crate::testing::body("2.0.0", "roleless-GetClusterLayoutHistory")),
        );
    let view = observe(&[&blank, &good], None, Ask::default()).await;
    assert_eq!(view.core.unwrap().answering, Some(node(2)));
    let view = observe(&[&blank], None, Ask::default()).await;
    let core = view.core.unwrap();
    assert_eq!(core.layout.version, LayoutVersion(0));
    assert!(!judge::is_healthy(&core.health), "2.0.0 calls a node without layout healthy");
}

/// O3, last part.
#[tokio::test]
async fn workers_of_no_node_at_all_is_not_observed() {
    let fake = Fake::start(1, 3).await;
    fake.set("ListWorkers?node=*", Reply::Body(500, String::new()));
    for n in 1..=3 {
        fake.set(&format!("ListWorkers?node={}", node(n)), Reply::Body(500, String::new()));
    }
    assert_eq!(what(&observe(&[&fake], None, Ask::default()).await), "ListWorkers of every node");
}

/// O8; FACTS 14: A says healthy while B and C cannot reach each other.
#[tokio::test]
async fn a_broken_link_between_two_others_shows_in_their_own_views() {
    let fakes = [Fake::start(1, 3).await, Fake::start(2, 3).await, Fake::start(3, 3).await];
    for (viewer, hidden) in [(1usize, 3u8), (2, 2)] {
        fakes[viewer]
            .edit("GetClusterStatus", |v| v["nodes"][usize::from(hidden) - 1]["isUp"] = json!(false));
        fakes[viewer].edit("GetClusterHealth", |v| {
            v["status"] = json!("degraded");
            v["storageNodesUp"] = json!(2);
            v["partitionsAllOk"] = json!(0);
        });
    }
    let fakes: Vec<&Fake> = fakes.iter().collect();
    let view = observe(&fakes, Some(1), Ask { peer_views: true, ..Ask::default() }).await;
    let all: BTreeSet<NodeId> = (1..=3).map(node).collect();
    assert!(judge::is_healthy(&view.core.as_ref().unwrap().health));
    let missed = judge::peers_missed(view.peer_views.as_ref(), all.iter().copied(), &all);
    let texts: Vec<String> = missed.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "node 0202020202020202 does not see node 0303030303030303 up",
            "node 0303030303030303 does not see node 0202020202020202 up",
        ]
    );
    assert_eq!(view.calls, 12);
    // A pass that did not ask knows nobody's view.
    let view = observe(&fakes, Some(1), Ask::default()).await;
    assert_eq!(judge::peers_missed(view.peer_views.as_ref(), all.iter().copied(), &all).len(), 3);
}

#[tokio::test]
async fn a_view_counts_for_the_node_that_gave_it_and_for_the_believed_layout_only() {
    let (a, b, c) = (Fake::start(1, 3).await, Fake::start(2, 3).await, Fake::start(1, 3).await);
    b.edit("GetClusterStatus", |v| v["layoutVersion"] = json!(0));
    // At node 3's address node 1 answers: the Pod there came back as somebody else.
    let view = observe(&[&a, &b, &c], Some(1), Ask { peer_views: true, ..Ask::default() }).await;
    let views = view.peer_views.unwrap();
    assert!(views[&node(1)].is_ok());
    assert_eq!(views[&node(2)], Err(Silence::Failed));
    assert_eq!(views[&node(3)], Err(Silence::Failed));
}

#[tokio::test]
async fn metrics_and_timeouts_are_read_only_where_asked_and_where_there() {
    let (a, b) = (Fake::start(1, 2).await, Fake::start(2, 2).await);
    a.set(
        "metrics",
        Reply::Body(
            200,
            "rpc_netapp_error_counter{rpc_endpoint=\"garage_table/sync.rs/Rpc:key\"} 4\n".into(),
        ),
    );
    b.set("metrics", Reply::Body(400, String::new()));
    let infos = json!({"success": {
        (node(1).to_string()): {"nodeId": node(1), "garageVersion": "x", "connectionParameters": {"region": "garage", "rpcTimeoutMsec": 7000}},
        (node(2).to_string()): {"nodeId": node(2), "garageVersion": "x", "connectionParameters": {"region": "garage"}},
    }, "error": {}});
    a.set("GetNodeInfo?node=*", Reply::json(&infos));
    let view =
        observe(&[&a, &b], Some(1), Ask { metrics: true, rpc_timeouts: true, peer_views: false }).await;
    assert_eq!(view.sync_rpc_errors, BTreeMap::from([(node(1), 4)]));
    assert_eq!(view.rpc_timeouts, BTreeMap::from([(node(1), Duration::from_secs(7))]));
    assert!(view.peer_views.is_none());
}
