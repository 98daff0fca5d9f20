#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crash;
mod reasons;
mod vectors;

pub(crate) use crate::sim::pools as world;
