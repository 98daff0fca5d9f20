//! A single pass over JSON text that validates it and finds where its members lie, without building a tree.
//!
//! Iterative, so that depth costs no stack; bounded at the depth that the API server's own decoder accepts.

use wide::u8x16;

use super::error::Problem;

/// The nesting that Go's JSON decoder, and so the API server, accepts.
pub const MAX_DEPTH: usize = 10_000;

/// Why the text is not acceptable JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanError {
    /// Byte offset.
    pub at: usize,
    /// What was wrong there; the text itself is never quoted.
    pub what: &'static str,
}

impl From<ScanError> for Problem {
    fn from(error: ScanError) -> Self {
        if error.what == TOO_DEEP { Self::TooDeep(MAX_DEPTH) } else { Self::NotJson(error.to_string()) }
    }
}

impl std::fmt::Display for ScanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at)
    }
}

const TOO_DEEP: &str = "nested too deeply";

/// A member's key as it stands in the text.
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    /// Offset of its opening quote.
    pub start: usize,
    /// Between the quotes, escapes as they are.
    pub raw: &'a [u8],
    /// Whether it has escapes.
    pub escaped: bool,
}

/// Reads `text` from `pos` on.
#[derive(Debug)]
pub struct Scanner<'a> {
    text: &'a [u8],
    /// The next byte to be read.
    pub pos: usize,
    /// Open containers beyond 64 levels. Kept for its memory.
    deeper: Vec<u64>,
}

/// Marks quotes, backslashes and control characters: bit n is byte n.
#[inline]
fn specials(chunk: [u8; 16]) -> u32 {
    let bytes = u8x16::new(chunk);
    let control = bytes.min(u8x16::splat(0x1f)).simd_eq(bytes);
    let quote = bytes.simd_eq(u8x16::splat(b'"'));
    let backslash = bytes.simd_eq(u8x16::splat(b'\\'));
    (control | quote | backslash).to_bitmask()
}

/// The byte at `pos`; 0, which is nowhere valid, at the end.
#[inline]
fn byte(text: &[u8], pos: usize) -> u8 {
    text.get(pos).copied().unwrap_or(0)
}

#[inline]
fn skip_space(text: &[u8], mut pos: usize) -> usize {
    // Most often there is none, which one comparison tells.
    while byte(text, pos) <= b' ' && matches!(byte(text, pos), b' ' | b'\n' | b'\r' | b'\t') {
        pos += 1;
    }
    pos
}

/// Where the string ends whose first character is at `pos`, and whether it has escapes. `None`: malformed.
#[inline]
fn skip_string(text: &[u8], mut pos: usize) -> Option<(usize, bool)> {
    let mut escaped = false;
    loop {
        // Sixteen bytes at a time, which is most strings whole, up to the next byte that matters.
        while let Some(chunk) = text.get(pos..).and_then(|t| t.first_chunk::<16>()) {
            let marks = specials(*chunk);
            if marks == 0 {
                pos += 16;
            } else {
                pos += marks.trailing_zeros() as usize;
                break;
            }
        }
        match byte(text, pos) {
            b'"' => return Some((pos + 1, escaped)),
            b'\\' => {
                escaped = true;
                pos = skip_escape(text, pos + 1)?;
            }
            0..0x20 => return None,
            _ => pos += 1,
        }
    }
}

#[inline]
fn skip_escape(text: &[u8], pos: usize) -> Option<usize> {
    match byte(text, pos) {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(pos + 1),
        b'u' => {
            let digits = text.get(pos + 1..)?.first_chunk::<4>()?;
            digits.iter().all(u8::is_ascii_hexdigit).then_some(pos + 5)
        }
        _ => None,
    }
}

fn skip_digits(text: &[u8], pos: usize) -> Option<usize> {
    let mut end = pos;
    while byte(text, end).is_ascii_digit() {
        end += 1;
    }
    (end > pos).then_some(end)
}

fn skip_number(text: &[u8], mut pos: usize) -> Option<usize> {
    if byte(text, pos) == b'-' {
        pos += 1;
    }
    pos = if byte(text, pos) == b'0' { pos + 1 } else { skip_digits(text, pos)? };
    if byte(text, pos) == b'.' {
        pos = skip_digits(text, pos + 1)?;
    }
    if matches!(byte(text, pos), b'e' | b'E') {
        pos += 1;
        if matches!(byte(text, pos), b'+' | b'-') {
            pos += 1;
        }
        pos = skip_digits(text, pos)?;
    }
    Some(pos)
}

/// A key that begins at `pos` and its colon: where the value begins, where the key ended, whether it has escapes.
#[inline]
fn skip_key(text: &[u8], pos: usize) -> Option<(usize, usize, bool)> {
    if byte(text, pos) != b'"' {
        return None;
    }
    let (end, escaped) = skip_string(text, pos + 1)?;
    let colon = skip_space(text, end);
    (byte(text, colon) == b':').then(|| (skip_space(text, colon + 1), end, escaped))
}

/// The open containers around a value: 64 levels in a register, deeper ones behind it.
#[derive(Debug, Default)]
struct Open {
    /// Lowest bit: the innermost is an object.
    bits: u64,
    depth: usize,
}

impl Open {
    #[inline]
    fn push(&mut self, object: bool, deeper: &mut Vec<u64>) -> bool {
        if self.depth.is_multiple_of(64) && self.depth > 0 {
            if self.depth >= MAX_DEPTH {
                return false;
            }
            deeper.push(self.bits);
        }
        self.bits = self.bits << 1 | u64::from(object);
        self.depth += 1;
        true
    }

    #[inline]
    fn pop(&mut self, deeper: &mut Vec<u64>) {
        self.bits >>= 1;
        self.depth -= 1;
        if self.depth.is_multiple_of(64) && self.depth > 0 {
            self.bits = deeper.pop().unwrap_or(0);
        }
    }
}

impl<'a> Scanner<'a> {
    /// At the start of `text`, which must be UTF-8.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, pos: 0, deeper: Vec::new() }
    }

    /// The whole text.
    pub fn text(&self) -> &'a [u8] {
        self.text
    }

    /// The text between two offsets.
    pub fn slice(&self, start: usize, end: usize) -> &'a [u8] {
        self.text.get(start..end).unwrap_or_default()
    }

    fn fail<T>(&self, what: &'static str) -> Result<T, ScanError> {
        let what = if self.pos >= self.text.len() { "unexpected end" } else { what };
        Err(ScanError { at: self.pos, what })
    }

    /// The next byte; 0, which is nowhere valid, at the end.
    #[inline]
    pub fn peek(&self) -> u8 {
        byte(self.text, self.pos)
    }

    /// Skips white space.
    #[inline]
    pub fn space(&mut self) {
        self.pos = skip_space(self.text, self.pos);
    }

    /// Whether nothing but white space is left.
    pub fn at_end(&mut self) -> bool {
        self.space();
        self.pos >= self.text.len()
    }

    #[inline]
    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), ScanError> {
        if self.peek() == byte {
            self.pos += 1;
            return Ok(());
        }
        self.fail(what)
    }

    /// A key and its colon; then stands at the value.
    #[inline]
    fn key(&mut self) -> Result<Key<'a>, ScanError> {
        let start = skip_space(self.text, self.pos);
        let Some((value, end, escaped)) = skip_key(self.text, start) else {
            self.pos = start;
            return self.fail("malformed key");
        };
        self.pos = value;
        Ok(Key { start, raw: self.slice(start + 1, end - 1), escaped })
    }

    /// Skips one value, which begins here.
    pub fn value(&mut self) -> Result<(), ScanError> {
        let text = self.text;
        let mut pos = self.pos;
        let mut open = Open::default();
        self.deeper.clear();
        macro_rules! fail {
            ($at:expr, $what:expr) => {{
                self.pos = $at;
                return self.fail($what);
            }};
        }
        loop {
            let start = pos;
            match byte(text, pos) {
                b'"' => {
                    let Some((end, _)) = skip_string(text, pos + 1) else { fail!(start, "malformed string") };
                    pos = end;
                }
                first @ (b'{' | b'[') => {
                    let object = first == b'{';
                    pos = skip_space(text, pos + 1);
                    if byte(text, pos) == if object { b'}' } else { b']' } {
                        pos += 1;
                    } else {
                        if !open.push(object, &mut self.deeper) {
                            fail!(start, TOO_DEEP);
                        }
                        if object {
                            let Some((value, ..)) = skip_key(text, pos) else { fail!(pos, "malformed key") };
                            pos = value;
                        }
                        continue;
                    }
                }
                b't' | b'f' | b'n' => {
                    let rest = text.get(pos..).unwrap_or_default();
                    let words: [&[u8]; 3] = [b"true", b"false", b"null"];
                    let Some(word) = words.into_iter().find(|w| rest.starts_with(w)) else {
                        fail!(start, "not a value")
                    };
                    pos += word.len();
                }
                b'-' | b'0'..=b'9' => {
                    let Some(end) = skip_number(text, pos) else { fail!(start, "malformed number") };
                    pos = end;
                }
                _ => fail!(start, "not a value"),
            }
            // After a value: close what ends here, go on with what does not.
            loop {
                if open.depth == 0 {
                    self.pos = pos;
                    return Ok(());
                }
                let object = open.bits & 1 == 1;
                pos = skip_space(text, pos);
                match byte(text, pos) {
                    b',' => {
                        pos = skip_space(text, pos + 1);
                        if object {
                            let Some((value, ..)) = skip_key(text, pos) else { fail!(pos, "malformed key") };
                            pos = value;
                        }
                        break;
                    }
                    b'}' if object => pos += 1,
                    b']' if !object => pos += 1,
                    _ => fail!(pos, "expected ',' or the end of an object or array"),
                }
                open.pop(&mut self.deeper);
            }
        }
    }

    /// Reads an object that begins here: `member` is called at each value and must read it.
    #[inline]
    pub fn object<E: From<ScanError>>(
        &mut self,
        mut member: impl FnMut(&mut Self, Key<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.expect(b'{', "expected an object")?;
        self.space();
        if self.peek() == b'}' {
            self.pos += 1;
            return Ok(());
        }
        loop {
            let key = self.key()?;
            member(self, key)?;
            self.space();
            match self.peek() {
                b',' => self.pos += 1,
                b'}' => {
                    self.pos += 1;
                    return Ok(());
                }
                _ => return Ok(self.fail("expected ',' or the end of an object")?),
            }
        }
    }

    /// Reads an array that begins here: `element` is called at each value and must read it.
    pub fn array<E: From<ScanError>>(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.expect(b'[', "expected an array")?;
        self.space();
        if self.peek() == b']' {
            self.pos += 1;
            return Ok(());
        }
        loop {
            self.space();
            element(self)?;
            self.space();
            match self.peek() {
                b',' => self.pos += 1,
                b']' => {
                    self.pos += 1;
                    return Ok(());
                }
                _ => return Ok(self.fail("expected ',' or the end of an array")?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use proptest::prelude::*;

    use super::*;

    fn valid(text: &[u8]) -> bool {
        let mut scanner = Scanner::new(text);
        scanner.space();
        scanner.value().is_ok() && scanner.at_end()
    }

    #[test]
    fn it_accepts_exactly_what_serde_json_accepts() {
        for text in [
            "0",
            "-0",
            "01",
            "-",
            "1.",
            "1.5e+7",
            "1e",
            ".5",
            "true",
            "tru",
            "null",
            "nul",
            "\"a\"",
            "\"a",
            "\"\\u12aF\"",
            "\"\\u12a\"",
            "\"\\x\"",
            "\"\n\"",
            "[]",
            "[1]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{}",
            "{\"a\":1}",
            "{\"a\":1,}",
            "{\"a\"}",
            "{a:1}",
            "{\"a\":1 \"b\":2}",
            "[}",
            "{]",
            "",
            " ",
            "1 2",
            " [ 1 , { \"a\" : [ ] } ] ",
            "\"\u{7f}é\"",
            "[[[[",
            "]",
            "nullnull",
            "-1.0E-3",
            "\"0123456789\\\"0123456789\"",
            "\"0123456\x01\"",
        ] {
            let serde: Result<serde::de::IgnoredAny, _> = serde_json::from_str(text);
            assert_eq!(valid(text.as_bytes()), serde.is_ok(), "{text:?}");
        }
    }

    #[test]
    fn depth_is_bounded_and_costs_no_stack() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert!(valid(&nested(MAX_DEPTH)));
        let deeper = vec![b'['; 1_000_000];
        assert_eq!(Scanner::new(&deeper).value().unwrap_err().what, TOO_DEEP);
    }

    proptest! {
        #[test]
        fn any_text_is_judged_as_serde_json_does(text in "[\\[\\]{}:,\"\\\\ub0-9eE.+\\- tfnrlasé\n]{0,24}") {
            let serde: Result<serde::de::IgnoredAny, _> = serde_json::from_str(&text);
            prop_assert_eq!(valid(text.as_bytes()), serde.is_ok());
        }

        #[test]
        fn any_broken_document_is_judged_as_serde_json_does(cut in 0usize..200, byte in any::<u8>()) {
            let mut text = br#"{"a":[1,-2.5e3,{"b\"c":null}],"long key of many bytes":"and a long value \u00e9 of many bytes","t":true,"f":[false,{}]}"#.to_vec();
            let at = cut % text.len();
            text[at] = byte;
            if let Ok(s) = std::str::from_utf8(&text) {
                let serde: Result<serde::de::IgnoredAny, _> = serde_json::from_str(s);
                prop_assert_eq!(valid(&text), serde.is_ok());
            }
        }
    }
}
