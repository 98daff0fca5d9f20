//! The product's own binary without a cluster: an API server that only keeps objects, and Garage processes that give
//! the recorded answers. For what looks at the product from outside and asks nothing of Kubernetes or Garage: its
//! traces, its metrics page. Everything else has the bed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bed::beside_the_program;
use crate::bed::tools::workspace;
use crate::error::{Doing as _, Error, Result};

/// Namespace of the site.
pub const SITE_NAMESPACE: &str = "objects";
/// Name of the site.
pub const SITE: &str = "site-a";
/// Name of the product's Service, which its certificate is for.
pub const SERVICE: &str = "garage-holdfast.default.svc";

/// Where an object is: the API's prefix, its namespace, its plural, its name.
type Place = (String, Option<String>, String, String);

#[derive(Default)]
struct Objects {
    kept: BTreeMap<Place, Value>,
    written: u64,
}

impl Objects {
    fn keep(&mut self, place: Place, mut object: Value) -> Value {
        self.written += 1;
        let uid = self.kept.get(&place).map_or_else(
            || json!(format!("00000000-0000-0000-0000-{:012}", self.written)),
            |old| old["metadata"]["uid"].clone(),
        );
        object["metadata"]["uid"] = uid;
        object["metadata"]["resourceVersion"] = json!(self.written.to_string());
        object["metadata"]["name"] = json!(place.3);
        if let Some(namespace) = &place.1 {
            object["metadata"]["namespace"] = json!(namespace);
        }
        self.kept.insert(place, object.clone());
        object
    }
}

/// What runs: it ends when this is dropped.
pub struct StandIn {
    folder: tempfile::TempDir,
    product: Child,
    /// Where the product serves its webhooks.
    pub webhooks: SocketAddr,
    /// Where it serves its metrics.
    pub metrics: SocketAddr,
    /// The PEM of the CA of its certificate.
    pub ca: String,
    _servers: JoinSet<()>,
}

impl StandIn {
    /// Starts them, with further environment of the product, and waits until it is ready.
    ///
    /// # Errors
    /// The product is not built, or did not become ready in time: with its log.
    pub async fn start(environment: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::tempdir().doing(|| "making a folder")?;
        let mut servers = JoinSet::new();
        let mut garages = Vec::new();
        for node in 1..=3 {
            garages.push(serve(garage(node), &mut servers).await?);
        }
        let objects = Arc::new(Mutex::new(site(&garages)));
        let api = serve(Router::new().fallback(answer).with_state(objects), &mut servers).await?;
        let kubeconfig = folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{api}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).doing(|| "writing a kubeconfig")?;
        let ca = certificate(folder.path())?;
        let (webhooks, metrics) = (free_port()?, free_port()?);
        let binary = beside_the_program("garage-holdfast");
        if !binary.exists() {
            let why = format!("{} is not built: cargo build --workspace --bins", binary.display());
            return Err(Error::other(why));
        }
        let log = std::fs::File::create(folder.path().join("log")).doing(|| "creating a log")?;
        let product = Command::new(binary)
            .args(["serve", "--certs-source=files", "--log-format=text"])
            .arg(format!("--certs-dir={}", folder.path().display()))
            .arg(format!("--webhook-listen={webhooks}"))
            .arg(format!("--metrics-listen={metrics}"))
            .env("KUBECONFIG", &kubeconfig)
            .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .doing(|| "starting the product")?;
        let standing = Self { folder, product, webhooks, metrics, ca, _servers: servers };
        let ready = format!("http://{metrics}/readyz");
        let asked = || async { reqwest::get(&ready).await.is_ok_and(|answer| answer.status().is_success()) };
        standing.until("ready", asked).await?;
        Ok(standing)
    }

    /// The metrics page.
    ///
    /// # Errors
    /// It is not served.
    pub async fn page(&self) -> Result<String> {
        let url = format!("http://{}/metrics", self.metrics);
        let answer = reqwest::get(&url).await.doing(|| "reading the metrics")?;
        answer.text().await.doing(|| "reading the metrics")
    }

    /// The names of the product's threads.
    pub fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.product.id()));
        let names = tasks.into_iter().flatten().filter_map(|task| {
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok().map(|name| name.trim().to_owned())
        });
        names.collect()
    }

    /// What the product logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Waits until something holds, half a minute.
    ///
    /// # Errors
    /// It does not: with the log.
    pub async fn until<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) -> Result<()> {
        let begun = Instant::now();
        while !holds().await {
            if begun.elapsed() > Duration::from_secs(30) {
                return Err(Error::other(format!("not {what} within 30 s; the log:\n{}", self.log())));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Asks the product to end, and says how long that took and whether it ended well.
    ///
    /// # Errors
    /// It did not end in time.
    pub async fn end(&mut self) -> Result<(Duration, bool)> {
        let begun = Instant::now();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.product.id()).unwrap_or(i32::MAX));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)
            .map_err(|error| Error::other(format!("signalling the product: {error}")))?;
        loop {
            if let Some(status) = self.product.try_wait().doing(|| "waiting for the product")? {
                return Ok((begun.elapsed(), status.success()));
            }
            if begun.elapsed() > Duration::from_secs(60) {
                return Err(Error::other(format!("the product does not end; the log:\n{}", self.log())));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = self.product.kill();
        let _ = self.product.wait();
    }
}

/// A port that nobody listens on now.
pub(crate) fn free_port() -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").doing(|| "looking for a free port")?;
    listener.local_addr().doing(|| "looking for a free port")
}

/// Serves until the set is dropped.
///
/// # Errors
/// There is no port.
pub async fn serve(app: Router, servers: &mut JoinSet<()>) -> Result<SocketAddr> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.doing(|| "listening")?;
    let address = listener.local_addr().doing(|| "listening")?;
    servers.spawn(async move {
        let _ = axum::serve(listener, app).await;
    });
    Ok(address)
}

/// Writes a serving certificate into a folder and returns the PEM of its CA, which it is itself.
fn certificate(folder: &Path) -> Result<String> {
    let made = rcgen::generate_simple_self_signed([SERVICE.to_owned()])
        .map_err(|error| Error::other(format!("making a certificate: {error}")))?;
    let pem = made.cert.pem();
    std::fs::write(folder.join("tls.crt"), &pem).doing(|| "writing a certificate")?;
    std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).doing(|| "writing a key")?;
    Ok(pem)
}

// ---- Garage

fn recorded(call: &str) -> PathBuf {
    workspace().join("tests/fixtures/garage/2.5.0").join(format!("{call}.json"))
}

/// The process of one node: the recorded answers of a healthy site.
fn garage(node: usize) -> Router {
    Router::new().fallback(move |request: Request| async move {
        let call = request.uri().path().trim_start_matches("/v2/").to_owned();
        if request.uri().path() == "/metrics" {
            let page = recorded("metrics-peer-frozen-then-dead").with_extension("txt");
            return std::fs::read_to_string(page).unwrap_or_default().into_response();
        }
        let Ok(text) = std::fs::read_to_string(recorded(&call)) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let mut answer: Value = serde_json::from_str(&text).unwrap_or_default();
        if call == "GetNodeInfo" && request.uri().query() == Some("node=self") {
            let id = identity(node);
            let mut own = answer["success"]["1".repeat(64)].clone();
            own["nodeId"] = json!(id);
            answer["success"] = json!({ id: own });
        }
        ([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
    })
}

fn identity(node: usize) -> String {
    node.to_string().repeat(64)
}

// ---- Kubernetes

fn place(api: &str, namespace: Option<&str>, plural: &str, name: &str) -> Place {
    (api.to_owned(), namespace.map(str::to_owned), plural.to_owned(), name.to_owned())
}

/// A site of three members with their Pods, whose Admin APIs are at these addresses.
fn site(garages: &[SocketAddr]) -> Objects {
    const GROUP: &str = "/apis/garage.rajsingh.info";
    let mut objects = Objects::default();
    let cluster = json!({
        "apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster",
        // A proof and a hold are asked for, so that there is something to show of both.
        "metadata": {"generation": 1, "annotations": {
            "garage.rajsingh.info/verify-redundancy": "now",
            "garage.rajsingh.info/node-local-out-of-service": "fast/kn-1",
        }},
        "spec": {
            "zone": "dc1", "replication": {"factor": 3},
            "admin": {"adminTokenSecretRef": {"name": "site-a-admin", "key": "admin-token"}},
            "storage": {"replicas": 0, "nodeLocalPools": [{
                "name": "fast", "selector": {"matchLabels": {"disk": "fast"}}, "capacity": "2Gi",
                "metadata": {"hostPath": "/srv/meta"}, "data": {"hostPath": "/srv/data"},
            }]},
        },
    });
    let namespace = Some(SITE_NAMESPACE);
    let core = "/api/v1";
    objects.keep(place(&format!("{GROUP}/v1beta2"), namespace, "garageclusters", SITE), cluster);
    objects.keep(
        place(core, namespace, "secrets", "site-a-admin"),
        json!({"apiVersion": "v1", "kind": "Secret", "data": {"admin-token": "dG9rZW4="}}),
    );
    for (index, garage) in garages.iter().enumerate() {
        let (number, node) = (index + 1, format!("kn-{}", index + 1));
        objects.keep(
            place(core, None, "nodes", &node),
            json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"disk": "fast"}},
                "status": {"conditions": [{
                    "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
                }]},
            }),
        );
        let member = format!("site-a-node-local-fast-{node}");
        objects.keep(
            place(&format!("{GROUP}/v1beta1"), namespace, "garagenodes", &member),
            json!({
                "apiVersion": "garage.rajsingh.info/v1beta1", "kind": "GarageNode",
                "spec": {
                    "clusterRef": {"name": SITE}, "backing": "NodeLocalPool", "nodeLocalPoolName": "fast",
                    "kubernetesNodeName": node, "zone": "dc1", "capacity": "2Gi", "gateway": false,
                },
                "status": {"nodeId": identity(number)},
            }),
        );
        objects.keep(
            place(core, namespace, "pods", &format!("site-a-fast-{number}")),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"labels": {
                    "garage.rajsingh.info/cluster": SITE, "garage.rajsingh.info/node-local-pool": "fast",
                }},
                "spec": {"nodeName": node, "containers": [{
                    "name": "garage",
                    "ports": [{"name": "admin", "containerPort": garage.port()}],
                    "env": [{"name": "GARAGE_ADMIN_TOKEN", "valueFrom": {
                        "secretKeyRef": {"name": "site-a-admin", "key": "admin-token"},
                    }}],
                }]},
                "status": {
                    "phase": "Running", "podIP": garage.ip().to_string(),
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{
                        "name": "garage", "ready": true, "restartCount": 0, "image": "", "imageID": "",
                        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                    }],
                },
            }),
        );
    }
    objects
}

/// What a path asks for.
struct Asked {
    api: String,
    namespace: Option<String>,
    plural: String,
    name: Option<String>,
}

fn asked(path: &str) -> Option<Asked> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let prefix = if *parts.first()? == "api" { 2 } else { 3 };
    let api = format!("/{}", parts.get(..prefix)?.join("/"));
    let mut rest = parts.get(prefix..)?;
    let mut namespace = None;
    if let ["namespaces", of, _, ..] = rest {
        namespace = Some((*of).to_owned());
        rest = rest.get(2..)?;
    }
    let (plural, name) = (rest.first()?.to_string(), rest.get(1).map(|name| (*name).to_owned()));
    Some(Asked { api, namespace, plural, name })
}

fn told(code: StatusCode, reason: &str) -> Response {
    let status = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16()});
    (code, [(header::CONTENT_TYPE, "application/json")], status.to_string()).into_response()
}

fn given(code: StatusCode, object: &Value) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], object.to_string()).into_response()
}

/// Reads, lists, and keeps what is written. Watches tell nothing, and nothing is checked.
async fn answer(State(objects): State<Arc<Mutex<Objects>>>, request: Request) -> Response {
    let Some(Asked { api, namespace, plural, name }) = asked(request.uri().path()) else {
        return told(StatusCode::NOT_FOUND, "NotFound");
    };
    let method = request.method().clone();
    if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
        let silent = futures::stream::pending::<std::result::Result<bytes::Bytes, std::io::Error>>();
        let body = Body::from_stream(silent);
        return ([(header::CONTENT_TYPE, "application/json")], body).into_response();
    }
    let media = request.headers().get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok());
    let json_patch = media == Some("application/json-patch+json");
    let Ok(body) = axum::body::to_bytes(request.into_body(), 16 << 20).await else {
        return told(StatusCode::BAD_REQUEST, "BadRequest");
    };
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut objects = objects.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(name) = name.or_else(|| body["metadata"]["name"].as_str().map(str::to_owned)) else {
        let of = |place: &Place| {
            place.0 == api && place.2 == plural && (namespace.is_none() || place.1 == namespace)
        };
        let items: Vec<&Value> =
            objects.kept.iter().filter(|(place, _)| of(place)).map(|(_, object)| object).collect();
        let list = json!({"apiVersion": "v1", "kind": "List",
            "metadata": {"resourceVersion": objects.written.to_string()}, "items": items});
        return given(StatusCode::OK, &list);
    };
    let place = (api, namespace, plural, name);
    let old = objects.kept.get(&place).cloned();
    match (method, old) {
        (Method::GET, Some(old)) => given(StatusCode::OK, &old),
        (Method::POST, None) => given(StatusCode::CREATED, &objects.keep(place, body)),
        (Method::POST, Some(_)) => told(StatusCode::CONFLICT, "AlreadyExists"),
        (Method::PUT, Some(_)) => given(StatusCode::OK, &objects.keep(place, body)),
        (Method::PATCH, Some(mut new)) => {
            if json_patch {
                let patched = serde_json::from_value::<json_patch::Patch>(body)
                    .map(|patch| json_patch::patch(&mut new, &patch));
                if !matches!(patched, Ok(Ok(()))) {
                    return told(StatusCode::UNPROCESSABLE_ENTITY, "Invalid");
                }
            } else {
                json_patch::merge(&mut new, &body);
            }
            given(StatusCode::OK, &objects.keep(place, new))
        }
        (Method::DELETE, Some(old)) => {
            objects.kept.remove(&place);
            given(StatusCode::OK, &old)
        }
        _ => told(StatusCode::NOT_FOUND, "NotFound"),
    }
}
