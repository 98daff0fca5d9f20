//! A cluster at hand for `lint --context`.

use std::borrow::Cow;
use std::time::Duration;

use holdfast_crds::lint::Live;
use holdfast_crds::node::GarageNode;
use holdfast_crds::v1beta2::GarageCluster;
use holdfast_crds::validate::{Fact, Member};
use kube::api::{GetParams, ListParams};
use kube::config::KubeConfigOptions;
use kube::core::Request;
use kube::{Api, Client, Config, Resource};

/// Deadline of one read.
const DEADLINE: Duration = Duration::from_secs(10);

/// Reads from the cluster of one kubeconfig context.
pub struct Cluster {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Cluster {
    /// Prepares the client; the error says what is wrong with the context.
    pub fn connect(context: &str) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("the runtime could not be started: {error}"))?;
        let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
        let client = runtime.block_on(async {
            let mut config = Config::from_kubeconfig(&options)
                .await
                .map_err(|error| format!("context {context:?} of the kubeconfig cannot be used: {error}"))?;
            config.default_retry = false;
            config.connect_timeout = Some(DEADLINE);
            Client::try_from(config).map_err(|error| format!("context {context:?}: {error}"))
        })?;
        Ok(Self { runtime, client })
    }

    /// One read; what cannot be read is unknown, and its rule stays unchecked.
    fn read<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Fact<Option<T>> {
        match self.runtime.block_on(async { tokio::time::timeout(DEADLINE, call).await }) {
            Ok(Ok(value)) => Fact::Known(Some(value)),
            Ok(Err(kube::Error::Api(status))) if status.is_not_found() => Fact::Known(None),
            Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {
                Fact::Unknown(Cow::Borrowed("the cluster does not permit reading it"))
            }
            _ => Fact::Unknown(Cow::Borrowed("the cluster could not be read")),
        }
    }

    fn json<K: Resource<DynamicType = ()>>(&self, namespace: &str, name: &str) -> Fact<Option<String>> {
        let path = K::url_path(&(), Some(namespace));
        match Request::new(path).get(name, &GetParams::default()) {
            Ok(request) => self.read(self.client.request_text(request)),
            Err(_) => Fact::Known(None),
        }
    }
}

impl Live for Cluster {
    fn cluster(&self, namespace: &str, name: &str) -> Fact<Option<String>> {
        self.json::<GarageCluster>(namespace, name)
    }

    fn node(&self, namespace: &str, name: &str) -> Fact<Option<String>> {
        self.json::<GarageNode>(namespace, name)
    }

    fn members(&self, namespace: &str, cluster: &str) -> Fact<Vec<Member>> {
        let api: Api<GarageNode> = Api::namespaced(self.client.clone(), namespace);
        match self.read(async { api.list(&ListParams::default()).await }) {
            Fact::Known(list) => {
                let nodes = list.iter().flat_map(|list| &list.items);
                Fact::Known(
                    nodes.filter_map(|node| holdfast_webhook::member(node, namespace, cluster)).collect(),
                )
            }
            Fact::Unknown(why) => Fact::Unknown(why),
        }
    }
}
