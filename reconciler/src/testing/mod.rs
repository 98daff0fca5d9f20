//! Stand-ins for tests: an Admin API in this process that can misbehave in every way a network can.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod faults;
pub mod garage;
pub mod layout;

use std::path::PathBuf;

/// Folder of the recorded answers.
pub fn recorded(version: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/garage").join(version)
}

/// One recorded answer.
pub fn body(version: &str, name: &str) -> String {
    let path = recorded(version).join(format!("{name}.json"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The ID made of one byte.
pub fn node(byte: u8) -> holdfast_crds::ids::NodeId {
    holdfast_crds::ids::NodeId::from_bytes([byte; 32])
}
