//! What can go wrong in the bed.

use std::path::PathBuf;

/// A result of the bed.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the bed or of what runs on it; the text says what was being done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the system failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A call to the API server failed.
    #[error("{doing}: {source}")]
    Kube {
        /// What was being done.
        doing: String,
        /// The client's answer.
        source: Box<kube::Error>,
    },
    /// A call by HTTP failed.
    #[error("{doing}: {source}")]
    Http {
        /// What was being done.
        doing: String,
        /// The client's answer.
        source: reqwest::Error,
    },
    /// A command ended with an error.
    #[error("{command}: {status}: {stderr}")]
    Command {
        /// The command as it would be typed.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        stderr: String,
    },
    /// Something did not happen in time.
    #[error("{waited_for} did not happen in {seconds} s\n{state}")]
    Timeout {
        /// What was waited for.
        waited_for: String,
        /// How long.
        seconds: u64,
        /// What was there instead.
        state: String,
    },
    /// A binary of the bed is not built.
    #[error("{} is missing: run `make assets` (once, about 25 minutes)", .0.display())]
    NoAsset(PathBuf),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// An error from a sentence.
    pub fn other(text: impl Into<String>) -> Self {
        Self::Other(text.into())
    }
}

/// Says what was being done when a call failed.
pub trait Doing<T> {
    /// Adds what was being done; the text is only made when it failed.
    fn doing<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|source| Error::Io { doing: what().into(), source })
    }
}

impl<T> Doing<T> for nix::Result<T> {
    fn doing<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|errno| Error::Io { doing: what().into(), source: errno.into() })
    }
}

impl<T> Doing<T> for kube::Result<T> {
    fn doing<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|source| Error::Kube { doing: what().into(), source: Box::new(source) })
    }
}

impl<T> Doing<T> for reqwest::Result<T> {
    fn doing<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|source| Error::Http { doing: what().into(), source })
    }
}
