//! Limits and times of the server.

use std::net::SocketAddr;
use std::time::Duration;

/// How to serve. [`Config::new`] has the values of production; tests shorten the times.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// From accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// From the handshake to the first request, headers included.
    pub first_request_timeout: Duration,
    /// A connection without a request in flight is closed after this. Longer than the API server's own 90 s, so
    /// that it is the client that closes and no request crosses a closing connection.
    pub idle_timeout: Duration,
    /// A connection whose request or answer stands still for this long is dropped.
    pub stall_timeout: Duration,
    /// For one admission request, its body included. Below the configuration's `timeoutSeconds` of 5.
    pub admission_deadline: Duration,
    /// For one conversion request, its body included. Below the API server's 30 s.
    pub conversion_deadline: Duration,
    /// Connections at once; more are closed at once.
    pub max_connections: usize,
    /// Requests at once; more are answered 429.
    pub max_requests: usize,
    /// Bytes of one admission body (the API server's own limit for a request is 3 MiB; a review holds two objects).
    pub admission_body_limit: usize,
    /// Bytes of all admission bodies at once.
    pub admission_budget: usize,
    /// Bytes of all conversion bodies at once, and so of one: a LIST is one body.
    pub conversion_budget: usize,
    /// After the shutdown signal: how long to go on serving while unready, until nobody is sent here any more.
    pub drain_time: Duration,
    /// After that: how long requests in flight may take to finish.
    pub drain_grace: Duration,
}

impl Config {
    /// The values of production.
    pub const fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            handshake_timeout: Duration::from_secs(5),
            first_request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(150),
            stall_timeout: Duration::from_secs(60),
            admission_deadline: Duration::from_millis(4500),
            conversion_deadline: Duration::from_secs(25),
            max_connections: 2048,
            max_requests: 256,
            admission_body_limit: 7 << 20,
            admission_budget: 32 << 20,
            conversion_budget: 64 << 20,
            drain_time: Duration::from_secs(10),
            drain_grace: Duration::from_secs(30),
        }
    }
}
