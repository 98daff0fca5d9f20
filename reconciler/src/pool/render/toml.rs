//! Writing garage.toml: one order of keys, the one of the full operator (`compat.md` 3), because the
//! file's hash names the ConfigMap and decides whether a Pod is current.

use std::fmt::Write as _;

/// A TOML document under construction. Values that are absent leave no line.
#[derive(Debug, Default)]
pub struct Document(String);

impl Document {
    /// An empty document.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty line and a `[table]` head.
    pub fn table(&mut self, name: &str) -> &mut Self {
        let _ = write!(self.0, "\n[{name}]\n");
        self
    }

    /// An empty line.
    pub fn blank(&mut self) -> &mut Self {
        self.0.push('\n');
        self
    }

    /// `key = "value"`.
    pub fn string(&mut self, key: &str, value: Option<impl AsRef<str>>) -> &mut Self {
        if let Some(value) = value {
            let _ = writeln!(self.0, "{key} = {}", quoted(value.as_ref()));
        }
        self
    }

    /// `key = value` for numbers and booleans.
    pub fn plain(&mut self, key: &str, value: Option<impl std::fmt::Display>) -> &mut Self {
        if let Some(value) = value {
            let _ = writeln!(self.0, "{key} = {value}");
        }
        self
    }

    /// `key = ["a", "b"]`; an empty list is written as `[]`.
    pub fn strings(&mut self, key: &str, values: &[impl AsRef<str>]) -> &mut Self {
        let items: Vec<String> = values.iter().map(|v| quoted(v.as_ref())).collect();
        let _ = writeln!(self.0, "{key} = [{}]", items.join(", "));
        self
    }

    /// A line as it stands.
    pub fn raw(&mut self, line: &str) -> &mut Self {
        self.0.push_str(line);
        self.0.push('\n');
        self
    }

    /// The text.
    pub fn finish(self) -> String {
        self.0
    }
}

/// A TOML basic string.
pub fn quoted(value: &str) -> String {
    let mut out = String::with_capacity(value.len() + 2);
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
