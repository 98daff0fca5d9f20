//! What the API server refuses by the CRD's schema, before any webhook is asked.
//!
//! Types, enumerations, patterns and bounds are judged; rules in CEL are the API server's. The CRDs keep fields that they
//! do not know (another operator's), so one that is a letter or two off a known one passes there and does nothing:
//! it is a warning here.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use regex_lite::Regex;
use serde_json::Value;

use super::{Severity, Subject};
use crate::crd;
use crate::ids::Quoted;
use crate::manifest::{Data, Node};

struct Known {
    kind: String,
    version: String,
    schema: JSONSchemaProps,
}

static SCHEMAS: LazyLock<Vec<Known>> = LazyLock::new(|| {
    // A test reads them all; a definition that cannot be built has no schema here either.
    let definitions = crd::all(None).unwrap_or_default();
    let versions = definitions.into_iter().flat_map(|crd| {
        let kind = crd.spec.names.kind;
        crd.spec.versions.into_iter().map(move |version| (kind.clone(), version))
    });
    versions
        .filter_map(|(kind, version)| {
            let schema = version.schema?.open_api_v3_schema?;
            Some(Known { kind, version: version.name, schema })
        })
        .collect()
});

/// Judges `spec` of the object by the schema of its kind and version.
pub(super) fn judge(subject: &mut Subject<'_>, kind: &str, version: &str) {
    let known = SCHEMAS.iter().find(|known| known.kind == kind && known.version == version);
    let schema = known.and_then(|known| known.schema.properties.as_ref()).and_then(|all| all.get("spec"));
    let (Some(schema), Some(spec)) = (schema, subject.object.get(&["spec"])) else { return };
    walk(subject, "spec", spec, schema);
}

fn walk(subject: &mut Subject<'_>, path: &str, node: &Node, schema: &JSONSchemaProps) {
    let refuse = |subject: &mut Subject<'_>, what: String| {
        subject.error(node.at, "schema", format!("{path} {what}"));
    };
    let is_text = node.as_str().is_some();
    let is_whole = matches!(&node.data, Data::Scalar(Value::Number(n)) if n.is_i64() || n.is_u64());
    let fits = match schema.type_.as_deref() {
        // Left out, or taken away by an apply.
        _ if node.type_name() == "null" => return,
        None if schema.x_kubernetes_int_or_string == Some(true) => is_text || is_whole,
        Some("integer") => is_whole,
        Some("number") => node.type_name() == "a number",
        Some("string") => is_text,
        Some("boolean") => node.type_name() == "a boolean",
        Some("array") => node.type_name() == "a list",
        Some("object") => node.type_name() == "a mapping",
        _ => true,
    };
    if !fits {
        let wanted = match schema.type_.as_deref() {
            Some("integer") => "a whole number",
            Some("string") => "a string; put it in quotes",
            Some("array") => "a list",
            Some("object") => "a mapping",
            Some("boolean") => "true or false",
            Some("number") => "a number",
            _ => "a whole number or a string",
        };
        refuse(subject, format!("is {}, and must be {wanted}", shown(node)));
        return;
    }
    if let Some(allowed) = &schema.enum_
        && !allowed.iter().any(|one| one.0 == node.to_value())
    {
        let allowed: Vec<String> = allowed.iter().map(|one| one.0.to_string()).collect();
        refuse(subject, format!("is {}, and must be one of {}", shown(node), allowed.join(", ")));
    }
    if let Some(text) = node.as_str() {
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        if let Some(pattern) = &schema.pattern
            && Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(text))
        {
            refuse(subject, format!("is {}, and must match {pattern}", shown(node)));
        }
        bounds(subject, path, node, length, "characters", (schema.min_length, schema.max_length));
    }
    if let Data::Scalar(Value::Number(number)) = &node.data
        && let Some(value) = number.as_f64()
    {
        if let Some(least) = schema.minimum
            && value < least
        {
            refuse(subject, format!("is {value}, and must be at least {least}"));
        }
        if let Some(most) = schema.maximum
            && value > most
        {
            refuse(subject, format!("is {value}, and must be at most {most}"));
        }
    }
    match &node.data {
        Data::List(elements) => {
            let count = i64::try_from(elements.len()).unwrap_or(i64::MAX);
            bounds(subject, path, node, count, "elements", (schema.min_items, schema.max_items));
            if let Some(JSONSchemaPropsOrArray::Schema(of)) = &schema.items {
                for (index, element) in elements.iter().enumerate() {
                    walk(subject, &format!("{path}[{index}]"), element, of);
                }
            }
        }
        Data::Map(_) => members(subject, path, node, schema),
        Data::Scalar(_) => {}
    }
}

fn members(subject: &mut Subject<'_>, path: &str, node: &Node, schema: &JSONSchemaProps) {
    for wanted in schema.required.iter().flatten() {
        if node.member(wanted).is_none() {
            // An apply merges: another manifest may have it.
            let message = format!("{path} has no {wanted}, and a new object is refused without it");
            subject.add(node.at, Severity::Warning, "schema", message);
        }
    }
    let Some(properties) = &schema.properties else {
        if let Some(JSONSchemaPropsOrBool::Schema(of)) = &schema.additional_properties {
            for (name, value) in node.members() {
                walk(subject, &format!("{path}.{}", name.text), value, of);
            }
        }
        return;
    };
    for (name, value) in node.members() {
        if let Some(schema) = properties.get(&name.text) {
            walk(subject, &format!("{path}.{}", name.text), value, schema);
            continue;
        }
        let near = properties
            .keys()
            .filter(|key| key.len() > 3 && node.member(key).is_none())
            .find(|key| strsim::levenshtein(key, &name.text) <= 2);
        if let Some(meant) = near {
            let message = format!("{path}.{} is not known and does nothing; {meant} may be meant", name.text);
            subject.add(name.at, Severity::Warning, "unknown field", message);
        }
    }
}

fn bounds(
    subject: &mut Subject<'_>,
    path: &str,
    node: &Node,
    count: i64,
    of: &str,
    (least, most): (Option<i64>, Option<i64>),
) {
    if let Some(least) = least
        && count < least
    {
        subject.error(node.at, "schema", format!("{path} has {count} {of}, and must have at least {least}"));
    }
    if let Some(most) = most
        && count > most
    {
        subject.error(node.at, "schema", format!("{path} has {count} {of}, and must have at most {most}"));
    }
}

/// A value in a message.
fn shown(node: &Node) -> String {
    match &node.data {
        Data::Scalar(Value::String(text)) => Quoted(text).to_string(),
        Data::Scalar(value) => value.to_string(),
        Data::List(_) | Data::Map(_) => node.type_name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn each(schema: &JSONSchemaProps, see: &mut dyn FnMut(&JSONSchemaProps)) {
        see(schema);
        for inner in schema.properties.iter().flat_map(|all| all.values()) {
            each(inner, see);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(inner)) = &schema.items {
            each(inner, see);
        }
        if let Some(JSONSchemaPropsOrBool::Schema(inner)) = &schema.additional_properties {
            each(inner, see);
        }
    }

    #[test]
    fn every_served_version_has_a_schema_whose_patterns_are_understood() {
        let mut patterns = 0;
        for (kind, version) in
            [("GarageCluster", "v1beta1"), ("GarageCluster", "v1beta2"), ("GarageNode", "v1beta1")]
        {
            let known = SCHEMAS.iter().find(|known| known.kind == kind && known.version == version).unwrap();
            assert!(known.schema.properties.as_ref().unwrap().contains_key("spec"), "{kind} {version}");
            each(&known.schema, &mut |schema| {
                if let Some(pattern) = &schema.pattern {
                    patterns += 1;
                    Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
                }
            });
        }
        assert!(patterns > 20, "{patterns}");
    }
}
