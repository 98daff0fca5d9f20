//! Admission and conversion webhook server for `garage.rajsingh.info` (`architecture.md`, "Webhook server").
//!
//! # How to serve
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use holdfast_webhook::{CertSlot, Config, KubeLookups, Server};
//! # async fn wire(client: kube::Client, nodes: kube::runtime::reflector::Store<kube::core::DeserializeGuard<holdfast_crds::node::GarageNode>>) -> Result<(), holdfast_webhook::Error> {
//! // Somebody else fills and swaps this slot; the server only reads it.
//! let slot = Arc::new(arc_swap::ArcSwapOption::<rustls::sign::CertifiedKey>::empty());
//! let mut registry = prometheus_client::registry::Registry::with_prefix("garage_holdfast");
//! let lookups = Arc::new(KubeLookups::new(client, vec![nodes], std::time::Duration::from_secs(2)));
//! let shutdown = tokio_util::sync::CancellationToken::new();
//!
//! let server = Server::bind(Config::new(([0, 0, 0, 0], 9443).into()), CertSlot::new(slot), lookups, &mut registry)?;
//! let readiness = server.readiness(); // for /readyz on another port
//! server.run(shutdown).await?; // returns after the drain
//! # let _ = readiness;
//! # Ok(())
//! # }
//! ```
//!
//! [`serve`] does both steps in one call; [`Server::run_here`] serves on a thread that does nothing else.
//!
//! # What the webhook configuration must say
//!
//! - [`CLUSTER_PATH`]: `garageclusters`, `CREATE` and `UPDATE`, `apiVersions: [v1beta1, v1beta2]`. With both listed
//!   each request comes in the version that the client wrote, so that V12 compares the carriers byte for byte;
//!   with v1beta2 alone it still works, on the tiers that the carriers became. Match condition (any annotation,
//!   since the size of all of them counts):
//!   ```text
//!   oldObject == null
//!     ? has(object.metadata.annotations) || has(object.spec.gateway) || object.?spec.?storage.?nodeLocalPools.hasValue()
//!     : object.metadata.?annotations != oldObject.metadata.?annotations
//!       || object.?spec.?gateway != oldObject.?spec.?gateway
//!       || object.?spec.?storage.?nodeLocalPools != oldObject.?spec.?storage.?nodeLocalPools
//!   ```
//! - [`NODE_PATH`]: `garagenodes` and `garagenodes/status`, `CREATE` and `UPDATE`, `apiVersions: [v1beta1]`. Match
//!   condition, with `PIN` for `'garage.rajsingh.info/node-local-pool-recovery-node-id'`:
//!   ```text
//!   oldObject == null
//!     ? object.metadata.?annotations[?PIN].hasValue()
//!     : object.metadata.?annotations[?PIN] != oldObject.metadata.?annotations[?PIN]
//!       || object.?status.?nodeId != oldObject.?status.?nodeId
//!   ```
//! - [`CONVERT_PATH`]: the conversion stanza of the GarageCluster CRD, review version `v1`.
//! - `failurePolicy: Fail`, `timeoutSeconds: 5`, `sideEffects: None`, `admissionReviewVersions: [v1]`.
//!
//! `/convert` needs neither leadership, nor Garage, nor a cache, nor the API server.

mod admission;
mod body;
mod cert;
mod config;
mod connection;
mod conversion;
mod limits;
mod lookup;
mod metrics;
mod route;
mod server;
mod spans;
mod uid;

pub use admission::NoLookups;
pub use cert::CertSlot;
pub use config::Config;
pub use lookup::{KubeLookups, Lookups, member};
pub use route::{CLUSTER_PATH, CONVERT_PATH, NODE_PATH};
pub use server::{Error, Readiness, Server, serve};
pub use spans::SPANS;
