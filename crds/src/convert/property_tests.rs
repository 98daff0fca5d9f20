#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! C4 (lossless) and C5 (total) over generated objects, and the byte-level conversion against the plain one.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Map, Value, json};

use super::fields::FLAT;
use super::*;

/// Small JSON of every kind, empty and zero values often.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        select(vec![json!(0), json!(3), json!(-1), json!(1.5), json!(u64::MAX)]),
        select(vec!["", "a", "é\"\\\n\t\u{1}", "Retain", "1Ti"]).prop_map(Value::from),
        Just(json!({})),
        Just(json!([])),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            vec((select(vec!["name", "size", "x", "a/b~c"]), inner), 0..3).prop_map(|m| m
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<Map<_, _>>()
                .into()),
        ]
    })
}

/// Some of these keys with these values, in random order.
fn members(
    keys: Vec<&'static str>,
    values: impl Strategy<Value = Value> + Clone + 'static,
) -> impl Strategy<Value = Map<String, Value>> {
    let most = keys.len().min(7);
    subsequence(keys, 0..=most).prop_shuffle().prop_flat_map(move |keys| {
        let n = keys.len();
        (Just(keys), vec(values.clone(), n))
            .prop_map(|(keys, values)| keys.into_iter().map(str::to_owned).zip(values).collect())
    })
}

fn tier_keys() -> Vec<&'static str> {
    let mut keys = FLAT.to_vec();
    keys.extend([
        "metadata",
        "data",
        "rpcPublicAddr",
        "layoutPolicy",
        "metadataSnapshotsDir",
        "metadataAutoSnapshotInterval",
        "metadataFsync",
        "dataFsync",
        "pvcRetentionPolicy",
        "env",
        "envFrom",
        "readinessProbe",
        "nodeLocalPools",
        "unknown",
        "un/kn~own \"key\"",
        "replicas",
        "capacityReservePercent",
        "metadata",
        "data",
    ]);
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn tier() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => (members(tier_keys(), value().boxed()), proptest::option::of(pools())).prop_map(|(mut tier, pools)| {
            if let Some(pools) = pools {
                tier.insert("nodeLocalPools".into(), pools);
            }
            tier.into()
        }),
        1 => Just(json!({})),
        1 => value(),
    ]
}

fn pools() -> impl Strategy<Value = Value> {
    select(vec![
        json!([{"name": "fast", "selector": {}, "capacity": "2Ti", "metadata": {"hostPath": "/srv/m"}}]),
        json!([{"name": "fast"}, {"name": "slow", "unknown": null}]),
        json!([]),
        json!(null),
        json!({"name": "no array"}),
    ])
}

fn other_spec_keys() -> Vec<&'static str> {
    vec![
        "image",
        "imageRepository",
        "imagePullPolicy",
        "imagePullSecrets",
        "serviceAccountName",
        "replication",
        "network",
        "s3Api",
        "k2vApi",
        "webApi",
        "admin",
        "database",
        "blocks",
        "discovery",
        "security",
        "logging",
        "zone",
        "zoneFrom",
        "publicEndpoint",
        "remoteClusters",
        "layoutPolicy",
        "deletionPolicy",
        "defaultNodeTags",
        "monitoring",
        "maintenance",
        "workers",
        "unknownField",
    ]
}

/// The spec, with a tier's keys at the top often enough to matter.
fn spec(
    storage: BoxedStrategy<Value>,
    gateway: BoxedStrategy<Value>,
    flat: u32,
) -> impl Strategy<Value = Value> {
    let connect =
        prop_oneof![Just(json!({"clusterRef": {"name": "main"}})), Just(json!({})), Just(Value::Null),];
    let object = (
        proptest::option::weighted(0.6, storage),
        proptest::option::weighted(0.5, gateway),
        proptest::option::weighted(0.4, connect),
        prop_oneof![
            10 => Just(Map::new()),
            flat => members(FLAT.to_vec(), prop_oneof![3 => value(), 1 => Just(json!(0))].boxed()),
        ],
        members(other_spec_keys(), value().boxed()),
        proptest::option::of(any::<Option<bool>>()),
        any::<bool>(),
    )
        .prop_map(|(storage, gateway, connect, flat, other, topology, last)| {
            let mut spec = Map::new();
            let tiers = [("storage", storage), ("gateway", gateway), ("connectTo", connect)];
            let tiers = tiers.into_iter().filter_map(|(k, v)| v.map(|v| (k.to_owned(), v)));
            if last {
                spec.extend(other);
                spec.extend(flat);
                spec.extend(tiers);
            } else {
                spec.extend(tiers);
                spec.extend(flat);
                spec.extend(other);
            }
            if let Some(topology) = topology {
                spec.insert(
                    "layoutManagement".into(),
                    json!({"siteRole": "Writer", "redundancyVerification": {"onTopologyChange": topology}}),
                );
            }
            Value::from(spec)
        });
    prop_oneof![12 => object, 1 => value()]
}

/// Every field of `behaviour.md` 6, by name.
fn status() -> Value {
    serde_json::from_str(r#"{
        "phase": "Running", "replicas": 0, "selector": "", "unknown": {"kept": null},
        "resyncQueueLength": 0, "blockErrors": 0, "blockErrorDetails": {"count": 0},
        "redundancy": {
            "scope": "Cluster", "storageNodes": {"total": 3, "local": 3, "remote": 0, "verified": 0},
            "progressObservedAt": "2026-01-01T00:00:00Z", "lastProgressAt": "2026-01-01T00:00:00Z",
            "deferredNodes": [{"nodeId": "0f", "reason": "Down", "since": "2026-01-01T00:00:00Z", "retryAfter": null}],
            "coordination": {"remoteRepairWorkerIds": {}, "lastRemoteRepairAt": null, "lastRemoteRepairNodeId": ""},
            "nodes": [{
                "nodeId": "0f", "observed": false, "resyncQueueLength": 0, "resyncIdle": false, "blockErrors": 0,
                "metadataSyncPartitions": 0, "metadataQueueLength": 0, "blockRepairProgress": ""
            }],
            "verification": {
                "phase": "Idle", "trigger": "Requested", "startedAt": null, "phaseStartedAt": null, "verifiedAt": null,
                "layoutVersion": 0, "topologyHash": "00", "requestToken": "", "currentNodeId": "",
                "completedNodeIds": [],
                "evidence": {
                    "nodeStage": "Tables", "stageLaunchedAt": null, "workerBaseline": 0, "syncErrorBaselines": {},
                    "idleSince": null, "repairWorkerId": 0, "launches": 0, "pauseUntil": null, "peerDownSeen": false,
                    "tablesDoneNodeIds": [], "tablesRecheckNodeIds": [], "resyncErrorBaselines": {"a/1": 0},
                    "syncRpcErrorBaseline": 0, "repairDoneSeenAt": null, "incarnations": {}, "quietSince": null,
                    "blockErrorsBaseline": 0, "blockErrorsBaselineAt": null
                }
            }
        },
        "nodeLocalService": {
            "pool": "fast", "kubernetesNode": "kn-1", "operation": "ReplaceIdentity", "phase": "Waiting",
            "garageNodeId": "", "podUid": "", "startedAt": null, "phaseStartedAt": null, "safeSince": null,
            "replacement": {
                "oldNodeId": "", "newNodeId": "", "baseLayoutVersion": 0, "layoutVersion": 0, "skippedAt": null,
                "completedAt": null
            }
        }
    }"#)
    .expect("the status is JSON")
}

fn marker() -> impl Strategy<Value = Value> {
    select(vec![
        "",
        "other",
        "other,gateway-tier-present",
        "node-local-pools-present",
        ",",
        "a,,b",
        "gateway-tier-present,x",
    ])
    .prop_map(Value::from)
}

/// Something under our names that a conversion may or may not have written.
fn reserved() -> impl Strategy<Value = Map<String, Value>> {
    let text = prop_oneof![
        value().prop_map(|v| Value::from(v.to_string())),
        tier().prop_map(|v| Value::from(v.to_string())),
        pools().prop_map(|v| Value::from(v.to_string())),
        (
            select(vec![
                "/spec/gateway",
                "/spec/storage",
                "/spec/storage/data",
                "/spec/storage/replicas",
                "/spec/replicas",
                "/spec/resources",
                "/spec/capacityReservePercent",
                "/spec/storage/nodeLocalPools",
                "/metadata",
                "/metadata/annotations",
                "/metadata/annotations/garage.rajsingh.info~1holdfast-carried",
                "/spec/zone",
                "x",
                "/spec/storage/un~1known~0",
            ]),
            prop_oneof![value(), Just(json!({})), Just(json!(false)), Just(json!(null))]
        )
            .prop_map(|(k, v)| Value::from(json!({k: v}).to_string())),
        select(vec!["", "{", "no json", "{} x", " {} ", "[ ]"]).prop_map(Value::from),
        value(),
    ];
    (
        proptest::option::weighted(0.3, text.clone()),
        proptest::option::weighted(0.3, text.clone()),
        proptest::option::weighted(0.3, prop_oneof![4 => marker(), 1 => value()]),
        proptest::option::weighted(0.5, text),
    )
        .prop_map(|(gateway, pools, marker, carried)| {
            let all = [
                (GATEWAY_ANNOTATION, gateway),
                (POOLS_ANNOTATION, pools),
                (MARKER_ANNOTATION, marker),
                (CARRIED_ANNOTATION, carried),
            ];
            all.into_iter().filter_map(|(k, v)| v.map(|v| (k.to_owned(), v))).collect()
        })
}

fn object(
    version: Version,
    spec: BoxedStrategy<Value>,
    annotations: BoxedStrategy<Map<String, Value>>,
) -> impl Strategy<Value = Value> {
    let place = select(vec!["full", "full", "full", "bare", "only", "absent", "null", "odd"]);
    (proptest::option::weighted(0.9, spec), annotations, place, any::<bool>()).prop_map(
        move |(spec, annotations, place, with_status)| {
            let mut object = Map::new();
            object.insert("apiVersion".into(), version.api_version().into());
            object.insert("kind".into(), "GarageCluster".into());
            let mut metadata = Map::new();
            if place == "full" {
                metadata.insert("name".into(), "site-a".into());
                metadata.insert("namespace".into(), "objects".into());
                metadata.insert("uid".into(), "2b7c9e10".into());
                metadata.insert("managedFields".into(), json!([]));
            }
            match place {
                "absent" => {}
                "null" => {
                    object.insert("metadata".into(), Value::Null);
                }
                "odd" => {
                    object.insert("metadata".into(), json!({"annotations": null}));
                }
                _ => {
                    if place == "only" || !annotations.is_empty() {
                        metadata.insert("annotations".into(), annotations.into());
                    }
                    object.insert("metadata".into(), metadata.into());
                }
            }
            if let Some(spec) = spec {
                object.insert("spec".into(), spec);
            }
            if with_status {
                object.insert("status".into(), status());
                object.insert("unknownTop".into(), json!({"spec": {}}));
            }
            object.into()
        },
    )
}

fn plain_annotations() -> BoxedStrategy<Map<String, Value>> {
    prop_oneof![
        Just(Map::new()),
        marker().prop_map(|m| [("note".to_owned(), json!("x")), (MARKER_ANNOTATION.to_owned(), m)]
            .into_iter()
            .collect()),
    ]
    .boxed()
}

fn v2_object(annotations: BoxedStrategy<Map<String, Value>>) -> impl Strategy<Value = Value> {
    object(Version::V1beta2, spec(tier().boxed(), tier().boxed(), 2).boxed(), annotations)
}

fn v1_object(annotations: BoxedStrategy<Map<String, Value>>) -> impl Strategy<Value = Value> {
    let gateway = prop_oneof![4 => any::<bool>().prop_map(Value::from), 1 => value()].boxed();
    object(Version::V1beta1, spec(tier().boxed(), gateway, 20).boxed(), annotations)
}

fn any_v2() -> impl Strategy<Value = Value> {
    v2_object(prop_oneof![plain_annotations(), reserved().boxed()].boxed())
}

fn any_v1() -> impl Strategy<Value = Value> {
    v1_object(prop_oneof![plain_annotations(), reserved().boxed()].boxed())
}

/// An empty `metadata.annotations` counts as none (C4).
fn without_empty_annotations(mut object: Value) -> Value {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata")
        && metadata.get("annotations") == Some(&json!({}))
    {
        metadata.remove("annotations");
    }
    object
}

/// Annotation texts that are JSON, as JSON: their white space and order are free.
fn normal(object: Value) -> Value {
    let mut object = without_empty_annotations(object);
    if let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") {
        for key in [GATEWAY_ANNOTATION, POOLS_ANNOTATION, CARRIED_ANNOTATION] {
            if let Some(slot) = annotations.get_mut(key)
                && let Some(Ok(parsed)) = slot.as_str().map(serde_json::from_str::<Value>)
            {
                *slot = json!({"json": parsed});
            }
        }
    }
    object
}

fn raw(text: &str, to: Version) -> Result<Value, ConvertError> {
    let mut out = b"before".to_vec();
    let result = convert_raw(text.as_bytes(), to, &mut out);
    match result {
        Ok(()) => Ok(serde_json::from_slice(&out[6..]).expect("the result is JSON")),
        Err(error) => {
            assert_eq!(out, b"before", "a failed conversion leaves nothing behind");
            Err(error)
        }
    }
}

/// The same result as the plain conversion: the same object, or the same kind of error about the same thing.
fn agrees(text: &str, object: &Value, to: Version) -> Result<(), TestCaseError> {
    match (raw(text, to), reference::convert(object, to)) {
        (Ok(a), Ok(b)) => prop_assert_eq!(normal(a), normal(b)),
        (Err(a), Err(b)) => {
            prop_assert_eq!(&a.object, &b.object);
            match (a.problem, b.problem) {
                (Problem::DamagedAnnotation(a, _), Problem::DamagedAnnotation(b, _)) => prop_assert_eq!(a, b),
                (a, b) => prop_assert_eq!(a, b),
            }
        }
        (a, b) => prop_assert!(false, "text: {:?}, plain: {:?}", a, b),
    }
    Ok(())
}

/// The same JSON written differently: keys with escapes, white space, repeated keys.
fn spell(value: &Value, seed: u64, depth: usize, out: &mut String) {
    let space = if seed.is_multiple_of(3) { " \n" } else { "" };
    match value {
        Value::Object(map) => {
            out.push('{');
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(space);
                if seed.is_multiple_of(5) && depth < 4 {
                    // A repeated key: the last one counts.
                    out.push_str(&Value::from(key.as_str()).to_string());
                    out.push_str(":{\"storage\":{\"a\":1}},");
                }
                if seed.is_multiple_of(2) && depth < 4 {
                    let mut text = Value::from(key.as_str()).to_string();
                    if let Some(first) = key.chars().next().filter(char::is_ascii_alphabetic) {
                        text.replace_range(1..2, &format!("\\u{:04x}", first as u32));
                    }
                    out.push_str(&text);
                } else {
                    out.push_str(&Value::from(key.as_str()).to_string());
                }
                out.push_str(space);
                out.push(':');
                out.push_str(space);
                spell(value, seed / 7, depth + 1, out);
                out.push_str(space);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(space);
                spell(item, seed, depth + 1, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// Live edits that a v1beta1 client makes.
fn edit(mut object: Value, key: &str, value: Value) -> Value {
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        if value == json!("remove") {
            spec.remove(key);
        } else {
            spec.insert(key.to_owned(), value);
        }
    }
    object
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn v1beta2_to_v1beta1_and_back_is_the_identity_on_every_object(object in any_v2()) {
        let old = convert_value(&object, Version::V1beta1);
        prop_assert!(old.is_ok(), "{:?}", old);
        let old = old.unwrap();
        let back = convert_value(&old, Version::V1beta2);
        prop_assert!(back.is_ok(), "{:?} from {}", back, old);
        prop_assert_eq!(without_empty_annotations(back.unwrap()), without_empty_annotations(object), "by {}", old);
    }

    #[test]
    fn v1beta1_to_v1beta2_and_back_is_the_identity(object in v1_object(plain_annotations())) {
        let new = convert_value(&object, Version::V1beta2);
        prop_assert!(new.is_ok(), "{:?}", new);
        let new = new.unwrap();
        let back = convert_value(&new, Version::V1beta1).unwrap();
        prop_assert_eq!(without_empty_annotations(back), without_empty_annotations(object), "by {}", new);
    }

    #[test]
    fn what_v1beta1_sees_of_a_v1beta2_object_is_stable(object in any_v2()) {
        let old = convert_value(&object, Version::V1beta1).unwrap();
        let again = convert_value(&convert_value(&old, Version::V1beta2).unwrap(), Version::V1beta1).unwrap();
        prop_assert_eq!(normal(again), normal(old));
    }

    #[test]
    fn text_and_plain_conversion_agree_on_v1beta2(object in any_v2(), seed in 0u64..1_000_000) {
        agrees(&object.to_string(), &object, Version::V1beta1)?;
        let mut text = String::new();
        spell(&object, seed, 0, &mut text);
        prop_assert_eq!(&serde_json::from_str::<Value>(&text).unwrap(), &object);
        agrees(&text, &object, Version::V1beta1)?;
    }

    #[test]
    fn text_and_plain_conversion_agree_on_v1beta1(object in any_v1(), seed in 0u64..1_000_000) {
        agrees(&object.to_string(), &object, Version::V1beta2)?;
        let mut text = String::new();
        spell(&object, seed, 0, &mut text);
        agrees(&text, &object, Version::V1beta2)?;
    }

    #[test]
    fn text_and_plain_conversion_agree_on_edited_objects(
        object in any_v2(),
        key in select(vec!["replicas", "gateway", "storage", "connectTo", "resources", "zone"]),
        value in prop_oneof![Just(json!("remove")), Just(json!(true)), Just(json!(5)), Just(json!({"data": {}}))],
        spec in spec(tier().boxed(), tier().boxed(), 2),
    ) {
        let old = convert_value(&object, Version::V1beta1).unwrap();
        let edited = edit(old, key, value);
        agrees(&edited.to_string(), &edited, Version::V1beta2)?;
        // And a v1beta2 client that edits what holds v1beta1 values.
        if let Ok(mut new) = convert_value(&edited, Version::V1beta2) {
            new["spec"] = spec;
            agrees(&new.to_string(), &new, Version::V1beta1)?;
            let back = convert_value(&convert_value(&new, Version::V1beta1).unwrap(), Version::V1beta2).unwrap();
            prop_assert_eq!(without_empty_annotations(back), without_empty_annotations(new));
        }
    }

    #[test]
    fn no_tier_and_no_pools_enter_v1beta2_but_by_the_carriers(object in v1_object(
        reserved().prop_map(|mut r| { r.remove(GATEWAY_ANNOTATION); r.remove(POOLS_ANNOTATION); r }).boxed()
    )) {
        if let Ok(new) = convert_value(&object, Version::V1beta2) {
            let gateway = object.pointer("/spec/gateway") == Some(&json!(true));
            prop_assert_eq!(new.pointer("/spec/gateway").is_some_and(Value::is_object), gateway);
            let pools = new.pointer("/spec/storage/nodeLocalPools").and_then(Value::as_array);
            prop_assert!(pools.is_none_or(Vec::is_empty));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..200)) {
        let mut out = Vec::new();
        let _ = convert_raw(&bytes, Version::V1beta1, &mut out);
        let _ = review::answer(&bytes, &mut out);
    }

    #[test]
    fn no_broken_object_makes_it_panic(object in any_v1(), at in any::<usize>(), byte in any::<u8>(), to_new in any::<bool>()) {
        let mut text = object.to_string().into_bytes();
        let at = at % text.len();
        text[at] = byte;
        let to = if to_new { Version::V1beta2 } else { Version::V1beta1 };
        let mut out = Vec::new();
        if convert_raw(&text, to, &mut out).is_ok() {
            prop_assert!(serde_json::from_slice::<Value>(&out).is_ok());
        }
    }
}

#[test]
fn status_and_on_topology_change_are_the_same_in_both_versions() {
    for on in [json!(true), json!(false), json!(null)] {
        let spec = json!({
            "storage": {"replicas": 3},
            "layoutManagement": {"redundancyVerification": {"onTopologyChange": on}, "siteRole": "Follower"},
        });
        let new = json!({
            "apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster", "metadata": {"name": "a"},
            "spec": spec, "status": status(),
        });
        let old = convert_value(&new, Version::V1beta1).unwrap();
        assert_eq!(old["status"], new["status"]);
        assert_eq!(old["spec"]["layoutManagement"], new["spec"]["layoutManagement"]);
        assert_eq!(convert_value(&old, Version::V1beta2).unwrap(), new);
    }
}

#[test]
fn deep_nesting_up_to_the_limit_of_the_api_server_is_copied_and_more_is_refused() {
    let object = |depth: usize| {
        format!(
            r#"{{"apiVersion":"garage.rajsingh.info/v1beta2","kind":"GarageCluster","metadata":{{"name":"deep"}},"spec":{{"storage":{{}},"x":{}{}}}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };
    let mut out = Vec::new();
    convert_raw(object(9_000).as_bytes(), Version::V1beta1, &mut out).unwrap();
    let mut back = Vec::new();
    convert_raw(&out, Version::V1beta2, &mut back).unwrap();
    assert_eq!(back, object(9_000).into_bytes());
    let error = convert_raw(object(100_000).as_bytes(), Version::V1beta1, &mut out).unwrap_err();
    assert!(error.to_string().contains("nested deeper"), "{error}");
}

#[test]
fn numbers_and_strings_keep_their_spelling() {
    let text = r#"{"apiVersion":"garage.rajsingh.info/v1beta2","kind":"GarageCluster","metadata":{"name":"n"},"spec":{"storage":{"replicas":3,"x":1.0e+3,"y":123456789012345678901234567890,"z":"\u00e9\/"}}}"#;
    let mut old = Vec::new();
    convert_raw(text.as_bytes(), Version::V1beta1, &mut old).unwrap();
    let mut new = Vec::new();
    convert_raw(&old, Version::V1beta2, &mut new).unwrap();
    assert_eq!(String::from_utf8(new).unwrap(), text);
}
