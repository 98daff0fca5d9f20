//! What the case files under `tests/fixtures/admission` cannot show: reading, standing requests, unknown words.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const HOLD: &str = "garage.rajsingh.info/node-local-out-of-service";
const REPLACE: &str = "garage.rajsingh.info/node-local-replace-identity";

fn cluster(annotations: &Value, status: &Value) -> String {
    json!({
        "apiVersion": "garage.rajsingh.info/v1beta2",
        "kind": "GarageCluster",
        "metadata": {"name": "site-a", "namespace": "objects", "annotations": annotations},
        "spec": {"storage": {"nodeLocalPools": [{"name": "fast"}], "podDisruptionBudget": {}}},
        "status": status,
    })
    .to_string()
}

fn members() -> Lookup {
    let member = |i: u8| Member {
        pool: "fast".into(),
        kubernetes_node: format!("kn-{i}"),
        node_id: Some(format!("{i}{i}").repeat(32)),
        pin: None,
    };
    Lookup { members: Fact::Known((1..=3).map(member).collect()), ..Lookup::default() }
}

fn judge(old: &str, new: &str, lookup: &Lookup) -> Verdict {
    let request = Request::from_json(
        Kind::GarageCluster,
        Operation::Update,
        Version::V1beta2,
        "",
        Some(old),
        Some(new),
    )
    .unwrap();
    validate(&request, lookup)
}

#[test]
fn the_reconciler_judges_what_stands_as_if_it_were_set_now() {
    let text = cluster(&json!({HOLD: "fast/kn-9"}), &Value::Null);
    let view = ClusterView::from_json("object", &text).unwrap();
    let request = standing(&view);
    assert_eq!(needs(&request).members, Some(("objects", "site-a")));
    assert_eq!(validate(&request, &members()).rule(), Some(Rule::V4));

    let text = cluster(&json!({HOLD: "fast/kn-2"}), &Value::Null);
    let view = ClusterView::from_json("object", &text).unwrap();
    assert!(validate(&standing(&view), &members()).allowed());
    assert!(validate(&standing(&ClusterView::default()), &Lookup::default()).allowed(), "nothing stands");

    let text = cluster(&json!({HOLD: "fast/kn-2", REPLACE: "fast/kn-2/x"}), &Value::Null);
    let view = ClusterView::from_json("object", &text).unwrap();
    assert_eq!(validate(&standing(&view), &members()).rule(), Some(Rule::V1));
}

#[test]
fn a_request_that_changes_no_request_needs_no_fact() {
    let held = cluster(&json!({HOLD: "fast/kn-2"}), &Value::Null);
    let free = cluster(&json!({"other": "x"}), &Value::Null);
    for (old, new) in [(&held, &held), (&held, &free), (&free, &free)] {
        let request = Request::from_json(
            Kind::GarageCluster,
            Operation::Update,
            Version::V1beta2,
            "",
            Some(old),
            Some(new),
        )
        .unwrap();
        assert_eq!(needs(&request), Needs::default());
        assert!(validate(&request, &Lookup::default()).allowed());
    }
}

#[rstest]
#[case::phase("OutOfService", "Frozen")]
#[case::operation("Polish", "Waiting")]
#[case::nothing("", "")]
fn words_of_a_status_that_are_not_known_count_as_unfinished(#[case] operation: &str, #[case] phase: &str) {
    let service = json!({"nodeLocalService": {"pool": "fast", "kubernetesNode": "kn-1", "operation": operation, "phase": phase}});
    let old = cluster(&json!({}), &service);
    let new = cluster(&json!({HOLD: "fast/kn-2"}), &service);
    assert_eq!(judge(&old, &new, &members()).rule(), Some(Rule::V6));
}

#[test]
fn an_unknown_phase_of_a_replacement_counts_as_mid_way() {
    let service = json!({"nodeLocalService": {"pool": "fast", "kubernetesNode": "kn-1", "operation": "ReplaceIdentity", "phase": "Polishing"}});
    let request = json!({REPLACE: format!("fast/kn-1/{}", "11".repeat(32))});
    let verdict = judge(&cluster(&request, &service), &cluster(&json!({}), &service), &members());
    assert_eq!(verdict.rule(), Some(Rule::V7));
}

#[rstest]
#[case::not_json("{\"secret", true)]
#[case::spec_of_another_shape(r#"{"apiVersion":"garage.rajsingh.info/v1beta2","spec":"secret"}"#, false)]
#[case::annotation_of_another_shape(
    r#"{"apiVersion":"garage.rajsingh.info/v1beta2","metadata":{"annotations":{"secret":["secret"]}}}"#,
    false
)]
fn an_unreadable_object_is_described_without_its_content(#[case] text: &str, #[case] syntax: bool) {
    let error = ClusterView::from_json("object", text).unwrap_err();
    assert!(matches!(error, Unreadable::Json { syntax: s, .. } if s == syntax), "{error:?}");
    assert!(!error.to_string().contains("secret"), "{error}");
    assert!(NodeView::from_json("object", text).is_err());
}

#[test]
fn nulls_are_read_as_absent() {
    let text = r#"{"apiVersion":"garage.rajsingh.info/v1beta2","metadata":{"annotations":null,"deletionTimestamp":null},
        "spec":{"storage":null,"gateway":null,"connectTo":null,"remoteClusters":null,"replication":null,"workers":null},
        "status":{"nodeLocalService":null,"redundancy":null}}"#;
    let view = ClusterView::from_json("object", text).unwrap();
    assert!(!view.storage && !view.connect_to && !view.remote_clusters && !view.deleting);
    assert_eq!((view.factor, &*view.consistency_mode), (3, "consistent"));
    assert!(view.service.is_none());
    let text = r#"{"apiVersion":"garage.rajsingh.info/v1beta1","metadata":null,"spec":null,"status":null}"#;
    assert!(NodeView::from_json("object", text).unwrap().pin.is_none());
    let view = ClusterView::from_json("object", text).unwrap();
    assert!(view.storage, "an empty v1beta1 spec is a storage tier (C2)");
}

#[test]
fn an_escaped_annotation_name_is_still_that_annotation() {
    let text =
        cluster(&json!({HOLD: "fast/kn-9"}), &Value::Null).replace("node-local-out", r"node\u002dlocal-out");
    let old = cluster(&json!({}), &Value::Null);
    assert_eq!(judge(&old, &text, &members()).rule(), Some(Rule::V4));
}

#[test]
fn the_longest_values_make_no_message_longer_than_allowed() {
    let node = format!("{}.{}.{}", "n".repeat(63), "n".repeat(63), "n".repeat(63));
    let pool = "p".repeat(63);
    let service = json!({"nodeLocalService": {"pool": "q".repeat(400), "kubernetesNode": node, "operation": "ReplaceIdentity", "phase": "é".repeat(500)}});
    let old = cluster(&json!({REPLACE: "x".repeat(4000)}), &service);
    for (new, status) in [
        (json!({HOLD: format!("{pool}/{node}")}), &Value::Null),
        (json!({REPLACE: format!("{pool}/{node}/{}", "0f".repeat(32))}), &service),
        (json!({HOLD: "x".repeat(4000)}), &Value::Null),
        (json!({HOLD: format!("{pool}/{}", "N".repeat(4000))}), &Value::Null),
    ] {
        let verdict = judge(&old, &cluster(&new, status), &members());
        let message = verdict.message();
        assert!(!message.is_empty() && message.chars().count() <= MAX_MESSAGE, "{message}");
    }
}

#[test]
fn typed_services_read_as_their_json_does() {
    use crate::status::{NodeLocalService, ServiceOperation, ServicePhase};
    for phase in ["Waiting", "Applying", "Settling", "RepairingPins", "Completed"] {
        let text = json!({"pool": "fast", "kubernetesNode": "kn-1", "operation": "ReplaceIdentity", "phase": phase,
            "replacement": {"oldNodeId": "0f".repeat(32), "newNodeId": "c3".repeat(32)}});
        let typed: NodeLocalService = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(typed.operation, ServiceOperation::ReplaceIdentity);
        assert_eq!(typed.phase == ServicePhase::Completed, phase == "Completed");
        let object = cluster(&json!({}), &json!({"nodeLocalService": text}));
        let view = ClusterView::from_json("object", &object).unwrap();
        assert_eq!(view.service, Some(Service::from(&typed)));
    }
}
