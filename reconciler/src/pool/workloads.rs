//! What is missing or differs of the site's Services, configuration and DaemonSets.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_crds::conditions::PoolsReason;
use holdfast_crds::names::{self, annotation, fence, label};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Map, Value};

use super::compare::{covers, same_map};
use super::condition::Problem;
use super::gate;
use super::membership::{is_pool_pod, token_of};
use super::render::config::PoolConfig;
use super::render::{config, garage_toml, services, workload};
use super::secrets::Ready;
use super::site::{Pool, Site};
use crate::act::{Action, Kind, Object, Target};
use crate::observe::KubernetesView;

/// A pool's configuration, rendered.
pub fn pool_config(site: &Site, pool: &Pool, ready: &Ready) -> PoolConfig {
    let text = garage_toml::render(&site.toml, site.factor, Some(pool), ready.consul_token.as_deref());
    config::pool(&site.id, pool, &text, ready.token_key.as_ref())
}

/// The configuration that no pool uses.
pub fn shared_config(site: &Site, ready: &Ready) -> Object {
    let text = garage_toml::render(&site.toml, site.factor, None, ready.consul_token.as_deref());
    config::shared(&site.id, &text, ready.token_key.as_ref())
}

/// Plans all of it.
pub fn plan(
    site: &Site,
    ready: &Ready,
    kubernetes: &KubernetesView,
    actions: &mut Vec<Action>,
    problems: &mut Vec<Problem>,
) {
    for wanted in [services::api(site), services::headless(site)] {
        let found = kubernetes
            .services
            .get(&wanted.target().name)
            .and_then(|found| serde_json::to_value(found.as_ref()).ok());
        actions.extend(reconcile(site, wanted, found, problems));
    }
    let budget = kubernetes.disruption_budgets.get(&site.id.name);
    let found = budget.and_then(|found| serde_json::to_value(found.as_ref()).ok());
    match (services::disruption_budget(site), found) {
        (Some(wanted), found) => actions.extend(reconcile(site, wanted, found, problems)),
        (None, Some(found)) if is_ours(site, &found) => actions.push(Action::Delete {
            target: Target::namespaced(Kind::PodDisruptionBudget, &site.id.namespace, &site.id.name),
            uid: found["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
        }),
        (None, _) => {}
    }

    let shared = shared_config(site, ready);
    create_config(&shared, kubernetes, actions);
    let mut current: BTreeSet<String> = BTreeSet::from([shared.target().name]);
    let mut rolled_out = true;
    for pool in &site.pools {
        let config = pool_config(site, pool, ready);
        create_config(&config.object, kubernetes, actions);
        current.insert(config.name.clone());
        rolled_out &= daemon_set(site, pool, &config, ready, kubernetes, actions, problems);
    }
    if rolled_out {
        drop_old_configs(site, &current, kubernetes, actions);
    }
}

fn create_config(wanted: &Object, kubernetes: &KubernetesView, actions: &mut Vec<Action>) {
    let name = wanted.target().name;
    let exists = match wanted.kind {
        Kind::Secret => kubernetes.secrets.contains_key(&name),
        _ => kubernetes.config_maps.contains_key(&name),
    };
    if !exists {
        actions.push(Action::Create(wanted.clone()));
    }
}

/// Whether the object's controller is this GarageCluster.
fn is_ours(site: &Site, object: &Value) -> bool {
    object["metadata"]["ownerReferences"].as_array().is_some_and(|owners| {
        owners.iter().any(|owner| owner["uid"] == *site.id.uid && owner["controller"] == true)
    })
}

/// Makes an object, or brings `spec`, labels and annotations up to date.
fn reconcile(
    site: &Site,
    wanted: Object,
    found: Option<Value>,
    problems: &mut Vec<Problem>,
) -> Option<Action> {
    let Some(mut found) = found else { return Some(Action::Create(wanted)) };
    let target = wanted.target();
    if !is_ours(site, &found) {
        problems.push(Problem::new(
            PoolsReason::ConfigurationInvalid,
            format!("{target} exists and does not belong to this GarageCluster; remove or rename it"),
        ));
        return None;
    }
    let want = &wanted.value;
    let (selects, selector) = (&found["spec"]["selector"], &want["spec"]["selector"]);
    let same = covers(&found["spec"], &want["spec"])
        // Flat in a Service, and one level deeper in a budget: one key too many, and it selects nothing.
        && same_map(Some(selects), Some(selector))
        && same_map(Some(&selects["matchLabels"]), Some(&selector["matchLabels"]))
        && covers(&found["metadata"]["labels"], &want["metadata"]["labels"])
        && want["metadata"]["annotations"].as_object().is_none_or(|map| {
            map.is_empty() || covers(&found["metadata"]["annotations"], &want["metadata"]["annotations"])
        });
    if same {
        return None;
    }
    merge(&mut found, "labels", &want["metadata"]["labels"]);
    merge(&mut found, "annotations", &want["metadata"]["annotations"]);
    if let (Some(spec), Some(wanted)) = (found["spec"].as_object_mut(), want["spec"].as_object()) {
        for (key, value) in wanted {
            spec.insert(key.clone(), value.clone());
        }
    }
    Some(Action::Update(stripped(wanted.kind, found)))
}

fn merge(found: &mut Value, map: &str, wanted: &Value) {
    let Some(wanted) = wanted.as_object().filter(|map| !map.is_empty()) else { return };
    let have = &mut found["metadata"][map];
    if !have.is_object() {
        *have = Value::Object(Map::new());
    }
    if let Some(have) = have.as_object_mut() {
        have.extend(wanted.clone());
    }
}

/// An object that was read, as it is sent back.
fn stripped(kind: Kind, mut value: Value) -> Object {
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
        object.remove("apiVersion");
        object.remove("kind");
    }
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    Object::new(kind, value)
}

/// One pool's DaemonSet. Answers whether every Pod of the pool runs the current configuration.
fn daemon_set(
    site: &Site,
    pool: &Pool,
    config: &PoolConfig,
    ready: &Ready,
    kubernetes: &KubernetesView,
    actions: &mut Vec<Action>,
    problems: &mut Vec<Problem>,
) -> bool {
    let name = names::daemon_set_name(&site.id.name, &pool.name);
    let pods: Vec<&Pod> = kubernetes
        .pods
        .iter()
        .map(Arc::as_ref)
        .filter(|pod| {
            is_pool_pod(pod)
                && pod.labels().get(label::NODE_LOCAL_POOL).map(String::as_str) == Some(pool.name.as_str())
        })
        .collect();
    let Some(found) = kubernetes.daemon_sets.get(&name) else {
        // Born fenced: no Node carries this token, so that no Pod runs before the token is known.
        actions.push(Action::Create(workload::daemon_set(
            site,
            pool,
            config,
            &ready.mounted,
            fence::ADOPTION_FENCED,
        )));
        return false;
    };
    let Ok(value) = serde_json::to_value(found.as_ref()) else { return false };
    if !is_ours(site, &value) {
        problems.push(Problem::new(
            PoolsReason::ConfigurationInvalid,
            format!(
                "DaemonSet {}/{name} exists and does not belong to this GarageCluster; remove or rename it",
                site.id.namespace
            ),
        ));
        return false;
    }
    let mut token = token_of(found);
    if names::is_fence(&token) {
        if let Some(older) = pods.iter().find(|pod| !gate::is_owned_by(pod, found)) {
            problems.push(Problem::new(
                PoolsReason::WaitingForPreviousNodeLocalPoolPod,
                format!("pool {} waits for Pod {} of an older DaemonSet to end", pool.name, older.name_any()),
            ));
            return false;
        }
        token = names::workload_token(found.metadata.uid.as_deref().unwrap_or_default());
    }
    let wanted = workload::daemon_set(site, pool, config, &ready.mounted, &token);
    if !same_selector(found, &wanted) {
        problems.push(Problem::new(
            PoolsReason::ConfigurationInvalid,
            format!("DaemonSet {}/{name} has another selector, which cannot be changed; remove it with --cascade=orphan", site.id.namespace),
        ));
        return false;
    }
    if !is_current(&value, &wanted.value) {
        let mut next = value;
        merge(&mut next, "labels", &wanted.value["metadata"]["labels"]);
        merge(&mut next, "annotations", &wanted.value["metadata"]["annotations"]);
        next["spec"]["updateStrategy"] = wanted.value["spec"]["updateStrategy"].clone();
        next["spec"]["template"] = wanted.value["spec"]["template"].clone();
        actions.push(Action::Update(stripped(Kind::DaemonSet, next)));
        return false;
    }
    pods.iter().all(|pod| {
        pod.annotations().get(annotation::workload::CONFIG_HASH).map(String::as_str)
            == Some(config.hash.as_str())
    })
}

fn same_selector(found: &DaemonSet, wanted: &Object) -> bool {
    let labels = found.spec.as_ref().and_then(|spec| spec.selector.match_labels.as_ref());
    let wanted = wanted.value["spec"]["selector"]["matchLabels"].as_object();
    match (labels, wanted) {
        (Some(have), Some(want)) => {
            have.len() == want.len()
                && want.iter().all(|(key, value)| have.get(key).map(String::as_str) == value.as_str())
        }
        _ => false,
    }
}

/// Parts of a Pod template that the API server never adds by itself.
const NEVER_DEFAULTED: [&str; 6] = [
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "serviceAccountName",
    "imagePullSecrets",
];

/// Whether a DaemonSet has the wanted template, by content: the full operator's `pod-spec-hash` is of its
/// own JSON form and says nothing here.
fn is_current(found: &Value, wanted: &Value) -> bool {
    let (have, want) = (&found["spec"]["template"], &wanted["spec"]["template"]);
    let without_hash = |value: &Value| {
        let mut map = value.as_object().cloned().unwrap_or_default();
        map.remove(annotation::workload::POD_SPEC_HASH);
        Value::Object(map)
    };
    let present = |value: &Value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    let container = |template: &Value| template["spec"]["containers"][0].clone();
    found["spec"]["updateStrategy"]["type"] == "OnDelete"
        && covers(&found["metadata"]["labels"], &wanted["metadata"]["labels"])
        && covers(&found["metadata"]["annotations"], &wanted["metadata"]["annotations"])
        && same_map(Some(&have["metadata"]["labels"]), Some(&want["metadata"]["labels"]))
        && same_map(
            Some(&without_hash(&have["metadata"]["annotations"])),
            Some(&without_hash(&want["metadata"]["annotations"])),
        )
        && same_map(Some(&have["spec"]["nodeSelector"]), Some(&want["spec"]["nodeSelector"]))
        && covers(&have["spec"], &want["spec"])
        && NEVER_DEFAULTED.iter().all(|key| present(&have["spec"][key]) == present(&want["spec"][key]))
        && ["resources", "securityContext", "envFrom"]
            .iter()
            .all(|key| present(&container(have)[key]) == present(&container(want)[key]))
}

/// Old revisions go when no Pod mounts them and the rollout is complete.
fn drop_old_configs(
    site: &Site,
    current: &BTreeSet<String>,
    kubernetes: &KubernetesView,
    actions: &mut Vec<Action>,
) {
    let mounted: BTreeSet<&str> = kubernetes
        .pods
        .iter()
        .filter_map(|pod| pod.spec.as_ref())
        .flat_map(|spec| spec.volumes.iter().flatten())
        .filter_map(|volume| volume.config_map.as_ref().map(|map| map.name.as_str()))
        .collect();
    for (name, map) in kubernetes.config_maps.iter() {
        let old = map.annotations().contains_key(annotation::workload::CONFIG_BASE_NAME)
            && !current.contains(name)
            && !mounted.contains(name.as_str())
            && map
                .owner_references()
                .iter()
                .any(|owner| owner.uid == site.id.uid && owner.controller == Some(true));
        if old && map.metadata.deletion_timestamp.is_none() {
            actions.push(Action::Delete {
                target: Target::namespaced(Kind::ConfigMap, &site.id.namespace, name),
                uid: map.metadata.uid.clone().unwrap_or_default(),
            });
        }
    }
}
