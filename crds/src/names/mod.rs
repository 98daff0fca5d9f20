//! Every name that this product shares with the cluster: annotations, labels, tags, finalizers, and the names that are
//! computed from others. They are the full operator's, so that both understand each other's objects (`behaviour.md`
//! sections 2 and 3, `compat.md` section 1). Nothing else in the product writes such a string.

mod claim;
mod computed;
mod config;

pub use claim::{ClaimError, HostPathClaim, clean_path};
pub use computed::{
    ClusterId, daemon_set_name, garage_node_name, h16, h32, is_fence, kubernetes_node_label_value,
    membership_token, sha256_hex, workload_token,
};
pub use config::{
    DiskLayout, DiskLayoutPath, StaticCredential, config_hash, config_hash_with_token, parse_rpc_secret,
    pool_config_base_name, pool_config_name, rpc_fingerprint, shared_config_name, static_credentials_name,
    static_credentials_revision,
};

/// The API group.
pub const GROUP: &str = "garage.rajsingh.info";
/// The prefix of every label and annotation of the group, slash included.
pub const PREFIX: &str = "garage.rajsingh.info/";
/// Who writes, for server-side apply and patches.
pub const FIELD_MANAGER: &str = "garage-holdfast";

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = $suffix:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = concat!("garage.rajsingh.info/", $suffix);)*
        /// All keys of this module.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

/// Annotation keys.
pub mod annotation {
    /// What a person or a GitOps tool sets on a GarageCluster, and the reserved transport of conversion.
    pub mod cluster {
        keys! {
            /// Any token of at most 253 characters; one not handled yet requests one full proof.
            VERIFY_REDUNDANCY = "verify-redundancy";
            /// `pool/kubernetes-node`: hold this member out of service while present.
            OUT_OF_SERVICE = "node-local-out-of-service";
            /// `pool/kubernetes-node/old-64-hex-id`: authorizes replacing exactly that identity, once.
            REPLACE_IDENTITY = "node-local-replace-identity";
            /// Conversion: JSON array of `spec.storage.nodeLocalPools` in a v1beta1 view (C3).
            V1BETA2_NODE_LOCAL_POOLS = "v1beta2-node-local-pools";
            /// Conversion: JSON of `spec.gateway` in a v1beta1 view (C3).
            V1BETA2_GATEWAY_TIER = "v1beta2-gateway-tier";
            /// Conversion: comma list of what a v1beta1 view cannot show (C3).
            V1BETA2_ONLY = "v1beta2-only";
            /// Conversion: JSON object of JSON pointers to values without a place in the other version (C4).
            HOLDFAST_CARRIED = "holdfast-carried";
            /// `factor=N[,force]`: another operator's factor migration is asked for (P15).
            PURGE_CLUSTER_LAYOUT = "purge-cluster-layout";
            /// SHA-256 of the 32 raw bytes of the RPC secret; on the Secret and on the GarageCluster.
            RPC_IDENTITY_SHA256 = "rpc-identity-sha256";
            /// `ns/secret:key` that a copied RPC secret came from.
            RPC_IDENTITY_SOURCE = "rpc-identity-source";
            /// Name of the static credentials Secret in use.
            STATIC_CREDENTIALS_SECRET = "static-credentials-secret";
            /// Its revision.
            STATIC_CREDENTIALS_REVISION = "static-credentials-revision";
            /// Where its values came from.
            STATIC_CREDENTIALS_SOURCES = "static-credentials-sources";
        }
        /// The component of [`V1BETA2_ONLY`] that says that a gateway tier is carried.
        pub const GATEWAY_TIER_PRESENT: &str = "gateway-tier-present";
        /// The component of [`V1BETA2_ONLY`] that says that node-local pools are carried.
        pub const NODE_LOCAL_POOLS_PRESENT: &str = "node-local-pools-present";
    }

    /// On a GarageNode.
    pub mod node {
        keys! {
            /// The recovery pin: 64 hex characters (V10).
            RECOVERY_PIN = "node-local-pool-recovery-node-id";
            /// The exact Kubernetes Node name; on a Pod too.
            KUBERNETES_NODE = "kubernetes-node";
            /// `"true"`: this member is being drained by another operator (P15).
            DRAIN = "drain";
            /// The identity whose loss a person acknowledged; with a drain the member is another operator's to handle.
            ACKNOWLEDGE_LOST_SOURCE = "acknowledge-lost-source";
            /// Another operator's work on this node is suspended.
            OPERATOR_SUSPENDED = "operator-suspended";
        }
    }

    /// On a DaemonSet, its Pods and the configuration they mount.
    pub mod workload {
        keys! {
            /// The key of the activation label that the DaemonSet selects.
            ACTIVATION_LABEL = "node-local-pool-activation-label";
            /// Its current token (not recomputed from the uid).
            ACTIVATION_VALUE = "node-local-pool-activation-value";
            /// The disk layout, compact JSON.
            DISK_LAYOUT = "storage-disk-layout";
            /// SHA-256 of garage.toml; 64 hex characters; on a Pod.
            CONFIG_HASH = "config-hash";
            /// 16 hex characters, of the full operator's own form; on a Pod. Never compared by us.
            POD_SPEC_HASH = "pod-spec-hash";
            /// On a ConfigMap: its name without the content's hash.
            CONFIG_BASE_NAME = "garage-config-base-name";
            /// `"true"` on a configuration that is a Secret.
            SENSITIVE_CONFIG = "sensitive-garage-config";
            /// A fence of the full operator's; tolerated.
            ROLLOUT_ADOPTION_FENCE = "rollout-adoption-fence";
            /// A fence of the full operator's; tolerated.
            MEMBERSHIP_FENCE = "node-local-pool-membership-fence";
        }
    }
}

/// Label keys.
pub mod label {
    keys! {
        /// The GarageCluster's name. Never on a Pod that is not Garage.
        CLUSTER = "cluster";
        /// `storage` or `gateway`.
        TIER = "tier";
        /// The pool's name.
        NODE_LOCAL_POOL = "node-local-pool";
        /// The Kubernetes Node's name, or its hash where the name is no label value.
        KUBERNETES_NODE = "kubernetes-node";
        /// `node-local` on everything of a pool.
        STORAGE_GROUP = "storage-group";
        /// `"true"` on the immutable copy of the static credentials.
        STATIC_CREDENTIALS_SNAPSHOT = "static-credentials-snapshot";
        /// Reserved on Pods.
        NODE = "node";
        /// Reserved on Pods.
        SCALE_TARGET = "scale-target";
    }
    /// Value of [`TIER`].
    pub const TIER_STORAGE: &str = "storage";
    /// Value of [`TIER`].
    pub const TIER_GATEWAY: &str = "gateway";
    /// Value of [`STORAGE_GROUP`].
    pub const STORAGE_GROUP_NODE_LOCAL: &str = "node-local";

    /// Kubernetes' recommended label: the application.
    pub const APP_NAME: &str = "app.kubernetes.io/name";
    /// Kubernetes' recommended label: the cluster's name.
    pub const APP_INSTANCE: &str = "app.kubernetes.io/instance";
    /// Kubernetes' recommended label.
    pub const APP_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Kubernetes' recommended label.
    pub const APP_COMPONENT: &str = "app.kubernetes.io/component";
    /// Value of [`APP_NAME`].
    pub const APP_NAME_GARAGE: &str = "garage";
    /// Value of [`APP_MANAGED_BY`] on a workload.
    pub const MANAGED_BY_WORKLOAD: &str = "garage-operator";
    /// Value of [`APP_MANAGED_BY`] on a GarageNode; another one than on a workload.
    pub const MANAGED_BY_NODE: &str = "operator";
}

/// The gate that a pool Pod is created with and that comes off when its Node may run it.
pub const SCHEDULING_GATE: &str = "garage.rajsingh.info/node-local-pool-activation";

/// Finalizers of the full operator. It adds both and alone removes them.
pub mod finalizer {
    /// On a GarageCluster.
    pub const GARAGE_CLUSTER: &str = "garagecluster.garage.rajsingh.info/finalizer";
    /// On a GarageNode.
    pub const GARAGE_NODE: &str = "garagenode.garage.rajsingh.info/finalizer";
}

/// Leases.
pub mod lease {
    /// Of this product's leader.
    pub const HOLDFAST: &str = "garage-holdfast";
    /// Of the full operator's leader: never taken by us.
    pub const FULL_OPERATOR: &str = "150a9873.garage.rajsingh.info";
}

/// Activation label values that are not tokens in the full operator's eyes.
pub mod fence {
    /// A DaemonSet is born with it.
    pub const ADOPTION_FENCED: &str = "rollout-adoption-fenced";
    /// A Node in quarantine.
    pub const ADOPTION_QUARANTINE: &str = "rollout-adoption-quarantine";
    /// The token of old releases; also what a DaemonSet without the value annotation means.
    pub const OLD_TOKEN: &str = "true";
}

/// Prefixes of layout role tags.
pub mod tag {
    /// `cluster:<name>/<namespace>`.
    pub const CLUSTER: &str = "cluster:";
    /// `cluster-uid:<uid>`.
    pub const CLUSTER_UID: &str = "cluster-uid:";
    /// `tier:storage` or `tier:gateway`.
    pub const TIER: &str = "tier:";
    /// `node-local-pool:<pool>`.
    pub const NODE_LOCAL_POOL: &str = "node-local-pool:";
    /// `kubernetes-node:<node>`.
    pub const KUBERNETES_NODE: &str = "kubernetes-node:";
    /// `rpc-address:<host:port>`.
    pub const RPC_ADDRESS: &str = "rpc-address:";
    /// All six: user tags with one of them are dropped.
    pub const RESERVED: [&str; 6] =
        [CLUSTER, CLUSTER_UID, TIER, NODE_LOCAL_POOL, KUBERNETES_NODE, RPC_ADDRESS];

    /// Whether a user may not give this tag.
    pub fn is_reserved(tag: &str) -> bool {
        RESERVED.iter().any(|prefix| tag.starts_with(prefix))
    }
}

/// Kubernetes' own names that rules mention.
pub mod kubernetes {
    /// The taint that says that a machine is off (H3).
    pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
}
