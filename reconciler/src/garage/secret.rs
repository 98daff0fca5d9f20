//! A value that is never shown.

use std::fmt;

/// A bearer token. Its `Debug` shows nothing of it, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the token, without the white space around it that a file usually ends with.
    pub fn new(token: &str) -> Self {
        Self(token.trim().to_owned())
    }

    /// The token, for the `Authorization` header alone.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
