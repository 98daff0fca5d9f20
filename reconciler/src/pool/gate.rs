//! The scheduling gate of a pool's Pods (`compat.md` 3): it comes off only where exactly this Pod may run.

use holdfast_crds::conditions::PoolsReason;
use holdfast_crds::ids::KubernetesNodeName;
use holdfast_crds::names::{self, SCHEDULING_GATE, annotation, label};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::condition::Problem;
use super::membership::{Member, Members, is_pool_pod};
use super::site::Site;
use super::{Input, PoolStep};
use crate::act::{Action, Kind, PatchBuilder, Target};

/// Whether the Pod's controller is exactly this DaemonSet.
pub fn is_owned_by(pod: &Pod, daemon_set: &DaemonSet) -> bool {
    daemon_set.metadata.uid.is_some()
        && pod.owner_references().iter().any(|owner| {
            owner.controller == Some(true) && Some(&owner.uid) == daemon_set.metadata.uid.as_ref()
        })
}

/// The one Node that a Pod is for: where it runs, else the only one that the DaemonSet's node affinity names.
pub fn target_node(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        return Some(node);
    }
    let terms = &spec
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?
        .node_selector_terms;
    let mut target = None;
    for term in terms {
        let mut named = None;
        for field in term.match_fields.iter().flatten() {
            if field.key == "metadata.name" && field.operator == "In" {
                let [name] = field.values.as_deref()? else { return None };
                named = Some(name.as_str());
            }
        }
        // A term without a name would let the Pod go anywhere.
        let named = named?;
        if target.is_some_and(|other| other != named) {
            return None;
        }
        target = Some(named);
    }
    target
}

/// Whether the gate is still on.
pub fn is_gated(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty())
}

fn is_over(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| phase == "Succeeded" || phase == "Failed")
}

/// Releases gates, and names the Node on Pods that were scheduled.
pub fn plan(
    site: &Site,
    members: &Members<'_>,
    input: &Input<'_>,
    step: &mut PoolStep,
    problems: &mut Vec<Problem>,
) {
    let kubernetes = &input.observation.kubernetes;
    for member in members.all.values() {
        if member.is_left_alone() {
            continue;
        }
        let Some(pod) = member.pod else { continue };
        if is_gated(pod) {
            if member.held {
                continue;
            }
            let others: Vec<&str> = kubernetes
                .pods
                .iter()
                .filter(|other| {
                    other.metadata.uid != pod.metadata.uid
                        && is_pool_pod(other)
                        && !is_over(other)
                        && !is_gated(other)
                        && target_node(other) == Some(member.pair.node.as_str())
                })
                .filter_map(|other| other.metadata.name.as_deref())
                .collect();
            if let Some(other) = others.first() {
                problems.push(Problem::new(
                    PoolsReason::WaitingForPreviousNodeLocalPoolPod,
                    format!(
                        "{} waits for Pod {other}, which is still on Node {}",
                        member.pair, member.pair.node
                    ),
                ));
            } else if !is_from_template(member, pod) {
                // It never ran, and with `OnDelete` nobody else would renew it.
                step.actions.push(Action::Delete {
                    target: Target::namespaced(
                        Kind::Pod,
                        &pod.namespace().unwrap_or_default(),
                        &pod.name_any(),
                    ),
                    uid: pod.metadata.uid.clone().unwrap_or_default(),
                });
            } else if may_run(site, member, pod) {
                step.actions.push(release(pod));
            }
        } else {
            step.actions.extend(name_node(member, pod));
        }
    }
}

/// Whether the Pod was made from the DaemonSet's template as it is now.
pub fn is_from_template(member: &Member<'_>, pod: &Pod) -> bool {
    let template =
        member.daemon_set.and_then(|set| set.spec.as_ref()).and_then(|spec| spec.template.metadata.as_ref());
    let from_template =
        |key: &str| template.and_then(|meta| meta.annotations.as_ref()).and_then(|map| map.get(key));
    [
        annotation::workload::ACTIVATION_VALUE,
        annotation::workload::CONFIG_HASH,
        annotation::workload::POD_SPEC_HASH,
    ]
    .iter()
    .all(|key| pod.annotations().get(*key) == from_template(key))
}

/// Every condition of `compat.md` 3 but "no other Pod".
fn may_run(site: &Site, member: &Member<'_>, pod: &Pod) -> bool {
    let claim_fits = member.claim.as_ref().is_some_and(|claim| {
        !claim.retiring
            && member.pool.host_paths().iter().all(|path| claim.host_paths().contains(&names::clean_path(path)))
            // Claim and identity annotation are either both absent or equal.
            && claim.garage_node_id == member.identity_annotation
    });
    is_from_template(member, pod)
        && claim_fits
        && member.is_active(site)
        && pod.annotations().get(annotation::workload::ACTIVATION_VALUE).map(String::as_str)
            == member.token.as_deref()
        && pod.metadata.deletion_timestamp.is_none()
        && member.record.is_none_or(|record| record.other_hand().is_none())
}

fn release(pod: &Pod) -> Action {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.clone()).unwrap_or_default();
    let before = json!(gates);
    let after: Vec<_> = gates.into_iter().filter(|gate| gate.name != SCHEDULING_GATE).collect();
    let patch = PatchBuilder::new()
        .test(["metadata", "uid"], pod.metadata.uid.clone().unwrap_or_default())
        .test(["spec", "schedulingGates"], before)
        .replace(["spec", "schedulingGates"], json!(after));
    pod_patch(pod, patch)
}

/// After scheduling the Pod says on which Node it runs, by label and annotation.
fn name_node(member: &Member<'_>, pod: &Pod) -> Option<Action> {
    pod.spec.as_ref()?.node_name.as_ref()?;
    let node: &KubernetesNodeName = &member.pair.node;
    let value = names::kubernetes_node_label_value(node);
    let have_label = pod.labels().get(label::KUBERNETES_NODE).map(String::as_str);
    let have_annotation = pod.annotations().get(annotation::node::KUBERNETES_NODE).map(String::as_str);
    if have_label == Some(value.as_str()) && have_annotation == Some(node.as_str()) {
        return None;
    }
    let patch = PatchBuilder::new()
        .test(["metadata", "uid"], pod.metadata.uid.clone().unwrap_or_default())
        .ensure_map("annotations", pod.metadata.annotations.is_some())
        .add(["metadata", "labels", label::KUBERNETES_NODE], value)
        .add(["metadata", "annotations", annotation::node::KUBERNETES_NODE], node.as_str());
    Some(pod_patch(pod, patch))
}

fn pod_patch(pod: &Pod, patch: PatchBuilder) -> Action {
    Action::Patch {
        target: Target::namespaced(Kind::Pod, &pod.namespace().unwrap_or_default(), &pod.name_any()),
        status: false,
        patch: patch.build(),
        dry_run: false,
    }
}
