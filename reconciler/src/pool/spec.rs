//! Reading a GarageCluster: what the pools need of it, every default in place (`compat.md` 3 and 6).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use holdfast_crds::conditions::PoolsReason;
use holdfast_crds::names::{DiskLayout, DiskLayoutPath, clean_path, tag};
use holdfast_crds::spec::{DatabaseEngine, LayoutPolicy, SecretKeyRef};
use holdfast_crds::status::ServicePhase;
use holdfast_crds::units::{DurationText, InvalidUnit, Quantity};
use holdfast_crds::v1beta2::{GarageCluster, GarageClusterSpec, NodeLocalPool, PoolPodTemplate};
use serde::Serialize;
use serde_json::Value;

use super::render::toml::quoted;
use super::site::{
    Logging, PodTemplate, Pool, Ports, SecretKey, SecretSources, ServiceInput, Settings, Site, TomlInput,
};

/// A GarageCluster as the pools ask about it.
pub struct ClusterView<'a> {
    cluster: &'a GarageCluster,
    empty: BTreeMap<String, String>,
}

impl<'a> ClusterView<'a> {
    /// Of a cluster.
    pub const fn new(cluster: &'a GarageCluster) -> Self {
        Self { cluster, empty: BTreeMap::new() }
    }

    pub(super) const fn is_deleted(&self) -> bool {
        self.cluster.metadata.deletion_timestamp.is_some()
    }

    pub(super) const fn is_handle(&self) -> bool {
        self.cluster.spec.connect_to.is_some()
    }

    pub(super) fn has_pools(&self) -> bool {
        !self.cluster.spec.node_local_pools().is_empty()
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.cluster.spec.is_suspended()
    }

    pub(super) fn annotations(&self) -> &BTreeMap<String, String> {
        self.cluster.metadata.annotations.as_ref().unwrap_or(&self.empty)
    }

    pub(super) fn resource_version(&self) -> &str {
        self.cluster.metadata.resource_version.as_deref().unwrap_or_default()
    }

    /// `layoutPolicy: Manual` in either place, or `layoutManagement.autoApply: false`.
    pub(super) fn layout_is_manual(&self) -> bool {
        let spec = &self.cluster.spec;
        // The tier's is any word in v1beta1, and conversion keeps it.
        let of_tier = json(spec.storage.as_ref().and_then(|storage| storage.layout_policy.as_ref()));
        spec.layout_policy == Some(LayoutPolicy::Manual)
            || of_tier.is_some_and(|policy| policy == "Manual")
            || spec.layout_management.as_ref().and_then(|management| management.auto_apply) == Some(false)
    }

    /// What another operator is doing with the layout (P15).
    pub(super) fn other_operations(&self) -> Vec<&'static str> {
        self.cluster.layout_in_other_hands().into_iter().collect()
    }

    /// A hold or a refill that is not finished.
    pub(super) fn service_in_progress(&self) -> Option<&'static str> {
        let service = self.cluster.status.as_ref()?.node_local_service.as_ref()?;
        match service.phase {
            // A request that still waits for its gate has changed nothing yet.
            ServicePhase::Waiting | ServicePhase::InService | ServicePhase::Completed => None,
            ServicePhase::Applying | ServicePhase::Settling | ServicePhase::RepairingPins => {
                Some("a replacement")
            }
            _ => Some("a hold"),
        }
    }

    pub(super) fn status_layout_version(&self) -> Option<i64> {
        let status = serde_json::to_value(self.cluster.status.as_ref()?).ok()?;
        status["layoutVersion"].as_i64()
    }
}

type Invalid = (PoolsReason, String);

fn invalid(message: String) -> Invalid {
    (PoolsReason::ConfigurationInvalid, message)
}

/// Reads the site; the error is the condition to show.
pub fn read(cluster: &ClusterView<'_>, settings: &Settings) -> Result<Site, Invalid> {
    let spec = &cluster.cluster.spec;
    let Some(id) = cluster.cluster.id() else {
        return Err(invalid("the GarageCluster has no uid yet".to_owned()));
    };
    let factor = spec.replication_factor();
    let Ok(factor) =
        usize::try_from(factor).map_err(|_| ()).and_then(|f| if f == 0 { Err(()) } else { Ok(f) })
    else {
        return Err(invalid(format!("spec.replication.factor is {factor}; it must be 1 to 7")));
    };
    let mut not_managed = Vec::new();
    if spec.storage.as_ref().is_some_and(|storage| storage.effective_replicas() != 0) {
        not_managed.push("the default storage group (spec.storage.replicas is not 0; absent means 3)");
    }
    if spec.gateway.is_some() {
        not_managed.push("the gateway tier (spec.gateway)");
    }
    let pools = spec.node_local_pools().iter().map(pool).collect::<Result<Vec<_>, _>>()?;
    let (ports, toml) = configuration(spec, &id.name, &id.namespace)?;
    let logging = spec.logging.clone().unwrap_or_default();
    let image = spec.image.clone().filter(|image| !image.is_empty()).unwrap_or_else(|| {
        let repository = spec.image_repository.as_deref().filter(|repository| !repository.is_empty());
        format!("{}:{}", repository.unwrap_or(&settings.image_repository), settings.image_tag)
    });
    let budget = spec.storage.as_ref().and_then(|storage| storage.pod_disruption_budget.as_ref());
    Ok(Site {
        generation: cluster.cluster.metadata.generation.unwrap_or_default(),
        pools,
        not_managed,
        factor,
        zone: spec.zone.clone().filter(|zone| !zone.is_empty()).unwrap_or_else(|| "default".to_owned()),
        zone_from: spec.zone_from.as_ref().map(|from| from.node_label.clone()),
        tags: spec.default_node_tags.iter().filter(|t| !tag::is_reserved(t)).cloned().collect(),
        ports,
        image,
        image_pull_policy: spec.image_pull_policy.clone(),
        image_pull_secrets: list(&spec.image_pull_secrets),
        service_account_name: spec.service_account_name.clone().filter(|name| !name.is_empty()),
        logging: Logging {
            level: logging.level.filter(|level| !level.is_empty()),
            syslog: logging.syslog.unwrap_or(false),
            journald: logging.journald.unwrap_or(false),
        },
        worker_variables: worker_variables(spec),
        toml,
        service: service(spec),
        disruption_budget: budget
            .filter(|budget| budget.enabled.unwrap_or(true))
            .map(|budget| (json(budget.min_available.as_ref()), json(budget.max_unavailable.as_ref()))),
        secrets: secret_sources(spec),
        id,
    })
}

fn json<T: Serialize>(value: Option<&T>) -> Option<Value> {
    value.and_then(|value| serde_json::to_value(value).ok())
}

fn list<T: Serialize>(values: &[T]) -> Option<Value> {
    if values.is_empty() { None } else { serde_json::to_value(values).ok() }
}

/// Whether a clean path is, or lies below, another one.
fn lies_in(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn pool(pool: &NodeLocalPool) -> Result<Pool, Invalid> {
    let unit = |what: &str, error: InvalidUnit| invalid(format!("{what} of pool {}: {error}", pool.name));
    let capacity = pool.capacity.bytes().map_err(|error| unit("capacity", error))?;
    if capacity < 1024 {
        return Err(invalid(format!(
            "capacity of pool {} is {capacity} bytes; Garage takes 1Ki or more",
            pool.name
        )));
    }
    let single_data = pool.data_paths.is_empty();
    let mut path_capacity = BTreeMap::new();
    let paths = match &pool.data {
        Some(data) if single_data => vec![DiskLayoutPath {
            path: DiskLayout::DATA_PATH.to_owned(),
            host_path: data.host_path.clone(),
            host_path_type: data.effective_type().as_str().to_owned(),
            read_only: false,
        }],
        None if !single_data => {
            let mut paths = Vec::new();
            for path in &pool.data_paths {
                if let Some(capacity) = &path.capacity {
                    path_capacity.insert(
                        path.path.clone(),
                        capacity.bytes().map_err(|error| unit("a data path's capacity", error))?,
                    );
                }
                paths.push(DiskLayoutPath {
                    path: path.path.clone(),
                    host_path: path.host_path.clone(),
                    host_path_type: path.effective_type().as_str().to_owned(),
                    read_only: path.read_only.unwrap_or(false),
                });
            }
            paths
        }
        _ => {
            return Err(invalid(format!(
                "pool {} needs exactly one of data and a non-empty dataPaths",
                pool.name
            )));
        }
    };
    let disks =
        DiskLayout::new(pool.metadata.host_path.clone(), pool.metadata.effective_type().as_str(), paths);
    for path in std::iter::once(&disks.metadata_host_path)
        .chain(disks.data_paths().iter().map(|path| &path.host_path))
    {
        if !path.starts_with('/')
            || path.trim_matches('/').is_empty()
            || path.split('/').any(|part| part == "..")
        {
            return Err(invalid(format!("{path:?} of pool {} is no absolute directory below /", pool.name)));
        }
    }
    // One inside the other would be read and written as two things.
    let directories: Vec<String> = std::iter::once(&disks.metadata_host_path)
        .chain(disks.data_paths().iter().map(|path| &path.host_path))
        .map(|path| clean_path(path))
        .collect();
    for (index, one) in directories.iter().enumerate() {
        let mut others = directories.iter().take(index);
        if let Some(other) = others.find(|other| lies_in(one, other) || lies_in(other, one)) {
            let message = format!(
                "{one} and {other} of pool {} overlap; choose directories of which none lies in another",
                pool.name
            );
            return Err((PoolsReason::HostPathConflict, message));
        }
    }
    Ok(Pool {
        name: pool.name.clone(),
        selector: pool.selector.clone(),
        capacity,
        capacity_text: pool.capacity.as_str().to_owned(),
        disks,
        path_capacity,
        single_data,
        rpc_public_addr_template: pool
            .network
            .as_ref()
            .and_then(|network| network.rpc_public_addr_template.clone()),
        template: template(pool.pod_template.as_ref()),
    })
}

fn template(template: Option<&PoolPodTemplate>) -> PodTemplate {
    let Some(template) = template else { return PodTemplate::default() };
    let pod = &template.pod;
    PodTemplate {
        labels: pod.pod_labels.clone(),
        annotations: pod.pod_annotations.clone(),
        resources: json(pod.resources.as_ref()),
        tolerations: list(&pod.tolerations),
        affinity: json(pod.affinity.as_ref()),
        topology_spread_constraints: list(&pod.topology_spread_constraints),
        priority_class_name: pod.priority_class_name.clone(),
        security_context: json(pod.security_context.as_ref()),
        container_security_context: json(pod.container_security_context.as_ref()),
        env: template.env.iter().filter_map(|env| json(Some(env))).collect(),
        env_from: list(&template.env_from),
    }
}

fn worker_variables(spec: &GarageClusterSpec) -> BTreeMap<&'static str, String> {
    let workers = spec.workers.clone().unwrap_or_default();
    [
        ("scrub-tranquility", workers.scrub_tranquility),
        ("resync-worker-count", workers.resync_worker_count),
        ("resync-tranquility", workers.resync_tranquility),
    ]
    .into_iter()
    .filter_map(|(name, value)| value.map(|value| (name, value.to_string())))
    .collect()
}

fn service(spec: &GarageClusterSpec) -> ServiceInput {
    let service = spec.network.as_ref().and_then(|network| network.service.clone()).unwrap_or_default();
    let mut rest: Vec<(&'static str, Value)> = Vec::new();
    rest.extend(service.load_balancer_ip.map(|ip| ("loadBalancerIP", ip.into())));
    rest.extend(
        list(&service.load_balancer_source_ranges).map(|ranges| ("loadBalancerSourceRanges", ranges)),
    );
    rest.extend(service.external_traffic_policy.map(|policy| ("externalTrafficPolicy", policy.into())));
    ServiceInput {
        service_type: service.r#type,
        labels: service.labels,
        annotations: service.annotations,
        rest,
    }
}

fn secret_sources(spec: &GarageClusterSpec) -> SecretSources {
    let key = |reference: Option<&SecretKeyRef>, default: &str| {
        reference.filter(|reference| !reference.name.is_empty()).map(|reference| SecretKey {
            name: reference.name.clone(),
            key: if reference.key.is_empty() { default.to_owned() } else { reference.key.clone() },
        })
    };
    let admin = spec.admin.as_ref();
    let consul = spec
        .discovery
        .as_ref()
        .and_then(|discovery| discovery.consul.as_ref())
        .filter(|consul| consul.enabled.unwrap_or(false));
    let mut consul_keys = BTreeMap::new();
    if let Some(consul) = consul {
        for (name, reference) in [
            ("ca.crt", &consul.ca_cert_secret_ref),
            ("tls.crt", &consul.client_cert_secret_ref),
            ("tls.key", &consul.client_key_secret_ref),
            ("consul-token", &consul.token_secret_ref),
        ] {
            if let Some(source) = key(reference.as_ref(), name) {
                consul_keys.insert(name, source);
            }
        }
    }
    SecretSources {
        rpc: key(spec.network.as_ref().and_then(|network| network.rpc_secret_ref.as_ref()), "rpc-secret"),
        admin_token: key(admin.and_then(|admin| admin.admin_token_secret_ref.as_ref()), "admin-token"),
        metrics_token: key(admin.and_then(|admin| admin.metrics_token_secret_ref.as_ref()), "metrics-token"),
        consul: consul_keys,
    }
}

/// Lines of a section: a key is there when its value is.
#[derive(Default)]
struct Lines(Vec<(&'static str, String)>);

impl Lines {
    fn text(mut self, key: &'static str, value: Option<&String>) -> Self {
        self.0.extend(value.filter(|value| !value.is_empty()).map(|value| (key, quoted(value))));
        self
    }

    fn plain(mut self, key: &'static str, value: Option<impl ToString>) -> Self {
        self.0.extend(value.map(|value| (key, value.to_string())));
        self
    }

    fn bytes(self, key: &'static str, value: Option<&Quantity>) -> Result<Self, Invalid> {
        let bytes =
            value.map(Quantity::bytes).transpose().map_err(|error| invalid(format!("{key}: {error}")))?;
        Ok(self.plain(key, bytes))
    }

    fn millis(self, key: &'static str, value: Option<&DurationText>) -> Result<Self, Invalid> {
        let length = value
            .map(DurationText::duration)
            .transpose()
            .map_err(|error| invalid(format!("{key}: {error}")))?;
        Ok(self.plain(key, length.map(|length| length.as_millis())))
    }

    fn strings(mut self, key: &'static str, values: &[String]) -> Self {
        if !values.is_empty() {
            let items: Vec<String> = values.iter().map(|value| quoted(value)).collect();
            self.0.push((key, format!("[{}]", items.join(", "))));
        }
        self
    }
}

/// Address and port that a process listens on. A port in the address wins over the port beside it.
fn bind(
    what: &str,
    address: Option<&String>,
    port: Option<i32>,
    default: u16,
) -> Result<(String, u16), Invalid> {
    let port = match port {
        None => default,
        Some(port) => u16::try_from(port)
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| invalid(format!("{what} is {port}; a port is 1 to 65535")))?,
    };
    match address.filter(|address| !address.is_empty()) {
        None => Ok((format!("[::]:{port}"), port)),
        Some(address) => {
            if let Ok(socket) = address.parse::<SocketAddr>() {
                return Ok((address.clone(), socket.port()));
            }
            let bare = address.trim_start_matches('[').trim_end_matches(']');
            let ip: std::net::IpAddr = bare
                .parse()
                .map_err(|_| invalid(format!("{what}: {address:?} is no address with or without a port")))?;
            Ok((SocketAddr::new(ip, port).to_string(), port))
        }
    }
}

fn configuration(
    spec: &GarageClusterSpec,
    name: &str,
    namespace: &str,
) -> Result<(Ports, TomlInput), Invalid> {
    let network = spec.network.clone().unwrap_or_default();
    let storage = spec.storage.clone().unwrap_or_default();
    let database = spec.database.clone().unwrap_or_default();
    let blocks = spec.blocks.clone().unwrap_or_default();
    let security = spec.security.clone().unwrap_or_default();
    let s3 = spec.s3_api.clone().unwrap_or_default();
    let web = spec.web_api.clone().unwrap_or_default();
    let admin = spec.admin.clone().unwrap_or_default();

    let (rpc_bind_addr, rpc) =
        bind("network.rpcBindAddress", network.rpc_bind_address.as_ref(), network.rpc_bind_port, 3901)?;
    let (s3_bind, s3_port) = bind("s3Api.bindAddress", s3.bind_address.as_ref(), s3.bind_port, 3900)?;
    let (admin_bind_addr, admin_port) =
        bind("admin.bindAddress", admin.bind_address.as_ref(), admin.bind_port, 3903)?;
    let k2v = spec
        .k2v_api
        .as_ref()
        .map(|k2v| bind("k2vApi.bindAddress", k2v.bind_address.as_ref(), k2v.bind_port, 3904))
        .transpose()?;
    let web_bind = web
        .enabled
        .unwrap_or(true)
        .then(|| bind("webApi.bindAddress", web.bind_address.as_ref(), web.bind_port, 3902))
        .transpose()?;

    let compression = match blocks.compression_level.as_deref() {
        None | Some("") => None,
        Some("none") => Some(quoted("none")),
        Some(level) => Some(
            level
                .parse::<i32>()
                .map_err(|_| {
                    invalid(format!("blocks.compressionLevel is {level:?}; it is `none` or a whole number"))
                })?
                .to_string(),
        ),
    };
    let engine = database.engine.unwrap_or(DatabaseEngine::Lmdb);
    let default_domain = format!(".{name}.{namespace}.svc");
    let discovery = spec.discovery.clone().unwrap_or_default();
    let kubernetes =
        discovery.kubernetes.filter(|kubernetes| kubernetes.enabled.unwrap_or(false)).map(|kubernetes| {
            Lines::default()
                .text("namespace", Some(kubernetes.namespace.as_ref().unwrap_or(&namespace.to_owned())))
                .text("service_name", Some(kubernetes.service_name.as_ref().unwrap_or(&name.to_owned())))
                .plain("skip_crd", Some(kubernetes.skip_crd.unwrap_or(false)))
                .0
        });
    let consul = discovery.consul.filter(|consul| consul.enabled.unwrap_or(false)).map(|consul| {
        let file = |reference: Option<&SecretKeyRef>, path: &str| reference.map(|_| path.to_owned());
        let ca = consul
            .ca_cert
            .clone()
            .or_else(|| file(consul.ca_cert_secret_ref.as_ref(), "/secrets/consul/ca/ca.crt"));
        let cert = file(consul.client_cert_secret_ref.as_ref(), "/secrets/consul/client-cert/tls.crt");
        let key = file(consul.client_key_secret_ref.as_ref(), "/secrets/consul/client-key/tls.key");
        let mut lines = Lines::default()
            .text("api", Some(&consul.api.unwrap_or_else(|| "catalog".to_owned())))
            .text("consul_http_addr", consul.http_addr.as_ref())
            .text("service_name", consul.service_name.as_ref())
            .text("ca_cert", ca.as_ref())
            .text("client_cert", cert.as_ref())
            .text("client_key", key.as_ref())
            .plain("tls_skip_verify", consul.tls_skip_verify)
            .strings("tags", &consul.tags);
        if !consul.meta.is_empty() {
            let pairs: Vec<String> = consul
                .meta
                .iter()
                .map(|(key, value)| format!("{} = {}", quoted(key), quoted(value)))
                .collect();
            lines.0.push(("meta", format!("{{ {} }}", pairs.join(", "))));
        }
        lines.strings("datacenters", &consul.datacenters).0
    });
    let metrics_token = admin
        .metrics_token_secret_ref
        .as_ref()
        .filter(|reference| !reference.name.is_empty())
        .map(|_| "/secrets/metrics/metrics-token".to_owned());

    let toml = TomlInput {
        db_engine: engine.as_str().to_owned(),
        after_db_engine: Lines::default()
            .bytes("lmdb_map_size", database.lmdb_map_size.as_ref())?
            .bytes("fjall_block_cache_size", database.fjall_block_cache_size.as_ref())?
            .0,
        consistency_mode: spec.consistency_mode().as_str().to_owned(),
        after_consistency_mode: Lines::default()
            .plain("metadata_fsync", storage.metadata_fsync)
            .plain("data_fsync", storage.data_fsync)
            .text("metadata_snapshots_dir", storage.metadata_snapshots_dir.as_ref())
            .text("metadata_auto_snapshot_interval", storage.metadata_auto_snapshot_interval.as_ref())
            .bytes("block_size", blocks.size.as_ref())?
            .bytes("block_ram_buffer_max", blocks.ram_buffer_max.as_ref())?
            .plain("block_max_concurrent_reads", blocks.max_concurrent_reads)
            .plain("block_max_concurrent_writes_per_request", blocks.max_concurrent_writes_per_request)
            .plain("compression_level", compression)
            .plain("disable_scrub", blocks.disable_scrub)
            .plain("use_local_tz", blocks.use_local_tz)
            .plain("allow_world_readable_secrets", security.allow_insecure_secret_permissions)
            .plain("allow_punycode", security.allow_punycode)
            .0,
        rpc_bind_addr,
        after_rpc_secret_file: Lines::default()
            .text("rpc_public_addr_subnet", network.rpc_public_addr_subnet.as_ref())
            .plain("rpc_bind_outgoing", network.rpc_bind_outgoing)
            .millis("rpc_ping_timeout_msec", network.rpc_ping_timeout.as_ref())?
            .millis("rpc_timeout_msec", network.rpc_timeout.as_ref())?
            .0,
        bootstrap_peers: network.bootstrap_peers,
        s3_api: Lines::default()
            .text("api_bind_addr", Some(&s3_bind))
            .text(
                "s3_region",
                Some(&s3.region.filter(|r| !r.is_empty()).unwrap_or_else(|| "garage".to_owned())),
            )
            .text("root_domain", s3.root_domain.as_ref())
            .0,
        k2v_api: k2v.as_ref().map(|(address, _)| Lines::default().text("api_bind_addr", Some(address)).0),
        s3_web: web_bind.as_ref().map(|(address, _)| {
            Lines::default()
                .text("bind_addr", Some(address))
                .text(
                    "root_domain",
                    Some(web.root_domain.as_ref().filter(|d| !d.is_empty()).unwrap_or(&default_domain)),
                )
                .plain("add_host_to_metrics", web.add_host_to_metrics)
                .0
        }),
        admin_bind_addr,
        after_admin_token_file: Lines::default()
            .text("metrics_token_file", metrics_token.as_ref())
            .plain("metrics_require_token", admin.metrics_require_token)
            .text("trace_sink", admin.trace_sink.as_ref())
            .0,
        kubernetes_discovery: kubernetes,
        consul_discovery: consul,
    };
    let ports = Ports {
        rpc,
        s3: s3_port,
        admin: admin_port,
        k2v: k2v.map(|(_, port)| port),
        web: web_bind.map(|(_, port)| port),
    };
    Ok((ports, toml))
}
