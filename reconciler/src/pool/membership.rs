//! Who is a member: the Nodes that the pools select, what is recorded on them, and their activation
//! (`compat.md` 2).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_crds::conditions::PoolsReason;
use holdfast_crds::ids::{KubernetesNodeName, NodeId, Pair};
use holdfast_crds::names::{self, HostPathClaim, PREFIX, fence, label};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};

use super::condition::Problem;
use super::record::Record;
use super::site::{Pool, Site};
use super::{Incarnation, Input, PoolStep, gate, identity};
use crate::act::{Action, PatchBuilder, Target};

/// Most Nodes that the pools of a cluster may select.
pub const MEMBER_LIMIT: usize = 255;
/// Most pools of a cluster.
pub const POOL_LIMIT: usize = 32;

/// The members of a site, by pair.
pub struct Members<'a> {
    /// Every selected pair.
    pub all: BTreeMap<Pair, Member<'a>>,
    /// No membership work and no layout write happens: two records of an identity differ.
    pub stopped: bool,
    /// No layout write happens, and no Node is activated that was not.
    pub conflict: bool,
}

/// One selected Node of a pool and all that is known of it.
pub struct Member<'a> {
    /// Pool and Node.
    pub pair: Pair,
    /// The pool.
    pub pool: &'a Pool,
    /// The Node.
    pub node: &'a Node,
    /// The pool's DaemonSet.
    pub daemon_set: Option<&'a DaemonSet>,
    /// The DaemonSet's current token; `None` while it is fenced.
    pub token: Option<String>,
    /// The claim on the Node.
    pub claim: Option<HostPathClaim>,
    /// The identity annotation on the Node.
    pub identity_annotation: Option<NodeId>,
    /// Its GarageNode.
    pub record: Option<&'a Record>,
    /// The DaemonSet's Pod for this Node that is not on its way out.
    pub pod: Option<&'a Pod>,
    /// The process in that Pod, once it runs and has an address.
    pub process: Option<Process>,
    /// The identity on which all records agree.
    pub recorded: Option<NodeId>,
    /// Why nothing is done about it beside the status: a damaged record, a conflict, another hand.
    pub skipped: bool,
    /// It is held out of service.
    pub held: bool,
    /// A refill is replacing its identity: that alone moves its records and its role, but it must run (R4).
    pub replacing: bool,
}

/// A running process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Which run.
    pub incarnation: Incarnation,
    /// Its own answer, once it was read.
    pub id: Option<NodeId>,
    /// Where its peers reach it.
    pub rpc: SocketAddr,
    /// Its Admin API.
    pub admin: SocketAddr,
}

impl Member<'_> {
    /// The value of the activation label on the Node.
    pub fn label(&self, site: &Site) -> Option<&str> {
        self.node.labels().get(&site.id.activation_label(&self.pair.pool)).map(String::as_str)
    }

    /// Whether the Node carries the current token.
    pub fn is_active(&self, site: &Site) -> bool {
        self.token.is_some() && self.label(site) == self.token.as_deref()
    }

    /// The identity that its process answers with, where it contradicts no record (H7).
    pub fn identity(&self) -> Option<NodeId> {
        let id = self.process.as_ref()?.id?;
        self.recorded.is_none_or(|recorded| recorded == id).then_some(id)
    }

    /// Recorded and actual identity, where they differ (H7).
    pub fn other_identity(&self) -> Option<(NodeId, NodeId)> {
        let actual = self.process.as_ref()?.id?;
        self.recorded.filter(|recorded| *recorded != actual).map(|recorded| (recorded, actual))
    }
}

impl<'a> Members<'a> {
    /// Reads who is selected and what is recorded, and names every contradiction.
    pub fn read(
        site: &'a Site,
        input: &Input<'a>,
        records: &'a BTreeMap<Pair, Record>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let kubernetes = &input.observation.kubernetes;
        let mut members = Self { all: BTreeMap::new(), stopped: false, conflict: false };
        let mut selected: BTreeMap<&str, Vec<&Pool>> = BTreeMap::new();
        for pool in &site.pools {
            let Ok(selector) = Selector::try_from(pool.selector.clone()) else {
                members.conflict = true;
                problems.push(Problem::new(
                    PoolsReason::ConfigurationInvalid,
                    format!("the selector of pool {} is not a label selector; correct it", pool.name),
                ));
                continue;
            };
            for (name, node) in kubernetes.nodes.iter() {
                if node.metadata.deletion_timestamp.is_none() && selector.matches(node.labels()) {
                    selected.entry(name).or_default().push(pool);
                }
            }
        }
        if site.pools.len() > POOL_LIMIT || selected.len() > MEMBER_LIMIT {
            members.conflict = true;
            members.stopped = true;
            problems.push(Problem::new(
                PoolsReason::MemberLimitExceeded,
                format!(
                    "{} pools select {} Nodes; at most {POOL_LIMIT} pools and {MEMBER_LIMIT} Nodes fit: narrow the selectors",
                    site.pools.len(),
                    selected.len(),
                ),
            ));
            return members;
        }
        for pool in &site.pools {
            if !selected.values().flatten().any(|other| other.name == pool.name) {
                problems.push(Problem::new(
                    PoolsReason::NoNodesSelected,
                    format!("the selector of pool {} matches no Node; label a Node for it", pool.name),
                ));
            }
        }
        for (name, pools) in &selected {
            let (Some(node), Ok(node_name)) =
                (kubernetes.nodes.get(*name), name.parse::<KubernetesNodeName>())
            else {
                continue;
            };
            let several = pools.len() > 1;
            if several {
                members.conflict = true;
                let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
                problems.push(Problem::new(
                    PoolsReason::SelectorConflict,
                    format!(
                        "Node {name} is selected by the pools {}; a Node belongs to one: change a selector",
                        names.join(" and ")
                    ),
                ));
            }
            for pool in pools {
                let pair = Pair { pool: pool.name.clone(), node: node_name.clone() };
                let mut member =
                    Member::read(site, input, records.get(&pair), pair.clone(), pool, node, problems);
                member.skipped |=
                    several || member.record.is_some_and(|r| r.is_suspended() || r.other_hand().is_some());
                if member.other_claims(site, problems) {
                    members.conflict = true;
                    member.skipped = true;
                }
                members.all.insert(pair, member);
            }
        }
        members.removed(site, input, records, problems);
        members.collisions(site, input, problems);
        members
    }

    /// Members whose Node is no longer selected, or whose pool is gone: removal is not done here.
    fn removed(
        &self,
        site: &Site,
        input: &Input<'_>,
        records: &BTreeMap<Pair, Record>,
        problems: &mut Vec<Problem>,
    ) {
        let mut gone: BTreeSet<Pair> =
            records.keys().filter(|pair| !self.all.contains_key(pair)).cloned().collect();
        for pool in &site.pools {
            let activation = site.id.activation_label(&pool.name);
            let active = |(_, node): &(_, &Arc<Node>)| node.labels().contains_key(&activation);
            for (name, _) in input.observation.kubernetes.nodes.iter().filter(active) {
                let Ok(node_name) = name.parse() else { continue };
                let pair = Pair { pool: pool.name.clone(), node: node_name };
                if !self.all.contains_key(&pair) {
                    gone.insert(pair);
                }
            }
        }
        if !gone.is_empty() {
            problems.push(Problem::new(
                PoolsReason::RemovalNotManaged,
                format!(
                    "{} no longer selected; removing members (drain) is not done here and they are left alone: select the Node again, or drain with the full operator",
                    list(&gone, "is", "are"),
                ),
            ));
        }
    }

    /// Records that differ stop all work of the cluster (`compat.md` 2).
    fn collisions(&mut self, site: &Site, input: &Input<'_>, problems: &mut Vec<Problem>) {
        let replacing = identity::replacement(input);
        let mut owner: BTreeMap<NodeId, Pair> = BTreeMap::new();
        for member in self.all.values_mut() {
            let known = identity::known(site, member, input);
            let ids: BTreeSet<NodeId> = known.iter().map(|(_, id)| *id).collect();
            if let Some((pair, from, to)) = &replacing
                && *pair == member.pair
                && ids.iter().all(|id| id == from || Some(id) == to.as_ref())
            {
                // A refill is moving the pins: they may differ until it is done (R4), and it alone moves them.
                member.replacing = !member.skipped;
                member.skipped = true;
                member.recorded = to.or(Some(*from));
                continue;
            }
            if ids.len() > 1 {
                self.stopped = true;
                let told: Vec<String> =
                    known.iter().map(|(what, id)| format!("{what} {}", id.short())).collect();
                problems.push(Problem::new(
                    PoolsReason::IdentityCollision,
                    format!(
                        "the records of {} name different identities ({}); nothing is done until a person corrects them",
                        member.pair,
                        told.join(", "),
                    ),
                ));
                continue;
            }
            member.recorded = ids.first().copied();
            let claimed = member.recorded.or(member.process.as_ref().and_then(|process| process.id));
            if let Some(id) = claimed
                && let Some(other) = owner.insert(id, member.pair.clone())
            {
                self.stopped = true;
                problems.push(Problem::new(
                    PoolsReason::IdentityCollision,
                    format!(
                        "{other} and {} both have the identity {}; nothing is done until a person corrects it (was a disk copied?)",
                        member.pair,
                        id.short(),
                    ),
                ));
            }
        }
    }

    /// Activation, gates and records of the members.
    pub fn plan(
        &self,
        site: &Site,
        input: &Input<'_>,
        no_other_hand: bool,
        step: &mut PoolStep,
        problems: &mut Vec<Problem>,
    ) {
        if self.stopped {
            return;
        }
        for member in self.all.values() {
            if member.is_left_alone() {
                continue;
            }
            // Also during a replacement: a Pod that is deleted meanwhile, or a Node that is made anew, must not leave
            // the site for good with a node less (R4).
            if no_other_hand {
                step.actions.extend(member.activate(site, input));
            }
            // A refill moves the pins itself, but a GarageNode that was deleted meanwhile is made again here.
            if !member.replacing || member.record.is_none() {
                step.actions.extend(identity::plan_record(site, member, input));
            }
        }
        gate::plan(site, self, input, step, problems);
    }
}

/// `a is`, `a and b are`.
pub(super) fn list(items: &BTreeSet<Pair>, one: &str, many: &str) -> String {
    let names: Vec<String> = items.iter().map(ToString::to_string).collect();
    format!("{} {}", names.join(", "), if names.len() == 1 { one } else { many })
}

impl<'a> Member<'a> {
    fn read(
        site: &Site,
        input: &Input<'a>,
        record: Option<&'a Record>,
        pair: Pair,
        pool: &'a Pool,
        node: &'a Node,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let kubernetes = &input.observation.kubernetes;
        let daemon_set =
            kubernetes.daemon_sets.get(&names::daemon_set_name(&site.id.name, &pool.name)).map(Arc::as_ref);
        let token = daemon_set.map(token_of).filter(|token| !names::is_fence(token));
        let mut skipped = false;
        let mut damaged = |what: String| {
            skipped = true;
            problems.push(Problem::new(PoolsReason::RecordDamaged, what));
        };
        let annotations = node.annotations();
        let claim = annotations.get(&site.id.host_path_claim_annotation(&pool.name)).and_then(|text| {
            match HostPathClaim::parse(text) {
                Ok(claim) if claim.belongs_to(&site.id, &pool.name) => Some(claim),
                Ok(_) => {
                    damaged(format!("the HostPath claim of {pair} on its Node names another owner; correct the annotation"));
                    None
                }
                Err(error) => {
                    damaged(format!("the HostPath claim of {pair} on its Node cannot be read: {error}; correct the annotation"));
                    None
                }
            }
        });
        let identity_annotation =
            annotations.get(&site.id.identity_annotation(&pool.name)).and_then(|text| match text.parse() {
                Ok(id) => Some(id),
                Err(error) => {
                    damaged(format!("the identity annotation of {pair} on its Node cannot be read: {error}"));
                    None
                }
            });
        let pod = daemon_set.and_then(|daemon_set| {
            kubernetes
                .pods
                .iter()
                .map(Arc::as_ref)
                .filter(|pod| {
                    gate::is_owned_by(pod, daemon_set) && gate::target_node(pod) == Some(pair.node.as_str())
                })
                .filter(|pod| pod.metadata.deletion_timestamp.is_none())
                .max_by_key(|pod| pod.metadata.creation_timestamp.clone())
        });
        let process = pod.and_then(|pod| Process::read(site, pod, input));
        let held = input.held == Some(&pair);
        Self {
            pair,
            pool,
            node,
            daemon_set,
            token,
            claim,
            identity_annotation,
            record,
            pod,
            process,
            recorded: None,
            skipped,
            held,
            replacing: false,
        }
    }

    /// Whether directories of this member are claimed by somebody else on the Node; says so.
    fn other_claims(&self, site: &Site, problems: &mut Vec<Problem>) -> bool {
        let own = site.id.host_path_claim_annotation(&self.pair.pool);
        let paths = self.pool.host_paths();
        for (key, text) in self.node.annotations() {
            if *key == own || !key.starts_with(&format!("{PREFIX}gc-")) || !key.ends_with("-hostpath-claim") {
                continue;
            }
            let conflict = match HostPathClaim::parse(text) {
                Ok(other) => other.overlap(&paths).map(|path| {
                    format!(
                        "{path} on Node {} is claimed by pool {} of GarageCluster {}/{}; choose other directories for pool {}",
                        self.pair.node,
                        other.node_local_pool_name,
                        other.cluster_namespace,
                        other.cluster_name,
                        self.pair.pool,
                    )
                }),
                Err(error) => Some(format!("a HostPath claim on Node {} cannot be read ({error}), so that it may overlap; correct the annotation {key}", self.pair.node)),
            };
            if let Some(message) = conflict {
                problems.push(Problem::new(PoolsReason::HostPathConflict, message));
                return true;
            }
        }
        false
    }

    /// Nothing of it is touched. A member that a refill replaces is not: what it runs on must go on.
    pub fn is_left_alone(&self) -> bool {
        self.skipped && !self.replacing
    }

    /// One patch of the Node: activation label, claim and, once it is known, the identity.
    fn activate(&self, site: &Site, input: &Input<'_>) -> Option<Action> {
        let recorded =
            self.claim.as_ref().and_then(|claim| claim.garage_node_id).or(self.identity_annotation);
        let id = recorded.or_else(|| {
            if self.replacing { identity::of_role(input) } else { identity::to_record(self, input) }
        });
        if self.claim.as_ref().is_some_and(|claim| claim.retiring) {
            return None;
        }
        let mut claim = self
            .claim
            .clone()
            .unwrap_or_else(|| HostPathClaim::new(&site.id, &self.pair.pool, self.pool.host_paths()));
        claim.add_paths(self.pool.host_paths());
        claim.garage_node_id = claim.garage_node_id.or(id);

        let annotations = self.node.annotations();
        let mut wanted: Vec<(&str, String, String)> = Vec::new();
        if let Some(token) = self.token.as_ref().filter(|_| !self.held) {
            wanted.push(("labels", site.id.activation_label(&self.pair.pool), token.clone()));
        } else if self.token.is_none() && self.claim.is_none() {
            // Nothing is claimed before there is a DaemonSet to run there.
            return None;
        }
        let claim_key = site.id.host_path_claim_annotation(&self.pair.pool);
        if self.claim.as_ref() != Some(&claim) {
            wanted.push(("annotations", claim_key, claim.to_annotation()));
        }
        if let Some(id) = id.filter(|_| self.identity_annotation.is_none()) {
            wanted.push(("annotations", site.id.identity_annotation(&self.pair.pool), id.to_string()));
        }
        let current = |map: &str, key: &str| -> Option<&str> {
            let map = if map == "labels" { self.node.labels() } else { annotations };
            map.get(key).map(String::as_str)
        };
        wanted.retain(|(map, key, value)| current(map, key) != Some(value));
        if wanted.is_empty() {
            return None;
        }
        let uid = self.node.metadata.uid.as_deref().unwrap_or_default();
        let version = self.node.metadata.resource_version.as_deref().unwrap_or_default();
        let mut patch = PatchBuilder::new()
            .unchanged(uid, version)
            .ensure_map("labels", self.node.metadata.labels.is_some())
            .ensure_map("annotations", self.node.metadata.annotations.is_some());
        for (map, key, value) in wanted {
            patch = patch.set_entry(map, &key, current(map, &key), value);
        }
        Some(Action::Patch {
            target: Target::node(self.pair.node.as_str()),
            status: false,
            patch: patch.build(),
            dry_run: false,
        })
    }
}

/// The current token is the annotation, not what the UID would give (`compat.md` 1).
pub fn token_of(daemon_set: &DaemonSet) -> String {
    daemon_set
        .annotations()
        .get(names::annotation::workload::ACTIVATION_VALUE)
        .cloned()
        .unwrap_or_else(|| fence::OLD_TOKEN.to_owned())
}

impl Process {
    fn read(site: &Site, pod: &Pod, input: &Input<'_>) -> Option<Self> {
        let incarnation = identity::incarnation(pod)?;
        let id = input.memory.identities.get(&incarnation).copied();
        let rpc = SocketAddr::new(incarnation.address, site.ports.rpc);
        let admin = SocketAddr::new(incarnation.address, site.ports.admin);
        Some(Self { incarnation, id, rpc, admin })
    }
}

/// Whether a Pod is one of a pool of this cluster.
pub fn is_pool_pod(pod: &Pod) -> bool {
    pod.labels().get(label::STORAGE_GROUP).map(String::as_str) == Some(label::STORAGE_GROUP_NODE_LOCAL)
}
