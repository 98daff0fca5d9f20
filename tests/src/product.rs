//! The product as it runs in the bed: who leads, what it wrote, what it said.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use crate::agent::Agent;
use crate::bed::Bed;
use crate::error::{Doing as _, Error, Result};

/// The namespace that [`Bed::install`] installs into; also the release's name.
pub const NAMESPACE: &str = "garage-holdfast";

/// A replica of the product.
pub struct Replica {
    /// The agent of its Node.
    pub agent: Arc<Agent>,
    /// The Pod's name.
    pub pod: String,
}

impl Bed {
    /// The replicas whose Pods are bound to a Node.
    pub async fn replicas(&self) -> Result<Vec<Replica>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let ours = ListParams::default().labels("app.kubernetes.io/name=garage-holdfast");
        let pods = pods.list(&ours).await.doing(|| "listing the product's Pods")?;
        pods.into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .filter_map(|pod| Some((pod.name_any(), pod.spec?.node_name?)))
            .map(|(pod, node)| Ok(Replica { agent: self.agent(&node)?, pod }))
            .collect()
    }

    /// The replica that leads now.
    pub async fn leader(&self) -> Result<Replica> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let lease = leases.get(NAMESPACE).await.doing(|| "reading the product's Lease")?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let found = self.replicas().await?.into_iter().find(|replica| holder.starts_with(&replica.pod));
        found.ok_or_else(|| Error::other(format!("no replica leads (the Lease says {holder:?})")))
    }

    /// Sends a signal to the leader and says which Pod it was.
    pub async fn signal_leader(&self, signal: nix::sys::signal::Signal) -> Result<String> {
        let leader = self.leader().await?;
        leader.agent.signal(NAMESPACE, &leader.pod, signal)?;
        Ok(leader.pod)
    }

    /// Kills the leader so many times, each time when the product has written something new since a mark, so that
    /// it never gets far.
    pub async fn kill_leaders(&self, mark: u64, times: u32) -> Result<()> {
        let (mut killed, mut seen) = (0, 0);
        while killed < times {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            let writes = self.product_writes_since(mark)?.len();
            if writes > seen && self.signal_leader(nix::sys::signal::Signal::SIGKILL).await.is_ok() {
                (seen, killed) = (writes, killed + 1);
            }
        }
        Ok(())
    }

    /// Where the audit log ends now, for [`Self::audited_since`].
    pub fn audit_mark(&self) -> Result<u64> {
        let log = &self.control_plane.audit_log;
        Ok(std::fs::metadata(log).doing(|| format!("reading {}", log.display()))?.len())
    }

    /// The audit events since a mark: every write, with what was written to objects of the product's group, and the
    /// product's own reads.
    pub fn audited_since(&self, mark: u64) -> Result<Vec<Value>> {
        let log = &self.control_plane.audit_log;
        let read = || -> std::io::Result<String> {
            let mut file = std::fs::File::open(log)?;
            file.seek(SeekFrom::Start(mark))?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = read().doing(|| format!("reading {}", log.display()))?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The product's own writes since a mark, as `verb resource/subresource name`, each with what it wrote
    /// (null for what is not of the product's group). Without its Lease and its Events.
    pub fn product_writes_since(&self, mark: u64) -> Result<Vec<(String, Value)>> {
        let events = self.audited_since(mark)?;
        Ok(events
            .into_iter()
            .filter(is_products_own)
            .filter(|event| {
                !matches!(event["verb"].as_str(), Some("get" | "list" | "watch"))
                    && !matches!(event["objectRef"]["resource"].as_str(), Some("leases" | "events"))
            })
            .map(|mut event| {
                let (verb, object) = (&event["verb"], &event["objectRef"]);
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let sub = object["subresource"].as_str().map(|sub| format!("/{sub}")).unwrap_or_default();
                let write =
                    format!("{} {}{sub} {}", text(verb), text(&object["resource"]), text(&object["name"]));
                (write, event["requestObject"].take())
            })
            .collect())
    }
}

/// Whether an audit event is a request of the product itself.
pub fn is_products_own(event: &Value) -> bool {
    event["user"]["username"] == format!("system:serviceaccount:{NAMESPACE}:garage-holdfast").as_str()
}
