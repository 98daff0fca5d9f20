//! What an administrator does to service a machine's disks: the requests, and what is waited for. Shared by the
//! demo, which shows it, and by the suites, which assert it.

use std::time::Duration;

use serde_json::Value;

use crate::bed::Bed;
use crate::error::{Error, Result};
use crate::site::{Site, condition};

/// Requests a proof.
pub const VERIFY: &str = "garage.rajsingh.info/verify-redundancy";
/// Holds a member out of service.
pub const HOLD: &str = "garage.rajsingh.info/node-local-out-of-service";
/// Authorizes the replacement of an identity.
pub const REPLACE: &str = "garage.rajsingh.info/node-local-replace-identity";

impl Site {
    /// Requests a proof and waits until it is answered with True.
    pub async fn verify(&self, bed: &Bed, token: &str, within: Duration) -> Result<()> {
        self.annotate(bed, VERIFY, Some(token)).await?;
        self.wait(bed, "FullyReplicated=True", within, |object| answered(object, token)).await
    }

    /// Waits until a condition has a reason, and returns the condition.
    pub async fn wait_reason(&self, bed: &Bed, kind: &str, reason: &str, within: Duration) -> Result<Value> {
        self.wait(bed, &format!("{kind}/{reason} on {}", self.name), within, |object| {
            let condition = condition(object, kind);
            if condition["reason"] == reason { Ok(condition.clone()) } else { Err(condition.to_string()) }
        })
        .await
    }

    /// Puts new, empty, marked disks into a machine, for metadata and data.
    pub fn swap_disks(&self, bed: &Bed, node: &str) -> Result<()> {
        let pool = self.pools.iter().find(|pool| pool.nodes.iter().any(|one| one == node));
        let pool = pool.ok_or_else(|| Error::other(format!("no pool of {} has {node}", self.name)))?;
        for path in [pool.metadata(), pool.data()] {
            bed.disks.replace(node, &path)?;
            bed.disks.mark(node, &path)?;
        }
        Ok(())
    }

    /// The identity that the GarageNode of a Node has in its status.
    pub async fn identity(&self, bed: &Bed, node: &str) -> Result<String> {
        let list = bed.kubectl(&["-n", &self.namespace, "get", "garagenode", "-o", "json"]).await?;
        let list: Value = serde_json::from_str(&list).map_err(|error| Error::other(error.to_string()))?;
        let nodes = list["items"].as_array().cloned().unwrap_or_default();
        let found = nodes.iter().find(|one| {
            one["spec"]["kubernetesNodeName"] == node
                && one["spec"]["clusterRef"]["name"] == self.name.as_str()
        });
        let id = found.and_then(|node| node["status"]["nodeId"].as_str());
        id.map(str::to_owned).ok_or_else(|| Error::other(format!("the GarageNode of {node} has no identity")))
    }
}

/// Whether the proof that a token asked for ended in True.
pub fn answered(object: &Value, token: &str) -> Result<(), String> {
    let asked = object["status"]["redundancy"]["verification"]["requestToken"] == token;
    let replicated = condition(object, "FullyReplicated");
    if asked && replicated["status"] == "True" { Ok(()) } else { Err(replicated.to_string()) }
}
