//! The CA bundle in the two places where the API server looks for it: the
//! ValidatingWebhookConfiguration and the conversion stanza of the CRD.
//!
//! Both are read by name and written by server-side apply of `caBundle` alone, so that whoever owns
//! the rest (Helm) never conflicts with us.
//!
//! Two hands write them. The leader keeps them exact ([`Wanted::Exactly`]) and so carries a rotation. Any
//! replica, once when it starts, puts the bundle where the CA of its own certificate is missing
//! ([`Wanted::Trusting`]), and is not ready before it has read it back: where `helm install --wait` ends, the
//! API server trusts the webhooks. A replica that read the Secret just before the leader changed it may so
//! write a bundle that is one step old; the leader's next look repairs it, and leaves are switched only after
//! the newer bundle was read back and had its time to spread.

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

/// What a place must carry.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// This bundle and no other.
    Exactly(&'a str),
    /// Any bundle that has this one certificate (PEM) in it; `bundle` is written where it has not.
    Trusting {
        /// The certificate of the CA that issued what this replica serves with.
        certificate: &'a str,
        /// The whole bundle.
        bundle: &'a str,
    },
}

impl Wanted<'_> {
    pub(crate) fn is_in(&self, carried: Option<&ByteString>) -> bool {
        let Some(ByteString(carried)) = carried else { return false };
        match self {
            Self::Exactly(bundle) => carried == bundle.as_bytes(),
            Self::Trusting { certificate, .. } => {
                std::str::from_utf8(carried).is_ok_and(|bundle| bundle.contains(certificate.trim()))
            }
        }
    }

    pub(crate) const fn bundle(&self) -> &str {
        match self {
            Self::Exactly(bundle) | Self::Trusting { bundle, .. } => bundle,
        }
    }
}

/// What was found at the places, before anything was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// A place carried something else, and was written.
    pub differed: bool,
    /// A place is not there.
    pub absent: bool,
}

/// The patch for a webhook configuration whose bundles are not all as wanted; `None` when they are.
pub fn webhook_patch(current: &ValidatingWebhookConfiguration, wanted: Wanted<'_>) -> Option<Value> {
    let webhooks = current.webhooks.as_deref().unwrap_or_default();
    if webhooks.iter().all(|w| wanted.is_in(w.client_config.ca_bundle.as_ref())) {
        return None;
    }
    let encoded = STANDARD.encode(wanted.bundle());
    let list: Vec<_> =
        webhooks.iter().map(|w| json!({ "name": w.name, "clientConfig": { "caBundle": encoded } })).collect();
    Some(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": current.metadata.name },
        "webhooks": list,
    }))
}

/// The patch for a CRD whose conversion bundle is not as wanted; `None` when it is, or when the CRD
/// converts by no webhook (then there is no place for a bundle).
pub fn crd_patch(current: &CustomResourceDefinition, wanted: Wanted<'_>) -> Option<Value> {
    let config = current.spec.conversion.as_ref()?.webhook.as_ref()?.client_config.as_ref()?;
    if wanted.is_in(config.ca_bundle.as_ref()) {
        return None;
    }
    Some(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": current.metadata.name },
        "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": STANDARD.encode(wanted.bundle()) } } } },
    }))
}

/// Brings both places to what is wanted, and tells what was there.
pub async fn ensure(client: &Client, places: &Places, wanted: Wanted<'_>) -> Result<Found, Error> {
    let mut found = Found::default();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    if let Some(name) = &places.webhook_configuration {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let what = "reading the ValidatingWebhookConfiguration";
        match deadline(what, CALL_DEADLINE, api.get_opt(name)).await? {
            // Its owner has not made it yet, or took it away: nothing to inject.
            None => found.absent = true,
            Some(current) => {
                if let Some(patch) = webhook_patch(&current, wanted) {
                    found.differed = true;
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
            None => found.absent = true,
            Some(current) => {
                if let Some(patch) = crd_patch(&current, wanted) {
                    found.differed = true;
                    let what = "injecting the bundle into the CRD";
                    deadline(what, CALL_DEADLINE, api.patch(name, &params, &Patch::Apply(&patch))).await?;
                    tracing::info!(name, "CA bundle injected into the CRD");
                }
            }
        }
    }
    Ok(found)
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
        assert!(webhook_patch(&configuration(&[Some("new"), Some("new")]), Wanted::Exactly("new")).is_none());
        let patch =
            webhook_patch(&configuration(&[Some("new"), Some("stale")]), Wanted::Exactly("new")).unwrap();
        assert_eq!(
            patch["webhooks"][1],
            json!({ "name": "w1.example.com", "clientConfig": { "caBundle": STANDARD.encode("new") } })
        );
        assert!(webhook_patch(&configuration(&[None]), Wanted::Exactly("new")).is_some());
    }

    #[test]
    fn a_starting_replica_leaves_a_bundle_alone_that_has_its_ca_among_others() {
        let mine = Wanted::Trusting { certificate: "mine\n", bundle: "mine\nnext\n" };
        assert!(webhook_patch(&configuration(&[Some("old\nmine\n"), Some("mine")]), mine).is_none());
        let patch = webhook_patch(&configuration(&[Some("old\nmine\n"), Some("old\n")]), mine).unwrap();
        assert_eq!(patch["webhooks"][1]["clientConfig"]["caBundle"], STANDARD.encode("mine\nnext\n"));
        assert!(webhook_patch(&configuration(&[None]), mine).is_some());
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
        assert!(crd_patch(&crd(json!({ "strategy": "None" })), Wanted::Exactly("b")).is_none());
        let hook = |b: &str| json!({ "strategy": "Webhook", "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": { "caBundle": STANDARD.encode(b) } } });
        assert!(crd_patch(&crd(hook("b")), Wanted::Exactly("b")).is_none());
        assert!(crd_patch(&crd(hook("stale")), Wanted::Exactly("b")).is_some());
    }
}
