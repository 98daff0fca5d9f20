//! Why an object was not converted. The text names the object, and the annotation or version at fault (C5).

use super::{GATEWAY_ANNOTATION, POOLS_ANNOTATION};
use crate::ids::Quoted;

/// An object that was not converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {problem}")]
pub struct ConvertError {
    /// `Kind namespace/name` as far as the object says so.
    pub object: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The text is not JSON; the parser's words.
    NotJson(String),
    /// A JSON value that is not an object; its type.
    NotAnObject(&'static str),
    /// `kind` is not one that has two versions.
    UnknownKind(String),
    /// `apiVersion` of the object, or the desired one.
    UnknownVersion(String),
    /// A reserved annotation that cannot be read: key, and what is wrong.
    DamagedAnnotation(&'static str, String),
    /// The pools carrier on an object that has no storage tier.
    PoolsWithoutStorage,
    /// The gateway carrier on an object that has no tier.
    GatewayWithoutTier,
    /// Nested deeper than the API server itself accepts.
    TooDeep(usize),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotJson(why) => write!(f, "not JSON: {why}"),
            Self::NotAnObject(found) => write!(f, "expected a JSON object, found {found}"),
            Self::UnknownKind(kind) => {
                write!(f, "kind {} is not converted; only GarageCluster has two versions", Quoted(kind))
            }
            Self::UnknownVersion(version) if version.ends_with("/v1alpha1") => {
                write!(f, "version {} is not served; use v1beta1 or v1beta2", Quoted(version))
            }
            Self::UnknownVersion(version) => write!(
                f,
                "unknown version {}; use garage.rajsingh.info/v1beta1 or garage.rajsingh.info/v1beta2",
                Quoted(version)
            ),
            Self::DamagedAnnotation(key, why) => write!(
                f,
                "annotation {key} is damaged: {why}; restore its text from the v1beta2 view or a backup"
            ),
            Self::PoolsWithoutStorage => write!(
                f,
                "annotation {POOLS_ANNOTATION} holds node-local pools, but the object has no storage tier to hold them; keep the storage tier (no gateway: true, not a bare connectTo) or remove the pools through v1beta2"
            ),
            Self::GatewayWithoutTier => write!(
                f,
                "annotation {GATEWAY_ANNOTATION} holds a gateway tier, but the object has neither a storage nor a gateway tier; restore the tier or remove the gateway through v1beta2"
            ),
            Self::TooDeep(limit) => write!(f, "nested deeper than {limit} levels"),
        }
    }
}

impl ConvertError {
    pub(super) fn new(object: impl Into<String>, problem: Problem) -> Self {
        Self { object: object.into(), problem }
    }

    pub(super) fn not_json(error: &serde_json::Error) -> Self {
        Self::new("the object", Problem::NotJson(error.to_string()))
    }
}

/// How messages name an object. Values come from the object and are cut, so that a message stays short.
pub(super) fn object_name(kind: &str, namespace: Option<&str>, name: Option<&str>) -> String {
    let cut = |s: &str| s.chars().take(253).collect::<String>();
    let kind = if kind.is_empty() { "object" } else { kind };
    match (namespace, name) {
        (Some(ns), Some(name)) => format!("{} {}/{}", cut(kind), cut(ns), cut(name)),
        (None, Some(name)) => format!("{} {}", cut(kind), cut(name)),
        _ => format!("{} without a name", cut(kind)),
    }
}
