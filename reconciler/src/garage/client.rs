//! Calls to one Garage process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use holdfast_crds::ids::{LayoutVersion, NodeId};
use reqwest::{Method, StatusCode, header, redirect};
use serde::Serialize;
use serde_json::json;

use super::error::{Error, StatusKind};
use super::secret::Secret;
use super::{metrics, wire};
use crate::act::RepairKind;
use crate::observe::{
    BlockError, Health, History, Layout, LayoutParameters, NodeState, Silence, StagedChange, Worker,
};
use crate::spans;

pub use super::wire::NodeInfo;

/// Longest answer that is read, in bytes. `ListWorkers?node=*` has about 20 KB a node, a metrics page 100 KB
/// a peer; 32 MiB is far above both at 256 nodes, and holds 180 000 block errors.
const MAX_ANSWER: usize = 32 << 20;
/// Longest refusal that is read, in bytes. A longer one keeps its status and loses its code.
const MAX_REFUSAL: usize = 64 << 10;

/// How long calls may take. A healthy Garage answers every one within 0.1 s (FACTS 10), so that all of these
/// leave room for a starved machine and still keep a black hole short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Until a connection stands; one SYN may be lost (it is sent again after 1 s).
    pub connect: Duration,
    /// A whole call that reads.
    pub read: Duration,
    /// A whole call that changes something. Longer, since a time-out here leaves unknown what happened, and
    /// below the 10 s of an action.
    pub write: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { connect: Duration::from_secs(2), read: Duration::from_secs(4), write: Duration::from_secs(8) }
    }
}

/// What all clients of this process share: the HTTP machinery and the deadlines.
#[derive(Debug, Clone)]
pub struct Http {
    inner: reqwest::Client,
    deadlines: Deadlines,
}

impl Http {
    /// Prepares plain HTTP without proxies, without redirects (they would carry the token elsewhere) and
    /// without kept connections: a Pod's address may be another Pod's a moment later, and on a connection
    /// made for one call "refused" certainly means "not executed".
    pub fn new(deadlines: Deadlines) -> Result<Self, Error> {
        let inner = reqwest::Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .http1_only()
            .connect_timeout(deadlines.connect)
            .build()
            .map_err(|_| Error::Refused)?;
        Ok(Self { inner, deadlines })
    }

    /// The deadlines.
    pub const fn deadlines(&self) -> Deadlines {
        self.deadlines
    }
}

/// Which nodes a call goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// `node=*`: every node of every active layout version and every node that is up.
    All,
    /// `node=self`: the asked process.
    Itself,
    /// `node=<id>`.
    One(NodeId),
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Itself => f.write_str("self"),
            Self::One(id) => id.fmt(f),
        }
    }
}

/// What each node answered. A node without an entry is in neither map of the answer (O4).
#[derive(Debug, Clone, PartialEq)]
pub struct Multi<T>(pub BTreeMap<NodeId, Result<T, Silence>>);

impl<T> Multi<T> {
    /// The answer of one node.
    pub fn into_one(mut self, node: NodeId) -> Result<T, Error> {
        self.0.remove(&node).unwrap_or(Err(Silence::Missing)).map_err(Error::Node)
    }
}

/// Answer of a preview.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preview {
    /// An apply would make this layout.
    Accepted(Layout),
    /// An apply would be refused.
    Refused(PreviewRefusal),
}

/// Why an apply would be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviewRefusal {
    /// Fewer storage roles than the replication factor.
    TooFewStorageNodes,
    /// Something else.
    Other,
}

/// Answer of `ClusterLayoutSkipDeadNodes`. Judge by the history, not by this (R4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedDeadNodes {
    /// Nodes whose ack it moved: every layout node that the asked one sees down.
    pub ack_updated: BTreeSet<NodeId>,
    /// Nodes whose sync it moved: none, without `allowMissingData`.
    pub sync_updated: BTreeSet<NodeId>,
}

/// Answer of `ConnectClusterNodes` for one peer. A success says nothing while the peer counts as up
/// (FACTS 14: nothing is tried then).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connected {
    /// Which peer.
    pub node: NodeId,
    /// Whether Garage says that it is connected.
    pub success: bool,
}

/// One Garage process's Admin API.
#[derive(Clone)]
pub struct Client {
    http: Http,
    address: SocketAddr,
    token: Secret,
    calls: Arc<AtomicU32>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Client {
    /// For the process whose Admin API listens at `address`.
    pub fn new(http: &Http, address: SocketAddr, token: Secret) -> Self {
        Self { http: http.clone(), address, token, calls: Arc::default() }
    }

    /// The address.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Admin API calls made through this client and its clones.
    pub fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    // ---- reading

    /// `GetClusterHealth`.
    pub async fn health(&self) -> Result<Health, Error> {
        wire::health(&self.get("GetClusterHealth").await?)
    }

    /// `GetClusterStatus`: the layout version, and every node that this one knows.
    pub async fn status(&self) -> Result<(LayoutVersion, BTreeMap<NodeId, NodeState>), Error> {
        wire::status(&self.get("GetClusterStatus").await?)
    }

    /// `GetClusterLayout`.
    pub async fn layout(&self) -> Result<Layout, Error> {
        wire::layout(&self.get("GetClusterLayout").await?)
    }

    /// `GetClusterLayoutHistory`.
    pub async fn history(&self) -> Result<History, Error> {
        wire::history(&self.get("GetClusterLayoutHistory").await?)
    }

    /// `ListWorkers`.
    pub async fn list_workers(&self, nodes: Nodes) -> Result<Multi<Vec<Worker>>, Error> {
        // Garage takes this one by POST and wants a body (FACTS 2), although it reads.
        let path = format!("ListWorkers?node={nodes}");
        let body = self.call(Method::POST, &path, Some(&json!({})), self.http.deadlines.read).await?;
        wire::multi(&body, wire::workers).map(Multi)
    }

    /// `ListBlockErrors`.
    pub async fn list_block_errors(&self, nodes: Nodes) -> Result<Multi<Vec<BlockError>>, Error> {
        let body = self.get(&format!("ListBlockErrors?node={nodes}")).await?;
        wire::multi(&body, wire::block_errors).map(Multi)
    }

    /// `GetNodeInfo`.
    pub async fn node_info(&self, nodes: Nodes) -> Result<Multi<NodeInfo>, Error> {
        let body = self.get(&format!("GetNodeInfo?node={nodes}")).await?;
        wire::multi(&body, wire::node_info).map(Multi)
    }

    /// `GetNodeInfo?node=self`: the identity of the process at this very address.
    pub async fn own_info(&self) -> Result<NodeInfo, Error> {
        let mut answers = self.node_info(Nodes::Itself).await?.0.into_iter();
        match (answers.next(), answers.next()) {
            (Some((id, Ok(info))), None) if info.node_id == id => Ok(info),
            (Some((_, Err(silence))), None) => Err(Error::Node(silence)),
            _ => Err(Error::Malformed),
        }
    }

    /// `GetWorkerVariable`: all variables of one node.
    pub async fn worker_variables(&self, node: NodeId) -> Result<BTreeMap<String, String>, Error> {
        let path = format!("GetWorkerVariable?node={node}");
        let body = self
            .call(Method::POST, &path, Some(&json!({ "variable": null })), self.http.deadlines.read)
            .await?;
        Multi(wire::multi(&body, wire::variables)?).into_one(node)
    }

    /// The page `/metrics`: this process's failed table-sync calls since its start (D2). `token` is sent only
    /// where given: most sites leave the page open, and the admin token is not for it.
    pub async fn failed_table_syncs(&self, token: Option<&Secret>) -> Result<u64, Error> {
        let url = format!("http://{}/metrics", self.address);
        let body = self.send("metrics", Method::GET, url, None, token, self.http.deadlines.read).await?;
        let page = std::str::from_utf8(&body).map_err(|_| Error::Malformed)?;
        metrics::failed_table_syncs(page).ok_or(Error::Malformed)
    }

    // ---- changing

    /// `UpdateClusterLayout`: stages changes, beside those already staged, and answers with all of them.
    pub async fn update_layout(
        &self,
        changes: &[StagedChange],
        parameters: Option<LayoutParameters>,
    ) -> Result<Layout, Error> {
        #[derive(Serialize)]
        struct Update<'a> {
            roles: Vec<wire::RoleChangeBody<'a>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            parameters: Option<wire::ParametersWire>,
        }
        let update = Update {
            roles: changes.iter().map(Into::into).collect(),
            parameters: parameters.map(Into::into),
        };
        wire::layout(&self.post("UpdateClusterLayout", Some(&update)).await?)
    }

    /// `PreviewClusterLayoutChanges`: what an apply of everything staged would make.
    pub async fn preview_layout(&self) -> Result<Preview, Error> {
        let body = self.post("PreviewClusterLayoutChanges", None::<&()>).await?;
        Ok(match wire::preview(&body)? {
            Ok(layout) => Preview::Accepted(layout),
            Err(text) if text.contains("smaller than the replication factor") => {
                Preview::Refused(PreviewRefusal::TooFewStorageNodes)
            }
            Err(_) => Preview::Refused(PreviewRefusal::Other),
        })
    }

    /// `ApplyClusterLayout`: makes `version` (current + 1) of everything staged, by whomever; answers with the
    /// layout as it then is, whose roles must be checked (FACTS 2). With nothing staged it makes a version too.
    /// Refusals are HTTP 500, so after any error the layout is to be read again (R3).
    pub async fn apply_layout(&self, version: LayoutVersion) -> Result<Layout, Error> {
        wire::applied(&self.post("ApplyClusterLayout", Some(&json!({ "version": version }))).await?)
    }

    /// `RevertClusterLayout`: drops everything staged, by whomever.
    pub async fn revert_layout(&self) -> Result<Layout, Error> {
        wire::layout(&self.post("RevertClusterLayout", None::<&()>).await?)
    }

    /// `ClusterLayoutSkipDeadNodes`, always with `allowMissingData: false`: true would settle the history
    /// without any copy (R4), and cannot be said here.
    pub async fn skip_dead_nodes(&self, version: LayoutVersion) -> Result<SkippedDeadNodes, Error> {
        let ask = json!({ "version": version, "allowMissingData": false });
        let (ack, sync) = wire::skipped(&self.post("ClusterLayoutSkipDeadNodes", Some(&ask)).await?)?;
        Ok(SkippedDeadNodes {
            ack_updated: ack.into_iter().collect(),
            sync_updated: sync.into_iter().collect(),
        })
    }

    /// `ConnectClusterNodes`: introduces peers to the asked node, which introduces them to its own.
    pub async fn connect(&self, peers: &[(NodeId, SocketAddr)]) -> Result<Vec<Connected>, Error> {
        let ask: Vec<String> = peers.iter().map(|(id, address)| format!("{id}@{address}")).collect();
        let answers = wire::connected(&self.post("ConnectClusterNodes", Some(&ask)).await?)?;
        if answers.len() != peers.len() {
            return Err(Error::Malformed);
        }
        Ok(peers.iter().zip(answers).map(|(&(node, _), success)| Connected { node, success }).collect())
    }

    /// `LaunchRepairOperation` on one node. An error does not mean that it did not start, unless
    /// [`Error::certainly_not_executed`].
    pub async fn launch_repair(&self, node: NodeId, kind: RepairKind) -> Result<(), Error> {
        let kind = match kind {
            RepairKind::Tables => "tables",
            RepairKind::Blocks => "blocks",
        };
        let path = format!("LaunchRepairOperation?node={node}");
        let body = self.post(&path, Some(&json!({ "repairType": kind }))).await?;
        // `null` in the success map says that it was accepted, and so would anything a later release puts there.
        Multi(wire::multi(&body, |_| Ok(()))?).into_one(node)
    }

    /// `SetWorkerVariable` on one node. Garage must answer with the variable and the value as asked.
    pub async fn set_worker_variable(&self, node: NodeId, variable: &str, value: &str) -> Result<(), Error> {
        let path = format!("SetWorkerVariable?node={node}");
        let body = self.post(&path, Some(&json!({ "variable": variable, "value": value }))).await?;
        let (set, to) = Multi(wire::multi(&body, wire::variable_set)?).into_one(node)?;
        if set == variable && to == value { Ok(()) } else { Err(Error::Malformed) }
    }

    // ---- the wire

    async fn get(&self, call: &str) -> Result<Vec<u8>, Error> {
        self.call(Method::GET, call, None::<&()>, self.http.deadlines.read).await
    }

    async fn post(&self, call: &str, body: Option<&impl Serialize>) -> Result<Vec<u8>, Error> {
        self.call(Method::POST, call, body, self.http.deadlines.write).await
    }

    async fn call(
        &self,
        method: Method,
        call: &str,
        body: Option<&impl Serialize>,
        deadline: Duration,
    ) -> Result<Vec<u8>, Error> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let body = body.map(serde_json::to_vec).transpose().map_err(|_| Error::Malformed)?;
        let url = format!("http://{}/v2/{call}", self.address);
        let endpoint = call.split_once('?').map_or(call, |(endpoint, _)| endpoint);
        self.send(endpoint, method, url, body, Some(&self.token), deadline).await
    }

    /// `endpoint` is the call's name, for its span.
    async fn send(
        &self,
        endpoint: &str,
        method: Method,
        url: String,
        body: Option<Vec<u8>>,
        token: Option<&Secret>,
        deadline: Duration,
    ) -> Result<Vec<u8>, Error> {
        let mut request = self.http.inner.request(method, url);
        if let Some(token) = token {
            let mut value = header::HeaderValue::try_from(format!("Bearer {}", token.expose()))
                .map_err(|_| Error::BadToken)?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        if let Some(body) = body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        }
        let span = spans::admin_call(endpoint);
        // The deadline is around everything, the last byte of the body included: an answer that drips in
        // is no answer.
        let answer = tokio::time::timeout(deadline, answer(request)).await.unwrap_or(Err(Error::Timeout));
        spans::answered(&span, &answer);
        answer
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Result<Vec<u8>, Error> {
    let mut response = request.send().await.map_err(|e| transport(&e))?;
    let status = response.status();
    if status.is_success() {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| transport(&e))? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(Error::Malformed);
            }
            body.extend_from_slice(&chunk);
        }
        return Ok(body);
    }
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        if body.len() + chunk.len() > MAX_REFUSAL {
            break;
        }
        body.extend_from_slice(&chunk);
    }
    Err(Error::Status { code: status.as_u16(), kind: status_kind(status, &body) })
}

fn status_kind(status: StatusCode, body: &[u8]) -> StatusKind {
    match wire::error_code(body).as_deref() {
        Some("AccessDenied") => StatusKind::AccessDenied,
        Some("InvalidRequest") => StatusKind::InvalidRequest,
        Some("InternalError") => StatusKind::InternalError,
        _ if status == StatusCode::FORBIDDEN || status == StatusCode::UNAUTHORIZED => {
            StatusKind::AccessDenied
        }
        _ => StatusKind::Other,
    }
}

/// A connect that timed out is both to reqwest; that no connection stood is what counts.
fn transport(error: &reqwest::Error) -> Error {
    if error.is_connect() {
        Error::Refused
    } else if error.is_timeout() {
        Error::Timeout
    } else {
        Error::Cut
    }
}
