//! A site of three with its objects in Kubernetes, its processes, and the passes of the reconciler over both.

use std::sync::{Arc, OnceLock};

use holdfast_crds::conditions::FullyReplicatedReason;
use holdfast_crds::ids::{LayoutVersion, NodeId};
use holdfast_crds::status::{Redundancy, Verification};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use super::super::*;
use crate::act::Kind;
use crate::observe::Observation;
use crate::pool::tests::world::{NAME, World as Kube, id};
use crate::status::{Parts, plan as plan_status};
use crate::testing::faults::Fault;
use crate::testing::layout::Garage;

/// The machine that is serviced, and the two that stay.
pub const SERVICED: &str = "kn-3";
pub const PAIR: &str = "fast/kn-3";
pub const STAYS: [&str; 2] = ["kn-1", "kn-2"];
/// The identity that a new disk gets.
pub const NEW: u8 = 0xc3;

pub fn old() -> NodeId {
    id(0x33)
}

/// What an administrator waits for next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// To be told that the disk may be touched.
    Safe,
    /// To be told which identity came back.
    Named,
    /// That the identity is replaced.
    Replaced,
    /// That nothing is left to do.
    Done,
}

#[derive(Clone)]
pub struct World {
    pub kube: Kube,
    pub garage: Garage,
    pub now: i64,
    /// The layout version on which every object was found on every node.
    pub proven: Option<u64>,
    pub wish: Wish,
    /// A second node was taken by the test: the quorum is not the product's to answer for.
    pub second_failure: bool,
    /// The Kubernetes Node is off, and its kubelet with it.
    pub off: Option<String>,
    /// The administrator does nothing for now.
    pub hands_off: bool,
}

fn time(now: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(1_800_000_000 + now).unwrap()
}

impl World {
    /// A settled, proven site on which nothing is asked for.
    pub fn new() -> Self {
        static SETTLED: OnceLock<Kube> = OnceLock::new();
        let kube = SETTLED.get_or_init(|| {
            let mut kube = Kube::new(&["kn-1", "kn-2", "kn-3"]);
            kube.settle();
            kube
        });
        let kube = kube.clone();
        let ids: Vec<NodeId> = kube.running().into_iter().map(|(_, id)| id).collect();
        let garage = Garage::settled(kube.layout.version.0, &kube.layout.roles, &ids);
        let proven = Some(kube.layout.version.0);
        let mut world = Self {
            kube,
            garage,
            now: 0,
            proven,
            wish: Wish::Safe,
            second_failure: false,
            off: None,
            hands_off: false,
        };
        world.heartbeats(-3600);
        world
    }

    // ---- what is so

    /// Kubelets report when something changed, which has been so since then, and every five minutes.
    fn heartbeats(&mut self, since: i64) {
        let (off, now) = (self.off.clone(), time(self.now));
        for (name, node) in self.kube.map::<Node>(Kind::Node) {
            let wanted = if off.as_ref() == Some(&name) { "Unknown" } else { "True" };
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            let said = conditions.and_then(|all| all.first()).filter(|condition| condition.status == wanted);
            let reported = said.and_then(|condition| condition.last_heartbeat_time.as_ref());
            if reported.is_some_and(|at| wanted != "True" || now.duration_since(at.0).as_secs() < 300) {
                continue;
            }
            let changed = said.and_then(|condition| condition.last_transition_time.as_ref());
            let changed = changed.map_or_else(|| time(since), |at| at.0).to_string();
            self.kube.edit(Kind::Node, &name, |node| {
                node["status"]["conditions"] = json!([{"type": "Ready", "status": wanted,
                    "lastHeartbeatTime": now.to_string(), "lastTransitionTime": changed}]);
            });
        }
    }

    /// Time goes on: kubelets and controllers, processes, gossip.
    pub fn advance(&mut self, seconds: i64) {
        self.now += seconds;
        self.heartbeats(self.now);
        // A Pod of a machine that is off stays as it is: nobody there confirms its end.
        if self.off.as_deref() != Some(SERVICED) {
            self.kube.controllers();
        }
        let off = self.off.clone();
        let mut running = self.kube.running();
        running.retain(|(node, _)| off.as_ref() != Some(node));
        for (_, id) in &running {
            if !self.garage.nodes.contains_key(id) {
                self.garage.start_empty(*id);
                self.garage.strangers.insert(*id);
            }
        }
        let running = running.into_iter().map(|(_, id)| id).collect();
        self.garage.up = running;
        self.garage.tick();
        let known = self.garage.newest();
        if !known.roles.keys().all(|id| self.garage.up.contains(id)) || self.proven != Some(known.version) {
            self.proven = None;
        }
        assert!(self.second_failure || self.garage.serves(), "the site lost its quorum");
    }

    pub fn label(&self, node: &str) -> Option<String> {
        let node = self.kube.get(Kind::Node, node)?;
        let labels = node["metadata"]["labels"].as_object()?;
        let found = labels.iter().find(|(key, _)| key.contains("-node-local-pool-"));
        found.map(|(_, value)| value.as_str().unwrap().to_owned())
    }

    fn has_pod(&self, node: &str) -> bool {
        self.kube.of(Kind::Pod).iter().any(|pod| pod["metadata"]["name"].as_str().unwrap().ends_with(node))
    }

    fn cluster(&self) -> &Value {
        self.kube.get(Kind::GarageCluster, NAME).unwrap()
    }

    pub fn service(&self) -> Option<NodeLocalService> {
        serde_json::from_value(self.cluster()["status"]["nodeLocalService"].clone()).unwrap()
    }

    pub fn phase(&self) -> Option<Phase> {
        self.service().map(|service| service.phase)
    }

    /// Reason and message of a condition.
    pub fn said(&self, kind: ConditionType) -> (String, String) {
        let cluster = self.cluster();
        let conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|condition| condition["type"] == kind.as_str());
        let text = |key: &str| found.and_then(|c| c[key].as_str()).unwrap_or_default().to_owned();
        (text("reason"), text("message"))
    }

    // ---- what a person does

    pub fn annotate(&mut self, key: &str, value: Option<&str>) {
        self.kube.edit(Kind::GarageCluster, NAME, |cluster| {
            if cluster["metadata"]["annotations"].is_null() {
                cluster["metadata"]["annotations"] = json!({});
            }
            let annotations = cluster["metadata"]["annotations"].as_object_mut().unwrap();
            match value {
                Some(value) => annotations.insert(key.to_owned(), value.into()),
                None => annotations.remove(key),
            };
        });
    }

    /// Puts what the script wants into the two annotations.
    pub fn annotations_of_the_wish(&mut self) {
        let replace = format!("{PAIR}/{}", old());
        let wanted = match self.wish {
            Wish::Safe => [Some(PAIR), None],
            Wish::Named | Wish::Done => [None, None],
            Wish::Replaced => [None, Some(replace.as_str())],
        };
        let have = self.cluster()["metadata"]["annotations"].clone();
        for (key, wanted) in [OUT_OF_SERVICE, REPLACE_IDENTITY].into_iter().zip(wanted) {
            if have[key].as_str() != wanted {
                self.annotate(key, wanted);
            }
        }
    }

    /// The administrator reads the conditions and does the next step.
    fn administrate(&mut self) {
        if self.hands_off {
            return;
        }
        let (hold, _) = self.said(ConditionType::NodeLocalOutOfService);
        let (replaced, why) = self.said(ConditionType::NodeLocalIdentityReplaced);
        let (pools, wanted) = self.said(ConditionType::NodeLocalPoolsReady);
        // The record of a replacement that is done goes with the next request, and V5 says it then.
        let current = format!("the current identity is {}", id(NEW).short());
        match self.wish {
            Wish::Safe if hold == "SafeToService" => {
                self.kube.disks.get_mut(SERVICED).unwrap().id = id(NEW);
                self.wish = Wish::Named;
            }
            Wish::Safe if hold == "WaitingForProof" => self.proven = Some(self.garage.newest().version),
            Wish::Named if hold == "DifferentIdentity" => self.wish = Wish::Replaced,
            Wish::Named if pools == "WaitingForReplacement" && wanted.contains(PAIR) => {
                self.wish = Wish::Replaced;
            }
            Wish::Replaced if replaced == "Replaced" || why.contains(&current) => self.wish = Wish::Done,
            _ => {}
        }
        self.annotations_of_the_wish();
    }

    // ---- what the reconciler does

    fn proof(&self) -> proof::Step {
        let verification =
            Verification { layout_version: self.proven.map(LayoutVersion), ..Verification::default() };
        let (status, reason) = match self.proven {
            Some(_) => (ConditionStatus::True, FullyReplicatedReason::Verified),
            None => (ConditionStatus::Unknown, FullyReplicatedReason::NotVerified),
        };
        proof::Step {
            redundancy: Some(Redundancy { verification: Some(verification), ..Redundancy::default() }),
            condition: Some(proof::Condition { status, reason, message: String::new() }),
            actions: Vec::new(),
        }
    }

    fn live(&self, pair: &Pair) -> Pairs {
        let node = self.kube.map::<Node>(Kind::Node).remove(pair.node.as_str());
        let pods = self.kube.map::<Pod>(Kind::Pod).into_iter();
        let pods = pods.filter(|(name, _)| name.ends_with(pair.node.as_str()));
        Pairs {
            pair: pair.clone(),
            node: Ok(node.map(|node| Box::new(Node::clone(&node)))),
            pods: Ok(pods.map(|(_, pod)| Pod::clone(&pod)).collect()),
        }
    }

    /// A write to Kubernetes: counted, and it may fail. Whether its answer says that it was done.
    fn write(&mut self, name: &'static str, action: &Action) -> bool {
        let fault = self.garage.faults.next(name);
        if matches!(fault, Some(Fault::Before | Fault::Late)) {
            return false;
        }
        self.garage.crashed = fault == Some(Fault::Crash);
        let before = self.kube.version;
        self.kube.perform(action);
        fault.is_none() && self.kube.version != before
    }

    fn act(&mut self, action: &Action) -> bool {
        if self.garage.crashed {
            return false;
        }
        match action {
            Action::Event(_) => true,
            Action::Patch { target, .. }
            | Action::MergeStatus { target, .. }
            | Action::Delete { target, .. } => self.write(target.kind.as_str(), action),
            Action::Create(object) | Action::Update(object) => self.write(object.kind.as_str(), action),
            other => self.garage.perform(other).executed(),
        }
    }

    /// What the API server says to a dry run: a patch whose tests fail is a conflict.
    fn would_accept(&self, action: &Action) -> bool {
        let Action::Patch { target, patch, dry_run: true, .. } = action else { panic!("{action:?}") };
        let mut copy = self.kube.objects[target].clone();
        json_patch::patch(&mut copy, patch).is_ok()
    }

    /// One whole pass, as the shell does it.
    pub fn pass(&mut self) -> ServiceStep {
        self.garage.crashed = false;
        let raw = self.cluster().clone();
        let kubernetes = self.kube.kubernetes();
        let cluster = Arc::clone(&kubernetes.cluster);
        let recorded =
            self.service().and_then(|s| s.replacement?.layout_version).map(|v| v.0).max(self.proven);
        let order: Vec<NodeId> = self.kube.running().into_iter().map(|(_, id)| id).collect();
        let garage = self.garage.view(&order, recorded.map(LayoutVersion));
        let observation = Observation { kubernetes, garage };
        let memory = self.kube.memory(&observation);
        let settings = self.kube.settings.clone();
        let held = held(&observation.kubernetes);
        let entropy = [0; 32];
        let input = pool::Input {
            observation: &observation,
            memory: &memory,
            held: held.as_ref(),
            settings: &settings,
            entropy: &entropy,
        };
        let pools = pool::step(&input, time(self.now));
        let proof = self.proof();
        let live = subject(&cluster).map(|pair| self.live(&pair));
        let now = Time::new(time(self.now));
        let input = Input {
            observation: &observation,
            stored: &raw,
            live: live.as_ref(),
            memory: &memory,
            settings: &settings,
            proof: &proof,
            dry_run: None,
        };
        let mut decided = step(&input, now);
        let mut asked = true;
        if !decided.checks.is_empty() {
            assert_eq!(decided.actions, [], "nothing is done before it was asked about");
            asked = decided.checks.iter().all(|check| self.would_accept(check));
            let dry_run = asked.then_some(Ok(()));
            decided = step(&Input { dry_run, ..input }, now);
        }
        let mut parts = Parts::default();
        parts.pools(&pools);
        if asked {
            crate::controller::say(&decided, &mut parts).unwrap();
        }
        self.check_what_is_said(&decided);
        let due = plan_status(&raw["status"], &parts, Some(1), time(self.now));
        if let Some(due) = due {
            let version = raw["metadata"]["resourceVersion"].as_str().unwrap();
            let namespace = raw["metadata"]["namespace"].as_str().unwrap();
            if !self.write("status", &due.action(namespace, NAME, version)) {
                return decided;
            }
        }
        if asked {
            for action in &decided.actions {
                self.check_removal(action, &raw);
                if !self.act(action) {
                    break;
                }
                self.check();
            }
        }
        for action in &pools.actions {
            let targets_label = matches!(action, Action::Patch { target, .. } if target.kind == Kind::Node);
            let before = self.label(SERVICED);
            self.act(action);
            let after = self.label(SERVICED);
            assert!(!targets_label || before.is_none() || after.is_some(), "the pools took the label");
            self.check();
        }
        decided
    }

    // ---- what must never be

    fn check_what_is_said(&self, decided: &ServiceStep) {
        let said = decided.out_of_service.as_ref();
        if said.is_some_and(|(status, ..)| *status == ConditionStatus::True) {
            let node = decided.service.as_ref().unwrap().kubernetes_node.as_str();
            assert_eq!(self.label(node), None, "safe with its label");
            assert!(!self.has_pod(node), "safe with its Pod");
            assert!(!self.garage.up.contains(&self.kube.disks[node].id), "safe and up");
            let hold = &self.cluster()["metadata"]["annotations"][OUT_OF_SERVICE];
            assert_eq!(*hold, format!("fast/{node}"), "safe, and nobody asks for it");
        }
    }

    /// A hold takes the label only under its gate.
    fn check_removal(&self, action: &Action, raw: &Value) {
        let Action::Patch { target, patch, .. } = action else { return };
        let text = serde_json::to_string(patch).unwrap();
        if target.kind != Kind::Node || !text.contains("\"remove\"") {
            return;
        }
        let asked = format!("fast/{}", target.name);
        assert_eq!(raw["metadata"]["annotations"][OUT_OF_SERVICE], asked, "nobody asked for it");
        let mut others = self.kube.disks.iter().filter(|(node, _)| **node != target.name);
        assert!(others.all(|(_, disk)| self.garage.up.contains(&disk.id)), "another member is down");
        let again = self.service().is_some_and(|service| service.activation_returns.is_some());
        assert!(again || self.proven.is_some(), "the label goes without a proof");
    }

    pub fn check(&self) {
        for (node, known) in self.garage.nodes.iter().filter(|(_, known)| known.version > 0) {
            let (was, is) = (known.roles.contains_key(&old()), known.roles.contains_key(&id(NEW)));
            assert!(was != is, "never both, never neither: {}", node.short());
        }
        for (number, made) in &self.garage.made {
            assert_eq!(made.len(), 1, "version {number} was applied more than once");
        }
        assert!(self.garage.skipped.iter().all(|skipped| *skipped == old()), "another node was skipped");
    }

    /// The administrator looks, time goes on, and the reconciler passes.
    pub fn turn(&mut self) -> ServiceStep {
        self.administrate();
        self.advance(10);
        let decided = self.pass();
        self.check();
        decided
    }

    /// Whether the administrator has all that was wished for and the service is over.
    pub fn is_at_its_end(&self) -> bool {
        self.wish == Wish::Done && self.phase() == Some(Phase::Completed)
    }

    /// Turns until the story is at its end and nothing is left to do.
    pub fn finish(&mut self, about: &dyn std::fmt::Debug) {
        let mut quiet = 0;
        for _ in 0..150 {
            let before = self.garage.faults.made();
            self.turn();
            quiet =
                if self.wish == Wish::Done && self.garage.faults.made() == before { quiet + 1 } else { 0 };
            if quiet == 4 {
                break;
            }
        }
        let state = || {
            format!(
                "{about:?}: {:?} {:?}\n{:?}\n{:?}\n{:?}\n{:?}",
                self.wish,
                self.service(),
                self.said(ConditionType::NodeLocalOutOfService),
                self.said(ConditionType::NodeLocalIdentityReplaced),
                self.said(ConditionType::NodeLocalPoolsReady),
                self.garage.nodes,
            )
        };
        assert_eq!(quiet, 4, "no end: {}", state());
        assert!(matches!(self.phase(), None | Some(Phase::Completed)), "{}", state());
        let known = self.garage.newest();
        assert!(known.roles.contains_key(&id(NEW)) && known.trackers.is_none(), "{}", state());
        for member in ["kn-1", "kn-2", "kn-3"] {
            let node = self.kube.get(Kind::Node, member).unwrap().to_string();
            let wanted = self.kube.disks[member].id.to_string();
            assert!(
                node.matches(&wanted).count() >= 2,
                "the claim and the annotation of {member}: {}",
                state()
            );
        }
        let wanted = id(NEW).to_string();
        let record =
            self.kube.of(Kind::GarageNode).into_iter().find(|r| r["spec"]["kubernetesNodeName"] == SERVICED);
        let record = record.unwrap();
        assert_eq!(record["status"]["nodeId"], wanted, "{}", state());
        assert!(record["metadata"]["annotations"].to_string().contains(&wanted), "{}", state());
        assert_eq!(self.said(ConditionType::NodeLocalPoolsReady).0, "Converged", "{}", state());
    }
}
