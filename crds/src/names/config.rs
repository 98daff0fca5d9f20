//! Names that are computed from content: configuration, disk layout, secrets.

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::computed::{h, sha256_hex};
use crate::ids::PoolName;

/// `configHash`: SHA-256 of the whole garage.toml.
pub fn config_hash(garage_toml: &str) -> String {
    sha256_hex(garage_toml)
}

/// `configHash` of a garage.toml that holds a Consul token: an HMAC keyed by the RPC secret, so that the name says nothing
/// about the token.
pub fn config_hash_with_token(garage_toml: &str, rpc_secret: &[u8; 32]) -> String {
    hex::encode(hmac(rpc_secret, &[garage_toml.as_bytes()]))
}

fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    // HMAC pads a key shorter than a block with zeroes, so the 64-byte block form cannot be refused.
    let mut block = [0u8; 64];
    block[..32].copy_from_slice(key);
    let mut mac = <Hmac<Sha256> as hmac::digest::KeyInit>::new((&block).into());
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// The disks of a pool's Pods: value of the annotation `storage-disk-layout`. Written in this order of keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskLayout {
    version: u32,
    /// Directory of the metadata on the Node.
    pub metadata_host_path: String,
    /// `Directory` or `DirectoryOrCreate`.
    pub metadata_host_path_type: String,
    data_paths: Vec<DiskLayoutPath>,
}

/// One data directory of a [`DiskLayout`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskLayoutPath {
    /// Where the Pod sees it.
    pub path: String,
    /// Where it is on the Node.
    pub host_path: String,
    /// `Directory` or `DirectoryOrCreate`.
    pub host_path_type: String,
    /// Garage writes nothing new there.
    pub read_only: bool,
}

impl DiskLayout {
    /// Where a Pod sees its data when the pool has one `data` directory.
    pub const DATA_PATH: &'static str = "/data/data";

    /// Sorts the data directories by `path`.
    pub fn new(
        metadata_host_path: impl Into<String>,
        metadata_host_path_type: impl Into<String>,
        mut data_paths: Vec<DiskLayoutPath>,
    ) -> Self {
        data_paths.sort_by(|a, b| a.path.cmp(&b.path));
        Self {
            version: 1,
            metadata_host_path: metadata_host_path.into(),
            metadata_host_path_type: metadata_host_path_type.into(),
            data_paths,
        }
    }

    /// The data directories, sorted by `path`.
    pub fn data_paths(&self) -> &[DiskLayoutPath] {
        &self.data_paths
    }

    /// The annotation's value: compact JSON.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Name of a pool's configuration object, which holds the content's hash. `base` is its annotation
/// `garage-config-base-name`: see [`pool_config_base_name`].
pub fn pool_config_name(
    cluster: &str,
    pool: &PoolName,
    config_hash: &str,
    disk_layout: &DiskLayout,
) -> String {
    let content = h(&format!("{config_hash}\0{}", disk_layout.to_annotation()), 12);
    let mut base = pool_config_base_name(cluster, pool);
    if base.len() + 1 + content.len() > 253 {
        let unique = h(&base, 8);
        base.truncate(253 - 1 - content.len() - 1 - unique.len());
        base = format!("{base}-{unique}");
    }
    format!("{base}-{content}")
}

/// Name of a pool's configuration object without the content's hash.
pub fn pool_config_base_name(cluster: &str, pool: &PoolName) -> String {
    format!("{cluster}-storage-{pool}-config")
}

/// Name of the ConfigMap that no pool uses and that is always written.
pub fn shared_config_name(cluster: &str, config_hash: &str) -> String {
    format!("{cluster}-config-{}", config_hash.get(..12).unwrap_or(config_hash))
}

/// Reads an RPC secret as its Secret holds it: 64 hex characters.
pub fn parse_rpc_secret(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0u8; 32];
    hex::decode_to_slice(text.trim(), &mut bytes).ok().map(|()| bytes)
}

/// Fingerprint of an RPC secret: SHA-256 of its 32 raw bytes.
pub fn rpc_fingerprint(rpc_secret: &[u8; 32]) -> String {
    sha256_hex(rpc_secret)
}

/// One key of the static credentials Secret, as it enters the revision.
#[derive(Clone, Copy)]
pub struct StaticCredential<'a> {
    /// Key in the copy: `admin-token`, `metrics-token`, `ca.crt`, `tls.crt`, `tls.key`, `consul-token`.
    pub key: &'a str,
    /// `ns/secret:key` that it was copied from.
    pub source: &'a str,
    /// The secret value. Never shown.
    pub value: &'a [u8],
}

/// Revision of the static credentials: 64 hex characters, keyed by the RPC secret.
pub fn static_credentials_revision(rpc_secret: &[u8; 32], credentials: &[StaticCredential<'_>]) -> String {
    let mut sorted: Vec<_> = credentials.iter().collect();
    sorted.sort_by_key(|c| c.key);
    let mut parts: Vec<&[u8]> = vec![b"garage-operator/static-credentials/v1\0"];
    for c in sorted {
        parts.extend([c.key.as_bytes(), b"\0", c.source.as_bytes(), b"\0", c.value, b"\0"]);
    }
    hex::encode(hmac(rpc_secret, &parts))
}

/// Name of the immutable copy of the static credentials; at most 63 characters.
pub fn static_credentials_name(cluster: &str, revision: &str) -> String {
    let revision = revision.get(..16).unwrap_or(revision);
    let name = format!("{cluster}-credentials-{revision}");
    if name.len() <= 63 {
        return name;
    }
    let tail = format!("-{}-credentials-{revision}", h(cluster, 8));
    let cut: String = cluster.chars().take(63_usize.saturating_sub(tail.len())).collect();
    format!("{}{tail}", cut.trim_end_matches('-'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GARAGE_TOML: &str = include_str!("../../tests/fixtures/garage.toml");

    fn layout() -> DiskLayout {
        DiskLayout::new(
            "/srv/garage/fast/meta",
            "Directory",
            vec![DiskLayoutPath {
                path: DiskLayout::DATA_PATH.to_owned(),
                host_path: "/srv/garage/fast/data".to_owned(),
                host_path_type: "Directory".to_owned(),
                read_only: false,
            }],
        )
    }
    fn rpc_secret() -> [u8; 32] {
        std::array::from_fn(|i| u8::try_from(i).unwrap())
    }

    #[test]
    fn the_config_hash_is_that_of_the_whole_file() {
        assert_eq!(
            config_hash(GARAGE_TOML),
            "27c4fb668c89a080d6b423431c88e79bf45e0cb630d8b0c20765d080266b5f7f"
        );
        assert_eq!(shared_config_name("site-a", &config_hash(GARAGE_TOML)), "site-a-config-27c4fb668c89");
    }

    #[test]
    fn the_disk_layout_is_compact_json_in_one_order() {
        assert_eq!(
            layout().to_annotation(),
            r#"{"version":1,"metadataHostPath":"/srv/garage/fast/meta","metadataHostPathType":"Directory","dataPaths":[{"path":"/data/data","hostPath":"/srv/garage/fast/data","hostPathType":"Directory","readOnly":false}]}"#
        );
    }

    #[test]
    fn a_pool_configuration_is_named_after_its_content() {
        let name = pool_config_name("site-a", &"fast".parse().unwrap(), &config_hash(GARAGE_TOML), &layout());
        assert_eq!(name, "site-a-storage-fast-config-14541b9490c9");
    }

    #[test]
    fn a_configuration_name_never_exceeds_what_kubernetes_takes() {
        let name = pool_config_name(&"c".repeat(250), &"fast".parse().unwrap(), "x", &layout());
        assert_eq!(name.len(), 253);
    }

    #[test]
    fn the_fingerprint_is_that_of_the_raw_bytes() {
        assert_eq!(
            rpc_fingerprint(&rpc_secret()),
            "630dcd2966c4336691125448bbb25b4ff412a49c732db2c8abc1b8581bd710dd"
        );
        assert_eq!(parse_rpc_secret(&format!("{}\n", hex::encode(rpc_secret()))), Some(rpc_secret()));
        assert_eq!(parse_rpc_secret("00"), None);
    }

    #[test]
    fn static_credentials_are_named_after_their_revision() {
        let revision = static_credentials_revision(
            &rpc_secret(),
            &[StaticCredential {
                key: "admin-token",
                source: "objects/site-a-admin:admin-token",
                value: b"example-admin-token",
            }],
        );
        assert!(revision.starts_with("7b5744d04e99a2f3d668"), "{revision}");
        assert_eq!(static_credentials_name("site-a", &revision), "site-a-credentials-7b5744d04e99a2f3");
    }

    #[test]
    fn a_long_cluster_name_is_cut_and_made_unique() {
        let name = static_credentials_name(&"a".repeat(54), &"7".repeat(64));
        assert_eq!(name.len(), 63);
        assert!(name.ends_with("-credentials-7777777777777777"), "{name}");
    }

    #[test]
    fn the_hash_of_a_file_with_a_token_needs_the_rpc_secret() {
        assert_ne!(
            config_hash_with_token(GARAGE_TOML, &rpc_secret()),
            config_hash_with_token(GARAGE_TOML, &[9; 32])
        );
    }
}
