#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod flow;
mod preconditions;
mod random;
mod sweep;
mod world;
