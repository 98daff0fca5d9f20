//! Hold and refill together, on the objects of a whole site: the dispatch between them, the pools beside them, the
//! patches that are really written, and the annotations as a person changes them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod hands;
mod story;
mod world;
