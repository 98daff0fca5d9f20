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
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};

pub use controlplane::{Component, ControlPlane};
pub use disks::Disks;
pub use enter::enter;

use crate::error::{Doing as _, Result};
use crate::network::Network;

/// What kind of bed is wanted.
#[derive(Debug, Clone)]
pub struct Options {
    /// Kubernetes' version; its assets must be there.
    pub kubernetes: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { kubernetes: assets::KUBERNETES.to_owned() }
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
        Ok(Self { root: root.to_owned(), logs, network: Arc::new(network), control_plane, disks, client })
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
            if log.extension().is_some_and(|extension| extension == "log") {
                let _ = writeln!(text, "--- {name}\n{}", tail(&log, 8));
            }
        }
        text
    }
}

fn pod_line(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_else(|| "no node".to_owned());
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
            format!("{} {state} ready={} restarts={}", container.name, container.ready, container.restart_count)
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
    let folder = if folder.ends_with("deps") { folder.parent().map(Path::to_owned).unwrap_or_default() } else { folder };
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
