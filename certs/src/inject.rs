//! The CA bundle in the two places where the API server looks for it: the
//! ValidatingWebhookConfiguration and the conversion stanza of the CRD.
//!
//! Both are read by name and written by server-side apply of `caBundle` alone, so that whoever owns
//! the rest (Helm) never conflicts with us.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::Error;
use crate::manage::{CALL_DEADLINE, deadline};

/// Field manager of these two fields.
pub const FIELD_MANAGER: &str = "garage-holdfast-certs";

/// Where bundles go. A place that is not ours (no CRDs installed by us) is `None`.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Name of the ValidatingWebhookConfiguration.
    pub webhook_configuration: Option<String>,
    /// Name of the CRD.
    pub crd: Option<String>,
}

/// The patch for a webhook configuration whose bundles are not all `bundle`; `None` when they are.
pub fn webhook_patch(current: &ValidatingWebhookConfiguration, bundle: &str) -> Option<Value> {
    let webhooks = current.webhooks.as_deref().unwrap_or_default();
    let right = |b: Option<&ByteString>| b.is_some_and(|b| b.0 == bundle.as_bytes());
    if webhooks.iter().all(|w| right(w.client_config.ca_bundle.as_ref())) {
        return None;
    }
    let encoded = STANDARD.encode(bundle);
    let list: Vec<_> =
        webhooks.iter().map(|w| json!({ "name": w.name, "clientConfig": { "caBundle": encoded } })).collect();
    Some(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": current.metadata.name },
        "webhooks": list,
    }))
}

/// The patch for a CRD whose conversion bundle is not `bundle`; `None` when it is, or when the CRD
/// converts by no webhook (then there is no place for a bundle).
pub fn crd_patch(current: &CustomResourceDefinition, bundle: &str) -> Option<Value> {
    let config = current.spec.conversion.as_ref()?.webhook.as_ref()?.client_config.as_ref()?;
    if config.ca_bundle.as_ref().is_some_and(|b| b.0 == bundle.as_bytes()) {
        return None;
    }
    Some(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": current.metadata.name },
        "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": STANDARD.encode(bundle) } } } },
    }))
}

/// Brings both places to `bundle`. Returns whether both carried it already when read: only then may
/// a rotation go on.
pub async fn ensure(client: &Client, places: &Places, bundle: &str) -> Result<bool, Error> {
    let mut carried = true;
    let params = PatchParams::apply(FIELD_MANAGER).force();
    if let Some(name) = &places.webhook_configuration {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let what = "reading the ValidatingWebhookConfiguration";
        match deadline(what, CALL_DEADLINE, api.get_opt(name)).await? {
            // Its owner has not made it yet, or took it away: nothing to inject, nothing to wait for.
            None => tracing::debug!(name, "no such ValidatingWebhookConfiguration"),
            Some(current) => {
                if let Some(patch) = webhook_patch(&current, bundle) {
                    carried = false;
                    let what = "injecting the bundle into the ValidatingWebhookConfiguration";
                    deadline(what, CALL_DEADLINE, api.patch(name, &params, &Patch::Apply(&patch))).await?;
                    tracing::info!(name, "CA bundle injected into the ValidatingWebhookConfiguration");
                }
            }
        }
    }
    if let Some(name) = &places.crd {
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        match deadline("reading the CRD", CALL_DEADLINE, api.get_opt(name)).await? {
            None => tracing::debug!(name, "no such CustomResourceDefinition"),
            Some(current) => {
                if let Some(patch) = crd_patch(&current, bundle) {
                    carried = false;
                    let what = "injecting the bundle into the CRD";
                    deadline(what, CALL_DEADLINE, api.patch(name, &params, &Patch::Apply(&patch))).await?;
                    tracing::info!(name, "CA bundle injected into the CRD");
                }
            }
        }
    }
    Ok(carried)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn configuration(bundles: &[Option<&str>]) -> ValidatingWebhookConfiguration {
        let webhooks: Vec<_> = bundles
            .iter()
            .enumerate()
            .map(|(i, b)| {
                json!({ "name": format!("w{i}.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
                        "clientConfig": { "caBundle": b.map(|b| STANDARD.encode(b)) } })
            })
            .collect();
        serde_json::from_value(json!({ "metadata": { "name": "c" }, "webhooks": webhooks })).unwrap()
    }

    #[test]
    fn one_stale_bundle_among_right_ones_is_seen_and_every_webhook_is_patched_by_name() {
        assert!(webhook_patch(&configuration(&[Some("new"), Some("new")]), "new").is_none());
        let patch = webhook_patch(&configuration(&[Some("new"), Some("stale")]), "new").unwrap();
        assert_eq!(
            patch["webhooks"][1],
            json!({ "name": "w1.example.com", "clientConfig": { "caBundle": STANDARD.encode("new") } })
        );
        assert!(webhook_patch(&configuration(&[None]), "new").is_some());
    }

    #[test]
    fn a_crd_without_a_conversion_webhook_is_left_alone() {
        let crd = |conversion: Value| -> CustomResourceDefinition {
            serde_json::from_value(
                json!({ "metadata": { "name": "x" }, "spec": { "group": "g", "scope": "Namespaced",
                "names": { "kind": "K", "plural": "ks" }, "versions": [], "conversion": conversion } }),
            )
            .unwrap()
        };
        assert!(crd_patch(&crd(json!({ "strategy": "None" })), "b").is_none());
        let hook = |b: &str| json!({ "strategy": "Webhook", "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": { "caBundle": STANDARD.encode(b) } } });
        assert!(crd_patch(&crd(hook("b")), "b").is_none());
        assert!(crd_patch(&crd(hook("stale")), "b").is_some());
    }
}
