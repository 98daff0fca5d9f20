//! One status write a pass: merge the parts, write only what changed, compare-and-swap, read back.

use std::collections::BTreeMap;

use holdfast_crds::conditions::{ConditionStatus, cut_message};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::act::{Action, Kind, Target};
use crate::pool::status::{ClusterPart, whole};

/// A condition to set: type, status, reason, message.
pub type Condition<'a> = (&'a str, ConditionStatus, &'a str, String);

/// What one pass has to say, from all its parts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parts {
    /// `status.redundancy`: `None` leaves it, `Some(None)` removes it (P5).
    pub redundancy: Option<Option<Value>>,
    /// `status.nodeLocalService`, as above.
    pub node_local_service: Option<Option<Value>>,
    /// What the pools fill.
    pub pool: Option<ClusterPart>,
    /// Conditions to set, by type.
    pub conditions: BTreeMap<String, (ConditionStatus, String, String)>,
    /// Condition types to remove.
    pub removed_conditions: Vec<String>,
}

impl Parts {
    /// Sets a condition.
    pub fn condition(&mut self, kind: &str, status: ConditionStatus, reason: &str, message: String) {
        self.conditions.insert(kind.to_owned(), (status, reason.to_owned(), message));
    }

    /// Takes over what the pools decided.
    pub fn pools(&mut self, step: &crate::pool::PoolStep) {
        use holdfast_crds::conditions::ConditionType::NodeLocalPoolsReady;
        match &step.condition {
            Some(condition) => self.condition(
                NodeLocalPoolsReady.as_str(),
                condition.status(),
                condition.reason.as_str(),
                condition.message.clone(),
            ),
            None => self.removed_conditions.push(NodeLocalPoolsReady.as_str().to_owned()),
        }
        self.pool.clone_from(&step.status);
        for (kind, status, reason, message) in step.status.iter().flat_map(|part| &part.conditions) {
            self.condition(kind.as_str(), *status, reason, message.clone());
        }
    }
}

/// A status write that is due.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusWrite {
    /// The JSON merge patch of `status`: only what changed.
    pub patch: Map<String, Value>,
}

impl StatusWrite {
    /// As an action on the object that was read.
    pub fn action(&self, namespace: &str, name: &str, resource_version: &str) -> Action {
        Action::MergeStatus {
            target: Target::namespaced(Kind::GarageCluster, namespace, name),
            resource_version: resource_version.to_owned(),
            status: Value::Object(self.patch.clone()),
        }
    }

    /// The fields of ours that did not survive the write: an older CRD cuts them (section 14). `stored` is
    /// the object as the API server answered the write.
    pub fn pruned(&self, stored: &Value) -> Vec<String> {
        let mut missing = Vec::new();
        for field in ["redundancy", "nodeLocalService"] {
            if let Some(wanted) = self.patch.get(field) {
                lost(field, &stored["status"][field], wanted, &mut missing);
            }
        }
        missing
    }
}

/// Collects the paths of `wanted` that `stored` does not have.
fn lost(path: &str, stored: &Value, wanted: &Value, missing: &mut Vec<String>) {
    match wanted {
        Value::Null => {}
        Value::Object(map) => {
            // An empty object that was dropped says nothing.
            if stored.is_null() && !map.is_empty() {
                missing.push(path.to_owned());
                return;
            }
            for (key, value) in map {
                lost(&format!("{path}.{key}"), &stored[key], value, missing);
            }
        }
        Value::Array(items) if items.is_empty() => {}
        other if stored.is_null() => {
            let _ = other;
            missing.push(path.to_owned());
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                lost(&format!("{path}[{index}]"), &stored[index], item, missing);
            }
        }
        _ => {}
    }
}

/// What must be written so that `status` (as it was read) says what the parts say; `None`: nothing.
///
/// Fields and conditions of others are left as they are. Counters ride along (P19): alone they cause no
/// write once they are there, since `redundancy.nodes`, which moves with them, has its own throttle.
pub fn plan(status: &Value, parts: &Parts, generation: Option<i64>, now: Timestamp) -> Option<StatusWrite> {
    let mut patch = Map::new();
    for (field, part) in [("redundancy", &parts.redundancy), ("nodeLocalService", &parts.node_local_service)]
    {
        match part {
            None => {}
            Some(None) if status[field].is_null() => {}
            Some(None) => {
                patch.insert(field.into(), Value::Null);
            }
            Some(Some(wanted)) if status[field] == *wanted => {}
            Some(Some(wanted)) => {
                patch.insert(field.into(), replacing(&status[field], wanted));
            }
        }
    }
    if let Some(pool) = &parts.pool {
        for (field, value) in &pool.fields {
            if status[field] != *value {
                patch.insert(field.clone(), replacing(&status[field], value));
            }
        }
    } else if (!parts.conditions.is_empty() || !patch.is_empty()) && status["replicas"].is_null() {
        // The full operator's CRD refuses a status without these two (`compat.md` 5).
        patch.insert("replicas".into(), 0.into());
        patch.insert("selector".into(), "".into());
    }
    let set: Vec<Condition<'_>> = parts
        .conditions
        .iter()
        .map(|(kind, (status, reason, message))| (kind.as_str(), *status, reason.as_str(), message.clone()))
        .collect();
    let removed: Vec<&str> = parts.removed_conditions.iter().map(String::as_str).collect();
    let conditions = merge_conditions(&status["conditions"], &set, &removed, generation, now);
    let none = status["conditions"].is_null() && conditions.as_array().is_some_and(Vec::is_empty);
    if !none && conditions != status["conditions"] {
        patch.insert("conditions".into(), conditions);
    }
    if let Some(pool) = &parts.pool {
        let due = !patch.is_empty()
            || pool.counters.iter().any(|(field, value)| status[field].is_null() != value.is_null());
        if due {
            for (field, value) in &pool.counters {
                if status[field] != *value {
                    patch.insert(field.clone(), replacing(&status[field], value));
                }
            }
        }
    }
    (!patch.is_empty()).then_some(StatusWrite { patch })
}

/// The merge patch that makes `have` exactly `wanted`: keys that must go are set to null.
fn replacing(have: &Value, wanted: &Value) -> Value {
    match (have, wanted) {
        (Value::Object(have), Value::Object(wanted)) => {
            let mut patch = Map::new();
            for (key, value) in wanted {
                match have.get(key) {
                    Some(old) if old == value => {}
                    Some(old) => {
                        patch.insert(key.clone(), replacing(old, value));
                    }
                    None => {
                        patch.insert(key.clone(), value.clone());
                    }
                }
            }
            for key in have.keys().filter(|key| !wanted.contains_key(*key)) {
                patch.insert(key.clone(), Value::Null);
            }
            Value::Object(patch)
        }
        _ => wanted.clone(),
    }
}

/// The list of conditions with `set` put in and `removed` taken out, all others as they are.
/// `lastTransitionTime` moves only when a status changes.
pub fn merge_conditions(
    have: &Value,
    set: &[Condition<'_>],
    removed: &[&str],
    generation: Option<i64>,
    now: Timestamp,
) -> Value {
    let mut list: Vec<Value> = have.as_array().cloned().unwrap_or_default();
    list.retain(|condition| !removed.iter().any(|kind| condition["type"] == *kind));
    for (kind, status, reason, message) in set {
        let message = cut_message(message.clone());
        let old = list.iter().position(|condition| condition["type"] == *kind);
        let transition = old
            .map(|at| &list[at])
            .filter(|condition| condition["status"] == status.as_str())
            .and_then(|condition| condition["lastTransitionTime"].as_str())
            .map_or_else(|| whole(now), str::to_owned);
        let mut next = json!({
            "type": kind,
            "status": status.as_str(),
            "reason": reason,
            "message": message,
            "lastTransitionTime": transition,
        });
        if let Some(generation) = generation {
            next["observedGeneration"] = generation.into();
        }
        match old {
            Some(at) if same_condition(&list[at], &next) => {}
            Some(at) => list[at] = next,
            None => list.push(next),
        }
    }
    Value::Array(list)
}

fn same_condition(a: &Value, b: &Value) -> bool {
    ["type", "status", "reason", "message", "lastTransitionTime", "observedGeneration"]
        .iter()
        .all(|key| a[key] == b[key])
}

/// What to do after a status write met a conflict (P20).
#[derive(Debug, Clone, PartialEq)]
pub enum AfterConflict {
    /// The evidence in the fresh object is not what this pass started from: it wins, and this pass ends.
    FreshWins,
    /// Ours is still the newest: this patch goes on the fresh object.
    Retry(StatusWrite),
    /// The fresh object says it already.
    Nothing,
}

/// Decides it: `started` is the status that this pass read, `fresh` the one that is stored now. A stale
/// pass never rolls evidence back.
pub fn after_conflict(
    started: &Value,
    fresh: &Value,
    parts: &Parts,
    generation: Option<i64>,
    now: Timestamp,
) -> AfterConflict {
    if ["redundancy", "nodeLocalService"].iter().any(|field| started[field] != fresh[field]) {
        return AfterConflict::FreshWins;
    }
    plan(fresh, parts, generation, now).map_or(AfterConflict::Nothing, AfterConflict::Retry)
}

/// Whether somebody else changed what is ours between two passes while we lead: `last` is what our last
/// write left (`None` right after taking over), `now` what is stored (section 13, `AnotherController`).
pub fn was_changed_by_another(last: Option<&Value>, now: &Value) -> bool {
    last.is_some_and(|last| {
        last["redundancy"]["verification"] != now["redundancy"]["verification"]
            || last["nodeLocalService"] != now["nodeLocalService"]
    })
}

/// How long after its last rewrite `redundancy.nodes` may be rewritten again by itself (P19).
pub const NODES_INTERVAL: SignedDuration = SignedDuration::from_secs(60);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    const EARLY: &str = "2026-11-30T01:00:00Z";
    const LATE: &str = "2026-11-30T02:00:00Z";

    fn parts() -> Parts {
        let mut parts =
            Parts { redundancy: Some(Some(json!({"nodes": [{"nodeId": "a"}]}))), ..Parts::default() };
        parts.condition("FullyReplicated", ConditionStatus::Unknown, "NotVerified", "why".into());
        let mut pool = ClusterPart::default();
        pool.fields.insert("replicas".into(), 3.into());
        pool.fields.insert("selector".into(), "a=b".into());
        pool.counters.insert("resyncQueueLength".into(), 7.into());
        parts.pool = Some(pool);
        parts
    }

    fn written(status: &Value, parts: &Parts, now: &str) -> Value {
        let mut status = status.clone();
        if let Some(write) = plan(&status, parts, Some(4), at(now)) {
            json_patch::merge(&mut status, &Value::Object(write.patch));
        }
        status
    }

    #[test]
    fn equal_input_makes_no_second_write() {
        let status = written(&json!({}), &parts(), EARLY);
        assert_eq!(plan(&status, &parts(), Some(4), at(LATE)), None);
    }

    #[test]
    fn a_counter_alone_causes_no_write_and_rides_along_with_one() {
        let status = written(&json!({}), &parts(), EARLY);
        let mut moved = parts();
        moved.pool.as_mut().unwrap().counters.insert("resyncQueueLength".into(), 9.into());
        assert_eq!(plan(&status, &moved, Some(4), at(LATE)), None);
        moved.redundancy = Some(Some(json!({"nodes": []})));
        assert_eq!(written(&status, &moved, LATE)["resyncQueueLength"], 9);
        // Unknown is absent, at once.
        let mut unknown = parts();
        unknown.pool.as_mut().unwrap().counters.insert("resyncQueueLength".into(), Value::Null);
        assert!(written(&status, &unknown, LATE).get("resyncQueueLength").is_none());
    }

    #[test]
    fn fields_and_conditions_of_others_stay_as_they_are() {
        let theirs = json!({"storageDrain": {"x": 1}, "conditions": [{"type": "Theirs", "status": "True", "extra": 1}]});
        let status = written(&theirs, &parts(), EARLY);
        assert_eq!(status["storageDrain"], theirs["storageDrain"]);
        assert_eq!(status["conditions"][0], theirs["conditions"][0]);
        assert_eq!(status["conditions"][1]["type"], "FullyReplicated");
        assert_eq!(status["conditions"][1]["observedGeneration"], 4);
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let status = written(&json!({}), &parts(), EARLY);
        let mut next = parts();
        next.condition("FullyReplicated", ConditionStatus::Unknown, "NotObserved", "other".into());
        let status = written(&status, &next, LATE);
        assert_eq!(status["conditions"][0]["lastTransitionTime"], EARLY);
        next.condition("FullyReplicated", ConditionStatus::True, "Verified", "done".into());
        assert_eq!(written(&status, &next, LATE)["conditions"][0]["lastTransitionTime"], LATE);
    }

    #[test]
    fn what_must_go_inside_a_field_goes() {
        let status =
            written(&json!({"redundancy": {"nodes": [], "coordination": {"a": 1}}}), &parts(), EARLY);
        assert_eq!(status["redundancy"], json!({"nodes": [{"nodeId": "a"}]}));
    }

    #[test]
    fn a_status_without_pools_still_has_what_the_other_crd_requires() {
        let mut parts = Parts::default();
        parts.condition("FullyReplicated", ConditionStatus::Unknown, "NotVerified", "why".into());
        let status = written(&json!({}), &parts, EARLY);
        assert_eq!((&status["replicas"], &status["selector"]), (&json!(0), &json!("")));
    }

    #[test]
    fn a_field_that_an_older_crd_cuts_is_named() {
        let write = plan(&json!({}), &parts(), None, at(EARLY)).unwrap();
        assert_eq!(write.pruned(&json!({"status": {"replicas": 3}})), ["redundancy"]);
        assert_eq!(
            write.pruned(&json!({"status": {"redundancy": {"nodes": [{}]}}})),
            ["redundancy.nodes[0].nodeId"]
        );
        assert!(write.pruned(&json!({"status": {"redundancy": {"nodes": [{"nodeId": "a"}]}}})).is_empty());
    }

    #[test]
    fn on_a_conflict_newer_evidence_wins_and_other_changes_are_merged() {
        let started = json!({"redundancy": {"verification": {"phase": "Idle"}}});
        let newer = json!({"redundancy": {"verification": {"phase": "Pending"}}});
        assert_eq!(after_conflict(&started, &newer, &parts(), None, at(EARLY)), AfterConflict::FreshWins);
        let mut beside = started.clone();
        beside["phase"] = "Running".into();
        assert!(matches!(
            after_conflict(&started, &beside, &parts(), None, at(EARLY)),
            AfterConflict::Retry(_)
        ));
        let done = written(&started, &parts(), EARLY);
        assert_eq!(after_conflict(&done, &done, &parts(), Some(4), at(EARLY)), AfterConflict::Nothing);
    }

    #[test]
    fn another_writer_is_noticed_only_in_what_is_ours() {
        let ours = json!({"redundancy": {"verification": {"phase": "Idle"}}, "phase": "Running"});
        let mut now = ours.clone();
        now["phase"] = "Degraded".into();
        assert!(!was_changed_by_another(Some(&ours), &now));
        now["redundancy"]["verification"]["phase"] = "Pending".into();
        assert!(was_changed_by_another(Some(&ours), &now));
        assert!(!was_changed_by_another(None, &now));
    }
}
