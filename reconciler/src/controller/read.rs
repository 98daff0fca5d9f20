//! The cluster as it is stored now: caches may lag behind our own last write.

use std::sync::Arc;

use holdfast_crds::v1beta2::GarageCluster;
use kube::api::GetParams;
use kube::core::Request;
use kube::{Client, Resource as _};
use serde::Deserialize as _;
use serde_json::Value;

use super::{Error, READ_DEADLINE};

/// A GarageCluster, live.
pub struct Live {
    /// As stored: what a status write is compared with.
    pub raw: Value,
    /// As typed.
    pub cluster: Arc<GarageCluster>,
}

/// Reads it; `None` when it is gone.
pub async fn live(client: &Client, namespace: &str, name: &str) -> Result<Option<Live>, Error> {
    let unread = |_| Error::Read("the GarageCluster");
    let path = GarageCluster::url_path(&(), Some(namespace));
    let request = Request::new(path).get(name, &GetParams::default()).map_err(unread)?;
    let raw: Value = match tokio::time::timeout(READ_DEADLINE, client.request(request)).await {
        Ok(Ok(raw)) => raw,
        Ok(Err(kube::Error::Api(status))) if status.is_not_found() => return Ok(None),
        _ => return Err(Error::Read("the GarageCluster")),
    };
    let cluster =
        GarageCluster::deserialize(&raw).map_err(|_| Error::Read("a GarageCluster that does not parse"))?;
    Ok(Some(Live { raw, cluster: Arc::new(cluster) }))
}
