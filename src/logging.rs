//! Structured logs on standard error, and beside them the traces.

use tracing::Subscriber;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::cli::LogFormat;
use crate::traces::{SPANS, Traces};

/// Starts logging. The error names the filter that does not parse.
///
/// Spans are for a collector and never in the log. Without one their targets are off for the whole process, whatever
/// the log's filter says: no span is ever made.
pub fn start(filter: &str, format: LogFormat, traces: Option<&Traces>) -> Result<(), String> {
    let mut filter = EnvFilter::builder().parse(filter).map_err(|e| {
        format!("--log {filter:?} is not a log filter ({e}); write info, or info,holdfast_reconciler=debug")
    })?;
    for target in SPANS {
        let off = format!("{target}=off").parse();
        filter = filter.add_directive(off.map_err(|e| format!("the filter of spans does not parse: {e}"))?);
    }
    let registry = tracing_subscriber::registry();
    // Without traces one filter for all; with them each its own.
    match (traces, format) {
        (None, LogFormat::Json) => registry.with(filter).with(json()).try_init(),
        (None, LogFormat::Text) => registry.with(filter).with(text()).try_init(),
        (Some(traces), LogFormat::Json) => {
            registry.with(json().with_filter(filter)).with(traces.layer()).try_init()
        }
        (Some(traces), LogFormat::Text) => {
            registry.with(text().with_filter(filter)).with(traces.layer()).try_init()
        }
    }
    .map_err(|e| format!("logging could not be started: {e}"))
}

fn text<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    fmt::layer().with_writer(std::io::stderr)
}

fn json<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    fmt::layer().with_writer(std::io::stderr).json().flatten_event(true)
}
