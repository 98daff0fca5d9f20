//! What an observation says, in the words of section 7: pure functions, each for one rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use holdfast_crds::ids::{LayoutVersion, NodeId};

use super::garage::{Core, GarageView, HistoryStatus, NodeState, Partition, Silence, StagedChange};
use crate::act::same_role;
use crate::garage::silence_phrase;

/// Why a layout is not settled (O5). Its text is stable and names the node where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsettled {
    /// Status, layout and history speak of different versions.
    VersionsDisagree {
        /// Of `GetClusterStatus`.
        status: LayoutVersion,
        /// Of `GetClusterLayout`.
        layout: LayoutVersion,
        /// Of `GetClusterLayoutHistory`.
        history: LayoutVersion,
    },
    /// A role change is staged.
    StagedRole(NodeId),
    /// Layout parameters are staged.
    StagedParameters,
    /// The history does not list its own current version as `Current`.
    NoCurrentVersion(LayoutVersion),
    /// An older version is live, and this node's tables are not synced for the current one.
    NotSynced {
        /// The oldest live version.
        draining: LayoutVersion,
        /// The first node that lags.
        node: NodeId,
        /// How many lag.
        lagging: usize,
    },
    /// An older version is live and the history does not show who lags.
    Draining(LayoutVersion),
}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VersionsDisagree { status, layout, history } => {
                write!(f, "layout versions disagree: status {status}, layout {layout}, history {history}")
            }
            Self::StagedRole(id) => write!(f, "a role change of node {} is staged", id.short()),
            Self::StagedParameters => f.write_str("layout parameters are staged"),
            Self::NoCurrentVersion(v) => write!(f, "the layout history does not list version {v} as current"),
            Self::NotSynced { draining, node, lagging: 1 } => {
                write!(f, "layout version {draining} is still draining: node {} has not synced", node.short())
            }
            Self::NotSynced { draining, node, lagging } => write!(
                f,
                "layout version {draining} is still draining: node {} and {} more have not synced",
                node.short(),
                lagging - 1
            ),
            Self::Draining(v) => write!(f, "layout version {v} is still draining"),
        }
    }
}

/// O5. Settled does not mean that metadata is complete (FACTS 1.3).
pub fn settled(core: &Core) -> Result<(), Unsettled> {
    let current = core.layout.version;
    if core.status_layout_version != current || core.history.current != current {
        return Err(Unsettled::VersionsDisagree {
            status: core.status_layout_version,
            layout: current,
            history: core.history.current,
        });
    }
    if let Some(change) = effective_changes(core).next() {
        return Err(Unsettled::StagedRole(change.id));
    }
    if core.layout.staged_parameters.is_some() {
        return Err(Unsettled::StagedParameters);
    }
    let of = |status| core.history.versions.iter().filter(move |v| v.status == status).map(|v| v.version);
    if of(HistoryStatus::Current).ne([current]) {
        return Err(Unsettled::NoCurrentVersion(current));
    }
    let Some(draining) = of(HistoryStatus::Draining).min() else { return Ok(()) };
    let Some(trackers) = core.history.trackers.as_ref() else { return Err(Unsettled::Draining(draining)) };
    // A storage node of the layout without a tracker has shown no sync; absence is not progress.
    let lagging: BTreeSet<NodeId> = trackers
        .iter()
        .filter(|(_, t)| t.sync < current)
        .map(|(&id, _)| id)
        .chain(storage_nodes(core).filter(|id| !trackers.contains_key(id)))
        .collect();
    match lagging.first() {
        Some(&node) => Err(Unsettled::NotSynced { draining, node, lagging: lagging.len() }),
        None if trackers.is_empty() => Err(Unsettled::Draining(draining)),
        None => Ok(()),
    }
}

/// Staged changes that an apply would turn into something: all but removals of an ID without a role (D12), and
/// roles that are as they would become: a staging call that ran only after its answer was given up leaves both.
pub fn effective_changes(core: &Core) -> impl Iterator<Item = &StagedChange> {
    core.layout.staged.iter().filter(|change| match (&change.role, core.layout.roles.get(&change.id)) {
        (None, have) => have.is_some(),
        (Some(role), have) => have.is_none_or(|have| !same_role(have, role)),
    })
}

/// The storage nodes of the current layout, in node-ID order.
pub fn storage_nodes(core: &Core) -> impl Iterator<Item = NodeId> + '_ {
    core.layout.roles.iter().filter(|(_, role)| role.is_storage()).map(|(&id, _)| id)
}

/// Whether a node is up, in the view of the answering one. A node that it does not list is not up.
pub fn is_up(core: &Core, node: NodeId) -> bool {
    core.nodes.get(&node).is_some_and(|n| n.is_up)
}

/// O4: a node reports when both its workers and its block errors were read. `isUp` is no part of it.
pub fn reporting(view: &GarageView, node: NodeId) -> Result<(), Silence> {
    let of = |answer: Option<Option<Silence>>| match answer {
        Some(None) => Ok(()),
        Some(Some(silence)) => Err(silence),
        None => Err(Silence::Missing),
    };
    of(view.workers.get(&node).map(|a| a.as_ref().err().copied()))?;
    of(view.block_errors.get(&node).map(|a| a.as_ref().err().copied()))
}

/// Which file system of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disk {
    /// Under `data_dir`.
    Data,
    /// Under `metadata_dir`.
    Metadata,
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "data partition",
            Self::Metadata => "metadata partition",
        })
    }
}

/// O9: whether a node can take what is written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Both partitions are known and have room.
    Enough,
    /// This partition is known and full.
    None(Disk),
    /// This partition is not known, and unknown is not room.
    Unknown(Disk),
}

/// Least bytes available, whatever the size.
const LEAST_ROOM: u64 = 256 << 20;

/// O9: less than 1 % or 256 MiB available, whichever is more, but never more than a quarter of the total.
pub fn has_room(partition: Partition) -> bool {
    let needed = (partition.total / 100).max(LEAST_ROOM).min(partition.total / 4);
    partition.total > 0 && partition.available >= needed
}

/// O9, for one node. A full partition is told before an unknown one, data before metadata.
pub fn room(node: &NodeState) -> Room {
    let disks = [(Disk::Data, node.data_partition), (Disk::Metadata, node.metadata_partition)];
    if let Some((disk, _)) = disks.iter().find(|(_, p)| p.is_some_and(|p| !has_room(p))) {
        return Room::None(*disk);
    }
    disks.iter().find(|(_, p)| p.is_none()).map_or(Room::Enough, |(disk, _)| Room::Unknown(*disk))
}

/// Whether a Garage of this version notices a block that it could not write: from 2.3.0 on (FACTS 15, end).
/// A version string that cannot be read does not.
pub fn notices_failed_writes(version: Option<&str>) -> bool {
    let Some(version) = version else { return false };
    let digits = version.rsplit(':').next().unwrap_or(version).trim_start_matches('v');
    let mut parts = digits.split(['.', '-', '+']).map(str::parse::<u32>);
    matches!((parts.next(), parts.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (2, 3))
}

/// O8: somebody who does not see everybody. Both ends are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missed {
    /// Whose view it is.
    pub viewer: NodeId,
    /// What is wrong with it.
    pub how: MissedHow,
}

/// How a view falls short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissedHow {
    /// It does not see this node up.
    DoesNotSee(NodeId),
    /// Its own endpoint gave no view.
    NotAsked(Silence),
    /// It sees every node, and does not call the site healthy with every partition complete.
    NotHealthy,
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let viewer = self.viewer.short();
        match self.how {
            MissedHow::DoesNotSee(node) => write!(f, "node {viewer} does not see node {} up", node.short()),
            MissedHow::NotAsked(silence) => {
                write!(f, "the own view of node {viewer} is not known ({})", silence_phrase(silence))
            }
            MissedHow::NotHealthy => write!(f, "node {viewer} does not call the site healthy"),
        }
    }
}

/// O8: who of `viewers` (the local storage nodes) does not see who of `everybody` (all storage nodes) up, or
/// has no view. Empty only when this pass asked and every view is whole. Health is not judged: see
/// [`all_healthy`].
pub fn peers_missed(
    views: Option<&BTreeMap<NodeId, Result<super::PeerView, Silence>>>,
    viewers: impl IntoIterator<Item = NodeId>,
    everybody: &BTreeSet<NodeId>,
) -> Vec<Missed> {
    let mut missed = Vec::new();
    for viewer in viewers {
        match views.and_then(|v| v.get(&viewer)) {
            Some(Ok(view)) => missed.extend(
                everybody
                    .difference(&view.up)
                    .map(|&node| Missed { viewer, how: MissedHow::DoesNotSee(node) }),
            ),
            Some(Err(silence)) => missed.push(Missed { viewer, how: MissedHow::NotAsked(*silence) }),
            None => missed.push(Missed { viewer, how: MissedHow::NotAsked(Silence::Missing) }),
        }
    }
    missed
}

/// [`peers_missed`], and beyond it every view says `healthy` with every storage node up and every partition
/// complete (H1).
pub fn all_healthy(
    views: Option<&BTreeMap<NodeId, Result<super::PeerView, Silence>>>,
    viewers: &BTreeSet<NodeId>,
    everybody: &BTreeSet<NodeId>,
) -> Result<(), Missed> {
    if let Some(&missed) = peers_missed(views, viewers.iter().copied(), everybody).first() {
        return Err(missed);
    }
    let unhealthy = viewers.iter().find(
        |viewer| !matches!(views.and_then(|v| v.get(viewer)), Some(Ok(view)) if is_healthy(&view.health)),
    );
    unhealthy.map_or(Ok(()), |&viewer| Err(Missed { viewer, how: MissedHow::NotHealthy }))
}

/// `healthy`, every storage node up, every partition complete; and there is something to be healthy (2.0.0
/// calls a node without layout healthy, FACTS 3).
pub fn is_healthy(health: &super::Health) -> bool {
    health.status == "healthy"
        && health.storage_nodes > 0
        && health.partitions > 0
        && health.storage_nodes_up == health.storage_nodes
        && health.partitions_quorum == health.partitions
        && health.partitions_all_ok == health.partitions
}

#[cfg(test)]
mod tests;
