//! A Garage site on the bed's Nodes: what an administrator prepares, writes and applies, and what Garage
//! itself says of it (independently of the product's own client).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::bed::{Bed, wait};
use crate::error::{Doing as _, Error, Result};
use crate::load::Store;

const MIB: u64 = 1 << 20;
/// Long enough for a machine that builds beside it.
const UP_WITHIN: Duration = Duration::from_secs(240);

/// A node-local pool and its Nodes.
#[derive(Debug, Clone)]
pub struct Pool {
    /// `spec.storage.nodeLocalPools[].name`
    pub name: String,
    /// The Kubernetes Nodes that carry the pool's label.
    pub nodes: Vec<String>,
    /// The capacity of each role.
    pub capacity: String,
    /// Bytes of each metadata disk.
    pub metadata_size: u64,
    /// Bytes of each data disk.
    pub data_size: u64,
    /// `Directory`, with a marker on each disk, or `DirectoryOrCreate`, without disks of their own.
    pub host_path_type: String,
}

impl Pool {
    /// A pool over Nodes with disks as small as Garage is content with.
    pub fn new(name: &str, nodes: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
            capacity: "1Gi".to_owned(),
            metadata_size: 1024 * MIB,
            data_size: 2048 * MIB,
            host_path_type: "Directory".to_owned(),
        }
    }

    /// The metadata HostPath.
    pub fn metadata(&self) -> String {
        format!("/srv/garage/{}/meta", self.name)
    }

    /// The data HostPath.
    pub fn data(&self) -> String {
        format!("/srv/garage/{}/data", self.name)
    }

    /// The label that selects the pool's Nodes.
    pub fn label(&self) -> String {
        format!("bed/pool-{}", self.name)
    }
}

/// One GarageCluster as an administrator writes it.
#[derive(Debug, Clone)]
pub struct Site {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Garage's image: a name of the bed's image table.
    pub image: String,
    /// The admin token in its Secret.
    pub token: String,
    /// Its pools.
    pub pools: Vec<Pool>,
    /// Further fields of `spec`, merged over the ones made here.
    pub spec: Value,
}

/// A Pod of the site.
#[derive(Debug, Clone)]
pub struct Member {
    /// The Kubernetes Node.
    pub node: String,
    /// The Pod's name.
    pub pod: String,
    /// The Pod's UID.
    pub uid: String,
    /// Its address.
    pub ip: IpAddr,
}

impl Member {
    /// Where its Admin API is.
    pub fn admin(&self) -> SocketAddr {
        SocketAddr::new(self.ip, 3903)
    }

    /// Where its S3 API is.
    pub fn s3(&self) -> SocketAddr {
        SocketAddr::new(self.ip, 3900)
    }
}

impl Site {
    /// A site `site-a` in namespace `objects`: Garage of a version, three Nodes `kn-1` to `kn-3`, one pool
    /// `fast`.
    pub fn new(garage: &str) -> Self {
        Self {
            namespace: "objects".to_owned(),
            name: "site-a".to_owned(),
            image: garage_image(garage),
            token: "token-of-the-bed".to_owned(),
            pools: vec![Pool::new("fast", &["kn-1", "kn-2", "kn-3"])],
            spec: json!({}),
        }
    }

    /// The Nodes of all pools.
    pub fn nodes(&self) -> Vec<String> {
        self.pools.iter().flat_map(|pool| pool.nodes.clone()).collect()
    }

    /// What is done to the machines before Kubernetes hears of the site: Nodes with the pools' labels, a
    /// mounted disk and its marker for each HostPath.
    pub async fn prepare(&self, bed: &Bed) -> Result<()> {
        for pool in &self.pools {
            for node in &pool.nodes {
                if pool.host_path_type == "Directory" {
                    bed.disks.mount_marked(node, &pool.metadata(), pool.metadata_size)?;
                    bed.disks.mount_marked(node, &pool.data(), pool.data_size)?;
                }
                bed.add_node(node, &[(&pool.label(), "")]).await?;
            }
        }
        Ok(())
    }

    /// The GarageCluster.
    pub fn garage_cluster(&self) -> Value {
        let pools: Vec<Value> = self
            .pools
            .iter()
            .map(|pool| {
                json!({
                    "name": pool.name,
                    "selector": {"matchLabels": {(pool.label()): ""}},
                    "capacity": pool.capacity,
                    "metadata": {"hostPath": pool.metadata(), "hostPathType": pool.host_path_type},
                    "data": {"hostPath": pool.data(), "hostPathType": pool.host_path_type},
                })
            })
            .collect();
        let mut cluster = json!({
            "apiVersion": "garage.rajsingh.info/v1beta2",
            "kind": "GarageCluster",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "image": self.image,
                "zone": "rack-1",
                "replication": {"factor": 3},
                "storage": {"replicas": 0, "nodeLocalPools": pools},
                "admin": {"adminTokenSecretRef": {"name": self.secret(), "key": "admin-token"}},
            },
        });
        json_patch::merge(&mut cluster["spec"], &self.spec);
        cluster
    }

    /// Name of the Secret with the admin token.
    pub fn secret(&self) -> String {
        format!("{}-admin", self.name)
    }

    /// Namespace, Secret and GarageCluster as YAML: what one `kubectl apply` takes.
    pub fn manifest(&self) -> Result<String> {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.secret(), "namespace": self.namespace},
            "stringData": {"admin-token": self.token},
        });
        yaml(&[namespace, secret, self.garage_cluster()])
    }

    /// Prepares the machines, applies the manifest and waits until the site is up.
    pub async fn bring_up(&self, bed: &Bed) -> Result<()> {
        self.prepare(bed).await?;
        bed.apply(&self.manifest()?).await?;
        self.wait_up(bed).await
    }

    /// Waits until `NodeLocalPoolsReady` is true, and checks with Garage itself that it is so.
    pub async fn wait_up(&self, bed: &Bed) -> Result<()> {
        self.wait_up_within(bed, UP_WITHIN).await
    }

    /// The same with a deadline of one's own.
    pub async fn wait_up_within(&self, bed: &Bed, within: Duration) -> Result<()> {
        let deadline = tokio::time::Instant::now() + within;
        self.wait_condition(bed, "NodeLocalPoolsReady", "True", within).await?;
        // The condition is what one process of Garage sees; each of the others takes its own time.
        while let Err(unlike) = self.all_healthy(bed).await {
            if tokio::time::Instant::now() > deadline {
                return Err(unlike);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    async fn all_healthy(&self, bed: &Bed) -> Result<()> {
        let wanted = self.nodes().len();
        for member in self.members(bed).await? {
            let health = self.ask(&member, "GetClusterHealth").await?;
            let up =
                health.get("storageNodesUp").or_else(|| health.get("storageNodesOk")).and_then(Value::as_u64);
            if health["status"] != "healthy" || up != Some(wanted as u64) {
                return Err(Error::other(format!(
                    "NodeLocalPoolsReady is true, but Garage on {} says {health}",
                    member.node
                )));
            }
        }
        Ok(())
    }

    /// Waits for a condition to have a status, and returns the condition.
    pub async fn wait_condition(
        &self,
        bed: &Bed,
        kind: &str,
        status: &str,
        within: Duration,
    ) -> Result<Value> {
        let what = format!("{kind}={status} on {}", self.name);
        self.wait(bed, &what, within, |object| {
            let condition = condition(object, kind);
            if condition["status"] == status { Ok(condition.clone()) } else { Err(condition.to_string()) }
        })
        .await
    }

    /// Waits until the GarageCluster is as wanted; `judge` says what is missing.
    pub async fn wait<T>(
        &self,
        bed: &Bed,
        waited_for: &str,
        within: Duration,
        mut judge: impl FnMut(&Value) -> Result<T, String>,
    ) -> Result<T> {
        let waited = wait::until(self.api(bed.client.clone()), waited_for, within, |seen| {
            judge(&seen.get(&self.name).ok_or("the GarageCluster is not there")?.data)
        })
        .await;
        match waited {
            Err(Error::Timeout { waited_for, seconds, state }) => Err(Error::Timeout {
                waited_for,
                seconds,
                state: format!("last seen: {state}\n{}", bed.state().await),
            }),
            other => other,
        }
    }

    /// The GarageCluster as it is now (`spec` and `status`).
    pub async fn get(&self, client: &Client) -> Result<DynamicObject> {
        self.api(client.clone()).get(&self.name).await.doing(|| format!("reading {}", self.name))
    }

    /// The GarageClusters of the site's namespace.
    pub fn api(&self, client: Client) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("garage.rajsingh.info", "v1beta2", "GarageCluster");
        Api::namespaced_with(client, &self.namespace, &ApiResource::from_gvk(&kind))
    }

    /// Sets an annotation of the GarageCluster, or removes it (`None`), as `kubectl annotate` does.
    pub async fn annotate(&self, bed: &Bed, annotation: &str, value: Option<&str>) -> Result<String> {
        let words = value.map_or_else(|| format!("{annotation}-"), |value| format!("{annotation}={value}"));
        bed.kubectl(&["-n", &self.namespace, "annotate", "--overwrite", "garagecluster", &self.name, &words])
            .await
    }

    /// The site's running Pods with an address, by Node.
    pub async fn members(&self, bed: &Bed) -> Result<Vec<Member>> {
        let pods: Api<Pod> = Api::namespaced(bed.client.clone(), &self.namespace);
        let ours = ListParams::default().labels(&format!("garage.rajsingh.info/cluster={}", self.name));
        let pods = pods.list(&ours).await.doing(|| format!("listing the Pods of {}", self.name))?;
        let mut members: Vec<Member> = pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .filter_map(|pod| {
                let status = pod.status.as_ref()?;
                Some(Member {
                    node: pod.spec.as_ref()?.node_name.clone()?,
                    pod: pod.name_any(),
                    uid: pod.uid()?,
                    ip: status.pod_ip.as_ref()?.parse().ok()?,
                })
            })
            .collect();
        members.sort_by(|a, b| a.node.cmp(&b.node));
        Ok(members)
    }

    /// The member on a Node.
    pub async fn member(&self, bed: &Bed, node: &str) -> Result<Member> {
        let found = self.members(bed).await?.into_iter().find(|member| member.node == node);
        found.ok_or_else(|| Error::other(format!("no Pod of {} runs on {node}", self.name)))
    }

    /// A new bucket, written and read through the members' S3 endpoints.
    pub async fn store(&self, members: &[Member], bucket: &str) -> Result<Store> {
        let first = members.first().ok_or_else(|| Error::other("the site has no Pods"))?;
        let endpoints: Vec<_> = members.iter().map(Member::s3).collect();
        Store::create(first.admin(), &self.token, bucket, &endpoints).await
    }

    /// Who has a role in the layout, in a member's view.
    pub async fn role_ids(&self, member: &Member) -> Result<BTreeSet<String>> {
        let layout = self.ask(member, "GetClusterLayout").await?;
        let roles = layout["roles"].as_array().cloned().unwrap_or_default();
        Ok(roles.iter().filter_map(|role| role["id"].as_str().map(str::to_owned)).collect())
    }

    /// Asks a member's Admin API, `GET /v2/<call>`.
    pub async fn ask(&self, member: &Member, call: &str) -> Result<Value> {
        self.call(member, reqwest::Method::GET, call, None).await
    }

    /// Tells a member's Admin API something, `POST /v2/<call>`.
    pub async fn tell(&self, member: &Member, call: &str, body: Value) -> Result<Value> {
        self.call(member, reqwest::Method::POST, call, Some(body)).await
    }

    async fn call(
        &self,
        member: &Member,
        method: reqwest::Method,
        call: &str,
        body: Option<Value>,
    ) -> Result<Value> {
        let failed =
            |error: &dyn std::fmt::Display| Error::other(format!("{call} on {}: {error}", member.node));
        let mut request = reqwest::Client::new()
            .request(method, format!("http://{}/v2/{call}", member.admin()))
            .bearer_auth(&self.token)
            .timeout(Duration::from_secs(30));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.map_err(|error| failed(&error))?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| failed(&error))?;
        if !status.is_success() {
            return Err(failed(&format!("{status}: {text}")));
        }
        serde_json::from_str(&text).map_err(|error| failed(&error))
    }
}

/// The image name of Garage of a version in the bed's table.
pub fn garage_image(version: &str) -> String {
    format!("dxflrs/garage:v{version}")
}

/// A condition of an object by its type; null when it is not there.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind)).unwrap_or(&Value::Null)
}

/// Several documents in one YAML text.
pub fn yaml(documents: &[Value]) -> Result<String> {
    let mut text = String::new();
    for document in documents {
        let written = serde_norway::to_string(document).map_err(|error| Error::other(error.to_string()))?;
        let _ = write!(text, "{}{written}", if text.is_empty() { "" } else { "---\n" });
    }
    Ok(text)
}

/// Labels as an agent takes them.
pub fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn further_fields_are_merged_over_the_ones_made_here() {
        let mut site = Site::new("2.5.0");
        site.spec = json!({"network": {"rpcTimeout": "10s"}, "zone": "rack-2"});
        let cluster = site.garage_cluster();
        assert_eq!(cluster["spec"]["zone"], "rack-2");
        assert_eq!(cluster["spec"]["network"]["rpcTimeout"], "10s");
        assert_eq!(
            cluster["spec"]["storage"]["nodeLocalPools"][0]["data"]["hostPath"],
            "/srv/garage/fast/data"
        );
    }

    #[test]
    fn the_manifest_is_three_documents() {
        let text = Site::new("2.5.0").manifest().unwrap();
        assert_eq!(text.matches("\n---\n").count(), 2, "{text}");
        assert!(text.contains("kind: GarageCluster"));
    }
}
