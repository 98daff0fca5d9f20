//! Watches: they fill the caches, and say which GarageCluster is worth a pass.
//!
//! A change wakes a cluster only if a pass could see it: a status write of our own (same generation,
//! same annotations) does not (P19), nor does a heartbeat of a Node.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt as _, Stream, StreamExt as _, TryStreamExt as _};
use holdfast_crds::names::label;
use holdfast_crds::node::GarageNode;
use holdfast_crds::v1beta2::GarageCluster;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Node;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::observe::kubernetes::Stores;

mod index;

use index::{Entry, Whose};
pub use index::{Index, Objects};

/// A pass that somebody wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// Of one cluster.
    Cluster(ObjectRef<GarageCluster>),
    /// Of every cluster: a Node changed.
    All,
}

/// The wakes of one set of caches.
pub type Wakes = mpsc::Receiver<Wake>;

type Tasks = tokio::task::JoinSet<&'static str>;

/// Starts the watches of one namespace (or all). `tasks` gets one task a watch; one that ends, ends the process.
pub fn start(
    client: &Client,
    namespace: Option<&str>,
    tasks: &mut Tasks,
) -> (Store<GarageCluster>, Stores, Wakes) {
    // A full channel only delays a watch: it waits until passes catch up.
    let (wakes, receiver) = mpsc::channel(1024);
    let labelled = label::CLUSTER;
    let stores = Stores {
        garage_nodes: {
            let index = Index::default();
            let events = watched(api::<DeserializeGuard<GarageNode>>(client, namespace), "");
            let events = indexed(events, &index, of_garage_node);
            tasks.spawn(pump(events, "GarageNodes", wakes.clone(), face_of_garage_node));
            index
        },
        pods: watch_labelled(client, namespace, "Pods", labelled, tasks, wakes.clone()),
        nodes: {
            let index = Index::default();
            let events = indexed(watched(Api::<Node>::all(client.clone()), ""), &index, |node| Entry {
                key: key(node),
                whose: Whose::Of(String::new(), node.clone()),
            });
            tasks.spawn(pump(events, "Nodes", wakes.clone(), |node| Some((Wake::All, face_of_node(node)))));
            index
        },
        daemon_sets: watch_labelled(client, namespace, "DaemonSets", labelled, tasks, wakes.clone()),
        config_maps: watch_labelled(client, namespace, "ConfigMaps", labelled, tasks, wakes.clone()),
        services: watch_labelled(client, namespace, "Services", labelled, tasks, wakes.clone()),
        disruption_budgets: watch_labelled(
            client,
            namespace,
            "PodDisruptionBudgets",
            labelled,
            tasks,
            wakes.clone(),
        ),
    };
    let writer = Writer::<GarageCluster>::default();
    let clusters = writer.as_reader();
    let readable = watcher(api::<DeserializeGuard<GarageCluster>>(client, namespace), config(""))
        .default_backoff()
        .try_filter_map(|event| std::future::ready(Ok(readable(event))))
        .modify(|object| object.managed_fields_mut().clear())
        .reflect(writer);
    tasks.spawn(pump(readable, "GarageClusters", wakes, |cluster| {
        Some((Wake::Cluster(ObjectRef::from(cluster)), face(cluster)))
    }));
    (clusters, stores, receiver)
}

/// GarageNodes alone, as every replica's admission needs them.
pub fn watch_garage_nodes(
    client: &Client,
    namespace: Option<&str>,
    tasks: &mut Tasks,
) -> Store<DeserializeGuard<GarageNode>> {
    let writer = Writer::default();
    let store = writer.as_reader();
    let events = watched(api::<DeserializeGuard<GarageNode>>(client, namespace), "").reflect(writer);
    // The channel is closed at once: nobody is woken.
    tasks.spawn(pump(events, "GarageNodes", mpsc::channel(1).0, face_of_garage_node));
    store
}

fn face_of_garage_node(node: &DeserializeGuard<GarageNode>) -> Option<(Wake, u64)> {
    let readable = node.0.as_ref();
    if let Err(invalid) = readable {
        let object = node.name_any();
        tracing::error!(
            object,
            error = invalid.error,
            "a GarageNode does not parse; its clusters count as not observed"
        );
    }
    let mut cluster = ObjectRef::new(&readable.ok()?.spec.cluster_ref.name);
    cluster.namespace = node.namespace();
    Some((Wake::Cluster(cluster), face(node)))
}

fn of_garage_node(node: &DeserializeGuard<GarageNode>) -> Entry<GarageNode> {
    let whose = match &node.0 {
        Ok(node) => Whose::Of(node.spec.cluster_ref.name.clone(), node.clone()),
        Err(_) => Whose::Unknown,
    };
    Entry { key: key(node), whose }
}

fn key(object: &impl Resource) -> (String, String) {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// The event without an object that does not parse: one bad object must not hide the others of a LIST.
fn readable(event: watcher::Event<DeserializeGuard<GarageCluster>>) -> Option<watcher::Event<GarageCluster>> {
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
    let taken = |object: DeserializeGuard<GarageCluster>| match object.0 {
        Ok(object) => Some(object),
        Err(invalid) => {
            let object = invalid.metadata.name.unwrap_or_default();
            tracing::error!(
                object,
                error = invalid.error,
                "a GarageCluster does not parse; it is not acted upon until it is mended"
            );
            None
        }
    };
    Some(match event {
        Apply(object) => Apply(taken(object)?),
        InitApply(object) => InitApply(taken(object)?),
        Delete(object) => Delete(taken(object)?),
        Init => Init,
        InitDone => InitDone,
    })
}

fn watch_labelled<K>(
    client: &Client,
    namespace: Option<&str>,
    kind: &'static str,
    selector: &str,
    tasks: &mut Tasks,
    wakes: mpsc::Sender<Wake>,
) -> Index<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let index = Index::default();
    let events = indexed(watched(api::<K>(client, namespace), selector), &index, |object: &K| {
        let cluster = object.labels().get(label::CLUSTER).cloned();
        let whose = cluster.map_or(Whose::Nobodys, |cluster| Whose::Of(cluster, object.clone()));
        Entry { key: key(object), whose }
    });
    tasks.spawn(pump(events, kind, wakes, |object: &K| {
        let mut cluster = ObjectRef::new(object.labels().get(label::CLUSTER)?);
        cluster.namespace = object.namespace();
        // Everything of these matters to a pass, their status included.
        Some((Wake::Cluster(cluster), hash(&(object.uid(), object.resource_version()))))
    }));
    index
}

fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(
    client: &Client,
    namespace: Option<&str>,
) -> Api<K> {
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn config(selector: &str) -> watcher::Config {
    let config = watcher::Config::default().page_size(500);
    if selector.is_empty() { config } else { config.labels(selector) }
}

type Events<K> = BoxStream<'static, Result<watcher::Event<K>, watcher::Error>>;

/// The events of a kind. `managedFields` are dropped: nothing here may depend on them.
fn watched<K>(api: Api<K>, selector: &str) -> Events<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let events = watcher(api, config(selector)).default_backoff();
    events.modify(|object| object.managed_fields_mut().clear()).boxed()
}

/// The same events; what they say is in `index` by the time that they come.
fn indexed<T: Send + 'static, K: Send + Sync + 'static>(
    events: Events<T>,
    index: &Index<K>,
    read: fn(&T) -> Entry<K>,
) -> Events<T> {
    let index = index.clone();
    events.inspect_ok(move |event| index.take(event, read)).boxed()
}

/// Sends a wake for every object whose face changed. Returns only when the watch ended.
async fn pump<K>(
    events: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send,
    kind: &'static str,
    wakes: mpsc::Sender<Wake>,
    face: fn(&K) -> Option<(Wake, u64)>,
) -> &'static str
where
    K: Resource<DynamicType = ()> + Send,
{
    let mut faces = std::collections::HashMap::<Option<String>, u64>::new();
    let mut events = std::pin::pin!(events.into_stream());
    let mut failing = false;
    while let Some(event) = events.next().await {
        let object = match event {
            Ok(event) => {
                // Every attempt begins with `Init`, also one that fails.
                if !matches!(event, watcher::Event::Init) && std::mem::take(&mut failing) {
                    tracing::info!(kind, "watch goes on");
                }
                match event {
                    watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                        Some((object, false))
                    }
                    watcher::Event::Delete(object) => Some((object, true)),
                    watcher::Event::Init | watcher::Event::InitDone => None,
                }
            }
            Err(error) => {
                // Once for each outage; the watch itself backs off and tries again.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(kind, error = explain(&error), "watch failed; it is tried again");
                }
                None
            }
        };
        let Some((object, deleted)) = object else { continue };
        let Some((wake, now)) = face(&object) else { continue };
        let uid = object.meta().uid.clone();
        let changed =
            if deleted { faces.remove(&uid).is_some() } else { faces.insert(uid, now) != Some(now) };
        if changed && !wakes.is_closed() && wakes.send(wake).await.is_err() {
            tracing::debug!(kind, "nobody listens to wakes");
        }
    }
    kind
}

/// What a person can do about a failing watch, without the server's raw text.
fn explain(error: &watcher::Error) -> &'static str {
    let source = match error {
        watcher::Error::InitialListFailed(e)
        | watcher::Error::WatchStartFailed(e)
        | watcher::Error::WatchFailed(e) => e,
        watcher::Error::WatchError(status) if status.code == 410 => return "the watch expired",
        _ => return "the watch was cut",
    };
    match source {
        kube::Error::Api(status) if status.is_forbidden() => {
            "not permitted (RBAC): the chart's roles are not in place"
        }
        // An unknown path is answered without a Status.
        kube::Error::Api(status) if status.code == 404 => {
            "the API server does not know this kind: install the CRDs"
        }
        kube::Error::Api(status) if status.code == 401 => "the API server does not accept our credentials",
        kube::Error::Api(_) => "the API server refused",
        kube::Error::SerdeError(_) => "the API server sent an object that does not parse",
        _ => "the API server was not reached",
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What a pass reads of any object but its status.
fn face<K: Resource>(object: &K) -> u64 {
    let meta = object.meta();
    hash(&(&meta.uid, meta.generation, &meta.annotations, &meta.labels, meta.deletion_timestamp.is_some()))
}

/// Of a Node: identity, labels, annotations, taints and readiness; not its heartbeats.
fn face_of_node(node: &Node) -> u64 {
    let ready = node.status.iter().flat_map(|s| s.conditions.iter().flatten()).find(|c| c.type_ == "Ready");
    let spec = node.spec.as_ref();
    let taints: Vec<_> = spec
        .iter()
        .flat_map(|s| s.taints.iter().flatten())
        .map(|t| (t.key.as_str(), t.effect.as_str(), t.value.as_deref()))
        .collect();
    hash(&(face(node), ready.map(|c| c.status.as_str()), taints, spec.and_then(|s| s.unschedulable)))
}

/// Waits until every cache was filled once, or says which was not within `within`.
pub async fn filled(
    clusters: &Store<GarageCluster>,
    stores: &Stores,
    wakes: &mut Wakes,
    within: Duration,
) -> Result<(), &'static str> {
    let until = tokio::time::Instant::now() + within;
    let one = async |kind: &'static str, filled: &mut (dyn Future<Output = ()> + Send + Unpin)| {
        tokio::time::timeout_at(until, filled).await.map_err(|_| kind)
    };
    let all = async {
        // The writer lives as long as its watch, and that as long as the process.
        let clusters = async { drop(clusters.wait_until_ready().await) };
        one("GarageClusters", &mut clusters.boxed()).await?;
        one("GarageNodes", &mut stores.garage_nodes.filled().boxed()).await?;
        one("Pods", &mut stores.pods.filled().boxed()).await?;
        one("Nodes", &mut stores.nodes.filled().boxed()).await?;
        one("DaemonSets", &mut stores.daemon_sets.filled().boxed()).await?;
        one("ConfigMaps", &mut stores.config_maps.filled().boxed()).await?;
        one("Services", &mut stores.services.filled().boxed()).await?;
        one("PodDisruptionBudgets", &mut stores.disruption_budgets.filled().boxed()).await
    };
    without_wakes(wakes, all).await
}

/// Throws wakes away until the caches are filled. A watch waits where the channel is full, so in a cluster with more
/// objects than it holds nobody would ever fill them.
async fn without_wakes<T>(wakes: &mut Wakes, filled: impl Future<Output = T>) -> T {
    let mut filled = std::pin::pin!(filled);
    loop {
        tokio::select! {
            done = &mut filled => return done,
            Some(_) = wakes.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::stream;

    use super::*;

    /// A cluster with more objects than the channel of wakes holds was never reconciled: the watch that fills the cache
    /// waited for somebody to take a wake, who waited for the cache.
    #[tokio::test]
    async fn a_first_listing_of_more_objects_than_the_channel_holds_fills_the_cache() {
        let (sender, mut wakes) = mpsc::channel(8);
        let node = |i: usize| Node {
            metadata: kube::core::ObjectMeta {
                name: Some(format!("kn-{i}")),
                uid: Some(format!("{i}")),
                ..Default::default()
            },
            ..Node::default()
        };
        let events = std::iter::once(watcher::Event::Init)
            .chain((0..1000).map(move |i| watcher::Event::InitApply(node(i))))
            .chain([watcher::Event::InitDone]);
        let writer = Writer::<Node>::default();
        let store = writer.as_reader();
        let reflected =
            kube::runtime::reflector(writer, stream::iter(events.map(Ok)).chain(stream::pending()));
        let pumped = tokio::spawn(pump(reflected, "Nodes", sender, |node| Some((Wake::All, face(node)))));
        let filled = without_wakes(&mut wakes, store.wait_until_ready());
        tokio::time::timeout(Duration::from_secs(5), filled).await.unwrap().unwrap();
        assert_eq!(store.len(), 1000);
        pumped.abort();
    }
}
