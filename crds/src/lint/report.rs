//! What a lint found, for people and for machines.

use std::fmt::Write as _;

use serde::Serialize;

use crate::manifest::Position;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It would be refused, or does not do what it says.
    Error,
    /// It is allowed and deserves notice.
    Warning,
}

/// Something wrong at a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file as it was named.
    pub file: String,
    /// Line and column of the annotation or field.
    #[serde(flatten)]
    pub at: Position,
    /// How much it matters.
    pub severity: Severity,
    /// `V1` to `V12` (`behaviour.md` 4), or what kind of check it was.
    pub rule: String,
    /// `Kind namespace/name`; empty for a document that cannot be read.
    pub object: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// Something that only the cluster's state can tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unchecked {
    /// The file as it was named.
    pub file: String,
    /// Line and column of the annotation.
    #[serde(flatten)]
    pub at: Position,
    /// Rules that were not judged.
    pub rules: String,
    /// `Kind namespace/name`.
    pub object: String,
    /// What is not known.
    pub message: String,
}

/// The outcome for one file or more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Documents read, or tried.
    pub documents: usize,
    /// Objects of our group among them.
    pub objects: usize,
    /// In the order of the files.
    pub findings: Vec<Finding>,
    /// What stayed unchecked.
    pub unchecked: Vec<Unchecked>,
}

impl Report {
    /// Adds the report of another file.
    pub fn merge(&mut self, other: Self) {
        self.documents += other.documents;
        self.objects += other.objects;
        self.findings.extend(other.findings);
        self.unchecked.extend(other.unchecked);
    }

    /// Whether anything was found that would be refused.
    pub fn failed(&self) -> bool {
        self.errors() > 0
    }

    fn errors(&self) -> usize {
        self.findings.iter().filter(|f| f.severity == Severity::Error).count()
    }

    /// One line a finding, `file:line:column: …` as editors understand it, and a summary.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for f in &self.findings {
            let severity = match f.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            let object = if f.object.is_empty() { String::new() } else { format!("{}: ", f.object) };
            // A refusal begins with its rule.
            let rule = if f.message.starts_with(&f.rule) { String::new() } else { format!("{}: ", f.rule) };
            let _ = writeln!(out, "{}:{}: {severity}: {object}{rule}{}", f.file, f.at, f.message);
        }
        for u in &self.unchecked {
            let _ = writeln!(
                out,
                "{}:{}: unchecked: {}: {} needs live state: {}",
                u.file, u.at, u.object, u.rules, u.message
            );
        }
        let _ = writeln!(
            out,
            "{} objects of garage.rajsingh.info in {} documents: {} errors, {} warnings, {} unchecked",
            self.objects,
            self.documents,
            self.errors(),
            self.findings.len() - self.errors(),
            self.unchecked.len(),
        );
        out
    }

    /// The same as pretty JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
