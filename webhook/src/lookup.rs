//! The facts that rules need from outside the request: members from a cache, a pin's parent live.

use std::borrow::Cow;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use holdfast_crds::names::annotation::node::RECOVERY_PIN;
use holdfast_crds::node::{Backing, GarageNode};
use holdfast_crds::validate::{ClusterView, Fact, Member, Parent};
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::Store;

/// Where the server gets facts. Whatever it cannot get it reports as [`Fact::Unknown`]: the rule then refuses.
pub trait Lookups: Send + Sync + 'static {
    /// The `NodeLocalPool`-backed GarageNodes of a GarageCluster. Answers at once.
    fn members(&self, namespace: &str, cluster: &str) -> Fact<Vec<Member>>;

    /// The GarageCluster as the API server has it now; `None` when there is none. Ends within a deadline of its own.
    fn parent<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Fact<Option<Parent>>>;
}

/// Lookups over a reflector's store and a client.
pub struct KubeLookups {
    client: kube::Client,
    /// Of the client: its connections are kept by tasks that must not end with the webhook server.
    runtime: tokio::runtime::Handle,
    nodes: Vec<Store<DeserializeGuard<GarageNode>>>,
    deadline: Duration,
}

impl KubeLookups {
    /// `nodes` are the stores of reflectors over GarageNodes, one for each watched namespace or one for all;
    /// `deadline` is for a live read and must leave room in the admission deadline (2 s is a good value).
    ///
    /// # Panics
    /// Outside the runtime in which the client lives: that is where it is used, wherever the server runs.
    pub fn new(
        client: kube::Client,
        nodes: Vec<Store<DeserializeGuard<GarageNode>>>,
        deadline: Duration,
    ) -> Self {
        Self { client, runtime: tokio::runtime::Handle::current(), nodes, deadline }
    }

    async fn read_parent(&self, namespace: &str, name: &str) -> Fact<Option<Parent>> {
        // The stored version: the API server converts nothing, so this read never comes back to our own webhook.
        let path = format!("/apis/garage.rajsingh.info/v1beta2/namespaces/{namespace}/garageclusters/{name}");
        let Ok(request) = http::Request::get(path).body(Vec::new()) else {
            return Fact::Known(None);
        };
        let client = self.client.clone();
        let read = self.runtime.spawn(async move { client.request_text(request).await });
        // A read that nobody waits for any more is not gone on with.
        let read = tokio_util::task::AbortOnDropHandle::new(read);
        let Ok(answer) = read.await else {
            return Fact::Unknown(Cow::Borrowed("the process is ending"));
        };
        let text = match answer {
            Ok(text) => text,
            Err(kube::Error::Api(status)) if status.code == 404 => return Fact::Known(None),
            Err(kube::Error::Api(status)) => {
                tracing::warn!(code = status.code, "the live read of a GarageCluster was refused");
                return Fact::Unknown(Cow::Borrowed("the API server refused to show the GarageCluster"));
            }
            Err(_) => {
                tracing::warn!("the live read of a GarageCluster failed");
                return Fact::Unknown(Cow::Borrowed(
                    "the GarageCluster could not be read from the API server",
                ));
            }
        };
        match ClusterView::from_json("the live GarageCluster", &text) {
            Ok(view) => Fact::Known(Some(Parent::from(&view))),
            Err(error) => {
                tracing::warn!(%error, "the live GarageCluster is unreadable");
                Fact::Unknown(Cow::Borrowed("the live GarageCluster is unreadable"))
            }
        }
    }
}

impl Lookups for KubeLookups {
    fn members(&self, namespace: &str, cluster: &str) -> Fact<Vec<Member>> {
        let ready = |store: &Store<DeserializeGuard<GarageNode>>| {
            matches!(store.wait_until_ready().now_or_never(), Some(Ok(())))
        };
        if !self.nodes.iter().all(ready) {
            return Fact::Unknown(Cow::Borrowed("the list of GarageNodes is not read yet"));
        }
        let mut members = Vec::new();
        for node in self.nodes.iter().flat_map(Store::state) {
            match &node.0 {
                Ok(node) => members.extend(member(node, namespace, cluster)),
                // Nobody knows whose it is.
                Err(_) if node.namespace().as_deref() == Some(namespace) => {
                    return Fact::Unknown(Cow::Borrowed("a GarageNode of this namespace does not parse"));
                }
                Err(_) => {}
            }
        }
        Fact::Known(members)
    }

    fn parent<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Fact<Option<Parent>>> {
        async move {
            tokio::time::timeout(self.deadline, self.read_parent(namespace, name)).await.unwrap_or_else(
                |_| {
                    tracing::warn!("the live read of a GarageCluster took too long");
                    Fact::Unknown(Cow::Borrowed("the API server did not show the GarageCluster in time"))
                },
            )
        }
        .boxed()
    }
}

/// The member that a GarageNode is; none when it is not of a pool of that cluster.
pub fn member(node: &GarageNode, namespace: &str, cluster: &str) -> Option<Member> {
    if node.metadata.namespace.as_deref() != Some(namespace) {
        return None;
    }
    let spec = &node.spec;
    if spec.backing != Some(Backing::NodeLocalPool) || spec.cluster_ref.name != cluster {
        return None;
    }
    let pin = node.metadata.annotations.as_ref().and_then(|a| a.get(RECOVERY_PIN));
    Some(Member {
        pool: spec.node_local_pool_name.clone().unwrap_or_default(),
        kubernetes_node: spec.kubernetes_node_name.clone().unwrap_or_default(),
        node_id: node.status.as_ref().and_then(|s| s.node_id).map(|id| id.to_string()),
        pin: pin.filter(|pin| !pin.is_empty()).cloned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn node(spec: &serde_json::Value) -> GarageNode {
        let id = "0F".repeat(32);
        serde_json::from_value(json!({
            "apiVersion": "garage.rajsingh.info/v1beta1", "kind": "GarageNode",
            "metadata": {"name": "n", "namespace": "objects", "annotations": {RECOVERY_PIN: id}},
            "spec": spec, "status": {"nodeId": id},
        }))
        .unwrap()
    }

    #[test]
    fn only_pool_backed_nodes_of_the_cluster_in_its_namespace_are_members() {
        let spec = json!({"clusterRef": {"name": "site-a"}, "zone": "z", "backing": "NodeLocalPool",
            "nodeLocalPoolName": "fast", "kubernetesNodeName": "kn-1", "capacity": "2Ti"});
        let found = member(&node(&spec), "objects", "site-a").unwrap();
        assert_eq!((&*found.pool, &*found.kubernetes_node), ("fast", "kn-1"));
        assert_eq!(found.node_id, Some("0f".repeat(32)));
        assert_eq!(found.pin, Some("0F".repeat(32)), "the pin is compared as it is written");
        assert_eq!(member(&node(&spec), "elsewhere", "site-a"), None);
        assert_eq!(member(&node(&spec), "objects", "site-b"), None);
        let mut other = spec.clone();
        other["backing"] = json!("StatefulSet");
        assert_eq!(member(&node(&other), "objects", "site-a"), None);
        other.as_object_mut().unwrap().remove("backing");
        assert_eq!(member(&node(&other), "objects", "site-a"), None);
    }

    #[tokio::test]
    async fn a_store_that_was_never_filled_is_unknown_and_an_empty_one_is_known() {
        let (store, mut writer) = kube::runtime::reflector::store::<DeserializeGuard<GarageNode>>();
        let service = unreachable_client();
        let lookups = KubeLookups::new(service, vec![store], Duration::from_millis(100));
        assert!(matches!(lookups.members("objects", "site-a"), Fact::Unknown(_)));
        writer.apply_watcher_event(&kube::runtime::watcher::Event::Init);
        writer.apply_watcher_event(&kube::runtime::watcher::Event::InitDone);
        assert_eq!(lookups.members("objects", "site-a"), Fact::Known(Vec::new()));
        // Nobody answers at that address.
        assert!(matches!(lookups.parent("objects", "site-a").await, Fact::Unknown(_)));
    }

    fn unreachable_client() -> kube::Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap()
    }
}
