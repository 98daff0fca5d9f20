//! Names computed from a cluster, a pool and a Node.

use sha2::{Digest, Sha256};

use super::{PREFIX, fence, tag};
use crate::ids::{KubernetesNodeName, PoolName, is_dns_label};

/// SHA-256 of `bytes` in 64 hex characters.
pub fn sha256_hex(bytes: impl AsRef<[u8]>) -> String {
    hex::encode(Sha256::digest(bytes.as_ref()))
}

/// The first `n` hex characters of the SHA-256 of `x`.
pub(super) fn h(x: &str, n: usize) -> String {
    let mut s = sha256_hex(x);
    s.truncate(n);
    s
}

/// The first 16 hex characters of the SHA-256 of `x`.
pub fn h16(x: &str) -> String {
    h(x, 16)
}

/// The first 32 hex characters of the SHA-256 of `x`.
pub fn h32(x: &str) -> String {
    h(x, 32)
}

/// Which GarageCluster; what names are computed from.
///
/// The activation label depends on the uid; claim and identity annotation do not: they survive deletion and re-creation
/// of a GarageCluster of the same name and then bind the disk to its old identity (`compat.md` 2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

impl ClusterId {
    /// From its three parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, uid: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }

    fn scope(&self) -> String {
        h16(&format!("{}/{}", self.namespace, self.name))
    }

    /// What the activation label of every pool of this GarageCluster begins with.
    pub fn activation_label_prefix(&self) -> String {
        let scope = h16(&format!("{}/{}/{}", self.namespace, self.name, self.uid));
        format!("{PREFIX}gc-{scope}-node-local-pool-")
    }

    /// Key of the label that makes a Node run a pool's Pod; its value is the DaemonSet's current token.
    pub fn activation_label(&self, pool: &PoolName) -> String {
        self.activation_label_prefix() + &h16(pool.as_str())
    }

    /// What claims and identity annotations of this GarageCluster begin with. Nothing of another kind may stand under it.
    pub fn record_prefix(&self) -> String {
        format!("{PREFIX}gc-{}-node-local-", self.scope())
    }

    /// Key of the annotation on a Node that holds the identity of the pool's member there; 64 hex characters.
    pub fn identity_annotation(&self, pool: &PoolName) -> String {
        format!("{PREFIX}gc-{}-node-local-pool-{}-node-id", self.scope(), h16(pool.as_str()))
    }

    /// Key of the annotation on a Node that holds the pool's [`HostPathClaim`](super::HostPathClaim).
    pub fn host_path_claim_annotation(&self, pool: &PoolName) -> String {
        format!("{PREFIX}gc-{}-node-local-{}-hostpath-claim", self.scope(), h16(pool.as_str()))
    }

    /// The tag `cluster:<name>/<namespace>`.
    pub fn cluster_tag(&self) -> String {
        format!("{}{}/{}", tag::CLUSTER, self.name, self.namespace)
    }

    /// The tag `cluster-uid:<uid>`.
    pub fn cluster_uid_tag(&self) -> String {
        format!("{}{}", tag::CLUSTER_UID, self.uid)
    }

    /// The layout role tags of a pool's member, in order. User tags with a reserved prefix are dropped; `rpc_address` is
    /// `host:port` and given only where `network.rpcPublicAddrTemplate` makes it stable (section 2).
    pub fn role_tags<'a>(
        &self,
        pool: &PoolName,
        node: &KubernetesNodeName,
        user_tags: impl IntoIterator<Item = &'a str>,
        rpc_address: Option<&str>,
    ) -> Vec<String> {
        let mut tags = vec![
            self.cluster_tag(),
            self.cluster_uid_tag(),
            format!("{}storage", tag::TIER),
            format!("{}{pool}", tag::NODE_LOCAL_POOL),
            format!("{}{node}", tag::KUBERNETES_NODE),
        ];
        tags.extend(user_tags.into_iter().filter(|t| !tag::is_reserved(t)).map(str::to_owned));
        tags.extend(rpc_address.map(|a| format!("{}{a}", tag::RPC_ADDRESS)));
        tags
    }

    fn h8_with_uid(&self) -> String {
        h(&format!("{}/{}:{}", self.namespace, self.name, self.uid), 8)
    }

    /// The full operator's own Admin API token: keys `admin-token` (`id.secret`) and `token-id`.
    pub fn operator_token_secret(&self) -> String {
        format!("{}-operator-{}", self.name, self.h8_with_uid())
    }

    /// The full operator's own metrics token: key `metrics-token`.
    pub fn metrics_token_secret(&self) -> String {
        format!("{}-metrics-{}", self.name, self.h8_with_uid())
    }

    /// The RPC secret; key [`RPC_SECRET_KEY`](Self::RPC_SECRET_KEY).
    pub fn rpc_secret(&self) -> String {
        format!("{}-rpc-secret", self.name)
    }

    /// The copy of an RPC secret that a reference names.
    pub fn rpc_secret_snapshot(&self) -> String {
        format!("{}-rpc-secret-snapshot", self.name)
    }

    /// Key in the RPC Secret.
    pub const RPC_SECRET_KEY: &'static str = "rpc-secret";

    /// The headless Service of all tiers.
    pub fn headless_service(&self) -> String {
        format!("{}-headless", self.name)
    }
}

/// The token of a DaemonSet after its creation.
pub fn workload_token(daemon_set_uid: &str) -> String {
    format!("workload-{}", h32(daemon_set_uid))
}

/// The token of a DaemonSet after a membership removal. `removed` are the Kubernetes Node names that went, in any order.
pub fn membership_token<'a>(
    daemon_set_uid: &str,
    previous_token: &str,
    removed: impl IntoIterator<Item = &'a str>,
) -> String {
    let mut removed: Vec<&str> = removed.into_iter().collect();
    removed.sort_unstable();
    let target = h32(&removed.join("\0"));
    format!("membership-{}", h32(&format!("{daemon_set_uid}\0{previous_token}\0{target}")))
}

/// Whether an activation label value is one of the full operator's fences and no token.
pub fn is_fence(label_value: &str) -> bool {
    label_value == fence::ADOPTION_FENCED || label_value == fence::ADOPTION_QUARANTINE
}

/// Longest name of a GarageNode that the full operator makes.
const GARAGE_NODE_NAME_MAX: usize = 61;

/// Name of the GarageNode of a pair: as it stands where that is a DNS label of at most 61 characters, else shortened and
/// made unique by a hash of the whole.
pub fn garage_node_name(cluster: &str, pool: &PoolName, node: &KubernetesNodeName) -> String {
    let whole = format!("{cluster}-node-local-{pool}-{node}");
    if whole.len() <= GARAGE_NODE_NAME_MAX && is_dns_label(&whole) {
        return whole;
    }
    let suffix = h16(&whole);
    let readable: String =
        whole.to_lowercase().replace('.', "-").chars().take(GARAGE_NODE_NAME_MAX - 17).collect();
    format!("{}-{suffix}", readable.trim_end_matches('-'))
}

/// Value of the label `kubernetes-node`: the Node's name where that is a label value (at most 63 characters), else a hash.
pub fn kubernetes_node_label_value(node: &KubernetesNodeName) -> String {
    // A DNS subdomain has only characters that a label value may have; only its length can be too much.
    if node.as_str().len() <= 63 {
        return node.to_string();
    }
    format!("sha256-{}", h(node.as_str(), 24))
}

/// Name of a pool's DaemonSet.
pub fn daemon_set_name(cluster: &str, pool: &PoolName) -> String {
    format!("{cluster}-storage-{pool}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn site_a() -> ClusterId {
        ClusterId::new("objects", "site-a", "2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c")
    }
    fn pool() -> PoolName {
        "fast".parse().unwrap()
    }
    fn node(name: &str) -> KubernetesNodeName {
        name.parse().unwrap()
    }

    #[test]
    fn the_activation_label_depends_on_the_uid_and_has_52_characters_after_the_slash() {
        let key = site_a().activation_label(&pool());
        assert_eq!(key, "garage.rajsingh.info/gc-f9cd9413b7e1ed0a-node-local-pool-115dc3606fbf8691");
        assert_eq!(key.len() - PREFIX.len(), 52);
        assert!(key.starts_with(&site_a().activation_label_prefix()));
    }

    #[test]
    fn identity_and_claim_keys_do_not_depend_on_the_uid() {
        for cluster in [site_a(), ClusterId { uid: "another".to_owned(), ..site_a() }] {
            let identity = cluster.identity_annotation(&pool());
            let claim = cluster.host_path_claim_annotation(&pool());
            assert_eq!(
                identity,
                "garage.rajsingh.info/gc-5572c0d0d2fcde6b-node-local-pool-115dc3606fbf8691-node-id"
            );
            assert_eq!(
                claim,
                "garage.rajsingh.info/gc-5572c0d0d2fcde6b-node-local-115dc3606fbf8691-hostpath-claim"
            );
            assert_eq!((identity.len() - PREFIX.len(), claim.len() - PREFIX.len()), (60, 62));
            assert!(
                identity.starts_with(&cluster.record_prefix()) && claim.starts_with(&cluster.record_prefix())
            );
        }
    }

    #[test]
    fn the_first_token_comes_from_the_daemon_set_uid() {
        let token = workload_token("7d9a1f34-52c8-4e0b-9a67-3c1b2d4e5f60");
        assert_eq!(token, "workload-b3c96c765129f7ca88d39d5d8ec7127e");
        assert_eq!(h32("kn-3"), "c6720ee09d32f7992dfb9ec9cf6cc777");
        let after = membership_token("7d9a1f34-52c8-4e0b-9a67-3c1b2d4e5f60", &token, ["kn-3"]);
        assert_eq!(after, "membership-8963b816e1cab46e108620539f5cd2c2");
    }

    #[test]
    fn a_membership_token_does_not_depend_on_the_order_of_the_removed() {
        let token = |names: [&str; 2]| membership_token("u", "t", names);
        assert_eq!(token(["kn-2", "kn-3"]), token(["kn-3", "kn-2"]));
    }

    #[test]
    fn fences_are_no_tokens() {
        assert!(is_fence("rollout-adoption-fenced") && is_fence("rollout-adoption-quarantine"));
        assert!(!is_fence("true") && !is_fence("workload-b3c96c765129f7ca88d39d5d8ec7127e"));
    }

    #[test]
    fn a_garage_node_is_named_after_its_pair() {
        assert_eq!(garage_node_name("site-a", &pool(), &node("kn-1")), "site-a-node-local-fast-kn-1");
        let long = garage_node_name("site-a", &pool(), &node("kn-1.rack.example.net"));
        assert_eq!(long, "site-a-node-local-fast-kn-1-rack-example-net-a62929e4da3686ca");
        assert_eq!(long.len(), 61);
    }

    #[test]
    fn a_node_name_too_long_for_a_label_value_is_hashed() {
        assert_eq!(kubernetes_node_label_value(&node("kn-1")), "kn-1");
        let long = node("kn-1.a-rather-long-site-name-for-one-machine.of-the-example.example.net");
        assert_eq!(kubernetes_node_label_value(&long), "sha256-90efe3bd74a4676c1018e10a");
    }

    #[test]
    fn a_daemon_set_is_named_after_its_pool() {
        assert_eq!(daemon_set_name("site-a", &pool()), "site-a-storage-fast");
    }

    #[test]
    fn the_role_tags_stand_in_the_full_operators_order() {
        let tags =
            site_a().role_tags(&pool(), &node("kn-1"), ["row:7", "tier:mine"], Some("10.20.1.11:3901"));
        assert_eq!(
            serde_json::to_string(&tags).unwrap(),
            r#"["cluster:site-a/objects","cluster-uid:2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c","tier:storage","node-local-pool:fast","kubernetes-node:kn-1","row:7","rpc-address:10.20.1.11:3901"]"#
        );
    }

    #[test]
    fn the_operators_own_tokens_are_named_after_the_uid() {
        assert_eq!(site_a().operator_token_secret(), "site-a-operator-0390858e");
        assert_eq!(site_a().metrics_token_secret(), "site-a-metrics-0390858e");
    }
}
