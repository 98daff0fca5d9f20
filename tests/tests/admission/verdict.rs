//! What the rules alone say of a case. The crate of the rules includes this file in its own tests.

use holdfast_crds::convert::{self, Version};
use holdfast_crds::validate::{
    self, ClusterView, Fact, Kind, Lookup, Member, NodeView, Operation, Parent, Request, Verdict,
};
use serde_json::json;

use super::admission_cases::{Act, Case};

fn lookup(case: &Case) -> Lookup {
    let mut lookup = Lookup::default();
    if !case.unknown.iter().any(|u| u == "members") {
        let member =
            |node: &serde_json::Value| Member::from(&NodeView::from_json("node", &node.to_string()).unwrap());
        lookup.members = Fact::Known(case.garage_nodes().unwrap().iter().map(member).collect());
    }
    if !case.unknown.iter().any(|u| u == "parent") {
        let parent = case.parent_object().unwrap().map(|p| p.to_string());
        lookup.parent =
            Fact::Known(parent.map(|text| Parent::from(&ClusterView::from_json("parent", &text).unwrap())));
    }
    lookup
}

/// The verdict of the rules alone. `seen_as` converts the objects first, as the API server does for a webhook whose
/// rule names another version; `namespace` is where they are.
pub fn verdict(case: &Case, seen_as: Option<Version>, namespace: Option<&str>) -> Verdict {
    let view = |mut object: serde_json::Value| {
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        match seen_as {
            Some(version) => convert::convert_value(&object, version).unwrap(),
            None => object,
        }
    };
    let mut old = case.old_object().unwrap().map(view);
    let mut new = Some(view(case.new_object().unwrap()));
    let (operation, subresource) = match case.operation {
        Act::Create => (Operation::Create, ""),
        Act::Update | Act::Ssa | Act::DryRun | Act::FinalizerRemoval => (Operation::Update, ""),
        Act::Status => (Operation::Update, "status"),
        Act::Scale => (Operation::Update, "scale"),
        Act::Delete => (Operation::Delete, ""),
    };
    match case.operation {
        Act::FinalizerRemoval => {
            for object in [&mut old, &mut new].into_iter().flatten() {
                object["metadata"]["deletionTimestamp"] = json!("2026-11-30T00:00:00Z");
            }
        }
        Act::Delete => new = None,
        Act::Scale => {
            let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": case.new["spec"]});
            (old, new) = (Some(scale.clone()), Some(scale));
        }
        _ => {}
    }
    let kind = if case.is_node() { Kind::GarageNode } else { Kind::GarageCluster };
    let addressed = if case.version == "v1beta1" { Version::V1beta1 } else { Version::V1beta2 };
    let (old, new) = (old.map(|o| o.to_string()), new.map(|n| n.to_string()));
    let request =
        Request::from_json(kind, operation, addressed, subresource, old.as_deref(), new.as_deref()).unwrap();
    validate::validate(&request, &lookup(case))
}
