//! Observe, plan, act: pools, proof, hold and refill of a Garage site.
//!
//! Every decision is a pure function over an [`observe::Observation`], the object's status and a time;
//! the shell reads, calls it, and performs the [`act::Action`]s it returned.

pub mod act;
pub mod caches;
pub mod controller;
mod digest;
pub mod garage;
pub mod hold;
pub mod lease;
#[cfg(test)]
mod models;
pub mod observe;
pub mod pool;
pub mod proof;
pub mod refill;
pub mod service;
#[cfg(any(test, feature = "simulation"))]
pub mod sim;
mod spans;
pub mod status;

pub use spans::SPANS;

#[cfg(test)]
mod testing;
