//! Faults of one Garage Pod's Admin API, without touching the product, Garage or their configuration.
//!
//! The Admin port of the Pod's own address is routed, inside the Pod's network namespace, to one more
//! namespace that has the same address on its loopback. There a proxy of ours answers; it passes calls on to
//! the real port inside the Pod's namespace. Everything else of the Pod (RPC, S3) is as it was.
//!
//! ```text
//! client -> eth0 [Pod's namespace] -- tcp port 3903 --> admin0 = admin1 [proxy's namespace, same address]
//!                 Garage :3903  <----------------------------------------- proxy
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nix::sched::{CloneFlags, setns};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::error::{Doing as _, Error, Result};
use crate::network::{PodNet, connect_in};

const POD_END: &str = "169.254.39.1";
const PROXY_END: &str = "169.254.39.2";
/// Number of the routing table for the Admin port.
const TABLE: u32 = 39;

/// What happens to a call.
#[derive(Clone)]
pub enum Fault {
    /// The call waits this long, and then goes on.
    Delay(Duration),
    /// No answer, ever; Garage does not hear of the call.
    Hang,
    /// Garage does what it was told; the connection ends before its answer.
    CutAfterProcessed,
    /// Garage does not hear of the call; an answer with this status and an empty body.
    Status(u16),
    /// Garage's answer, changed.
    Change(Arc<dyn Fn(&mut Value) + Send + Sync>),
    /// Garage's answer is replaced by this text.
    Garbage(&'static str),
}

impl Fault {
    /// One node is missing from the answer of a call to several, with or without an error entry.
    pub fn without_node(node: &str, error: Option<&str>) -> Self {
        let (node, error) = (node.to_owned(), error.map(str::to_owned));
        Self::Change(Arc::new(move |answer| {
            if let Some(success) = answer["success"].as_object_mut() {
                success.remove(&node);
            }
            if let Some(error) = &error {
                answer["error"][&node] = Value::from(error.clone());
            }
        }))
    }

    /// A field of the answer is missing (an RFC 6901 pointer to it).
    pub fn without_field(pointer: &str) -> Self {
        let (parent, field) = pointer.rsplit_once('/').unwrap_or(("", pointer));
        let (parent, field) = (parent.to_owned(), field.to_owned());
        Self::Change(Arc::new(move |answer| {
            if let Some(object) = answer.pointer_mut(&parent).and_then(Value::as_object_mut) {
                object.remove(&field);
            }
        }))
    }
}

/// A call that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The method.
    pub method: String,
    /// Path and query, such as `/v2/ListWorkers?node=*`.
    pub path: String,
    /// The body, where it is text.
    pub body: String,
}

struct Rule {
    path: String,
    times: Option<u32>,
    fault: Fault,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    calls: Vec<Call>,
}

/// The proxy in front of one Pod's Admin API. Dropping it gives the port back to Garage.
pub struct AdminProxy {
    pod: PodNet,
    namespace: PathBuf,
    port: u16,
    state: Arc<Mutex<State>>,
    open: watch::Sender<bool>,
    task: AbortHandle,
}

impl AdminProxy {
    /// Puts a proxy before the Admin port of a Pod. It passes every call on until told otherwise. It stays
    /// while the Pod lives, over restarts of its container.
    pub fn place(pod: &PodNet, port: u16) -> Result<Self> {
        let namespace = pod.netns.with_extension("admin");
        interpose(pod, &namespace, port)?;
        let listener = listen_in(&namespace, pod.ip, port)?;
        let state: Arc<Mutex<State>> = Arc::default();
        let (open, opened) = watch::channel(true);
        let task = tokio::spawn(serve(listener, pod.clone(), namespace.clone(), port, state.clone(), opened));
        Ok(Self { pod: pod.clone(), namespace, port, state, open, task: task.abort_handle() })
    }

    /// Every call whose path and query contain `path` (all for an empty one) meets the fault from now on;
    /// the first rule that fits counts. `times`: only so often, then the rule is over.
    pub fn inject(&self, path: &str, times: Option<u32>, fault: Fault) {
        lock(&self.state).rules.push(Rule { path: path.to_owned(), times, fault });
    }

    /// How many faults of a path (all for an empty one) have not met all their calls yet.
    pub fn armed(&self, path: &str) -> usize {
        lock(&self.state).rules.iter().filter(|rule| rule.path.contains(path)).count()
    }

    /// Takes the faults of a path back.
    pub fn disarm(&self, path: &str) {
        lock(&self.state).rules.retain(|rule| rule.path != path);
    }

    /// Refuses connections (true), or accepts them again.
    pub fn refuse(&self, on: bool) {
        self.open.send_replace(!on);
    }

    /// Ends all faults. A call that hangs goes on hanging; its client gives up by itself.
    pub fn heal(&self) {
        lock(&self.state).rules.clear();
        self.refuse(false);
    }

    /// The calls that arrived, and forgets them.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut lock(&self.state).calls)
    }

    /// How often each call (by its last path segment) arrived since the last [`Self::take_calls`].
    pub fn count_calls(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for call in &lock(&self.state).calls {
            let name =
                call.path.split('?').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
            *counts.entry(name.to_owned()).or_default() += 1;
        }
        counts
    }
}

impl Drop for AdminProxy {
    fn drop(&mut self) {
        self.task.abort();
        let undo = "rule add pref 0 lookup local\nrule del pref 100\nrule del pref 39\nlink del admin0\n";
        // The Pod, and its namespace with it, may be gone already; and so may the rule.
        if let Err(error) = ip(&self.pod.netns, undo) {
            tracing::debug!(%error, port = self.port, "an Admin proxy leaves something in a Pod's namespace");
        }
        release(&self.namespace);
    }
}

fn release(namespace: &Path) {
    let _ = nix::mount::umount2(namespace, nix::mount::MntFlags::MNT_DETACH);
    let _ = std::fs::remove_file(namespace);
}

fn interpose(pod: &PodNet, namespace: &Path, port: u16) -> Result<()> {
    File::create(namespace).doing(|| format!("making {}", namespace.display()))?;
    crate::bed::disks::run(
        Command::new("unshare").arg(format!("--net={}", namespace.display())).arg("true"),
    )?;
    let address = pod.ip;
    ip(&pod.netns, &format!("link add admin0 type veth peer name admin1 netns {}\n", namespace.display()))?;
    ip(
        namespace,
        &format!(
            "link set lo up\naddr add {address}/32 dev lo\naddr add {PROXY_END}/30 dev admin1\n\
             link set admin1 up\nroute add default via {POD_END}\n"
        ),
    )?;
    ip(&pod.netns, &format!("addr add {POD_END}/30 dev admin0\nlink set admin0 up\n"))?;
    // The Pod's namespace forwards: what comes for the Admin port goes to the proxy, and the proxy's answers,
    // which carry the Pod's own address, go out again.
    let settings = [
        ("ip_forward", "1"),
        ("conf/all/rp_filter", "0"),
        ("conf/eth0/rp_filter", "0"),
        ("conf/admin0/rp_filter", "0"),
        ("conf/admin0/accept_local", "1"),
    ];
    let script =
        settings.map(|(key, value)| format!("echo {value} > /proc/sys/net/ipv4/{key} || exit 1\n")).concat();
    crate::bed::disks::run(
        Command::new("nsenter").arg(format!("--net={}", pod.netns.display())).args(["sh", "-c", &script]),
    )?;
    // The rule must come before the one for local addresses, which therefore moves down.
    ip(
        &pod.netns,
        &format!(
            "route add {address}/32 via {PROXY_END} dev admin0 table {TABLE}\n\
             rule add pref 39 iif eth0 ipproto tcp dport {port} lookup {TABLE}\n\
             rule add pref 100 lookup local\n\
             rule del pref 0\n"
        ),
    )
}

/// Runs `ip` commands in a network namespace.
fn ip(namespace: &Path, lines: &str) -> Result<()> {
    let mut child = Command::new("nsenter")
        .arg(format!("--net={}", namespace.display()))
        .args(["ip", "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .doing(|| "starting nsenter")?;
    if let Some(mut pipe) = child.stdin.take() {
        // A command that ends before it read everything says why by itself.
        let _ = pipe.write_all(lines.as_bytes());
    }
    let output = child.wait_with_output().doing(|| "running ip")?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Command {
        command: format!("ip -batch - <<< {lines:?}"),
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Opens a listener in a network namespace; it stays there in whichever thread it is used.
fn listen_in(namespace: &Path, address: Ipv4Addr, port: u16) -> Result<TcpListener> {
    let doing = || format!("listening on {address}:{port} for the Admin proxy");
    let handle = File::open(namespace).doing(doing)?;
    // A thread of its own: a namespace belongs to a thread, and this one ends with it.
    let thread = std::thread::spawn(move || -> std::io::Result<TcpListener> {
        setns(handle, CloneFlags::CLONE_NEWNET)?;
        let listener = TcpListener::bind((address, port))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the listening thread failed"))).doing(doing)
}

async fn serve(
    first: TcpListener,
    pod: PodNet,
    namespace: PathBuf,
    port: u16,
    state: Arc<Mutex<State>>,
    mut opened: watch::Receiver<bool>,
) {
    let mut first = Some(first);
    loop {
        let listener = match first.take() {
            Some(listener) => Ok(listener),
            None => listen_in(&namespace, pod.ip, port),
        };
        let listener = match listener.and_then(|listener| {
            tokio::net::TcpListener::from_std(listener).doing(|| "handing the listener over")
        }) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "the Admin proxy ended");
                return;
            }
        };
        // Connections end with the listener: to be refused also means to lose what was open.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    let (pod, state) = (pod.clone(), state.clone());
                    connections.spawn(async move {
                        let service = service_fn(move |request| answer(request, pod.clone(), port, state.clone()));
                        // A client that goes away is no news.
                        let _ = hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                    });
                }
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                closed = opened.wait_for(|open| !open) => {
                    if closed.is_err() {
                        return;
                    }
                    break;
                }
            }
        }
        drop((listener, connections));
        if opened.wait_for(|open| *open).await.is_err() {
            return;
        }
    }
}

type Answer = Result<Response<Full<Bytes>>, Error>;

async fn answer(request: Request<Incoming>, pod: PodNet, port: u16, state: Arc<Mutex<State>>) -> Answer {
    let failed = |error: hyper::Error| Error::other(format!("reading an Admin call: {error}"));
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(failed)?.to_bytes();
    let path = parts.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    let fault = {
        let mut state = lock(&state);
        let text = String::from_utf8_lossy(&body).into_owned();
        state.calls.push(Call { method: parts.method.to_string(), path: path.clone(), body: text });
        let fitting = state.rules.iter().position(|rule| path.contains(&rule.path));
        fitting.and_then(|at| {
            let rule = state.rules.get_mut(at)?;
            let fault = rule.fault.clone();
            if let Some(times) = &mut rule.times {
                *times -= 1;
                if *times == 0 {
                    state.rules.remove(at);
                }
            }
            Some(fault)
        })
    };
    match fault {
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Status(status)) => {
            let mut response = Response::new(Full::default());
            *response.status_mut() =
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return Ok(response);
        }
        Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
        _ => {}
    }
    let response = pass_on(Request::from_parts(parts, Full::new(body)), pod, port).await?;
    match fault {
        // An error of the service closes the connection without an answer.
        Some(Fault::CutAfterProcessed) => Err(Error::other("cut")),
        Some(Fault::Garbage(text)) => Ok(Response::new(Full::from(text))),
        Some(Fault::Change(change)) => {
            let (mut parts, body) = response.into_parts();
            let mut value: Value = serde_json::from_slice(&body).unwrap_or_default();
            change(&mut value);
            parts.headers.remove(http::header::CONTENT_LENGTH);
            Ok(Response::from_parts(parts, Full::from(value.to_string())))
        }
        _ => Ok(response.map(Full::new)),
    }
}

async fn pass_on(request: Request<Full<Bytes>>, pod: PodNet, port: u16) -> Result<Response<Bytes>> {
    let failed = |error: hyper::Error| Error::other(format!("passing an Admin call on: {error}"));
    let to = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let connect = move || -> std::io::Result<TcpStream> {
        let stream = connect_in(&pod.netns, to, Duration::from_secs(5))?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    let stream = tokio::task::spawn_blocking(connect)
        .await
        .map_err(|error| Error::other(error.to_string()))?
        .and_then(tokio::net::TcpStream::from_std)
        .doing(|| "connecting to the real Admin API")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(failed)?;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(failed)?.to_bytes();
    connection.abort();
    Ok(Response::from_parts(parts, body))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn changed(fault: Fault, mut answer: Value) -> Value {
        if let Fault::Change(change) = fault {
            change(&mut answer);
        }
        answer
    }

    #[test]
    fn a_node_can_be_missing_from_an_answer_with_or_without_an_error_entry() {
        let answer = json!({"success": {"1": [], "2": []}, "error": {}});
        assert_eq!(
            changed(Fault::without_node("2", None), answer.clone()),
            json!({"success": {"1": []}, "error": {}})
        );
        let missing = changed(Fault::without_node("2", Some("Timeout")), answer);
        assert_eq!(missing, json!({"success": {"1": []}, "error": {"2": "Timeout"}}));
    }

    #[test]
    fn a_field_can_be_missing_from_an_answer() {
        let answer = json!({"a": {"b": 1, "c": 2}});
        assert_eq!(changed(Fault::without_field("/a/b"), answer.clone()), json!({"a": {"c": 2}}));
        assert_eq!(changed(Fault::without_field("/a"), answer), json!({}));
    }
}
