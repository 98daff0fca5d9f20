//! Where the binaries are that `tests/assets.sh` built.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// The Kubernetes of the bed; `tests/assets.sh` builds it.
pub const KUBERNETES: &str = "1.37.2";
/// The oldest Kubernetes of the matrix; built by `tests/assets.sh oldest`.
pub const OLDEST_KUBERNETES: &str = "1.34.4";
/// The Garage that the bed runs if nothing else is said.
pub const GARAGE: &str = "2.5.0";
/// The Prometheus that runs the chart's queries, and whose promtool judges its alerts.
pub const PROMETHEUS: &str = "3.13.5";
/// The mdBook that builds the documentation.
pub const MDBOOK: &str = "0.5.4";
/// The oldest Garage that the product supports.
pub const OLDEST_GARAGE: &str = "2.0.0";

/// `${XDG_CACHE_HOME:-~/.cache}/garage-holdfast`
pub fn cache_folder() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache =
        set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache"))).ok_or_else(|| {
            Error::other("neither XDG_CACHE_HOME nor HOME is set: where are the bed's binaries?")
        })?;
    Ok(cache.join("garage-holdfast"))
}

/// A binary of the control plane, such as `kube-apiserver`, of a version.
pub fn control_plane(binary: &str, version: &str) -> Result<PathBuf> {
    whole(&format!("controlplane-{version}"), binary)
}

/// Garage of a version.
pub fn garage(version: &str) -> Result<PathBuf> {
    whole(&format!("garage-{version}"), "garage")
}

/// A binary of Prometheus: `promtool` or `prometheus`.
pub fn prometheus(binary: &str) -> Result<PathBuf> {
    whole(&format!("prometheus-{PROMETHEUS}"), binary)
}

/// `mdbook`.
pub fn mdbook() -> Result<PathBuf> {
    whole(&format!("mdbook-{MDBOOK}"), "mdbook")
}

fn whole(asset: &str, binary: &str) -> Result<PathBuf> {
    let path = cache_folder()?.join("assets").join(asset).join(binary);
    if path.exists() { Ok(path) } else { Err(Error::NoAsset(path)) }
}
