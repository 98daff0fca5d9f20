//! A server in this process and clients that speak to it over real TLS.
#![allow(
    dead_code,
    clippy::needless_pass_by_value,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs
)]

pub mod process;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures::future::BoxFuture;
use holdfast_crds::validate::{Fact, Member, Parent};
use holdfast_webhook::{CertSlot, Config, Lookups, Readiness, Server};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus_client::registry::Registry;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

pub const CLUSTER: &str = holdfast_webhook::CLUSTER_PATH;
pub const NODE: &str = holdfast_webhook::NODE_PATH;
pub const CONVERT: &str = holdfast_webhook::CONVERT_PATH;

/// Facts that a test sets.
#[derive(Default)]
pub struct Facts {
    pub members: Mutex<Fact<Vec<Member>>>,
    pub parent: Mutex<Fact<Option<Parent>>>,
    pub live_reads: std::sync::atomic::AtomicUsize,
}

impl Lookups for Facts {
    fn members(&self, _: &str, _: &str) -> Fact<Vec<Member>> {
        self.members.lock().unwrap().clone()
    }
    fn parent<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Fact<Option<Parent>>> {
        self.live_reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Box::pin(std::future::ready(self.parent.lock().unwrap().clone()))
    }
}

pub struct Cert {
    pub der: CertificateDer<'static>,
    pub key: Arc<CertifiedKey>,
}

pub fn certificate() -> Cert {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let der = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
    Cert { der: der.clone(), key: Arc::new(CertifiedKey::new(vec![der], key)) }
}

pub struct Bed {
    pub address: SocketAddr,
    pub facts: Arc<Facts>,
    pub registry: Registry,
    pub readiness: Readiness,
    pub shutdown: CancellationToken,
    pub slot: Arc<ArcSwapOption<CertifiedKey>>,
    pub cert: Cert,
    pub ended: tokio::task::JoinHandle<()>,
}

impl Bed {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(([127, 0, 0, 1], 0).into());
        config.drain_time = Duration::from_millis(50);
        config.drain_grace = Duration::from_secs(5);
        change(&mut config);
        let cert = certificate();
        let slot = Arc::new(ArcSwapOption::from(Some(cert.key.clone())));
        let facts = Arc::new(Facts::default());
        let mut registry = Registry::default();
        let server = Server::bind(config, CertSlot::new(slot.clone()), facts.clone(), &mut registry).unwrap();
        let address = server.local_addr();
        let readiness = server.readiness();
        let shutdown = CancellationToken::new();
        let ended = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { server.run(shutdown).await.unwrap() }
        });
        Self { address, facts, registry, readiness, shutdown, slot, cert, ended }
    }

    pub fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    pub fn tls(&self, alpn: &[&str]) -> rustls::ClientConfig {
        client_config(&[&self.cert], alpn)
    }

    /// A TLS connection that speaks what it likes.
    pub async fn connect(&self, alpn: &[&str]) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(self.tls(alpn)));
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    /// Sends bytes over TLS and reads until the server closes, at most `wait`.
    pub async fn raw(&self, bytes: &[u8], wait: Duration) -> String {
        let mut stream = self.connect(&["http/1.1"]).await;
        // The server may close while we still write.
        let _ = stream.write_all(bytes).await;
        let mut got = Vec::new();
        let _ = tokio::time::timeout(wait, stream.read_to_end(&mut got)).await;
        String::from_utf8_lossy(&got).into_owned()
    }

    /// One request over HTTP/1.1.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> (u16, Value) {
        let (status, text) = self.send(path, "application/json", body).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub async fn send(&self, path: &str, content_type: &str, body: impl Into<Bytes>) -> (u16, String) {
        let mut client = Client::h1(self).await;
        client.send(path, content_type, body.into()).await
    }
}

pub fn client_config(certs: &[&Cert], alpn: &[&str]) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    for cert in certs {
        roots.add(cert.der.clone()).unwrap();
    }
    let mut config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    config
}

/// A connection that is kept.
pub enum Client {
    H1(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    H2(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub async fn h1(bed: &Bed) -> Self {
        let io = TokioIo::new(bed.connect(&["http/1.1"]).await);
        let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        Self::H1(sender)
    }

    pub async fn h2(bed: &Bed) -> Self {
        let io = TokioIo::new(bed.connect(&["h2"]).await);
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        Self::H2(sender)
    }

    pub async fn try_send(
        &mut self,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<(u16, String), hyper::Error> {
        let uri = match self {
            Self::H1(_) => path.to_owned(),
            Self::H2(_) => format!("https://localhost{path}"),
        };
        let request = http::Request::post(uri)
            .header("host", "localhost")
            .header("content-type", content_type)
            .body(Full::new(body))
            .unwrap();
        let response = match self {
            Self::H1(c) => {
                c.ready().await?;
                c.send_request(request).await?
            }
            Self::H2(c) => {
                c.ready().await?;
                c.send_request(request).await?
            }
        };
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    pub async fn send(&mut self, path: &str, content_type: &str, body: Bytes) -> (u16, String) {
        self.try_send(path, content_type, body).await.unwrap()
    }
}

/// A GarageCluster with a pool `fast`.
pub fn cluster(annotations: Value) -> Value {
    json!({
        "apiVersion": "garage.rajsingh.info/v1beta2",
        "kind": "GarageCluster",
        "metadata": {"name": "site-a", "namespace": "objects", "annotations": annotations},
        "spec": {"storage": {
            "replicas": 0,
            "podDisruptionBudget": {"enabled": true},
            "nodeLocalPools": [{"name": "fast", "capacity": "2Ti"}],
        }},
    })
}

/// A review of an update of a GarageCluster.
pub fn update(old: &Value, new: &Value) -> Value {
    review("UPDATE", "GarageCluster", "v1beta2", old, new)
}

pub fn review(operation: &str, kind: &str, version: &str, old: &Value, new: &Value) -> Value {
    let gvk = json!({"group": "garage.rajsingh.info", "version": version, "kind": kind});
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "2b7c9e10-0000-4a6b-8c21-0f5e6d7a8b9c",
            "kind": gvk, "requestKind": gvk,
            "resource": {"group": "garage.rajsingh.info", "version": version, "resource": "garageclusters"},
            "name": "site-a", "namespace": "objects", "operation": operation,
            "userInfo": {"username": "admin", "groups": ["system:masters"]},
            "object": new, "oldObject": old, "dryRun": false,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "UpdateOptions"},
        },
    })
}

pub const HOLD: &str = "garage.rajsingh.info/node-local-out-of-service";

pub fn members() -> Fact<Vec<Member>> {
    let id = "0f".repeat(32);
    Fact::Known(
        (1..=3)
            .map(|i| Member {
                pool: "fast".into(),
                kubernetes_node: format!("kn-{i}"),
                node_id: Some(id.clone()),
                pin: Some(id.clone()),
            })
            .collect(),
    )
}
