//! Reads one pass's [`GarageView`]: the only I/O of `observe`.
//!
//! Time of a pass ([`Limits`]): a healthy site answers within 0.1 s. Each black hole among the endpoints
//! costs one read deadline (4 s) before the next is tried, each black hole behind a live endpoint one
//! `node=*` deadline (4 s) and then one single-node deadline (4 s, all nodes together). 15 s for the whole
//! holds two of the first and both of the second, and stays below the 30 s that P7 wants between two
//! observations and well below the 60 s between two passes.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use holdfast_crds::ids::{LayoutVersion, NodeId};
use tokio::time::Instant;

use super::garage::{Core, GarageView, NotObserved, PeerView, Silence};
use crate::garage::{Client, Error, Http, Multi, Nodes, Secret, StatusKind};

/// Where one Garage process's Admin API listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the running Pod, and the admin port.
    pub address: SocketAddr,
    /// The identity that was last read from this very Pod, where there is one.
    pub node: Option<NodeId>,
}

/// The site's tokens.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// Admin token.
    pub admin: Secret,
    /// Metrics token; only where `admin.metricsRequireToken` is set.
    pub metrics: Option<Secret>,
}

/// What a pass asks beyond the six calls of O1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ask {
    /// O8: each endpoint's own view (two small calls each).
    pub peer_views: bool,
    /// D2: each endpoint's metrics page.
    pub metrics: bool,
    /// P14: `GetNodeInfo?node=*`, for Garage's own `rpc_timeout`.
    pub rpc_timeouts: bool,
}

/// Bounds of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The whole pass.
    pub pass: Duration,
    /// No further endpoint is tried after this much of it, so that the single-node fallback has its time.
    pub failover: Duration,
    /// Calls under way at once, where their number grows with the nodes.
    pub at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { pass: Duration::from_secs(15), failover: Duration::from_secs(8), at_once: 16 }
    }
}

/// Reads what Garage says now. `known` is the highest layout version already recorded in status (O6).
///
/// Never fails: what did not answer is said in the view.
pub async fn observe_garage(
    http: &Http,
    tokens: &Tokens,
    endpoints: &[Endpoint],
    known: Option<LayoutVersion>,
    ask: Ask,
    limits: &Limits,
) -> GarageView {
    let start = Instant::now();
    let end = start + limits.pass;
    let sites: Vec<Site> = endpoints
        .iter()
        .map(|&endpoint| Site { endpoint, client: Client::new(http, endpoint.address, tokens.admin.clone()) })
        .collect();

    let (answers, peers, sync_rpc_errors) = tokio::join!(
        first_believed(&sites, known, ask, start + limits.failover, end),
        async {
            if ask.peer_views {
                Some(by_identity(&sites, limits, end, |site| peer_view(&site.client)).await)
            } else {
                None
            }
        },
        async {
            if ask.metrics {
                metrics(&sites, tokens.metrics.as_ref(), limits, end).await
            } else {
                BTreeMap::new()
            }
        },
    );

    let mut view = match answers {
        Err(not_observed) => GarageView::not_observed(not_observed),
        Ok(answers) => {
            let expected = expected(&answers.core);
            let client = &answers.client;
            let (workers, block_errors) = tokio::join!(
                per_node(answers.workers, &expected, limits, end, |id| async move {
                    client.list_workers(Nodes::One(id)).await?.into_one(id)
                }),
                per_node(answers.block_errors, &expected, limits, end, |id| async move {
                    client.list_block_errors(Nodes::One(id)).await?.into_one(id)
                }),
            );
            let core = if nobody(&workers) {
                Err(NotObserved { what: "ListWorkers of every node".into() })
            } else if nobody(&block_errors) {
                Err(NotObserved { what: "ListBlockErrors of every node".into() })
            } else {
                Ok(answers.core)
            };
            let rpc_timeouts = answers
                .node_info
                .into_iter()
                .flat_map(|multi| multi.0)
                .filter_map(|(id, info)| Some((id, info.ok()?.rpc_timeout?)))
                .collect();
            GarageView {
                core,
                workers,
                block_errors,
                peer_views: None,
                sync_rpc_errors: BTreeMap::new(),
                rpc_timeouts,
                calls: 0,
            }
        }
    };
    if let (Some(seen), Ok(core)) = (&peers, &view.core)
        && let Some(newer) = newer_version(seen, core.layout.version)
    {
        // O6: a node shows a newer layout than the endpoint that was believed, so that one is behind.
        view.core = Err(NotObserved {
            what: format!("an endpoint with a layout version before {newer}, which another node shows"),
        });
    }
    view.peer_views = peers.map(|seen| believed_peers(seen, view.core.as_ref().ok()));
    view.sync_rpc_errors = sync_rpc_errors;
    view.calls = sites.iter().map(|site| site.client.calls()).sum();
    view
}

struct Site {
    endpoint: Endpoint,
    client: Client,
}

/// The six calls' answers of one endpoint.
struct Answers {
    core: Core,
    client: Client,
    workers: Result<Multi<Vec<super::Worker>>, Error>,
    block_errors: Result<Multi<Vec<super::BlockError>>, Error>,
    node_info: Option<Multi<crate::garage::NodeInfo>>,
}

/// The first endpoint that is believed, in the order given (O1, O6). One that knows no layout at all is
/// believed only when no other knows one: it may be a new identity that the others already work without.
async fn first_believed(
    sites: &[Site],
    known: Option<LayoutVersion>,
    ask: Ask,
    last_start: Instant,
    end: Instant,
) -> Result<Answers, NotObserved> {
    let mut blank: Option<Answers> = None;
    let mut refusals: Vec<Refusal> = Vec::new();
    for site in sites {
        if Instant::now() >= last_start {
            break;
        }
        let asked = tokio::time::timeout_at(end, ask_site(site, ask)).await;
        match asked.unwrap_or(Err(Refusal::Call("GetClusterHealth", Error::Timeout))) {
            Err(refusal) => refusals.push(refusal),
            Ok(answers) => {
                let version = lowest_version(&answers.core);
                if known.is_some_and(|known| version < known) {
                    refusals.push(Refusal::OldLayout(version));
                } else if version == LayoutVersion(0) {
                    blank.get_or_insert(answers);
                } else {
                    return Ok(answers);
                }
            }
        }
    }
    blank.ok_or_else(|| not_observed(refusals))
}

/// The lowest version that an endpoint's answers name. They can differ by one while a change arrives (that
/// is unsettled, O5); the lowest is the one that must not step back.
fn lowest_version(core: &Core) -> LayoutVersion {
    core.status_layout_version.min(core.layout.version).min(core.history.current)
}

/// Why an endpoint was not believed; in the order in which it is worth telling.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    Call(&'static str, Error),
    OldLayout(LayoutVersion),
}

impl Refusal {
    /// The higher, the more it says about what to do.
    const fn weight(self) -> u8 {
        match self {
            Self::Call(_, Error::BadToken | Error::Status { kind: StatusKind::AccessDenied, .. }) => 5,
            Self::OldLayout(_) => 4,
            Self::Call(_, Error::Malformed) => 3,
            Self::Call(_, Error::Status { .. } | Error::Node(_)) => 2,
            Self::Call(_, Error::Timeout | Error::Cut) => 1,
            Self::Call(_, Error::Refused) => 0,
        }
    }
}

/// One stable phrase for all endpoints: the most telling refusal, of the first endpoint that had it.
fn not_observed(refusals: Vec<Refusal>) -> NotObserved {
    let mut worst: Option<Refusal> = None;
    for refusal in refusals {
        if worst.is_none_or(|w| refusal.weight() > w.weight()) {
            worst = Some(refusal);
        }
    }
    let what = match worst {
        None => "no Pod with an address".to_owned(),
        Some(Refusal::Call(call, Error::Status { kind: StatusKind::AccessDenied, .. })) => {
            format!("{call}: the admin token was refused")
        }
        Some(Refusal::Call(call, error)) => format!("{call}: {error}"),
        Some(Refusal::OldLayout(version)) => {
            format!("an endpoint with layout version {version}, which is older than the recorded one")
        }
    };
    NotObserved { what }
}

/// All calls of O1 to one endpoint, together.
async fn ask_site(site: &Site, ask: Ask) -> Result<Answers, Refusal> {
    let client = &site.client;
    let (health, status, layout, history, workers, block_errors, node_info) = tokio::join!(
        client.health(),
        client.status(),
        client.layout(),
        client.history(),
        client.list_workers(Nodes::All),
        client.list_block_errors(Nodes::All),
        async { if ask.rpc_timeouts { client.node_info(Nodes::All).await.ok() } else { None } },
    );
    // In a fixed order, so that the same trouble is told in the same words in every pass.
    let health = health.map_err(|e| Refusal::Call("GetClusterHealth", e))?;
    let (status_layout_version, nodes) = status.map_err(|e| Refusal::Call("GetClusterStatus", e))?;
    let layout = layout.map_err(|e| Refusal::Call("GetClusterLayout", e))?;
    let history = history.map_err(|e| Refusal::Call("GetClusterLayoutHistory", e))?;
    let answering = answering(&nodes).or(site.endpoint.node);
    Ok(Answers {
        core: Core { answering, health, status_layout_version, nodes, layout, history },
        client: client.clone(),
        workers,
        block_errors,
        node_info,
    })
}

/// Who answered a `GetClusterStatus`: the one node that is up and was never "last seen", since nobody hears
/// itself (FACTS 3). `None` when that is nobody, or more than one.
fn answering(nodes: &BTreeMap<NodeId, super::NodeState>) -> Option<NodeId> {
    let mut own = nodes.iter().filter(|(_, n)| n.is_up && n.last_seen_secs_ago.is_none()).map(|(&id, _)| id);
    own.next().filter(|_| own.next().is_none())
}

/// The nodes that `node=*` must speak of (FACTS 2): those of the layout and of older live versions, and
/// whoever is up.
fn expected(core: &Core) -> BTreeSet<NodeId> {
    let mut ids: BTreeSet<NodeId> = core.layout.roles.keys().copied().collect();
    ids.extend(core.nodes.iter().filter(|(_, n)| n.is_up || n.draining).map(|(&id, _)| id));
    ids.extend(core.history.trackers.iter().flatten().map(|(&id, _)| id));
    ids
}

/// Turns a `node=*` answer into one entry a node; without one, asks the nodes one by one through the same
/// endpoint, so that a black hole hides itself alone (D5).
async fn per_node<T, F: Future<Output = Result<T, Error>>>(
    all: Result<Multi<T>, Error>,
    expected: &BTreeSet<NodeId>,
    limits: &Limits,
    end: Instant,
    one: impl Fn(NodeId) -> F,
) -> BTreeMap<NodeId, Result<T, Silence>> {
    let (mut answers, rest) = if let Ok(Multi(answers)) = all {
        (answers, Silence::Missing)
    } else {
        let one = &one;
        let asks =
            expected.iter().map(|&id| async move { (id, one(id).await.map_err(Error::silence)) }).collect();
        (until(end, limits, asks).await, Silence::TimedOut)
    };
    for &id in expected {
        answers.entry(id).or_insert(Err(rest));
    }
    answers
}

/// Runs bounded in number (from a list: a lazy iterator's closures would keep the future from being `Send`), and keeps what is there when the pass's time is over.
async fn until<K: Ord, T, F: Future<Output = (K, T)>>(
    end: Instant,
    limits: &Limits,
    asks: Vec<F>,
) -> BTreeMap<K, T> {
    let mut answers = BTreeMap::new();
    let mut running = std::pin::pin!(stream::iter(asks).buffer_unordered(limits.at_once.max(1)));
    while let Ok(Some((key, answer))) = tokio::time::timeout_at(end, running.next()).await {
        answers.insert(key, answer);
    }
    answers
}

/// O3: nobody's answer could be read, although somebody was asked.
fn nobody<T>(answers: &BTreeMap<NodeId, Result<T, Silence>>) -> bool {
    answers.values().all(Result::is_err)
}

/// A node's own view as it was read, with whom and which layout version it spoke of.
pub(crate) struct Seen {
    pub(crate) identity: Option<NodeId>,
    pub(crate) version: LayoutVersion,
    pub(crate) view: PeerView,
}

async fn peer_view(client: &Client) -> Result<Seen, Error> {
    let (health, status) = tokio::join!(client.health(), client.status());
    let (version, nodes) = status?;
    Ok(Seen {
        identity: answering(&nodes),
        version,
        view: PeerView {
            health: health?,
            up: nodes.iter().filter(|(_, n)| n.is_up).map(|(&id, _)| id).collect(),
        },
    })
}

/// What each endpoint answered, by its place in the list.
async fn by_identity<'a, T, F: Future<Output = Result<T, Error>>>(
    sites: &'a [Site],
    limits: &Limits,
    end: Instant,
    ask: impl Fn(&'a Site) -> F,
) -> Vec<(Endpoint, Result<T, Silence>)> {
    let ask = &ask;
    let asks = sites
        .iter()
        .enumerate()
        .map(|(place, site)| async move { (place, ask(site).await.map_err(Error::silence)) })
        .collect();
    let mut answers = until(end, limits, asks).await;
    sites
        .iter()
        .enumerate()
        .map(|(place, site)| (site.endpoint, answers.remove(&place).unwrap_or(Err(Silence::TimedOut))))
        .collect()
}

/// The highest layout version above `current` that a node of known identity shows.
pub(crate) fn newer_version(
    seen: &[(Endpoint, Result<Seen, Silence>)],
    current: LayoutVersion,
) -> Option<LayoutVersion> {
    seen.iter()
        .filter_map(|(endpoint, answer)| {
            let seen = answer.as_ref().ok()?;
            (endpoint.node.is_some() && endpoint.node == seen.identity).then_some(seen.version)
        })
        .filter(|version| *version > current)
        .max()
}

/// O8, with O6: a view counts for the identity that gave it, and only when it is of the layout that the pass
/// believes; a node that answers for another identity than the one known at that address does not count.
pub(crate) fn believed_peers(
    seen: Vec<(Endpoint, Result<Seen, Silence>)>,
    core: Option<&Core>,
) -> BTreeMap<NodeId, Result<PeerView, Silence>> {
    let mut views = BTreeMap::new();
    for (endpoint, answer) in seen {
        let (id, view) = match answer {
            Ok(seen) => {
                let id = seen.identity.or(endpoint.node);
                let old = core.is_some_and(|core| seen.version < core.layout.version);
                let known = endpoint.node.is_none_or(|known| Some(known) == id);
                if !known && let Some(known) = endpoint.node {
                    views.insert(known, Err(Silence::Failed));
                }
                (id, if old { Err(Silence::Failed) } else { Ok(seen.view) })
            }
            Err(silence) => (endpoint.node, Err(silence)),
        };
        if let Some(id) = id {
            // Two endpoints for one identity (a Pod being replaced): the one that answered counts.
            if view.is_ok() || !matches!(views.get(&id), Some(Ok(_))) {
                views.insert(id, view);
            }
        }
    }
    views
}

/// The metrics pages that could be read. A page carries no identity that can be trusted more than the
/// endpoint's own, so only endpoints whose identity is known are asked.
async fn metrics(
    sites: &[Site],
    token: Option<&Secret>,
    limits: &Limits,
    end: Instant,
) -> BTreeMap<NodeId, u64> {
    let asks = sites
        .iter()
        .filter_map(|site| {
            let id = site.endpoint.node?;
            Some(async move { (id, site.client.failed_table_syncs(token).await) })
        })
        .collect();
    until(end, limits, asks).await.into_iter().filter_map(|(id, sum)| Some((id, sum.ok()?))).collect()
}

#[cfg(test)]
mod tests;
