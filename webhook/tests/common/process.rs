//! The server in a process of its own, so that its memory is its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use holdfast_webhook::{CertSlot, Config, Server};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{Cert, Facts, certificate, client_config, members};

const AS_SERVER: &str = "HOLDFAST_SERVES_FOR_TESTS";

/// This very program as a server. Ends with the test.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
    cert: Cert,
}

impl Process {
    /// The program has an ignored test `serves_for_the_other_tests` that calls [`serve`].
    pub fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serves_for_the_other_tests", "--ignored", "--nocapture"])
            .env(AS_SERVER, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line =
            lines.find_map(|line| line.unwrap().split_once("listens ").map(|(_, l)| l.to_owned())).unwrap();
        let (address, der) = line.split_once(' ').unwrap();
        let der: Vec<u8> =
            (0..der.len() / 2).map(|i| u8::from_str_radix(&der[2 * i..2 * i + 2], 16).unwrap()).collect();
        let cert = Cert { der: CertificateDer::from(der), ..certificate() };
        Self { child, address: address.parse().unwrap(), cert }
    }

    /// A line of `/proc/PID/status` in bytes.
    pub fn memory(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    pub fn tls(&self, alpn: &[&str]) -> Arc<rustls::ClientConfig> {
        Arc::new(client_config(&[&self.cert], alpn))
    }

    pub async fn connect(&self, alpn: &[&str]) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(self.tls(alpn));
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    pub async fn keep(&self) -> hyper::client::conn::http1::SendRequest<Full<Bytes>> {
        let io = TokioIo::new(self.connect(&["http/1.1"]).await);
        let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves as the product does, on one thread, where a [`Process`] asked for it.
pub fn serve() {
    if std::env::var_os(AS_SERVER).is_none() {
        return;
    }
    let cert = certificate();
    let slot = Arc::new(arc_swap::ArcSwapOption::from(Some(cert.key)));
    let facts = Arc::new(Facts::default());
    *facts.members.lock().unwrap() = members();
    let mut registry = prometheus_client::registry::Registry::default();
    let config = Config::new(([127, 0, 0, 1], 0).into());
    // Bound where a runtime is, served where none is yet: as in the product.
    let binds = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bound = async { Server::bind(config, CertSlot::new(slot), facts, &mut registry).unwrap() };
    let server = binds.block_on(bound);
    let der: Vec<String> = cert.der.iter().map(|b| format!("{b:02x}")).collect();
    println!("listens {} {}", server.local_addr(), der.concat());
    server.run_here(tokio_util::sync::CancellationToken::new()).unwrap();
}
