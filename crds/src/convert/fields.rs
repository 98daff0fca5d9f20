//! Which spec fields move between the versions (`compat.md` 6 and 7).

/// Fields that v1beta1 keeps at the top of `spec` and v1beta2 in the storage tier.
pub(super) const FLAT: [&str; 13] = [
    "replicas",
    "resources",
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "podAnnotations",
    "podLabels",
    "priorityClassName",
    "securityContext",
    "containerSecurityContext",
    "podDisruptionBudget",
    "capacityReservePercent",
];

/// Whether `key` is one of [`FLAT`].
pub(super) fn is_flat(key: &str) -> bool {
    FLAT.contains(&key)
}

/// The marker with `words` appended, each once.
pub(super) fn add_words(marker: &str, words: &[&str]) -> String {
    let mut text = marker.to_owned();
    for word in words {
        if text.is_empty() {
            (*word).clone_into(&mut text);
        } else if !text.split(',').any(|w| w == *word) {
            text.push(',');
            text.push_str(word);
        }
    }
    text
}

/// The marker without `words`; `None` when nothing is left.
pub(super) fn remove_words(marker: &str, words: &[&str]) -> Option<String> {
    let left: Vec<&str> = marker.split(',').filter(|w| !words.contains(w)).collect();
    if left.iter().all(|w| w.is_empty()) && left.len() < 2 { None } else { Some(left.join(",")) }
}

/// Where a carried value belongs in an object of the version that it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pointer {
    /// `/spec/<flat field>`, `/spec/gateway` or `/spec/storage`.
    Spec(String),
    /// `/spec/storage/<key>`.
    Storage(String),
    /// `/metadata`.
    Metadata,
    /// `/metadata/annotations`.
    Annotations,
    /// `/metadata/annotations/<one of ours>`.
    Annotation(&'static str),
}

/// What a carried value is, as far as it matters where it may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    EmptyObject,
    Object,
    EmptyArray,
    Array,
    Scalar,
}

impl Shape {
    /// Of a valid JSON text.
    pub(super) fn of(text: &[u8]) -> Self {
        let mut bytes = text.iter().filter(|b| !b.is_ascii_whitespace());
        match (bytes.next(), bytes.next()) {
            (Some(b'{'), Some(b'}')) => Self::EmptyObject,
            (Some(b'{'), _) => Self::Object,
            (Some(b'['), Some(b']')) => Self::EmptyArray,
            (Some(b'['), _) => Self::Array,
            _ => Self::Scalar,
        }
    }

    pub(super) fn is_object(self) -> bool {
        matches!(self, Self::EmptyObject | Self::Object)
    }
}

impl Pointer {
    /// Reads an RFC 6901 pointer; `None` if it is not one that conversion writes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix('/')?.split('/');
        let unescape = |part: &str| part.replace("~1", "/").replace("~0", "~");
        let pointer = match (parts.next()?, parts.next(), parts.next()) {
            ("metadata", None, None) => Self::Metadata,
            ("metadata", Some("annotations"), None) => Self::Annotations,
            ("metadata", Some("annotations"), Some(key)) => {
                let key = unescape(key);
                Self::Annotation(super::RESERVED.into_iter().find(|k| **k == key)?)
            }
            ("spec", Some(key), None) if is_flat(key) || matches!(key, "gateway" | "storage") => {
                Self::Spec(key.to_owned())
            }
            ("spec", Some("storage"), Some(key)) => Self::Storage(unescape(key)),
            _ => return None,
        };
        parts.next().is_none().then_some(pointer)
    }

    /// Whether going down can have written this pair. Anything else did not come from here: above all no tier and
    /// no pools may enter a v1beta2 object this way.
    pub(super) fn is_from_v1beta2(&self, shape: Shape) -> bool {
        match self {
            Self::Spec(key) if key == "gateway" => !shape.is_object(),
            Self::Spec(key) if key == "storage" => shape != Shape::Object,
            Self::Storage(key) => key == "nodeLocalPools" && shape != Shape::Array,
            Self::Metadata => shape != Shape::Object,
            Self::Annotations => !shape.is_object(),
            Self::Spec(_) | Self::Annotation(_) => true,
        }
    }
}

/// The pointer to a key of `spec.storage`.
pub(super) fn storage_pointer(key: &str) -> String {
    format!("/spec/storage/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// The pointer to one of our annotations.
pub(super) fn annotation_pointer(key: &str) -> String {
    format!("/metadata/annotations/{}", key.replace('/', "~1"))
}
