//! The network of a bed: one bridge that has the bed's own address, one more bridge for each
//! Kubernetes Node, a network namespace with its own address for each Pod, and the faults that can
//! happen between them (`spec/testbed.md`, "Parts" and "Faults").
//!
//! ```text
//!                 hub (10.77.0.1: control plane, the tests)
//!               /          |         \            veth pairs; a Node's cable is pulled here
//!            node a      node b      node c       bridges
//!            /    \        |           |          veth pairs; a Pod's cable is pulled here
//!         pod 1  pod 2   pod 3       pod 4        network namespaces with one `eth0`
//! ```
//!
//! Everything runs in the bed's network namespace, in which the caller is root (perhaps only as a
//! mapped, unprivileged user): bridges, veth pairs and namespaces need nothing more. All addresses
//! are of one subnet, so no Pod has a default route: what is not in the bed is unreachable at once.
//!
//! A pulled cable takes the port down: no FIN and no RST is seen by anybody, as in a power cut
//! (FACTS 14). There is no artificial latency (netem needs more rights than a bed has).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::error::{Doing as _, Error, Result};

/// Length of the network prefix that all addresses of a bed share.
pub const PREFIX: u8 = 16;
/// The hub's address: where the control plane and the tests are reached from every Pod.
pub const HOST_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const HUB: &str = "hub";
/// Pods begin at 10.77.1.0; each gets the next address, and the range wraps after 64,000 Pods, so an
/// address that was given back is not seen again in one bed's life.
const FIRST_POD: u32 = 0x0a4d_0100;
const LAST_POD: u32 = 0x0a4d_fffe;

/// A Pod's place in the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNet {
    /// Handle of the network namespace: for `nsenter --net=<path>` and `ip link … netns <path>`.
    pub netns: PathBuf,
    /// The Pod's address.
    pub ip: Ipv4Addr,
}

struct Node {
    bridge: String,
    uplink: String,
    ip: Ipv4Addr,
    up: watch::Sender<bool>,
}

struct Pod {
    net: PodNet,
    port: String,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<String, Pod>,
    isolated: BTreeSet<(String, String)>,
    pods_made: u32,
}

/// The network of one bed. Methods block for some milliseconds each (they run `ip`).
pub struct Network {
    run: PathBuf,
    state: Mutex<State>,
}

impl Network {
    /// Brings up the loopback and the hub in the current network namespace. Handles of the Pods'
    /// namespaces are files in `run`, which must be in the bed's mount namespace.
    pub fn new(run: &Path) -> Result<Self> {
        std::fs::create_dir_all(run).doing(|| format!("making {}", run.display()))?;
        ip_batch(
            None,
            &format!(
                "link set lo up\n\
                 link add {HUB} address {} type bridge\n\
                 addr add {HOST_IP}/{PREFIX} dev {HUB}\n\
                 link set {HUB} up\n",
                mac(HOST_IP)
            ),
        )?;
        Ok(Self { run: run.to_owned(), state: Mutex::default() })
    }

    /// The bed's own address.
    pub fn host_ip(&self) -> Ipv4Addr {
        HOST_IP
    }

    /// Adds a bridge for a Kubernetes Node, joined to the hub, and returns the Node's address. A Node
    /// that is there already stays as it is.
    pub fn add_node(&self, name: &str) -> Result<Ipv4Addr> {
        let mut state = self.lock();
        if let Some(node) = state.nodes.get(name) {
            return Ok(node.ip);
        }
        let number = u8::try_from(state.nodes.len()).unwrap_or(u8::MAX).saturating_add(10);
        let ip = Ipv4Addr::new(10, 77, 0, number);
        let (bridge, uplink, downlink) =
            (format!("n{number}"), format!("n{number}up"), format!("n{number}dn"));
        // The Node's own address lies on its bridge as a /32, so that the hub keeps the only route.
        ip_batch(
            None,
            &format!(
                "link add {bridge} address {} type bridge\n\
                 link add {uplink} type veth peer name {downlink}\n\
                 link set {uplink} master {HUB} up\n\
                 link set {downlink} master {bridge} up\n\
                 addr add {ip}/32 dev {bridge}\n\
                 link set {bridge} up\n",
                mac(ip)
            ),
        )?;
        state.nodes.insert(name.to_owned(), Node { bridge, uplink, ip, up: watch::Sender::new(true) });
        Ok(ip)
    }

    /// Makes a network namespace for a Pod (key: its UID) on a Node, with an address that no Pod had
    /// before. A Pod that is attached already keeps what it has.
    pub fn attach_pod(&self, node: &str, pod_uid: &str) -> Result<PodNet> {
        let mut state = self.lock();
        if let Some(pod) = state.pods.get(pod_uid) {
            return Ok(pod.net.clone());
        }
        let bridge = state.nodes.get(node).ok_or_else(|| unknown_node(node))?.bridge.clone();
        let number = state.pods_made;
        state.pods_made += 1;
        let ip = pod_address(number);
        let port = format!("p{number}");
        let netns = self.run.join(format!("net-{number}"));
        std::fs::File::create(&netns).doing(|| format!("making {}", netns.display()))?;
        run(Command::new("unshare").arg(format!("--net={}", netns.display())).arg("true"), None)?;
        let made = ip_batch(
            None,
            &format!(
                "link add {port} type veth peer name eth0 address {} netns {}\n\
                 link set {port} master {bridge} up\n",
                mac(ip),
                netns.display()
            ),
        )
        .and_then(|()| {
            ip_batch(
                Some(&netns),
                &format!("link set lo up\naddr add {ip}/{PREFIX} dev eth0\nlink set eth0 up\n"),
            )
        });
        if let Err(error) = made {
            remove_netns(&netns);
            return Err(error);
        }
        let net = PodNet { netns, ip };
        state.pods.insert(pod_uid.to_owned(), Pod { net: net.clone(), port });
        Ok(net)
    }

    /// Takes a Pod's namespace away. Its processes must be gone, or they keep it alive, unreachable.
    /// An unknown Pod is no error.
    pub fn detach_pod(&self, pod_uid: &str) -> Result<()> {
        let mut state = self.lock();
        let Some(pod) = state.pods.remove(pod_uid) else { return Ok(()) };
        state.isolated.retain(|(a, b)| a != pod_uid && b != pod_uid);
        // The peer inside goes with it, at once and not when the kernel gets to the namespace.
        let removed = ip_batch(None, &format!("link del {}\n", pod.port));
        remove_netns(&pod.net.netns);
        removed
    }

    /// Where a Pod is attached.
    pub fn pod(&self, pod_uid: &str) -> Option<PodNet> {
        self.lock().pods.get(pod_uid).map(|pod| pod.net.clone())
    }

    /// Pulls or plugs a Node's cable: its Pods still reach each other, and nobody else. The Node's
    /// agent falls silent too, as it reaches no API server.
    pub fn set_node_link(&self, node: &str, up: bool) -> Result<()> {
        let state = self.lock();
        let node = state.nodes.get(node).ok_or_else(|| unknown_node(node))?;
        ip_batch(None, &format!("link set {} {}\n", node.uplink, if up { "up" } else { "down" }))?;
        node.up.send_replace(up);
        Ok(())
    }

    /// Follows a Node's cable: true while it is plugged.
    pub fn watch_node_link(&self, node: &str) -> Result<watch::Receiver<bool>> {
        let state = self.lock();
        let node = state.nodes.get(node).ok_or_else(|| unknown_node(node))?;
        Ok(node.up.subscribe())
    }

    /// Pulls or plugs a Pod's cable. The Node's agent still probes it from inside.
    pub fn set_pod_link(&self, pod_uid: &str, up: bool) -> Result<()> {
        let state = self.lock();
        let pod = state.pods.get(pod_uid).ok_or_else(|| unknown_pod(pod_uid))?;
        ip_batch(None, &format!("link set {} {}\n", pod.port, if up { "up" } else { "down" }))
    }

    /// Makes two Pods unreachable for each other, while others reach both; or ends that. The routes
    /// lie in the Pods' namespaces: a Pod that is replaced comes back without them.
    pub fn isolate(&self, uid_a: &str, uid_b: &str, on: bool) -> Result<()> {
        let mut state = self.lock();
        let find = |uid: &str| state.pods.get(uid).map(|pod| pod.net.clone()).ok_or_else(|| unknown_pod(uid));
        let (a, b) = (find(uid_a)?, find(uid_b)?);
        let key = if uid_a < uid_b {
            (uid_a.to_owned(), uid_b.to_owned())
        } else {
            (uid_b.to_owned(), uid_a.to_owned())
        };
        if state.isolated.contains(&key) == on {
            return Ok(());
        }
        let word = if on { "add" } else { "del" };
        ip_batch(Some(&a.netns), &format!("route {word} blackhole {}/32\n", b.ip))?;
        ip_batch(Some(&b.netns), &format!("route {word} blackhole {}/32\n", a.ip))?;
        if on {
            state.isolated.insert(key);
        } else {
            state.isolated.remove(&key);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a TCP connection from inside a network namespace; the socket stays there for good, in
/// whichever thread it is used later. Blocks up to `timeout`.
pub fn connect_in(netns: &Path, to: SocketAddr, timeout: Duration) -> std::io::Result<TcpStream> {
    let handle = std::fs::File::open(netns)?;
    // A thread of its own: a namespace belongs to a thread, and this one ends with its namespace.
    let thread = std::thread::Builder::new().name("connect-in-netns".to_owned()).spawn(move || {
        nix::sched::setns(handle, nix::sched::CloneFlags::CLONE_NEWNET)?;
        TcpStream::connect_timeout(&to, timeout)
    })?;
    thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the connecting thread failed")))
}

fn unknown_node(name: &str) -> Error {
    Error::other(format!("the network has no node {name}: add_node comes first"))
}

fn unknown_pod(uid: &str) -> Error {
    Error::other(format!("the network has no pod {uid}: it was never attached, or is detached"))
}

fn pod_address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(FIRST_POD + number % (LAST_POD - FIRST_POD))
}

/// A locally administered address made from the IP, so that it never moves: a bridge that is left to
/// itself takes the lowest one of its ports, and neighbours would have to learn it anew.
fn mac(ip: Ipv4Addr) -> String {
    let [a, b, c, d] = ip.octets();
    format!("02:42:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

fn remove_netns(path: &Path) {
    // Both may fail only if the bed is being taken down around us; nothing is left to do then.
    if let Err(error) = run(Command::new("umount").arg("--lazy").arg(path), None) {
        tracing::debug!(%error, "a network namespace's handle stays");
    }
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "a network namespace's handle stays");
    }
}

fn ip_batch(netns: Option<&Path>, lines: &str) -> Result<()> {
    let mut command = if let Some(netns) = netns {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", netns.display())).arg("ip");
        command
    } else {
        Command::new("ip")
    };
    run(command.args(["-batch", "-"]), Some(lines))
}

fn run(command: &mut Command, input: Option<&str>) -> Result<()> {
    let line = || {
        let words: Vec<_> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        format!("{}{}", words.join(" "), input.map(|lines| format!(" <<< {lines:?}")).unwrap_or_default())
    };
    let text = line();
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .doing(|| format!("running {text} (is iproute2 and util-linux installed?)"))?;
    if let (Some(mut pipe), Some(lines)) = (child.stdin.take(), input) {
        // A command that ends before it read everything says why by itself.
        let _ = pipe.write_all(lines.as_bytes());
    }
    let output = child
        .wait_with_output()
        .doing(|| format!("running {text} (is iproute2 and util-linux installed?)"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Command {
        command: text,
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn pod_addresses_are_not_used_again_soon() {
        let seen: BTreeSet<_> = (0..64_000).map(pod_address).collect();
        assert_eq!(seen.len(), 64_000);
        assert!(!seen.contains(&HOST_IP));
        assert_eq!(pod_address(0), Ipv4Addr::new(10, 77, 1, 0));
    }

    #[test]
    fn a_mac_address_follows_from_the_ip() {
        assert_eq!(mac(HOST_IP), "02:42:0a:4d:00:01");
    }

    #[test]
    fn a_failed_command_is_named_with_what_it_printed() {
        let error = run(Command::new("sh").args(["-c", "echo no such port >&2; exit 1"]), None).unwrap_err();
        assert_eq!(error.to_string(), "sh -c echo no such port >&2; exit 1: exit status: 1: no such port");
    }
}
