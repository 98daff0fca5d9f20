//! What one pass saw (`behaviour.md` section 7), as plain data.
//!
//! Nothing here is a decision. Absence is never zero: what was not observed is `None` or an `Err`
//! that says what did not answer.

pub mod fetch;
pub mod garage;
pub mod judge;
pub mod kubernetes;
pub mod locality;

pub use fetch::{Ask, Endpoint, Limits, Tokens, observe_garage};
pub use garage::{
    BlockError, Core, GarageView, Health, History, HistoryStatus, HistoryVersion, Layout, LayoutParameters,
    NodeState, NotObserved, Partition, PeerView, Role, Silence, StagedChange, Tracker, Worker, WorkerState,
    ZoneRedundancy,
};
pub use kubernetes::KubernetesView;
pub use locality::Locality;

/// Everything one pass saw.
#[derive(Debug, Clone)]
pub struct Observation {
    /// What the Kubernetes API (or its caches) said.
    pub kubernetes: KubernetesView,
    /// What Garage said.
    pub garage: GarageView,
}
