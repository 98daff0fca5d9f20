//! A member's GarageNode, as the pools read it.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_crds::ids::{KubernetesNodeName, NodeId, Pair, PoolName};
use holdfast_crds::names::annotation;
use holdfast_crds::node::GarageNode;
use serde_json::Value;

use crate::observe::KubernetesView;

/// A GarageNode with `backing: NodeLocalPool`.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its JSON.
    pub value: Value,
    /// Its name.
    pub name: String,
    /// The pair it stands for.
    pub pair: Pair,
}

/// The records of the cluster by pair; `None` where the GarageNodes could not be read (O3).
pub fn read_all(kubernetes: &KubernetesView) -> Option<BTreeMap<Pair, Record>> {
    let nodes = kubernetes.garage_nodes.as_ref()?;
    Some(nodes.values().filter_map(Record::read).map(|record| (record.pair.clone(), record)).collect())
}

impl Record {
    fn read(node: &Arc<GarageNode>) -> Option<Self> {
        let value = serde_json::to_value(node.as_ref()).ok()?;
        if value["spec"]["backing"] != "NodeLocalPool" {
            return None;
        }
        let pool: PoolName = value["spec"]["nodeLocalPoolName"].as_str()?.parse().ok()?;
        let node: KubernetesNodeName = value["spec"]["kubernetesNodeName"].as_str()?.parse().ok()?;
        let name = value["metadata"]["name"].as_str()?.to_owned();
        Some(Self { value, name, pair: Pair { pool, node } })
    }

    fn text(&self, parent: &str, key: &str) -> Option<&str> {
        self.value[parent][key].as_str().filter(|text| !text.is_empty())
    }

    /// An annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.value["metadata"]["annotations"][key].as_str()
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        self.text("metadata", "uid").unwrap_or_default()
    }

    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> &str {
        self.text("metadata", "resourceVersion").unwrap_or_default()
    }

    /// Whether it is being deleted.
    pub fn is_deleted(&self) -> bool {
        self.text("metadata", "deletionTimestamp").is_some()
    }

    /// The recovery pin, where it is an identity.
    pub fn pin(&self) -> Option<NodeId> {
        self.annotation(annotation::node::RECOVERY_PIN)?.parse().ok()
    }

    /// `status.nodeId`.
    pub fn node_id(&self) -> Option<NodeId> {
        self.text("status", "nodeId")?.parse().ok()
    }

    /// `status.inLayout`.
    pub fn in_layout(&self) -> bool {
        self.value["status"]["inLayout"].as_bool().unwrap_or(false)
    }

    /// Whether another operator has this member in its hands (P15).
    pub fn other_hand(&self) -> Option<&'static str> {
        let set = |key: &str| self.annotation(key).is_some_and(|value| !value.is_empty() && value != "false");
        if set(annotation::node::DRAIN) {
            Some("drain")
        } else if set(annotation::node::ACKNOWLEDGE_LOST_SOURCE) {
            Some("acknowledge-lost-source")
        } else {
            None
        }
    }

    /// Whether its maintenance is suspended.
    pub fn is_suspended(&self) -> bool {
        self.value["spec"]["maintenance"]["suspended"].as_bool().unwrap_or(false)
            || self.annotation(annotation::node::OPERATOR_SUSPENDED).is_some_and(|value| value != "false")
    }
}
