//! What nobody may see, and everything that somebody sees: to compare the two at the end of a suite.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use crate::bed::Bed;
use crate::error::{Doing as _, Error, Result};
use crate::product::NAMESPACE;
use crate::site::Site;

/// Shorter values are found everywhere by chance.
const SHORTEST: usize = 12;
/// What `kubectl` shows of the bed, Secrets left out.
const KINDS: &str = "garageclusters.garage.rajsingh.info,garagenodes,events,configmaps,pods,daemonsets,deployments,nodes,\
                     leases,services,poddisruptionbudgets,validatingwebhookconfigurations,customresourcedefinitions";

/// Secret values by what they are.
pub type Secrets = BTreeMap<String, String>;
/// Texts by where they were seen.
pub type Shown = BTreeMap<String, String>;

/// Every place in which a secret is seen, in words without the secret: as it is, or in base64.
pub fn leaks(secrets: &Secrets, shown: &Shown) -> Vec<String> {
    use base64::Engine as _;
    let mut found = Vec::new();
    for (what, secret) in secrets {
        let encoded = base64::engine::general_purpose::STANDARD_NO_PAD.encode(secret);
        // The last characters depend on what follows.
        let encoded = &encoded[..encoded.len() - 2];
        for (place, text) in shown {
            if text.contains(secret.as_str()) || text.contains(encoded) {
                found.push(format!("{what} is in {place}"));
            }
        }
    }
    found
}

/// The part of a value by which it is found: of a private key the longest line, since logs break lines.
fn telling(value: &str) -> Option<&str> {
    if value.contains("-----BEGIN CERTIFICATE") {
        return None;
    }
    value.lines().map(str::trim).max_by_key(|line| line.len()).filter(|line| line.len() >= SHORTEST)
}

impl Bed {
    /// Every secret of the bed: the values of all Secrets, the tokens of all service accounts that a Pod got, and the
    /// secret keys of the S3 keys of a site.
    ///
    /// # Errors
    /// Something cannot be read.
    pub async fn secrets(&self, site: &Site) -> Result<Secrets> {
        let mut secrets = Secrets::new();
        let api: Api<Secret> = Api::all(self.client.clone());
        for secret in api.list(&ListParams::default()).await.doing(|| "listing Secrets")? {
            // Helm keeps the chart in one.
            if secret.type_.as_deref() == Some("helm.sh/release.v1") {
                continue;
            }
            let name = format!("Secret {}/{}", secret.namespace().unwrap_or_default(), secret.name_any());
            for (key, value) in secret.data.unwrap_or_default() {
                // Times and the words of a request beside a CA's key.
                let open = key.ends_with("-at") || key == "handled-rotation";
                let value = String::from_utf8_lossy(&value.0).into_owned();
                if let (false, Some(telling)) = (open, telling(&value)) {
                    secrets.insert(format!("{name} {key}"), telling.to_owned());
                }
            }
        }
        for (at, file) in files(&self.root).into_iter().filter(|file| file.ends_with("token")).enumerate() {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            // Its signature is what lets somebody in.
            if let Some(signature) = text.trim().rsplit('.').next().filter(|s| s.len() >= SHORTEST) {
                secrets.insert(format!("service account token {at}"), signature.to_owned());
            }
        }
        let members = site.members(self).await?;
        let first = members.first().ok_or_else(|| Error::other("the site has no Pods"))?;
        for key in site.ask(first, "ListKeys").await?.as_array().into_iter().flatten() {
            let id = key["id"].as_str().unwrap_or_default();
            let info = site.ask(first, &format!("GetKeyInfo?id={id}&showSecretKey=true")).await?;
            if let Some(secret) = info["secretAccessKey"].as_str() {
                secrets.insert(format!("S3 key {id}"), secret.to_owned());
            }
        }
        Ok(secrets)
    }

    /// Everything that the bed produced and somebody may read: all logs (of Pods, of the control plane and of the audit,
    /// which has every status that was written), all objects but Secrets, Events included, and the product's metrics.
    ///
    /// # Errors
    /// Something cannot be read.
    pub async fn shown(&self) -> Result<Shown> {
        let mut shown = Shown::new();
        for file in files(&self.logs) {
            let name = file.strip_prefix(&self.logs).unwrap_or(&file).display().to_string();
            let text = std::fs::read(&file).doing(|| format!("reading {name}"))?;
            shown.insert(format!("log {name}"), String::from_utf8_lossy(&text).into_owned());
        }
        for kind in KINDS.split(',') {
            let text = self.kubectl(&["get", kind, "--all-namespaces", "--output", "json"]).await?;
            shown.insert(format!("the {kind}"), text);
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        for pod in pods.list(&ListParams::default()).await.doing(|| "listing the product's Pods")? {
            let Some(page) = metrics_page(&pod) else { continue };
            let asked = reqwest::Client::new().get(&page).timeout(Duration::from_secs(10)).send().await;
            let failed = |error: reqwest::Error| Error::other(format!("{page}: {error}"));
            shown.insert(
                format!("metrics of {}", pod.name_any()),
                asked.map_err(failed)?.text().await.map_err(failed)?,
            );
        }
        Ok(shown)
    }
}

fn metrics_page(pod: &Pod) -> Option<String> {
    let ip = pod.status.as_ref()?.pod_ip.as_ref()?;
    let containers = &pod.spec.as_ref()?.containers;
    let mut ports = containers.iter().flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some("metrics"))?.container_port;
    Some(format!("http://{ip}:{port}/metrics"))
}

/// All files below a folder; links are not followed.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_secret_is_found_as_it_is_and_in_base64_whatever_stands_around_it() {
        use base64::Engine as _;
        let secrets = Secrets::from([("the token".to_owned(), "token-of-the-bed".to_owned())]);
        let encoded = base64::engine::general_purpose::STANDARD.encode("token-of-the-bed\n");
        let shown = Shown::from([
            ("a".to_owned(), "Bearer token-of-the-bed, and so on".to_owned()),
            ("b".to_owned(), format!("{{\"admin-token\":\"{encoded}\"}}")),
            ("c".to_owned(), "token-of-another-bed".to_owned()),
        ]);
        assert_eq!(leaks(&secrets, &shown), ["the token is in a", "the token is in b"]);
    }

    #[test]
    fn certificates_are_no_secret_and_of_a_key_a_whole_line_is() {
        assert_eq!(telling("-----BEGIN CERTIFICATE-----\nMIIB\n"), None);
        assert_eq!(telling("short"), None);
        let line = "a".repeat(64);
        let key = format!("-----BEGIN PRIVATE KEY-----\n{line}\nabc\n-----END PRIVATE KEY-----\n");
        assert_eq!(telling(&key), Some(line.as_str()));
    }
}
