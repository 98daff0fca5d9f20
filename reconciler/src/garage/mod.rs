//! Typed client of Garage's Admin API v2 (2.0.0 and later).
//!
//! One [`Client`] talks to one Garage process, each call with a deadline and a bounded answer. What it
//! returns is the observation's own data ([`crate::observe`]); an answer that cannot be read whole is an
//! error, never a default. Nothing raw of an answer leaves this module except the values it parsed: error
//! texts of Garage may hold anything (section 9).

mod client;
mod error;
mod metrics;
mod secret;
pub(crate) mod wire;

pub use client::{
    Client, Connected, Deadlines, Http, Multi, NodeInfo, Nodes, Preview, PreviewRefusal, SkippedDeadNodes,
};
pub use error::{Error, StatusKind, silence_phrase};
pub use metrics::failed_table_syncs;
pub use secret::Secret;

#[cfg(test)]
mod tests;
