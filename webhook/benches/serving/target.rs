//! Who is asked: a server of ours in a process of its own, or any other webhook server on this machine.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

use crate::common::{CLUSTER, CONVERT};

/// A connection to it.
pub type Sender = hyper::client::conn::http2::SendRequest<Full<bytes::Bytes>>;

/// A server and the process that it is.
pub struct Target {
    address: String,
    pid: u32,
    /// When it was started, if we did that.
    pub begun: Option<Instant>,
    convert: String,
    admit: String,
    child: Option<Child>,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Target {
    /// A new process of this program that serves.
    pub fn own() -> Self {
        let begun = Instant::now();
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program).arg(crate::SERVER).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self {
            address: line.trim().to_owned(),
            pid: child.id(),
            begun: Some(begun),
            convert: CONVERT.to_owned(),
            admit: CLUSTER.to_owned(),
            child: Some(child),
        }
    }

    /// The server at `https://HOST:PORT`, which runs on this machine.
    pub fn at(url: &str, convert: Option<&String>, admit: Option<&String>) -> Self {
        let address =
            url.strip_prefix("https://").expect("--against takes https://HOST:PORT").trim_end_matches('/');
        let port = address.rsplit(':').next().and_then(|p| p.parse().ok()).expect("--against needs a port");
        let pid =
            listener(port).unwrap_or_else(|| panic!("no process of this machine listens on port {port}"));
        Self {
            address: address.to_owned(),
            pid,
            begun: None,
            convert: convert.map_or(CONVERT, String::as_str).to_owned(),
            admit: admit.map_or(CLUSTER, String::as_str).to_owned(),
            child: None,
        }
    }

    /// An HTTP/2 connection. Whose certificate it is does not matter to what serving costs.
    pub async fn connect(&self) -> Sender {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = tokio::net::TcpStream::connect(&self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let tls = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(16 << 20)
            .handshake(TokioIo::new(tls))
            .await
            .unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Has a review converted.
    pub async fn convert(&self, sender: &Sender, body: bytes::Bytes) -> bytes::Bytes {
        ask(sender.clone(), self.convert.clone(), body).await
    }

    /// Has a review judged; to be spawned.
    pub fn admit(&self, sender: &Sender, body: bytes::Bytes) -> impl Future<Output = bytes::Bytes> + use<> {
        ask(sender.clone(), self.admit.clone(), body)
    }

    /// Processor time that all its threads took so far.
    pub fn cpu(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
        let of = |path: std::path::PathBuf| -> Option<u64> {
            std::fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
        };
        Duration::from_nanos(threads.filter_map(|t| of(t.unwrap().path())).sum())
    }

    /// Resident memory in MB.
    pub fn resident(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

async fn ask(mut sender: Sender, path: String, body: bytes::Bytes) -> bytes::Bytes {
    let request = http::Request::post(format!("https://localhost{path}"))
        .header("content-type", "application/json")
        .body(Full::new(body))
        .unwrap();
    sender.ready().await.unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    response.into_body().collect().await.unwrap().to_bytes()
}

/// The process that listens on a port, by the sockets that each process has open.
fn listener(port: u16) -> Option<u32> {
    const LISTENING: &str = "0A";
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .flat_map(|table| table.lines().skip(1).map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let here = fields.get(1)?.ends_with(&format!(":{port:04X}")) && *fields.get(3)? == LISTENING;
            here.then(|| format!("socket:[{}]", fields.get(9)?).into()).flatten()
        })
        .collect();
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let open = std::fs::read_dir(process.path().join("fd")).ok()?;
        let mut links = open.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str())).then_some(pid)
    })
}

/// Trusts every certificate: the load is between processes of one machine and means nothing.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
