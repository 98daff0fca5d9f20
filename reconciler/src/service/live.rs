//! What a hold or a refill reads live of its pair: caches may lag behind the moment at which a disk is touched.

use holdfast_crds::ids::Pair;
use holdfast_crds::names::label;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use std::time::Duration;

use crate::pool::gate;

/// How long each of the two reads may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// The Node and the Pods of one pair as the API server has them now.
#[derive(Debug, Clone)]
pub struct Pairs {
    /// Whose.
    pub pair: Pair,
    /// The Node; `None`: there is none. `Err`: it could not be read.
    pub node: Result<Option<Box<Node>>, String>,
    /// Every Pod of the pool for that Node that is not over, terminating ones included.
    pub pods: Result<Vec<Pod>, String>,
}

/// Reads both, each with a deadline. What could not be read is no error of the pass: it is unknown.
pub async fn fetch(client: &Client, namespace: &str, cluster: &str, pair: &Pair) -> Pairs {
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let labels = format!("{}={cluster},{}={}", label::CLUSTER, label::NODE_LOCAL_POOL, pair.pool);
    let selected = ListParams::default().labels(&labels);
    let (node, pods) = tokio::join!(
        tokio::time::timeout(DEADLINE, nodes.get_opt(pair.node.as_str())),
        tokio::time::timeout(DEADLINE, pods.list(&selected)),
    );
    let unread = |what: &str| format!("{what} could not be read from the API server");
    Pairs {
        pair: pair.clone(),
        node: match node {
            Ok(Ok(node)) => Ok(node.map(Box::new)),
            _ => Err(unread(&format!("Node {}", pair.node))),
        },
        pods: match pods {
            Ok(Ok(list)) => Ok(list.items.into_iter().filter(|pod| is_of(pod, pair)).collect()),
            _ => Err(unread(&format!("the Pods of pool {}", pair.pool))),
        },
    }
}

fn is_of(pod: &Pod, pair: &Pair) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let over = matches!(phase, Some("Succeeded" | "Failed")) && pod.metadata.deletion_timestamp.is_none();
    !over
        && pod.labels().get(label::NODE_LOCAL_POOL).is_some_and(|pool| *pool == *pair.pool.as_str())
        && gate::target_node(pod) == Some(pair.node.as_str())
}
