//! The Kubernetes half of what the proof looks at, digested to plain data.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::Time;

/// What the proof needs to know of a GarageCluster and its objects.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// Namespace of the GarageCluster.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// It has a storage tier and is no `connectTo` handle (P5).
    pub storage_tier: bool,
    /// `spec.layoutManagement.siteRole`.
    pub site_role: SiteRole,
    /// `spec.remoteClusters` is not empty.
    pub remote_clusters: bool,
    /// `spec.layoutManagement.redundancyVerification.onTopologyChange` (absent = off).
    pub on_topology_change: bool,
    /// `verify-redundancy`, where it is not empty and not longer than 253 characters (V1).
    pub token: Option<String>,
    /// `spec.network.rpcTimeout`.
    pub rpc_timeout: Option<Duration>,
    /// Its GarageNodes; `None` when they could not be read (O3).
    pub members: Option<Vec<Member>>,
    /// The Pod of each local Garage identity, where one is there.
    pub pods: BTreeMap<NodeId, PodFacts>,
    /// Who else has a member or the layout in hand (P15), the first of them.
    pub busy: Option<Busy>,
    /// The `FullyReplicated` condition as it stands.
    pub condition: Option<PreviousCondition>,
}

/// `spec.layoutManagement.siteRole`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SiteRole {
    /// Absent.
    #[default]
    Unset,
    /// `Writer`.
    Writer,
    /// `Follower`.
    Follower,
}

/// A GarageNode of this cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// `status.nodeId`, else `spec.nodeId`.
    pub id: Option<NodeId>,
    /// `spec.external` is set: it runs at another site (P4).
    pub external: bool,
    /// `spec.gateway`.
    pub gateway: bool,
}

/// What shows that a Pod's Garage was restarted (P16, O7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// UID of the Pod.
    pub uid: String,
    /// Restarts of its `garage` container.
    pub restarts: i32,
    /// Start of the running `garage` container, where it runs.
    pub started_at: Option<Time>,
}

/// Somebody has a member or the layout in hand (P15). The words are fixed and go into the condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy {
    /// What it is, e.g. "a storage drain is active".
    pub what: String,
    /// It moves data, so the quiet period's evidence is dropped (a drain, a migration, a replacement).
    pub moves_data: bool,
}

/// The `FullyReplicated` condition that the last pass wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviousCondition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// When its status last changed.
    pub since: Option<Time>,
}
