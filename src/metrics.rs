//! `/healthz`, `/readyz` and `/metrics`, on a port of their own without TLS: nothing there is secret.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

/// What the endpoints read.
pub struct Observable {
    /// Every metric.
    pub registry: Registry,
    /// Why this replica is not ready to serve webhooks; `None` when it is.
    pub missing: Box<dyn Fn() -> Option<&'static str> + Send + Sync>,
}

/// Serves until `shutdown`; the listener is open when this returns its future's first poll.
pub async fn serve(
    listen: SocketAddr,
    observable: Observable,
    shutdown: CancellationToken,
) -> Result<(), String> {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(observable));
    let listener = tokio::net::TcpListener::bind(listen).await.map_err(|e| {
        format!("cannot listen on {listen} for metrics ({e}); choose another --metrics-listen")
    })?;
    axum::serve(listener, app)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
        .map_err(|e| format!("the metrics server ended: {e}"))
}

async fn readyz(State(observable): State<Arc<Observable>>) -> impl IntoResponse {
    match (observable.missing)() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(missing) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {missing}\n")),
    }
}

async fn metrics(State(observable): State<Arc<Observable>>) -> impl IntoResponse {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &observable.registry) {
        Ok(()) => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")],
            text,
        )
            .into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
