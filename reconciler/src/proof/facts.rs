//! One observed pass, digested: who is local, up, reporting and has room. No decision is made here.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{Incarnation, Time};
use jiff::Timestamp;

use super::site::{Site, SiteRole};
use super::workers::Workers;
use super::{Settings, topology::topology_hash};
use crate::observe::judge::{self, Disk, Room};
use crate::observe::{Core, GarageView, Partition, locality};

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
#[derive(Debug, Clone)]
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

        let garage_nodes: Vec<locality::Member> = members
            .iter()
            .map(|m| locality::Member {
                ids: m.id.into_iter().collect(),
                external: m.external,
                gateway: m.gateway,
            })
            .collect();
        let place = locality::locality(
            &core.layout,
            &locality::Site {
                name: &site.name,
                namespace: &site.namespace,
                uid: &site.uid,
                has_remote_clusters: site.remote_clusters,
                garage_nodes: &garage_nodes,
            },
        );
        let mut facts = Self {
            site,
            garage,
            core,
            now,
            federated: place.federated,
            topology_hash: topology_hash(&core.layout),
            storage: place.all(),
            local: place.local,
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
            room: fresh.map_or(Room::Unknown(Disk::Data), judge::room),
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
            blind_to_failed_writes: state
                .is_some_and(|s| !judge::notices_failed_writes(s.version.as_deref())),
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

    /// Whether this site follows another's layout (section 2).
    pub fn follower(&self) -> bool {
        self.site.site_role == SiteRole::Follower
    }
}
