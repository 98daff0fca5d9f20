//! Admission cases, one a file under `fixtures/admission`: the same files are judged offline by the rules alone
//! (`crds/tests/admission.rs` includes this module), and sent to a real API server in front of the real webhooks.
//!
//! A case has a base object (`base/<name>.yaml`), `old`, a JSON merge patch that makes the stored object of it, and
//! `new`, a JSON merge patch that makes the requested one of that. On `create` there is no stored object, and both
//! patches make the new one. The text `$PAD(n)` in a value stands for `n` letters.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

/// What is done to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// POST.
    Create,
    /// PUT of the whole object.
    Update,
    /// Server-side apply of the changed fields alone.
    Ssa,
    /// PUT with `dryRun=All`.
    DryRun,
    /// A merge patch of the `scale` subresource.
    Scale,
    /// DELETE.
    Delete,
    /// PUT of an object that is being deleted.
    FinalizerRemoval,
    /// PUT of the `status` subresource.
    Status,
}

/// What must come of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Whether it passes.
    pub allowed: bool,
    /// The rule that refuses it.
    pub rule: Option<String>,
    /// A part of the refusal's message.
    pub message: Option<String>,
    /// A part of a warning; empty: there is none.
    pub warning: Option<String>,
    /// The refusal says that it could not be judged.
    #[serde(default)]
    pub undecided: bool,
}

/// One case.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name of its file.
    #[serde(skip)]
    pub name: String,
    /// What it shows, in words.
    pub description: String,
    /// The base object.
    pub base: String,
    /// The version that the client addresses.
    pub version: String,
    /// What is done.
    pub operation: Act,
    /// Merge patch from the base to the stored object.
    #[serde(default)]
    pub old: Value,
    /// Merge patch from the stored object to the requested one.
    #[serde(default)]
    pub new: Value,
    /// Merge patches to the three GarageNodes, by Kubernetes Node; null: there is none.
    #[serde(default)]
    pub nodes: serde_json::Map<String, Value>,
    /// Of a GarageNode: merge patch to its GarageCluster; null: there is none.
    #[serde(default = "no_change")]
    pub parent: Value,
    /// Facts that cannot be had (`members`, `parent`); such a case is judged offline only.
    #[serde(default)]
    pub unknown: Vec<String>,
    /// Only true of the version that the client wrote, not of its converted view.
    #[serde(default)]
    pub native: bool,
    /// What must come of it.
    pub expect: Expect,
}

/// A merge patch that changes nothing; null would say that there is no object.
fn no_change() -> Value {
    json!({})
}

/// Why a case cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// Its file.
    #[error("{path}: {reason}")]
    File {
        /// Which.
        path: String,
        /// Why.
        reason: String,
    },
}

/// The folder of the cases; the crate beside this one that judges them offline includes this module, too.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/admission")
}

fn read<T: serde::de::DeserializeOwned>(path: &std::path::Path) -> Result<T, CaseError> {
    let fail = |reason: String| CaseError::File { path: path.display().to_string(), reason };
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    serde_norway::from_str(&text).map_err(|e| fail(e.to_string()))
}

/// All cases, sorted by name.
///
/// # Errors
/// A file cannot be read or has another shape.
pub fn load() -> Result<Vec<Case>, CaseError> {
    let fail =
        |e: std::io::Error| CaseError::File { path: folder().display().to_string(), reason: e.to_string() };
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder()).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.extension().is_some_and(|e| e == "yaml") {
            let mut case: Case = read(&path)?;
            case.name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            cases.push(case);
        }
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(cases)
}

fn base(name: &str) -> Result<Value, CaseError> {
    read(&folder().join("base").join(format!("{name}.yaml")))
}

/// Replaces `$PAD(n)` by `n` letters, everywhere.
fn pad(value: &mut Value) {
    match value {
        Value::String(text) => {
            let number =
                text.strip_prefix("$PAD(").and_then(|t| t.strip_suffix(')')).and_then(|n| n.parse().ok());
            if let Some(n) = number {
                *text = "x".repeat(n);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(pad),
        Value::Object(fields) => fields.values_mut().for_each(pad),
        _ => {}
    }
}

fn patched(mut object: Value, patch: &Value) -> Value {
    if !patch.is_null() {
        let mut patch = patch.clone();
        pad(&mut patch);
        json_patch::merge(&mut object, &patch);
    }
    object
}

impl Case {
    /// Whether it is about a GarageNode, else about a GarageCluster.
    pub fn is_node(&self) -> bool {
        self.base == "node"
    }

    /// The stored object; none on create.
    ///
    /// # Errors
    /// The base cannot be read.
    pub fn old_object(&self) -> Result<Option<Value>, CaseError> {
        let object = patched(base(&self.base)?, &self.old);
        Ok((self.operation != Act::Create).then_some(object))
    }

    /// The requested object.
    ///
    /// # Errors
    /// The base cannot be read.
    pub fn new_object(&self) -> Result<Value, CaseError> {
        Ok(patched(patched(base(&self.base)?, &self.old), &self.new))
    }

    /// The patch from the stored to the requested object, with its paddings.
    pub fn change(&self) -> Value {
        // Not merged into anything: a null says that something goes.
        let mut change = if self.new.is_null() { json!({}) } else { self.new.clone() };
        pad(&mut change);
        change
    }

    /// The GarageNodes that exist beside the object.
    ///
    /// # Errors
    /// A base cannot be read.
    pub fn garage_nodes(&self) -> Result<Vec<Value>, CaseError> {
        let mut nodes = Vec::new();
        for (kubernetes_node, name) in [("kn-1", "node"), ("kn-2", "node-2"), ("kn-3", "node-3")] {
            if self.is_node() && name == "node" {
                continue;
            }
            match self.nodes.get(kubernetes_node) {
                Some(Value::Null) => {}
                Some(patch) => nodes.push(patched(base(name)?, patch)),
                None => nodes.push(base(name)?),
            }
        }
        Ok(nodes)
    }

    /// A GarageNode's GarageCluster; none when there is none, or when the case is about a GarageCluster.
    ///
    /// # Errors
    /// The base cannot be read.
    pub fn parent_object(&self) -> Result<Option<Value>, CaseError> {
        if !self.is_node() || self.parent.is_null() {
            return Ok(None);
        }
        Ok(Some(patched(base("cluster")?, &self.parent)))
    }

    /// Whether a real API server can show it.
    pub fn is_offline_only(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// What is wrong with an outcome; `None` when it is as expected.
    pub fn differs(&self, outcome: &Outcome) -> Option<String> {
        let expect = &self.expect;
        let shown = || format!("got {outcome:?}");
        if outcome.allowed != expect.allowed {
            return Some(format!("expected allowed={}, {}", expect.allowed, shown()));
        }
        let has = |text: &str, part: &Option<String>| part.as_ref().is_none_or(|p| text.contains(p.as_str()));
        if !has(&outcome.message, &expect.message) {
            return Some(format!("expected a message with {:?}, {}", expect.message, shown()));
        }
        if outcome.rule != expect.rule {
            return Some(format!("expected rule {:?}, {}", expect.rule, shown()));
        }
        match expect.warning.as_deref() {
            Some("") if !outcome.warnings.is_empty() => Some(format!("expected no warning, {}", shown())),
            Some(part) if !part.is_empty() && !outcome.warnings.iter().any(|w| w.contains(part)) => {
                Some(format!("expected a warning with {part:?}, {}", shown()))
            }
            _ => None,
        }
    }
}

/// What came of a case.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Whether it passed.
    pub allowed: bool,
    /// The rule; a message of the product begins with it.
    pub rule: Option<String>,
    /// The message of the refusal.
    pub message: String,
    /// Warnings.
    pub warnings: Vec<String>,
}
