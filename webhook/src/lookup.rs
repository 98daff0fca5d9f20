//! The facts that rules need from outside the request: members from a cache, a pin's parent live.

use std::borrow::Cow;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use holdfast_crds::node::GarageNode;
use holdfast_crds::validate::{ClusterView, Fact, Member, NodeView, Parent};
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
    nodes: Store<GarageNode>,
    deadline: Duration,
}

impl KubeLookups {
    /// `nodes` is the store of a reflector over all GarageNodes; `deadline` is for a live read and must leave room
    /// in the admission deadline (2 s is a good value).
    pub const fn new(client: kube::Client, nodes: Store<GarageNode>, deadline: Duration) -> Self {
        Self { client, nodes, deadline }
    }

    async fn read_parent(&self, namespace: &str, name: &str) -> Fact<Option<Parent>> {
        // The stored version: the API server converts nothing, so this read never comes back to our own webhook.
        let path = format!("/apis/garage.rajsingh.info/v1beta2/namespaces/{namespace}/garageclusters/{name}");
        let Ok(request) = http::Request::get(path).body(Vec::new()) else {
            return Fact::Known(None);
        };
        let text = match self.client.request_text(request).await {
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
        if !matches!(self.nodes.wait_until_ready().now_or_never(), Some(Ok(()))) {
            return Fact::Unknown(Cow::Borrowed("the list of GarageNodes is not read yet"));
        }
        Fact::Known(self.nodes.state().iter().filter_map(|n| member(n, namespace, cluster)).collect())
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
fn member(node: &GarageNode, namespace: &str, cluster: &str) -> Option<Member> {
    if node.metadata.namespace.as_deref() != Some(namespace) {
        return None;
    }
    let json = serde_json::to_string(node).ok()?;
    let view = NodeView::from_json("a GarageNode", &json).ok()?;
    (view.pool_backed && view.cluster == cluster).then(|| Member::from(&view))
}
