//! A Pod's volumes, made as a kubelet makes them: HostPaths checked for their type, ConfigMaps, Secrets,
//! projected and downward API volumes as directories whose content changes in one step (`..data`), emptyDirs.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, Pod, Secret, ServiceAccount,
    ServiceAccountTokenProjection, Volume,
};
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};

use super::env::{self, Place};
use super::node::Node;

/// A volume that could not be set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeError {
    /// The volume's name.
    pub volume: String,
    /// Why, in a kubelet's words where it has some.
    pub message: String,
}

/// A volume that is ready to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// What is mounted, in the bed.
    pub path: PathBuf,
    /// Kubernetes mounts this kind read-only always.
    pub read_only: bool,
    /// A HostPath: looked at again at every start of a container, as a container runtime does.
    pub host_path: bool,
}

/// Files of a volume by relative path: content and mode.
type Payload = BTreeMap<String, (Vec<u8>, u32)>;

/// Tokens by volume and path, with the time to ask for the next.
#[derive(Default)]
pub struct Tokens(BTreeMap<(String, String), (String, Timestamp)>);

/// Sets up every volume, or says which one cannot be.
pub async fn set_up(
    node: &Node,
    pod: &Pod,
    place: &Place,
    folder: &Path,
    tokens: &mut Tokens,
) -> Result<BTreeMap<String, Ready>, VolumeError> {
    let mut ready = BTreeMap::new();
    for volume in volumes(pod) {
        let fail = |message| VolumeError { volume: volume.name.clone(), message };
        let path = folder.join(&volume.name);
        let made = if let Some(source) = &volume.host_path {
            let path = host_path(&node.config.host_root, source).map_err(fail)?;
            Ready { path, read_only: false, host_path: true }
        } else if let Some(source) = &volume.empty_dir {
            let memory = source.medium.as_deref() == Some("Memory");
            let size = source.size_limit.as_ref().map(|limit| limit.0.as_str());
            empty_dir(&path, memory, size, fs_group(pod)).map_err(fail)?;
            Ready { path, read_only: false, host_path: false }
        } else {
            let payload = payload(node, pod, place, volume, tokens).await.map_err(fail)?;
            write_atomically(&path, &payload, fs_group(pod).filter(|group| node.can_be(*group)))
                .map_err(fail)?;
            Ready { path, read_only: true, host_path: false }
        };
        ready.insert(volume.name.clone(), made);
    }
    Ok(ready)
}

/// Brings the content of ConfigMaps, Secrets, tokens and the downward API up to date. What cannot be
/// read now stays as it is, as in a kubelet.
pub async fn refresh(node: &Node, pod: &Pod, place: &Place, folder: &Path, tokens: &mut Tokens) {
    for volume in volumes(pod) {
        if volume.host_path.is_some() || volume.empty_dir.is_some() {
            continue;
        }
        let refreshed = match payload(node, pod, place, volume, tokens).await {
            Ok(payload) => {
                let group = fs_group(pod).filter(|group| node.can_be(*group));
                write_atomically(&folder.join(&volume.name), &payload, group)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = refreshed {
            tracing::debug!(pod = pod.name_any(), volume = volume.name, error, "a volume keeps its content");
        }
    }
}

/// Takes the volumes away; what HostPaths hold stays.
pub fn tear_down(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // Only sized emptyDirs are mounts; for all others this says no, in silence.
        let _ = Command::new("umount").arg("--lazy").arg(entry.path()).output();
    }
    if let Err(error) = std::fs::remove_dir_all(folder) {
        tracing::debug!(folder = %folder.display(), %error, "volumes stay");
    }
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten())
}

fn fs_group(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.security_context.as_ref()?.fs_group
}

/// Checks a HostPath as a kubelet does, and returns where it is in the bed.
pub fn host_path(host_root: &Path, source: &HostPathVolumeSource) -> Result<PathBuf, String> {
    let named = &source.path;
    let path = host_root.join(named.trim_start_matches('/'));
    let kind = std::fs::metadata(&path).map(|metadata| metadata.file_type());
    let check = |fits: bool, what: &str| {
        if fits { Ok(()) } else { Err(format!("hostPath type check failed: {named} is not {what}")) }
    };
    match source.type_.as_deref().unwrap_or_default() {
        "" => {}
        "Directory" => check(kind.is_ok_and(|kind| kind.is_dir()), "a directory")?,
        "File" => check(kind.is_ok_and(|kind| kind.is_file()), "a file")?,
        "Socket" => check(kind.is_ok_and(|kind| kind.is_socket()), "a socket file")?,
        "CharDevice" => check(kind.is_ok_and(|kind| kind.is_char_device()), "a character device")?,
        "BlockDevice" => check(kind.is_ok_and(|kind| kind.is_block_device()), "a block device")?,
        "DirectoryOrCreate" => match kind {
            Ok(kind) => check(kind.is_dir(), "a directory")?,
            Err(_) => std::fs::create_dir_all(&path).map_err(|error| format!("mkdir {named}: {error}"))?,
        },
        "FileOrCreate" => match kind {
            Ok(kind) => check(kind.is_file(), "a file")?,
            Err(_) => std::fs::write(&path, "").map_err(|error| format!("open {named}: {error}"))?,
        },
        other => return Err(format!("hostPath type {other} is not supported by the bed's node agent")),
    }
    Ok(path)
}

fn empty_dir(path: &Path, memory: bool, size: Option<&str>, group: Option<i64>) -> Result<(), String> {
    if path.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(path).map_err(|error| error.to_string())?;
    // A kubelet evicts a Pod over its limit; here the disk is simply that small.
    if memory || size.is_some() {
        let size = match size {
            Some(size) => {
                format!(",size={}", bytes(size).ok_or_else(|| format!("sizeLimit {size:?} cannot be read"))?)
            }
            None => String::new(),
        };
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("mode=0777{size}"), "bed-emptydir"])
            .arg(path)
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
    }
    mode(path, 0o777)?;
    own(path, group);
    Ok(())
}

/// A quantity of bytes as Kubernetes writes it, integers only.
fn bytes(quantity: &str) -> Option<u64> {
    let digits = quantity.trim_end_matches(char::is_alphabetic);
    let factor = match quantity.get(digits.len()..)? {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

async fn payload(
    node: &Node,
    pod: &Pod,
    place: &Place,
    volume: &Volume,
    tokens: &mut Tokens,
) -> Result<Payload, String> {
    let mut files = Payload::new();
    if let Some(source) = &volume.config_map {
        let mode = default_mode(source.default_mode);
        files.extend(
            config_map(node, pod, &source.name, source.items.as_deref(), source.optional, mode).await?,
        );
    } else if let Some(source) = &volume.secret {
        let mode = default_mode(source.default_mode);
        let name = source.secret_name.clone().unwrap_or_default();
        files.extend(secret(node, pod, &name, source.items.as_deref(), source.optional, mode).await?);
    } else if let Some(source) = &volume.downward_api {
        files.extend(downward(pod, place, source.items.as_deref(), default_mode(source.default_mode))?);
    } else if let Some(projected) = &volume.projected {
        let mode = default_mode(projected.default_mode);
        for source in projected.sources.iter().flatten() {
            if let Some(map) = &source.config_map {
                files.extend(
                    config_map(node, pod, &map.name, map.items.as_deref(), map.optional, mode).await?,
                );
            } else if let Some(from) = &source.secret {
                files
                    .extend(secret(node, pod, &from.name, from.items.as_deref(), from.optional, mode).await?);
            } else if let Some(api) = &source.downward_api {
                files.extend(downward(pod, place, api.items.as_deref(), mode)?);
            } else if let Some(projection) = &source.service_account_token {
                let token = token(node, pod, &volume.name, projection, tokens).await?;
                files.insert(projection.path.clone(), (token.into_bytes(), mode));
            } else {
                return Err("this projection is not supported by the bed's node agent".to_owned());
            }
        }
    } else {
        return Err("this volume is not supported by the bed's node agent".to_owned());
    }
    Ok(files)
}

async fn config_map(
    node: &Node,
    pod: &Pod,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
    mode: u32,
) -> Result<Payload, String> {
    let api: Api<ConfigMap> = Api::namespaced(node.client(), &pod.namespace().unwrap_or_default());
    let Some(map) = node.call(api.get_opt(name)).await.map_err(|error| error.to_string())? else {
        return if optional == Some(true) {
            Ok(Payload::new())
        } else {
            Err(format!("configmap {name:?} not found"))
        };
    };
    let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
    let binary = map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0));
    select(&text.chain(binary).collect(), items, optional, mode)
}

async fn secret(
    node: &Node,
    pod: &Pod,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
    mode: u32,
) -> Result<Payload, String> {
    let api: Api<Secret> = Api::namespaced(node.client(), &pod.namespace().unwrap_or_default());
    let Some(secret) = node.call(api.get_opt(name)).await.map_err(|error| error.to_string())? else {
        return if optional == Some(true) {
            Ok(Payload::new())
        } else {
            Err(format!("secret {name:?} not found"))
        };
    };
    let data = secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect();
    select(&data, items, optional, mode)
}

fn select(
    data: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
    mode: u32,
) -> Result<Payload, String> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(data.iter().map(|(key, value)| (key.clone(), (value.clone(), mode))).collect());
    };
    let mut files = Payload::new();
    for item in items {
        match data.get(&item.key) {
            Some(value) => {
                files.insert(item.path.clone(), (value.clone(), item.mode.map_or(mode, i32::unsigned_abs)));
            }
            None if optional == Some(true) => {}
            None => return Err(format!("references non-existent config key: {}", item.key)),
        }
    }
    Ok(files)
}

fn downward(
    pod: &Pod,
    place: &Place,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: u32,
) -> Result<Payload, String> {
    let mut files = Payload::new();
    for item in items.into_iter().flatten() {
        let field =
            item.field_ref.as_ref().ok_or("resourceFieldRef is not supported by the bed's node agent")?;
        let value = env::field(pod, place, &field.field_path)?;
        files.insert(item.path.clone(), (value.into_bytes(), item.mode.map_or(mode, i32::unsigned_abs)));
    }
    Ok(files)
}

/// A token bound to this Pod; the same one until four fifths of its life are over.
async fn token(
    node: &Node,
    pod: &Pod,
    volume: &str,
    projection: &ServiceAccountTokenProjection,
    tokens: &mut Tokens,
) -> Result<String, String> {
    let key = (volume.to_owned(), projection.path.clone());
    let now = Timestamp::now();
    if let Some((token, until)) = tokens.0.get(&key)
        && now < *until
    {
        return Ok(token.clone());
    }
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).unwrap_or_default();
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: projection.audience.iter().cloned().collect(),
            expiration_seconds: projection.expiration_seconds,
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        },
        ..TokenRequest::default()
    };
    let api: Api<ServiceAccount> = Api::namespaced(node.client(), &pod.namespace().unwrap_or_default());
    let answer = node
        .call(api.create_token_request(&account, &PostParams::default(), &request))
        .await
        .map_err(|error| format!("failed to fetch token: {error}"))?;
    let status = answer.status.ok_or("failed to fetch token: the answer has no status")?;
    let life = status.expiration_timestamp.0.as_second() - now.as_second();
    let until = Timestamp::from_second(now.as_second() + life * 4 / 5).unwrap_or(now);
    tokens.0.insert(key, (status.token.clone(), until));
    Ok(status.token)
}

fn default_mode(mode: Option<i32>) -> u32 {
    mode.map_or(0o644, i32::unsigned_abs)
}

/// Writes a volume's files so that a reader sees all the old or all the new ones: they lie in a directory
/// of their own, `..data` points to it, and every name in the volume goes through `..data`.
fn write_atomically(folder: &Path, payload: &Payload, group: Option<i64>) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let data = folder.join("..data");
    if data.exists() && payload.iter().all(|(name, (content, _))| is_file_with(&data.join(name), content)) {
        let mut known = Vec::new();
        names_below(&std::fs::canonicalize(&data).map_err(text)?, "", &mut known);
        if known.len() == payload.len() {
            return Ok(());
        }
    }
    std::fs::create_dir_all(folder).map_err(text)?;
    let mut number = 0;
    let made = loop {
        let made = folder.join(format!("..v{number}"));
        if !made.exists() {
            break made;
        }
        number += 1;
    };
    std::fs::create_dir(&made).map_err(text)?;
    for (name, (content, file_mode)) in payload {
        if Path::new(name).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            return Err(format!("path {name:?} leaves the volume"));
        }
        let path = made.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(text)?;
        }
        std::fs::write(&path, content).map_err(text)?;
        // A group that may use the volume may read it, as with a kubelet's fsGroup.
        mode(&path, if group.is_some() { file_mode | 0o440 } else { *file_mode })?;
        own(&path, group);
    }
    let old = std::fs::read_link(&data).ok();
    let next = folder.join("..next");
    let _ = std::fs::remove_file(&next);
    std::os::unix::fs::symlink(made.file_name().unwrap_or_default(), &next).map_err(text)?;
    std::fs::rename(&next, &data).map_err(text)?;
    let wanted: Vec<&str> = payload.keys().filter_map(|name| name.split('/').next()).collect();
    for entry in std::fs::read_dir(folder).map_err(text)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && !wanted.contains(&name.as_str()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    for name in wanted {
        let link = folder.join(name);
        if std::fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(Path::new("..data").join(name), &link).map_err(text)?;
        }
    }
    if let Some(old) = old {
        let _ = std::fs::remove_dir_all(folder.join(old));
    }
    Ok(())
}

fn is_file_with(path: &Path, content: &[u8]) -> bool {
    std::fs::read(path).is_ok_and(|found| found == content)
}

fn names_below(folder: &Path, prefix: &str, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            names_below(&entry.path(), &format!("{name}/"), names);
        } else {
            names.push(name);
        }
    }
}

fn mode(path: &Path, mode: u32) -> Result<(), String> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(|error| error.to_string())
}

fn own(path: &Path, group: Option<i64>) {
    if let Some(group) = group.and_then(|group| u32::try_from(group).ok()) {
        // Only possible where the bed's root may be other users; checked before, and noted there.
        let _ = std::os::unix::fs::chown(path, None, Some(group));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn source(path: &str, type_: &str) -> HostPathVolumeSource {
        HostPathVolumeSource { path: path.to_owned(), type_: Some(type_.to_owned()) }
    }

    #[rstest::rstest]
    #[case("/disk", "Directory", true)]
    #[case("/missing", "Directory", false)]
    #[case("/disk/mark", "Directory", false)]
    #[case("/disk/mark", "File", true)]
    #[case("/disk", "File", false)]
    #[case("/missing", "File", false)]
    #[case("/new/deep", "DirectoryOrCreate", true)]
    #[case("/disk/mark", "DirectoryOrCreate", false)]
    #[case("/disk/new", "FileOrCreate", true)]
    #[case("/missing", "", true)]
    #[case("/disk", "Nonsense", false)]
    fn a_host_path_is_checked_for_its_type(#[case] path: &str, #[case] type_: &str, #[case] fits: bool) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("disk")).unwrap();
        std::fs::write(root.path().join("disk/mark"), "").unwrap();
        let checked = host_path(root.path(), &source(path, type_));
        assert_eq!(checked.is_ok(), fits, "{checked:?}");
    }

    #[test]
    fn a_missing_marker_is_named_in_a_kubelets_words() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(
            host_path(root.path(), &source("/srv/.garage-volume-id", "File")).unwrap_err(),
            "hostPath type check failed: /srv/.garage-volume-id is not a file"
        );
        assert!(!root.path().join("srv").exists(), "a check creates nothing");
    }

    #[test]
    fn files_of_a_volume_change_in_one_step_and_keep_their_modes() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("v");
        let file = |text: &str| (text.as_bytes().to_vec(), 0o600);
        let first = Payload::from([("a".to_owned(), file("1")), ("d/b".to_owned(), file("2"))]);
        write_atomically(&folder, &first, None).unwrap();
        let before = std::fs::read_link(folder.join("..data")).unwrap();
        write_atomically(&folder, &first, None).unwrap();
        assert_eq!(
            std::fs::read_link(folder.join("..data")).unwrap(),
            before,
            "equal content is not rewritten"
        );
        assert_eq!(std::fs::read_to_string(folder.join("d/b")).unwrap(), "2");
        assert_eq!(std::fs::metadata(folder.join("a")).unwrap().permissions().mode() & 0o777, 0o600);

        write_atomically(&folder, &Payload::from([("a".to_owned(), file("3"))]), None).unwrap();
        assert_eq!(std::fs::read_to_string(folder.join("a")).unwrap(), "3");
        assert!(!folder.join("d").exists());
    }

    #[test]
    fn a_path_cannot_leave_its_volume() {
        let root = tempfile::tempdir().unwrap();
        let payload = Payload::from([("../x".to_owned(), (Vec::new(), 0o644))]);
        assert!(
            write_atomically(&root.path().join("v"), &payload, None)
                .unwrap_err()
                .contains("leaves the volume")
        );
    }

    #[test]
    fn items_select_keys_and_a_missing_one_fails() {
        let data = BTreeMap::from([("k".to_owned(), b"v".to_vec())]);
        let item = |key: &str| KeyToPath { key: key.to_owned(), path: "p".to_owned(), mode: Some(0o400) };
        let files = select(&data, Some(&[item("k")]), None, 0o644).unwrap();
        assert_eq!(files["p"], (b"v".to_vec(), 0o400));
        assert!(select(&data, Some(&[item("x")]), None, 0o644).is_err());
        assert!(select(&data, Some(&[item("x")]), Some(true), 0o644).unwrap().is_empty());
    }

    #[test]
    fn sizes_are_read_as_kubernetes_writes_them() {
        assert_eq!(bytes("64Mi"), Some(64 << 20));
        assert_eq!(bytes("10M"), Some(10_000_000));
        assert_eq!(bytes("1.5Gi"), None);
    }
}
