//! A container's environment: pure functions over what was fetched before.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};
use kube::ResourceExt as _;

/// What fields of a Pod can be referred to, beside the object itself.
#[derive(Debug, Clone)]
pub struct Place {
    /// `status.podIP`.
    pub pod_ip: String,
    /// `status.hostIP`.
    pub host_ip: String,
}

/// The objects that a container's environment refers to, by name; `None` where there is none.
#[derive(Debug, Clone, Default)]
pub struct Referred {
    /// Secrets.
    pub secrets: BTreeMap<String, Option<Secret>>,
    /// ConfigMaps.
    pub config_maps: BTreeMap<String, Option<ConfigMap>>,
}

/// Names of the Secrets and of the ConfigMaps that an environment needs.
pub fn references(container: &Container) -> (Vec<String>, Vec<String>) {
    let (mut secrets, mut config_maps) = (Vec::new(), Vec::new());
    for from in container.env_from.iter().flatten() {
        secrets.extend(from.secret_ref.iter().map(|reference| reference.name.clone()));
        config_maps.extend(from.config_map_ref.iter().map(|reference| reference.name.clone()));
    }
    for source in container.env.iter().flatten().filter_map(|var| var.value_from.as_ref()) {
        secrets.extend(source.secret_key_ref.iter().map(|key| key.name.clone()));
        config_maps.extend(source.config_map_key_ref.iter().map(|key| key.name.clone()));
    }
    (secrets, config_maps)
}

/// The environment in the kubelet's order: `base` (image, service variables), `envFrom`, `env`; a later
/// value of a name replaces an earlier one, and `$(NAME)` sees what stands before it.
///
/// Fails with a kubelet's words where a reference leads nowhere, and for sources that no bed has.
pub fn build(
    container: &Container,
    pod: &Pod,
    place: &Place,
    referred: &Referred,
    base: &[(String, String)],
) -> Result<Vec<(String, String)>, String> {
    let mut env = Ordered(base.to_vec());
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &from.secret_ref {
            for (key, value) in secret(referred, &reference.name, reference.optional)? {
                env.set(format!("{prefix}{key}"), value);
            }
        }
        if let Some(reference) = &from.config_map_ref {
            for (key, value) in config_map(referred, &reference.name, reference.optional)? {
                env.set(format!("{prefix}{key}"), value);
            }
        }
    }
    for var in container.env.iter().flatten() {
        let value = match (&var.value, &var.value_from) {
            (_, None) => Some(expand(var.value.as_deref().unwrap_or_default(), &env)),
            (_, Some(source)) => {
                if let Some(field) = &source.field_ref {
                    Some(self::field(pod, place, &field.field_path)?)
                } else if let Some(key) = &source.secret_key_ref {
                    key_of(
                        &secret(referred, &key.name, key.optional)?,
                        "Secret",
                        &key.name,
                        &key.key,
                        key.optional,
                        pod,
                    )?
                } else if let Some(key) = &source.config_map_key_ref {
                    let values = config_map(referred, &key.name, key.optional)?;
                    key_of(&values, "ConfigMap", &key.name, &key.key, key.optional, pod)?
                } else {
                    return Err(format!(
                        "env {}: this source is not supported by the bed's node agent",
                        var.name
                    ));
                }
            }
        };
        if let Some(value) = value {
            env.set(var.name.clone(), value);
        }
    }
    Ok(env.0)
}

/// A field of the Pod by its path, as `fieldRef` and the downward API name it.
pub fn field(pod: &Pod, place: &Place, path: &str) -> Result<String, String> {
    let spec = pod.spec.as_ref();
    Ok(match path {
        "metadata.name" => pod.name_any(),
        "metadata.namespace" => pod.namespace().unwrap_or_default(),
        "metadata.uid" => pod.uid().unwrap_or_default(),
        "metadata.labels" => lines(pod.labels()),
        "metadata.annotations" => lines(pod.annotations()),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => {
            spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default()
        }
        "status.podIP" | "status.podIPs" => place.pod_ip.clone(),
        "status.hostIP" | "status.hostIPs" => place.host_ip.clone(),
        _ => {
            let (map, rest) = if let Some(rest) = path.strip_prefix("metadata.labels['") {
                (pod.labels(), rest)
            } else if let Some(rest) = path.strip_prefix("metadata.annotations['") {
                (pod.annotations(), rest)
            } else {
                return Err(format!("field path {path:?} is not supported by the bed's node agent"));
            };
            let key =
                rest.strip_suffix("']").ok_or_else(|| format!("field path {path:?} is not well formed"))?;
            map.get(key).cloned().unwrap_or_default()
        }
    })
}

/// Replaces `$(NAME)` by the value of a name that stands before; `$$` is one `$`; the rest stays.
pub fn expand(text: &str, env: &Ordered) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            if let Some(value) = env.get(name) {
                out.push_str(value);
            } else {
                out.push_str("$(");
                out.push_str(name);
                out.push(')');
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

/// Names with values, in order, each name once.
#[derive(Debug, Clone, Default)]
pub struct Ordered(pub Vec<(String, String)>);

impl Ordered {
    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Sets a name, in its old place if it had one.
    pub fn set(&mut self, name: String, value: String) {
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }
}

fn lines(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>().join("\n")
}

fn secret(
    referred: &Referred,
    name: &str,
    optional: Option<bool>,
) -> Result<BTreeMap<String, String>, String> {
    match referred.secrets.get(name) {
        Some(Some(secret)) => Ok(secret
            .data
            .iter()
            .flatten()
            .map(|(key, value)| (key.clone(), String::from_utf8_lossy(&value.0).into_owned()))
            .collect()),
        _ if optional == Some(true) => Ok(BTreeMap::new()),
        _ => Err(format!("secret {name:?} not found")),
    }
}

fn config_map(
    referred: &Referred,
    name: &str,
    optional: Option<bool>,
) -> Result<BTreeMap<String, String>, String> {
    match referred.config_maps.get(name) {
        Some(Some(map)) => Ok(map.data.clone().unwrap_or_default()),
        _ if optional == Some(true) => Ok(BTreeMap::new()),
        _ => Err(format!("configmap {name:?} not found")),
    }
}

fn key_of(
    values: &BTreeMap<String, String>,
    kind: &str,
    name: &str,
    key: &str,
    optional: Option<bool>,
    pod: &Pod,
) -> Result<Option<String>, String> {
    match values.get(key) {
        Some(value) => Ok(Some(value.clone())),
        None if optional == Some(true) => Ok(None),
        None => {
            Err(format!("couldn't find key {key} in {kind} {}/{name}", pod.namespace().unwrap_or_default()))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a/b": "c"}},
            "spec": {"nodeName": "kn-1", "containers": []},
        }))
        .unwrap()
    }

    fn place() -> Place {
        Place { pod_ip: "10.77.1.0".to_owned(), host_ip: "10.77.0.10".to_owned() }
    }

    fn built(container: serde_json::Value, referred: &Referred) -> Result<Vec<(String, String)>, String> {
        let container: Container = serde_json::from_value(container).unwrap();
        build(&container, &pod(), &place(), referred, &[("PATH".to_owned(), "/bin".to_owned())])
    }

    #[test]
    fn a_reference_is_expanded_only_from_what_stands_before_it() {
        let env = built(
            json!({"name": "c", "env": [
                {"name": "A", "value": "$(B)-$(PATH)"}, {"name": "B", "value": "$$(PATH) $(A) $ $(x"},
            ]}),
            &Referred::default(),
        )
        .unwrap();
        assert_eq!(env[1], ("A".to_owned(), "$(B)-/bin".to_owned()));
        assert_eq!(env[2], ("B".to_owned(), "$(PATH) $(B)-/bin $ $(x".to_owned()));
    }

    #[test]
    fn fields_of_the_pod_and_its_addresses_can_be_referred_to() {
        assert_eq!(field(&pod(), &place(), "status.podIP").unwrap(), "10.77.1.0");
        assert_eq!(field(&pod(), &place(), "metadata.labels['a/b']").unwrap(), "c");
        assert_eq!(field(&pod(), &place(), "metadata.labels").unwrap(), "a/b=\"c\"");
        assert!(field(&pod(), &place(), "spec.containers").unwrap_err().contains("not supported"));
    }

    #[test]
    fn a_missing_secret_fails_and_a_missing_optional_one_does_not() {
        let var = |optional| {
            json!({"name": "c", "env": [{"name": "T", "valueFrom": {"secretKeyRef":
                {"name": "s", "key": "k", "optional": optional}}}]})
        };
        assert_eq!(built(var(false), &Referred::default()).unwrap_err(), "secret \"s\" not found");
        assert_eq!(built(var(true), &Referred::default()).unwrap().len(), 1);
    }

    #[test]
    fn env_from_comes_before_env_and_carries_its_prefix() {
        let map: ConfigMap = serde_json::from_value(json!({"data": {"A": "1", "B": "2"}})).unwrap();
        let referred =
            Referred { config_maps: [("m".to_owned(), Some(map))].into(), secrets: BTreeMap::new() };
        let env = built(
            json!({"name": "c", "envFrom": [{"prefix": "X_", "configMapRef": {"name": "m"}}],
                "env": [{"name": "X_B", "value": "3"}]}),
            &referred,
        )
        .unwrap();
        assert_eq!(env[1..], [("X_A".to_owned(), "1".to_owned()), ("X_B".to_owned(), "3".to_owned())]);
    }

    #[test]
    fn a_source_that_no_bed_has_is_refused() {
        let error = built(
            json!({"name": "c", "env": [{"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}),
            &Referred::default(),
        )
        .unwrap_err();
        assert!(error.contains("not supported"), "{error}");
    }
}
