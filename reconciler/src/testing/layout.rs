//! The layout of a Garage site as each of its nodes knows it: gossip takes its time, a removed dead identity holds the
//! old version, and a call may fail before or after it took effect (FACTS 2, 3, 5, 13).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};

use holdfast_crds::ids::{LayoutVersion, NodeId};

use super::faults::{Fault, Faults};
use crate::act::{self, Action, CallFailure, GarageCalls, Outcome, Peer, Refusal, RepairKind};
use crate::observe::fetch::{Seen, believed_peers, newer_version};
use crate::observe::{
    Core, Endpoint, GarageView, Health, History, HistoryStatus, HistoryVersion, Layout, LayoutParameters,
    NodeState, NotObserved, Partition, PeerView, Role, Silence, StagedChange, Tracker, ZoneRedundancy,
};

/// Ticks until a call that answered nothing takes effect after all.
const LATE: u32 = 4;

/// What one node knows of the layout.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Known {
    /// The current version; 0 before the first.
    pub version: u64,
    /// Its roles.
    pub roles: BTreeMap<NodeId, Role>,
    /// While an older version is live: who has acknowledged and synced the current one.
    pub trackers: Option<BTreeMap<NodeId, Tracker>>,
    /// The nodes of the older live version.
    pub before: BTreeSet<NodeId>,
    /// What is staged; the latest change of it wins.
    pub staged: Vec<StagedChange>,
    staged_at: u64,
}

/// A call that takes effect late.
#[derive(Debug, Clone)]
enum Late {
    Update(Vec<StagedChange>),
    Apply(u64),
    Skip,
}

/// The processes of a site.
#[derive(Debug, Clone, Default)]
pub struct Garage {
    /// What each process knows.
    pub nodes: BTreeMap<NodeId, Known>,
    /// Processes that live.
    pub up: BTreeSet<NodeId>,
    /// Living processes whose Admin API does not answer.
    pub silent: BTreeSet<NodeId>,
    /// A link that is cut, both ways.
    pub cut: Option<(NodeId, NodeId)>,
    /// Processes that have not been introduced to the others.
    pub strangers: BTreeSet<NodeId>,
    /// The roles of each version, once for each Apply that made it.
    pub made: BTreeMap<u64, Vec<BTreeMap<NodeId, Role>>>,
    /// Whose acknowledgement a skip moved at once. One that runs late acknowledges for whoever is down by then, and
    /// nobody can take it back; what was not synced stays so.
    pub skipped: BTreeSet<NodeId>,
    /// What fails.
    pub faults: Faults,
    /// The process died with the last call.
    pub crashed: bool,
    /// Ticks between two exchanges of a pair of nodes; 0: at once.
    pub gossip_every: u32,
    ticks: u32,
    clock: u64,
    late: Vec<(u32, NodeId, Late)>,
}

fn version(number: u64) -> LayoutVersion {
    LayoutVersion(number)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap()
}

impl Garage {
    /// A settled site whose nodes all know the same.
    pub fn settled(number: u64, roles: &BTreeMap<NodeId, Role>, up: &[NodeId]) -> Self {
        let known = Known { version: number, roles: roles.clone(), ..Known::default() };
        Self {
            nodes: up.iter().map(|id| (*id, known.clone())).collect(),
            up: up.iter().copied().collect(),
            ..Self::default()
        }
    }

    /// A process starts with empty disks.
    pub fn start_empty(&mut self, id: NodeId) {
        self.nodes.insert(id, Known::default());
        self.up.insert(id);
    }

    /// Whether a call is under way that takes effect later.
    pub fn has_late_calls(&self) -> bool {
        !self.late.is_empty()
    }

    /// What the node knows that knows most.
    pub fn newest(&self) -> &Known {
        self.nodes.values().max_by_key(|known| known.version).unwrap()
    }

    /// Every node that knows a layout changes what it knows in the same way: another hand, long ago.
    pub fn everywhere(&mut self, mut change: impl FnMut(&mut Known)) {
        self.nodes.values_mut().filter(|known| known.version > 0).for_each(&mut change);
    }

    fn linked(&self, a: NodeId, b: NodeId) -> bool {
        a == b
            || (self.cut.is_none_or(|(x, y)| (a, b) != (x, y) && (a, b) != (y, x))
                && !self.strangers.contains(&a)
                && !self.strangers.contains(&b))
    }

    /// Whom a living node sees up.
    pub fn sees(&self, viewer: NodeId) -> BTreeSet<NodeId> {
        self.up.iter().copied().filter(|other| self.linked(viewer, *other)).collect()
    }

    /// `GetClusterHealth` on a node: over the union of the live versions, and a quorum in each of them.
    pub fn health(&self, viewer: NodeId) -> Health {
        let known = &self.nodes[&viewer];
        let seen = self.sees(viewer);
        let all: BTreeSet<NodeId> =
            known.roles.keys().chain(known.trackers.iter().flat_map(BTreeMap::keys)).copied().collect();
        let up = all.intersection(&seen).count();
        let whole = |ids: &mut dyn Iterator<Item = &NodeId>| ids.filter(|id| seen.contains(id)).count() >= 2;
        let quorum =
            whole(&mut known.roles.keys()) && (known.trackers.is_none() || whole(&mut known.before.iter()));
        let partitions = if known.version == 0 { 0 } else { 256 };
        Health {
            status: if up == all.len() && up > 0 { "healthy" } else { "degraded" }.to_owned(),
            known_nodes: count(self.nodes.len()),
            connected_nodes: count(seen.len()),
            storage_nodes: count(all.len()),
            storage_nodes_up: count(up),
            partitions,
            partitions_quorum: if quorum { partitions } else { 0 },
            partitions_all_ok: if up == all.len() { partitions } else { 0 },
        }
    }

    /// Whether objects can be written and read: every live version that any living node knows has its quorum.
    pub fn serves(&self) -> bool {
        let whole =
            |ids: &mut dyn Iterator<Item = &NodeId>| ids.filter(|id| self.up.contains(id)).count() >= 2;
        self.up.iter().map(|id| &self.nodes[id]).filter(|known| known.version > 0).all(|known| {
            whole(&mut known.roles.keys()) && (known.trackers.is_none() || whole(&mut known.before.iter()))
        })
    }

    fn layout(&self, at: NodeId) -> Layout {
        let known = &self.nodes[&at];
        Layout {
            version: version(known.version),
            roles: known.roles.clone(),
            parameters: LayoutParameters { zone_redundancy: ZoneRedundancy::Maximum },
            staged: known.staged.clone(),
            staged_parameters: None,
        }
    }

    fn core(&self, at: NodeId) -> Core {
        let known = &self.nodes[&at];
        let seen = self.sees(at);
        let disk = Partition { available: 1 << 42, total: 1 << 42 };
        let listed = self.nodes.keys().chain(known.roles.keys()).filter(|id| self.linked(at, **id));
        let nodes = listed
            .map(|id| {
                let state = NodeState {
                    is_up: seen.contains(id),
                    draining: false,
                    addr: None,
                    hostname: None,
                    version: Some("cargo:2.5.0".to_owned()),
                    last_seen_secs_ago: (*id != at).then_some(1),
                    data_partition: Some(disk),
                    metadata_partition: Some(disk),
                };
                (*id, state)
            })
            .collect();
        let current = version(known.version);
        let mut versions = vec![HistoryVersion { version: current, status: HistoryStatus::Current }];
        if known.trackers.is_some() {
            let before = version(known.version - 1);
            versions.push(HistoryVersion { version: before, status: HistoryStatus::Draining });
        }
        let acked = known.trackers.iter().flat_map(BTreeMap::values).map(|tracker| tracker.ack).min();
        Core {
            answering: Some(at),
            health: self.health(at),
            status_layout_version: current,
            nodes,
            layout: self.layout(at),
            history: History {
                current,
                min_ack: acked.unwrap_or(current),
                versions,
                trackers: known.trackers.clone(),
            },
        }
    }

    /// What a pass sees that asks in this order and believes nothing older than `recorded` (O6, O8), by the rules of
    /// [`crate::observe::fetch`] themselves.
    pub fn view(&self, order: &[NodeId], recorded: Option<LayoutVersion>) -> GarageView {
        let asked: Vec<NodeId> = order.iter().copied().filter(|id| self.nodes.contains_key(id)).collect();
        let answers = |id: &NodeId| self.up.contains(id) && !self.silent.contains(id);
        let believed = |id: &&NodeId| {
            answers(id) && recorded.is_none_or(|recorded| version(self.nodes[*id].version) >= recorded)
        };
        let first = asked.iter().filter(believed).find(|id| self.nodes[*id].version > 0);
        let first = first.or_else(|| asked.iter().find(believed));
        let mut view = GarageView::not_observed(NotObserved { what: "any node".to_owned() });
        if let Some(first) = first {
            view.core = Ok(self.core(*first));
        }
        let seen: Vec<(Endpoint, Result<Seen, Silence>)> = asked
            .iter()
            .map(|id| {
                let endpoint = Endpoint { address: "10.0.0.1:3903".parse().unwrap(), node: Some(*id) };
                let seen = answers(id).then(|| Seen {
                    identity: Some(*id),
                    version: version(self.nodes[id].version),
                    view: PeerView { health: self.health(*id), up: self.sees(*id) },
                });
                (endpoint, seen.ok_or(Silence::TimedOut))
            })
            .collect();
        if let Ok(core) = &view.core
            && newer_version(&seen, core.layout.version).is_some()
        {
            view.core = Err(NotObserved { what: "a newer layout".to_owned() });
        }
        view.peer_views = Some(believed_peers(seen, view.core.as_ref().ok()));
        view
    }

    /// Performs an action as the product does, against this site.
    pub fn perform(&mut self, action: &Action) -> Outcome {
        futures::executor::block_on(act::perform_on_garage(action, &Calls(Mutex::new(self))))
    }

    /// Both nodes of a pair know what either knew.
    pub fn exchange(&mut self, a: NodeId, b: NodeId) {
        if self.up.contains(&a) && self.up.contains(&b) && self.linked(a, b) {
            let (one, other) = (self.nodes[&a].clone(), self.nodes[&b].clone());
            merge(self.nodes.get_mut(&a).unwrap(), &other);
            merge(self.nodes.get_mut(&b).unwrap(), &one);
        }
    }

    /// Time goes on: late calls take effect, nodes acknowledge and sync, and what they know travels.
    pub fn tick(&mut self) {
        self.ticks += 1;
        let (due, rest): (Vec<_>, Vec<_>) = self.late.drain(..).partition(|(tick, ..)| *tick <= self.ticks);
        self.late = rest;
        for (_, at, call) in due {
            if self.up.contains(&at) {
                match call {
                    Late::Update(changes) => self.stage(at, &changes),
                    Late::Apply(number) => drop(self.apply(at, number)),
                    Late::Skip => drop(self.skip(at)),
                }
            }
        }
        let ids: Vec<NodeId> = self.up.iter().copied().collect();
        for (index, a) in ids.iter().enumerate() {
            for (step, b) in ids.iter().enumerate().skip(index + 1) {
                let turn = u32::try_from(index + step).unwrap();
                if self.gossip_every == 0 || (self.ticks + turn).is_multiple_of(self.gossip_every) {
                    self.exchange(*a, *b);
                }
            }
        }
        for id in ids {
            self.nodes.get_mut(&id).unwrap().advance(id);
        }
    }

    fn stage(&mut self, at: NodeId, changes: &[StagedChange]) {
        self.clock += 1;
        let known = self.nodes.get_mut(&at).unwrap();
        for change in changes {
            known.staged.retain(|have| have.id != change.id);
            known.staged.push(change.clone());
        }
        known.staged_at = self.clock;
    }

    /// `RevertClusterLayout` on every node.
    pub fn revert(&mut self) {
        self.clock += 1;
        for known in self.nodes.values_mut() {
            known.staged.clear();
            known.staged_at = self.clock;
        }
    }

    /// `ApplyClusterLayout`, whoever asks for it. With nothing staged it makes a version all the same.
    pub fn apply(&mut self, at: NodeId, number: u64) -> Result<Layout, CallFailure> {
        let known = self.nodes.get_mut(&at).unwrap();
        if number != known.version + 1 {
            return Err(CallFailure::Unknown("500".to_owned()));
        }
        let mut roles = known.roles.clone();
        for change in &known.staged {
            match &change.role {
                Some(role) => roles.insert(change.id, role.clone()),
                None => roles.remove(&change.id),
            };
        }
        if roles.values().filter(|role| role.is_storage()).count() < 3 {
            return Err(CallFailure::Unknown("500".to_owned()));
        }
        self.clock += 1;
        let before = version(known.version);
        let tracker = Tracker { ack: before, sync: before, sync_ack: before };
        let changed = known.roles.keys().ne(roles.keys());
        let both = known.roles.keys().chain(roles.keys());
        // The same nodes again have nothing to sync.
        known.trackers = changed.then(|| both.map(|id| (*id, tracker)).collect());
        known.before = known.roles.keys().copied().collect();
        known.version = number;
        known.roles.clone_from(&roles);
        known.staged.clear();
        known.staged_at = self.clock;
        self.made.entry(number).or_default().push(roles);
        Ok(self.layout(at))
    }

    fn skip(&mut self, at: NodeId) -> Vec<NodeId> {
        let seen = self.sees(at);
        let known = self.nodes.get_mut(&at).unwrap();
        let current = version(known.version);
        let mut acked = Vec::new();
        for (id, tracker) in known.trackers.iter_mut().flatten() {
            if !seen.contains(id) && tracker.ack < current {
                tracker.ack = current;
                acked.push(*id);
            }
        }
        acked
    }
}

impl Known {
    /// A living node acknowledges what it knows; a sync pass runs for the lowest acknowledgement, which a dead node
    /// holds (FACTS 5).
    fn advance(&mut self, own: NodeId) {
        let current = version(self.version);
        let Some(trackers) = &mut self.trackers else { return };
        let acked = trackers.values().map(|tracker| tracker.ack).min();
        if let Some(tracker) = trackers.get_mut(&own) {
            tracker.ack = current;
            if acked.is_some_and(|ack| ack >= current) {
                tracker.sync = current;
            }
        }
        let synced = self.roles.keys().all(|id| trackers.get(id).is_some_and(|t| t.sync >= current));
        if synced && trackers.values().all(|tracker| tracker.ack >= current) {
            self.trackers = None;
        }
    }
}

fn merge(into: &mut Known, from: &Known) {
    if from.version > into.version {
        into.version = from.version;
        into.roles.clone_from(&from.roles);
        into.trackers.clone_from(&from.trackers);
        into.before.clone_from(&from.before);
    } else if from.version == into.version {
        match (&mut into.trackers, &from.trackers) {
            (Some(own), Some(other)) => {
                for (id, tracker) in own {
                    if let Some(other) = other.get(id) {
                        tracker.ack = tracker.ack.max(other.ack);
                        tracker.sync = tracker.sync.max(other.sync);
                        tracker.sync_ack = tracker.sync_ack.max(other.sync_ack);
                    }
                }
            }
            (own, _) => *own = None,
        }
    }
    if from.staged_at > into.staged_at {
        into.staged.clone_from(&from.staged);
        into.staged_at = from.staged_at;
    }
}

/// The Admin API of the site: every call is counted and may fail.
struct Calls<'a>(Mutex<&'a mut Garage>);

impl<'a> Calls<'a> {
    fn lock(&self) -> MutexGuard<'_, &'a mut Garage> {
        self.0.lock().unwrap()
    }

    fn call<T>(
        &self,
        name: &'static str,
        at: Option<NodeId>,
        late: Option<Late>,
        effect: impl FnOnce(&mut Garage, NodeId) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        let mut garage = self.lock();
        let unreachable = || CallFailure::NotExecuted(Refusal::Unreachable("its address".to_owned()));
        if garage.crashed {
            return Err(unreachable());
        }
        let answers = |id: &NodeId| garage.up.contains(id) && !garage.silent.contains(id);
        let at = at.or_else(|| garage.up.iter().copied().find(answers)).filter(answers);
        let at = at.ok_or_else(unreachable)?;
        let lost = || Err(CallFailure::Unknown("the connection was cut".to_owned()));
        match garage.faults.next(name) {
            None => effect(&mut garage, at),
            Some(Fault::Before) => lost(),
            Some(Fault::Late) => {
                let due = garage.ticks + LATE;
                garage.late.extend(late.map(|late| (due, at, late)));
                lost()
            }
            Some(fault) => {
                garage.crashed = fault == Fault::Crash;
                drop(effect(&mut garage, at));
                lost()
            }
        }
    }
}

impl GarageCalls for Calls<'_> {
    async fn layout(&self, at: Option<NodeId>) -> Result<Layout, CallFailure> {
        self.call("GetClusterLayout", at, None, |garage, at| Ok(garage.layout(at)))
    }

    async fn update_layout(
        &self,
        at: Option<NodeId>,
        changes: &[StagedChange],
    ) -> Result<Layout, CallFailure> {
        self.call("UpdateClusterLayout", at, Some(Late::Update(changes.to_vec())), |garage, at| {
            garage.stage(at, changes);
            Ok(garage.layout(at))
        })
    }

    async fn preview_layout(&self, at: Option<NodeId>) -> Result<Option<Layout>, CallFailure> {
        self.call("PreviewClusterLayoutChanges", at, None, |garage, at| {
            let mut copy = garage.clone();
            let next = copy.nodes[&at].version + 1;
            Ok(copy.apply(at, next).ok())
        })
    }

    async fn apply_layout(&self, at: Option<NodeId>, number: LayoutVersion) -> Result<Layout, CallFailure> {
        self.call("ApplyClusterLayout", at, Some(Late::Apply(number.0)), |garage, at| {
            garage.apply(at, number.0)
        })
    }

    async fn skip_dead_nodes(
        &self,
        at: Option<NodeId>,
        number: LayoutVersion,
    ) -> Result<Vec<NodeId>, CallFailure> {
        self.call("ClusterLayoutSkipDeadNodes", at, Some(Late::Skip), |garage, at| {
            if garage.nodes[&at].trackers.is_none() || garage.nodes[&at].version != number.0 {
                return Err(CallFailure::NotExecuted(Refusal::Garage("400".to_owned())));
            }
            let acked = garage.skip(at);
            garage.skipped.extend(acked.iter().copied());
            Ok(acked)
        })
    }

    async fn connect_nodes(&self, _: SocketAddr, peers: &[Peer]) -> Result<Vec<bool>, CallFailure> {
        self.call("ConnectClusterNodes", None, None, |garage, _| {
            let known = |peer: &Peer| garage.up.contains(&peer.id);
            let connected: Vec<bool> = peers.iter().map(known).collect();
            for peer in peers.iter().filter(|peer| known(peer)).collect::<Vec<_>>() {
                garage.strangers.remove(&peer.id);
            }
            Ok(connected)
        })
    }

    async fn launch_repair(&self, _: NodeId, _: RepairKind) -> Result<(), CallFailure> {
        Ok(())
    }

    async fn set_worker_variable(&self, _: NodeId, _: &str, _: &str) -> Result<(), CallFailure> {
        Ok(())
    }
}
