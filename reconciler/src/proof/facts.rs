//! One observed pass, digested: who is local, up, reporting and has room. No decision is made here.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{Incarnation, Time};
use jiff::Timestamp;

use super::site::{Member, Site, SiteRole};
use super::workers::Workers;
use super::{Settings, topology::topology_hash};
use crate::observe::{Core, GarageView, HistoryStatus, NodeState, Partition, Role};

/// What a pass saw, as far as the proof cares.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The Kubernetes half.
    pub site: &'a Site,
    /// The Garage half.
    pub garage: &'a GarageView,
    /// Its core, observed.
    pub core: &'a Core,
    /// This pass's time.
    pub now: Time,
    /// Section 2.
    pub federated: bool,
    /// `topologyHash` of the current layout.
    pub topology_hash: Option<String>,
    /// Storage roles of the current layout (section 2).
    pub storage: BTreeSet<NodeId>,
    /// Of these, the ones that this site may repair (P4).
    pub local: BTreeSet<NodeId>,
    /// Every storage node, and every other node that answered.
    pub nodes: BTreeMap<NodeId, NodeFacts>,
    /// Local nodes that another local node does not see up although the answering one does: (viewer, unseen).
    /// Empty when the views were not asked.
    pub unseen: Vec<(NodeId, NodeId)>,
    /// Local nodes whose own view could not be asked, or that do not see every storage node up (O8);
    /// `None` when this pass did not ask.
    pub blind: Option<BTreeSet<NodeId>>,
}

/// One node.
#[derive(Debug, Clone, Default)]
pub struct NodeFacts {
    /// Up, and not within the first seconds after its start (O7).
    pub up: bool,
    /// In both success maps, readably (O4).
    pub reporting: bool,
    /// Its workers, where it answered.
    pub workers: Option<Workers>,
    /// Hashes of its blocks with resync errors, where it answered.
    pub block_errors: Option<BTreeSet<String>>,
    /// O9.
    pub room: Room,
    /// What would show that it went down between two passes (P16).
    pub incarnation: Incarnation,
    /// Failed table-sync calls since its start, where its metrics page could be read (D2).
    pub sync_rpc_errors: Option<i64>,
    /// Its version is older than 2.3.0 and may lose block writes without a word (O9).
    pub blind_to_failed_writes: bool,
    /// End of its last complete scrub.
    pub last_scrub: Option<Time>,
}

/// O9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Room {
    /// Both partitions have room.
    Enough,
    /// This one has none.
    None(&'static str),
    /// This one was not shown: unknown is not room.
    #[default]
    Unknown,
}

impl<'a> Facts<'a> {
    /// Digests a pass; the error says what was not observed (O2, O3, O6), in fixed words.
    pub fn read(
        site: &'a Site,
        garage: &'a GarageView,
        now: Time,
        settings: &Settings,
    ) -> Result<Self, String> {
        let core = garage.core.as_ref().map_err(|e| e.what.clone())?;
        let Some(members) = &site.members else { return Err("the list of GarageNodes".to_owned()) };
        let h = &core.health;
        if h.storage_nodes_up > h.storage_nodes
            || h.partitions_quorum > h.partitions
            || h.partitions_all_ok > h.partitions_quorum
            || h.connected_nodes > h.known_nodes
        {
            return Err("a GetClusterHealth whose fields agree with each other".to_owned());
        }
        if !garage.workers.values().any(Result::is_ok) {
            return Err("ListWorkers of any node".to_owned());
        }
        if !garage.block_errors.values().any(Result::is_ok) {
            return Err("ListBlockErrors of any node".to_owned());
        }

        let storage: BTreeSet<NodeId> =
            core.layout.roles.iter().filter(|(_, r)| r.is_storage()).map(|(id, _)| *id).collect();
        let federated = is_federated(site, members, core);
        let local =
            storage.iter().copied().filter(|id| is_local(site, members, core, federated, *id)).collect();
        let mut facts = Self {
            site,
            garage,
            core,
            now,
            federated,
            topology_hash: topology_hash(&core.layout),
            storage,
            local,
            nodes: BTreeMap::new(),
            unseen: Vec::new(),
            blind: None,
        };
        let answered = garage.workers.keys().chain(garage.block_errors.keys()).copied();
        let ids: BTreeSet<NodeId> = facts.storage.iter().copied().chain(answered).collect();
        for id in ids {
            let node = facts.read_node(id, settings);
            facts.nodes.insert(id, node);
        }
        facts.read_views();
        Ok(facts)
    }

    fn read_node(&self, id: NodeId, settings: &Settings) -> NodeFacts {
        let state = self.core.nodes.get(&id);
        let pod = self.site.pods.get(&id);
        // O7: for some seconds after a start, "up" may be the dead connection of the process before.
        let young = pod
            .and_then(|p| p.started_at)
            .is_some_and(|t| self.now.seconds_since(t) < settings.timings.settled_start);
        let up = state.is_some_and(|s| s.is_up) && !young;
        let raw = self.garage.workers.get(&id).and_then(|r| r.as_ref().ok());
        let workers = raw.and_then(|list| Workers::read(list));
        let block_errors = self
            .garage
            .block_errors
            .get(&id)
            .and_then(|r| r.as_ref().ok())
            .map(|list| list.iter().map(|b| b.hash.clone()).collect());
        let total = |p: Option<Partition>| p.map(|p| i64::try_from(p.total).unwrap_or(i64::MAX));
        // Figures of a node that is down are its last gossip (FACTS 3).
        let fresh = state.filter(|_| up);
        NodeFacts {
            up,
            reporting: workers.is_some() && block_errors.is_some(),
            block_errors,
            room: fresh.map_or(Room::Unknown, room),
            incarnation: Incarnation {
                pod_uid: pod.map(|p| p.uid.clone()),
                restart_count: pod.map(|p| p.restarts),
                highest_worker_id: workers.as_ref().map(|w| w.highest_id),
                data_total: total(fresh.and_then(|s| s.data_partition)),
                metadata_total: total(fresh.and_then(|s| s.metadata_partition)),
            },
            sync_rpc_errors: self
                .garage
                .sync_rpc_errors
                .get(&id)
                .map(|n| i64::try_from(*n).unwrap_or(i64::MAX)),
            blind_to_failed_writes: state.is_some_and(is_blind_to_failed_writes),
            last_scrub: raw.and_then(|list| {
                let scrub = list.iter().find(|w| w.name == "Block scrub worker")?;
                let line = scrub.freeform.iter().find_map(|l| l.strip_prefix("Last scrub completed at "))?;
                line.trim().parse::<Timestamp>().ok().map(Time::new)
            }),
            workers,
        }
    }

    /// O8: whom each local node sees.
    fn read_views(&mut self) {
        let Some(views) = &self.garage.peer_views else { return };
        let mut blind = BTreeSet::new();
        let mut broken = Vec::new();
        for viewer in &self.local {
            let Some(Ok(view)) = views.get(viewer) else {
                blind.insert(*viewer);
                continue;
            };
            let unseen: Vec<NodeId> =
                self.storage.iter().filter(|id| !view.up.contains(id)).copied().collect();
            let h = &view.health;
            if !unseen.is_empty()
                || h.storage_nodes_up < h.storage_nodes
                || h.partitions_all_ok < h.partitions
            {
                blind.insert(*viewer);
            }
            // A node that is down for everybody is no broken link.
            broken.extend(unseen.into_iter().filter(|id| self.up(*id)).map(|id| (*viewer, id)));
        }
        self.unseen = broken;
        self.blind = Some(blind);
    }

    /// A node's facts.
    pub fn node(&self, id: NodeId) -> Option<&NodeFacts> {
        self.nodes.get(&id)
    }

    /// Whether it is up (O7).
    pub fn up(&self, id: NodeId) -> bool {
        self.node(id).is_some_and(|n| n.up)
    }

    /// Whether it reports (O4).
    pub fn reporting(&self, id: NodeId) -> bool {
        self.node(id).is_some_and(|n| n.reporting)
    }

    /// Its workers, where it reports.
    pub fn workers(&self, id: NodeId) -> Option<&Workers> {
        self.node(id).filter(|n| n.reporting).and_then(|n| n.workers.as_ref())
    }

    /// Storage nodes of other sites.
    pub fn remote(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.storage.difference(&self.local).copied()
    }

    /// The nodes that a sync on `node` may have missed in this pass (P12), itself included when it was
    /// not seen well; `None` when nobody was missed.
    pub fn missed_by(&self, node: NodeId) -> Option<BTreeSet<NodeId>> {
        let mut missed: BTreeSet<NodeId> = self
            .storage
            .iter()
            .copied()
            .filter(|id| !self.up(*id) || (*id != node && !self.reporting(*id)))
            .collect();
        for (viewer, unseen) in &self.unseen {
            missed.insert(*viewer);
            missed.insert(*unseen);
        }
        let h = &self.core.health;
        let whole = h.storage_nodes_up == h.storage_nodes && h.partitions_all_ok == h.partitions;
        // Somebody could not be asked, or counts contradict the list: it is not known who was missed.
        let blind = self.blind.as_ref().is_none_or(|blind| !blind.is_empty());
        if missed.is_empty() && (blind || !whole) {
            missed.clone_from(&self.storage);
            missed.remove(&node);
        }
        (!missed.is_empty()).then_some(missed)
    }

    /// Distinct hashes of blocks with resync errors on local nodes (section 9).
    pub fn local_block_errors(&self) -> usize {
        let hashes: BTreeSet<&String> =
            self.local.iter().filter_map(|id| self.node(*id)?.block_errors.as_ref()).flatten().collect();
        hashes.len()
    }

    /// Whether status, layout and history speak of one version (O5).
    pub fn snapshots_agree(&self) -> bool {
        let version = self.core.layout.version;
        self.core.status_layout_version == version && self.core.history.current == version
    }

    /// O5, given that the snapshots agree: no older version is live.
    pub fn history_settled(&self) -> bool {
        let history = &self.core.history;
        let draining = history.versions.iter().any(|v| v.status == HistoryStatus::Draining);
        !draining
            || history
                .trackers
                .as_ref()
                .is_some_and(|t| !t.is_empty() && t.values().all(|t| t.sync >= history.current))
    }

    /// O5: staging holds an effective change. A removal of an ID that has no role is none.
    pub fn staged(&self) -> bool {
        let layout = &self.core.layout;
        layout.staged_parameters.is_some()
            || layout.staged.iter().any(|c| c.role.is_some() || layout.roles.contains_key(&c.id))
    }

    /// Whether this site follows another's layout (section 2).
    pub fn follower(&self) -> bool {
        self.site.site_role == SiteRole::Follower
    }
}

fn uid_tag(role: &Role) -> Option<&str> {
    role.tags.iter().find_map(|t| t.strip_prefix("cluster-uid:"))
}

fn is_own_process(members: &[Member], id: NodeId) -> bool {
    members.iter().any(|m| m.id == Some(id) && !m.external && !m.gateway)
}

/// Section 2.
fn is_federated(site: &Site, members: &[Member], core: &Core) -> bool {
    site.remote_clusters
        || core.layout.roles.iter().any(|(id, role)| {
            role.is_storage()
                && uid_tag(role).is_some_and(|uid| uid != site.uid)
                && !is_own_process(members, *id)
        })
}

/// P4.
fn is_local(site: &Site, members: &[Member], core: &Core, federated: bool, id: NodeId) -> bool {
    if federated {
        return is_own_process(members, id);
    }
    if members.iter().any(|m| m.id == Some(id) && m.external) {
        return false;
    }
    let Some(role) = core.layout.roles.get(&id) else { return false };
    if let Some(uid) = uid_tag(role) {
        // The role of a re-created GarageCluster keeps the old UID; its GarageNode says whose it is (section 2).
        return uid == site.uid || is_own_process(members, id);
    }
    role.tags.contains(&format!("cluster:{}/{}", site.name, site.namespace))
}

/// O9: less than 1 % or 256 MiB available, whichever is more, but never more than a quarter of the total.
fn room(state: &NodeState) -> Room {
    for (name, partition) in [("data", state.data_partition), ("metadata", state.metadata_partition)] {
        let Some(p) = partition else { return Room::Unknown };
        let floor = (p.total / 100).max(256 << 20).min(p.total / 4);
        if p.total == 0 || p.available < floor {
            return Room::None(name);
        }
    }
    Room::Enough
}

/// O9, end: Garage before 2.3.0 does not notice a failed block write. An unknown version may be one.
fn is_blind_to_failed_writes(state: &NodeState) -> bool {
    let Some(version) = &state.version else { return true };
    let version = version.rsplit(':').next().unwrap_or(version).trim_start_matches('v');
    let mut parts = version.split(['.', '-', '+']).map(|p| p.parse::<u64>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < (2, 3),
        _ => true,
    }
}
