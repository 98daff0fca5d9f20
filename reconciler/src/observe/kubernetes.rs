//! The Kubernetes half of an observation.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_crds::node::GarageNode;
use holdfast_crds::v1beta2::GarageCluster;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};

/// The objects one pass saw. Shared with the caches, never cloned.
#[derive(Debug, Clone)]
pub struct KubernetesView {
    /// The cluster itself.
    pub cluster: Arc<GarageCluster>,
    /// Its GarageNodes (same namespace, `spec.clusterRef.name`), by name; `None` when they could not be read (O3).
    pub garage_nodes: Option<BTreeMap<String, Arc<GarageNode>>>,
    /// Its Pods: label `garage.rajsingh.info/cluster`, same namespace.
    pub pods: Vec<Arc<Pod>>,
    /// All Nodes, by name.
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// Its DaemonSets, by name.
    pub daemon_sets: BTreeMap<String, Arc<DaemonSet>>,
    /// Its ConfigMaps, by name.
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    /// Its Services, by name.
    pub services: BTreeMap<String, Arc<Service>>,
    /// The Secrets it names or owns, by name. Read live, by name, never listed.
    pub secrets: BTreeMap<String, Arc<Secret>>,
}
