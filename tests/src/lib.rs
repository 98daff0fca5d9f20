//! The test bed and the suites that run on it.
//!
//! A real Kubernetes control plane, real Garage processes, and the product installed by its own chart,
//! inside namespaces of their own: no cluster, no container runtime, no root. Everything ends with the bed.

pub mod agent;
pub mod error;
pub mod network;

pub use error::{Error, Result};
