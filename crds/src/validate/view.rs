//! The few parts of an object that the rules read, taken from JSON without building the rest.
//!
//! A review carries whole objects, often twice; the rules look at some annotations, some fields of `spec` and
//! two of `status`. Everything else is skipped by the parser and never copied. The same views can be filled from
//! typed objects, so that the reconciler judges by the same functions.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::convert::Version;
use crate::names::annotation::{cluster as key, node as node_key};
use crate::status::{NodeLocalService, ServiceOperation, ServicePhase};

/// Why a request or object could not be read. The text never holds a value of the payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The JSON is broken or of another shape; where, in what was being read.
    #[error("{what} cannot be read: {} at line {line} column {column}", if *.syntax { "not JSON" } else { "JSON of another shape" })]
    Json {
        /// What was being read.
        what: &'static str,
        /// Broken JSON, not only another shape.
        syntax: bool,
        /// Line within it, from 1.
        line: usize,
        /// Column within it, from 1.
        column: usize,
    },
    /// The object's `apiVersion` is none that is judged here.
    #[error("{what} has an apiVersion that is not known here; {known} is")]
    Version {
        /// What was being read.
        what: &'static str,
        /// What would have been understood.
        known: &'static str,
    },
    /// The operation needs an object that is absent or null.
    #[error("{what} is absent or null, and this operation needs it")]
    Missing {
        /// What is absent.
        what: &'static str,
    },
}

impl Unreadable {
    /// Keeps the place, drops the text: serde quotes values of the payload in it.
    pub fn from_json(what: &'static str, error: &serde_json::Error) -> Self {
        Self::Json {
            what,
            syntax: matches!(
                error.classify(),
                serde_json::error::Category::Syntax | serde_json::error::Category::Eof
            ),
            line: error.line(),
            column: error.column(),
        }
    }
}

/// The annotations that rules read, and the size of all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Annotations<'a> {
    /// `node-local-out-of-service`.
    pub hold: Option<Cow<'a, str>>,
    /// `node-local-replace-identity`.
    pub replace: Option<Cow<'a, str>>,
    /// `verify-redundancy`.
    pub verify: Option<Cow<'a, str>>,
    /// `node-local-pool-recovery-node-id`, the pin of a GarageNode.
    pub pin: Option<Cow<'a, str>>,
    /// `v1beta2-node-local-pools`.
    pub pools_carrier: Option<Cow<'a, str>>,
    /// `v1beta2-gateway-tier`.
    pub gateway_carrier: Option<Cow<'a, str>>,
    /// `holdfast-carried`.
    pub carried: Option<Cow<'a, str>>,
    /// `v1beta2-only`.
    pub marker: Option<Cow<'a, str>>,
    /// Bytes of all keys and values, as Kubernetes counts them against 262144.
    pub bytes: usize,
}

impl<'a> Annotations<'a> {
    /// Takes one annotation in; `false` when a name that is read here was there before.
    pub fn insert(&mut self, name: &str, value: Cow<'a, str>) -> bool {
        self.bytes += name.len() + value.len();
        let slot = match name {
            key::OUT_OF_SERVICE => &mut self.hold,
            key::REPLACE_IDENTITY => &mut self.replace,
            key::VERIFY_REDUNDANCY => &mut self.verify,
            node_key::RECOVERY_PIN => &mut self.pin,
            key::V1BETA2_NODE_LOCAL_POOLS => &mut self.pools_carrier,
            key::V1BETA2_GATEWAY_TIER => &mut self.gateway_carrier,
            key::HOLDFAST_CARRIED => &mut self.carried,
            key::V1BETA2_ONLY => &mut self.marker,
            _ => return true,
        };
        slot.replace(value).is_none()
    }

    /// From a typed object's annotations.
    pub fn from_pairs<'b: 'a>(pairs: impl IntoIterator<Item = (&'b str, &'b str)>) -> Self {
        let mut all = Self::default();
        for (name, value) in pairs {
            all.insert(name, Cow::Borrowed(value));
        }
        all
    }
}

/// A string that borrows from the JSON where it holds no escape.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Annotations<'a> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Annotations<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Annotations::default();
                while let Some(name) = map.next_key::<Text<'de>>()? {
                    let value = map.next_value::<Option<Text<'de>>>()?.map_or(Cow::Borrowed(""), |t| t.0);
                    if !all.insert(&name.0, value) {
                        return Err(de::Error::custom("an annotation appears twice"));
                    }
                }
                Ok(all)
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// `status.nodeLocalService`, as far as admission reads it. Words it does not know count as unfinished.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// The pool.
    pub pool: String,
    /// The Kubernetes Node.
    pub kubernetes_node: String,
    /// `OutOfService` or `ReplaceIdentity`.
    pub operation: String,
    /// The phase.
    pub phase: String,
    /// `replacement.oldNodeId`.
    pub old_node_id: Option<String>,
    /// `replacement.newNodeId`.
    pub new_node_id: Option<String>,
}

impl Service {
    /// Whether it stands at its end: `InService` or `Completed`.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase.as_str(), "InService" | "Completed")
    }

    /// Whether a replacement is between its layout version and its last pin (V7). An unknown phase counts.
    pub fn is_mid_way(&self) -> bool {
        self.operation == "ReplaceIdentity" && !matches!(self.phase.as_str(), "Waiting" | "Completed")
    }

    /// The pair, as messages write it.
    pub fn pair(&self) -> String {
        format!("{}/{}", self.pool, self.kubernetes_node)
    }
}

impl From<&NodeLocalService> for Service {
    fn from(service: &NodeLocalService) -> Self {
        let replacement = service.replacement.as_ref();
        Self {
            pool: service.pool.clone(),
            kubernetes_node: service.kubernetes_node.clone(),
            operation: match service.operation {
                ServiceOperation::OutOfService => "OutOfService",
                ServiceOperation::ReplaceIdentity => "ReplaceIdentity",
            }
            .to_owned(),
            phase: match service.phase {
                ServicePhase::Waiting => "Waiting",
                ServicePhase::Deactivating => "Deactivating",
                ServicePhase::Terminating => "Terminating",
                ServicePhase::OutOfService => "OutOfService",
                ServicePhase::Restoring => "Restoring",
                ServicePhase::InService => "InService",
                ServicePhase::Applying => "Applying",
                ServicePhase::Settling => "Settling",
                ServicePhase::RepairingPins => "RepairingPins",
                ServicePhase::Completed => "Completed",
            }
            .to_owned(),
            old_node_id: replacement.map(|r| r.old_node_id.to_string()),
            new_node_id: replacement.and_then(|r| r.new_node_id).map(|id| id.to_string()),
        }
    }
}

/// The parts of a GarageCluster that rules read, the same for both versions.
#[expect(clippy::struct_excessive_bools, reason = "each is one fact of an object, read on its own")]
#[derive(Debug, Clone)]
pub struct ClusterView<'a> {
    /// The version of this body; not always the one that the client addressed.
    pub version: Version,
    /// `metadata.namespace`.
    pub namespace: Cow<'a, str>,
    /// `metadata.name`.
    pub name: Cow<'a, str>,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// What rules read of `metadata.annotations`.
    pub annotations: Annotations<'a>,
    /// There is a storage tier (C2 for v1beta1).
    pub storage: bool,
    /// `spec.connectTo` is set.
    pub connect_to: bool,
    /// `spec.remoteClusters` is not empty.
    pub remote_clusters: bool,
    /// `status.redundancy.coordination` is there: the layout holds roles of other sites (F4).
    pub other_sites: bool,
    /// `spec.layoutManagement.siteRole` is `Follower`.
    pub follower: bool,
    /// `spec.replication.factor`; absent means 3.
    pub factor: i64,
    /// `spec.replication.consistencyMode`; absent means `consistent`.
    pub consistency_mode: Cow<'a, str>,
    /// Names in `nodeLocalPools`, from the carrier in v1beta1.
    pub pools: Vec<Cow<'a, str>>,
    /// `spec.workers.resyncTranquility`.
    pub resync_tranquility: Option<i64>,
    /// The storage tier has a `podDisruptionBudget` that is not switched off.
    pub disruption_budget: bool,
    /// `status.nodeLocalService`.
    pub service: Option<Service>,
    /// The texts that V12 compares; absent when the view was not read from JSON.
    pub raw: Option<RawCluster<'a>>,
}

impl Default for ClusterView<'_> {
    /// A v1beta2 object without a spec.
    fn default() -> Self {
        Self {
            version: Version::V1beta2,
            namespace: Cow::default(),
            name: Cow::default(),
            deleting: false,
            annotations: Annotations::default(),
            storage: false,
            connect_to: false,
            remote_clusters: false,
            other_sites: false,
            follower: false,
            factor: 3,
            consistency_mode: Cow::Borrowed("consistent"),
            pools: Vec::new(),
            resync_tranquility: None,
            disruption_budget: false,
            service: None,
            raw: None,
        }
    }
}

/// Texts of a GarageCluster as it was sent.
#[derive(Debug, Clone, Copy)]
pub struct RawCluster<'a> {
    /// The whole object.
    pub object: &'a str,
    /// Bytes of `spec`.
    pub spec_bytes: usize,
    /// v1beta2: `spec.storage` is there.
    pub storage: bool,
    /// v1beta2: `spec.storage.nodeLocalPools`.
    pub pools: Option<&'a str>,
    /// v1beta2: `spec.gateway`.
    pub gateway: Option<&'a str>,
}

/// The parts of a GarageNode that rules read.
#[derive(Debug, Clone, Default)]
pub struct NodeView<'a> {
    /// `metadata.namespace`.
    pub namespace: Cow<'a, str>,
    /// `metadata.name`.
    pub name: Cow<'a, str>,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The recovery pin.
    pub pin: Option<Cow<'a, str>>,
    /// `spec.clusterRef.name`.
    pub cluster: Cow<'a, str>,
    /// `spec.clusterRef.namespace`, where it is another than the object's own.
    pub foreign_namespace: bool,
    /// `spec.backing` is `NodeLocalPool`.
    pub pool_backed: bool,
    /// `spec.nodeLocalPoolName`.
    pub pool: Cow<'a, str>,
    /// `spec.kubernetesNodeName`.
    pub kubernetes_node: Cow<'a, str>,
    /// `status.nodeId`; empty counts as absent.
    pub node_id: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
    deletion_timestamp: Option<IgnoredAny>,
    #[serde(borrow)]
    annotations: Option<Annotations<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a, Status> {
    #[serde(borrow)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    metadata: Option<Meta<'a>>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClusterSpec<'a> {
    #[serde(borrow)]
    storage: Option<StorageSpec<'a>>,
    #[serde(borrow)]
    gateway: Option<&'a RawValue>,
    replicas: Option<i64>,
    connect_to: Option<IgnoredAny>,
    remote_clusters: Option<Vec<IgnoredAny>>,
    #[serde(borrow)]
    replication: Option<Replication<'a>>,
    #[serde(borrow)]
    layout_management: Option<LayoutManagement<'a>>,
    workers: Option<Workers>,
    pod_disruption_budget: Option<DisruptionBudget>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StorageSpec<'a> {
    #[serde(borrow)]
    node_local_pools: Option<&'a RawValue>,
    metadata: Option<IgnoredAny>,
    data: Option<IgnoredAny>,
    pod_disruption_budget: Option<DisruptionBudget>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Replication<'a> {
    factor: Option<i64>,
    #[serde(borrow)]
    consistency_mode: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LayoutManagement<'a> {
    #[serde(borrow)]
    site_role: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Workers {
    resync_tranquility: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DisruptionBudget {
    enabled: Option<bool>,
}

#[derive(Deserialize)]
struct Pool<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClusterStatus {
    node_local_service: Option<ServiceStatus>,
    redundancy: Option<RedundancyStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RedundancyStatus {
    coordination: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ServiceStatus {
    pool: Option<String>,
    kubernetes_node: Option<String>,
    operation: Option<String>,
    phase: Option<String>,
    replacement: Option<ReplacementStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReplacementStatus {
    old_node_id: Option<String>,
    new_node_id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeSpec<'a> {
    #[serde(borrow)]
    cluster_ref: Option<ClusterRef<'a>>,
    #[serde(borrow)]
    backing: Option<Cow<'a, str>>,
    #[serde(borrow)]
    node_local_pool_name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    kubernetes_node_name: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClusterRef<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus {
    node_id: Option<String>,
}

fn read<'a, T: Deserialize<'a> + Default>(
    what: &'static str,
    json: Option<&'a str>,
) -> Result<T, Unreadable> {
    json.map_or_else(
        || Ok(T::default()),
        |json| {
            serde_json::from_str::<Option<T>>(json)
                .map(Option::unwrap_or_default)
                .map_err(|e| Unreadable::from_json(what, &e))
        },
    )
}

impl<'a> ClusterView<'a> {
    /// Reads the parts from an object's JSON. `what` names it in an error ("object", "oldObject").
    pub fn from_json(what: &'static str, json: &'a str) -> Result<Self, Unreadable> {
        let object: Object<'a, ClusterStatus> =
            serde_json::from_str(json).map_err(|e| Unreadable::from_json(what, &e))?;
        let version = object
            .api_version
            .as_deref()
            .and_then(Version::from_api_version)
            .ok_or(Unreadable::Version { what, known: "garage.rajsingh.info/v1beta1 or v1beta2" })?;
        let spec_text = object.spec.map(RawValue::get);
        let spec: ClusterSpec<'a> = read(what, spec_text)?;
        let meta = object.metadata.unwrap_or_default();
        let annotations = meta.annotations.unwrap_or_default();
        let storage_here = spec.storage.is_some();
        let storage_spec = spec.storage.unwrap_or_default();

        let budget_on = |b: Option<DisruptionBudget>| b.is_some_and(|b| b.enabled != Some(false));
        let (storage, disruption_budget, pools) = match version {
            Version::V1beta2 => {
                let pools: Vec<Pool<'a>> = read(what, storage_spec.node_local_pools.map(RawValue::get))?;
                let names = pools.into_iter().map(|p| p.name).collect();
                (storage_here, budget_on(storage_spec.pod_disruption_budget), names)
            }
            Version::V1beta1 => {
                let gateway = spec.gateway.is_some_and(|g| g.get() == "true");
                let handle = spec.connect_to.is_some()
                    && spec.replicas.unwrap_or(0) == 0
                    && storage_spec.metadata.is_none()
                    && storage_spec.data.is_none();
                // A damaged carrier is the conversion's to report; here it declares no pool.
                let pools = annotations.pools_carrier.as_deref().map(carried_pool_names).unwrap_or_default();
                (!gateway && !handle, budget_on(spec.pod_disruption_budget), pools)
            }
        };
        let replication = spec.replication.unwrap_or_default();
        let status = object.status.unwrap_or_default();
        Ok(Self {
            version,
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            storage,
            connect_to: spec.connect_to.is_some(),
            remote_clusters: spec.remote_clusters.is_some_and(|r| !r.is_empty()),
            other_sites: status.redundancy.is_some_and(|r| r.coordination.is_some()),
            follower: spec.layout_management.and_then(|l| l.site_role).is_some_and(|r| r == "Follower"),
            factor: replication.factor.unwrap_or(3),
            consistency_mode: replication.consistency_mode.unwrap_or(Cow::Borrowed("consistent")),
            pools,
            resync_tranquility: spec.workers.and_then(|w| w.resync_tranquility),
            disruption_budget,
            service: status.node_local_service.map(Service::from),
            raw: Some(RawCluster {
                object: json,
                spec_bytes: spec_text.map_or(0, str::len),
                storage: storage_here,
                pools: storage_spec.node_local_pools.map(RawValue::get),
                gateway: spec.gateway.map(RawValue::get),
            }),
            annotations,
        })
    }
}

/// The names in a pools carrier, copied: the carrier's text is an escaped string inside the object.
fn carried_pool_names<'a>(carrier: &str) -> Vec<Cow<'a, str>> {
    let pools: Vec<Pool<'_>> = serde_json::from_str(carrier).unwrap_or_default();
    pools.into_iter().map(|p| Cow::Owned(p.name.into_owned())).collect()
}

impl From<ServiceStatus> for Service {
    fn from(status: ServiceStatus) -> Self {
        let replacement = status.replacement.unwrap_or_default();
        Self {
            pool: status.pool.unwrap_or_default(),
            kubernetes_node: status.kubernetes_node.unwrap_or_default(),
            operation: status.operation.unwrap_or_default(),
            phase: status.phase.unwrap_or_default(),
            old_node_id: replacement.old_node_id,
            new_node_id: replacement.new_node_id,
        }
    }
}

impl<'a> NodeView<'a> {
    /// Reads the parts from an object's JSON. `what` names it in an error ("object", "oldObject").
    pub fn from_json(what: &'static str, json: &'a str) -> Result<Self, Unreadable> {
        let object: Object<'a, NodeStatus> =
            serde_json::from_str(json).map_err(|e| Unreadable::from_json(what, &e))?;
        if object.api_version.as_deref() != Some("garage.rajsingh.info/v1beta1") {
            return Err(Unreadable::Version { what, known: "garage.rajsingh.info/v1beta1" });
        }
        let spec: NodeSpec<'a> = read(what, object.spec.map(RawValue::get))?;
        let meta = object.metadata.unwrap_or_default();
        let namespace = meta.namespace.unwrap_or_default();
        let cluster_ref = spec.cluster_ref.unwrap_or_default();
        Ok(Self {
            name: meta.name.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            pin: meta.annotations.and_then(|a| a.pin),
            cluster: cluster_ref.name.unwrap_or_default(),
            foreign_namespace: cluster_ref.namespace.is_some_and(|n| !n.is_empty() && n != namespace),
            pool_backed: spec.backing.is_some_and(|b| b == "NodeLocalPool"),
            pool: spec.node_local_pool_name.unwrap_or_default(),
            kubernetes_node: spec.kubernetes_node_name.unwrap_or_default(),
            node_id: object.status.and_then(|s| s.node_id).filter(|id| !id.is_empty()).map(Cow::Owned),
            namespace,
        })
    }
}
