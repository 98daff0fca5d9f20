//! The ConfigMaps (with a Consul token: Secrets) that hold garage.toml.

use holdfast_crds::names::{self, ClusterId, DiskLayout, annotation::workload};
use serde_json::{Map, Value, json};

use super::labels;
use crate::act::{Kind, Object};
use crate::pool::site::Pool;

/// The key in the object, and the file's name in the Pod.
pub const KEY: &str = "garage.toml";

/// A pool's configuration: its text and what is computed from it.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConfig {
    /// Name of the object; content-addressed.
    pub name: String,
    /// SHA-256 of the text (or an HMAC, with a Consul token).
    pub hash: String,
    /// Whether the object is a Secret.
    pub sensitive: bool,
    /// The object.
    pub object: Object,
}

/// Renders a pool's configuration. `token_key` is the RPC secret when the text holds a Consul token.
pub fn pool(id: &ClusterId, pool: &Pool, text: &str, token_key: Option<&[u8; 32]>) -> PoolConfig {
    let hash = hash(text, token_key);
    let name = names::pool_config_name(&id.name, &pool.name, &hash, &pool.disks);
    let mut labels = labels::cluster(id);
    labels.insert(names::label::NODE_LOCAL_POOL.into(), pool.name.as_str().into());
    let base = names::pool_config_base_name(&id.name, &pool.name);
    let object = object(id, &name, &labels, &base, Some(&pool.disks), text, token_key.is_some());
    PoolConfig { name, hash, sensitive: token_key.is_some(), object }
}

/// The ConfigMap that no pool uses and that is always written.
pub fn shared(id: &ClusterId, text: &str, token_key: Option<&[u8; 32]>) -> Object {
    let name = names::shared_config_name(&id.name, &hash(text, token_key));
    let base = format!("{}-config", id.name);
    object(id, &name, &labels::cluster(id), &base, None, text, token_key.is_some())
}

fn hash(text: &str, token_key: Option<&[u8; 32]>) -> String {
    match token_key {
        Some(key) => names::config_hash_with_token(text, key),
        None => names::config_hash(text),
    }
}

fn object(
    id: &ClusterId,
    name: &str,
    labels: &Map<String, Value>,
    base: &str,
    disks: Option<&DiskLayout>,
    text: &str,
    sensitive: bool,
) -> Object {
    let mut annotations = Map::new();
    annotations.insert(workload::CONFIG_BASE_NAME.into(), base.into());
    if let Some(disks) = disks {
        annotations.insert(workload::DISK_LAYOUT.into(), disks.to_annotation().into());
    }
    if sensitive {
        annotations.insert(workload::SENSITIVE_CONFIG.into(), "true".into());
    }
    let metadata = json!({
        "name": name,
        "namespace": id.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": labels::owner(id),
    });
    if sensitive {
        Object::new(
            Kind::Secret,
            json!({ "metadata": metadata, "immutable": true, "type": "Opaque", "stringData": { KEY: text } }),
        )
    } else {
        Object::new(
            Kind::ConfigMap,
            json!({ "metadata": metadata, "immutable": true, "data": { KEY: text } }),
        )
    }
}
