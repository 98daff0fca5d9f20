//! Services and the disruption budget of a site (`compat.md` 3).

use holdfast_crds::names::label;
use serde_json::{Map, Value, json};

use super::labels;
use crate::act::{Kind, Object};
use crate::pool::site::Site;

fn port(name: &str, port: u16) -> Value {
    json!({ "name": name, "port": port, "targetPort": port, "protocol": "TCP" })
}

/// The Service `<cluster>`: S3, Admin API and what else is configured, of the storage tier.
pub fn api(site: &Site) -> Object {
    let input = &site.service;
    let ports = site.ports;
    let mut list = vec![port("s3", ports.s3), port("admin", ports.admin)];
    list.extend(ports.k2v.map(|number| port("k2v", number)));
    list.extend(ports.web.map(|number| port("web", number)));
    let mut spec = Map::new();
    spec.insert("type".into(), input.service_type.clone().unwrap_or_else(|| "ClusterIP".to_owned()).into());
    spec.insert("selector".into(), json!({ label::CLUSTER: site.id.name, label::TIER: label::TIER_STORAGE }));
    spec.insert("ports".into(), list.into());
    spec.insert("publishNotReadyAddresses".into(), true.into());
    for (key, value) in &input.rest {
        spec.insert((*key).to_owned(), value.clone());
    }
    Object::new(
        Kind::Service,
        json!({
            "metadata": {
                "name": site.id.name,
                "namespace": site.id.namespace,
                "labels": labels::with_user(&input.labels, labels::cluster(&site.id)),
                "annotations": input.annotations,
                "ownerReferences": labels::owner(&site.id),
            },
            "spec": spec,
        }),
    )
}

/// The headless Service of all tiers, for the nodes' RPC.
pub fn headless(site: &Site) -> Object {
    Object::new(
        Kind::Service,
        json!({
            "metadata": {
                "name": site.id.headless_service(),
                "namespace": site.id.namespace,
                "labels": labels::cluster(&site.id),
                "ownerReferences": labels::owner(&site.id),
            },
            "spec": {
                "clusterIP": "None",
                "selector": { label::CLUSTER: site.id.name },
                "ports": [port("rpc", site.ports.rpc)],
                "publishNotReadyAddresses": true,
            },
        }),
    )
}

/// The disruption budget, where `storage.podDisruptionBudget` is on; with pools and no number given
/// `maxUnavailable: 1`.
pub fn disruption_budget(site: &Site) -> Option<Object> {
    let (min_available, max_unavailable) = site.disruption_budget.as_ref()?;
    let mut spec = Map::new();
    match (min_available, max_unavailable) {
        (Some(min), _) => spec.insert("minAvailable".into(), min.clone()),
        (None, Some(max)) => spec.insert("maxUnavailable".into(), max.clone()),
        (None, None) => spec.insert("maxUnavailable".into(), 1.into()),
    };
    spec.insert(
        "selector".into(),
        json!({ "matchLabels": {
            label::APP_NAME: label::APP_NAME_GARAGE,
            label::APP_INSTANCE: site.id.name,
            label::TIER: label::TIER_STORAGE,
        }}),
    );
    Some(Object::new(
        Kind::PodDisruptionBudget,
        json!({
            "metadata": {
                "name": site.id.name,
                "namespace": site.id.namespace,
                "labels": labels::cluster(&site.id),
                "ownerReferences": labels::owner(&site.id),
            },
            "spec": spec,
        }),
    ))
}
