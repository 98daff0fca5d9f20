//! The CustomResourceDefinitions, built from the types (`compat.md` 5, `behaviour.md` 6).
//!
//! `crds/yaml/` is generated from here; a test tells when it is not. `HOLDFAST_UPDATE=1 cargo test -p holdfast-crds yaml`
//! writes it.

use k8s_openapi::ByteString;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, ServiceReference, WebhookClientConfig,
    WebhookConversion,
};
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::names::GROUP;
use crate::{node, v1beta1, v1beta2};

/// Why a definition could not be built: a defect of this crate, which its tests exclude.
#[derive(Debug, thiserror::Error)]
pub enum CrdError {
    /// A built schema is not what Kubernetes describes as one.
    #[error("a generated CustomResourceDefinition has the wrong shape: {0}")]
    Shape(#[from] serde_json::Error),
    /// A definition could not be written as YAML.
    #[error("a CustomResourceDefinition cannot be written as YAML: {0}")]
    Yaml(#[from] serde_norway::Error),
}

/// Where the API server finds the conversion webhook; path `/convert`, review version v1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversionService {
    /// Namespace of the Service.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: i32,
    /// PEM certificates of the authority; `None` leaves the field to whoever injects it.
    pub ca_bundle: Option<Vec<u8>>,
}

/// Path of the conversion webhook.
pub const CONVERT_PATH: &str = "/convert";

/// Both definitions. Without a conversion service the GarageCluster has no conversion stanza: server-side apply then leaves
/// alone what is in the cluster, the bundle that was injected there too (strategy `None` beside a bundle is refused by the
/// API server). In a cluster without one the API server takes `None`: it shows a stored v1beta2 object under the name
/// v1beta1 unchanged.
pub fn all(conversion: Option<&ConversionService>) -> Result<Vec<CustomResourceDefinition>, CrdError> {
    Ok(vec![garage_cluster(conversion)?, garage_node()?])
}

/// The definitions as one YAML stream, as `kubectl apply -f -` takes it.
pub fn to_yaml(crds: &[CustomResourceDefinition]) -> Result<String, CrdError> {
    let mut out = String::new();
    for crd in crds {
        out.push_str("---\n");
        out.push_str(&serde_norway::to_string(&serde_json::to_value(crd)?)?);
    }
    Ok(out)
}

/// `garageclusters.garage.rajsingh.info`.
pub fn garage_cluster(conversion: Option<&ConversionService>) -> Result<CustomResourceDefinition, CrdError> {
    let scale = |replicas: &str| {
        json!({
            "status": {},
            "scale": {
                "specReplicasPath": replicas,
                "statusReplicasPath": ".status.scaleReplicas",
                "labelSelectorPath": ".status.scaleSelector",
            },
        })
    };
    let replicated = |what: &str| format!(".status.conditions[?(@.type==\"FullyReplicated\")].{what}");
    // A column cannot compute, so "verified of total" is two.
    let redundancy = [
        column("Replicated", "string", &replicated("status")),
        column("Scope", "string", ".status.redundancy.scope"),
        column("Verified", "integer", ".status.redundancy.storageNodes.verified"),
        column("Total", "integer", ".status.redundancy.storageNodes.total"),
    ];
    let v1beta1_columns = [
        &[
            column("Replicas", "integer", ".spec.replicas"),
            column("Ready", "integer", ".status.readyReplicas"),
            column("Zone", "string", ".spec.zone"),
            column("Phase", "string", ".status.phase"),
        ],
        redundancy.as_slice(),
        &[age()],
    ]
    .concat();
    let v1beta2_columns = [
        &[
            column("Storage", "integer", ".status.storageReplicas"),
            column("Gateway", "integer", ".status.gatewayReplicas"),
            column("Ready", "integer", ".status.readyReplicas"),
            column("Zone", "string", ".spec.zone"),
            column("Phase", "string", ".status.phase"),
        ],
        redundancy.as_slice(),
        &[
            wide(column("Reason", "string", &replicated("reason"))),
            wide(column("Diagnosis", "string", ".status.layoutDiagnosis")),
            age(),
        ],
    ]
    .concat();
    let mut crd = definition(
        "GarageCluster",
        "gc",
        &[
            unserved_v1alpha1(),
            json!({
                "name": "v1beta1",
                "served": true,
                "storage": false,
                "deprecated": true,
                "deprecationWarning": format!("{GROUP}/v1beta1 GarageCluster is deprecated; use {GROUP}/v1beta2"),
                "schema": { "openAPIV3Schema": schema(&v1beta1::GarageCluster::crd(), CLUSTER, cluster_status_extras())? },
                "subresources": scale(".spec.replicas"),
                "additionalPrinterColumns": v1beta1_columns,
            }),
            json!({
                "name": "v1beta2",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": schema(&v1beta2::GarageCluster::crd(), CLUSTER, cluster_status_extras())? },
                "subresources": scale(".spec.storage.replicas"),
                "additionalPrinterColumns": v1beta2_columns,
            }),
        ],
    )?;
    crd.spec.conversion = conversion.map(|service| CustomResourceConversion {
        strategy: "Webhook".to_owned(),
        webhook: Some(WebhookConversion {
            conversion_review_versions: vec!["v1".to_owned()],
            client_config: Some(WebhookClientConfig {
                ca_bundle: service.ca_bundle.clone().map(ByteString),
                service: Some(ServiceReference {
                    namespace: service.namespace.clone(),
                    name: service.name.clone(),
                    path: Some(CONVERT_PATH.to_owned()),
                    port: Some(service.port),
                }),
                url: None,
            }),
        }),
    });
    Ok(crd)
}

/// `garagenodes.garage.rajsingh.info`.
pub fn garage_node() -> Result<CustomResourceDefinition, CrdError> {
    definition(
        "GarageNode",
        "gn",
        &[
            unserved_v1alpha1(),
            json!({
                "name": "v1beta1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": schema(&node::GarageNode::crd(), NODE, node_status_extras())? },
                "subresources": { "status": {} },
                "additionalPrinterColumns": [
                    column("Cluster", "string", ".spec.clusterRef.name"),
                    column("Zone", "string", ".status.zone"),
                    column("Capacity", "string", ".spec.capacity"),
                    column("Gateway", "boolean", ".spec.gateway"),
                    column("Connected", "boolean", ".status.connected"),
                    column("InLayout", "boolean", ".status.inLayout"),
                    age(),
                ],
            }),
        ],
    )
}

fn definition(kind: &str, short: &str, versions: &[Value]) -> Result<CustomResourceDefinition, CrdError> {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    Ok(serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": singular,
                "shortNames": [short],
            },
            "scope": "Namespaced",
            "versions": versions,
        },
    }))?)
}

/// `status.storedVersions` of an old cluster may name it; without it the API server refuses the definition.
fn unserved_v1alpha1() -> Value {
    json!({
        "name": "v1alpha1",
        "served": false,
        "storage": false,
        "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
    })
}

fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

fn wide(mut column: Value) -> Value {
    column["priority"] = json!(1);
    column
}

fn age() -> Value {
    column("Age", "date", ".metadata.creationTimestamp")
}

const CLUSTER: &str = "A Garage cluster, or one site of it.";
const NODE: &str = "One node of a Garage cluster.";
const NEVER: &str = "Deprecated: never populated.";

fn any() -> Value {
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn never(mut schema: Value) -> Value {
    schema["description"] = json!(NEVER);
    schema
}

/// Status fields of a GarageCluster that no code of this product writes or reads.
fn cluster_status_extras() -> Value {
    json!({
        "nodes": never(json!({ "type": "array", "items": any() })),
        "activeRepairs": never(json!({ "type": "array", "items": any() })),
        "workers": never(any()),
        "workerCount": never(json!({ "type": "integer", "format": "int32" })),
        "workersFailed": never(json!({ "type": "integer", "format": "int32" })),
        "scrubStatus": never(any()),
        "lifecycleStatus": never(any()),
        "totalNodes": never(json!({ "type": "integer" })),
    })
}

/// Status fields of a GarageNode that no code of this product writes or reads.
fn node_status_extras() -> Value {
    json!({
        "blockErrors": never(json!({ "type": "integer", "format": "int32" })),
        "repairInProgress": never(json!({ "type": "boolean" })),
        "repairType": never(json!({ "type": "string" })),
        "repairProgress": never(json!({ "type": "string" })),
        "storedData": never(json!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }], "x-kubernetes-int-or-string": true,
        })),
        "managedPVCs": {
            "type": "array",
            "description": "Written by the full operator.",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": { "type": "string" },
                    "uid": { "type": "string" },
                    "pendingReservationHash": { "type": "string", "pattern": "^[0-9a-f]{64}$" },
                },
                "x-kubernetes-preserve-unknown-fields": true,
                "x-kubernetes-validations": [{
                    "rule": "has(self.uid) != has(self.pendingReservationHash)",
                    "message": "exactly one of uid and pendingReservationHash is required",
                }],
            },
        },
    })
}

/// The schema of a derived definition, made to keep what it does not describe.
fn schema(
    derived: &CustomResourceDefinition,
    description: &str,
    status_extras: Value,
) -> Result<Value, CrdError> {
    let derived = serde_json::to_value(derived)?;
    let mut schema = derived
        .pointer("/spec/versions/0/schema/openAPIV3Schema")
        .cloned()
        .unwrap_or_else(|| json!({ "type": "object" }));
    for (part, defaults) in [("spec", true), ("status", false)] {
        if let Some(part) = schema.get_mut("properties").and_then(|p| p.get_mut(part)) {
            normalize(part, defaults);
        }
    }
    if let Some(root) = schema.as_object_mut() {
        // The name of a Rust type, and words about it.
        root.remove("title");
        root.insert("description".to_owned(), json!(description));
    }
    if let Some(properties) =
        schema.pointer_mut("/properties/status/properties").and_then(Value::as_object_mut)
        && let Value::Object(extras) = status_extras
    {
        properties.extend(extras);
    }
    // As the full operator's definitions have it: two of the three properties that every object has.
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        let mut all = Map::new();
        all.insert("apiVersion".to_owned(), json!({ "type": "string" }));
        all.insert("kind".to_owned(), json!({ "type": "string" }));
        all.insert("metadata".to_owned(), json!({ "type": "object" }));
        all.append(properties);
        *properties = all;
    }
    Ok(schema)
}

/// What the derived schema says otherwise than this API:
/// - an optional field is absent and not null, as in the full operator's definitions: a null is dropped by the API server,
///   where a nullable field would keep it and lose its default;
/// - every described object keeps what is not described;
/// - an absent list or map has no default, and nothing in a status has one (`defaults`): what the API server writes there
///   would be a change that nobody made, and an absence that reads as a zero.
fn normalize(schema: &mut Value, defaults: bool) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| normalize(item, defaults)),
        Value::Object(object) => {
            object.remove("nullable");
            if object.get("x-kubernetes-int-or-string") == Some(&json!(true)) {
                // The derivation takes the types out of the branches.
                object.remove("type");
                object.insert("anyOf".to_owned(), json!([{ "type": "integer" }, { "type": "string" }]));
            }
            if object
                .get("default")
                .is_some_and(|d| !defaults || d.is_null() || d == &json!([]) || d == &json!({}))
            {
                object.remove("default");
            }
            if object.get("type") == Some(&json!("object")) && object.contains_key("properties") {
                object.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
            }
            for (key, value) in object.iter_mut() {
                match key.as_str() {
                    // Names of fields, which may read like keywords.
                    "properties" => {
                        if let Value::Object(properties) = value {
                            properties.values_mut().for_each(|property| normalize(property, defaults));
                        }
                    }
                    "items" | "additionalProperties" | "anyOf" | "oneOf" | "allOf" | "not" => {
                        normalize(value, defaults);
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
}
