//! Schemas of what is stored whole and not described: core types would make the CRDs larger than Kubernetes takes.

use schemars::transform::{self, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::json;

/// Any object.
pub fn object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A core type of Kubernetes, without its descriptions: they would make the definition larger than Kubernetes takes.
pub fn core<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    transform::transform_subschemas(&mut RemoveDescriptions, &mut schema);
    schema.remove("description");
    schema
}

struct RemoveDescriptions;

impl Transform for RemoveDescriptions {
    fn transform(&mut self, schema: &mut Schema) {
        schema.remove("description");
        transform::transform_subschemas(self, schema);
    }
}

/// A number or a percentage.
pub fn int_or_string(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "type": "integer" }, { "type": "string" }], "x-kubernetes-int-or-string": true })
}

/// A Kubernetes label selector.
pub fn label_selector(_: &mut SchemaGenerator) -> Schema {
    let strings =
        json!({ "type": "array", "items": { "type": "string" }, "x-kubernetes-list-type": "atomic" });
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": { "type": "object", "additionalProperties": { "type": "string" } },
            "matchExpressions": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string" },
                        "operator": { "type": "string" },
                        "values": strings,
                    },
                },
            },
        },
    })
}

/// Conditions of an object.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "message": { "type": "string", "maxLength": 32768 },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
                "reason": {
                    "type": "string",
                    "maxLength": 1024,
                    "minLength": 1,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "type": {
                    "type": "string",
                    "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
            },
        },
    })
}

/// A map of counters.
pub fn counters(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "type": "integer", "format": "int64" } })
}

/// A map of `T`, whatever its keys: a structural schema cannot describe keys.
pub fn map_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": generator.subschema_for::<T>() })
}
