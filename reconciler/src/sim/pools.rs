//! A small world in memory: an API server's objects, the controllers that act on them, and Garage
//! processes, so that a plan can be performed action by action and forgotten in between.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use holdfast_crds::ids::{LayoutVersion, NodeId};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::act::{self, Action, Kind, Object, Target};
use crate::observe::{
    Core, GarageView, Health, History, HistoryStatus, HistoryVersion, KubernetesView, Layout,
    LayoutParameters, NodeState, NotObserved, Observation, Partition, Role, StagedChange, ZoneRedundancy,
};
use crate::pool::{Input, Memory, PoolStep, Settings, identity, step};
use crate::status::{Parts, plan as plan_status};

pub const NAMESPACE: &str = "objects";
pub const NAME: &str = "site-a";
pub const UID: &str = "2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c";
pub const DAEMON_SET_UID: &str = "7d9a1f34-52c8-4e0b-9a67-3c1b2d4e5f60";

pub fn now() -> Timestamp {
    "2026-11-30T01:00:00Z".parse().unwrap()
}

/// The example of `compat.md`, with as many Nodes as named.
pub fn cluster() -> Value {
    json!({
        "apiVersion": "garage.rajsingh.info/v1beta2",
        "kind": "GarageCluster",
        "metadata": { "name": NAME, "namespace": NAMESPACE, "uid": UID, "resourceVersion": "1", "generation": 1 },
        "spec": {
            "zone": "rack-1",
            "defaultNodeTags": ["row:7"],
            "replication": { "factor": 3 },
            "admin": { "adminTokenSecretRef": { "name": "site-a-admin", "key": "admin-token" } },
            "storage": {
                "replicas": 0,
                "nodeLocalPools": [{
                    "name": "fast",
                    "selector": { "matchLabels": { "disk": "fast" } },
                    "capacity": "2Ti",
                    "metadata": { "hostPath": "/srv/garage/fast/meta", "hostPathType": "Directory" },
                    "data": { "hostPath": "/srv/garage/fast/data", "hostPathType": "Directory" },
                }],
            },
        },
    })
}

/// One Garage process's disk.
#[derive(Debug, Clone)]
pub struct Disk {
    pub id: NodeId,
    pub mounted: bool,
}

/// The identity of the disk in the Node of this number.
fn identity(index: usize) -> NodeId {
    match u8::try_from(index) {
        Ok(small) if small < 15 => id(0x11 * (small + 1)),
        _ => {
            let mut bytes = [0xf0; 32];
            bytes[..8].copy_from_slice(&(index as u64).to_be_bytes());
            NodeId::from_bytes(bytes)
        }
    }
}

#[derive(Clone)]
pub struct World {
    /// The cluster's name.
    pub name: String,
    pub objects: BTreeMap<Target, Value>,
    pub disks: BTreeMap<String, Disk>,
    pub layout: Layout,
    pub connected: BTreeSet<NodeId>,
    pub version: u64,
    pub settings: Settings,
    pub held: Option<holdfast_crds::ids::Pair>,
    /// Every layout version that was made, with its roles.
    pub versions: Vec<BTreeMap<NodeId, Role>>,
    pub variables: BTreeMap<(NodeId, String), String>,
    pub writes: u32,
    typed: Typed,
}

/// Objects as they were read last, by resource version: a sweep reads the same ones over and over.
#[derive(Default)]
struct Typed(Mutex<BTreeMap<Target, Versioned>>);

/// A resource version, and the object that it stands for.
type Versioned = (Value, Arc<dyn Any + Send + Sync>);

impl Clone for Typed {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.0.lock().unwrap().clone()))
    }
}

impl Typed {
    fn read<T: DeserializeOwned + Send + Sync + 'static>(&self, target: &Target, value: &Value) -> Arc<T> {
        let mut cached = self.0.lock().unwrap();
        let version = &value["metadata"]["resourceVersion"];
        if let Some((known, object)) = cached.get(target)
            && known == version
            && let Ok(object) = Arc::clone(object).downcast::<T>()
        {
            return object;
        }
        let object: Arc<T> = typed(value);
        cached.insert(target.clone(), (version.clone(), object.clone()));
        object
    }
}

pub fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

fn typed<T: DeserializeOwned>(value: &Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value.clone()).unwrap())
}

impl World {
    pub fn new(nodes: &[&str]) -> Self {
        Self::with(cluster(), nodes)
    }

    /// The same of another cluster, of which every Node has its labels.
    pub fn with(cluster: Value, nodes: &[&str]) -> Self {
        let labels = cluster["spec"]["storage"]["nodeLocalPools"][0]["selector"]["matchLabels"].clone();
        let mut world = Self {
            name: cluster["metadata"]["name"].as_str().unwrap().to_owned(),
            objects: BTreeMap::new(),
            disks: BTreeMap::new(),
            layout: Layout {
                version: LayoutVersion(0),
                roles: BTreeMap::new(),
                parameters: LayoutParameters { zone_redundancy: ZoneRedundancy::Maximum },
                staged: Vec::new(),
                staged_parameters: None,
            },
            connected: BTreeSet::new(),
            version: 1,
            settings: Settings::default(),
            held: None,
            versions: Vec::new(),
            variables: BTreeMap::new(),
            writes: 0,
            typed: Typed::default(),
        };
        world.put(Kind::GarageCluster, cluster);
        for (index, name) in nodes.iter().enumerate() {
            world.put(
                Kind::Node,
                json!({"apiVersion": "v1", "kind": "Node",
                       "metadata": {"name": name, "uid": format!("node-{name}"), "labels": labels}}),
            );
            world.disks.insert((*name).to_owned(), Disk { id: identity(index), mounted: true });
        }
        world.put(
            Kind::Secret,
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "site-a-admin", "namespace": NAMESPACE},
                   "data": {"admin-token": "ZXhhbXBsZS1hZG1pbi10b2tlbg=="}}),
        );
        world
    }

    pub fn put(&mut self, kind: Kind, mut value: Value) {
        self.version += 1;
        value["metadata"]["resourceVersion"] = self.version.to_string().into();
        let target = Object { kind, value: value.clone() }.target();
        self.objects.insert(target, value);
    }

    pub fn of(&self, kind: Kind) -> Vec<&Value> {
        self.objects.iter().filter(|(target, _)| target.kind == kind).map(|(_, value)| value).collect()
    }

    pub fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.objects.iter().find(|(target, _)| target.kind == kind && target.name == name).map(|(_, v)| v)
    }

    pub fn edit(&mut self, kind: Kind, name: &str, change: impl FnOnce(&mut Value)) {
        let mut value = self.get(kind, name).unwrap().clone();
        change(&mut value);
        self.put(kind, value);
    }

    /// The objects of a kind, by name.
    pub fn map<T: DeserializeOwned + Send + Sync + 'static>(&self, kind: Kind) -> BTreeMap<String, Arc<T>> {
        self.objects
            .iter()
            .filter(|(target, _)| target.kind == kind)
            .map(|(target, value)| (target.name.clone(), self.typed.read(target, value)))
            .collect()
    }

    /// Kubernetes as a pass sees it.
    pub fn kubernetes(&self) -> KubernetesView {
        KubernetesView {
            cluster: self.map(Kind::GarageCluster).remove(&self.name).unwrap(),
            garage_nodes: Some(Arc::new(self.map(Kind::GarageNode))),
            pods: self.map(Kind::Pod).into_values().collect(),
            nodes: Arc::new(self.map(Kind::Node)),
            daemon_sets: Arc::new(self.map(Kind::DaemonSet)),
            config_maps: Arc::new(self.map(Kind::ConfigMap)),
            services: Arc::new(self.map(Kind::Service)),
            disruption_budgets: Arc::new(self.map(Kind::PodDisruptionBudget)),
            secrets: self.map(Kind::Secret),
        }
    }

    pub fn observe(&self) -> Observation {
        Observation { kubernetes: self.kubernetes(), garage: self.garage() }
    }

    /// Node and identity of each running process.
    pub fn running(&self) -> Vec<(String, NodeId)> {
        self.of(Kind::Pod)
            .into_iter()
            .filter(|pod| pod["status"]["phase"] == "Running")
            .filter_map(|pod| {
                let node = pod["spec"]["nodeName"].as_str()?;
                Some((node.to_owned(), self.disks.get(node)?.id))
            })
            .collect()
    }

    pub fn garage(&self) -> GarageView {
        let running = self.running();
        let core = match running.first() {
            None => Err(NotObserved { what: "no Pod with an address".to_owned() }),
            Some((_, hub)) => {
                let mut nodes = BTreeMap::new();
                let state = |is_up| NodeState {
                    is_up,
                    draining: false,
                    addr: None,
                    hostname: Some("host".to_owned()),
                    version: Some("cargo:2.5.0".to_owned()),
                    last_seen_secs_ago: Some(1),
                    data_partition: Some(Partition { available: 900, total: 1000 }),
                    metadata_partition: Some(Partition { available: 900, total: 1000 }),
                };
                for id in self.layout.roles.keys() {
                    nodes.insert(*id, state(false));
                }
                for (_, id) in &running {
                    if id == hub || self.connected.contains(id) {
                        nodes.insert(*id, state(true));
                    }
                }
                let up = self.layout.roles.keys().filter(|id| nodes[*id].is_up).count();
                let total = self.layout.roles.len();
                Ok(Core {
                    answering: Some(*hub),
                    health: Health {
                        status: if total > 0 && up == total { "healthy" } else { "unavailable" }.to_owned(),
                        known_nodes: u32::try_from(nodes.len()).unwrap(),
                        connected_nodes: u32::try_from(nodes.values().filter(|n| n.is_up).count()).unwrap(),
                        storage_nodes: u32::try_from(total).unwrap(),
                        storage_nodes_up: u32::try_from(up).unwrap(),
                        partitions: 256,
                        partitions_quorum: if total > 0 && up * 2 > total { 256 } else { 0 },
                        partitions_all_ok: if total > 0 && up == total { 256 } else { 0 },
                    },
                    status_layout_version: self.layout.version,
                    nodes,
                    layout: self.layout.clone(),
                    history: History {
                        current: self.layout.version,
                        min_ack: self.layout.version,
                        versions: vec![HistoryVersion {
                            version: self.layout.version,
                            status: HistoryStatus::Current,
                        }],
                        trackers: None,
                    },
                })
            }
        };
        GarageView {
            core,
            workers: BTreeMap::new(),
            block_errors: BTreeMap::new(),
            peer_views: None,
            sync_rpc_errors: BTreeMap::new(),
            rpc_timeouts: BTreeMap::new(),
            calls: 6,
        }
    }

    /// Asks every running process who it is.
    pub fn memory(&self, observation: &Observation) -> Memory {
        let mut memory = Memory::default();
        for (pod, run) in identity::unread(&observation.kubernetes, &memory.clone()) {
            let node = pod.spec.as_ref().unwrap().node_name.clone().unwrap();
            memory.identities.insert(run.clone(), self.disks[&node].id);
            let id = self.disks[&node].id;
            let set = self.variables.iter().filter(|((node, _), _)| *node == id);
            memory
                .variables
                .insert(run, set.map(|((_, name), value)| (name.clone(), value.clone())).collect());
        }
        memory
    }

    /// One pass, with everything forgotten before it.
    pub fn plan(&self) -> PoolStep {
        self.plan_on(&self.observe())
    }

    /// The same on an observation that a test changed.
    pub fn plan_on(&self, observation: &Observation) -> PoolStep {
        let memory = self.memory(observation);
        let mut entropy = [0u8; 32];
        for (index, byte) in entropy.iter_mut().enumerate() {
            *byte = u8::try_from(index).unwrap();
        }
        step(
            &Input {
                observation,
                memory: &memory,
                held: self.held.as_ref(),
                settings: &self.settings,
                entropy: &entropy,
            },
            now(),
        )
    }

    /// Writes the status as the shell would; whether it wrote.
    pub fn write_status(&mut self, step: &PoolStep) -> bool {
        let mut parts = Parts::default();
        parts.pools(step);
        let typed: Arc<holdfast_crds::v1beta2::GarageCluster> =
            typed(self.get(Kind::GarageCluster, &self.name).unwrap());
        let status = serde_json::to_value(&typed.status).unwrap();
        let Some(write) = plan_status(&status, &parts, Some(1), now()) else { return false };
        let version = self.get(Kind::GarageCluster, &self.name).unwrap()["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .to_owned();
        self.perform(&write.action(NAMESPACE, &self.name, &version));
        true
    }

    pub fn perform(&mut self, action: &Action) {
        self.writes += 1;
        match action {
            Action::Create(object) => {
                let target = object.target();
                if self.objects.contains_key(&target) {
                    return;
                }
                let mut value = object.value.clone();
                value["metadata"]["uid"] = match object.kind {
                    Kind::DaemonSet => DAEMON_SET_UID.into(),
                    kind => format!("{}-{}", kind.as_str(), target.name).into(),
                };
                if let Some(text) = value["stringData"].as_object().cloned() {
                    use base64::Engine;
                    let data: serde_json::Map<String, Value> = text
                        .into_iter()
                        .map(|(k, v)| {
                            (k, base64::engine::general_purpose::STANDARD.encode(v.as_str().unwrap()).into())
                        })
                        .collect();
                    value["data"] = data.into();
                    value.as_object_mut().unwrap().remove("stringData");
                }
                self.put(object.kind, value);
            }
            Action::Update(object) => {
                let target = object.target();
                let stored = &self.objects[&target];
                assert_eq!(
                    stored["metadata"]["resourceVersion"],
                    object.value["metadata"]["resourceVersion"]
                );
                let mut value = object.value.clone();
                if !stored["status"].is_null() {
                    value["status"] = stored["status"].clone();
                }
                self.put(object.kind, value);
            }
            Action::Patch { target, patch, dry_run, .. } => {
                assert!(!dry_run);
                let mut value = self.objects[target].clone();
                if json_patch::patch(&mut value, patch).is_ok() {
                    self.put(target.kind, value);
                }
            }
            Action::MergeStatus { target, resource_version, status } => {
                let mut value = self.objects[target].clone();
                if value["metadata"]["resourceVersion"] != *resource_version {
                    return;
                }
                if value["status"].is_null() {
                    value["status"] = json!({});
                }
                json_patch::merge(&mut value["status"], status);
                self.put(target.kind, value);
            }
            Action::Delete { target, .. } => {
                self.objects.remove(target);
            }
            Action::ConnectNodes { peers, .. } => {
                let running: BTreeSet<NodeId> = self.running().into_iter().map(|(_, id)| id).collect();
                self.connected.extend(peers.iter().map(|peer| peer.id).filter(|id| running.contains(id)));
            }
            Action::UpdateLayout { changes, base, .. } => {
                assert_eq!(*base, self.layout.version);
                for change in changes {
                    self.layout.staged.retain(|have| have.id != change.id);
                    self.layout.staged.push(change.clone());
                }
            }
            Action::ApplyLayout { version, staged, .. } => {
                assert_eq!(*version, self.layout.version.next());
                if !act::is_exactly_staged(&self.layout, staged) {
                    return;
                }
                for StagedChange { id, role } in std::mem::take(&mut self.layout.staged) {
                    match role {
                        Some(role) => self.layout.roles.insert(id, role),
                        None => self.layout.roles.remove(&id),
                    };
                }
                assert!(self.layout.roles.len() >= 3, "Garage refuses fewer roles than the factor");
                self.layout.version = *version;
                self.versions.push(self.layout.roles.clone());
            }
            Action::SetWorkerVariable { node, variable, value } => {
                self.variables.insert((*node, variable.clone()), value.clone());
            }
            Action::SkipDeadNodes { .. } | Action::LaunchRepair { .. } | Action::Event(_) => {
                panic!("not the pools' to do: {action:?}")
            }
        }
    }

    /// What Kubernetes' own controllers, the scheduler and the kubelets do next; whether they did anything.
    pub fn controllers(&mut self) -> bool {
        let mut did = false;
        for set in self.of(Kind::DaemonSet).into_iter().cloned().collect::<Vec<_>>() {
            let set_name = set["metadata"]["name"].as_str().unwrap().to_owned();
            let template = &set["spec"]["template"];
            let selector = template["spec"]["nodeSelector"].as_object().unwrap().clone();
            for node in self.of(Kind::Node).into_iter().cloned().collect::<Vec<_>>() {
                let node_name = node["metadata"]["name"].as_str().unwrap();
                let wanted = selector.iter().all(|(key, value)| node["metadata"]["labels"][key] == *value);
                let name = format!("{set_name}-{node_name}");
                let exists = self.get(Kind::Pod, &name).is_some();
                if wanted && !exists {
                    let mut spec = template["spec"].clone();
                    spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchFields": [
                            {"key": "metadata.name", "operator": "In", "values": [node_name]}]}]}}});
                    self.version += 1;
                    let uid = format!("pod-{}", self.version);
                    self.put(Kind::Pod, json!({
                        "apiVersion": "v1", "kind": "Pod",
                        "metadata": {
                            "name": name, "namespace": NAMESPACE, "uid": uid,
                            "labels": template["metadata"]["labels"],
                            "annotations": template["metadata"]["annotations"],
                            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": set_name,
                                "uid": set["metadata"]["uid"], "controller": true}],
                        },
                        "spec": spec,
                        "status": {"phase": "Pending"},
                    }));
                    did = true;
                } else if !wanted && exists {
                    self.objects.retain(|target, _| target.kind != Kind::Pod || target.name != name);
                    did = true;
                }
            }
        }
        for pod in self.of(Kind::Pod).into_iter().cloned().collect::<Vec<_>>() {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            let gated = pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
            if !gated && pod["spec"]["nodeName"].is_null() {
                let node =
                    pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                        ["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
                        .clone();
                self.edit(Kind::Pod, &name, |pod| {
                    pod["spec"]["nodeName"] = node;
                    pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True",
                        "lastTransitionTime": "2026-11-30T00:00:00Z"}]);
                });
                did = true;
            } else if let Some(node) = pod["spec"]["nodeName"].as_str()
                && pod["status"]["phase"] == "Pending"
                && self.disks[node].mounted
            {
                let number = self.disks.keys().position(|key| key == node).unwrap();
                let (third, fourth) = (1 + number / 200, 11 + number % 200);
                self.edit(Kind::Pod, &name, |pod| {
                    pod["status"] = json!({
                        "phase": "Running",
                        "podIP": format!("10.20.{third}.{fourth}"),
                        "conditions": [{"type": "Ready", "status": "True"}],
                        "containerStatuses": [{"name": "garage", "image": "i", "imageID": "i", "ready": true,
                            "restartCount": 0, "state": {"running": {"startedAt": "2026-11-30T00:00:00Z"}}}],
                    });
                });
                did = true;
            }
        }
        let running: BTreeSet<NodeId> = self.running().into_iter().map(|(_, id)| id).collect();
        self.connected.retain(|id| running.contains(id));
        did
    }

    /// Performs everything until nothing is left to do. Answers the passes it took.
    pub fn settle(&mut self) -> u32 {
        for pass in 1..200 {
            let planned = self.plan();
            for action in &planned.actions {
                self.perform(action);
            }
            let wrote = self.write_status(&planned);
            if planned.actions.is_empty() && !wrote && !self.controllers() {
                return pass;
            }
            self.controllers();
        }
        panic!("no end: {:#?}", self.plan().actions);
    }

    /// Kills the reconciler after every single write; `pick` says which action of a plan was performed.
    pub fn settle_crashing(&mut self, mut pick: impl FnMut(usize) -> usize) {
        for turn in 0..2000 {
            let planned = self.plan();
            let wrote = if planned.actions.is_empty() {
                self.write_status(&planned)
            } else {
                // Now and then the first one, as every pass does: no schedule starves an action for ever.
                let first = turn % 3 == 2;
                let index = if first { 0 } else { pick(planned.actions.len()) % planned.actions.len() };
                self.perform(&planned.actions[index].clone());
                true
            };
            if !self.controllers() && !wrote {
                return;
            }
        }
        panic!("no end: {:#?}", self.plan().actions);
    }
}
