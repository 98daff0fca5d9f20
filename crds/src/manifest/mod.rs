//! Streams of Kubernetes manifests, YAML or JSON, as Kustomize and Helm write them: read with the place of every
//! key, written so that kubectl reads back the same values.

mod read;
mod write;

pub use read::{read, read_yaml};
pub use write::to_yaml;

use serde_json::Value;

/// A place in a file, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// How a stream is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Documents between `---` lines.
    Yaml,
    /// JSON values one after the other.
    Json,
}

/// A document that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {message}")]
pub struct SyntaxError {
    /// Where.
    pub at: Position,
    /// What is wrong.
    pub message: String,
}

/// One document of a stream.
#[derive(Debug, Clone)]
pub struct Document<'t> {
    /// Its own text, without `---`.
    pub text: &'t str,
    /// Its content; `Err` if it cannot be read, the documents after it still are.
    pub content: Result<Node, SyntaxError>,
}

/// A value and where it begins.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its first character.
    pub at: Position,
    /// The value.
    pub data: Data,
}

/// What a node is.
#[derive(Debug, Clone)]
pub enum Data {
    /// null, a boolean, a number or a string.
    Scalar(Value),
    /// A list.
    List(Vec<Node>),
    /// A mapping in the order of the file; of a key given twice the reader keeps an error instead.
    Map(Vec<(Name, Node)>),
}

/// A key of a mapping.
#[derive(Debug, Clone)]
pub struct Name {
    /// The key.
    pub text: String,
    /// Its first character.
    pub at: Position,
}

impl Node {
    /// The value under a path of keys.
    pub fn get(&self, path: &[&str]) -> Option<&Self> {
        let Some((first, rest)) = path.split_first() else { return Some(self) };
        self.member(first)?.1.get(rest)
    }

    /// A key of a mapping with its value.
    pub fn member(&self, key: &str) -> Option<(&Name, &Self)> {
        match &self.data {
            Data::Map(members) => {
                members.iter().find(|(name, _)| name.text == key).map(|(name, node)| (name, node))
            }
            _ => None,
        }
    }

    /// The members of a mapping; none of anything else.
    pub fn members(&self) -> &[(Name, Self)] {
        match &self.data {
            Data::Map(members) => members,
            _ => &[],
        }
    }

    /// The elements of a list; none of anything else.
    pub fn elements(&self) -> &[Self] {
        match &self.data {
            Data::List(elements) => elements,
            _ => &[],
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match &self.data {
            Data::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The value without its places.
    pub fn to_value(&self) -> Value {
        match &self.data {
            Data::Scalar(value) => value.clone(),
            Data::List(elements) => elements.iter().map(Self::to_value).collect(),
            Data::Map(members) => Value::Object(
                members.iter().map(|(name, node)| (name.text.clone(), node.to_value())).collect(),
            ),
        }
    }

    /// What it is, in words.
    pub fn type_name(&self) -> &'static str {
        match &self.data {
            Data::Scalar(Value::Null) => "null",
            Data::Scalar(Value::Bool(_)) => "a boolean",
            Data::Scalar(Value::Number(_)) => "a number",
            Data::Scalar(_) => "a string",
            Data::List(_) => "a list",
            Data::Map(_) => "a mapping",
        }
    }
}

/// The objects of a document: itself, or the items of a `List`.
pub fn objects(document: &Node) -> Vec<&Node> {
    let is_list = document.get(&["kind"]).and_then(Node::as_str).is_some_and(|kind| kind.ends_with("List"));
    match document.get(&["items"]) {
        Some(items) if is_list => items.elements().iter().flat_map(objects).collect(),
        _ => vec![document],
    }
}
