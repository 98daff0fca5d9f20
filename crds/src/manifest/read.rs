//! YAML events to a tree with places. Scalars mean what they mean to kubectl (YAML 1.1 words such as `yes` included).

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Options, Parser, ScalarStyle, Span};
use serde_json::value::RawValue;
use serde_json::{Number, Value};

use super::{Data, Document, Format, Name, Node, Position, SyntaxError};

/// Deeper documents are refused. Manifests are a tenth of it; trees of this depth are safe to walk.
const MAX_NESTING: usize = 100;

/// Nodes of one stream, those that aliases repeat included: what a few kilobytes of aliases could become is not.
const MAX_NODES: usize = 1_000_000;

/// Reads a stream. JSON is recognized by its first character.
pub fn read(text: &str) -> (Format, Vec<Document<'_>>) {
    let start = text.trim_start_matches('\u{feff}').trim_start();
    if start.starts_with(['{', '['])
        && let Some(documents) = read_json(text)
    {
        return (Format::Json, documents);
    }
    (Format::Yaml, read_yaml(text))
}

/// Reads JSON values one after the other. `None` if it is not JSON: YAML flow style begins the same way.
fn read_json(text: &str) -> Option<Vec<Document<'_>>> {
    let mut documents = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let mut from = 0;
    while let Some(value) = stream.next() {
        value.ok()?;
        let slice = text.get(from..stream.byte_offset())?;
        let start = from + (slice.len() - slice.trim_start().len());
        let slice = slice.trim();
        from = stream.byte_offset();
        let before = text.get(..start)?;
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
        // JSON is YAML, and the YAML reader knows places.
        let content = read_yaml(slice).pop().map_or_else(
            || {
                Err(SyntaxError {
                    at: Position { line: line + 1, column: column + 1 },
                    message: "empty".into(),
                })
            },
            |document| document.content,
        );
        let content = content.map(|node| moved(node, line, column)).map_err(|mut e| {
            e.at = move_position(e.at, line, column);
            e
        });
        documents.push(Document { text: slice, content });
    }
    Some(documents)
}

fn move_position(at: Position, line: usize, column: usize) -> Position {
    Position { line: at.line + line, column: if at.line == 1 { at.column + column } else { at.column } }
}

fn moved(mut node: Node, line: usize, column: usize) -> Node {
    node.at = move_position(node.at, line, column);
    node.data = match node.data {
        Data::List(elements) => Data::List(elements.into_iter().map(|e| moved(e, line, column)).collect()),
        Data::Map(members) => Data::Map(
            members
                .into_iter()
                .map(|(name, node)| {
                    (Name { at: move_position(name.at, line, column), ..name }, moved(node, line, column))
                })
                .collect(),
        ),
        scalar @ Data::Scalar(_) => scalar,
    };
    node
}

/// Reads a YAML stream. Documents without content are left out.
pub fn read_yaml(text: &str) -> Vec<Document<'_>> {
    let mut options = Options::default();
    options.emit_comments = false;
    options.flow_nesting_limit = MAX_NESTING;
    options.block_nesting_limit = MAX_NESTING;
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut documents = Vec::new();
    let mut nodes = 0;
    let mut builder = Builder::new(&mut nodes);
    let (mut start, mut end) = (0, 0);
    loop {
        match parser.next() {
            None => break,
            Some(Ok((Event::DocumentStart(explicit, _), span))) => {
                // Comments before the first document belong to it.
                start = if explicit { span.end.byte_offset().unwrap_or(end) } else { end };
                builder = Builder::new(&mut nodes);
            }
            Some(Ok((Event::DocumentEnd, span))) => {
                end = span.start.byte_offset().unwrap_or(text.len());
                if let Some(root) = builder.root.take()
                    && !is_empty(&root)
                {
                    let text = text.get(start..end).unwrap_or_default();
                    documents.push(Document { text, content: Ok(root) });
                }
            }
            Some(Ok((event, span))) => {
                if let Err(error) = builder.take(event, span) {
                    let text = text.get(start..).unwrap_or_default();
                    documents.push(Document { text, content: Err(error) });
                    match parser.proceed_next_document() {
                        Ok(true) => {}
                        _ => break,
                    }
                }
            }
            Some(Err(error)) => {
                let marker = error.marker();
                let at = Position { line: marker.line().max(1), column: marker.col() + 1 };
                let text = text.get(start..).unwrap_or_default();
                documents.push(Document { text, content: Err(SyntaxError { at, message: error.info() }) });
                match parser.proceed_next_document() {
                    Ok(true) => {}
                    _ => break,
                }
            }
        }
    }
    documents
}

fn is_empty(node: &Node) -> bool {
    matches!(&node.data, Data::Scalar(Value::Null))
}

/// An open list or mapping.
enum Open {
    List(Position, usize, Vec<Node>),
    /// With the key whose value comes next and whether it merges, and the keys so far.
    Map(Position, usize, Vec<(Name, Node)>, Option<(Name, bool)>, HashSet<String>),
}

struct Builder<'n> {
    nodes: &'n mut usize,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    root: Option<Node>,
}

impl<'n> Builder<'n> {
    fn new(nodes: &'n mut usize) -> Self {
        Self { nodes, open: Vec::new(), anchors: HashMap::new(), root: None }
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), SyntaxError> {
        let at = Position { line: span.start.line().max(1), column: span.start.col() + 1 };
        let fail = |message: &str| Err(SyntaxError { at, message: message.to_owned() });
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.map(|t| t.to_string());
                let value = match (style, tag.as_deref()) {
                    (ScalarStyle::Plain, None) => plain(&text),
                    (_, Some(tag)) if !tag.ends_with("str") && tag != "!" => {
                        return fail("a tag other than !!str has no meaning in a manifest");
                    }
                    _ => Value::String(text.clone().into_owned()),
                };
                if let Some(Open::Map(_, _, _, pending @ None, _)) = self.open.last_mut() {
                    // A key is its text, also where a value of that text would be something else.
                    let merges = style == ScalarStyle::Plain && text == "<<";
                    if anchor != 0 {
                        self.anchors.insert(anchor, Node { at, data: Data::Scalar(value) });
                    }
                    *pending = Some((Name { text: text.into_owned(), at }, merges));
                    return Ok(());
                }
                self.add(Node { at, data: Data::Scalar(value) }, anchor)
            }
            Event::SequenceStart(_, anchor, None) => {
                self.open.push(Open::List(at, anchor, Vec::new()));
                Ok(())
            }
            Event::MappingStart(_, anchor, None) => {
                self.open.push(Open::Map(at, anchor, Vec::new(), None, HashSet::new()));
                Ok(())
            }
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                fail("a tag on a list or mapping has no meaning in a manifest")
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List(at, anchor, elements)) => {
                    self.add(Node { at, data: Data::List(elements) }, anchor)
                }
                Some(Open::Map(at, anchor, members, ..)) => {
                    self.add(Node { at, data: Data::Map(members) }, anchor)
                }
                None => fail("an end without a beginning"),
            },
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id) else { return fail("an alias inside its own anchor") };
                let (size, depth) = measure(node);
                *self.nodes += size;
                if *self.nodes > MAX_NODES || self.open.len() + depth > MAX_NESTING {
                    return fail("the aliases repeat too much");
                }
                let node = node.clone();
                self.add(node, 0)
            }
            Event::UnresolvedAlias(_) => fail("an alias without its anchor"),
            _ => Ok(()),
        }
    }

    fn add(&mut self, node: Node, anchor: usize) -> Result<(), SyntaxError> {
        *self.nodes += 1;
        if *self.nodes > MAX_NODES {
            return Err(SyntaxError { at: node.at, message: "too large".into() });
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List(_, _, elements)) => elements.push(node),
            Some(Open::Map(_, _, members, pending, seen)) => match pending.take() {
                None => *pending = Some((name(node)?, false)),
                Some((_, true)) => merge(members, node)?,
                Some((name, false)) => {
                    if !seen.insert(name.text.clone()) {
                        return Err(SyntaxError {
                            at: name.at,
                            message: format!("the key {} is given twice", crate::ids::Quoted(&name.text)),
                        });
                    }
                    // What a merge brought gives way.
                    members.retain(|(n, _)| n.text != name.text);
                    members.push((name, node));
                }
            },
        }
        Ok(())
    }
}

/// Nodes in it and its depth.
fn measure(node: &Node) -> (usize, usize) {
    let children: Vec<&Node> = match &node.data {
        Data::Scalar(_) => return (1, 1),
        Data::List(elements) => elements.iter().collect(),
        Data::Map(members) => members.iter().map(|(_, n)| n).collect(),
    };
    children.into_iter().map(measure).fold((1, 1), |(size, depth), (s, d)| (size + s, depth.max(d + 1)))
}

/// A key that came by an alias.
fn name(node: Node) -> Result<Name, SyntaxError> {
    match node.data {
        Data::Scalar(Value::String(text)) => Ok(Name { text, at: node.at }),
        _ => Err(SyntaxError { at: node.at, message: "a key has to be a string".into() }),
    }
}

fn merge(members: &mut Vec<(Name, Node)>, node: Node) -> Result<(), SyntaxError> {
    let sources = match node.data {
        Data::Map(source) => vec![source],
        Data::List(elements) if elements.iter().all(|e| matches!(e.data, Data::Map(_))) => {
            elements.iter().map(|e| e.members().to_vec()).collect()
        }
        _ => return Err(SyntaxError { at: node.at, message: "<< needs a mapping".into() }),
    };
    for (name, value) in sources.into_iter().flatten() {
        if members.iter().all(|(n, _)| n.text != name.text) {
            members.push((name, value));
        }
    }
    Ok(())
}

/// What a plain scalar is to kubectl.
fn plain(text: &str) -> Value {
    if is_null(text) {
        return Value::Null;
    }
    if let Some(value) = boolean(text) {
        return Value::Bool(value);
    }
    number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

pub(super) fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "y" | "Y" | "on" | "On" | "ON" => Some(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "n" | "N" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

fn number(text: &str) -> Option<Number> {
    let digits = text.replace('_', "");
    let (negative, rest) = match digits.strip_prefix(['-', '+']) {
        Some(rest) => (digits.starts_with('-'), rest),
        None => (false, digits.as_str()),
    };
    if !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') || text.starts_with('_') {
        return None;
    }
    let radix = [("0x", 16), ("0o", 8), ("0b", 2)];
    let (radix, value) = radix
        .into_iter()
        .find_map(|(prefix, radix)| rest.strip_prefix(prefix).map(|v| (radix, v)))
        .or_else(|| {
            rest.strip_prefix('0')
                .filter(|v| v.bytes().all(|b| b.is_ascii_digit()) && !v.is_empty())
                .map(|v| (8, v))
        })
        .unwrap_or((10, rest));
    if let Ok(value) = u64::from_str_radix(value, radix) {
        if !negative {
            return Some(value.into());
        }
        if let Some(value) = 0i64.checked_sub_unsigned(value) {
            return Some(value.into());
        }
    }
    let shape = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    if radix != 10 || !rest.chars().all(shape) {
        return None;
    }
    digits.parse::<f64>().ok().and_then(Number::from_f64)
}
