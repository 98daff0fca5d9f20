//! Model checking of the pure steps: every order of passes, writes, answers, crashes and other hands, within bounds.
//!
//! The models call the product's own functions; only what is around them (an API server, Garage, machines) is modelled.
//! Each bounds the clock and the number of faults, so its states are finite and all of them are looked at. A model that
//! cannot fail shows nothing, so each has seeded bugs that the checker must find. The counts of states are in
//! `docs/src/models.md`.
// States are small and many, and a model says each action on its own.
#![allow(clippy::large_enum_variant, clippy::match_same_arms, clippy::option_option)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod hold;
mod lease;
mod refill;
mod turns;

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

/// How far a model looks: the end of its clock, and how many faults a run may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) end: i64,
    pub(crate) faults: u8,
}

impl Bounds {
    /// What is looked at within seconds; `HOLDFAST_MODEL_FAULTS` and `HOLDFAST_MODEL_END` look further.
    pub(crate) fn of(end: i64, faults: u8) -> Self {
        fn set<T: std::str::FromStr>(name: &str) -> Option<T> {
            std::env::var(name).ok()?.parse().ok()
        }
        Self {
            end: set("HOLDFAST_MODEL_END").unwrap_or(end),
            faults: set("HOLDFAST_MODEL_FAULTS").unwrap_or(faults),
        }
    }
}

/// Whether it is tried from this state how things end when nothing fails any more. That takes long, so it is one in 16.
pub(crate) fn is_sample<S: Hash>(state: &S) -> bool {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish().is_multiple_of(16)
}

/// No model takes longer; what was not looked at by then is not taken for looked at.
const LIMIT: Duration = Duration::from_secs(600);

/// Looks at every state; fails when a property does not hold, or when there are fewer states than `at_least`: a model
/// that explores nothing proves nothing.
pub(crate) fn check<M>(name: &str, model: M, at_least: usize)
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Debug + Clone + PartialEq + Send + Sync + 'static,
    M::Action: Debug + Clone + PartialEq,
{
    let begun = Instant::now();
    // Examples are found early; the rest is looked at all the same.
    let never = HasDiscoveries::AllOf(["no such property"].into());
    let checker = model.checker().threads(2).finish_when(never).timeout(LIMIT).spawn_bfs().join();
    let (states, depth, took) = (checker.unique_state_count(), checker.max_depth(), begun.elapsed());
    println!("model {name}: {states} states, {depth} deep, {:.1} s", took.as_secs_f32());
    checker.assert_properties();
    assert!(took < LIMIT, "model {name} was not looked at to its end");
    assert!(states >= at_least, "model {name} has only {states} states");
}

/// A seeded bug: the checker must find that it breaks `property`.
pub(crate) fn catches<M>(name: &str, model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Debug + Clone + PartialEq + Send + Sync + 'static,
    M::Action: Debug + Clone + PartialEq,
{
    let broken = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().threads(2).finish_when(broken).spawn_bfs().join();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("the bug {name} was not found"));
    println!("bug {name}: {property:?} broken after {} steps", path.into_actions().len());
}
