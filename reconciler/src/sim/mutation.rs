//! Seeded bugs: each corrupts what the step sees, waits or returns, and each must be caught.

use std::collections::BTreeMap;

use holdfast_crds::status::{Phase, Redundancy};

use super::world::World;
use crate::act::Action;
use crate::observe::{GarageView, WorkerState};
use crate::proof::{Settings, Site, Step};

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// None: the product.
    None,
    /// True as soon as the blocks round is done (no quiet period, P14).
    NoQuietPeriod,
    /// The nodes' own views are taken as whole (O8).
    TrustOneView,
    /// Restarts between two passes are not looked at (P16).
    ForgetRestarts,
    /// Full disks are not looked at (O9).
    IgnoreRoom,
    /// Another file system under a node is not looked at (O9).
    IgnoreFileSystems,
    /// A missed peer needs no recheck (P12).
    NoRecheck,
    /// Blocks turns begin without tables turns (P6).
    BlocksFirst,
    /// A completed node that goes down keeps its completion (D7).
    KeepCompletion,
    /// The launch goes out although the status write failed (P8).
    LaunchWithoutWrite,
    /// Launches are not counted (P10).
    UncountedLaunch,
    /// Remote nodes are taken for local ones (P4).
    RepairRemote,
    /// Another blocks repair that runs does not matter (P6).
    OverlapRepairs,
    /// Block errors and `persistentErrors` are not looked at (P14).
    IgnoreBlockErrors,
    /// The deferred worker and due entries of the resync queue are not looked at (P14).
    IgnoreResync,
    /// Preconditions do not pause (P15).
    IgnorePreconditions,
    /// A node that is down counts as up (P11, P16).
    BelieveDown,
    /// True is not taken back when block errors appear, and the step forgets what it started from (P20).
    RollBack,
    /// An unwatched full disk of an old release is forgotten (O9, end).
    ForgetUnscrubbed,
}

impl Mutation {
    /// All bugs.
    pub const ALL: [Self; 18] = [
        Self::NoQuietPeriod,
        Self::TrustOneView,
        Self::ForgetRestarts,
        Self::IgnoreRoom,
        Self::IgnoreFileSystems,
        Self::NoRecheck,
        Self::BlocksFirst,
        Self::KeepCompletion,
        Self::LaunchWithoutWrite,
        Self::UncountedLaunch,
        Self::RepairRemote,
        Self::OverlapRepairs,
        Self::IgnoreBlockErrors,
        Self::IgnoreResync,
        Self::IgnorePreconditions,
        Self::BelieveDown,
        Self::RollBack,
        Self::ForgetUnscrubbed,
    ];

    pub(super) fn settings(self, settings: &Settings) -> Settings {
        let mut out = settings.clone();
        if self == Self::NoQuietPeriod {
            out.timings.quiet_min = 0;
            out.timings.quiet_margin = -1_000_000;
        }
        out
    }

    /// What the bug does not see.
    pub(super) fn blind(self, view: &mut GarageView, site: &mut Site) {
        match self {
            Self::TrustOneView => {
                if let (Some(views), Ok(core)) = (&mut view.peer_views, &view.core) {
                    let up = core.nodes.iter().filter(|(_, n)| n.is_up).map(|(id, _)| *id).collect();
                    let whole = crate::observe::PeerView { health: core.health.clone(), up };
                    for v in views.values_mut() {
                        *v = Ok(whole.clone());
                    }
                }
                view.sync_rpc_errors.clear();
            }
            Self::ForgetRestarts => {
                for pod in site.pods.values_mut() {
                    "pod".clone_into(&mut pod.uid);
                    pod.restarts = 0;
                    pod.started_at = None;
                }
            }
            Self::IgnoreRoom | Self::ForgetUnscrubbed => {
                if let Ok(core) = &mut view.core {
                    for p in core.nodes.values_mut() {
                        for p in [&mut p.data_partition, &mut p.metadata_partition].into_iter().flatten() {
                            if self == Self::IgnoreRoom {
                                p.available = p.total / 2;
                            }
                        }
                        if self == Self::ForgetUnscrubbed {
                            p.version = Some("2.5.0".to_owned());
                        }
                    }
                }
            }
            Self::IgnoreFileSystems => {
                if let Ok(core) = &mut view.core {
                    for p in core.nodes.values_mut() {
                        if let Some(p) = &mut p.data_partition {
                            p.available = if p.available < 10_000 { 0 } else { 1 << 39 };
                            p.total = 1 << 40;
                        }
                    }
                }
            }
            Self::IgnoreBlockErrors => {
                for list in view.block_errors.values_mut().flatten() {
                    list.clear();
                }
                for w in view.workers.values_mut().flatten().flatten() {
                    w.persistent_errors = w.persistent_errors.map(|_| 0);
                }
            }
            Self::IgnoreResync => {
                for w in view.workers.values_mut().flatten().flatten() {
                    if w.name.starts_with("Block resync") {
                        w.state = WorkerState::Idle;
                        w.queue_length = w.queue_length.map(|_| 0);
                        w.persistent_errors = w.persistent_errors.map(|_| 0);
                    }
                }
                for list in view.block_errors.values_mut().flatten() {
                    list.clear();
                }
            }
            Self::OverlapRepairs => {
                for w in view.workers.values_mut().flatten().flatten() {
                    if w.name == "Block repair worker" && w.state == WorkerState::Busy {
                        w.state = WorkerState::Done;
                    }
                }
            }
            Self::IgnorePreconditions => {
                site.busy = None;
                if let Ok(core) = &mut view.core {
                    core.layout.staged_parameters = None;
                    core.history.versions.truncate(1);
                    core.history.trackers = None;
                }
            }
            Self::BelieveDown => {
                if let Ok(core) = &mut view.core {
                    for n in core.nodes.values_mut() {
                        n.is_up = true;
                    }
                    core.health.storage_nodes_up = core.health.storage_nodes;
                    core.health.partitions_quorum = core.health.partitions;
                    core.health.partitions_all_ok = core.health.partitions;
                }
                let ids: std::collections::BTreeSet<_> = match &view.core {
                    Ok(core) => core.nodes.keys().copied().collect(),
                    Err(_) => return,
                };
                for v in view.peer_views.iter_mut().flat_map(BTreeMap::values_mut).flatten() {
                    v.up.clone_from(&ids);
                    v.health.storage_nodes_up = v.health.storage_nodes;
                    v.health.partitions_all_ok = v.health.partitions;
                }
                for pod in site.pods.values_mut() {
                    "pod".clone_into(&mut pod.uid);
                    pod.restarts = 0;
                }
            }
            Self::RepairRemote => {
                site.remote_clusters = false;
                "uid-here".clone_into(&mut site.uid);
                if let Ok(core) = &mut view.core {
                    for role in core.layout.roles.values_mut() {
                        role.tags = vec!["cluster-uid:uid-here".to_owned()];
                    }
                }
            }
            _ => {}
        }
    }

    /// What the bug returns.
    pub(super) fn corrupt(self, step: &mut Step, previous: Option<&Redundancy>, world: &World) {
        let Some(v) = step.redundancy.as_mut().and_then(|r| r.verification.as_mut()) else { return };
        let before = previous.and_then(|r| r.verification.as_ref());
        match self {
            Self::NoRecheck => {
                if let Some(e) = &mut v.evidence {
                    e.tables_recheck_node_ids.clear();
                    e.peer_down_seen = None;
                }
            }
            Self::BlocksFirst => {
                let local = world.garage.nodes.iter().filter(|n| n.storage && !n.remote).map(|n| n.id);
                if let Some(e) = &mut v.evidence {
                    e.tables_done_node_ids = local.collect();
                    e.tables_recheck_node_ids.clear();
                }
            }
            Self::KeepCompletion => {
                if let (Some(before), true) = (before, v.phase != Phase::Pending && v.phase != Phase::Idle)
                    && before.started_at == v.started_at
                {
                    v.completed_node_ids.extend(before.completed_node_ids.iter().copied());
                    let kept = v.completed_node_ids.clone();
                    let tables = before.evidence.as_ref().map(|e| e.tables_done_node_ids.clone());
                    if let Some(e) = &mut v.evidence {
                        e.tables_recheck_node_ids.clear();
                        e.tables_done_node_ids.extend(tables.unwrap_or_default());
                    }
                    if let Some(r) = &mut step.redundancy {
                        r.deferred_nodes.retain(|d| !kept.contains(&d.node_id));
                    }
                }
            }
            Self::UncountedLaunch => {
                if let Some(e) = &mut v.evidence {
                    e.launches = Some(0);
                }
            }
            Self::RollBack => {
                if v.phase == Phase::Idle
                    && let Some(before) = before
                    && before.phase == Phase::Verified
                    && before.topology_hash == v.topology_hash
                {
                    *v = before.clone();
                    if let Some(c) = &mut step.condition {
                        c.status = holdfast_crds::conditions::ConditionStatus::True;
                    }
                }
            }
            _ => {}
        }
        step.actions.retain(|a| matches!(a, Action::LaunchRepair { .. }));
    }
}
