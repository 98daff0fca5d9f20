//! Probes: HTTP, HTTPS and TCP from inside the Pod's own network namespace (a kubelet stands on the Node,
//! so that a pulled cable does not fail a probe), and commands inside the container.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nix::unistd::Pid;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

use super::container;
use super::script::Identity;
use crate::network::connect_in;

/// Where and as whom a container is probed.
#[derive(Debug, Clone)]
pub struct Target {
    /// The Pod's network namespace.
    pub netns: PathBuf,
    /// The Pod's address.
    pub ip: IpAddr,
    /// The container's main process.
    pub pid: Pid,
    /// The container's environment.
    pub env: Vec<(String, String)>,
    /// Who the container runs as.
    pub identity: Identity,
}

/// The numbers of a probe; the API server fills in defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Before the first attempt.
    pub initial_delay: Duration,
    /// Between attempts.
    pub period: Duration,
    /// Of one attempt.
    pub timeout: Duration,
    /// Successes in a row that turn it to success.
    pub successes: u32,
    /// Failures in a row that turn it to failure.
    pub failures: u32,
}

/// Reads a probe's numbers.
pub fn schedule(probe: &Probe) -> Schedule {
    let seconds = |value: Option<i32>, default: i32| {
        Duration::from_secs(u64::from(value.unwrap_or(default).max(0).unsigned_abs()))
    };
    let count = |value: Option<i32>, default: i32| value.unwrap_or(default).max(1).unsigned_abs();
    Schedule {
        initial_delay: seconds(probe.initial_delay_seconds, 0),
        period: seconds(probe.period_seconds, 10).max(Duration::from_secs(1)),
        timeout: seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1)),
        successes: count(probe.success_threshold, 1),
        failures: count(probe.failure_threshold, 3),
    }
}

/// Counts attempts and says when the verdict turns.
#[derive(Debug)]
pub struct Counter {
    schedule: Schedule,
    last: Option<bool>,
    run: u32,
}

impl Counter {
    /// No attempt yet.
    pub fn new(schedule: Schedule) -> Self {
        Self { schedule, last: None, run: 0 }
    }

    /// One more result; the verdict once enough equal ones came in a row.
    pub fn record(&mut self, success: bool) -> Option<bool> {
        self.run = if self.last == Some(success) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(success);
        let needed = if success { self.schedule.successes } else { self.schedule.failures };
        (self.run >= needed).then_some(success)
    }
}

/// One attempt. The error says what went wrong, in a kubelet's words where it has some.
pub async fn attempt(probe: &Probe, container: &Container, target: &Target) -> Result<(), String> {
    let timeout = schedule(probe).timeout;
    if let Some(action) = &probe.exec {
        exec(action, target, timeout).await
    } else if let Some(action) = &probe.http_get {
        http(action, container, target, timeout).await
    } else if let Some(action) = &probe.tcp_socket {
        tcp(action, container, target, timeout).await
    } else {
        Err("this probe is not supported by the bed's node agent".to_owned())
    }
}

/// Runs a command in the container.
pub async fn exec(action: &ExecAction, target: &Target, timeout: Duration) -> Result<(), String> {
    let argv = action.command.clone().unwrap_or_default();
    container::exec(target.pid, &target.identity, &target.env, &argv, timeout).await
}

async fn tcp(
    action: &TCPSocketAction,
    container: &Container,
    target: &Target,
    timeout: Duration,
) -> Result<(), String> {
    let address = address(action.host.as_deref(), &action.port, container, target)?;
    let netns = target.netns.clone();
    blocking(timeout, move || {
        connect_in(&netns, address, timeout).map(drop).map_err(|error| error.to_string())
    })
    .await
}

/// Asks a page; success is 200 to 399. A certificate is not checked, as a kubelet does not.
pub async fn http(
    action: &HTTPGetAction,
    container: &Container,
    target: &Target,
    timeout: Duration,
) -> Result<(), String> {
    let address = address(action.host.as_deref(), &action.port, container, target)?;
    let path = action.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/").to_owned();
    let mut request = format!("GET /{} HTTP/1.1\r\n", path.trim_start_matches('/'));
    let headers = action.http_headers.iter().flatten();
    if !headers.clone().any(|header| header.name.eq_ignore_ascii_case("host")) {
        let _ = write!(request, "Host: {address}\r\n");
    }
    for header in headers {
        let _ = write!(request, "{}: {}\r\n", header.name, header.value);
    }
    request += "User-Agent: kube-probe/bed\r\nAccept: */*\r\nConnection: close\r\n\r\n";
    let tls = action.scheme.as_deref() == Some("HTTPS");
    let netns = target.netns.clone();
    let code = blocking(timeout, move || {
        let stream = connect_in(&netns, address, timeout).map_err(|error| error.to_string())?;
        ask(stream, tls.then(|| address.ip()), &request, timeout).map_err(|error| error.to_string())
    })
    .await?;
    if (200..400).contains(&code) {
        Ok(())
    } else {
        Err(format!("HTTP probe failed with statuscode: {code}"))
    }
}

/// Sends a request and reads the status code; with TLS to the named address.
fn ask(mut stream: TcpStream, tls: Option<IpAddr>, request: &str, timeout: Duration) -> std::io::Result<u16> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let mut head = [0_u8; 12];
    if let Some(ip) = tls {
        let name = ServerName::IpAddress(ip.into());
        let connection = ClientConnection::new(any_certificate(), name).map_err(std::io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        stream.write_all(request.as_bytes())?;
        stream.read_exact(&mut head)?;
    } else {
        stream.write_all(request.as_bytes())?;
        stream.read_exact(&mut head)?;
    }
    status_code(&head).ok_or_else(|| std::io::Error::other("the answer is not HTTP"))
}

fn status_code(head: &[u8; 12]) -> Option<u16> {
    let text = std::str::from_utf8(head).ok()?;
    text.strip_prefix("HTTP/1.")?.get(2..)?.parse().ok()
}

async fn blocking<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    match tokio::time::timeout(timeout, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("context deadline exceeded".to_owned()),
    }
}

fn address(
    host: Option<&str>,
    port: &IntOrString,
    container: &Container,
    target: &Target,
) -> Result<SocketAddr, String> {
    let ip = match host.filter(|host| !host.is_empty()) {
        None => target.ip,
        Some(host) => host.parse().map_err(|_| format!("probe host {host:?}: a bed has no DNS"))?,
    };
    Ok(SocketAddr::new(ip, port_number(port, container)?))
}

fn port_number(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_deref() == Some(name))
            .map(|port| port.container_port)
            .or_else(|| name.parse().ok()),
    };
    number
        .and_then(|number| u16::try_from(number).ok())
        .ok_or_else(|| format!("couldn't find port: {port:?}"))
}

fn any_certificate() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let builder = match ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions() {
        Ok(builder) => builder,
        // Only a provider without any cipher suite fails here.
        Err(_) => ClientConfig::builder(),
    };
    Arc::new(
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(schemes)))
            .with_no_client_auth(),
    )
}

#[derive(Debug)]
struct Anybody(Vec<SignatureScheme>);

impl ServerCertVerifier for Anybody {
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
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_verdict_turns_only_after_enough_equal_results_in_a_row() {
        let probe = Probe { success_threshold: Some(2), failure_threshold: Some(3), ..Probe::default() };
        let mut counter = Counter::new(schedule(&probe));
        let verdicts: Vec<_> =
            [true, true, false, false, true, false, false, false].map(|ok| counter.record(ok)).into();
        assert_eq!(verdicts, [None, Some(true), None, None, None, None, None, Some(false)]);
    }

    #[test]
    fn a_status_line_is_read() {
        assert_eq!(status_code(b"HTTP/1.1 503"), Some(503));
        assert_eq!(status_code(b"SSH-2.0-Open"), None);
    }

    /// Answers one connection, over TLS with a certificate that nobody knows if so wanted.
    fn server(tls: bool, answer: &'static str) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0_u8; 16];
            if tls {
                let made = rcgen::generate_simple_self_signed(vec!["nobody".to_owned()]).unwrap();
                let key =
                    rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                let config = rustls::ServerConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .unwrap()
                    .with_no_client_auth()
                    .with_single_cert(vec![made.cert.der().clone()], key)
                    .unwrap();
                let connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                stream.read_exact(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                stream.flush().unwrap();
            } else {
                stream.read_exact(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    #[rstest::rstest]
    #[case(false, "HTTP/1.1 204 No Content\r\n\r\n", 204)]
    #[case(true, "HTTP/1.1 503 Service Unavailable\r\n\r\n", 503)]
    fn a_page_is_asked_with_and_without_tls(
        #[case] tls: bool,
        #[case] answer: &'static str,
        #[case] code: u16,
    ) {
        let address = server(tls, answer);
        let stream = TcpStream::connect(address).unwrap();
        let asked = ask(stream, tls.then(|| address.ip()), "GET / HTTP/1.1\r\n\r\n", Duration::from_secs(5));
        assert_eq!(asked.unwrap(), code);
    }

    #[test]
    fn a_port_is_found_by_its_name() {
        let container: Container = serde_json::from_value(serde_json::json!({
            "name": "c", "ports": [{"name": "admin", "containerPort": 3903}],
        }))
        .unwrap();
        assert_eq!(port_number(&IntOrString::String("admin".to_owned()), &container), Ok(3903));
        assert!(port_number(&IntOrString::String("other".to_owned()), &container).is_err());
    }
}
