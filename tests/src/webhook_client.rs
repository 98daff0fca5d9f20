//! A client of the webhooks that goes past the API server: one TLS connection for each request, checked against a CA
//! bundle as the API server checks it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// As long as the API server waits for a webhook of ours.
const WITHIN: Duration = Duration::from_secs(5);

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The bundle holds no certificate that can be a root.
    #[error("no roots: {0}")]
    Bundle(String),
    /// The certificate was not accepted, or the handshake broke.
    #[error("TLS: {0}")]
    Tls(String),
    /// The connection was refused or cut.
    #[error("connection: {0}")]
    Connection(String),
    /// Nothing within five seconds.
    #[error("no answer in time")]
    Timeout,
    /// It was something else than JSON.
    #[error("not JSON: {0}")]
    Body(String),
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The review.
    pub body: Value,
    /// The certificate that the replica served with (DER).
    pub certificate: Vec<u8>,
}

/// What the client trusts, and by which name it calls.
#[derive(Debug, Clone)]
pub struct WebhookClient {
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl WebhookClient {
    /// `bundle` is PEM, `name` the DNS name of the Service.
    ///
    /// # Errors
    /// The bundle or the name is unusable.
    pub fn new(bundle: &[u8], name: &str) -> Result<Self, Failure> {
        let unusable = |error: &dyn std::fmt::Display| Failure::Bundle(error.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle) {
            roots.add(certificate.map_err(|e| unusable(&e))?).map_err(|e| unusable(&e))?;
        }
        if roots.is_empty() {
            return Err(Failure::Bundle("there is no certificate in it".to_owned()));
        }
        let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).map_err(|e| unusable(&e))?;
        Ok(Self { tls: Arc::new(tls), name })
    }

    /// POSTs a review over a connection of its own.
    ///
    /// # Errors
    /// There was no answer.
    pub async fn post(&self, replica: SocketAddr, path: &str, review: &Value) -> Result<Answer, Failure> {
        timeout(WITHIN, self.post_unbounded(replica, path, review)).await.unwrap_or(Err(Failure::Timeout))
    }

    async fn post_unbounded(
        &self,
        replica: SocketAddr,
        path: &str,
        review: &Value,
    ) -> Result<Answer, Failure> {
        let broken = |error: &dyn std::fmt::Display| Failure::Connection(error.to_string());
        let stream = TcpStream::connect(replica).await.map_err(|e| broken(&e))?;
        let connector = TlsConnector::from(self.tls.clone());
        // A connection that was cut is no refused certificate.
        let stream =
            connector.connect(self.name.clone(), stream).await.map_err(|error| match error.kind() {
                std::io::ErrorKind::InvalidData => Failure::Tls(error.to_string()),
                _ => broken(&error),
            })?;
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let certificate = certificates.first().map(|c| c.to_vec()).unwrap_or_default();
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|e| broken(&e))?;
        tokio::spawn(connection);
        let request = http::Request::post(path)
            .header("host", "webhooks")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(review.to_string())))
            .map_err(|e| broken(&e))?;
        let response = sender.send_request(request).await.map_err(|e| broken(&e))?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|e| broken(&e))?.to_bytes();
        let body = serde_json::from_slice(&body).map_err(|e| Failure::Body(e.to_string()))?;
        Ok(Answer { status, body, certificate })
    }
}
