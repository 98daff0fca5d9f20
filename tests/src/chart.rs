//! The chart, rendered by the real helm.

use std::process::Command;

use serde::Deserialize as _;
use serde_json::Value;

use crate::bed::{assets, tools};
use crate::error::{Doing as _, Error, Result};

/// Values that switch on everything that is off by default.
pub const EVERYTHING: &[&str] = &[
    "networkPolicy.enabled=true",
    "metrics.podMonitor.enabled=true",
    "metrics.serviceMonitor.enabled=true",
    "metrics.prometheusRule.enabled=true",
    "metrics.dashboard.enabled=true",
];

/// Runs `helm template` with values as `--set-json` takes them, and returns the objects. `None` where helm was not
/// built and no bed is wanted either.
///
/// # Errors
/// What helm says when it refuses, for example by the schema.
pub fn template(values: &[&str]) -> Result<Option<Vec<Value>>> {
    let Some(helm) = built(assets::control_plane("helm", assets::KUBERNETES))? else { return Ok(None) };
    let mut command = Command::new(helm);
    command
        .args(["template", "garage-holdfast"])
        .arg(tools::chart())
        .args(["--namespace", "holdfast-system"]);
    for value in values {
        command.args(["--set-json", value]);
    }
    let output = command.output().doing(|| "running helm")?;
    if !output.status.success() {
        return Err(Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let documents = serde_norway::Deserializer::from_str(&text);
    let read: std::result::Result<Vec<Value>, _> = documents.map(Value::deserialize).collect();
    let read = read.map_err(|error| Error::other(format!("helm's output: {error}")))?;
    Ok(Some(read.into_iter().filter(|document| !document.is_null()).collect()))
}

/// A binary of `tests/assets.sh`; `None`, with a line that says so, where it is not there and no bed is wanted either.
pub fn built(binary: Result<std::path::PathBuf>) -> Result<Option<std::path::PathBuf>> {
    match binary {
        Ok(binary) => Ok(Some(binary)),
        Err(error) if std::env::var_os("HOLDFAST_NO_BED").is_some() => {
            eprintln!("skipped: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The objects of a kind.
pub fn of_kind<'d>(documents: &'d [Value], kind: &str) -> Vec<&'d Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}
