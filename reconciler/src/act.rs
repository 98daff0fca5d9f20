//! What a pass may do, as data; performed by the only place that writes.

use holdfast_crds::ids::{LayoutVersion, NodeId};

/// A repair that the proof launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairKind {
    /// `tables`.
    Tables,
    /// `blocks`.
    Blocks,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Launch a repair on one node (P7, P8).
    LaunchRepair {
        /// Where.
        node: NodeId,
        /// Which.
        kind: RepairKind,
    },
    /// `ApplyClusterLayout` (R2).
    ApplyLayout {
        /// The version that this makes: current + 1.
        version: LayoutVersion,
    },
}
