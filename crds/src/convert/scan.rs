//! A single pass over JSON text that validates it and finds where its members lie, without building a tree.
//!
//! Iterative, so that depth costs no stack; bounded at the depth that the API server's own decoder accepts.

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
    /// Open containers of the value being skipped: true is an object. Kept for its memory.
    open: Vec<bool>,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// Marks (in the top bit of each byte) quotes, backslashes and control characters. The lowest mark is exact.
const fn specials(word: u64) -> u64 {
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    ((quote.wrapping_sub(ONES) & !quote)
        | (backslash.wrapping_sub(ONES) & !backslash)
        | (word.wrapping_sub(ONES * 0x20) & !word))
        & TOPS
}

impl<'a> Scanner<'a> {
    /// At the start of `text`, which must be UTF-8.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, pos: 0, open: Vec::new() }
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
        self.text.get(self.pos).copied().unwrap_or(0)
    }

    /// Skips white space.
    #[inline]
    pub fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.pos += 1;
        }
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

    /// Skips a string whose opening quote was read; tells whether it has escapes.
    #[inline]
    fn string(&mut self) -> Result<bool, ScanError> {
        let mut escaped = false;
        loop {
            // Eight bytes at a time up to the next byte that matters.
            while let Some(chunk) = self.text.get(self.pos..).and_then(|t| t.first_chunk::<8>()) {
                let marks = specials(u64::from_le_bytes(*chunk));
                if marks == 0 {
                    self.pos += 8;
                } else {
                    self.pos += (marks.trailing_zeros() / 8) as usize;
                    break;
                }
            }
            match self.peek() {
                b'"' => {
                    self.pos += 1;
                    return Ok(escaped);
                }
                b'\\' => {
                    escaped = true;
                    self.pos += 1;
                    self.escape()?;
                }
                0..0x20 => return self.fail("a control character in a string"),
                _ => self.pos += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<(), ScanError> {
        match self.peek() {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.pos += 1,
            b'u' => {
                self.pos += 1;
                for _ in 0..4 {
                    if !self.peek().is_ascii_hexdigit() {
                        return self.fail("a bad escape in a string");
                    }
                    self.pos += 1;
                }
            }
            _ => return self.fail("a bad escape in a string"),
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), ScanError> {
        if !self.peek().is_ascii_digit() {
            return self.fail("a bad number");
        }
        while self.peek().is_ascii_digit() {
            self.pos += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), ScanError> {
        if self.peek() == b'-' {
            self.pos += 1;
        }
        if self.peek() == b'0' {
            self.pos += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == b'.' {
            self.pos += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.pos += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.pos += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), ScanError> {
        if self.text.get(self.pos..).is_some_and(|t| t.starts_with(word)) {
            self.pos += word.len();
            return Ok(());
        }
        self.fail("not a value")
    }

    /// A key and its colon; then stands at the value.
    #[inline]
    fn key(&mut self) -> Result<Key<'a>, ScanError> {
        self.space();
        let start = self.pos;
        self.expect(b'"', "expected a key")?;
        let escaped = self.string()?;
        let raw = self.slice(start + 1, self.pos - 1);
        self.space();
        self.expect(b':', "expected ':' after a key")?;
        self.space();
        Ok(Key { start, raw, escaped })
    }

    /// Skips one value, which begins here.
    pub fn value(&mut self) -> Result<(), ScanError> {
        self.open.clear();
        loop {
            match self.peek() {
                b'"' => {
                    self.pos += 1;
                    self.string()?;
                }
                b'{' => {
                    self.pos += 1;
                    self.space();
                    if self.peek() == b'}' {
                        self.pos += 1;
                    } else {
                        self.push(true)?;
                        self.key()?;
                        continue;
                    }
                }
                b'[' => {
                    self.pos += 1;
                    self.space();
                    if self.peek() == b']' {
                        self.pos += 1;
                    } else {
                        self.push(false)?;
                        continue;
                    }
                }
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                b'n' => self.literal(b"null")?,
                b'-' | b'0'..=b'9' => self.number()?,
                _ => return self.fail("not a value"),
            }
            // After a value: close what ends here, go on with what does not.
            loop {
                let Some(&object) = self.open.last() else { return Ok(()) };
                self.space();
                match (self.peek(), object) {
                    (b',', true) => {
                        self.pos += 1;
                        self.key()?;
                        break;
                    }
                    (b',', false) => {
                        self.pos += 1;
                        self.space();
                        break;
                    }
                    (b'}', true) | (b']', false) => {
                        self.pos += 1;
                        self.open.pop();
                    }
                    _ => return self.fail("expected ',' or the end of an object or array"),
                }
            }
        }
    }

    #[inline]
    fn push(&mut self, object: bool) -> Result<(), ScanError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(ScanError { at: self.pos, what: TOO_DEEP });
        }
        self.open.push(object);
        Ok(())
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
