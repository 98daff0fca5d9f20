//! What the product may do by its roles, and what it asked the API server for.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::bed::Bed;
use crate::error::Result;
use crate::product::{NAMESPACE, is_products_own};

/// One verb on one resource of one group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// The API group; empty for the core group.
    pub group: String,
    /// `resource` or `resource/subresource`.
    pub resource: String,
    /// `get`, `patch`, …
    pub verb: String,
}

impl Permission {
    /// A permission by its words.
    pub fn new(group: &str, resource: &str, verb: &str) -> Self {
        Self { group: group.to_owned(), resource: resource.to_owned(), verb: verb.to_owned() }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = if self.group.is_empty() { "core" } else { &self.group };
        write!(f, "{} {}.{group}", self.verb, self.resource)
    }
}

/// What rendered roles grant to the product's own account; the roles of `helm test` are another account's.
pub fn granted(documents: &[Value]) -> BTreeSet<Permission> {
    let words = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let mut granted = BTreeSet::new();
    let roles = documents.iter().filter(|d| d["kind"] == "Role" || d["kind"] == "ClusterRole");
    for rule in roles
        .filter(|role| role["metadata"]["annotations"]["helm.sh/hook"].is_null())
        .flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default())
    {
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                for verb in words(&rule["verbs"]) {
                    granted.insert(Permission::new(&group, &resource, &verb));
                }
            }
        }
    }
    granted
}

/// What the product asked for since a mark of the audit log, and what of it was forbidden (with the object's name).
#[derive(Debug, Default)]
pub struct Asked {
    /// Allowed requests.
    pub used: BTreeSet<Permission>,
    /// Requests that were answered with 403.
    pub forbidden: BTreeSet<String>,
}

impl Bed {
    /// Reads the audit log for the product's requests, reads included.
    pub fn asked_since(&self, mark: u64) -> Result<Asked> {
        let mut asked = Asked::default();
        for event in self.audited_since(mark)?.iter().filter(|event| is_products_own(event)) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let object = &event["objectRef"];
            if object.is_null() {
                continue;
            }
            let sub = object["subresource"].as_str().map(|sub| format!("/{sub}")).unwrap_or_default();
            let permission = Permission {
                group: text(&object["apiGroup"]),
                resource: format!("{}{sub}", text(&object["resource"])),
                verb: text(&event["verb"]),
            };
            // A webhook's refusal is a 403 as well; the authorizer says so in its annotation.
            if event["annotations"]["authorization.k8s.io/decision"] == "forbid" {
                let (namespace, name) = (text(&object["namespace"]), text(&object["name"]));
                asked.forbidden.insert(format!("{permission} {namespace}/{name}"));
            } else {
                asked.used.insert(permission);
            }
        }
        Ok(asked)
    }

    /// What the installed release grants.
    pub async fn granted(&self) -> Result<BTreeSet<Permission>> {
        use serde::Deserialize as _;
        let text = self.helm(&["get", "manifest", NAMESPACE, "--namespace", NAMESPACE]).await?;
        let read: std::result::Result<Vec<Value>, _> =
            serde_norway::Deserializer::from_str(&text).map(Value::deserialize).collect();
        Ok(granted(&read.map_err(|error| crate::error::Error::other(format!("helm's manifest: {error}")))?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rule_is_every_verb_on_every_resource_and_hooks_are_not_the_products() {
        let rules = json!([{"apiGroups": ["", "apps"], "resources": ["pods", "pods/log"], "verbs": ["get"]}]);
        let role = json!({"kind": "Role", "metadata": {}, "rules": rules});
        let hook = json!({"kind": "ClusterRole", "metadata": {"annotations": {"helm.sh/hook": "test"}},
            "rules": [{"apiGroups": ["x"], "resources": ["y"], "verbs": ["z"]}]});
        let granted = granted(&[role, hook]);
        assert_eq!(granted.len(), 4);
        assert!(granted.contains(&Permission::new("apps", "pods/log", "get")));
    }
}
