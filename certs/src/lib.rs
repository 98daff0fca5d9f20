//! Certificates of the webhooks, in three parts that know nothing of each other:
//!
//! - [`authority`]: a CA and the leaves it issues; [`state`]: how the replicas share it in one Secret;
//! - [`serving`]: the certificate that this replica serves with, from an authority or from files;
//! - [`inject`]: the bundle in the two places where the API server looks for it.
//!
//! [`phase`] decides, purely, what a rotation does next; [`manage`] is the loop around all of them.
//! Order of a rotation (`architecture.md`, "Certificates"): publish old and new together, read both
//! bundles back, switch the leaves, retire the old one after its last leaf expired.

pub mod authority;
pub mod inject;
pub mod manage;
#[cfg(test)]
mod model;
pub mod phase;
pub mod serving;
pub mod state;

/// What can go wrong here. No text holds key material or raw Secret content.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key or certificate could not be made.
    #[error("could not make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// A certificate or key that we were given does not parse or does not fit.
    #[error("{place}: {what}")]
    Malformed {
        /// Which Secret key or file.
        place: String,
        /// What is wrong and what to do.
        what: String,
    },
    /// A file could not be read.
    #[error("{path} could not be read: {source}")]
    File {
        /// Its path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The API server refused or was not reached.
    #[error("{what}: {}", refusal(source))]
    Kube {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: Box<kube::Error>,
    },
    /// The API server did not answer within the deadline.
    #[error("{0}: the API server did not answer in time")]
    Deadline(&'static str),
}

/// What the API server said, in words: kube's own text repeats the whole answer.
fn refusal(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            format!("not permitted (RBAC): the chart's roles are not in place ({})", status.message)
        }
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        kube::Error::Service(_) | kube::Error::HyperError(_) => "the API server was not reached".to_owned(),
        other => other.to_string(),
    }
}
