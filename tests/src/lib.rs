//! The test bed and the suites that run on it.
//!
//! A real Kubernetes control plane, real Garage processes, and the product installed by its own chart,
//! inside namespaces of their own: no cluster, no container runtime, no root. Everything ends with the bed.

pub mod admission_api;
pub mod admission_cases;
pub mod agent;
pub mod bed;
pub mod chart;
pub mod demo;
pub mod error;
pub mod idle;
pub mod load;
pub mod network;
pub mod product;
pub mod prometheus;
pub mod proxy;
pub mod queries;
pub mod repairs;
pub mod roles;
pub mod secrets;
pub mod service;
pub mod site;
pub mod soak;
pub mod stand_in;
pub mod suite;
pub mod webhook_client;

pub use error::{Error, Result};
