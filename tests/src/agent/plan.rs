//! From a container's spec to the plan of its process: image, environment, mounts, rights.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};
use kube::ResourceExt as _;

use super::env::{self, Ordered, Place, Referred};
use super::images::Image;
use super::node::Node;
use super::record::PodRecord;
use super::script::{Bind, Identity, Plan};
use super::status::Record;
use super::volumes::Ready;

/// Why a container cannot be made: Kubernetes' reason for a waiting container, and a message.
pub type Refusal = (&'static str, String);

/// What all containers of a Pod share.
pub struct Sandbox {
    /// The Pod's folder in the agent's state.
    pub folder: PathBuf,
    /// Handle of its network namespace.
    pub netns: PathBuf,
    /// Its addresses.
    pub place: Place,
    /// Its volumes.
    pub volumes: BTreeMap<String, Ready>,
}

/// Makes a container's plan.
pub async fn plan(
    node: &Node,
    pod: &Pod,
    sandbox: &Sandbox,
    container: &Container,
    record: &Record,
    shared: &PodRecord,
) -> Result<Plan, Refusal> {
    let name = container.image.as_deref().unwrap_or_default();
    let image = node.config.images.get(name).ok_or_else(|| {
        (
            "ImagePullBackOff",
            format!("Back-off pulling image {name:?}: the bed's image table does not have it"),
        )
    })?;
    let config_error = |message: String| ("CreateContainerConfigError", message);
    let identity = identity(node, pod, container, image, shared).map_err(config_error)?;
    let referred = fetch(node, pod, container).await.map_err(config_error)?;
    let hostname = hostname(pod);
    let base = base_env(node, image, &hostname);
    let env = env::build(container, pod, &sandbox.place, &referred, &base).map_err(config_error)?;
    let binds = binds(container, image, sandbox).map_err(config_error)?;
    let folder = sandbox.folder.join(&container.name);
    let etc = sandbox.folder.join("etc");
    write_etc(&etc, node, pod, &sandbox.place, &hostname, &identity)
        .map_err(|error| ("CreateContainerError", error.to_string()))?;
    let context = container.security_context.as_ref();
    Ok(Plan {
        root: folder.join("root"),
        etc,
        log: shared.log_file(&node.config.logs, record),
        termination_log: Bind {
            source: folder.join("termination-log"),
            target: container
                .termination_message_path
                .clone()
                .unwrap_or_else(|| "/dev/termination-log".to_owned()),
            read_only: false,
            directory: false,
        },
        binds,
        hostname,
        argv: argv(container, image, &Ordered(env.clone())).map_err(config_error)?,
        env,
        working_dir: container.working_dir.clone().unwrap_or_else(|| image.working_dir.clone()),
        read_only_root: context.and_then(|context| context.read_only_root_filesystem) == Some(true),
        identity,
    })
}

async fn fetch(node: &Node, pod: &Pod, container: &Container) -> Result<Referred, String> {
    let namespace = pod.namespace().unwrap_or_default();
    let (secrets, config_maps) = env::references(container);
    let mut referred = Referred::default();
    for name in secrets {
        let secret = node.referred::<Secret>(&namespace, &name).await.map_err(|error| error.to_string())?;
        referred.secrets.insert(name, secret);
    }
    for name in config_maps {
        let map = node.referred::<ConfigMap>(&namespace, &name).await.map_err(|error| error.to_string())?;
        referred.config_maps.insert(name, map);
    }
    Ok(referred)
}

/// What stands in the environment before a container's own: the image's, the host name, and where the API
/// server is. Other Services are not there (a bed has no Service addresses).
fn base_env(node: &Node, image: &Image, hostname: &str) -> Vec<(String, String)> {
    let (host, port) = node.config.api_server;
    let mut env = Ordered(image.env.clone());
    env.set("HOSTNAME".to_owned(), hostname.to_owned());
    env.set("KUBERNETES_SERVICE_HOST".to_owned(), host.to_string());
    env.set("KUBERNETES_SERVICE_PORT".to_owned(), port.to_string());
    env.set("KUBERNETES_SERVICE_PORT_HTTPS".to_owned(), port.to_string());
    env.0
}

fn argv(container: &Container, image: &Image, env: &Ordered) -> Result<Vec<String>, String> {
    let expanded = |words: Option<&Vec<String>>| {
        words.into_iter().flatten().map(|word| env::expand(word, env)).collect::<Vec<_>>()
    };
    let command = expanded(container.command.as_ref());
    let args = expanded(container.args.as_ref());
    let mut words = if command.is_empty() { image.entrypoint.clone() } else { command.clone() };
    if args.is_empty() && command.is_empty() {
        words.extend(image.cmd.iter().cloned());
    } else {
        words.extend(args);
    }
    if words.is_empty() { Err("no command specified".to_owned()) } else { Ok(words) }
}

/// Who the program runs as. Where the bed's root cannot be others, that is noted and it stays root.
fn identity(
    node: &Node,
    pod: &Pod,
    container: &Container,
    image: &Image,
    shared: &PodRecord,
) -> Result<Identity, String> {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let of_container = container.security_context.as_ref();
    let user = of_container
        .and_then(|context| context.run_as_user)
        .or_else(|| of_pod.and_then(|context| context.run_as_user))
        .or(image.user);
    let group = of_container
        .and_then(|context| context.run_as_group)
        .or_else(|| of_pod.and_then(|context| context.run_as_group))
        .unwrap_or(0);
    let non_root = of_container
        .and_then(|context| context.run_as_non_root)
        .or_else(|| of_pod.and_then(|context| context.run_as_non_root));
    if non_root == Some(true) && user.unwrap_or(0) == 0 {
        return Err("container has runAsNonRoot and image will run as root".to_owned());
    }
    let mut groups: Vec<i64> =
        of_pod.and_then(|context| context.supplemental_groups.clone()).unwrap_or_default();
    groups.extend(of_pod.and_then(|context| context.fs_group));
    let user = user.unwrap_or(0);
    let mut ids = None;
    if user != 0 || group != 0 || !groups.is_empty() {
        if [user, group].iter().chain(&groups).all(|id| node.can_be(*id)) {
            ids = Some((user, group));
        } else {
            shared.note(
                "runAsUser, runAsGroup, supplementalGroups and fsGroup are not applied: this bed's root is an \
                 unprivileged user and cannot be others",
            );
        }
    }
    let drop = of_container
        .and_then(|context| context.capabilities.as_ref())
        .and_then(|capabilities| capabilities.drop.clone())
        .unwrap_or_default();
    Ok(Identity {
        groups: if ids.is_some() { groups } else { Vec::new() },
        ids,
        drop,
        no_new_privileges: of_container.and_then(|context| context.allow_privilege_escalation) == Some(false),
    })
}

fn binds(container: &Container, image: &Image, sandbox: &Sandbox) -> Result<Vec<Bind>, String> {
    let mut binds = Vec::new();
    for (source, target) in &image.files {
        let metadata = std::fs::metadata(source).map_err(|error| {
            format!("a file of the image is missing in the bed: {}: {error}", source.display())
        })?;
        binds.push(Bind {
            source: source.clone(),
            target: target.clone(),
            read_only: true,
            directory: metadata.is_dir(),
        });
    }
    for mount in container.volume_mounts.iter().flatten() {
        let volume = sandbox
            .volumes
            .get(&mount.name)
            .ok_or_else(|| format!("volumeMount {:?}: the Pod has no such volume", mount.name))?;
        // The type of a HostPath is checked when the Pod starts, not when a container starts again; a
        // container runtime then makes a directory of what is missing (containerd does). A disk that went
        // away under a running Pod is thus not noticed here either.
        if volume.host_path && std::fs::symlink_metadata(&volume.path).is_err() {
            std::fs::create_dir_all(&volume.path)
                .map_err(|error| format!("mkdir {}: {error}", volume.path.display()))?;
        }
        let metadata =
            std::fs::metadata(&volume.path).map_err(|error| format!("{}: {error}", volume.path.display()))?;
        binds.push(Bind {
            source: volume.path.clone(),
            target: mount.mount_path.clone(),
            read_only: volume.read_only || mount.read_only == Some(true),
            directory: metadata.is_dir(),
        });
    }
    Ok(binds)
}

fn hostname(pod: &Pod) -> String {
    let name = pod.spec.as_ref().and_then(|spec| spec.hostname.clone()).unwrap_or_else(|| pod.name_any());
    name.chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_owned()
}

fn write_etc(
    etc: &Path,
    node: &Node,
    pod: &Pod,
    place: &Place,
    hostname: &str,
    identity: &Identity,
) -> std::io::Result<()> {
    std::fs::create_dir_all(etc)?;
    let api = node.config.api_server.0;
    let mut hosts = format!(
        "127.0.0.1 localhost\n::1 localhost\n{} {hostname}\n{api} kubernetes.default.svc kubernetes.default\n",
        place.pod_ip
    );
    for alias in pod.spec.iter().flat_map(|spec| spec.host_aliases.iter().flatten()) {
        let _ = writeln!(hosts, "{} {}", alias.ip, alias.hostnames.clone().unwrap_or_default().join(" "));
    }
    std::fs::write(etc.join("hosts"), hosts)?;
    std::fs::write(etc.join("hostname"), format!("{hostname}\n"))?;
    std::fs::write(etc.join("resolv.conf"), "# a bed has no DNS\n")?;
    let (user, group) = identity.ids.unwrap_or((0, 0));
    let mut passwd = "root:x:0:0:root:/root:/bin/sh\n".to_owned();
    let mut groups = "root:x:0:\n".to_owned();
    if user != 0 {
        let _ = writeln!(passwd, "app:x:{user}:{group}::/:/bin/false");
    }
    if group != 0 {
        let _ = writeln!(groups, "app:x:{group}:");
    }
    std::fs::write(etc.join("passwd"), passwd)?;
    std::fs::write(etc.join("group"), groups)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use serde_json::json;

    #[rstest::rstest]
    #[case(json!({}), &["/entry", "cmd"])]
    #[case(json!({"args": ["a"]}), &["/entry", "a"])]
    #[case(json!({"command": ["/c"]}), &["/c"])]
    #[case(json!({"command": ["/c"], "args": ["$(X)"]}), &["/c", "1"])]
    fn command_and_args_replace_what_the_image_has(
        #[case] spec: serde_json::Value,
        #[case] expected: &[&str],
    ) {
        let mut spec = spec;
        spec["name"] = json!("c");
        let container: Container = serde_json::from_value(spec).unwrap();
        let image =
            Image { entrypoint: vec!["/entry".to_owned()], cmd: vec!["cmd".to_owned()], ..Image::default() };
        let env = Ordered(vec![("X".to_owned(), "1".to_owned())]);
        assert_eq!(argv(&container, &image, &env).unwrap(), expected);
    }

    #[test]
    fn a_long_pod_name_is_cut_to_a_host_name() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": format!("{}-x", "a".repeat(62))}})).unwrap();
        assert_eq!(hostname(&pod), "a".repeat(62));
    }
}
