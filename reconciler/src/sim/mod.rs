//! An executable model of Garage, of the status write, and of what goes wrong; and a simulator that drives
//! [`crate::proof::step`] through seeded schedules of it.
//!
//! For tests only: it is compiled under `cfg(test)` or the feature `simulation`, never into the product.
//! The model knows which items and blocks exist where, so an invariant can compare what the proof claims
//! with what is so. What real Garage does is in the facts that the model's parts name (FACTS 13).

pub mod garage;
pub mod invariants;
pub mod mutation;
pub mod observe;
pub mod pools;
pub mod rng;
pub mod schedule;
pub mod world;

#[cfg(test)]
mod tests;

pub use garage::{Alive, FaultKind, Garage, GarageVersion};
pub use mutation::Mutation;
pub use schedule::{Event, Schedule, Violation, run, shrink};
pub use world::{LaunchFault, PassFault, World, WriteFault};
