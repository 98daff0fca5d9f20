//! An in-process Admin API of a whole, healthy site, told call by call how to misbehave.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};

use super::node;

/// The token that the fake takes.
pub const TOKEN: &str = "example-admin-token";

/// How a call is answered.
#[derive(Debug, Clone)]
pub enum Reply {
    /// This status and body.
    Body(u16, String),
    /// Never.
    Hang,
    /// Half an answer, then the connection ends.
    Cut,
    /// One byte every 50 ms, without end.
    Drip,
    /// This many bytes of white space.
    Huge(usize),
}

impl Reply {
    /// 200 with this JSON.
    pub fn json(value: &Value) -> Self {
        Self::Body(200, value.to_string())
    }
}

#[derive(Debug)]
struct Inner {
    /// By `Call?query` or `Call`.
    replies: BTreeMap<String, Reply>,
    /// `METHOD /path?query` with the body, in order.
    log: Vec<(String, String)>,
}

/// One Garage process's Admin API.
#[derive(Debug, Clone)]
pub struct Fake {
    /// Where it listens.
    pub address: SocketAddr,
    inner: Arc<Mutex<Inner>>,
}

impl Fake {
    /// Starts an endpoint of node `me` (counted from 1) of a healthy site of `nodes` nodes.
    pub async fn start(me: u8, nodes: u8) -> Self {
        let inner = Arc::new(Mutex::new(Inner { replies: healthy(me, nodes), log: Vec::new() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(inner.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, inner }
    }

    /// Answers `call` (with or without its query) so from now on.
    pub fn set(&self, call: &str, reply: Reply) -> &Self {
        self.inner.lock().unwrap().replies.insert(call.to_owned(), reply);
        self
    }

    /// Answers every call so from now on.
    pub fn set_all(&self, reply: &Reply) -> &Self {
        for r in self.inner.lock().unwrap().replies.values_mut() {
            *r = reply.clone();
        }
        self
    }

    /// Changes the JSON that `call` is answered with.
    pub fn edit(&self, call: &str, edit: impl FnOnce(&mut Value)) -> &Self {
        let mut inner = self.inner.lock().unwrap();
        let Some(Reply::Body(_, body)) = inner.replies.get_mut(call) else { panic!("{call} has no body") };
        let mut value = serde_json::from_str(body).unwrap();
        edit(&mut value);
        *body = value.to_string();
        drop(inner);
        self
    }

    /// Requests seen, as `METHOD /path?query`.
    pub fn requests(&self) -> Vec<String> {
        self.inner.lock().unwrap().log.iter().map(|(request, _)| request.clone()).collect()
    }

    /// The body of the last request.
    pub fn last_body(&self) -> String {
        self.inner.lock().unwrap().log.last().map(|(_, body)| body.clone()).unwrap_or_default()
    }
}

async fn answer(
    State(inner): State<Arc<Mutex<Inner>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path_and_query = uri.path_and_query().map_or("", |p| p.as_str());
    let reply = {
        let mut inner = inner.lock().unwrap();
        inner.log.push((format!("{method} {path_and_query}"), String::from_utf8_lossy(&body).into_owned()));
        let call = path_and_query.trim_start_matches('/').trim_start_matches("v2/");
        let bare = call.split('?').next().unwrap_or_default();
        inner.replies.get(call).or_else(|| inner.replies.get(bare)).cloned()
    };
    let authorized = headers
        .get(header::AUTHORIZATION)
        .is_some_and(|v| v.as_bytes() == format!("Bearer {TOKEN}").as_bytes());
    if uri.path().starts_with("/v2/") && !authorized {
        return (StatusCode::FORBIDDEN, super::body("2.5.0", "error-wrong-token")).into_response();
    }
    match reply {
        None => (StatusCode::BAD_REQUEST, super::body("2.5.0", "error-unknown-endpoint")).into_response(),
        Some(Reply::Body(status, body)) => {
            (StatusCode::from_u16(status).unwrap(), [(header::CONTENT_TYPE, "application/json")], body)
                .into_response()
        }
        Some(Reply::Hang) => std::future::pending().await,
        Some(Reply::Cut) => {
            let half = stream::iter([Ok("{\"status\":"), Err(std::io::Error::other("cut"))]);
            Body::from_stream(half).into_response()
        }
        Some(Reply::Drip) => {
            let drops = stream::repeat(()).then(|()| async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Ok::<_, std::io::Error>(" ")
            });
            Body::from_stream(drops).into_response()
        }
        Some(Reply::Huge(bytes)) => {
            let chunk = Bytes::from(vec![b' '; 1 << 16]);
            let chunks = stream::iter((0..bytes >> 16).map(move |_| Ok::<_, std::io::Error>(chunk.clone())));
            Body::from_stream(chunks).into_response()
        }
    }
}

/// What node `me` of a healthy site of `nodes` nodes answers, layout version 1.
fn healthy(me: u8, nodes: u8) -> BTreeMap<String, Reply> {
    let ids: Vec<String> = (1..=nodes).map(|n| node(n).to_string()).collect();
    let role = |n: usize| json!({"zone": "dc1", "tags": [format!("node{n}")], "capacity": 2_000_000_000u64});
    let disk = json!({"available": 75_000_000_000u64, "total": 270_000_000_000u64});
    let status_nodes: Vec<Value> = ids
        .iter()
        .enumerate()
        .map(|(i, id)| {
            json!({
                "id": id, "garageVersion": "cargo:2.5.0", "addr": format!("127.0.0.{}:3901", 11 + i),
                "hostname": format!("node{}", i + 1), "isUp": true,
                "lastSeenSecsAgo": if i + 1 == usize::from(me) { Value::Null } else { json!(3) },
                "role": role(i + 1), "draining": false, "dataPartition": disk, "metadataPartition": disk,
                "resyncQueueLen": 0,
            })
        })
        .collect();
    let roles: Vec<Value> = ids
        .iter()
        .enumerate()
        .map(|(i, id)| {
            let mut role = role(i + 1);
            role["id"] = json!(id);
            role
        })
        .collect();
    let workers: Value = serde_json::from_str(&super::body("2.5.0", "ListWorkers")).unwrap();
    let workers = &workers["success"][node(0x11).to_string()];
    let multi = |value: &Value| {
        let success: serde_json::Map<_, _> = ids.iter().map(|id| (id.clone(), value.clone())).collect();
        json!({"success": success, "error": {}})
    };
    let own = &ids[usize::from(me) - 1];
    let mut replies = BTreeMap::from([
        (
            "GetClusterHealth".to_owned(),
            json!({
                "status": "healthy", "knownNodes": nodes, "connectedNodes": nodes, "storageNodes": nodes,
                "storageNodesUp": nodes, "partitions": 256, "partitionsQuorum": 256, "partitionsAllOk": 256,
            }),
        ),
        ("GetClusterStatus".to_owned(), json!({"layoutVersion": 1, "nodes": status_nodes})),
        (
            "GetClusterLayout".to_owned(),
            json!({
                "version": 1, "roles": roles, "parameters": {"zoneRedundancy": "maximum"},
                "partitionSize": 7_812_500, "stagedRoleChanges": [], "stagedParameters": null,
            }),
        ),
        (
            "GetClusterLayoutHistory".to_owned(),
            json!({
                "currentVersion": 1, "minAck": 1, "updateTrackers": null,
                "versions": [{"version": 1, "status": "Current", "storageNodes": nodes, "gatewayNodes": 0}],
            }),
        ),
        ("ListWorkers?node=*".to_owned(), multi(workers)),
        ("ListBlockErrors?node=*".to_owned(), multi(&json!([]))),
        (
            "GetNodeInfo?node=self".to_owned(),
            json!({"success": {own: {"nodeId": own, "garageVersion": "cargo:2.5.0"}}, "error": {}}),
        ),
    ]);
    for id in &ids {
        replies.insert(format!("ListWorkers?node={id}"), json!({"success": {id: workers}, "error": {}}));
        replies.insert(format!("ListBlockErrors?node={id}"), json!({"success": {id: []}, "error": {}}));
    }
    let mut replies: BTreeMap<String, Reply> =
        replies.iter().map(|(k, v)| (k.clone(), Reply::json(v))).collect();
    let page = "# TYPE garage_build_info gauge\ngarage_build_info{version=\"2.5.0\"} 1\n";
    replies.insert("metrics".to_owned(), Reply::Body(200, page.to_owned()));
    replies
}
