//! Labels of what a pool consists of (`compat.md` 3).

use std::collections::BTreeMap;

use holdfast_crds::ids::PoolName;
use holdfast_crds::names::{ClusterId, label};
use serde_json::{Map, Value, json};

/// Labels of everything of the cluster.
pub fn cluster(id: &ClusterId) -> Map<String, Value> {
    let mut labels = Map::new();
    labels.insert(label::APP_NAME.into(), label::APP_NAME_GARAGE.into());
    labels.insert(label::APP_INSTANCE.into(), id.name.clone().into());
    labels.insert(label::APP_MANAGED_BY.into(), label::MANAGED_BY_WORKLOAD.into());
    labels.insert(label::APP_COMPONENT.into(), label::TIER_STORAGE.into());
    labels.insert(label::CLUSTER.into(), id.name.clone().into());
    labels
}

/// Labels of a pool's DaemonSet, and after the user's of its Pods.
pub fn pool(id: &ClusterId, pool: &PoolName) -> Map<String, Value> {
    let mut labels = cluster(id);
    labels.insert(label::TIER.into(), label::TIER_STORAGE.into());
    labels.insert(label::NODE_LOCAL_POOL.into(), pool.as_str().into());
    labels.insert(label::STORAGE_GROUP.into(), label::STORAGE_GROUP_NODE_LOCAL.into());
    labels
}

/// The DaemonSet's selector; immutable.
pub fn pool_selector(id: &ClusterId, pool: &PoolName) -> Map<String, Value> {
    let mut labels = Map::new();
    labels.insert(label::APP_NAME.into(), label::APP_NAME_GARAGE.into());
    labels.insert(label::APP_INSTANCE.into(), id.name.clone().into());
    labels.insert(label::TIER.into(), label::TIER_STORAGE.into());
    labels.insert(label::NODE_LOCAL_POOL.into(), pool.as_str().into());
    labels.insert(label::STORAGE_GROUP.into(), label::STORAGE_GROUP_NODE_LOCAL.into());
    labels
}

/// Whether a user may give a Pod this label.
pub fn is_reserved(key: &str) -> bool {
    [
        label::APP_NAME,
        label::APP_INSTANCE,
        label::APP_MANAGED_BY,
        label::APP_COMPONENT,
        label::CLUSTER,
        label::TIER,
        label::NODE_LOCAL_POOL,
        label::STORAGE_GROUP,
        label::KUBERNETES_NODE,
        label::NODE,
        label::SCALE_TARGET,
    ]
    .contains(&key)
}

/// The user's entries under ours.
pub fn with_user(user: &BTreeMap<String, String>, ours: Map<String, Value>) -> Map<String, Value> {
    let mut all: Map<String, Value> =
        user.iter().filter(|(key, _)| !is_reserved(key)).map(|(k, v)| (k.clone(), json!(v))).collect();
    all.extend(ours);
    all
}

/// The controller reference to the GarageCluster.
pub fn owner(id: &ClusterId) -> Value {
    json!([{
        "apiVersion": "garage.rajsingh.info/v1beta2",
        "kind": "GarageCluster",
        "name": id.name,
        "uid": id.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }])
}
