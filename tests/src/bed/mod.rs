//! The bed: one control plane, one network, the Nodes with their disks, in namespaces of their own.

pub mod assets;
pub mod certificates;
pub mod controlplane;
pub mod daemon;
pub mod disks;
pub mod enter;
pub mod tools;
pub mod wait;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};

pub use controlplane::{Component, ControlPlane};
pub use disks::Disks;
pub use enter::enter;

use crate::agent::{Agent, AgentConfig, Image, ImageTable};
use crate::error::{Doing as _, Error, Result};
use crate::network::Network;
use crate::proxy::AdminProxy;
use crate::site::{self, Member};

/// The product's image in the bed.
pub const PRODUCT_IMAGE: &str = "garage-holdfast:bed";

/// The product's switch to short waiting times, which its chart cannot set.
const SHORT_TIMES: &str = "HOLDFAST_UNSAFE_SHORT_WAITS";

/// What kind of bed is wanted.
#[derive(Debug, Clone)]
pub struct Options {
    /// Kubernetes' version; its assets must be there.
    pub kubernetes: String,
    /// The product's own waiting times instead of short ones.
    pub real_times: bool,
}

impl Default for Options {
    fn default() -> Self {
        // `make soak` runs the same suites on the oldest one.
        let kubernetes =
            std::env::var("HOLDFAST_KUBERNETES").unwrap_or_else(|_| assets::KUBERNETES.to_owned());
        Self { kubernetes, real_times: false }
    }
}

/// A running bed.
pub struct Bed {
    /// The bed's folder, a tmpfs that goes with it.
    pub root: PathBuf,
    /// Where all logs are.
    pub logs: PathBuf,
    /// The network of Nodes and Pods.
    pub network: Arc<Network>,
    /// The control plane.
    pub control_plane: ControlPlane,
    /// The disks of the Nodes.
    pub disks: Disks,
    /// A client of the administrator.
    pub client: Client,
    images: Arc<ImageTable>,
    agents: Mutex<BTreeMap<String, Arc<Agent>>>,
}

impl Bed {
    /// Starts a bed in the folder that [`enter`] returned.
    pub async fn start(root: &Path, options: &Options) -> Result<Self> {
        // One crypto provider for everything in this process; a second call is no error worth telling.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let logs = root.join("logs");
        std::fs::create_dir_all(&logs).doing(|| format!("making {}", logs.display()))?;
        let network = Network::new(&root.join("net"))?;
        let address = IpAddr::V4(network.host_ip());
        let control_plane = ControlPlane::start(root, &logs, address, &options.kubernetes).await?;
        let client = control_plane.client().await?;
        let disks = Disks::new(&root.join("nodes"));
        Ok(Self {
            root: root.to_owned(),
            logs,
            network: Arc::new(network),
            control_plane,
            disks,
            client,
            images: Arc::new(images(options)?),
            agents: Mutex::default(),
        })
    }

    /// Adds a Kubernetes Node with labels and starts its agent. A Node that is there gets the labels.
    pub async fn add_node(&self, name: &str, labels: &[(&str, &str)]) -> Result<Arc<Agent>> {
        if let Ok(agent) = self.agent(name) {
            for (key, value) in labels {
                self.kubectl(&["label", "node", name, "--overwrite", &format!("{key}={value}")]).await?;
            }
            return Ok(agent);
        }
        let host_root = self.disks.host_root(name);
        let (client, network, images) = (self.client.clone(), self.network.clone(), self.images.clone());
        let mut config = AgentConfig::new(name, client, network, images, host_root, &self.root);
        config.labels = site::labels(labels);
        config.kubelet_version = format!("v{}", self.control_plane.version());
        let agent = Arc::new(Agent::start(config).await?);
        self.lock_agents().insert(name.to_owned(), agent.clone());
        Ok(agent)
    }

    /// The agent of a Node: its Pods, their processes, its power.
    pub fn agent(&self, node: &str) -> Result<Arc<Agent>> {
        let found = self.lock_agents().get(node).cloned();
        found.ok_or_else(|| Error::other(format!("the bed has no Node {node}")))
    }

    /// Sends a signal to Garage's process of a member.
    pub fn signal(&self, namespace: &str, member: &Member, signal: nix::sys::signal::Signal) -> Result<()> {
        self.agent(&member.node)?.signal(namespace, &member.pod, signal)
    }

    /// Puts a proxy before a member's Admin API; it is gone when the answer is dropped.
    pub fn admin_proxy(&self, member: &Member) -> Result<AdminProxy> {
        let net = self.network.pod(&member.uid);
        let net = net.ok_or_else(|| Error::other(format!("{} has no network", member.pod)))?;
        AdminProxy::place(&net, member.admin().port())
    }

    /// Unmounts a volume (by its path in the container) under the running Garage of a member.
    pub fn unmount_under(&self, namespace: &str, member: &Member, path: &str) -> Result<()> {
        let pid = self.agent(&member.node)?.pid_of(namespace, &member.pod);
        let pid = pid.ok_or_else(|| Error::other(format!("no process of {} runs", member.pod)))?;
        Disks::unmount_in_pod(pid, path)
    }

    fn lock_agents(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Agent>>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in the bed right now, for a person who must find out why a test failed: GarageClusters with
    /// their conditions, GarageNodes, Pods, warnings, and the ends of the logs.
    pub async fn state(&self) -> String {
        let mut text = String::new();
        for kind in ["GarageCluster", "GarageNode"] {
            let version = if kind == "GarageCluster" { "v1beta2" } else { "v1beta1" };
            let resource =
                ApiResource::from_gvk(&GroupVersionKind::gvk("garage.rajsingh.info", version, kind));
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            for object in api.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
                let _ = writeln!(text, "{kind} {}: {}", object.name_any(), object.data["status"]);
            }
        }
        let pods: Api<Pod> = Api::all(self.client.clone());
        match pods.list(&ListParams::default()).await {
            Ok(pods) => {
                for pod in pods {
                    let _ = writeln!(text, "Pod {}", pod_line(&pod));
                }
            }
            Err(error) => {
                let _ = writeln!(text, "the Pods cannot be listed: {error}");
            }
        }
        let events: Api<Event> = Api::all(self.client.clone());
        let warnings = ListParams::default().fields("type=Warning");
        for event in events.list(&warnings).await.map(|list| list.items).unwrap_or_default() {
            let about = &event.involved_object;
            let _ = writeln!(
                text,
                "Warning {} {}: {} {}",
                about.kind.as_deref().unwrap_or_default(),
                about.name.as_deref().unwrap_or_default(),
                event.reason.as_deref().unwrap_or_default(),
                event.message.as_deref().unwrap_or_default()
            );
        }
        for (name, log) in logs_below(&self.logs) {
            // The control plane's logs are kept, and seldom the cause.
            if name.starts_with("pods/") {
                let _ = writeln!(text, "--- {name}");
                for line in tail(&log, 5).lines() {
                    let _ = writeln!(text, "{}", line.chars().take(300).collect::<String>());
                }
            }
        }
        text
    }
}

/// `tests.image` of the chart's values.
const KUBECTL_IMAGE: &str = "docker.io/alpine/kubectl:1.34.2";

/// What can run in the bed: each Garage that is built, and the product as it was built last.
fn images(options: &Options) -> Result<ImageTable> {
    let mut images = ImageTable::default();
    for version in [assets::GARAGE, assets::OLDEST_GARAGE] {
        if let Ok(binary) = assets::garage(version) {
            images = images.with(&site::garage_image(version), Image::garage(resolved(&binary)?));
        }
    }
    let product = beside_the_program("garage-holdfast");
    let mut image = Image::program(product, "/garage-holdfast");
    if !options.real_times {
        image.env.push((SHORT_TIMES.to_owned(), "true".to_owned()));
    }
    // What the chart's own test runs in: a shell, which every container of a bed has, and kubectl.
    let kubectl = assets::control_plane("kubectl", assets::KUBERNETES)?;
    let kubectl = Image::program(resolved(&kubectl)?, "/usr/local/bin/kubectl");
    Ok(images.with(PRODUCT_IMAGE, image).with(KUBECTL_IMAGE, kubectl))
}

/// An asset may be a link to a binary that was there already.
fn resolved(path: &Path) -> Result<PathBuf> {
    path.canonicalize().doing(|| format!("finding {}", path.display()))
}

fn pod_line(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let node =
        pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_else(|| "no node".to_owned());
    let containers: Vec<String> = status
        .container_statuses
        .unwrap_or_default()
        .into_iter()
        .map(|container| {
            let state = container.state.unwrap_or_default();
            let said = state.waiting.map(|waiting| {
                format!("{}: {}", waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default())
            });
            let ended = state.terminated.map(|ended| format!("ended with {}", ended.exit_code));
            let state = said.or(ended).unwrap_or_else(|| "running".to_owned());
            format!(
                "{} {state} ready={} restarts={}",
                container.name, container.ready, container.restart_count
            )
        })
        .collect();
    let waits: Vec<String> = status
        .conditions
        .unwrap_or_default()
        .into_iter()
        .filter(|condition| condition.status != "True")
        .map(|condition| format!("{} {}", condition.type_, condition.message.unwrap_or_default()))
        .collect();
    format!(
        "{}/{} on {node}: {} [{}] {}",
        pod.namespace().unwrap_or_default(),
        pod.name_any(),
        status.phase.unwrap_or_default(),
        containers.join(", "),
        waits.join(", ")
    )
}

/// All files below a folder by their relative names.
fn logs_below(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(name) = path.strip_prefix(folder) {
                found.insert(name.display().to_string(), path);
            }
        }
    }
    found
}

/// The last lines of a file; empty when it cannot be read.
pub fn tail(file: &Path, lines: usize) -> String {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A path beside the program's own binary, in the target folder of its profile: `target/debug/<name>`.
pub fn beside_the_program(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().map(Path::to_owned).unwrap_or_default();
    // Test binaries lie one folder deeper.
    let folder = if folder.ends_with("deps") {
        folder.parent().map(Path::to_owned).unwrap_or_default()
    } else {
        folder
    };
    folder.join(name)
}

/// Copies all logs of a bed to a folder outside of it.
pub fn keep_logs(logs: &Path, to: &Path) -> Result<()> {
    let _ = std::fs::remove_dir_all(to);
    for (name, path) in logs_below(logs) {
        let copy = to.join(name);
        if let Some(folder) = copy.parent() {
            std::fs::create_dir_all(folder).doing(|| format!("making {}", folder.display()))?;
        }
        std::fs::copy(&path, &copy).doing(|| format!("keeping {}", path.display()))?;
    }
    Ok(())
}
