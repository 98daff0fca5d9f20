//! Passes one by one, as the loop makes them but without its queue: for the benchmarks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_crds::v1beta2::GarageCluster;
use kube::Client;
use kube::runtime::reflector::Store;
use tokio::task::JoinSet;

use super::{Error, Metrics, Settings, Shared, reconcile_one};
use crate::caches::{self, Wakes};
use crate::garage::{Deadlines, Http};
use crate::lease::Leadership;

/// A reconciler whose passes somebody else begins.
pub struct Passes {
    shared: Arc<Shared>,
    clusters: Store<GarageCluster>,
    _wakes: Wakes,
    _watches: JoinSet<&'static str>,
}

impl Passes {
    /// Fills the caches.
    ///
    /// # Errors
    /// What could not be listed.
    pub async fn start(client: Client, settings: Settings, metrics: Metrics) -> Result<Self, String> {
        let http = Http::new(Deadlines::default()).map_err(|error| error.to_string())?;
        let mut watches = JoinSet::new();
        let (clusters, stores, mut wakes) = caches::start(&client, None, &mut watches);
        caches::filled(&clusters, &stores, &mut wakes, Duration::from_secs(120)).await?;
        let leadership = Leadership::always();
        let shared =
            Shared { client, http, stores, settings, leadership, metrics, memories: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), clusters, _wakes: wakes, _watches: watches })
    }

    /// The clusters that are there.
    pub fn clusters(&self) -> Vec<Arc<GarageCluster>> {
        self.clusters.state()
    }

    /// One pass over `cluster`.
    ///
    /// # Errors
    /// As the loop would log it.
    pub async fn pass(&self, cluster: Arc<GarageCluster>) -> Result<(), Error> {
        reconcile_one(cluster, self.shared.clone()).await.map(|_| ())
    }
}
