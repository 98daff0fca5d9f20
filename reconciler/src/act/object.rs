//! Kubernetes objects and changes to them, as data.

use std::fmt;

use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation,
    jsonptr::PointerBuf,
};
use kube::api::ApiResource;
use serde_json::Value;

/// The kinds that this product writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `garage.rajsingh.info/v1beta2`.
    GarageCluster,
    /// `garage.rajsingh.info/v1beta1`.
    GarageNode,
    /// `v1`, cluster-scoped.
    Node,
    /// `v1`.
    Pod,
    /// `apps/v1`.
    DaemonSet,
    /// `v1`.
    ConfigMap,
    /// `v1`.
    Secret,
    /// `v1`.
    Service,
    /// `policy/v1`.
    PodDisruptionBudget,
}

impl Kind {
    /// `apiVersion`.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::GarageCluster => "garage.rajsingh.info/v1beta2",
            Self::GarageNode => "garage.rajsingh.info/v1beta1",
            Self::Node | Self::Pod | Self::ConfigMap | Self::Secret | Self::Service => "v1",
            Self::DaemonSet => "apps/v1",
            Self::PodDisruptionBudget => "policy/v1",
        }
    }

    /// `kind`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GarageCluster => "GarageCluster",
            Self::GarageNode => "GarageNode",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::DaemonSet => "DaemonSet",
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Service => "Service",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
        }
    }

    /// The plural of the kind, as in the API's paths.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::GarageCluster => "garageclusters",
            Self::GarageNode => "garagenodes",
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::DaemonSet => "daemonsets",
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
            Self::Service => "services",
            Self::PodDisruptionBudget => "poddisruptionbudgets",
        }
    }

    /// What kube's dynamic API needs.
    pub fn api_resource(self) -> ApiResource {
        let api_version = self.api_version();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.to_owned(),
            kind: self.as_str().to_owned(),
            plural: self.plural().to_owned(),
        }
    }
}

/// Which object an action is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; `None` for a Node.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl Target {
    /// A namespaced object.
    pub fn namespaced(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }

    /// A Kubernetes Node.
    pub fn node(name: &str) -> Self {
        Self { kind: Kind::Node, namespace: None, name: name.to_owned() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind.as_str(), self.name),
            None => write!(f, "{} {}", self.kind.as_str(), self.name),
        }
    }
}

/// A whole object in JSON. The content of a Secret never shows in `Debug`.
#[derive(Clone, PartialEq)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// `apiVersion`, `kind`, `metadata` and the rest.
    pub value: Value,
}

impl Object {
    /// An object from its JSON; `apiVersion` and `kind` are put first.
    pub fn new(kind: Kind, mut body: Value) -> Self {
        let mut whole = serde_json::Map::new();
        whole.insert("apiVersion".into(), kind.api_version().into());
        whole.insert("kind".into(), kind.as_str().into());
        if let Some(map) = body.as_object_mut() {
            for (key, value) in std::mem::take(map) {
                whole.insert(key, value);
            }
        }
        Self { kind, value: Value::Object(whole) }
    }

    /// Its name and place.
    pub fn target(&self) -> Target {
        let field = |name: &str| self.value["metadata"][name].as_str().map(str::to_owned);
        Target { kind: self.kind, namespace: field("namespace"), name: field("name").unwrap_or_default() }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == Kind::Secret {
            write!(f, "{} (content not shown)", self.target())
        } else {
            write!(f, "{}", self.value)
        }
    }
}

/// A JSON pointer from its segments; `/` and `~` in a segment are escaped.
pub fn pointer<'a>(segments: impl IntoIterator<Item = &'a str>) -> PointerBuf {
    PointerBuf::from_tokens(segments)
}

/// Builds a JSON patch step by step; what a decision rests on is stated with `test` (a patch that
/// lost a race then fails as a whole).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PatchBuilder(Vec<PatchOperation>);

impl PatchBuilder {
    /// An empty patch.
    pub fn new() -> Self {
        Self::default()
    }

    /// The patch goes through only if the value at `path` is exactly this.
    #[must_use]
    pub fn test<'a>(mut self, path: impl IntoIterator<Item = &'a str>, value: impl Into<Value>) -> Self {
        self.0.push(PatchOperation::Test(TestOperation { path: pointer(path), value: value.into() }));
        self
    }

    /// Sets a member of an object, whether or not it is there.
    #[must_use]
    pub fn add<'a>(mut self, path: impl IntoIterator<Item = &'a str>, value: impl Into<Value>) -> Self {
        self.0.push(PatchOperation::Add(AddOperation { path: pointer(path), value: value.into() }));
        self
    }

    /// Replaces what is there.
    #[must_use]
    pub fn replace<'a>(mut self, path: impl IntoIterator<Item = &'a str>, value: impl Into<Value>) -> Self {
        self.0.push(PatchOperation::Replace(ReplaceOperation { path: pointer(path), value: value.into() }));
        self
    }

    /// Removes what is there.
    #[must_use]
    pub fn remove<'a>(mut self, path: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.push(PatchOperation::Remove(RemoveOperation { path: pointer(path) }));
        self
    }

    /// Makes `metadata.labels` or `metadata.annotations` where the object has none.
    #[must_use]
    pub fn ensure_map(self, map: &str, exists: bool) -> Self {
        if exists { self } else { self.add(["metadata", map], serde_json::json!({})) }
    }

    /// Sets one entry of `metadata.labels` or `metadata.annotations`. `current` is what was read: an
    /// entry that is there is tested; an absent one needs [`Self::unchanged`], since JSON patch
    /// cannot test for absence.
    #[must_use]
    pub fn set_entry(self, map: &str, key: &str, current: Option<&str>, value: impl Into<Value>) -> Self {
        match current {
            Some(old) => self.test(["metadata", map, key], old).replace(["metadata", map, key], value),
            None => self.add(["metadata", map, key], value),
        }
    }

    /// The patch goes through only on the object with this UID and resource version.
    #[must_use]
    pub fn unchanged(self, uid: &str, resource_version: &str) -> Self {
        self.test(["metadata", "uid"], uid).test(["metadata", "resourceVersion"], resource_version)
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The finished patch.
    pub fn build(self) -> Patch {
        Patch(self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_secret_never_shows_its_content() {
        let secret = Object::new(
            Kind::Secret,
            json!({"metadata": {"name": "s", "namespace": "n"}, "stringData": {"k": "hush"}}),
        );
        assert_eq!(format!("{secret:?}"), "Secret n/s (content not shown)");
    }

    #[test]
    fn a_patch_that_lost_a_race_changes_nothing() {
        let patch =
            PatchBuilder::new().set_entry("labels", "garage.rajsingh.info/a", Some("old"), "new").build();
        let mut raced = json!({"metadata": {"labels": {"garage.rajsingh.info/a": "other"}}});
        let before = raced.clone();
        assert!(json_patch::patch(&mut raced, &patch).is_err());
        assert_eq!(raced, before);
        let mut calm = json!({"metadata": {"labels": {"garage.rajsingh.info/a": "old"}}});
        json_patch::patch(&mut calm, &patch).unwrap();
        assert_eq!(calm["metadata"]["labels"]["garage.rajsingh.info/a"], "new");
    }
}
