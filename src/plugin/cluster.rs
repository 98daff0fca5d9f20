//! The one place that talks to the API server.

use std::time::Duration;

use holdfast_crds::node::GarageNode;
use holdfast_crds::v1beta2::GarageCluster;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::cli::Target;
use crate::request::{Plan, patch};
use crate::{Failure, code, print};

/// Deadline of one call.
const DEADLINE: Duration = Duration::from_secs(15);
/// Who writes, in managedFields.
const FIELD_MANAGER: &str = "kubectl-holdfast";

/// A GarageCluster with the GarageNodes of its namespace.
pub struct Site {
    /// The cluster.
    pub cluster: GarageCluster,
    /// GarageNodes; perhaps of other clusters too.
    pub nodes: Vec<GarageNode>,
}

impl Site {
    /// From its objects.
    pub const fn new(cluster: GarageCluster, nodes: Vec<GarageNode>) -> Self {
        Self { cluster, nodes }
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        self.cluster.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// `namespace/name`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.namespace(), self.cluster.metadata.name.as_deref().unwrap_or_default())
    }

    /// How to name it on a command line.
    pub fn arguments(&self) -> String {
        format!(" -n {} {}", self.namespace(), self.cluster.metadata.name.as_deref().unwrap_or_default())
    }

    /// Its own GarageNodes.
    pub fn members(&self) -> impl Iterator<Item = &GarageNode> {
        let name = self.cluster.metadata.name.as_deref().unwrap_or_default();
        self.nodes.iter().filter(move |n| n.belongs_to(name))
    }
}

/// A Kubernetes cluster, and the namespace that is meant.
pub struct Cluster {
    client: Client,
    namespace: String,
}

impl Cluster {
    /// As kubectl would: `--kubeconfig`, `$KUBECONFIG`, `~/.kube/config`, or the Pod that it runs in.
    pub async fn connect(target: &Target) -> Result<Self, Failure> {
        let options = KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
        let mut config = match &target.kubeconfig {
            Some(file) => {
                let kubeconfig = Kubeconfig::read_from(file).map_err(|error| {
                    Failure::error(format!("kubeconfig {} cannot be used: {}", file.display(), all(&error)))
                })?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| {
                    Failure::error(format!("kubeconfig {} cannot be used: {}", file.display(), all(&error)))
                })?
            }
            None if target.context.is_some() => Config::from_kubeconfig(&options)
                .await
                .map_err(|error| Failure::error(format!("the kubeconfig cannot be used: {}", all(&error))))?,
            // This is no Pod for most: what was tried first, its variables and files, is not what is missing.
            None => Config::infer().await.map_err(|error| {
                let why = std::error::Error::source(&error).map_or_else(|| all(&error), all);
                Failure::error(format!("no way to a cluster: {why}; set KUBECONFIG or --kubeconfig"))
            })?,
        };
        config.connect_timeout = Some(Duration::from_secs(10));
        config.default_retry = false;
        let namespace = target.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| {
            Failure::error(format!("the Kubernetes client could not be made: {}", all(&error)))
        })?;
        Ok(Self { client, namespace })
    }

    /// The sites that `status` shows.
    pub async fn sites(&self, name: Option<&str>, all: bool) -> Result<Vec<Site>, Failure> {
        if let Some(name) = name {
            if all {
                return Err(Failure::error("a name and --all-namespaces do not go together; use -n"));
            }
            return Ok(vec![self.site(name).await?]);
        }
        let (clusters, nodes): (Api<GarageCluster>, Api<GarageNode>) = if all {
            (Api::all(self.client.clone()), Api::all(self.client.clone()))
        } else {
            (self.api(), self.api())
        };
        let params = ListParams::default();
        let (found, nodes) = futures::try_join!(
            call("garageclusters", "", async { clusters.list(&params).await }),
            call("garagenodes", "", async { nodes.list(&params).await })
        )?;
        if found.items.is_empty() {
            let place =
                if all { "any namespace".to_owned() } else { format!("namespace {:?}", self.namespace) };
            return Err(Failure::with(
                code::NOTHING,
                format!(
                    "no GarageCluster in {place}; -n names another namespace, `kubectl holdfast status -A` shows all"
                ),
            ));
        }
        Ok(found
            .items
            .into_iter()
            .map(|cluster| {
                let own = nodes.iter().filter(|n| n.metadata.namespace == cluster.metadata.namespace);
                let own = own.cloned().collect();
                Site::new(cluster, own)
            })
            .collect())
    }

    /// One site by its name.
    pub async fn site(&self, name: &str) -> Result<Site, Failure> {
        let (clusters, nodes): (Api<GarageCluster>, Api<GarageNode>) = (self.api(), self.api());
        let params = ListParams::default();
        let (cluster, nodes) = futures::try_join!(
            call("garageclusters", name, async { clusters.get(name).await }),
            call("garagenodes", "", async { nodes.list(&params).await })
        )?;
        Ok(Site::new(cluster, nodes.items))
    }

    /// The name of the only site of the namespace.
    pub async fn only(&self) -> Result<String, Failure> {
        let mut sites = self.sites(None, false).await?;
        match (sites.len(), sites.pop()) {
            (1, Some(site)) => Ok(site.cluster.metadata.name.unwrap_or_default()),
            _ => Err(Failure::error(format!(
                "namespace {:?} has more than one GarageCluster; name one",
                self.namespace
            ))),
        }
    }

    /// Writes a plan's annotation and says so.
    pub async fn perform(&self, site: &Site, plan: &Plan, dry_run: bool) -> Result<(), Failure> {
        for warning in &plan.warnings {
            eprintln!("warning: {warning}");
        }
        let name = site.cluster.metadata.name.as_deref().unwrap_or_default();
        let params =
            PatchParams { dry_run, field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let body = Patch::Merge(patch(site, plan));
        let api: Api<GarageCluster> = self.api();
        call("garageclusters", name, async { api.patch(name, &params, &body).await }).await?;
        let what = match &plan.value {
            Some(value) => format!("{}={value}", plan.key),
            None => format!("{} removed", plan.key),
        };
        let (dry, then) = if dry_run {
            (" (dry run)", "nothing was stored".to_owned())
        } else {
            ("", format!("next: {}", plan.then))
        };
        print(&format!("{}: {}{dry}\n  {what}\n  {then}\n", site.name(), plan.means))
    }

    fn api<K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>>(
        &self,
    ) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// A call with a deadline, and its error in one line.
async fn call<T>(
    resource: &str,
    name: &str,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(explain(resource, name, &error)),
        Err(_) => Err(Failure::error(format!(
            "the API server did not answer within {} s when asked for {resource}",
            DEADLINE.as_secs()
        ))),
    }
}

fn explain(resource: &str, name: &str, error: &kube::Error) -> Failure {
    let kube::Error::Api(status) = error else {
        return Failure::error(format!("the API server could not be asked for {resource}: {}", all(error)));
    };
    let message = one_line(&status.message);
    match status.code {
        // The answer for an object that is not there names it; without the CRDs there is no such answer.
        404 if message.contains("could not find the requested resource")
            || name.is_empty()
            || !message.contains(name) =>
        {
            Failure::error(format!(
                "the API server does not know {resource} of garage.rajsingh.info: install the CRDs, by the chart or with `garage-holdfast crds`"
            ))
        }
        404 => Failure::error(format!(
            "{message}; it was looked for in one namespace: -n names another, `kubectl holdfast status -A` shows all"
        )),
        409 => Failure::error(format!("{name} was changed by somebody else in this moment; run it again")),
        403 if message.contains("admission webhook") => Failure::with(code::ACT, message),
        _ => Failure::error(message),
    }
}

/// An error with its causes, on one line.
fn all(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    one_line(&text)
}

fn one_line(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(600).collect()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn said(code: u16, message: &str, name: &str) -> Failure {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        explain("garageclusters", name, &kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn missing_definitions_are_told_from_a_missing_object() {
        let missing = said(404, "the server could not find the requested resource", "site-a");
        assert!(missing.what.contains("install the CRDs"), "{}", missing.what);
        let absent = said(404, "garageclusters \"site-a\" not found", "site-a");
        assert!(absent.what.starts_with("garageclusters \"site-a\" not found; "), "{}", absent.what);
        assert!(absent.what.contains("-n names another"), "{}", absent.what);
        // The path itself is unknown: the group was never installed.
        let bare = said(404, "404 page not found", "site-a");
        assert!(bare.what.contains("install the CRDs"), "{}", bare.what);
    }

    #[test]
    fn a_refusal_of_a_webhook_is_one_that_a_person_must_act_on() {
        let refused =
            said(403, "admission webhook \"x\" denied the request: V6 (one hold\n at a time)", "site-a");
        assert_eq!(refused.code, code::ACT);
        assert!(!refused.what.contains('\n'));
        assert_eq!(said(403, "garageclusters is forbidden", "site-a").code, code::ERROR);
        assert!(said(409, "conflict", "site-a").what.contains("run it again"));
    }
}
