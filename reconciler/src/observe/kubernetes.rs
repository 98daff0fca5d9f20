//! The Kubernetes half of an observation.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use holdfast_crds::ids::NodeId;
use holdfast_crds::node::GarageNode;
use holdfast_crds::v1beta2::GarageCluster;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::Api;

use super::Endpoint;
use crate::caches::{Index, Objects};
use crate::garage::Http;
use crate::pool::{Incarnation, Memory, Settings, identity};

/// The objects one pass saw. Shared with the caches, never cloned.
#[derive(Debug, Clone)]
pub struct KubernetesView {
    /// The cluster itself.
    pub cluster: Arc<GarageCluster>,
    /// Its GarageNodes (same namespace, `spec.clusterRef.name`), by name; `None` when they could not be read (O3).
    pub garage_nodes: Option<Objects<GarageNode>>,
    /// Its Pods: label `garage.rajsingh.info/cluster`, same namespace.
    pub pods: Vec<Arc<Pod>>,
    /// All Nodes, by name.
    pub nodes: Objects<Node>,
    /// Its DaemonSets, by name.
    pub daemon_sets: Objects<DaemonSet>,
    /// Its ConfigMaps, by name.
    pub config_maps: Objects<ConfigMap>,
    /// Its Services, by name.
    pub services: Objects<Service>,
    /// Its PodDisruptionBudgets, by name.
    pub disruption_budgets: Objects<PodDisruptionBudget>,
    /// The Secrets it names or owns, by name. Read live, by name, never listed.
    pub secrets: BTreeMap<String, Arc<Secret>>,
}

/// Caches that a pass reads, filled by watches. All of them must have been filled once before the first
/// pass ([`Index::filled`]).
#[derive(Clone)]
pub struct Stores {
    /// All GarageNodes. One that cannot be read counts as an unreadable list (O3).
    pub garage_nodes: Index<GarageNode>,
    /// Pods with the label `garage.rajsingh.info/cluster`.
    pub pods: Index<Pod>,
    /// All Nodes.
    pub nodes: Index<Node>,
    /// DaemonSets with that label.
    pub daemon_sets: Index<DaemonSet>,
    /// ConfigMaps with that label.
    pub config_maps: Index<ConfigMap>,
    /// Services with that label.
    pub services: Index<Service>,
    /// PodDisruptionBudgets with that label.
    pub disruption_budgets: Index<PodDisruptionBudget>,
}

/// Why the Kubernetes half could not be read. Nothing is decided then: an unread Secret is not a missing one.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The GarageCluster has no namespace or name.
    #[error("the GarageCluster has no namespace or name")]
    NoName,
    /// A Secret could not be read.
    #[error("Secret {name} could not be read: {why}")]
    Secret {
        /// Which.
        name: String,
        /// The API server's words, or that it did not answer.
        why: String,
    },
}

/// How long one read of a Secret may take.
const SECRET_DEADLINE: Duration = Duration::from_secs(5);

/// Reads what one pass needs of Kubernetes: the caches, and live and by name the Secrets that the pools and
/// the running Pods name.
pub async fn load(
    cluster: Arc<GarageCluster>,
    stores: &Stores,
    client: &kube::Client,
    settings: &Settings,
) -> Result<KubernetesView, LoadError> {
    let (Some(namespace), Some(name)) = (cluster.metadata.namespace.clone(), cluster.metadata.name.clone())
    else {
        return Err(LoadError::NoName);
    };
    let mut view = KubernetesView {
        // Where one of the namespace cannot be read, nobody knows whose it is.
        garage_nodes: stores
            .garage_nodes
            .is_readable(&namespace)
            .then(|| stores.garage_nodes.of(&namespace, &name)),
        pods: stores.pods.of(&namespace, &name).values().cloned().collect(),
        nodes: stores.nodes.of("", ""),
        daemon_sets: stores.daemon_sets.of(&namespace, &name),
        config_maps: stores.config_maps.of(&namespace, &name),
        services: stores.services.of(&namespace, &name),
        disruption_budgets: stores.disruption_budgets.of(&namespace, &name),
        secrets: BTreeMap::new(),
        cluster,
    };
    let api: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    // Twice: the name of the copied credentials follows from what the sources hold.
    for _ in 0..2 {
        let mut wanted = crate::pool::secrets_to_read(&view.cluster, settings, &view.secrets);
        wanted
            .extend(view.pods.iter().filter_map(|pod| token_key(pod, ADMIN_TOKEN)).map(|(secret, _)| secret));
        wanted.retain(|name| !view.secrets.contains_key(name));
        let read = wanted.into_iter().map(|name| async {
            let answer = tokio::time::timeout(SECRET_DEADLINE, api.get_opt(&name)).await;
            match answer {
                Ok(Ok(secret)) => Ok((name, secret)),
                Ok(Err(kube::Error::Api(status))) => {
                    Err(LoadError::Secret { name, why: status.message.clone() })
                }
                Ok(Err(_)) => {
                    Err(LoadError::Secret { name, why: "the connection to the API server broke".to_owned() })
                }
                Err(_) => {
                    Err(LoadError::Secret { name, why: "the API server did not answer in time".to_owned() })
                }
            }
        });
        for (name, secret) in futures::future::try_join_all(read).await? {
            if let Some(secret) = secret {
                view.secrets.insert(name, Arc::new(secret));
            }
        }
    }
    Ok(view)
}

/// Environment variable and volume of the admin token.
const ADMIN_TOKEN: (&str, &str) = ("GARAGE_ADMIN_TOKEN", "admin-token");

/// The Secret and key that hold the token which a running Pod takes: what its environment names, on older
/// Pods its volume (`compat.md` 3).
fn token_key(pod: &Pod, (variable, volume): (&str, &str)) -> Option<(String, String)> {
    let spec = pod.spec.as_ref()?;
    let container = spec.containers.iter().find(|container| container.name == "garage")?;
    let from_env = container.env.iter().flatten().find(|env| env.name == variable).and_then(|env| {
        let key = env.value_from.as_ref()?.secret_key_ref.as_ref()?;
        Some((key.name.clone(), key.key.clone()))
    });
    from_env.or_else(|| {
        let source = spec.volumes.iter().flatten().find(|v| v.name == volume)?.secret.as_ref()?;
        Some((source.secret_name.clone()?, source.items.as_ref()?.first()?.key.clone()))
    })
}

/// The admin token that this Pod takes.
pub fn admin_token(view: &KubernetesView, pod: &Pod) -> Option<crate::garage::Secret> {
    let (name, key) = token_key(pod, ADMIN_TOKEN)?;
    let bytes = &view.secrets.get(&name)?.data.as_ref()?.get(&key)?.0;
    std::str::from_utf8(bytes).ok().map(crate::garage::Secret::new)
}

/// The Admin API address of a running Pod.
pub fn admin_address(pod: &Pod) -> Option<SocketAddr> {
    let run = identity::incarnation(pod)?;
    let port = pod
        .spec
        .as_ref()?
        .containers
        .iter()
        .find(|container| container.name == "garage")?
        .ports
        .iter()
        .flatten()
        .find(|port| port.name.as_deref() == Some("admin"))
        .and_then(|port| u16::try_from(port.container_port).ok())
        .unwrap_or(3903);
    Some(SocketAddr::new(run.address, port))
}

/// Where this pass asks Garage, and the token: every running Pod that takes the same one as most of them.
/// While the token is being changed the others are asked again when they were restarted with it.
pub fn endpoints(view: &KubernetesView, memory: &Memory) -> Option<(Vec<Endpoint>, crate::garage::Secret)> {
    let mut by_token: BTreeMap<(String, String), Vec<&Pod>> = BTreeMap::new();
    for pod in &view.pods {
        if admin_address(pod).is_some()
            && let Some(key) = token_key(pod, ADMIN_TOKEN)
        {
            by_token.entry(key).or_default().push(pod);
        }
    }
    let pods = by_token.into_values().max_by_key(Vec::len)?;
    let token = admin_token(view, pods.first()?)?;
    let endpoints = pods
        .iter()
        .filter_map(|pod| {
            let node = identity::incarnation(pod).and_then(|run| memory.identities.get(&run).copied());
            Some(Endpoint { address: admin_address(pod)?, node })
        })
        .collect();
    Some((endpoints, token))
}

/// How many Pods are asked for their identity at once.
const AT_ONCE: usize = 16;

/// Asks every running process that was not asked since its start who it is, and files the answers: each at
/// the exact Pod's own address with that Pod's token, and only if a live read of the Pod afterwards shows the
/// same UID, address and run (`compat.md` 4). In steady state there is nobody to ask.
pub async fn read_identities(view: &KubernetesView, memory: &mut Memory, http: &Http, client: &kube::Client) {
    identity::forget(view, memory);
    let asked: Vec<_> = identity::unread(view, memory)
        .into_iter()
        .map(|(pod, run)| who_is(view, pod, run, http, client))
        .collect();
    let answers: Vec<_> = futures::stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
    memory.identities.extend(answers.into_iter().flatten());
}

async fn who_is(
    view: &KubernetesView,
    pod: &Pod,
    run: Incarnation,
    http: &Http,
    client: &kube::Client,
) -> Option<(Incarnation, NodeId)> {
    let token = admin_token(view, pod)?;
    let asked = crate::garage::Client::new(http, admin_address(pod)?, token);
    let id = asked.own_info().await.ok()?.node_id;
    let api: Api<Pod> = Api::namespaced(client.clone(), pod.metadata.namespace.as_deref()?);
    let now =
        tokio::time::timeout(SECRET_DEADLINE, api.get(pod.metadata.name.as_deref()?)).await.ok()?.ok()?;
    (identity::incarnation(&now).as_ref() == Some(&run)).then_some((run, id))
}
