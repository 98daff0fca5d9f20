//! The admission rules on files, before anything is applied: `garage-holdfast lint`.
//!
//! What a file alone can decide is decided by [`crate::validate`], the very rules of the webhook. What needs the
//! cluster's state is asked of a [`Live`]; [`Offline`] knows nothing, and then the report says what stayed unchecked.

mod cluster;
mod node;
mod report;
mod schema;
#[cfg(test)]
mod tests;

pub use report::{Finding, Report, Severity, Unchecked};

use crate::ids::Quoted;
use crate::manifest::{Node, Position, objects, read};
use crate::names::{GROUP, PREFIX};
use crate::validate::{Fact, Member};

/// State of a cluster that rules ask for. Every answer may be [`Fact::Unknown`].
pub trait Live {
    /// JSON of the stored GarageCluster; `None` if there is none.
    fn cluster(&self, namespace: &str, name: &str) -> Fact<Option<String>>;
    /// JSON of the stored GarageNode; `None` if there is none.
    fn node(&self, namespace: &str, name: &str) -> Fact<Option<String>>;
    /// Pool members of a GarageCluster.
    fn members(&self, namespace: &str, cluster: &str) -> Fact<Vec<Member>>;
}

/// No cluster at hand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offline;

impl Live for Offline {
    fn cluster(&self, _: &str, _: &str) -> Fact<Option<String>> {
        Fact::default()
    }
    fn node(&self, _: &str, _: &str) -> Fact<Option<String>> {
        Fact::default()
    }
    fn members(&self, _: &str, _: &str) -> Fact<Vec<Member>> {
        Fact::default()
    }
}

/// Judges every GarageCluster and GarageNode of a YAML or JSON stream. `file` is only shown.
pub fn lint(file: &str, text: &str, live: &dyn Live) -> Report {
    let mut report = Report::default();
    for document in read(text).1 {
        report.documents += 1;
        match document.content {
            Ok(root) => {
                for object in objects(&root) {
                    Subject { file, object, live, report: &mut report }.judge();
                }
            }
            Err(error) => report.findings.push(Finding {
                file: file.to_owned(),
                at: error.at,
                severity: Severity::Error,
                rule: "syntax".into(),
                object: String::new(),
                message: error.message,
            }),
        }
    }
    report.findings.sort_by_key(|f| f.at);
    report.unchecked.sort_by_key(|u| u.at);
    report
}

/// One object under judgement.
struct Subject<'s> {
    file: &'s str,
    object: &'s Node,
    live: &'s dyn Live,
    report: &'s mut Report,
}

impl<'s> Subject<'s> {
    fn text(&self, path: &[&str]) -> &'s str {
        self.object.get(path).and_then(Node::as_str).unwrap_or_default()
    }

    fn namespace(&self) -> &'s str {
        self.text(&["metadata", "namespace"])
    }

    fn name(&self) -> &'s str {
        self.text(&["metadata", "name"])
    }

    /// How messages name it.
    fn title(&self) -> String {
        let (kind, namespace, name) = (self.text(&["kind"]), self.namespace(), self.name());
        let name = if name.is_empty() { "without a name" } else { name };
        if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
    }

    fn add(&mut self, at: Position, severity: Severity, rule: &str, message: impl Into<String>) {
        let (file, object) = (self.file.to_owned(), self.title());
        let finding = Finding { file, at, severity, rule: rule.to_owned(), object, message: message.into() };
        if !self.report.findings.contains(&finding) {
            self.report.findings.push(finding);
        }
    }

    fn error(&mut self, at: Position, rule: &str, message: impl Into<String>) {
        self.add(at, Severity::Error, rule, message);
    }

    /// The object is not what the rules read; said only when the schema did not say where already.
    fn misshapen(&mut self, error: &impl std::fmt::Display) {
        let object = self.title();
        let said = |f: &Finding| f.rule == "schema" && f.file == self.file && f.object == object;
        if !self.report.findings.iter().any(said) {
            self.error(self.object.at, "shape", error.to_string());
        }
    }

    fn unchecked(&mut self, at: Position, rules: &str, message: impl Into<String>) {
        let (file, object) = (self.file.to_owned(), self.title());
        self.report.unchecked.push(Unchecked {
            file,
            at,
            rules: rules.to_owned(),
            object,
            message: message.into(),
        });
    }

    /// Where an annotation's key stands; the object's own place if it is not there.
    fn annotation_at(&self, key: &str) -> Position {
        self.object
            .get(&["metadata", "annotations"])
            .and_then(|a| a.member(key))
            .map_or(self.object.at, |(name, _)| name.at)
    }

    fn has_annotation(&self, key: &str) -> bool {
        self.object.get(&["metadata", "annotations", key]).is_some()
    }

    fn judge(mut self) {
        let api_version = self.text(&["apiVersion"]);
        let Some(version) = api_version.strip_prefix(GROUP).and_then(|v| v.strip_prefix('/')) else { return };
        self.report.objects += 1;
        let at = self.object.get(&["apiVersion"]).map_or(self.object.at, |n| n.at);
        let known: &[&str] = match self.text(&["kind"]) {
            "GarageCluster" => &["v1beta1", "v1beta2"],
            "GarageNode" => &["v1beta1"],
            // Another operator of this group may have kinds of its own.
            kind => {
                let mut ours = ["GarageCluster", "GarageNode"].into_iter();
                if let Some(meant) = ours.find(|known| strsim::levenshtein(known, kind) <= 2) {
                    let message = format!("{} is not known; {meant} may be meant", Quoted(kind));
                    self.add(at, Severity::Warning, "unknown kind", message);
                }
                return;
            }
        };
        if !known.contains(&version) {
            let message = format!(
                "version {} is not served for this kind; write {}",
                Quoted(version),
                known.join(" or ")
            );
            self.error(at, "version", message);
            return;
        }
        if !self.annotations_are_strings() {
            return;
        }
        let kind = self.text(&["kind"]);
        schema::judge(&mut self, kind, version);
        if kind == "GarageCluster" {
            self.misspelled(crate::names::annotation::cluster::ALL, &cluster::REQUESTS);
            cluster::judge(&mut self);
        } else {
            self.misspelled(crate::names::annotation::node::ALL, crate::names::annotation::node::ALL);
            node::judge(&mut self);
        }
    }

    /// The API server refuses an object with an annotation that is no string; unquoted words are most often why.
    fn annotations_are_strings(&mut self) -> bool {
        let Some(annotations) = self.object.get(&["metadata", "annotations"]) else { return true };
        let mut all = true;
        for (name, value) in annotations.members() {
            if value.as_str().is_none() && value.type_name() != "null" {
                all = false;
                let message = format!(
                    "{} is {}, and an annotation is a string; put its value in quotes",
                    name.text,
                    value.type_name()
                );
                self.error(value.at, "V1", message);
            }
        }
        all
    }

    /// A key that is one or two letters off one of ours does nothing, silently.
    fn misspelled(&mut self, known: &[&str], ours: &[&'static str]) {
        let Some(annotations) = self.object.get(&["metadata", "annotations"]) else { return };
        for (name, _) in annotations.members() {
            let suffix = |key: &'static str| key.strip_prefix(PREFIX).unwrap_or(key);
            let Some((prefix, written)) = name.text.rsplit_once('/') else { continue };
            let group = prefix == GROUP || strsim::levenshtein(prefix, GROUP) <= 2;
            if !group || known.contains(&name.text.as_str()) {
                continue;
            }
            if let Some(meant) = ours.iter().find(|key| strsim::levenshtein(suffix(key), written) <= 2) {
                let message = format!("{} is not known; {meant} may be meant", Quoted(&name.text));
                self.add(name.at, Severity::Warning, "unknown annotation", message);
            }
        }
    }
}
