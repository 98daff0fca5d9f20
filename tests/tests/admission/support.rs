//! What the tests of this suite share.

use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use holdfast_tests::bed::Bed;
use holdfast_tests::product::NAMESPACE;
use holdfast_tests::webhook_client::WebhookClient;
use holdfast_tests::{Error, Result};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::client::Body;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

/// Name of the chart's ValidatingWebhookConfiguration.
pub const CONFIGURATION: &str = "garage-holdfast-garage-holdfast";
/// Name of the CRD with a conversion stanza.
pub const CRD: &str = "garageclusters.garage.rajsingh.info";
/// The name by which the API server calls the webhooks.
pub const SERVICE: &str = "garage-holdfast.garage-holdfast.svc";

/// Who holds the Lease and never comes.
const NOBODY: &str = "nobody-of-the-admission-suite";

/// Makes a Lease that nobody will renew and no replica takes over: the webhooks must do without a leader.
pub async fn keep_everybody_from_leading(bed: &Bed) -> Result<()> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": NAMESPACE, "namespace": NAMESPACE},
        "spec": {"holderIdentity": NOBODY, "leaseDurationSeconds": 36_000},
    });
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    bed.apply(&holdfast_tests::site::yaml(&[namespace, lease])?).await?;
    Ok(())
}

/// Lets the replicas elect one of them; returns when it leads. Does nothing when one leads already.
pub async fn let_one_lead(bed: &Bed) -> Result<()> {
    let of_nobody = || async {
        let holder = ["-n", NAMESPACE, "get", "lease", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"];
        Ok::<_, Error>(bed.kubectl(&holder).await? == NOBODY)
    };
    if of_nobody().await? {
        bed.kubectl(&["-n", NAMESPACE, "delete", "lease", NAMESPACE]).await?;
    }
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
        Api::namespaced(bed.client.clone(), NAMESPACE);
    let within = std::time::Duration::from_secs(30);
    holdfast_tests::bed::wait::until(leases, "a leader", within, |seen| {
        let holder = seen.get(NAMESPACE).and_then(|lease| lease.spec.as_ref()?.holder_identity.clone());
        holder.filter(|holder| !holder.is_empty()).map(drop).ok_or_else(|| "nobody leads".to_owned())
    })
    .await
}

/// The webhook port of each ready replica, by Pod.
pub async fn replicas(bed: &Bed) -> Result<Vec<(String, SocketAddr)>> {
    let pods: Api<Pod> = Api::namespaced(bed.client.clone(), NAMESPACE);
    let ours = ListParams::default().labels("app.kubernetes.io/name=garage-holdfast");
    let pods = pods.list(&ours).await.map_err(|e| Error::other(format!("listing the replicas: {e}")))?;
    let ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        pod.metadata.deletion_timestamp.is_none()
            && conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
    };
    Ok(pods
        .iter()
        .filter(|pod| ready(pod))
        .filter_map(|pod| {
            let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
            Some((pod.name_any(), SocketAddr::new(ip, 8443)))
        })
        .collect())
}

/// The bundle of one of the two places, as PEM.
pub async fn bundle(bed: &Bed, place: Place) -> Result<Vec<u8>> {
    let path = match place {
        Place::Configuration => "jsonpath={.webhooks[0].clientConfig.caBundle}",
        Place::Crd => "jsonpath={.spec.conversion.webhook.clientConfig.caBundle}",
    };
    let encoded = bed.kubectl(&["get", place.kind(), place.name(), "-o", path]).await?;
    base64::engine::general_purpose::STANDARD
        .decode(encoded.trim())
        .map_err(|e| Error::other(format!("the bundle of the {}: {e}", place.kind())))
}

/// Where a bundle stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The ValidatingWebhookConfiguration.
    Configuration,
    /// The conversion stanza of the CRD.
    Crd,
}

impl Place {
    /// Its kind, as kubectl takes it.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Configuration => "validatingwebhookconfiguration",
            Self::Crd => "crd",
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configuration => CONFIGURATION,
            Self::Crd => CRD,
        }
    }
}

/// A client that trusts what the API server trusts now.
pub async fn webhook_client(bed: &Bed) -> Result<WebhookClient> {
    let bundle = bundle(bed, Place::Configuration).await?;
    WebhookClient::new(&bundle, SERVICE).map_err(|e| Error::other(e.to_string()))
}

/// Does something while no admission webhook is configured, and puts the configuration back as it was.
pub async fn without_admission<T>(bed: &Bed, work: impl Future<Output = Result<T>>) -> Result<T> {
    let saved = bed.kubectl(&["get", Place::Configuration.kind(), CONFIGURATION, "-o", "json"]).await?;
    let mut saved: Value = serde_json::from_str(&saved).map_err(|e| Error::other(e.to_string()))?;
    for field in ["resourceVersion", "uid", "creationTimestamp", "managedFields", "generation"] {
        saved["metadata"].as_object_mut().and_then(|metadata| metadata.remove(field));
    }
    bed.kubectl(&["delete", Place::Configuration.kind(), CONFIGURATION]).await?;
    // The API server goes on for a moment with the configuration that it has read.
    let malformed = probe("default", "not-a-pair");
    until_answer(bed, &malformed, Result::is_ok).await?;
    let done = work.await;
    bed.kubectl_with(&["create", "-f", "-"], Some(&saved.to_string())).await?;
    until_answer(bed, &malformed, |said| said.as_ref().is_err_and(|e| e.to_string().contains("V1"))).await?;
    done
}

/// A GarageCluster with a hold, for a dry run: V1 refuses a malformed one.
pub fn probe(namespace: &str, hold: &str) -> Value {
    json!({
        "apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster",
        "metadata": {
            "name": "probe", "namespace": namespace,
            "annotations": {"garage.rajsingh.info/node-local-out-of-service": hold},
        },
        "spec": {"storage": {"replicas": 0}},
    })
}

/// Repeats a dry run until its answer is as wanted: only the API server knows when it has read a configuration.
async fn until_answer(bed: &Bed, object: &Value, wanted: impl Fn(&Result<String>) -> bool) -> Result<()> {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let said =
            bed.kubectl_with(&["create", "--dry-run=server", "-f", "-"], Some(&object.to_string())).await;
        if wanted(&said) {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            return Err(Error::other(format!("the API server still answers {said:?}")));
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// A request to the API server, answered with JSON; an error has the API server's own message.
pub async fn request(
    client: &kube::Client,
    method: Method,
    path: &str,
    content_type: &str,
    body: Option<&Value>,
) -> Result<Value> {
    let failed = |error: &dyn std::fmt::Display| Error::other(format!("{path}: {error}"));
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .header("accept", "application/json")
        .body(Body::from(body.map(|b| b.to_string().into_bytes()).unwrap_or_default()))
        .map_err(|e| failed(&e))?;
    let response = client.send(request).await.map_err(|e| failed(&e))?;
    let status = response.status();
    let bytes =
        http_body_util::BodyExt::collect(response.into_body()).await.map_err(|e| failed(&e))?.to_bytes();
    let body: Value = serde_json::from_slice(&bytes).map_err(|e| failed(&e))?;
    if status.is_success() {
        return Ok(body);
    }
    Err(failed(&format!("{status} {}", body["message"])))
}

/// Path of the GarageClusters of a namespace in a version.
pub fn clusters(version: &str, namespace: &str) -> String {
    format!("/apis/garage.rajsingh.info/{version}/namespaces/{namespace}/garageclusters")
}

/// GET.
pub async fn get(bed: &Bed, path: &str) -> Result<Value> {
    request(&bed.client, Method::GET, path, "application/json", None).await
}

/// POST.
pub async fn post(client: &kube::Client, path: &str, body: &Value) -> Result<Value> {
    request(client, Method::POST, path, "application/json", Some(body)).await
}
