//! The site's Secrets: the RPC secret and the copies of the tokens (`compat.md` 1 and 3).
//!
//! Source Secrets are copied into immutable ones; Pods use only the copies. The RPC secret is generated
//! once, where no reference is set, and never a second time once its fingerprint is on the GarageCluster:
//! a lost one must be put back, since a new one would split the site.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_crds::names::{self, ClusterId, StaticCredential, annotation, label};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value, json};

use super::render::labels;
use super::site::{SecretKey, Site};
use crate::act::{Action, Kind, Object, PatchBuilder, Target};

/// One file of a Secret in a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretFile {
    /// Name of the volume.
    pub volume: &'static str,
    /// Directory in the Pod.
    pub mount: &'static str,
    /// Name of the Secret.
    pub secret: String,
    /// Key in it.
    pub key: &'static str,
    /// File name in the directory.
    pub path: &'static str,
    /// Mode.
    pub mode: u32,
    /// Environment variable that carries it too.
    pub env: Option<&'static str>,
}

/// What the Pods mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// In the order of the volumes and of the environment.
    pub files: Vec<SecretFile>,
}

/// The secrets of a site are in order.
#[derive(Clone)]
pub struct Ready {
    /// What the Pods mount.
    pub mounted: Mounted,
    /// The 32 bytes of the RPC secret, where garage.toml holds a Consul token (its hash is keyed).
    pub token_key: Option<[u8; 32]>,
    /// The Consul token, which stands in garage.toml.
    pub consul_token: Option<String>,
}

/// Where the secrets stand.
pub enum Plan {
    /// All there; further actions may bring records up to date.
    Ready(Ready, Vec<Action>),
    /// Actions first; the rest follows in a later pass.
    Making(Vec<Action>),
    /// A person must act: message of the condition.
    Refused(String),
}

/// Names of the Secrets that a pass must read for this site. Called again with what was read so far, it
/// names those that can only be known then.
pub fn to_read(site: &Site, have: &BTreeMap<String, Arc<Secret>>) -> BTreeSet<String> {
    let secrets = &site.secrets;
    let own = if secrets.rpc.is_some() { site.id.rpc_secret_snapshot() } else { site.id.rpc_secret() };
    let mut all = BTreeSet::from([own]);
    all.extend(
        [&secrets.rpc, &secrets.admin_token, &secrets.metrics_token]
            .into_iter()
            .flatten()
            .chain(secrets.consul.values())
            .map(|key| key.name.clone()),
    );
    let Some((_, rpc)) = rpc_secret(site, have) else { return all };
    let Ok(values) = credential_values(site, have) else { return all };
    all.insert(names::static_credentials_name(&site.id.name, &revision(&site.id, &rpc, &values)));
    // With a Consul token the configuration itself is in Secrets.
    if let Some(token) = values.iter().find(|value| value.key == "consul-token") {
        let ready = Ready {
            mounted: Mounted { files: Vec::new() },
            token_key: Some(rpc),
            consul_token: Some(String::from_utf8_lossy(token.bytes).trim().to_owned()),
        };
        all.insert(super::workloads::shared_config(site, &ready).target().name);
        all.extend(site.pools.iter().map(|pool| super::workloads::pool_config(site, pool, &ready).name));
    }
    all
}

/// What is to be done about the secrets. `annotations` and `resource_version` are the GarageCluster's;
/// `entropy` is fresh randomness, used only where a secret is generated.
pub fn plan(
    site: &Site,
    annotations: &BTreeMap<String, String>,
    secrets: &BTreeMap<String, Arc<Secret>>,
    entropy: &[u8; 32],
    resource_version: &str,
) -> Plan {
    let mut actions = Vec::new();
    let recorded = annotations.get(annotation::cluster::RPC_IDENTITY_SHA256);

    let Some((rpc_name, rpc)) = rpc_secret(site, secrets) else {
        return match (&site.secrets.rpc, recorded) {
            (Some(source), _) => match value(secrets, source) {
                Some(bytes) => match std::str::from_utf8(bytes).ok().and_then(names::parse_rpc_secret) {
                    Some(rpc) if recorded.is_none_or(|print| *print == names::rpc_fingerprint(&rpc)) => {
                        Plan::Making(vec![Action::Create(rpc_object(site, &rpc, Some(source)))])
                    }
                    Some(_) => Plan::Refused(format!(
                        "Secret {} holds another RPC secret than the one this site was made with; put the old one back",
                        source.name
                    )),
                    None => Plan::Refused(format!(
                        "key {} of Secret {} is not an RPC secret: it must be 64 hexadecimal characters",
                        source.key, source.name
                    )),
                },
                None => Plan::Refused(format!(
                    "Secret {} has no key {}, which spec.network.rpcSecretRef names; create it",
                    source.name, source.key
                )),
            },
            (None, Some(_)) => Plan::Refused(format!(
                "Secret {} of this site is gone; restore it: a new one would split the site, so none is generated",
                site.id.rpc_secret()
            )),
            (None, None) => Plan::Making(vec![Action::Create(rpc_object(site, entropy, None))]),
        };
    };
    let fingerprint = names::rpc_fingerprint(&rpc);
    match recorded {
        Some(print) if *print != fingerprint => {
            return Plan::Refused(format!(
                "Secret {rpc_name} holds another RPC secret than the one this site was made with; put the old one back"
            ));
        }
        Some(_) => {}
        None => actions.push(annotate(
            &site.id,
            annotations,
            resource_version,
            &[(annotation::cluster::RPC_IDENTITY_SHA256, fingerprint)],
        )),
    }

    let values = match credential_values(site, secrets) {
        Ok(values) => values,
        Err(message) => return Plan::Refused(message),
    };
    let revision = revision(&site.id, &rpc, &values);
    let name = names::static_credentials_name(&site.id.name, &revision);
    if !secrets.contains_key(&name) {
        actions.push(Action::Create(credentials_object(&site.id, &name, &values)));
        return Plan::Making(actions);
    }
    let sources: Vec<String> = values
        .iter()
        .map(|value| {
            format!("{}={}/{}:{}", value.key, site.id.namespace, value.source.name, value.source.key)
        })
        .collect();
    let wanted = [
        (annotation::cluster::STATIC_CREDENTIALS_SECRET, name.clone()),
        (annotation::cluster::STATIC_CREDENTIALS_REVISION, revision),
        (annotation::cluster::STATIC_CREDENTIALS_SOURCES, sources.join(",")),
    ];
    if recorded.is_some() && wanted.iter().any(|(key, value)| annotations.get(*key) != Some(value)) {
        actions.push(annotate(&site.id, annotations, resource_version, &wanted));
    }

    let consul_token = values
        .iter()
        .find(|value| value.key == "consul-token")
        .map(|value| String::from_utf8_lossy(value.bytes).trim().to_owned());
    let has = |key: &str| values.iter().any(|value| value.key == key);
    let mut files = vec![SecretFile {
        volume: "rpc-secret",
        mount: "/secrets/rpc",
        secret: rpc_name,
        key: ClusterId::RPC_SECRET_KEY,
        path: "rpc-secret",
        mode: 0o600,
        env: Some("GARAGE_RPC_SECRET"),
    }];
    let copies: [Copied; 5] = [
        ("admin-token", "admin-token", "/secrets/admin", "admin-token", 0o600, Some("GARAGE_ADMIN_TOKEN")),
        (
            "metrics-token",
            "metrics-token",
            "/secrets/metrics",
            "metrics-token",
            0o600,
            Some("GARAGE_METRICS_TOKEN"),
        ),
        ("ca.crt", "consul-ca", "/secrets/consul/ca", "ca.crt", 0o440, None),
        ("tls.crt", "consul-client-cert", "/secrets/consul/client-cert", "tls.crt", 0o440, None),
        ("tls.key", "consul-client-key", "/secrets/consul/client-key", "tls.key", 0o440, None),
    ];
    for (key, volume, mount, path, mode, env) in copies {
        if has(key) {
            files.push(SecretFile { volume, mount, secret: name.clone(), key: path, path, mode, env });
        }
    }
    let token_key = consul_token.is_some().then_some(rpc);
    Plan::Ready(Ready { mounted: Mounted { files }, token_key, consul_token }, actions)
}

/// Key of a copied credential, its volume, directory, file, mode and environment variable.
type Copied = (&'static str, &'static str, &'static str, &'static str, u32, Option<&'static str>);

struct Credential<'a> {
    key: &'static str,
    source: &'a SecretKey,
    bytes: &'a [u8],
}

/// The configured credentials and their values; trimmed.
fn credential_values<'a>(
    site: &'a Site,
    secrets: &'a BTreeMap<String, Arc<Secret>>,
) -> Result<Vec<Credential<'a>>, String> {
    let Some(admin) = &site.secrets.admin_token else {
        return Err("spec.admin.adminTokenSecretRef is required with node-local pools: create a Secret with the token and name it there".to_owned(),
        );
    };
    let mut wanted = vec![("admin-token", admin)];
    wanted.extend(site.secrets.metrics_token.as_ref().map(|source| ("metrics-token", source)));
    wanted.extend(site.secrets.consul.iter().map(|(key, source)| (*key, source)));
    let mut values = Vec::new();
    for (key, source) in wanted {
        let Some(bytes) = value(secrets, source) else {
            return Err(format!("Secret {} has no key {} ({key}); create it", source.name, source.key));
        };
        let bytes = bytes.trim_ascii();
        let is_token = key.ends_with("-token");
        if bytes.is_empty() || (is_token && !bytes.iter().all(u8::is_ascii_graphic)) {
            return Err(format!(
                "key {} of Secret {} is not a token: it must be visible ASCII characters on one line",
                source.key, source.name
            ));
        }
        if key == "admin-token" && bytes.contains(&b'.') {
            return Err(format!(
                "key {} of Secret {} holds a '.', which Garage reads as a token of another kind; use one without",
                source.key, source.name
            ));
        }
        values.push(Credential { key, source, bytes });
    }
    Ok(values)
}

fn value<'a>(secrets: &'a BTreeMap<String, Arc<Secret>>, key: &SecretKey) -> Option<&'a [u8]> {
    Some(secrets.get(&key.name)?.data.as_ref()?.get(&key.key)?.0.as_slice())
}

/// Name and bytes of the site's RPC secret, where it exists and can be read.
fn rpc_secret(site: &Site, secrets: &BTreeMap<String, Arc<Secret>>) -> Option<(String, [u8; 32])> {
    let name = if site.secrets.rpc.is_some() { site.id.rpc_secret_snapshot() } else { site.id.rpc_secret() };
    let key = SecretKey { name: name.clone(), key: ClusterId::RPC_SECRET_KEY.to_owned() };
    let bytes = value(secrets, &key)?;
    Some((name, names::parse_rpc_secret(std::str::from_utf8(bytes).ok()?)?))
}

fn revision(id: &ClusterId, rpc: &[u8; 32], values: &[Credential<'_>]) -> String {
    let sources: Vec<String> =
        values.iter().map(|v| format!("{}/{}:{}", id.namespace, v.source.name, v.source.key)).collect();
    let credentials: Vec<StaticCredential<'_>> = values
        .iter()
        .zip(&sources)
        .map(|(v, source)| StaticCredential { key: v.key, source, value: v.bytes })
        .collect();
    names::static_credentials_revision(rpc, &credentials)
}

fn rpc_object(site: &Site, rpc: &[u8; 32], source: Option<&SecretKey>) -> Object {
    let id = &site.id;
    let mut annotations = Map::new();
    annotations.insert(annotation::cluster::RPC_IDENTITY_SHA256.into(), names::rpc_fingerprint(rpc).into());
    if let Some(source) = source {
        annotations.insert(
            annotation::cluster::RPC_IDENTITY_SOURCE.into(),
            format!("{}/{}:{}", id.namespace, source.name, source.key).into(),
        );
    }
    secret_object(
        id,
        &if source.is_some() { id.rpc_secret_snapshot() } else { id.rpc_secret() },
        &labels::cluster(id),
        &annotations,
        &json!({ ClusterId::RPC_SECRET_KEY: hex::encode(rpc) }),
    )
}

fn credentials_object(id: &ClusterId, name: &str, values: &[Credential<'_>]) -> Object {
    let mut labels = labels::cluster(id);
    labels.insert(label::STATIC_CREDENTIALS_SNAPSHOT.into(), "true".into());
    let data: Map<String, Value> = values
        .iter()
        .map(|value| (value.key.to_owned(), String::from_utf8_lossy(value.bytes).into_owned().into()))
        .collect();
    secret_object(id, name, &labels, &Map::new(), &data.into())
}

fn secret_object(
    id: &ClusterId,
    name: &str,
    labels: &Map<String, Value>,
    annotations: &Map<String, Value>,
    data: &Value,
) -> Object {
    Object::new(
        Kind::Secret,
        json!({
            "metadata": {
                "name": name,
                "namespace": id.namespace,
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": labels::owner(id),
            },
            "immutable": true,
            "type": "Opaque",
            "stringData": data,
        }),
    )
}

/// Sets annotations on the GarageCluster, on the very object that was read.
fn annotate(
    id: &ClusterId,
    current: &BTreeMap<String, String>,
    resource_version: &str,
    entries: &[(&str, String)],
) -> Action {
    let mut patch = PatchBuilder::new()
        .unchanged(&id.uid, resource_version)
        .ensure_map("annotations", !current.is_empty());
    for (key, value) in entries {
        patch = patch.set_entry("annotations", key, current.get(*key).map(String::as_str), value.as_str());
    }
    Action::Patch {
        target: Target::namespaced(Kind::GarageCluster, &id.namespace, &id.name),
        status: false,
        patch: patch.build(),
        dry_run: false,
    }
}
