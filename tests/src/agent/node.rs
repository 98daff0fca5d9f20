//! The Node itself: its registration, its heartbeats, and when it can reach the API server at all.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node as NodeObject, NodeCondition, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::sync::{Mutex, watch};

use super::AgentConfig;
use super::status::whole_seconds;

/// A call to the API server ends within this time.
const CALL_LIMIT: Duration = Duration::from_secs(15);
/// The kubelet's lease duration.
const LEASE_SECONDS: i32 = 40;

/// Why a call to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server's answer, or none.
    #[error("{0}")]
    Kube(#[source] Box<kube::Error>),
    /// It did not answer in time.
    #[error("the API server did not answer in {} s", CALL_LIMIT.as_secs())]
    Timeout,
}

impl CallError {
    /// The object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Kube(error) if matches!(&**error, kube::Error::Api(status) if status.is_not_found()))
    }

    /// The object changed since it was read, or has another UID.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Kube(error) if matches!(&**error, kube::Error::Api(status) if status.is_conflict()))
    }
}

/// One Node, shared by all that runs on it.
pub struct Node {
    /// How it was configured.
    pub config: AgentConfig,
    /// Its address.
    pub ip: Ipv4Addr,
    link: watch::Receiver<bool>,
    power: watch::Sender<bool>,
    ids: Ids,
    boot_id: String,
    events: Mutex<BTreeMap<String, (i32, Timestamp)>>,
    seen: Mutex<BTreeMap<String, serde_json::Value>>,
}

impl Node {
    pub(super) fn new(config: AgentConfig, ip: Ipv4Addr, link: watch::Receiver<bool>) -> Self {
        let boot_id = format!("{:032x}", rand::random::<u128>());
        Self {
            config,
            ip,
            link,
            power: watch::Sender::new(true),
            ids: Ids::read(),
            boot_id,
            events: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// The client of the API server. Use it through [`Node::call`].
    pub fn client(&self) -> Client {
        self.config.client.clone()
    }

    /// Whether the bed's root may become this user or group.
    pub fn can_be(&self, id: i64) -> bool {
        self.ids.has(id)
    }

    /// Turns the power on or off, as far as the API server sees it.
    pub(super) fn set_power(&self, on: bool) {
        self.power.send_replace(on);
    }

    /// Waits until the Node has power and its cable is plugged.
    pub async fn online(&self) {
        let (mut link, mut power) = (self.link.clone(), self.power.subscribe());
        loop {
            // An end of either sender is the end of the bed: then nothing is ever online again.
            let plugged = link.wait_for(|up| *up).await.is_ok();
            let powered = power.wait_for(|on| *on).await.is_ok();
            if !plugged || !powered {
                std::future::pending::<()>().await;
            }
            if self.is_online() {
                return;
            }
        }
    }

    /// Whether the Node can reach the API server.
    pub fn is_online(&self) -> bool {
        *self.link.borrow() && *self.power.borrow()
    }

    /// Waits until the Node cannot reach the API server.
    pub async fn offline(&self) {
        let (mut link, mut power) = (self.link.clone(), self.power.subscribe());
        tokio::select! {
            _ = link.wait_for(|up| !*up) => {}
            _ = power.wait_for(|on| !*on) => {}
        }
    }

    /// Makes a call when the Node is online, with a deadline.
    pub async fn call<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
        self.online().await;
        match tokio::time::timeout(CALL_LIMIT, call).await {
            Ok(result) => result.map_err(|error| CallError::Kube(Box::new(error))),
            Err(_) => Err(CallError::Timeout),
        }
    }

    /// Creates the Node object. One that is there stays as it is: its labels and annotations are others'.
    pub async fn register(&self) -> Result<(), CallError> {
        let name = &self.config.node_name;
        let mut labels = self.config.labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
        labels.insert("kubernetes.io/os".to_owned(), "linux".to_owned());
        labels.insert("kubernetes.io/arch".to_owned(), architecture().to_owned());
        let mut node = NodeObject::default();
        node.metadata.name = Some(name.clone());
        node.metadata.labels = Some(labels);
        let api: Api<NodeObject> = Api::all(self.client());
        match self.call(api.create(&PostParams::default(), &node)).await {
            Ok(_) => {}
            Err(error) if error.is_conflict() => {}
            Err(CallError::Kube(error)) if matches!(&*error, kube::Error::Api(status) if status.is_already_exists()) =>
                {}
            Err(error) => return Err(error),
        }
        self.report().await
    }

    /// Renews the Lease and reports the status, forever. Errors are told and retried.
    pub(super) async fn heartbeats(&self) {
        let mut ticks = tokio::time::interval(self.config.heartbeat);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.online().await;
            if let Err(error) = self.renew().await {
                tracing::debug!(node = self.config.node_name, %error, "the lease was not renewed");
            }
            if let Err(error) = self.report().await {
                tracing::debug!(node = self.config.node_name, %error, "the node's status was not written");
            }
        }
    }

    async fn renew(&self) -> Result<(), CallError> {
        let name = &self.config.node_name;
        let api: Api<Lease> = Api::namespaced(self.client(), "kube-node-lease");
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let spec = json!({"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now});
        let patch = Patch::Merge(json!({"spec": spec}));
        match self.call(api.patch(name, &PatchParams::default(), &patch)).await {
            Err(error) if error.is_not_found() => {}
            result => return result.map(drop),
        }
        let nodes: Api<NodeObject> = Api::all(self.client());
        let owner = self.call(nodes.get(name)).await?.owner_ref(&());
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "ownerReferences": owner.into_iter().collect::<Vec<_>>()}, "spec": spec,
        });
        let Ok(lease) = serde_json::from_value(lease) else { return Ok(()) };
        self.call(api.create(&PostParams::default(), &lease)).await.map(drop)
    }

    async fn report(&self) -> Result<(), CallError> {
        let name = &self.config.node_name;
        let api: Api<NodeObject> = Api::all(self.client());
        let node = self.call(api.get_status(name)).await?;
        let known = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let patch = json!({"status": self.status(&known, whole_seconds(Timestamp::now()))});
        self.call(api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))).await.map(drop)
    }

    fn status(&self, known: &[NodeCondition], now: Timestamp) -> serde_json::Value {
        let capacity = json!({"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"});
        let conditions: Vec<_> = [
            (
                "MemoryPressure",
                "False",
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
            ),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ]
        .into_iter()
        .map(|(type_, status, reason, message)| condition(known, type_, status, reason, message, now))
        .collect();
        json!({
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": self.ip.to_string()},
                {"type": "Hostname", "address": self.config.node_name},
            ],
            "conditions": conditions,
            "nodeInfo": {
                "architecture": architecture(), "operatingSystem": "linux", "osImage": "garage-holdfast bed",
                "kernelVersion": kernel(), "containerRuntimeVersion": "bed://1", "kubeProxyVersion": "",
                "kubeletVersion": self.config.kubelet_version, "bootID": self.boot_id,
                "machineID": self.config.node_name, "systemUUID": self.config.node_name,
            },
        })
    }

    /// Tells an event about a Pod, on the side: nothing waits for it, and a Node that is cut off tells none.
    /// Equal ones raise the count of the first, at most once in ten seconds.
    pub fn event(self: &Arc<Self>, pod: &Arc<Pod>, warning: bool, reason: &str, message: &str) {
        if !self.is_online() {
            return;
        }
        let (node, pod) = (self.clone(), pod.clone());
        let (reason, message) = (reason.to_owned(), message.to_owned());
        tokio::spawn(async move { node.write_event(&pod, warning, &reason, &message).await });
    }

    /// A Secret or ConfigMap as a Pod refers to it: from the API server, or as it was seen last where that
    /// does not answer, so that a Node that is cut off can start its containers again.
    pub async fn referred<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, CallError>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + serde::Serialize,
    {
        let key = format!("{}/{namespace}/{name}", K::kind(&()));
        let known = self.seen.lock().await.get(&key).cloned();
        if let (false, Some(known)) = (self.is_online(), &known) {
            return Ok(serde_json::from_value(known.clone()).ok());
        }
        let api: Api<K> = Api::namespaced(self.client(), namespace);
        match (self.call(api.get_opt(name)).await, known) {
            (Ok(found), _) => {
                if let Some(value) = found.as_ref().and_then(|found| serde_json::to_value(found).ok()) {
                    self.seen.lock().await.insert(key, value);
                }
                Ok(found)
            }
            (Err(error), Some(known)) => {
                tracing::debug!(name, %error, "taken as it was seen last");
                Ok(serde_json::from_value(known).ok())
            }
            (Err(error), None) => Err(error),
        }
    }

    async fn write_event(&self, pod: &Pod, warning: bool, reason: &str, message: &str) {
        let now = whole_seconds(Timestamp::now());
        let key = format!("{}/{reason}/{message}", pod.uid().unwrap_or_default());
        let name = format!("{}.{:016x}", pod.name_any(), fnv(key.as_bytes()));
        let count = {
            let mut events = self.events.lock().await;
            let entry = events.entry(key).or_insert((0, Timestamp::UNIX_EPOCH));
            if entry.0 > 0 && now.as_second() - entry.1.as_second() < 10 {
                return;
            }
            *entry = (entry.0 + 1, now);
            entry.0
        };
        let api: Api<Event> = Api::namespaced(self.client(), &pod.namespace().unwrap_or_default());
        let done = if count > 1 {
            let patch = Patch::Merge(json!({"count": count, "lastTimestamp": Time(now)}));
            self.call(api.patch(&name, &PatchParams::default(), &patch)).await
        } else {
            let mut event = Event {
                involved_object: ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: pod.metadata.name.clone(),
                    namespace: pod.metadata.namespace.clone(),
                    uid: pod.metadata.uid.clone(),
                    resource_version: pod.metadata.resource_version.clone(),
                    field_path: None,
                },
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
                type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
                count: Some(1),
                first_timestamp: Some(Time(now)),
                last_timestamp: Some(Time(now)),
                reporting_component: Some("kubelet".to_owned()),
                reporting_instance: Some(self.config.node_name.clone()),
                ..Event::default()
            };
            event.metadata.name = Some(name);
            event.metadata.namespace = pod.metadata.namespace.clone();
            self.call(api.create(&PostParams::default(), &event)).await
        };
        if let Err(error) = done {
            tracing::debug!(%error, reason, "an event was not written");
        }
    }
}

fn condition(
    known: &[NodeCondition],
    type_: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> NodeCondition {
    let since = known
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == status)
        .and_then(|condition| condition.last_transition_time.clone());
    NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(since.unwrap_or(Time(now))),
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// A short, stable name part; not for anything secret.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The users that the bed's root may become: as a mapped, unprivileged user only itself.
struct Ids(Vec<(i64, i64)>);

impl Ids {
    fn read() -> Self {
        let may_set_groups =
            std::fs::read_to_string("/proc/self/setgroups").map_or(true, |text| text.trim() != "deny");
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self::parse(&map, may_set_groups)
    }

    fn parse(map: &str, may_set_groups: bool) -> Self {
        if !may_set_groups {
            return Self(Vec::new());
        }
        let range = |line: &str| {
            let mut words = line.split_whitespace();
            let first: i64 = words.next()?.parse().ok()?;
            let count: i64 = words.nth(1)?.parse().ok()?;
            Some((first, count))
        };
        Self(map.lines().filter_map(range).collect())
    }

    fn has(&self, id: i64) -> bool {
        self.0.iter().any(|(first, count)| id >= *first && id < first + count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_heartbeat_moves_the_heartbeat_time_alone() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = condition(&[], "Ready", "True", "r", "m", at(1));
        let second = condition(std::slice::from_ref(&first), "Ready", "True", "r", "m", at(9));
        assert_eq!(second.last_transition_time, Some(Time(at(1))));
        assert_eq!(second.last_heartbeat_time, Some(Time(at(9))));
        let unknown = NodeCondition { status: "Unknown".to_owned(), ..first };
        assert_eq!(
            condition(&[unknown], "Ready", "True", "r", "m", at(20)).last_transition_time,
            Some(Time(at(20)))
        );
    }

    #[test]
    fn root_of_a_single_mapped_user_can_be_nobody_else() {
        let mapped = Ids::parse("         0       1000          1\n", false);
        assert!(!mapped.has(65532));
        let full = Ids::parse("         0          0 4294967295\n", true);
        assert!(full.has(65532));
    }
}
