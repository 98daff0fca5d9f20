//! Why a call has no usable answer. Fixed phrases: no URL, no body, no token.

use crate::observe::Silence;

/// Why a call has no usable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No connection was made: certainly not executed.
    #[error("could not connect")]
    Refused,
    /// No whole answer within the deadline. What was asked may still be done later (FACTS 10: 80 s later).
    #[error("no answer in time")]
    Timeout,
    /// The connection ended within the call. What was asked may have been done.
    #[error("the connection was cut")]
    Cut,
    /// An answer other than 2xx.
    #[error("answered HTTP {code} {kind}")]
    Status {
        /// The HTTP status.
        code: u16,
        /// Garage's own error code.
        kind: StatusKind,
    },
    /// An answer that cannot be read whole: no JSON, a key missing or contradicting another, or too long.
    #[error("answered something that cannot be read")]
    Malformed,
    /// The asked endpoint answered, the node that it was asked about did not.
    #[error("{}", silence_phrase(*.0))]
    Node(Silence),
    /// A request that cannot be made (a token with a line break in it). Nothing was sent.
    #[error("the request cannot be made: the admin token is not a valid header value")]
    BadToken,
}

/// Garage's `code` of a refusal, as far as we act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatusKind {
    /// Missing or wrong token.
    AccessDenied,
    /// A request that Garage does not take.
    InvalidRequest,
    /// Also every refusal of `ApplyClusterLayout` (FACTS 1.8).
    InternalError,
    /// Anything else, or a body that is not Garage's.
    Other,
}

impl std::fmt::Display for StatusKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AccessDenied => "AccessDenied",
            Self::InvalidRequest => "InvalidRequest",
            Self::InternalError => "InternalError",
            Self::Other => "(unknown code)",
        })
    }
}

impl Error {
    /// Whether the call certainly did nothing: connection refused, 4xx, `Not connected` (P10). Everything
    /// else may have been executed, or may be later.
    pub const fn certainly_not_executed(self) -> bool {
        match self {
            Self::Refused | Self::BadToken | Self::Node(Silence::NotConnected) => true,
            Self::Status { code, .. } => code >= 400 && code < 500,
            Self::Timeout | Self::Cut | Self::Malformed | Self::Node(_) => false,
        }
    }

    /// Why the node that was asked about has no answer.
    pub const fn silence(self) -> Silence {
        match self {
            Self::Node(silence) => silence,
            Self::Timeout => Silence::TimedOut,
            Self::Refused | Self::Cut | Self::Status { .. } | Self::Malformed | Self::BadToken => {
                Silence::Failed
            }
        }
    }
}

/// A silence in words that never change.
pub const fn silence_phrase(silence: Silence) -> &'static str {
    match silence {
        Silence::NotConnected => "not connected",
        Silence::TimedOut => "no answer in time",
        Silence::Failed => "answered with an error",
        Silence::Missing => "missing from the answer",
    }
}
