#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::needless_pass_by_value)]
//! `compat.md` 8, case by case.

use serde_json::{Value, json};

use super::*;

fn cluster(version: Version, spec: Value) -> Value {
    json!({
        "apiVersion": version.api_version(), "kind": "GarageCluster",
        "metadata": { "name": "site-a", "namespace": "objects" }, "spec": spec,
    })
}

fn v1(spec: Value) -> Value {
    cluster(Version::V1beta1, spec)
}

fn v2(spec: Value) -> Value {
    cluster(Version::V1beta2, spec)
}

fn with(mut object: Value, annotations: Value) -> Value {
    object["metadata"]["annotations"] = annotations;
    object
}

#[track_caller]
fn up(object: Value) -> Value {
    convert_value(&object, Version::V1beta2).unwrap()
}

#[track_caller]
fn down(object: Value) -> Value {
    convert_value(&object, Version::V1beta1).unwrap()
}

/// `v1beta1 <-> v1beta2`, both ways.
#[track_caller]
fn pair(old: Value, new: Value) {
    assert_eq!(up(old.clone()), new, "to v1beta2");
    assert_eq!(down(new), old, "to v1beta1");
}

#[test]
fn a_storage_tier_is_flat_in_v1beta1_and_needs_no_annotation() {
    pair(
        v1(
            json!({"zone": "rack-1", "replicas": 3, "resources": {}, "storage": {"data": {"size": "1Ti"}, "env": []}}),
        ),
        v2(
            json!({"zone": "rack-1", "storage": {"replicas": 3, "resources": {}, "data": {"size": "1Ti"}, "env": []}}),
        ),
    );
}

#[test]
fn nothing_is_added_to_an_empty_or_partial_object() {
    pair(v1(json!({})), v2(json!({})));
    pair(v1(json!({"zone": "a"})), v2(json!({"zone": "a"})));
    pair(v1(json!(null)), v2(json!(null)));
    pair(v1(json!({"replicas": null})), v2(json!({"storage": {"replicas": null}})));
    pair(v1(json!({"storage": {}})), v2(json!({"storage": {}})));
    pair(v1(json!({"storage": null, "gateway": null})), v2(json!({"storage": null, "gateway": null})));
    let bare = json!({"apiVersion": "garage.rajsingh.info/v1beta1", "kind": "GarageCluster", "metadata": {}});
    assert_eq!(
        up(bare.clone()),
        json!({"apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster", "metadata": {}})
    );
    assert_eq!(down(up(bare.clone())), bare);
}

#[test]
fn a_handle_has_no_tier_in_either_version() {
    let connect = json!({"clusterRef": {"name": "main"}});
    pair(v1(json!({"connectTo": connect})), v2(json!({"connectTo": connect})));
    // Pod fields and zero replicas on it are kept, although v1beta2 has no place for them.
    let old = v1(
        json!({"connectTo": connect, "replicas": 0, "resources": {}, "storage": {"pvcRetentionPolicy": {}}}),
    );
    let new = up(old.clone());
    assert_eq!(new["spec"], json!({"connectTo": connect}));
    assert_eq!(down(new), old);
}

#[test]
fn connect_to_with_volumes_or_replicas_is_a_storage_tier() {
    let connect = json!({"clusterRef": {"name": "main"}});
    pair(
        v1(json!({"connectTo": connect, "replicas": 1})),
        v2(json!({"connectTo": connect, "storage": {"replicas": 1}})),
    );
    pair(
        v1(json!({"connectTo": connect, "storage": {"data": {}}})),
        v2(json!({"connectTo": connect, "storage": {"data": {}}})),
    );
}

#[test]
fn a_storage_tier_that_would_look_like_a_handle_comes_back() {
    let connect = json!({"clusterRef": {"name": "main"}});
    for tier in
        [json!({}), json!({"replicas": 0}), json!({"replicas": 0, "nodeLocalPools": [{"name": "fast"}]})]
    {
        let new = v2(json!({"connectTo": connect, "storage": tier}));
        let old = down(new.clone());
        assert!(old["metadata"]["annotations"][CARRIED_ANNOTATION].is_string());
        assert_eq!(up(old), new);
    }
}

#[test]
fn a_gateway_alone_is_gateway_true_without_a_carrier() {
    pair(
        v1(
            json!({"connectTo": {}, "gateway": true, "replicas": 2, "storage": {"metadata": {"size": "1Gi"}}}),
        ),
        v2(json!({"connectTo": {}, "gateway": {"replicas": 2, "metadata": {"size": "1Gi"}}})),
    );
    pair(v1(json!({"gateway": true})), v2(json!({"gateway": {}})));
}

#[test]
fn a_gateway_alone_is_carried_if_it_holds_what_v1beta1_cannot() {
    for key in ["rpcPublicAddr", "readinessProbe", "env", "envFrom", "somethingNew"] {
        let new = v2(json!({"connectTo": {}, "gateway": {"replicas": 2, key: {}}}));
        let old = down(new.clone());
        assert_eq!(old["spec"], json!({"connectTo": {}, "gateway": true, "replicas": 2}));
        let annotations = &old["metadata"]["annotations"];
        assert_eq!(annotations[GATEWAY_ANNOTATION], json!({"replicas": 2, key: {}}).to_string());
        assert_eq!(annotations[MARKER_ANNOTATION], GATEWAY_WORD);
        assert_eq!(up(old), new);
    }
}

#[test]
fn both_tiers_give_the_storage_view_and_the_whole_gateway_in_the_carrier() {
    pair(
        with(
            v1(json!({"replicas": 3, "zone": "a"})),
            json!({
                "keep": "me",
                GATEWAY_ANNOTATION: r#"{"replicas":2,"resources":{}}"#,
                MARKER_ANNOTATION: "gateway-tier-present",
            }),
        ),
        with(
            v2(json!({"storage": {"replicas": 3}, "zone": "a", "gateway": {"replicas": 2, "resources": {}}})),
            json!({"keep": "me"}),
        ),
    );
}

#[test]
fn pools_are_carried_and_the_marker_keeps_the_words_of_others() {
    pair(
        with(
            v1(json!({"replicas": 0})),
            json!({
                MARKER_ANNOTATION: "other,gateway-tier-present,node-local-pools-present",
                GATEWAY_ANNOTATION: "{}",
                POOLS_ANNOTATION: r#"[{"name":"fast"}]"#,
            }),
        ),
        with(
            v2(json!({"storage": {"replicas": 0, "nodeLocalPools": [{"name": "fast"}]}, "gateway": {}})),
            json!({MARKER_ANNOTATION: "other"}),
        ),
    );
}

#[test]
fn an_empty_carrier_restores_nothing_and_leaves_the_marker_alone() {
    let annotations = json!({GATEWAY_ANNOTATION: "", MARKER_ANNOTATION: "gateway-tier-present"});
    pair(
        with(v1(json!({"replicas": 3})), annotations.clone()),
        with(v2(json!({"storage": {"replicas": 3}})), annotations),
    );
}

#[test]
fn live_fields_of_an_edge_gateway_win_over_the_carrier() {
    let new = v2(json!({"connectTo": {}, "gateway": {
        "replicas": 2, "resources": {"a": 1}, "podDisruptionBudget": {}, "env": [1], "metadata": {"size": "1Gi"},
    }}));
    let mut old = down(new);
    let spec = old["spec"].as_object_mut().unwrap();
    spec.insert("replicas".into(), json!(5));
    spec.insert("nodeSelector".into(), json!({"a": "b"}));
    spec.remove("resources");
    spec.remove("podDisruptionBudget");
    spec.remove("storage");
    assert_eq!(
        up(old)["spec"]["gateway"],
        json!({"replicas": 5, "nodeSelector": {"a": "b"}, "env": [1], "metadata": {"size": "1Gi"}})
    );
}

#[test]
fn the_carrier_wins_for_pools_and_for_a_gateway_beside_storage() {
    let new = v2(
        json!({"storage": {"replicas": 0, "nodeLocalPools": [{"name": "fast"}]}, "gateway": {"replicas": 2}}),
    );
    let mut old = down(new);
    old["spec"]["replicas"] = json!(4);
    old["spec"]["storage"] = json!({"nodeLocalPools": [{"name": "smuggled"}]});
    let back = up(old.clone());
    assert_eq!(
        back["spec"],
        json!({"storage": {"replicas": 4, "nodeLocalPools": [{"name": "fast"}]}, "gateway": {"replicas": 2}})
    );
    assert_eq!(down(back), old, "and what v1beta1 said there is not lost");
}

#[test]
fn storage_fields_beside_gateway_true_are_kept() {
    let old = v1(json!({"connectTo": {}, "gateway": true, "capacityReservePercent": 5, "storage": {
        "data": {"size": "1Ti"}, "env": [], "metadata": null, "metadataFsync": false,
    }}));
    let new = up(old.clone());
    assert_eq!(new["spec"], json!({"connectTo": {}, "gateway": {"metadata": null}}));
    assert_eq!(down(new.clone()), old);
    assert_eq!(up(down(new.clone())), new);
}

#[test]
fn gateway_false_is_kept() {
    let old = v1(json!({"gateway": false, "replicas": 3}));
    let new = up(old.clone());
    assert_eq!(new["spec"], json!({"storage": {"replicas": 3}}));
    assert_eq!(new["metadata"]["annotations"], json!({CARRIED_ANNOTATION: r#"{"/spec/gateway":false}"#}));
    assert_eq!(down(new), old);
}

#[test]
fn a_v1beta1_gateway_of_another_shape_is_never_taken_for_a_tier() {
    let old = v1(json!({"gateway": {"replicas": 2}, "replicas": 3}));
    let new = up(old.clone());
    assert_eq!(new["spec"], json!({"storage": {"replicas": 3}}));
    assert_eq!(down(new), old);
}

#[test]
fn what_a_v1beta2_object_has_under_reserved_names_is_not_read_as_ours() {
    let new = with(
        v2(json!({"storage": {"replicas": 0, "nodeLocalPools": [{}]}, "replicas": 7, "gateway": true})),
        json!({
            GATEWAY_ANNOTATION: "not json",
            POOLS_ANNOTATION: "[1]",
            MARKER_ANNOTATION: "node-local-pools-present,,x",
            CARRIED_ANNOTATION: "neither",
        }),
    );
    let old = down(new.clone());
    assert_eq!(old["spec"], json!({"replicas": 0}));
    assert_eq!(old["metadata"]["annotations"][POOLS_ANNOTATION], "[{}]");
    assert_eq!(up(old), new);
}

#[test]
fn carried_v1beta1_values_of_an_object_edited_since_are_not_put_back() {
    let old = v1(json!({"connectTo": {}, "gateway": true, "storage": {"data": {"size": "1Ti"}}}));
    let mut new = up(old);
    new["spec"].as_object_mut().unwrap().remove("gateway");
    let handle = down(new.clone());
    assert_eq!(
        handle["spec"],
        json!({"connectTo": {}}),
        "putting storage.data back would make it a storage tier"
    );
    assert_eq!(up(handle), new);
}

#[test]
fn a_place_for_annotations_is_found_or_made_and_left_as_it_was() {
    for metadata in
        [json!(null), json!({}), json!({"annotations": null}), json!({"annotations": 5}), json!("text")]
    {
        let mut new = v2(json!({"storage": {"nodeLocalPools": [{}]}, "gateway": {}}));
        new["metadata"] = metadata;
        assert_eq!(up(down(new.clone())), new);
        new["metadata"] = json!({"annotations": {}});
        let mut without = new.clone();
        without["metadata"] = json!({});
        assert_eq!(up(down(new.clone())), without, "an empty annotations counts as none");
        new.as_object_mut().unwrap().remove("metadata");
        assert_eq!(up(down(new.clone())), new);
    }
}

#[test]
fn an_object_in_the_desired_version_passes_through() {
    let object = with(v1(json!({"gateway": true, "x": 1})), json!({GATEWAY_ANNOTATION: "damaged"}));
    assert_eq!(down(object.clone()), object);
}

#[test]
fn one_label_edited_through_v1beta1_changes_nothing_else() {
    let new = with(
        v2(json!({
            "storage": {"replicas": 0, "env": [{"name": "A"}], "nodeLocalPools": [{"name": "fast"}, {"name": "slow"}]},
            "gateway": {"replicas": 1, "env": [{"name": "B"}]},
            "layoutManagement": {"redundancyVerification": {"onTopologyChange": true}},
        })),
        json!({"note": "x"}),
    );
    let mut old = down(new.clone());
    old["metadata"]["labels"] = json!({"edited": "yes"});
    let mut expected = new;
    expected["metadata"]["labels"] = json!({"edited": "yes"});
    assert_eq!(up(old), expected);
}

#[track_caller]
fn fails(object: Value, to: Version, needles: &[&str]) {
    let message = convert_value(&object, to).unwrap_err().to_string();
    for needle in needles {
        assert!(message.contains(needle), "{message:?} does not say {needle:?}");
    }
}

#[test]
fn a_damaged_annotation_fails_and_names_object_and_annotation() {
    for (key, text) in [
        (GATEWAY_ANNOTATION, "{"),
        (GATEWAY_ANNOTATION, "[]"),
        (GATEWAY_ANNOTATION, "null"),
        (POOLS_ANNOTATION, "no"),
        (POOLS_ANNOTATION, "{}"),
        (CARRIED_ANNOTATION, "{\"/spec\":"),
        (CARRIED_ANNOTATION, "[]"),
        (CARRIED_ANNOTATION, "{\"/spec/storage/data/size\":1}"),
        (CARRIED_ANNOTATION, "{\"spec\":1}"),
        (CARRIED_ANNOTATION, "{\"/metadata/annotations/mine\":\"x\"}"),
    ] {
        fails(
            with(v1(json!({"replicas": 3})), json!({key: text})),
            Version::V1beta2,
            &["GarageCluster objects/site-a", key, "damaged"],
        );
    }
    fails(with(v1(json!({})), json!({POOLS_ANNOTATION: 5})), Version::V1beta2, &["not a string"]);
}

#[test]
fn carriers_without_a_tier_fail() {
    let pools = json!({POOLS_ANNOTATION: "[{}]"});
    let gateway = json!({GATEWAY_ANNOTATION: "{}"});
    let to = Version::V1beta2;
    fails(
        with(v1(json!({"gateway": true})), pools.clone()),
        to,
        &["objects/site-a", POOLS_ANNOTATION, "no storage"],
    );
    fails(with(v1(json!({"connectTo": {}})), pools), to, &[POOLS_ANNOTATION]);
    fails(with(v1(json!({"connectTo": {}})), gateway.clone()), to, &[GATEWAY_ANNOTATION, "neither"]);
    fails(with(v1(json!(null)), gateway), to, &[GATEWAY_ANNOTATION]);
}

#[test]
fn carriers_alone_say_that_there_is_a_storage_tier() {
    pair(
        with(v1(json!({})), json!({POOLS_ANNOTATION: "[{}]", MARKER_ANNOTATION: "node-local-pools-present"})),
        v2(json!({"storage": {"nodeLocalPools": [{}]}})),
    );
}

#[test]
fn unknown_kinds_versions_and_shapes_fail_by_name() {
    let mut object = v1(json!({}));
    object["kind"] = json!("GarageNode");
    fails(object.clone(), Version::V1beta2, &["GarageNode objects/site-a", "only GarageCluster"]);
    object["kind"] = json!("GarageCluster");
    for (version, needle) in [
        ("garage.rajsingh.info/v1alpha1", "v1alpha1\" is not served"),
        ("garage.rajsingh.info/v1", "unknown version"),
        ("v1beta1", "unknown version"),
        ("", "unknown version"),
    ] {
        object["apiVersion"] = json!(version);
        fails(object.clone(), Version::V1beta2, &["objects/site-a", needle]);
    }
    for value in [json!(null), json!(5), json!([]), json!("x"), json!(true)] {
        fails(value, Version::V1beta1, &["expected a JSON object"]);
    }
}
