//! The node agent: a stand-in for a kubelet, one for each Kubernetes Node of a bed
//! (`spec/testbed.md`, "The node agent").
//!
//! It runs the Pods bound to its Node as plain processes, each container in a root of its own (the
//! machine's programs read-only, the image's files, the volumes) and each Pod in a network namespace of its
//! own. What a Pod sees and what the API server sees follow the kubelet; what the agent does not do it
//! refuses with an event and a waiting container that says so (`support.rs`), never in silence.
//!
//! Where a bed differs from a cluster, on purpose:
//! - No image is pulled: [`ImageTable`] says which binary an image is.
//! - No DNS, no Service addresses, no default route: Pods talk to Pod addresses. `KUBERNETES_SERVICE_HOST`
//!   is the API server itself.
//! - No cgroups: resources count for the scheduler and are not enforced. An emptyDir with a `sizeLimit` is
//!   a disk of that size.
//! - `runAsUser`, `runAsGroup`, `supplementalGroups` and `fsGroup` are applied where the bed's root can be
//!   other users (a bed started by root). In a bed of an unprivileged user there is only one user, so
//!   programs run as the bed's root; [`PodInfo::notes`] says so. Dropped capabilities and
//!   `allowPrivilegeEscalation: false` are applied in both. seccomp, AppArmor and SELinux are noted only.
//! - After the power was off, an agent adopts nothing: containers start again, with a higher restart
//!   count and a new address, as after a Node's reboot.

mod backoff;
mod container;
mod env;
mod images;
mod node;
mod plan;
mod probes;
mod record;
mod script;
mod status;
mod support;
mod volumes;
mod worker;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use backoff::BackOffTimes;
pub use images::{Image, ImageTable};

use crate::error::{Error, Result};
use crate::network::Network;
use node::Node;
use record::PodRecord;
use worker::Desired;

/// The API server's port in a bed.
const API_PORT: u16 = 6443;

/// How one Node and its agent are made.
#[derive(Clone)]
pub struct AgentConfig {
    /// The Kubernetes Node's name.
    pub node_name: String,
    /// Labels of the Node object when it is created, beside the well-known ones.
    pub labels: BTreeMap<String, String>,
    /// A client of the administrator.
    pub client: Client,
    /// The bed's network; the agent adds its Node.
    pub network: Arc<Network>,
    /// What images there are.
    pub images: Arc<ImageTable>,
    /// The Node's own file system: a HostPath `/srv/x` is `host_root/srv/x`.
    pub host_root: PathBuf,
    /// What the agent keeps of its Pods; one folder for each Node, best on a tmpfs.
    pub state: PathBuf,
    /// Where the containers' outputs go: `<namespace>_<pod>_<container>.<restart>.log`.
    pub logs: PathBuf,
    /// Where Pods find the API server.
    pub api_server: (IpAddr, u16),
    /// How long an ended container waits before it starts again.
    pub back_off: BackOffTimes,
    /// Between two heartbeats (Lease and Node status). A kubelet renews its Lease every 10 s.
    pub heartbeat: Duration,
    /// Between two attempts at what failed, and between refreshes of ConfigMap and Secret volumes.
    pub retry: Duration,
    /// The version that the Node reports.
    pub kubelet_version: String,
}

impl AgentConfig {
    /// A configuration with a bed's times. In the bed's folder `root` the agent keeps its state
    /// (`agent/<node>`) and the logs (`logs/pods`); Pods find the API server at the bed's address.
    pub fn new(
        node_name: &str,
        client: Client,
        network: Arc<Network>,
        images: Arc<ImageTable>,
        host_root: PathBuf,
        root: &std::path::Path,
    ) -> Self {
        Self {
            node_name: node_name.to_owned(),
            labels: BTreeMap::new(),
            client,
            api_server: (IpAddr::V4(network.host_ip()), API_PORT),
            network,
            images,
            host_root,
            state: root.join("agent").join(node_name),
            logs: root.join("logs").join("pods"),
            back_off: BackOffTimes::default(),
            heartbeat: Duration::from_secs(3),
            retry: Duration::from_secs(1),
            kubelet_version: "v1.37.2".to_owned(),
        }
    }
}

/// A Pod that runs on the Node, or is about to.
#[derive(Debug, Clone)]
pub struct PodInfo {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: the key of [`Network`].
    pub uid: String,
    /// Its address, once it has one.
    pub ip: Option<Ipv4Addr>,
    /// Its containers, init containers first.
    pub containers: Vec<ContainerInfo>,
    /// What of the spec is not applied in this bed, one sentence each.
    pub notes: Vec<String>,
}

/// A container of a [`PodInfo`].
#[derive(Debug, Clone)]
pub struct ContainerInfo {
    /// Its name.
    pub name: String,
    /// Its main process in the bed's PID namespace, while it runs.
    pub pid: Option<Pid>,
    /// How often it was started again.
    pub restarts: i32,
    /// Where the output of its current or last run is.
    pub log: Option<PathBuf>,
}

type Pods = Arc<Mutex<BTreeMap<String, Worker>>>;

struct Worker {
    desired: watch::Sender<Desired>,
    record: Arc<PodRecord>,
    task: JoinHandle<()>,
}

/// One Node's agent. Dropping it stops all Pods of the Node at once and leaves their objects alone.
pub struct Agent {
    node: Arc<Node>,
    pods: Pods,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Agent {
    /// Adds the Node to the network, registers it with the API server and begins to run its Pods.
    pub async fn start(config: AgentConfig) -> Result<Self> {
        let ip = config.network.add_node(&config.node_name)?;
        let link = config.network.watch_node_link(&config.node_name)?;
        for folder in [&config.host_root, &config.state, &config.logs] {
            std::fs::create_dir_all(folder)
                .map_err(|source| Error::Io { doing: format!("making {}", folder.display()), source })?;
        }
        let agent = Self {
            node: Arc::new(Node::new(config, ip, link)),
            pods: Pods::default(),
            tasks: Mutex::default(),
        };
        agent.register().await?;
        agent.run();
        Ok(agent)
    }

    /// The Kubernetes Node's name.
    pub fn node_name(&self) -> &str {
        &self.node.config.node_name
    }

    /// The Node's address.
    pub fn ip(&self) -> Ipv4Addr {
        self.node.ip
    }

    /// Creates the Node object again. Like a kubelet, the agent does so only when it starts: a Node object
    /// that was deleted under it stays away until then.
    pub async fn register(&self) -> Result<()> {
        self.node
            .register()
            .await
            .map_err(|error| Error::other(format!("registering the node {}: {error}", self.node_name())))
    }

    /// The Node's Pods.
    pub fn pods(&self) -> Vec<PodInfo> {
        lock(&self.pods).values().map(|worker| worker.record.info()).collect()
    }

    /// A Pod by namespace and name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<PodInfo> {
        self.pods().into_iter().find(|pod| pod.namespace == namespace && pod.name == name)
    }

    /// The main process of a Pod's (first) container, while it runs: for signals, and for `nsenter` into
    /// its namespaces.
    pub fn pid_of(&self, namespace: &str, name: &str) -> Option<Pid> {
        self.pod(namespace, name)?.containers.into_iter().find_map(|container| container.pid)
    }

    /// Sends a signal to the main process of a Pod's (first) container.
    pub fn signal(&self, namespace: &str, name: &str, signal: Signal) -> Result<()> {
        let pid = self.pid_of(namespace, name).ok_or_else(|| {
            Error::other(format!("no process of {namespace}/{name} runs on {}", self.node_name()))
        })?;
        nix::sys::signal::kill(pid, signal)
            .map_err(|error| Error::other(format!("{signal} to {namespace}/{name}: {error}")))
    }

    /// Cuts the power: nobody hears of it. The Pods' cables go down first, so that their peers see no
    /// connection end, then every process dies at once; the API server hears nothing more.
    pub async fn power_off(&self) {
        self.node.set_power(false);
        self.halt().await;
    }

    /// Turns the power on again: the agent registers, looks at what its Node should run, and starts that,
    /// with higher restart counts and new addresses.
    pub fn power_on(&self) {
        if lock(&self.tasks).is_empty() {
            self.node.set_power(true);
            self.run();
        }
    }

    /// Whether the power is on and the cable plugged.
    pub fn is_online(&self) -> bool {
        self.node.is_online()
    }

    fn run(&self) {
        let (node, pods) = (self.node.clone(), self.pods.clone());
        let heartbeats = {
            let node = node.clone();
            tokio::spawn(async move {
                if let Err(error) = node.register().await {
                    tracing::error!(node = node.config.node_name, %error, "the node was not registered");
                }
                node.heartbeats().await;
            })
        };
        let watch = tokio::spawn(async move {
            loop {
                node.online().await;
                tokio::select! {
                    () = follow(&node, &pods) => {}
                    // A cut cable: what the API server says is not heard until it is plugged again.
                    () = node.offline() => {}
                }
            }
        });
        lock(&self.tasks).extend([heartbeats, watch]);
    }

    async fn halt(&self) {
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        let workers = std::mem::take(&mut *lock(&self.pods));
        for uid in workers.keys() {
            if let Err(error) = self.node.config.network.set_pod_link(uid, false) {
                tracing::debug!(uid, %error, "a pod had no cable to pull");
            }
        }
        for worker in workers.values() {
            for pid in worker.record.pids() {
                container::send(pid, Signal::SIGKILL);
            }
            worker.task.abort();
        }
        for (uid, worker) in workers {
            let _ = worker.task.await;
            if let Err(error) = self.node.config.network.detach_pod(&uid) {
                tracing::debug!(uid, %error, "a pod's network stays");
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        for task in lock(&self.tasks).drain(..) {
            task.abort();
        }
        for (_, worker) in std::mem::take(&mut *lock(&self.pods)) {
            for pid in worker.record.pids() {
                container::send(pid, Signal::SIGKILL);
            }
            worker.task.abort();
        }
    }
}

/// Follows the Node's Pods until the watch fails for good.
async fn follow(node: &Arc<Node>, pods: &Pods) {
    let api: Api<Pod> = Api::all(node.client());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", node.config.node_name));
    let mut events = std::pin::pin!(watcher(api, config));
    let mut listed: Vec<Pod> = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(pod)) => listed.push(pod),
            Ok(watcher::Event::InitDone) => {
                let uids: Vec<_> = listed.iter().filter_map(ResourceExt::uid).collect();
                for worker in
                    lock(pods).iter().filter(|(uid, _)| !uids.contains(uid)).map(|(_, worker)| worker)
                {
                    worker.desired.send_modify(|desired| desired.gone = true);
                }
                for pod in listed.drain(..) {
                    seen(node, pods, pod);
                }
            }
            Ok(watcher::Event::Apply(pod)) => seen(node, pods, pod),
            Ok(watcher::Event::Delete(pod)) => {
                if let Some(worker) =
                    pod.uid().and_then(|uid| lock(pods).get(&uid).map(|w| w.desired.clone()))
                {
                    worker.send_modify(|desired| desired.gone = true);
                }
            }
            Err(error) => {
                tracing::debug!(node = node.config.node_name, %error, "the pods cannot be watched");
                tokio::time::sleep(node.config.retry).await;
            }
        }
    }
}

fn seen(node: &Arc<Node>, pods: &Pods, pod: Pod) {
    let Some(uid) = pod.uid() else { return };
    let pod = Arc::new(pod);
    let mut table = lock(pods);
    if let Some(worker) = table.get(&uid) {
        worker.desired.send_modify(|desired| desired.pod = pod);
        return;
    }
    let record = Arc::new(PodRecord::new(&pod));
    let (desired, wanted) = watch::channel(Desired { pod, gone: false });
    let (node, done, shared) = (node.clone(), pods.clone(), record.clone());
    let task = tokio::spawn(async move {
        let uid = shared.uid.clone();
        worker::run(node, shared, wanted).await;
        lock(&done).remove(&uid);
    });
    table.insert(uid, Worker { desired, record, task });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
