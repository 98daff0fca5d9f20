//! Adds our fields to the CustomResourceDefinitions of another operator of the group, and changes nothing else.

use serde_json::{Map, Value};

use crate::crd::{self, CrdError};
use crate::names::GROUP;

/// Why definitions could not be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// Not a definition of ours.
    #[error(
        "{0} is no CustomResourceDefinition of {GROUP}: feed the output of `kubectl get crd garageclusters.{GROUP} -o yaml`"
    )]
    NotOurs(String),
    /// A version without a place for a field.
    #[error("version {version} of {name} has no {path} in its schema, so our fields have no place in it")]
    NoPlace {
        /// The definition.
        name: String,
        /// Its version.
        version: String,
        /// What is missing.
        path: String,
    },
    /// No version that we know.
    #[error("{0} has none of the versions that this release knows")]
    NoVersion(String),
    /// Our own definition is broken.
    #[error(transparent)]
    Own(#[from] CrdError),
    /// Our own definition cannot be read as JSON.
    #[error("our own definition cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// Where our fields stand: the properties of an object, and the name in it.
const FIELDS: &[(&str, &str)] = &[
    ("/properties/status", "redundancy"),
    ("/properties/status", "nodeLocalService"),
    ("/properties/spec/properties/layoutManagement", "redundancyVerification"),
];

/// Merges into one definition, or into each of a `List`. A GarageNode's has everything already and passes through.
/// What the API server keeps for itself goes, except the resource version: `kubectl replace` then refuses to
/// overwrite what somebody changed meanwhile.
///
/// # Errors
/// An object that is no definition of the group, or one that has no place for our fields.
pub fn merge(mut theirs: Value) -> Result<Value, MergeError> {
    if theirs["kind"].as_str().is_some_and(|kind| kind.ends_with("List"))
        && let Some(items) = theirs.get_mut("items").and_then(Value::as_array_mut)
    {
        for item in items {
            *item = merge(item.take())?;
        }
        return Ok(theirs);
    }
    let name = theirs["metadata"]["name"].as_str().unwrap_or("a document").to_owned();
    if theirs["kind"] != "CustomResourceDefinition" || theirs["spec"]["group"] != GROUP {
        return Err(MergeError::NotOurs(name));
    }
    if let Some(object) = theirs.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = theirs["metadata"].as_object_mut() {
        for kept_by_the_server in ["managedFields", "uid", "creationTimestamp", "generation"] {
            metadata.remove(kept_by_the_server);
        }
    }
    if theirs["spec"]["names"]["kind"] != "GarageCluster" {
        return Ok(theirs);
    }
    let ours = serde_json::to_value(crd::garage_cluster(None)?)?;
    let ours = ours["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let mut known = 0;
    for version in theirs["spec"]["versions"].as_array_mut().into_iter().flatten() {
        let word = version["name"].as_str().unwrap_or_default().to_owned();
        let own = ours.iter().find(|own| own["name"] == version["name"] && own["served"] == true);
        let Some(own) = own else { continue };
        known += 1;
        for (parent, field) in FIELDS {
            let path = format!("/schema/openAPIV3Schema{parent}");
            let Some(schema) = own.pointer(&path).map(|p| p["properties"][field].clone()) else { continue };
            let Some(place) = version.pointer_mut(&path).and_then(Value::as_object_mut) else {
                return Err(MergeError::NoPlace {
                    name,
                    version: word,
                    path: parent.replace("/properties", ""),
                });
            };
            let properties = place.entry("properties").or_insert_with(|| Value::Object(Map::new()));
            if let Some(properties) = properties.as_object_mut() {
                properties.insert((*field).to_owned(), schema);
            }
        }
    }
    if known == 0 { Err(MergeError::NoVersion(name)) } else { Ok(theirs) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    /// A definition of another operator: another conversion, a field of its own, none of ours.
    fn theirs() -> Value {
        let mut crd = serde_json::to_value(crd::garage_cluster(None).unwrap()).unwrap();
        crd["metadata"]["resourceVersion"] = json!("7");
        crd["metadata"]["managedFields"] = json!([{}]);
        crd["metadata"]["annotations"] = json!({"theirs": "stays"});
        crd["spec"]["conversion"] =
            json!({"strategy": "Webhook", "webhook": {"clientConfig": {"caBundle": "eA=="}}});
        crd["status"] = json!({"storedVersions": ["v1beta2"]});
        for version in crd["spec"]["versions"].as_array_mut().unwrap() {
            for (parent, field) in FIELDS {
                if let Some(place) =
                    version.pointer_mut(&format!("/schema/openAPIV3Schema{parent}/properties"))
                {
                    place.as_object_mut().unwrap().remove(*field);
                    place["theirOwn"] = json!({"type": "string"});
                }
            }
        }
        crd
    }

    #[test]
    fn our_fields_are_added_in_every_version_and_nothing_else_changes() {
        let merged = merge(theirs()).unwrap();
        for version in ["v1beta1", "v1beta2"] {
            let of = |crd: &Value| {
                let all = crd["spec"]["versions"].as_array().unwrap().clone();
                all.into_iter().find(|v| v["name"] == version).unwrap()["schema"]["openAPIV3Schema"].clone()
            };
            let schema = of(&merged);
            for (parent, field) in FIELDS {
                let place = schema.pointer(parent).unwrap();
                assert!(place["properties"][field].is_object(), "{version} {parent}/{field}");
                assert_eq!(place["properties"]["theirOwn"], json!({"type": "string"}));
            }
        }
        let mut without = merged.clone();
        for version in without["spec"]["versions"].as_array_mut().unwrap() {
            for (parent, field) in FIELDS {
                if let Some(place) =
                    version.pointer_mut(&format!("/schema/openAPIV3Schema{parent}/properties"))
                {
                    place.as_object_mut().unwrap().remove(*field);
                }
            }
        }
        let before = theirs();
        assert_eq!(without["spec"], before["spec"], "conversion, names and their own fields stay");
        assert_eq!(merged["metadata"]["annotations"], before["metadata"]["annotations"]);
        assert_eq!(merged["metadata"]["resourceVersion"], "7");
        assert!(merged["metadata"].get("managedFields").is_none() && merged.get("status").is_none());
    }

    #[test]
    fn merging_twice_is_merging_once_also_in_a_list() {
        let once = merge(theirs()).unwrap();
        assert_eq!(merge(once.clone()).unwrap(), once);
        let node = serde_json::to_value(crd::garage_node().unwrap()).unwrap();
        let list = merge(json!({"kind": "List", "items": [theirs(), node]})).unwrap();
        assert_eq!(list["items"][0], once);
        assert_eq!(list["items"][1]["spec"], node["spec"], "a GarageNode needs nothing of ours");
    }

    #[test]
    fn what_is_no_definition_of_the_group_is_refused_by_name() {
        let pod = merge(json!({"kind": "Pod", "metadata": {"name": "p"}})).unwrap_err().to_string();
        assert!(pod.starts_with("p is no CustomResourceDefinition"), "{pod}");
        assert!(merge(json!(null)).is_err() && merge(json!([])).is_err());
        let mut old = theirs();
        old["spec"]["versions"] = json!([{"name": "v1alpha1", "served": true}]);
        assert!(merge(old).unwrap_err().to_string().contains("none of the versions"));
        let mut bare = theirs();
        bare["spec"]["versions"][2]["schema"] = json!({});
        assert!(merge(bare).unwrap_err().to_string().contains("no place"));
    }
}
