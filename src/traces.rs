//! Traces by OpenTelemetry: OTLP over HTTP to a collector, off unless there is an endpoint.
//!
//! Nothing here may hold up a request or a pass: a span that ended goes into a bounded queue, or nowhere when that is
//! full; a thread of its own hands the queue over in batches, each once and with a deadline. A collector that does not
//! take them is one line in the log until it does again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::Uri;
use http::header::CONTENT_TYPE;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

/// The targets of every span of ours.
pub const SPANS: [&str; 2] = [holdfast_webhook::SPANS, holdfast_reconciler::SPANS];

/// How long the collector may take for one batch. Until then the next ones wait in the queue.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the last batch: with [`crate::serve`]'s own below the grace period.
const LAST: Duration = Duration::from_secs(2);

/// Whose spans these are.
pub struct Pod<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
}

/// A running exporter.
pub struct Traces {
    provider: SdkTracerProvider,
    endpoint: String,
}

impl Traces {
    /// Starts to export to `endpoint` (`http://HOST:PORT`, to which OTLP's own path is added). `None`, and nothing
    /// started, where it is empty. Calls are made on `runtime`.
    ///
    /// # Errors
    /// It is no such URL: what, and what to write.
    pub fn start(endpoint: &str, pod: &Pod<'_>, runtime: &Handle) -> Result<Option<Self>, String> {
        let endpoint = endpoint.trim();
        if endpoint.is_empty() {
            return Ok(None);
        }
        let told = |why: &str| {
            format!(
                "--otlp-endpoint {endpoint:?} (also OTEL_EXPORTER_OTLP_ENDPOINT) is not the URL of a collector ({why}); \
                 write http://HOST:4318, or leave it empty for no traces"
            )
        };
        let uri = parse(endpoint).map_err(told)?;
        let endpoint = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let secure = uri.scheme_str() == Some("https");
        let connector = connector(secure).map_err(|why| told(&why))?;
        let collector = Collector {
            client: Arc::new(HyperClient::new(connector, DEADLINE, None)),
            runtime: runtime.clone(),
            endpoint: endpoint.clone(),
            failing: AtomicBool::new(false),
        };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(&endpoint)
            .with_http_client(collector)
            // A batch that was not taken is lost: what waits for it would be lost instead.
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(|error| told(&error.to_string()))?;
        let resource = Resource::builder()
            .with_service_name("garage-holdfast")
            .with_attributes([
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("k8s.pod.name", pod.name.to_owned()),
                KeyValue::new("k8s.namespace.name", pod.namespace.to_owned()),
            ])
            .build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Some(Self { provider, endpoint }))
    }

    /// Where spans go, for the log.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What the subscriber needs: our spans, and nothing else of this process.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let tracer: SdkTracer = self.provider.tracer("garage-holdfast");
        let ours = Targets::new().with_targets(SPANS.map(|target| (target, LevelFilter::INFO)));
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(ours)
    }

    /// Hands over what is left, for a moment. The runtime must still run.
    pub fn finish(&self) {
        if self.provider.shutdown_with_timeout(LAST).is_err() {
            tracing::info!(endpoint = self.endpoint, "the last spans were not handed over");
        }
    }
}

/// A URL to which a path can be added.
fn parse(endpoint: &str) -> Result<Uri, &'static str> {
    let uri: Uri = endpoint.parse().map_err(|_| "it is no URL")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("it does not begin with http:// or https://");
    }
    let authority = uri.authority().ok_or("it names no host")?;
    if authority.as_str().contains('@') {
        return Err("it has credentials in it; give them by OTEL_EXPORTER_OTLP_HEADERS");
    }
    let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    if authority.host().is_empty() {
        return Err("it names no host");
    }
    if !port.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
        return Err("its port is no port");
    }
    if endpoint.contains(['?', '#']) {
        return Err("it has a query or a fragment");
    }
    Ok(uri)
}

/// Plain HTTP, or TLS by this machine's CAs. Without TLS they are not even read.
fn connector(secure: bool) -> Result<HttpsConnector<HttpConnector>, String> {
    let builder = HttpsConnectorBuilder::new();
    let builder = if secure {
        builder
            .with_native_roots()
            .map_err(|error| format!("no CA to trust: {error}; name a file of them in SSL_CERT_FILE"))?
    } else {
        builder.with_tls_config(
            ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
        )
    };
    Ok(builder.https_or_http().enable_http1().build())
}

/// The client of the exporter. Its thread is no part of the runtime, so calls are made there and waited for here.
#[derive(Debug)]
struct Collector {
    client: Arc<HyperClient<HttpsConnector<HttpConnector>>>,
    runtime: Handle,
    endpoint: String,
    failing: AtomicBool,
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move { client.send_bytes(request).await });
        let answer = sent.await.map_err(HttpError::from).flatten();
        self.tell(fault(&answer));
        answer
    }
}

impl Collector {
    /// Once for each outage.
    fn tell(&self, fault: Option<String>) {
        let failing = fault.is_some();
        if self.failing.swap(failing, Ordering::Relaxed) == failing {
            return;
        }
        let endpoint = &self.endpoint;
        if let Some(why) = fault {
            tracing::warn!(
                endpoint,
                why,
                "the collector does not take our spans; they are dropped until it does; nothing else is affected"
            );
        } else {
            tracing::info!(endpoint, "the collector takes our spans");
        }
    }
}

/// Why an answer is not one of a collector.
fn fault(answer: &Result<Response<Bytes>, HttpError>) -> Option<String> {
    let response = match answer {
        Ok(response) => response,
        Err(error) => return Some(causes(error.as_ref())),
    };
    if !response.status().is_success() {
        return Some(format!("it answered {}", response.status()));
    }
    let media = response.headers().get(CONTENT_TYPE).map(|media| media.to_str().unwrap_or_default());
    let spoken =
        response.body().is_empty() || media.is_some_and(|media| media.starts_with("application/x-protobuf"));
    (!spoken).then(|| "its answer is not one of OTLP over HTTP with protobuf".to_owned())
}

/// An error with what lies under it.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut under = error.source();
    while let Some(cause) = under {
        text = format!("{text}: {cause}");
        under = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_url_of_a_collector_is_taken_and_anything_else_is_told() {
        for taken in
            ["http://c:4318", "https://c.example/otlp/", "http://[::1]:4318", "http://10.0.0.1", "HTTP://c"]
        {
            assert!(parse(taken).is_ok(), "{taken}");
        }
        for refused in [
            "collector:4318",
            "collector",
            "grpc://c:4317",
            "http://",
            "http:///x",
            "http://:4318",
            "http://c:99999",
            "http://c:0",
            "http://c:",
            "http://u:p@c:4318",
            "http://c:4318?x=y",
            "http://c:4318/#x",
            "http://a b",
            "/v1/traces",
        ] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn an_answer_that_is_not_of_a_collector_is_a_fault() {
        let answer = |status: u16, media: &str, body: &'static str| {
            let answer = Response::builder().status(status).header(CONTENT_TYPE, media);
            fault(&Ok(answer.body(Bytes::from_static(body.as_bytes())).unwrap()))
        };
        assert_eq!(answer(200, "application/x-protobuf", "x"), None);
        assert_eq!(answer(200, "application/x-protobuf", ""), None);
        assert_eq!(answer(204, "text/plain", ""), None);
        assert!(answer(200, "text/html", "<html>").is_some());
        assert!(answer(404, "application/x-protobuf", "").is_some());
        assert!(answer(302, "text/plain", "").is_some());
        assert!(fault(&Err("no".into())).is_some_and(|why| why == "no"));
    }

    #[test]
    fn nothing_is_started_without_an_endpoint() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let pod = Pod { name: "p", namespace: "n" };
        for empty in ["", " "] {
            assert!(Traces::start(empty, &pod, runtime.handle()).unwrap().is_none());
        }
        let told = Traces::start("nonsense", &pod, runtime.handle()).err().unwrap();
        assert!(told.contains("--otlp-endpoint \"nonsense\"") && told.contains("write http://"), "{told}");
    }
}
