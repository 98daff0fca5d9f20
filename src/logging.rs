//! Structured logs on standard error.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::LogFormat;

/// Starts logging. The error names the filter that does not parse.
pub fn start(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::builder().parse(filter).map_err(|e| {
        format!("--log {filter:?} is not a log filter ({e}); write info, or info,holdfast_reconciler=debug")
    })?;
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
        LogFormat::Text => registry.with(layer).try_init(),
    }
    .map_err(|e| format!("logging could not be started: {e}"))
}
