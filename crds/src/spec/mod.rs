//! Parts of a spec that both versions of GarageCluster, and GarageNode, write in the same way (`compat.md` 6 and 7).
//!
//! An absent field is `None`: the full operator's defaults are in the schema, and where an old object lacks them a method
//! beside the field says what absence means. What is not described here survives in the API server (`preserve-unknown`);
//! a spec is never written back from these types.

mod config;
mod layout;
mod pod;

pub use config::{
    AdminSpec, BlocksSpec, ConsistencyMode, ConsulDiscovery, DatabaseEngine, DatabaseSpec, DiscoverySpec,
    K2vApiSpec, KubernetesDiscovery, LoggingSpec, NetworkSpec, ReplicationSpec, S3ApiSpec, SecretKeyRef,
    SecuritySpec, ServiceSpec, TlsSpec, WebApiSpec, WorkersSpec, ZoneRedundancyMode,
};
pub use layout::{
    ConnectTo, ConnectToClusterRef, DeletionPolicy, DrainSpec, LayoutManagement, LayoutPolicy,
    MaintenanceSpec, RedundancyVerification, RemoteCluster, RemoteConnection, SiteRole,
    UnverifiedPeersPolicy, ZoneFrom,
};
pub use pod::{
    ExtraVolume, HostPathType, LocalSecretRef, PodDisruptionBudgetSpec, PodFields, PvcRetention,
    PvcRetentionPolicy, VolumeSpec, VolumeType,
};
