//! What becomes garage.toml, Services and Secrets.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{DurationText, InvalidUnit, Quantity};

/// A key of a Secret in the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[serde(default)]
    #[schemars(extend("default" = ""))]
    pub name: String,
    /// Key in it.
    pub key: String,
    /// Whether it may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// `spec.replication`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicationSpec {
    /// Storage nodes that each object is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 3))]
    #[schemars(range(min = 1, max = 7))]
    pub factor: Option<i32>,
    /// What a read or write waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "consistent"))]
    pub consistency_mode: Option<ConsistencyMode>,
    /// How zones are taken into account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_redundancy_mode: Option<ZoneRedundancyMode>,
    /// Zones that each object is in, with `AtLeast`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 7))]
    pub zone_redundancy_min_zones: Option<i32>,
}

impl ReplicationSpec {
    /// Factor of a spec that does not say it.
    pub const DEFAULT_FACTOR: i32 = 3;
}

/// `replication.consistencyMode`, in Garage's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "lowercase")]
pub enum ConsistencyMode {
    /// Read after write.
    #[default]
    Consistent,
    /// Reads from one node, writes to a quorum.
    Degraded,
    /// Reads from and writes to one node.
    Dangerous,
}

/// `replication.zoneRedundancyMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ZoneRedundancyMode {
    /// As many zones as there are.
    Maximum,
    /// A number of them.
    AtLeast,
}

/// `spec.network`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// Port of the RPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 3901))]
    pub rpc_bind_port: Option<i32>,
    /// Address of the RPC; a port in it wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_bind_address: Option<String>,
    /// Address under which others reach a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_public_addr: Option<String>,
    /// Subnet that this address is looked for in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_public_addr_subnet: Option<String>,
    /// Whether outgoing connections use the bind address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_bind_outgoing: Option<bool>,
    /// Where the RPC secret is; generated where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_secret_ref: Option<SecretKeyRef>,
    /// Garage's ping timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_ping_timeout: Option<DurationText>,
    /// Garage's RPC timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_timeout: Option<DurationText>,
    /// Peers written to garage.toml.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bootstrap_peers: Vec<String>,
    /// The client Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceSpec>,
}

impl NetworkSpec {
    /// Garage's RPC timeout where none is written.
    pub const DEFAULT_RPC_TIMEOUT: Duration = Duration::from_secs(300);

    /// Garage's RPC timeout as written here, else Garage's default. An unreadable one is an error, never the default: a
    /// quiet period counted from a wrong one proves nothing (P14).
    pub fn effective_rpc_timeout(&self) -> Result<Duration, InvalidUnit> {
        self.rpc_timeout.as_ref().map_or(Ok(Self::DEFAULT_RPC_TIMEOUT), DurationText::duration)
    }
}

/// `network.service`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort` or `LoadBalancer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "ClusterIP", "enum" = ["ClusterIP", "NodePort", "LoadBalancer"]))]
    pub r#type: Option<String>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Address asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: Option<String>,
    /// Who may connect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_source_ranges: Vec<String>,
    /// `Cluster` or `Local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<String>,
}

/// `spec.s3Api`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3ApiSpec {
    /// Its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 3900))]
    pub bind_port: Option<i32>,
    /// Its address; a port in it wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_address: Option<String>,
    /// The region clients sign for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "garage"))]
    pub region: Option<String>,
    /// Domain of virtual-hosted buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_domain: Option<String>,
}

/// `spec.k2vApi`: present means served.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct K2vApiSpec {
    /// Its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 3904))]
    pub bind_port: Option<i32>,
    /// Its address; a port in it wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_address: Option<String>,
}

/// `spec.webApi`: served unless `enabled` is false.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebApiSpec {
    /// Absent means true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Domain of bucket websites; absent means `.<cluster>.<namespace>.svc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_domain: Option<String>,
    /// Its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 3902))]
    pub bind_port: Option<i32>,
    /// Its address; a port in it wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_address: Option<String>,
    /// Whether metrics name the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_host_to_metrics: Option<bool>,
}

/// `spec.admin`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdminSpec {
    /// Its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 3903))]
    pub bind_port: Option<i32>,
    /// Its address; a port in it wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_address: Option<String>,
    /// Where the admin token is; required with pools, never generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_token_secret_ref: Option<SecretKeyRef>,
    /// Where the metrics token is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_token_secret_ref: Option<SecretKeyRef>,
    /// Whether metrics need a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_require_token: Option<bool>,
    /// Where traces go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_sink: Option<String>,
}

/// `spec.database`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseSpec {
    /// The metadata engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "lmdb"))]
    pub engine: Option<DatabaseEngine>,
    /// Size of the LMDB map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lmdb_map_size: Option<Quantity>,
    /// Size of Fjall's block cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fjall_block_cache_size: Option<Quantity>,
}

/// `database.engine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "lowercase")]
pub enum DatabaseEngine {
    /// LMDB.
    #[default]
    Lmdb,
    /// SQLite.
    Sqlite,
    /// Fjall.
    Fjall,
}

impl DatabaseEngine {
    /// As garage.toml writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lmdb => "lmdb",
            Self::Sqlite => "sqlite",
            Self::Fjall => "fjall",
        }
    }
}

impl ConsistencyMode {
    /// As garage.toml writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consistent => "consistent",
            Self::Degraded => "degraded",
            Self::Dangerous => "dangerous",
        }
    }
}

/// `spec.blocks`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlocksSpec {
    /// Size of a block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Memory for block buffers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram_buffer_max: Option<Quantity>,
    /// Blocks read at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrent_reads: Option<i64>,
    /// Blocks of one request written at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrent_writes_per_request: Option<i64>,
    /// `none` or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression_level: Option<String>,
    /// Whether the scrub is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable_scrub: Option<bool>,
    /// Whether times are local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "useLocalTZ")]
    pub use_local_tz: Option<bool>,
}

/// `spec.discovery`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoverySpec {
    /// Peers from Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesDiscovery>,
    /// Peers from Consul.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consul: Option<ConsulDiscovery>,
}

/// `discovery.kubernetes`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesDiscovery {
    /// Whether it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Which service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// Whether Garage leaves its CRD alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "skipCRD")]
    pub skip_crd: Option<bool>,
}

/// `discovery.consul`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConsulDiscovery {
    /// Whether it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// `catalog` or `agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "catalog", "enum" = ["catalog", "agent"]))]
    pub api: Option<String>,
    /// Address of Consul.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_addr: Option<String>,
    /// Which service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// File of the CA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_cert: Option<String>,
    /// The CA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_cert_secret_ref: Option<SecretKeyRef>,
    /// The client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cert_secret_ref: Option<SecretKeyRef>,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key_secret_ref: Option<SecretKeyRef>,
    /// The token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,
    /// Whether the certificate is not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_skip_verify: Option<bool>,
    /// Tags of the service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Metadata of the service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Datacenters to look in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
}

/// `spec.security`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecuritySpec {
    /// Whether Garage takes secret files that others can read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_insecure_secret_permissions: Option<bool>,
    /// Whether bucket names may be Punycode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_punycode: Option<bool>,
    /// Refused by the full operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
}

/// `security.tls`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsSpec {
    /// Whether it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<SecretKeyRef>,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_secret_ref: Option<SecretKeyRef>,
    /// Its CA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretKeyRef>,
}

/// `spec.logging`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoggingSpec {
    /// `RUST_LOG`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// To syslog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syslog: Option<bool>,
    /// To journald.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journald: Option<bool>,
}

/// `spec.workers`: Garage's worker variables.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkersSpec {
    /// `scrub-tranquility`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub scrub_tranquility: Option<i32>,
    /// `resync-worker-count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 8))]
    pub resync_worker_count: Option<i32>,
    /// `resync-tranquility`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub resync_tranquility: Option<i32>,
}
