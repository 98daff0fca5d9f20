//! Conversion on text: members move as byte ranges, nothing below them is parsed into a tree.

use std::borrow::Cow;

use super::error::object_name;
use super::index::{Field, Index, Level, unescape};
use super::scan::{ScanError, Scanner};
use super::{ConvertError, Problem, Version};

mod down;
mod up;

/// Converts objects one after the other and keeps its memory between them.
#[derive(Debug, Default)]
pub struct Converter {
    index: Index,
}

/// A value in a stream that could not be converted.
#[derive(Debug)]
pub(super) enum Failed {
    /// The text itself is at fault; nothing after it can be read.
    Text(ScanError),
    /// The object is at fault; the scanner stands after it.
    Object(ConvertError),
}

impl Converter {
    /// Converts the JSON text of one object and appends the result to `out`; on an error `out` is as it was.
    pub fn convert(&mut self, object: &[u8], to: Version, out: &mut Vec<u8>) -> Result<(), ConvertError> {
        check_text(object).map_err(|p| ConvertError::new("the object", p))?;
        let start = out.len();
        let mut scanner = Scanner::new(object);
        scanner.space();
        match self.convert_next(&mut scanner, to, out) {
            Ok(()) if scanner.at_end() => Ok(()),
            Ok(()) => {
                out.truncate(start);
                let problem = ScanError { at: scanner.pos, what: "text after the object" }.into();
                Err(ConvertError::new(self.name(object), problem))
            }
            Err(Failed::Object(error)) => Err(error),
            Err(Failed::Text(error)) => Err(ConvertError::new("the object", error.into())),
        }
    }

    /// Converts the value at the scanner's position. On an error `out` is as it was.
    pub(super) fn convert_next(
        &mut self,
        scanner: &mut Scanner<'_>,
        to: Version,
        out: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let start = scanner.pos;
        if scanner.peek() != b'{' {
            scanner.value().map_err(Failed::Text)?;
            let found = type_name(scanner.slice(start, scanner.pos));
            return Err(Failed::Object(ConvertError::new("the object", Problem::NotAnObject(found))));
        }
        self.index.read(scanner).map_err(Failed::Text)?;
        let text = scanner.text();
        let length = out.len();
        self.convert_indexed(text, (start, scanner.pos), to, out).map_err(|problem| {
            out.truncate(length);
            Failed::Object(ConvertError::new(self.name(text), problem))
        })
    }

    fn convert_indexed(
        &self,
        text: &[u8],
        span: (usize, usize),
        to: Version,
        out: &mut Vec<u8>,
    ) -> Result<(), Problem> {
        let value = |name| self.index.top.get(name).map(|e| e.value(text)).unwrap_or_default();
        if value(Field::Kind) != br#""GarageCluster""# {
            let kind = string(value(Field::Kind)).unwrap_or_default();
            if kind != "GarageCluster" {
                return Err(Problem::UnknownKind(kind.into_owned()));
            }
        }
        let api_version = string(value(Field::ApiVersion)).unwrap_or_default();
        let from = Version::from_api_version(&api_version)
            .ok_or_else(|| Problem::UnknownVersion(api_version.clone().into_owned()))?;
        match (from, to) {
            (Version::V1beta1, Version::V1beta2) => up::up(&self.index, text, out),
            (Version::V1beta2, Version::V1beta1) => {
                down::down(&self.index, text, out);
                Ok(())
            }
            _ => {
                out.extend_from_slice(text.get(span.0..span.1).unwrap_or_default());
                Ok(())
            }
        }
    }

    fn name(&self, text: &[u8]) -> String {
        let field = |level: &Level, name| level.get(name).and_then(|e| string(e.value(text)));
        object_name(
            field(&self.index.top, Field::Kind).as_deref().unwrap_or_default(),
            field(&self.index.metadata, Field::Namespace).as_deref(),
            field(&self.index.metadata, Field::ObjectName).as_deref(),
        )
    }
}

/// What holds for a whole text before it is scanned: valid UTF-8, offsets fit.
pub(super) fn check_text(text: &[u8]) -> Result<(), Problem> {
    if let Err(error) = std::str::from_utf8(text) {
        let at = error.valid_up_to();
        return Err(ScanError { at, what: "not UTF-8" }.into());
    }
    if u32::try_from(text.len()).is_err() {
        return Err(ScanError { at: 0, what: "larger than 4 GiB" }.into());
    }
    Ok(())
}

/// The string that a JSON text holds; `None` if it holds something else.
pub(super) fn string(value: &[u8]) -> Option<Cow<'_, str>> {
    unescape(value.strip_prefix(b"\"")?.strip_suffix(b"\"")?)
}

/// What a valid JSON text holds, in words.
fn type_name(text: &[u8]) -> &'static str {
    match text.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// Whether a member is there and not null.
fn some(level: &Level, name: Field, text: &[u8]) -> bool {
    level.get(name).is_some_and(|e| e.value(text) != b"null")
}

/// Whether `replicas` is absent, null or a zero.
fn no_replicas(level: &Level, text: &[u8]) -> bool {
    level.get(Field::Replicas).is_none_or(|e| {
        let value = e.value(text);
        value == b"null"
            || value == b"0"
            || std::str::from_utf8(value).ok().and_then(|v| v.parse::<f64>().ok()) == Some(0.0)
    })
}

/// Writes the members of a JSON object.
pub(super) struct Members<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl<'o> Members<'o> {
    /// Begins an object.
    pub(super) fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    #[inline]
    fn comma(&mut self) {
        if self.first {
            self.first = false;
        } else {
            self.out.push(b',');
        }
    }

    /// A member as it stands in a text.
    #[inline]
    pub(super) fn member(&mut self, text: &[u8]) {
        self.comma();
        self.out.extend_from_slice(text);
    }

    #[inline]
    fn key(&mut self, key: &str) {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// A member with a key that needs no escapes.
    pub(super) fn pair(&mut self, key: &'static str, value: &[u8]) {
        self.key(key);
        self.out.extend_from_slice(value);
    }

    /// A member with any key.
    pub(super) fn pair_escaped(&mut self, key: &str, value: &[u8]) {
        self.comma();
        write_string(self.out, key.as_bytes());
        self.out.push(b':');
        self.out.extend_from_slice(value);
    }

    /// A member whose key and value need no escapes.
    pub(super) fn text(&mut self, key: &'static str, value: &'static str) {
        self.key(key);
        self.out.push(b'"');
        self.out.extend_from_slice(value.as_bytes());
        self.out.push(b'"');
    }

    /// A member that is an object.
    pub(super) fn open(&mut self, key: &'static str) -> Members<'_> {
        self.key(key);
        Members::begin(self.out)
    }

    /// Ends the object.
    pub(super) fn close(self) {
        self.out.push(b'}');
    }
}

/// What a byte becomes in a JSON string: 0 itself, `u` a `\\u` escape, anything else a backslash and that.
const ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = b'u';
        byte += 1;
    }
    table[b'\n' as usize] = b'n';
    table[b'\r' as usize] = b'r';
    table[b'\t' as usize] = b't';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};

/// Writes a text as a JSON string.
///
/// Byte by byte: what is written here is mostly JSON itself, where every few bytes one needs an escape, and runs
/// between them are too short for a copy to pay.
pub(super) fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    out.reserve(text.len() + text.len() / 4 + 2);
    out.push(b'"');
    for &byte in text {
        match ESCAPES[usize::from(byte)] {
            0 => out.push(byte),
            b'u' => {
                let digit = |n: u8| HEX[usize::from(n & 15)];
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte)]);
            }
            letter => out.extend_from_slice(&[b'\\', letter]),
        }
    }
    out.push(b'"');
}

/// A text as a JSON string.
fn quoted(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 8);
    write_string(&mut out, text);
    out
}

/// Values without a place in the target version, by JSON pointer. Usually empty.
#[derive(Default)]
pub(super) struct Carried<'a>(Vec<(Cow<'static, str>, Cow<'a, [u8]>)>);

impl<'a> Carried<'a> {
    pub(super) fn push(&mut self, pointer: impl Into<Cow<'static, str>>, value: impl Into<Cow<'a, [u8]>>) {
        self.0.push((pointer.into(), value.into()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The annotation's value as a JSON string.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut members = Members::begin(&mut text);
        for (pointer, value) in &self.0 {
            members.pair_escaped(pointer, value);
        }
        members.close();
        quoted(&text)
    }
}

/// The pointer to a flat field of spec.
fn flat_pointer(name: Field) -> String {
    let at = (name as usize).wrapping_sub(Field::Replicas as usize);
    format!("/spec/{}", super::fields::FLAT.get(at).unwrap_or(&""))
}

/// One of our annotations as it was found: nothing (absent, null or empty), a text, or damaged.
fn annotation_text<'a>(value: Option<&'a [u8]>, key: &'static str) -> Result<Option<Cow<'a, str>>, Problem> {
    match value {
        None | Some(b"null" | b"\"\"") => Ok(None),
        Some(value) if value.starts_with(b"\"") => string(value)
            .map(Some)
            .ok_or_else(|| Problem::DamagedAnnotation(key, "its value is not valid Unicode".into())),
        Some(_) => Err(Problem::DamagedAnnotation(key, "its value is not a string".into())),
    }
}

/// The members of the JSON object that [`super::CARRIED_ANNOTATION`] holds.
fn carried_members(text: &str) -> Result<Vec<(String, Vec<u8>)>, Problem> {
    let damaged = |why: String| Problem::DamagedAnnotation(super::CARRIED_ANNOTATION, why);
    let mut scanner = Scanner::new(text.as_bytes());
    scanner.space();
    if scanner.peek() != b'{' {
        scanner.value().map_err(|e| damaged(format!("not JSON: {e}")))?;
        return Err(damaged(format!(
            "expected the JSON text of an object, found {}",
            type_name(text.as_bytes())
        )));
    }
    let mut members: Vec<(String, Vec<u8>)> = Vec::new();
    let mut at = std::collections::HashMap::new();
    scanner
        .object(|s, key| {
            let start = s.pos;
            s.value()?;
            let value = s.slice(start, s.pos).to_vec();
            let name = unescape(key.raw)
                .ok_or(ScanError { at: key.start, what: "a key that is not valid Unicode" })?
                .into_owned();
            // Of a key given twice the last counts.
            let known: usize = *at.entry(name.clone()).or_insert(members.len());
            match members.get_mut(known) {
                Some((_, old)) => *old = value,
                None => members.push((name, value)),
            }
            Ok::<(), ScanError>(())
        })
        .map_err(|e| damaged(format!("not JSON: {e}")))?;
    if !scanner.at_end() {
        return Err(damaged("not JSON: text after the value".into()));
    }
    Ok(members)
}
