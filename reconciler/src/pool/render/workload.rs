//! A pool's DaemonSet (`compat.md` 3).

use holdfast_crds::names::{self, ClusterId, SCHEDULING_GATE, annotation, h16};
use serde_json::{Map, Value, json};

use super::config::{KEY, PoolConfig};
use super::labels;
use crate::act::{Kind, Object};
use crate::pool::secrets::Mounted;
use crate::pool::site::{Pool, Site};

/// Environment variables that a user cannot set; their `_FILE` forms neither.
pub const RESERVED_ENV: [&str; 8] = [
    "GARAGE_NODE_HOST",
    "RUST_LOG",
    "GARAGE_LOG_TO_SYSLOG",
    "GARAGE_LOG_TO_JOURNALD",
    "GARAGE_RPC_SECRET",
    "GARAGE_ADMIN_TOKEN",
    "GARAGE_METRICS_TOKEN",
    "GARAGE_CONFIG_FILE",
];

/// Where the marker of volume `V` is mounted: `<this>/V`.
pub const MARKERS: &str = "/var/run/garage-volume-markers";

/// Renders a pool's DaemonSet with this activation token.
pub fn daemon_set(site: &Site, pool: &Pool, config: &PoolConfig, secrets: &Mounted, token: &str) -> Object {
    let id = &site.id;
    let activation_label = id.activation_label(&pool.name);
    let labels = labels::pool(id, &pool.name);
    Object::new(
        Kind::DaemonSet,
        json!({
            "metadata": {
                "name": names::daemon_set_name(&id.name, &pool.name),
                "namespace": id.namespace,
                "labels": labels,
                "annotations": {
                    annotation::workload::ACTIVATION_LABEL: activation_label,
                    annotation::workload::ACTIVATION_VALUE: token,
                    annotation::workload::DISK_LAYOUT: pool.disks.to_annotation(),
                },
                "ownerReferences": labels::owner(id),
            },
            "spec": {
                "selector": { "matchLabels": labels::pool_selector(id, &pool.name) },
                "updateStrategy": { "type": "OnDelete" },
                "template": template(site, pool, config, secrets, &activation_label, token),
            },
        }),
    )
}

fn template(
    site: &Site,
    pool: &Pool,
    config: &PoolConfig,
    secrets: &Mounted,
    activation_label: &str,
    token: &str,
) -> Value {
    let id: &ClusterId = &site.id;
    let spec = pod_spec(site, pool, config, secrets, activation_label, token);
    let mut annotations: Map<String, Value> =
        pool.template.annotations.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    annotations.insert(annotation::workload::CONFIG_HASH.into(), config.hash.clone().into());
    annotations.insert(annotation::workload::POD_SPEC_HASH.into(), h16(&spec.to_string()).into());
    annotations.insert(annotation::workload::ACTIVATION_LABEL.into(), activation_label.into());
    annotations.insert(annotation::workload::ACTIVATION_VALUE.into(), token.into());
    json!({
        "metadata": {
            "labels": labels::with_user(&pool.template.labels, labels::pool(id, &pool.name)),
            "annotations": annotations,
        },
        "spec": spec,
    })
}

fn pod_spec(
    site: &Site,
    pool: &Pool,
    config: &PoolConfig,
    secrets: &Mounted,
    activation_label: &str,
    token: &str,
) -> Value {
    let mut volumes = Volumes::default();
    if config.sensitive {
        volumes.add(
            "config",
            "/etc/garage",
            true,
            json!({ "secret": { "secretName": config.name, "items": [{ "key": KEY, "path": KEY }] } }),
        );
    } else {
        volumes.add(
            "config",
            "/etc/garage",
            true,
            json!({ "configMap": { "name": config.name, "items": [{ "key": KEY, "path": KEY }] } }),
        );
    }
    for volume in pool.volumes() {
        volumes.add(
            &volume.name,
            &volume.mount,
            false,
            json!({ "hostPath": { "path": volume.host_path, "type": volume.host_path_type } }),
        );
    }
    for file in &secrets.files {
        volumes.add(
            file.volume,
            file.mount,
            true,
            json!({ "secret": { "secretName": file.secret, "items": [{ "key": file.key, "path": file.path, "mode": file.mode }] } }),
        );
    }
    // A disk that is not mounted leaves no marker, and the Pod does not start (section 13).
    for volume in pool.volumes().iter().filter(|volume| volume.has_marker()) {
        volumes.add(
            &format!("verify-{}", volume.name),
            &format!("{MARKERS}/{}", volume.name),
            true,
            json!({ "hostPath": { "path": volume.marker(), "type": "File" } }),
        );
    }

    let ports = site.ports;
    let mut container_ports = vec![
        json!({ "name": "rpc", "containerPort": ports.rpc, "protocol": "TCP" }),
        json!({ "name": "s3", "containerPort": ports.s3, "protocol": "TCP" }),
        json!({ "name": "admin", "containerPort": ports.admin, "protocol": "TCP" }),
    ];
    container_ports
        .extend(ports.k2v.map(|port| json!({ "name": "k2v", "containerPort": port, "protocol": "TCP" })));
    container_ports
        .extend(ports.web.map(|port| json!({ "name": "web", "containerPort": port, "protocol": "TCP" })));

    let mut container = Map::new();
    container.insert("name".into(), "garage".into());
    container.insert("image".into(), site.image.clone().into());
    put(&mut container, "imagePullPolicy", site.image_pull_policy.clone());
    container.insert("command".into(), json!(["/garage", "server"]));
    container.insert("ports".into(), container_ports.into());
    container.insert("env".into(), env(site, pool, secrets).into());
    put(&mut container, "envFrom", pool.template.env_from.clone());
    put(&mut container, "resources", pool.template.resources.clone());
    put(&mut container, "securityContext", pool.template.container_security_context.clone());
    container.insert("volumeMounts".into(), volumes.mounts.into());

    let template = &pool.template;
    let mut spec = Map::new();
    spec.insert("nodeSelector".into(), json!({ activation_label: token }));
    spec.insert("schedulingGates".into(), json!([{ "name": SCHEDULING_GATE }]));
    put(&mut spec, "tolerations", template.tolerations.clone());
    put(&mut spec, "affinity", template.affinity.clone());
    put(&mut spec, "topologySpreadConstraints", template.topology_spread_constraints.clone());
    put(&mut spec, "priorityClassName", template.priority_class_name.clone());
    put(&mut spec, "securityContext", template.security_context.clone());
    put(&mut spec, "serviceAccountName", site.service_account_name.clone());
    put(&mut spec, "imagePullSecrets", site.image_pull_secrets.clone());
    spec.insert("containers".into(), json!([container]));
    spec.insert("volumes".into(), volumes.volumes.into());
    Value::Object(spec)
}

/// The environment in its one order (`compat.md` 3).
fn env(site: &Site, pool: &Pool, secrets: &Mounted) -> Vec<Value> {
    let mut env = vec![json!({
        "name": "GARAGE_NODE_HOST",
        "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } },
    })];
    if let Some(level) = &site.logging.level {
        env.push(json!({ "name": "RUST_LOG", "value": level }));
    }
    if site.logging.syslog {
        env.push(json!({ "name": "GARAGE_LOG_TO_SYSLOG", "value": "1" }));
    }
    if site.logging.journald {
        env.push(json!({ "name": "GARAGE_LOG_TO_JOURNALD", "value": "1" }));
    }
    env.extend(pool.template.env.iter().filter(|entry| !is_reserved_env(entry["name"].as_str())).cloned());
    for file in &secrets.files {
        if let Some(name) = file.env {
            env.push(json!({
                "name": name,
                "valueFrom": { "secretKeyRef": { "name": file.secret, "key": file.key } },
            }));
        }
    }
    env.push(json!({ "name": "GARAGE_CONFIG_FILE", "value": "/etc/garage/garage.toml" }));
    env
}

fn is_reserved_env(name: Option<&str>) -> bool {
    name.is_some_and(|name| RESERVED_ENV.contains(&name.strip_suffix("_FILE").unwrap_or(name)))
}

fn put(map: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        map.insert(key.to_owned(), value.into());
    }
}

#[derive(Default)]
struct Volumes {
    volumes: Vec<Value>,
    mounts: Vec<Value>,
}

impl Volumes {
    fn add(&mut self, name: &str, mount: &str, read_only: bool, source: Value) {
        let mut volume = Map::new();
        volume.insert("name".into(), name.into());
        if let Value::Object(source) = source {
            volume.extend(source);
        }
        self.volumes.push(volume.into());
        let mut entry = Map::new();
        entry.insert("name".into(), name.into());
        entry.insert("mountPath".into(), mount.into());
        if read_only {
            entry.insert("readOnly".into(), true.into());
        }
        self.mounts.push(entry.into());
    }
}
