//! The HostPath claim: which directories of a Node belong to which pool, and under which identity.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ClusterId;
use crate::ids::{NodeId, PoolName, Quoted};

/// Why a claim annotation could not be read. It is then nobody's to rewrite.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// No JSON object of the known shape.
    #[error("the HostPath claim is not the JSON object that it should be ({0})")]
    Shape(String),
    /// A version that this release does not know.
    #[error("the HostPath claim has version {0}; this release knows version 1")]
    Version(u64),
    /// No path.
    #[error("the HostPath claim names no path")]
    NoPath,
}

/// Value of the annotation [`ClusterId::host_path_claim_annotation`] (`compat.md` 1 and 2).
///
/// Append-only: an update contains every path that it had. Whoever rewrites it keeps `retiring` and every key that it
/// does not know; so does this type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPathClaim {
    version: u64,
    /// Namespace of the owning GarageCluster.
    pub cluster_namespace: String,
    /// Its name.
    pub cluster_name: String,
    /// The pool.
    pub node_local_pool_name: String,
    host_paths: Vec<String>,
    /// The identity on these disks; absent until it is known.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::lenient::empty_as_none"
    )]
    pub garage_node_id: Option<NodeId>,
    /// One way: this member is being drained and never activated again under this claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retiring: bool,
    /// What this release does not know, kept as it was.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl HostPathClaim {
    /// A new claim on `paths` (metadata and data together).
    pub fn new<S: AsRef<str>>(
        cluster: &ClusterId,
        pool: &PoolName,
        paths: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut claim = Self {
            version: 1,
            cluster_namespace: cluster.namespace.clone(),
            cluster_name: cluster.name.clone(),
            node_local_pool_name: pool.to_string(),
            host_paths: Vec::new(),
            garage_node_id: None,
            retiring: false,
            unknown: Map::new(),
        };
        claim.add_paths(paths);
        claim
    }

    /// Reads the annotation's value.
    pub fn parse(value: &str) -> Result<Self, ClaimError> {
        let claim: Self = serde_json::from_str(value).map_err(|e| ClaimError::Shape(e.to_string()))?;
        if claim.version != 1 {
            return Err(ClaimError::Version(claim.version));
        }
        if claim.host_paths.is_empty() {
            return Err(ClaimError::NoPath);
        }
        Ok(claim)
    }

    /// The annotation's value: compact JSON in the one order of keys, unknown ones last.
    pub fn to_annotation(&self) -> String {
        // A struct of strings has no way to fail; an empty value would be read as damaged, never as another claim.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The claimed directories: cleaned, sorted, unique.
    pub fn host_paths(&self) -> &[String] {
        &self.host_paths
    }

    /// Adds directories; none ever goes.
    pub fn add_paths<S: AsRef<str>>(&mut self, paths: impl IntoIterator<Item = S>) {
        self.host_paths.extend(paths.into_iter().map(|p| clean_path(p.as_ref())));
        self.host_paths.sort_unstable();
        self.host_paths.dedup();
    }

    /// Whether the claim is this pool's of this GarageCluster, by name (a re-created one is the same owner).
    pub fn belongs_to(&self, cluster: &ClusterId, pool: &PoolName) -> bool {
        self.cluster_namespace == cluster.namespace
            && self.cluster_name == cluster.name
            && self.node_local_pool_name == pool.as_str()
    }

    /// The first claimed directory that is, contains or lies in one of `paths`.
    pub fn overlap<'a, S: AsRef<str>>(&'a self, paths: &[S]) -> Option<&'a str> {
        let within = |outer: &str, inner: &str| {
            outer == inner
                || outer == "/"
                || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
        };
        self.host_paths.iter().map(String::as_str).find(|&mine| {
            let mine_clean = clean_path(mine);
            paths.iter().any(|p| {
                let other = clean_path(p.as_ref());
                within(&mine_clean, &other) || within(&other, &mine_clean)
            })
        })
    }
}

impl std::str::FromStr for HostPathClaim {
    type Err = ClaimError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::parse(s)
    }
}

/// The shortest form of a path by its text alone: no `//`, no `.`, no `..` that can be resolved, no trailing `/`.
pub fn clean_path(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match parts.last() {
                Some(&last) if last != ".." => {
                    parts.pop();
                }
                _ if rooted => {}
                _ => parts.push(".."),
            },
            _ => parts.push(part),
        }
    }
    match (rooted, parts.is_empty()) {
        (true, _) => format!("/{}", parts.join("/")),
        (false, true) => ".".to_owned(),
        (false, false) => parts.join("/"),
    }
}

impl ClaimError {
    /// The message with the Node and the annotation that it is about.
    pub fn on(&self, node: &str, key: &str) -> String {
        format!("{self}: annotation {key} of Node {}", Quoted(node))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn cluster() -> ClusterId {
        ClusterId::new("objects", "site-a", "2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c")
    }
    fn pool() -> PoolName {
        "fast".parse().unwrap()
    }

    #[test]
    fn a_claim_is_compact_json_in_one_order() {
        let old = "0f".repeat(32);
        let mut claim = HostPathClaim::new(
            &cluster(),
            &pool(),
            ["/srv/garage/fast/meta/", "/srv/garage//fast/data", "/srv/garage/fast/meta"],
        );
        claim.garage_node_id = Some(old.parse().unwrap());
        let text = format!(
            r#"{{"version":1,"clusterNamespace":"objects","clusterName":"site-a","nodeLocalPoolName":"fast","hostPaths":["/srv/garage/fast/data","/srv/garage/fast/meta"],"garageNodeId":"{old}"}}"#
        );
        assert_eq!(claim.to_annotation(), text);
        assert_eq!(HostPathClaim::parse(&text).unwrap(), claim);
    }

    #[test]
    fn rewriting_keeps_retiring_and_what_is_not_known() {
        let text = r#"{"version":1,"clusterNamespace":"objects","clusterName":"site-a","nodeLocalPoolName":"fast","hostPaths":["/a"],"retiring":true,"laterField":{"x":[1]}}"#;
        let mut claim = HostPathClaim::parse(text).unwrap();
        assert!(claim.retiring && claim.belongs_to(&cluster(), &pool()));
        claim.add_paths(["/b"]);
        assert_eq!(claim.to_annotation(), text.replace(r#"["/a"]"#, r#"["/a","/b"]"#));
    }

    #[test]
    fn an_empty_identity_is_no_identity() {
        let text = r#"{"version":1,"clusterNamespace":"n","clusterName":"c","nodeLocalPoolName":"p","hostPaths":["/a"],"garageNodeId":""}"#;
        assert_eq!(HostPathClaim::parse(text).unwrap().garage_node_id, None);
    }

    #[test]
    fn a_damaged_claim_is_refused_by_name() {
        assert!(matches!(HostPathClaim::parse("{"), Err(ClaimError::Shape(_))));
        assert!(matches!(HostPathClaim::parse("[]"), Err(ClaimError::Shape(_))));
        let v2 = r#"{"version":2,"clusterNamespace":"n","clusterName":"c","nodeLocalPoolName":"p","hostPaths":["/a"]}"#;
        assert_eq!(HostPathClaim::parse(v2), Err(ClaimError::Version(2)));
        let none = r#"{"version":1,"clusterNamespace":"n","clusterName":"c","nodeLocalPoolName":"p","hostPaths":[]}"#;
        assert_eq!(HostPathClaim::parse(none), Err(ClaimError::NoPath));
    }

    #[test]
    fn overlap_is_judged_by_whole_path_segments() {
        let claim = HostPathClaim::new(&cluster(), &pool(), ["/srv/garage/data"]);
        assert_eq!(claim.overlap(&["/srv/garage"]), Some("/srv/garage/data"));
        assert_eq!(claim.overlap(&["/srv/garage/data/x/"]), Some("/srv/garage/data"));
        assert_eq!(claim.overlap(&["/"]), Some("/srv/garage/data"));
        assert_eq!(claim.overlap(&["/srv/garage/data2", "/srv/gar"]), None);
    }

    #[test]
    fn paths_are_cleaned_by_their_text() {
        for (given, clean) in [
            ("/a//b/./c/", "/a/b/c"),
            ("/a/../..", "/"),
            ("a/../../b", "../b"),
            ("", "."),
            ("/", "/"),
            ("./x", "x"),
        ] {
            assert_eq!(clean_path(given), clean, "{given}");
        }
    }
}
