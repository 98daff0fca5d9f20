//! The reference page of the documentation, generated from the code (`HOLDFAST_UPDATE=1 cargo test -p
//! holdfast-crds --test reference` writes it).

use std::fmt::Write as _;

use serde_json::Value;

use crate::conditions::ConditionType;
use crate::crd::{self, CrdError};
use crate::explain::{TABLE, condition_meaning};
use crate::names::annotation::{cluster, node};

/// Annotation, value, meaning.
const ANNOTATIONS: &[(&str, &str, &str)] = &[
    (
        cluster::VERIFY_REDUNDANCY,
        "any token of at most 253 characters",
        "GarageCluster. A value that was not handled yet requests one full proof; an empty one is ignored. Never removed by us.",
    ),
    (
        cluster::OUT_OF_SERVICE,
        "`pool/kubernetes-node`",
        "GarageCluster. Hold this member out of service while the annotation is there.",
    ),
    (
        cluster::REPLACE_IDENTITY,
        "`pool/kubernetes-node/old-64-hex-id`",
        "GarageCluster. Authorizes replacing exactly that identity, once. One left behind does nothing more, but is in the way of a hold (V2) and is refused when it is set again (V5).",
    ),
    (
        cluster::V1BETA2_NODE_LOCAL_POOLS,
        "JSON",
        "GarageCluster, v1beta1 view. Reserved for conversion: leave it alone.",
    ),
    (
        cluster::V1BETA2_GATEWAY_TIER,
        "JSON",
        "GarageCluster, v1beta1 view. Reserved for conversion: leave it alone.",
    ),
    (cluster::V1BETA2_ONLY, "words", "GarageCluster, v1beta1 view. Reserved for conversion: leave it alone."),
    (cluster::HOLDFAST_CARRIED, "JSON", "GarageCluster. Reserved for conversion: leave it alone."),
    (
        cluster::PURGE_CLUSTER_LAYOUT,
        "`factor=N`",
        "GarageCluster. Another operator's factor migration; while it is there nothing is launched.",
    ),
    (cluster::RPC_IDENTITY_SHA256, "hex", "Written by the pools: which RPC secret is in use."),
    (cluster::RPC_IDENTITY_SOURCE, "`namespace/secret:key`", "Written by the pools: where it came from."),
    (
        cluster::STATIC_CREDENTIALS_SECRET,
        "a name",
        "Written by the pools: the copy of the tokens that Pods mount.",
    ),
    (cluster::STATIC_CREDENTIALS_REVISION, "a revision", "Written by the pools."),
    (cluster::STATIC_CREDENTIALS_SOURCES, "references", "Written by the pools."),
    (
        node::RECOVERY_PIN,
        "64 hex characters",
        "GarageNode. The one identity that this member may have; it moves only with an authorized replacement.",
    ),
    (node::KUBERNETES_NODE, "a name", "GarageNode. Written by the pools: the exact Node name."),
    (
        node::DRAIN,
        "`true`",
        "GarageNode. Another operator drains the member; while it is there nothing is launched.",
    ),
    (
        node::ACKNOWLEDGE_LOST_SOURCE,
        "an identity",
        "GarageNode. Another operator's; while it is there nothing is launched.",
    ),
    (node::OPERATOR_SUSPENDED, "`true`", "GarageNode. Work on the member is suspended."),
];

/// The page.
///
/// # Errors
/// A defect of the definitions, which their own tests exclude.
pub fn page() -> Result<String, CrdError> {
    let mut out = String::from(
        "# Reference\n\n<!-- Generated from the code; a test fails when it is not up to date. -->\n\n## Annotations\n\n\
         | annotation | value | meaning |\n| --- | --- | --- |\n",
    );
    for (key, value, meaning) in ANNOTATIONS {
        let _ = writeln!(out, "| `{key}` | {value} | {meaning} |");
    }
    out.push_str("\n## Conditions\n\n`kubectl holdfast explain REASON` shows the same on a terminal.\n");
    for condition in ConditionType::ALL {
        let _ = writeln!(out, "\n### {condition}\n\n{}\n", condition_meaning(*condition));
        out.push_str("| status | reason | what it means | what to do |\n| --- | --- | --- | --- |\n");
        for e in TABLE.iter().filter(|e| e.condition == *condition) {
            let _ = writeln!(out, "| {} | `{}` | {} | {} |", e.status, e.reason, e.meaning, e.next);
        }
    }
    let cluster = serde_json::to_value(crd::garage_cluster(None)?)?;
    let node = serde_json::to_value(crd::garage_node()?)?;
    for (title, definition, version, path) in [
        ("GarageCluster `status`", &cluster, 2, "status"),
        ("GarageNode `status`", &node, 1, "status"),
        ("GarageCluster `spec`, v1beta2", &cluster, 2, "spec"),
    ] {
        let _ = writeln!(out, "\n## Fields: {title}\n\n| field | type | meaning |\n| --- | --- | --- |");
        let pointer = format!("/spec/versions/{version}/schema/openAPIV3Schema/properties/{path}");
        if let Some(schema) = definition.pointer(&pointer) {
            // The whole of status is ours; of a spec the first levels are enough to find one's way.
            fields(&mut out, path, schema, if path == "status" { 5 } else { 2 });
        }
    }
    Ok(out)
}

fn fields(out: &mut String, path: &str, schema: &Value, depth: usize) {
    let Some(properties) = schema["properties"].as_object() else { return };
    for (name, field) in properties {
        let items = &field["items"];
        let list = if items.is_object() { "[]" } else { "" };
        let here = format!("{path}.{name}{list}");
        let kind = if items.is_object() {
            format!("list of {}", items["type"].as_str().unwrap_or("any"))
        } else {
            field["type"].as_str().unwrap_or("any").to_owned()
        };
        let words: Vec<String> = field["enum"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|w| w.as_str())
            .map(|w| format!("`{w}`"))
            .collect();
        let kind = if words.is_empty() { kind } else { words.join(", ") };
        let said =
            field["description"].as_str().unwrap_or("").split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(out, "| `{here}` | {kind} | {} |", said.replace('|', "\\|").replace(['[', ']'], ""));
        if depth > 1 && name != "conditions" {
            fields(out, &here, if items.is_object() { items } else { field }, depth - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_annotation_of_a_person_or_of_ours_is_in_the_reference() {
        for key in cluster::ALL.iter().chain(node::ALL) {
            assert!(ANNOTATIONS.iter().any(|(known, ..)| known == key), "{key}");
        }
    }
}
