//! The generated CustomResourceDefinitions: what the API server will say of them, as far as that can be known offline, and
//! that `crds/yaml/` is what the types generate.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::PathBuf;

use holdfast_crds::crd::{self, ConversionService};
use serde_json::{Value, json};

fn crds() -> Vec<Value> {
    crd::all(None).unwrap().iter().map(|c| serde_json::to_value(c).unwrap()).collect()
}

fn schema(kind: &str, version: &str) -> Value {
    let crd = crds().into_iter().find(|c| c["spec"]["names"]["kind"] == kind).unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap().clone();
    versions.into_iter().find(|v| v["name"] == version).unwrap()["schema"]["openAPIV3Schema"].clone()
}

fn property<'a>(schema: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(schema, |s, name| match name {
        "[]" => &s["items"],
        "*" => &s["additionalProperties"],
        _ => s["properties"].get(name).unwrap_or_else(|| panic!("{path}: no {name} in {s}")),
    })
}

/// Calls `f` with every schema in `schema` and its path. Inside `anyOf` and the like other rules hold; they are not visited.
fn walk(schema: &Value, path: &str, f: &mut dyn FnMut(&str, &Value)) {
    f(path, schema);
    if let Some(properties) = schema["properties"].as_object() {
        for (name, child) in properties {
            walk(child, &format!("{path}.{name}"), f);
        }
    }
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{path}[]"), f);
    }
    if schema["additionalProperties"].is_object() {
        walk(&schema["additionalProperties"], &format!("{path}.*"), f);
    }
}

fn every_schema(f: &mut dyn FnMut(&str, &Value)) {
    for crd in crds() {
        for version in crd["spec"]["versions"].as_array().unwrap() {
            let root = format!("{}/{}", crd["spec"]["names"]["kind"], version["name"]);
            walk(&version["schema"]["openAPIV3Schema"], &root, f);
        }
    }
}

#[test]
fn the_yaml_files_are_what_the_types_generate() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("yaml");
    for crd in crd::all(None).unwrap() {
        let name = crd.metadata.name.clone().unwrap();
        let (plural, group) = name.split_once('.').unwrap();
        let file = directory.join(format!("{group}_{plural}.yaml"));
        let generated = crd::to_yaml(std::slice::from_ref(&crd)).unwrap();
        if std::env::var_os("HOLDFAST_UPDATE").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(&file, &generated).unwrap();
        }
        let stored = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            stored == generated,
            "{} is not what the types generate; run HOLDFAST_UPDATE=1 cargo test -p holdfast-crds --test crd",
            file.display()
        );
    }
}

#[test]
fn every_schema_is_structural() {
    const KEYWORDS: &[&str] = &[
        "type",
        "format",
        "description",
        "properties",
        "additionalProperties",
        "items",
        "required",
        "enum",
        "default",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "maxProperties",
        "anyOf",
    ];
    every_schema(&mut |path, schema| {
        let object = schema.as_object().unwrap_or_else(|| panic!("{path} is no object: {schema}"));
        for key in object.keys() {
            assert!(
                KEYWORDS.contains(&key.as_str()) || key.starts_with("x-kubernetes-"),
                "{path}: keyword {key}"
            );
        }
        let preserves = schema["x-kubernetes-preserve-unknown-fields"] == true;
        if schema["x-kubernetes-int-or-string"] == true {
            assert!(object.get("type").is_none(), "{path}: int-or-string has a type");
            assert_eq!(schema["anyOf"], json!([{ "type": "integer" }, { "type": "string" }]), "{path}");
        } else {
            let kind =
                schema["type"].as_str().unwrap_or_else(|| panic!("{path} has no single type: {schema}"));
            assert!(
                ["object", "array", "string", "integer", "boolean"].contains(&kind),
                "{path}: type {kind}"
            );
            assert!(object.get("anyOf").is_none(), "{path}: anyOf");
            match kind {
                "array" => assert!(schema["items"].is_object(), "{path}: array without items"),
                "object" => {
                    assert!(
                        preserves
                            || path.ends_with("\".metadata")
                            || object.contains_key("properties")
                                != object.contains_key("additionalProperties"),
                        "{path}: properties and additionalProperties exclude each other"
                    );
                    for required in schema["required"].as_array().into_iter().flatten() {
                        assert!(
                            schema["properties"].get(required.as_str().unwrap()).is_some(),
                            "{path}: {required}"
                        );
                    }
                }
                _ => assert!(!preserves, "{path}: a {kind} cannot preserve fields"),
            }
        }
        for value in schema["enum"].as_array().into_iter().flatten() {
            assert!(value.is_string(), "{path}: enum value {value}");
        }
        if let Some(format) = schema["format"].as_str() {
            assert!(["int32", "int64", "date-time"].contains(&format), "{path}: format {format}");
        }
        for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
            let key = key.as_str().unwrap();
            assert_eq!(schema["x-kubernetes-list-type"], "map", "{path}");
            let required = schema["items"]["required"].as_array().unwrap();
            assert!(required.iter().any(|r| r == key), "{path}: map key {key} is not required");
        }
    });
}

#[test]
fn an_object_written_for_the_full_operator_is_stored_whole() {
    every_schema(&mut |path, schema| {
        let under = path.contains(".spec") || path.contains(".status");
        let atomic = path.contains("elector.") || path.contains("elector") || path.contains(".conditions[]");
        if under && !atomic && schema["type"] == "object" && schema.get("additionalProperties").is_none() {
            assert_eq!(schema["x-kubernetes-preserve-unknown-fields"], true, "{path} prunes");
        }
    });
}

#[test]
fn status_has_no_default() {
    every_schema(&mut |path, schema| {
        if path.contains(".status") {
            assert!(
                schema.get("default").is_none(),
                "{path}: the API server would write {}",
                schema["default"]
            );
        }
    });
}

#[test]
fn specs_have_exactly_the_defaults_of_the_full_operator() {
    let mut found = Vec::new();
    walk(&schema("GarageCluster", "v1beta2"), "", &mut |path, schema| {
        if let Some(default) = schema.get("default") {
            found.push(format!("{path}={default}"));
        }
    });
    found.sort();
    insta::assert_snapshot!(found.join("\n"));
}

#[test]
fn the_definitions_are_well_below_what_the_api_server_takes() {
    for crd in crd::all(None).unwrap() {
        let size = serde_json::to_vec(&crd).unwrap().len();
        assert!(size < 200 * 1024, "{:?} has {size} bytes", crd.metadata.name);
    }
}

#[test]
fn redundancy_is_guarded_by_the_schema_of_section_6() {
    for version in ["v1beta1", "v1beta2"] {
        let root = schema("GarageCluster", version);
        let at = |path: &str| property(&root, &format!("status.redundancy.{path}")).clone();
        for path in [
            "deferredNodes.[].nodeId",
            "nodes.[].nodeId",
            "verification.currentNodeId",
            "verification.completedNodeIds.[]",
            "verification.evidence.tablesDoneNodeIds.[]",
            "verification.evidence.tablesRecheckNodeIds.[]",
            "coordination.lastRemoteRepairNodeId",
        ] {
            assert_eq!(at(path)["pattern"], "^[0-9a-f]{64}$", "{path}");
        }
        for path in [
            "deferredNodes",
            "nodes",
            "verification.completedNodeIds",
            "verification.evidence.tablesDoneNodeIds",
            "verification.evidence.tablesRecheckNodeIds",
        ] {
            assert_eq!(at(path)["maxItems"], 256, "{path}");
        }
        for path in ["deferredNodes", "nodes"] {
            assert_eq!(at(path)["x-kubernetes-list-type"], "map", "{path}");
            assert_eq!(at(path)["x-kubernetes-list-map-keys"], json!(["nodeId"]), "{path}");
        }
        assert_eq!(at("coordination.remoteRepairWorkerIds")["maxProperties"], 256);
        for count in ["total", "local", "remote", "verified"] {
            let schema = at(&format!("storageNodes.{count}"));
            assert_eq!((&schema["format"], &schema["minimum"]), (&json!("int32"), &json!(0.0)), "{count}");
        }
        let mut required = at("storageNodes")["required"].as_array().unwrap().clone();
        required.sort_by_key(ToString::to_string);
        assert_eq!(Value::from(required), json!(["local", "remote", "total", "verified"]));
        assert_eq!(at("verification")["required"], json!(["phase"]));
        assert_eq!(at("nodes.[]")["required"], json!(["nodeId", "observed"]));
        let launches = at("verification.evidence.launches");
        assert_eq!((&launches["minimum"], &launches["maximum"]), (&json!(0.0), &json!(3.0)));
        assert_eq!(at("verification.requestToken")["maxLength"], 253);
        assert_eq!(at("nodes.[].blockRepairProgress")["maxLength"], 64);
        assert_eq!(at("verification.topologyHash")["pattern"], "^[0-9a-f]{64}$");
        assert_eq!(at("verification.layoutVersion")["minimum"], 0.0);
        assert_eq!(at("scope")["enum"], json!(["Cluster", "Local"]));
        assert_eq!(
            at("verification.phase")["enum"],
            json!([
                "Idle",
                "Pending",
                "SyncingMetadata",
                "ScanningBlocks",
                "Settling",
                "Partial",
                "Verified"
            ])
        );
        assert_eq!(at("deferredNodes.[].reason")["enum"], json!(["Down", "NotReporting", "RepairFailed"]));
        assert_eq!(at("verification.evidence.nodeStage")["enum"], json!(["Tables", "Blocks", "Pause"]));
    }
}

#[test]
fn fields_that_nobody_fills_stay_and_say_so() {
    let cluster = schema("GarageCluster", "v1beta2");
    for field in [
        "nodes",
        "activeRepairs",
        "workers",
        "workerCount",
        "workersFailed",
        "scrubStatus",
        "lifecycleStatus",
        "totalNodes",
    ] {
        let description = &property(&cluster, &format!("status.{field}"))["description"];
        assert!(description.as_str().unwrap().contains("never populated"), "{field}");
    }
    let node = schema("GarageNode", "v1beta1");
    for field in ["blockErrors", "repairInProgress", "repairType", "repairProgress", "storedData"] {
        let description = &property(&node, &format!("status.{field}"))["description"];
        assert!(description.as_str().unwrap().contains("never populated"), "{field}");
    }
}

#[test]
fn the_flag_for_topology_changes_has_no_default_in_either_version() {
    for version in ["v1beta1", "v1beta2"] {
        let root = schema("GarageCluster", version);
        let flag = property(&root, "spec.layoutManagement.redundancyVerification.onTopologyChange");
        assert_eq!((&flag["type"], flag.get("default")), (&json!("boolean"), None));
        assert_eq!(property(&root, "spec.layoutManagement.siteRole")["enum"], json!(["Writer", "Follower"]));
    }
}

#[test]
fn versions_are_served_and_stored_as_in_an_existing_cluster() {
    let of = |crd: &Value| -> Vec<(String, bool, bool, bool)> {
        let versions = crd["spec"]["versions"].as_array().unwrap();
        versions
            .iter()
            .map(|v| {
                (
                    v["name"].as_str().unwrap().to_owned(),
                    v["served"] == true,
                    v["storage"] == true,
                    v["deprecated"] == true,
                )
            })
            .collect()
    };
    let [cluster, node] = crds().try_into().unwrap();
    assert_eq!(
        of(&cluster),
        [
            ("v1alpha1".to_owned(), false, false, false),
            ("v1beta1".to_owned(), true, false, true),
            ("v1beta2".to_owned(), true, true, false)
        ]
    );
    assert_eq!(
        of(&node),
        [("v1alpha1".to_owned(), false, false, false), ("v1beta1".to_owned(), true, true, false)]
    );
    assert_eq!(cluster["metadata"]["name"], "garageclusters.garage.rajsingh.info");
    assert_eq!(node["metadata"]["name"], "garagenodes.garage.rajsingh.info");
    let scale =
        |i: usize| cluster["spec"]["versions"][i]["subresources"]["scale"]["specReplicasPath"].clone();
    assert_eq!((scale(1), scale(2)), (json!(".spec.replicas"), json!(".spec.storage.replicas")));
}

#[test]
fn the_conversion_stanza_names_the_service_that_it_is_given() {
    let service = ConversionService {
        namespace: "ns".to_owned(),
        name: "svc".to_owned(),
        port: 443,
        ca_bundle: Some(b"pem".to_vec()),
    };
    let crd = serde_json::to_value(crd::garage_cluster(Some(&service)).unwrap()).unwrap();
    assert_eq!(
        crd["spec"]["conversion"],
        json!({ "strategy": "Webhook", "webhook": {
            "conversionReviewVersions": ["v1"],
            "clientConfig": { "caBundle": "cGVt", "service": { "namespace": "ns", "name": "svc", "path": "/convert", "port": 443 } },
        } })
    );
    let none = serde_json::to_value(crd::garage_cluster(None).unwrap()).unwrap();
    assert_eq!(none["spec"].get("conversion"), None, "what is in the cluster is left alone");
}

#[test]
fn columns_are_read_from_fields_that_the_schema_describes() {
    for crd in crds() {
        for version in crd["spec"]["versions"].as_array().unwrap() {
            for column in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
                let path = column["jsonPath"].as_str().unwrap();
                if path.contains("conditions[") || path.starts_with(".metadata") {
                    continue;
                }
                property(&version["schema"]["openAPIV3Schema"], path.trim_start_matches('.'));
            }
        }
    }
}
