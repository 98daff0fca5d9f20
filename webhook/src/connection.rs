//! One connection: TLS handshake, HTTP/1.1 or HTTP/2, and a watchdog that ends it when it says nothing.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::BufWriter;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::route;
use crate::server::Shared;

/// Flow control windows of HTTP/2: what a peer may send before it is read, and so what a connection can cost.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// What of an answer is gathered before it is encrypted.
const WRITE_BUFFER: usize = 64 << 10;

/// Streams of HTTP/2 that a connection may have open at once.
const STREAMS: u32 = 250;

/// By so many more than were answered a connection may cancel requests that were begun. Whoever cancels a few because
/// they took too long goes on; who opens streams only to reset them is sent away. (What is reset before it was begun is
/// counted by h2 itself.)
const CANCELLED: u64 = 2 * STREAMS as u64;

/// What a connection is doing, for its watchdog.
#[derive(Debug)]
pub(crate) struct Activity {
    since: Instant,
    in_flight: AtomicUsize,
    requests: AtomicU64,
    /// Requests that were cancelled before their answer, less those that were answered since.
    cancelled: AtomicU64,
    only_cancels: Notify,
    last: Mutex<Instant>,
}

impl Activity {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            since: now,
            in_flight: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            only_cancels: Notify::new(),
            last: Mutex::new(now),
        }
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// When the connection must end if nothing happens until then.
    fn deadline(&self, shared: &Shared) -> Instant {
        let config = &shared.config;
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            last + config.stall_timeout
        } else if self.requests.load(Ordering::Relaxed) == 0 {
            self.since + config.first_request_timeout
        } else {
            last + config.idle_timeout
        }
    }
}

/// A request in flight; it ends when its answer is handed over or the connection is gone.
#[derive(Debug)]
pub(crate) struct InFlight {
    activity: Arc<Activity>,
    answered: AtomicBool,
}

impl InFlight {
    fn begin(activity: &Arc<Activity>) -> Arc<Self> {
        activity.in_flight.fetch_add(1, Ordering::Relaxed);
        activity.requests.fetch_add(1, Ordering::Relaxed);
        activity.touch();
        Arc::new(Self { activity: activity.clone(), answered: AtomicBool::new(false) })
    }

    /// There is an answer: whoever goes away now has not cancelled it.
    pub(crate) fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Self { activity, answered } = self;
        activity.in_flight.fetch_sub(1, Ordering::Relaxed);
        activity.touch();
        if *answered.get_mut() {
            let less = |n: u64| n.checked_sub(1);
            let _ = activity.cancelled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        } else if activity.cancelled.fetch_add(1, Ordering::Relaxed) >= CANCELLED {
            activity.only_cancels.notify_one();
        }
    }
}

/// Serves one accepted connection to its end.
pub(crate) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
    shared: Arc<Shared>,
    closing: CancellationToken,
) {
    let handshake = async {
        // Nothing is allocated for a peer that says nothing.
        stream.readable().await?;
        tls.accept(stream).await
    };
    let tls = match timeout(shared.config.handshake_timeout, handshake).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => {
            shared.metrics.connection("handshake_failed");
            // A connection that only opens and closes is a probe, no event.
            if error.kind() == std::io::ErrorKind::UnexpectedEof {
                tracing::debug!(%peer, "a connection ended before its TLS handshake");
            } else {
                tracing::info!(%peer, %error, "a TLS handshake failed");
            }
            return;
        }
        Err(_) => {
            shared.metrics.connection("handshake_timeout");
            tracing::debug!(%peer, "a connection did not finish its TLS handshake in time");
            return;
        }
    };
    shared.metrics.connection("accepted");

    let http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    let activity = Arc::new(Activity::new());
    let service = {
        let shared = shared.clone();
        let activity = activity.clone();
        service_fn(move |request| {
            let in_flight = InFlight::begin(&activity);
            let shared = shared.clone();
            async move { Ok::<_, std::convert::Infallible>(route::handle(request, &shared, in_flight).await) }
        })
    };
    if http2 {
        // A frame of HTTP/2 is a little longer than a TLS record holds: written one by one, every second record would
        // be nine bytes long.
        let io = TokioIo::new(BufWriter::with_capacity(WRITE_BUFFER, tls));
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(32 << 10)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(10))
            .serve_connection(io, service);
        drive(connection, peer, &activity, &shared, &closing).await;
    } else {
        let io = TokioIo::new(tls);
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(shared.config.idle_timeout)
            .max_buf_size(256 << 10)
            .serve_connection(io, service);
        drive(connection, peer, &activity, &shared, &closing).await;
    }
}

/// Runs a connection until it ends, stands still too long, or the server closes.
async fn drive<C>(
    connection: C,
    peer: SocketAddr,
    activity: &Activity,
    shared: &Shared,
    closing: &CancellationToken,
) where
    C: GracefulConnection,
    C::Error: std::fmt::Display,
{
    let mut connection = pin!(connection);
    let mut leaving = false;
    // What limit applies changes with every request, so the watchdog looks at least as often as the shortest asks.
    let config = &shared.config;
    let step = config.first_request_timeout.min(config.idle_timeout).min(config.stall_timeout);
    let mut deadline = Instant::now() + step;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%peer, %error, "a connection broke");
                }
                return;
            }
            () = activity.only_cancels.notified() => {
                shared.metrics.connection("only_cancels");
                tracing::info!(%peer, "a connection that only cancels its requests is dropped");
                return;
            }
            () = closing.cancelled(), if !leaving => {
                leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            () = sleep_until(deadline) => {
                let now = Instant::now();
                let next = activity.deadline(shared);
                if next > now {
                    deadline = next.min(now + step);
                } else if leaving || activity.in_flight.load(Ordering::Relaxed) > 0 {
                    // It was asked to leave, or an answer is not being taken: no more waiting.
                    tracing::debug!(%peer, "a connection stood still and is dropped");
                    return;
                } else {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                    deadline = now + shared.config.handshake_timeout;
                }
            }
        }
    }
}
