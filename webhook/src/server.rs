//! The listener, and how the server begins and ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cert::CertSlot;
use crate::config::Config;
use crate::connection;
use crate::limits::Budget;
use crate::lookup::Lookups;
use crate::metrics::Metrics;

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The TLS library does not take the settings.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The thread that serves cannot wait for anything.
    #[error("cannot start the runtime of the webhook server: {0}")]
    Runtime(std::io::Error),
}

/// What all connections share.
pub(crate) struct Shared {
    pub config: Config,
    pub metrics: Metrics,
    pub lookups: Arc<dyn Lookups>,
    pub requests: Arc<Semaphore>,
    pub admission_budget: Budget,
    pub conversion_budget: Budget,
}

/// Whether requests may be sent here: the certificate is loaded, the listener is open, and the process is not
/// leaving. Not whether caches are full: that would deadlock an installation.
#[derive(Debug, Clone)]
pub struct Readiness {
    cert: CertSlot,
    open: Arc<AtomicBool>,
}

impl Readiness {
    /// Whether it is so now.
    pub fn is_ready(&self) -> bool {
        self.open.load(Ordering::Relaxed) && self.cert.is_loaded()
    }

    /// What is missing, for a probe's answer; `None` when ready.
    pub fn missing(&self) -> Option<&'static str> {
        if !self.open.load(Ordering::Relaxed) {
            Some("the webhook listener is not open, or is closing")
        } else if !self.cert.is_loaded() {
            Some("no serving certificate is loaded yet")
        } else {
            None
        }
    }
}

/// A server with its listener open.
pub struct Server {
    /// Of no runtime yet: where it is bound is not where it is served.
    listener: std::net::TcpListener,
    address: SocketAddr,
    tls: TlsAcceptor,
    shared: Arc<Shared>,
    readiness: Readiness,
}

impl Server {
    /// Opens the listener and registers the metrics. Nothing is accepted before [`Server::run`].
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn bind(
        config: Config,
        cert: CertSlot,
        lookups: Arc<dyn Lookups>,
        registry: &mut Registry,
    ) -> Result<Self, Error> {
        let mut provider = rustls::crypto::ring::default_provider();
        // As the API server would choose: the long key costs a third more time and protects nothing more here.
        provider.cipher_suites.sort_by_key(|suite| {
            use rustls::CipherSuite::{
                TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
                TLS13_AES_128_GCM_SHA256,
            };
            !matches!(
                suite.suite(),
                TLS13_AES_128_GCM_SHA256
                    | TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                    | TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
            )
        });
        let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(cert.clone()));
        tls.ignore_client_order = true;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];

        let address = config.listen;
        let listen = |address: SocketAddr| {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let listener = socket.listen(1024)?;
            let address = listener.local_addr()?;
            Ok((listener.into_std()?, address))
        };
        let (listener, address) = listen(address).map_err(|source| Error::Listen { address, source })?;
        Ok(Self {
            listener,
            address,
            tls: TlsAcceptor::from(Arc::new(tls)),
            readiness: Readiness { cert, open: Arc::new(AtomicBool::new(true)) },
            shared: Arc::new(Shared {
                metrics: Metrics::register(registry),
                lookups,
                requests: Arc::new(Semaphore::new(config.max_requests)),
                admission_budget: Budget::new(config.admission_budget),
                conversion_budget: Budget::new(config.conversion_budget),
                config,
            }),
        })
    }

    /// Where it listens; with port 0 configured, the port that it got.
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// For the readiness probe.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Serves until `shutdown`, then fails readiness, serves on for the drain time, lets requests in flight finish,
    /// and returns.
    ///
    /// # Errors
    /// The listener cannot be waited for.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self { listener, address, tls, shared, readiness } = self;
        let listener = TcpListener::from_std(listener).map_err(|source| Error::Listen { address, source })?;
        tracing::info!(%address, "the webhook server listens");
        let connections = TaskTracker::new();
        let closing = CancellationToken::new();
        let room = Arc::new(Semaphore::new(shared.config.max_connections));

        let drained = async {
            shutdown.cancelled().await;
            readiness.open.store(false, Ordering::Relaxed);
            tracing::info!("the webhook server is draining");
            tokio::time::sleep(shared.config.drain_time).await;
        };
        tokio::pin!(drained);
        // A handshake without a certificate can only fail. A replica that was replaced in its Pod is called before
        // Kubernetes has seen that it is new: such a connection waits in the backlog, for a moment.
        tokio::select! {
            () = &mut drained => return Ok(()),
            () = readiness.cert.loaded() => {}
        }
        loop {
            let accepted = tokio::select! {
                () = &mut drained => break,
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // One connection's trouble, or no more file descriptors: that passes.
                    tracing::warn!(%error, "a connection could not be accepted");
                    shared.metrics.connection("accept_failed");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            let Ok(place) = room.clone().try_acquire_owned() else {
                shared.metrics.connection("no_room");
                shared.metrics.overloaded("connections");
                continue;
            };
            // Reviews are small and answered at once: no waiting to fill a packet.
            let _ = stream.set_nodelay(true);
            let (tls, shared, closing) = (tls.clone(), shared.clone(), closing.clone());
            connections.spawn(async move {
                let open = shared.metrics.open_connections.clone();
                open.inc();
                connection::serve(stream, peer, tls, shared, closing).await;
                open.dec();
                drop(place);
            });
        }
        drop(listener);
        closing.cancel();
        connections.close();
        let grace = shared.config.drain_grace;
        if tokio::time::timeout(grace, connections.wait()).await.is_err() {
            tracing::warn!(left = connections.len(), "connections were still open at the end of the drain");
        }
        tracing::info!("the webhook server has ended");
        Ok(())
    }

    /// The same on the calling thread and nothing else, but for long conversions, which get threads of their own.
    ///
    /// A review is microseconds of work, and what wakes another thread for it costs more than that; and what else
    /// the process does delays no answer.
    ///
    /// # Errors
    /// As [`Server::run`], or there is no runtime to be had.
    pub fn run_here(self, shutdown: CancellationToken) -> Result<(), Error> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
        runtime.block_on(self.run(shutdown))
    }
}

/// Binds and runs in one; for a caller that needs neither the address nor readiness.
///
/// # Errors
/// The address cannot be listened on.
pub async fn serve(
    config: Config,
    cert: CertSlot,
    lookups: Arc<dyn Lookups>,
    registry: &mut Registry,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    Server::bind(config, cert, lookups, registry)?.run(shutdown).await
}
