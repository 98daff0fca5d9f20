//! A GarageCluster's spec as the pools need it: read once, checked, with every default in place.

use std::collections::BTreeMap;

use holdfast_crds::ids::PoolName;
use holdfast_crds::names::{ClusterId, DiskLayout};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

/// What the process is told about pools (flags of `serve`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `pools.manage`.
    pub manage: bool,
    /// Image repository where the spec names neither image nor repository.
    pub image_repository: String,
    /// Image tag where the spec names no image.
    pub image_tag: String,
    /// The cluster's DNS domain, for `status.endpoints`.
    pub cluster_domain: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            manage: true,
            image_repository: "dxflrs/garage".to_owned(),
            image_tag: "v2.5.0".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
        }
    }
}

/// A site that the product runs.
#[derive(Debug, Clone)]
pub struct Site {
    /// Who it is.
    pub id: ClusterId,
    /// `metadata.generation`.
    pub generation: i64,
    /// The node-local pools, in the order of the spec.
    pub pools: Vec<Pool>,
    /// What another operator would have to run: a default storage group, a gateway tier (section 13).
    pub not_managed: Vec<&'static str>,
    /// `replication.factor`.
    pub factor: usize,
    /// `spec.zone`, else `default`.
    pub zone: String,
    /// `spec.zoneFrom.nodeLabel`.
    pub zone_from: Option<String>,
    /// `defaultNodeTags` without those that carry a reserved prefix.
    pub tags: Vec<String>,
    /// Ports of the processes.
    pub ports: Ports,
    /// Image of the `garage` container.
    pub image: String,
    /// `imagePullPolicy`.
    pub image_pull_policy: Option<String>,
    /// `imagePullSecrets`, as they stand.
    pub image_pull_secrets: Option<Value>,
    /// `serviceAccountName`.
    pub service_account_name: Option<String>,
    /// `logging`.
    pub logging: Logging,
    /// Worker variables of `spec.workers`.
    pub worker_variables: BTreeMap<&'static str, String>,
    /// garage.toml of the site, without the data directories.
    pub toml: TomlInput,
    /// `network.service`.
    pub service: ServiceInput,
    /// `storage.podDisruptionBudget`, where enabled: `minAvailable`, `maxUnavailable`.
    pub disruption_budget: Option<(Option<Value>, Option<Value>)>,
    /// Where the secrets come from.
    pub secrets: SecretSources,
}

/// One node-local pool.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// Which Nodes.
    pub selector: LabelSelector,
    /// Capacity of a member's role in bytes.
    pub capacity: u64,
    /// The same as the spec writes it.
    pub capacity_text: String,
    /// Its directories.
    pub disks: DiskLayout,
    /// Capacity in bytes of each data path with more than one, by `path`.
    pub path_capacity: BTreeMap<String, u64>,
    /// Whether the pool has one `data` directory (else `dataPaths`).
    pub single_data: bool,
    /// `network.rpcPublicAddrTemplate`.
    pub rpc_public_addr_template: Option<String>,
    /// `podTemplate`.
    pub template: PodTemplate,
}

impl Pool {
    /// All directories on the Node.
    pub fn host_paths(&self) -> Vec<String> {
        std::iter::once(self.disks.metadata_host_path.clone())
            .chain(self.disks.data_paths().iter().map(|path| path.host_path.clone()))
            .collect()
    }

    /// Per volume name its directory and whether it has a marker (section 13), metadata first.
    pub fn volumes(&self) -> Vec<Volume> {
        let mut all = vec![Volume {
            name: "metadata".to_owned(),
            mount: "/data/metadata".to_owned(),
            host_path: self.disks.metadata_host_path.clone(),
            host_path_type: self.disks.metadata_host_path_type.clone(),
        }];
        for (index, path) in self.disks.data_paths().iter().enumerate() {
            all.push(Volume {
                name: if self.single_data { "data".to_owned() } else { format!("data-{index}") },
                mount: path.path.clone(),
                host_path: path.host_path.clone(),
                host_path_type: path.host_path_type.clone(),
            });
        }
        all
    }

    /// The marker files that the administrator makes, one for each `Directory`.
    pub fn markers(&self) -> Vec<String> {
        self.volumes().iter().filter(|v| v.has_marker()).map(Volume::marker).collect()
    }
}

/// One directory of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Name of the volume in the Pod.
    pub name: String,
    /// Where the Pod sees it.
    pub mount: String,
    /// Where it is on the Node.
    pub host_path: String,
    /// `Directory` or `DirectoryOrCreate`.
    pub host_path_type: String,
}

impl Volume {
    /// Whether a marker guards it (section 13).
    pub fn has_marker(&self) -> bool {
        self.host_path_type == "Directory"
    }

    /// The marker's path on the Node.
    pub fn marker(&self) -> String {
        format!("{}/.garage-volume-id", self.host_path.trim_end_matches('/'))
    }
}

/// A pool's `podTemplate`, in the API's own shapes.
#[derive(Debug, Clone, Default)]
pub struct PodTemplate {
    /// `podLabels`.
    pub labels: BTreeMap<String, String>,
    /// `podAnnotations`.
    pub annotations: BTreeMap<String, String>,
    /// `resources`.
    pub resources: Option<Value>,
    /// `tolerations`.
    pub tolerations: Option<Value>,
    /// `affinity`.
    pub affinity: Option<Value>,
    /// `topologySpreadConstraints`.
    pub topology_spread_constraints: Option<Value>,
    /// `priorityClassName`.
    pub priority_class_name: Option<String>,
    /// `securityContext` of the Pod.
    pub security_context: Option<Value>,
    /// `securityContext` of the container.
    pub container_security_context: Option<Value>,
    /// `env`.
    pub env: Vec<Value>,
    /// `envFrom`.
    pub env_from: Option<Value>,
}

/// Ports of the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// RPC between the nodes.
    pub rpc: u16,
    /// S3.
    pub s3: u16,
    /// Admin API.
    pub admin: u16,
    /// K2V, where it is configured.
    pub k2v: Option<u16>,
    /// Web, unless it is switched off.
    pub web: Option<u16>,
}

/// `spec.logging`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logging {
    /// `RUST_LOG`.
    pub level: Option<String>,
    /// `GARAGE_LOG_TO_SYSLOG`.
    pub syslog: bool,
    /// `GARAGE_LOG_TO_JOURNALD`.
    pub journald: bool,
}

/// `spec.network.service`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServiceInput {
    /// `type`.
    pub service_type: Option<String>,
    /// `labels`.
    pub labels: BTreeMap<String, String>,
    /// `annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `loadBalancerIP`, `loadBalancerSourceRanges`, `externalTrafficPolicy`, as they stand.
    pub rest: Vec<(&'static str, Value)>,
}

/// A key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretKey {
    /// Name of the Secret, in the cluster's namespace.
    pub name: String,
    /// The key.
    pub key: String,
}

/// Where the secrets come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretSources {
    /// `network.rpcSecretRef`.
    pub rpc: Option<SecretKey>,
    /// `admin.adminTokenSecretRef`.
    pub admin_token: Option<SecretKey>,
    /// `admin.metricsTokenSecretRef`.
    pub metrics_token: Option<SecretKey>,
    /// Key in the copy -> source, for Consul: `ca.crt`, `tls.crt`, `tls.key`, `consul-token`.
    pub consul: BTreeMap<&'static str, SecretKey>,
}

/// What garage.toml says beside the data directories, in the order of `compat.md` 3. A value that is
/// `None` leaves no line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TomlInput {
    /// `db_engine`.
    pub db_engine: String,
    /// Lines after `db_engine`: TOML key and value as written.
    pub after_db_engine: Vec<(&'static str, String)>,
    /// `consistency_mode`.
    pub consistency_mode: String,
    /// Lines after `consistency_mode`.
    pub after_consistency_mode: Vec<(&'static str, String)>,
    /// `rpc_bind_addr`.
    pub rpc_bind_addr: String,
    /// Lines after `rpc_secret_file`.
    pub after_rpc_secret_file: Vec<(&'static str, String)>,
    /// `network.bootstrapPeers`.
    pub bootstrap_peers: Vec<String>,
    /// `[s3_api]`.
    pub s3_api: Vec<(&'static str, String)>,
    /// `[k2v_api]`.
    pub k2v_api: Option<Vec<(&'static str, String)>>,
    /// `[s3_web]`.
    pub s3_web: Option<Vec<(&'static str, String)>>,
    /// `api_bind_addr` of `[admin]`.
    pub admin_bind_addr: String,
    /// Lines of `[admin]` after `admin_token_file`.
    pub after_admin_token_file: Vec<(&'static str, String)>,
    /// `[kubernetes_discovery]`.
    pub kubernetes_discovery: Option<Vec<(&'static str, String)>>,
    /// `[consul_discovery]`, without the token.
    pub consul_discovery: Option<Vec<(&'static str, String)>>,
}
