//! What the agent can do, decided before anything of a Pod is started: every field of a Pod is either
//! handled, without bearing in a bed, noted as not applied, or refused. Nothing is ignored in silence.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::Value;

/// Handled, or decided by others before the Pod came here.
const POD: &[&str] = &[
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "enableServiceLinks",
    "hostAliases",
    "hostname",
    "imagePullSecrets",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "restartPolicy",
    "schedulerName",
    "schedulingGates",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
    "subdomain",
];
const CONTAINER: &[&str] = &[
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "securityContext",
    "startupProbe",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "volumeMounts",
    "workingDir",
    "resizePolicy",
];
const VOLUMES: &[&str] = &["configMap", "downwardAPI", "emptyDir", "hostPath", "name", "projected", "secret"];
const PROJECTIONS: &[&str] = &["configMap", "downwardAPI", "secret", "serviceAccountToken"];
const MOUNT: &[&str] = &["mountPath", "name", "readOnly"];
const HANDLERS: &[&str] = &["exec", "httpGet", "tcpSocket", "sleep"];
/// Handled, or without effect on what a process in a bed can do.
const SECURITY: &[&str] = &[
    "allowPrivilegeEscalation",
    "capabilities",
    "fsGroup",
    "fsGroupChangePolicy",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "supplementalGroups",
];

/// What a Pod asks for that a bed has not: refusals, and notes of what is not applied.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// The Pod must not start; one sentence each.
    pub refused: Vec<String>,
    /// The Pod starts without this; one sentence each.
    pub notes: Vec<String>,
}

/// Judges a Pod's spec.
pub fn judge(spec: &PodSpec) -> Judgement {
    let mut judgement = Judgement::default();
    let Ok(value) = serde_json::to_value(spec) else {
        judgement.refused.push("the spec cannot be read".to_owned());
        return judgement;
    };
    for (key, value) in set_fields(&value) {
        match key.as_str() {
            known if POD.contains(&known) => {}
            "dnsPolicy" | "dnsConfig" => note_once(&mut judgement, "a bed has no DNS"),
            // Turned off is what every Pod here has.
            "hostNetwork" | "hostPID" | "hostIPC" | "shareProcessNamespace" | "setHostnameAsFQDN"
                if value == &Value::Bool(false) => {}
            "hostUsers" if value == &Value::Bool(true) => {}
            _ => judgement.refuse(&format!("spec.{key}")),
        }
    }
    security(&mut judgement, "spec.securityContext", &value["securityContext"]);
    for volume in list(&value["volumes"]) {
        let name = volume["name"].as_str().unwrap_or_default();
        for (key, _) in set_fields(volume) {
            if !VOLUMES.contains(&key.as_str()) {
                judgement.refuse(&format!("volume {name}: {key}"));
            }
        }
        for source in list(&volume["projected"]["sources"]) {
            for (key, _) in set_fields(source) {
                if !PROJECTIONS.contains(&key.as_str()) {
                    judgement.refuse(&format!("volume {name}: projected {key}"));
                }
            }
        }
        let downward = list(&volume["downwardAPI"]["items"]).iter().chain(
            list(&volume["projected"]["sources"])
                .iter()
                .flat_map(|source| list(&source["downwardAPI"]["items"])),
        );
        for item in downward {
            if item.get("resourceFieldRef").is_some() {
                judgement.refuse(&format!("volume {name}: resourceFieldRef"));
            }
        }
        let medium = volume["emptyDir"]["medium"].as_str().unwrap_or_default();
        if !matches!(medium, "" | "Memory") {
            judgement.refuse(&format!("volume {name}: emptyDir medium {medium}"));
        }
    }
    for (kind, is_init) in [("initContainers", true), ("containers", false)] {
        for container in list(&value[kind]) {
            judge_container(&mut judgement, container, is_init);
        }
    }
    judgement
}

fn judge_container(judgement: &mut Judgement, container: &Value, is_init: bool) {
    let name = container["name"].as_str().unwrap_or_default();
    for (key, value) in set_fields(container) {
        match key.as_str() {
            known if CONTAINER.contains(&known) => {}
            "resources" => {
                note_once(judgement, "resources are counted by the scheduler and not enforced here");
            }
            "stdin" | "stdinOnce" | "tty" if value == &Value::Bool(false) => {}
            "lifecycle" | "livenessProbe" | "readinessProbe" | "startupProbe" if !is_init => {}
            _ => judgement.refuse(&format!("container {name}: {key}")),
        }
    }
    security(judgement, &format!("container {name}: securityContext"), &container["securityContext"]);
    for mount in list(&container["volumeMounts"]) {
        for (key, value) in set_fields(mount) {
            let fine = MOUNT.contains(&key.as_str())
                || (key == "mountPropagation" && value == "None")
                || (key == "recursiveReadOnly" && value == "Disabled");
            if !fine {
                judgement.refuse(&format!("container {name}: volumeMount {}: {key}", mount["name"]));
            }
        }
    }
    for port in list(&container["ports"]) {
        if port.get("hostPort").is_some_and(|port| port != 0) {
            judgement.refuse(&format!("container {name}: hostPort"));
        }
    }
    if container["lifecycle"].get("postStart").is_some() {
        judgement.refuse(&format!("container {name}: lifecycle.postStart"));
    }
    let stop = &container["lifecycle"]["preStop"];
    if stop.get("tcpSocket").is_some() || container["lifecycle"].get("stopSignal").is_some() {
        judgement.refuse(&format!("container {name}: this lifecycle"));
    }
    for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = &container[kind];
        if probe.is_object() && !HANDLERS[..3].iter().any(|handler| probe.get(*handler).is_some()) {
            judgement.refuse(&format!("container {name}: {kind} of this kind"));
        }
    }
    for var in list(&container["env"]) {
        for (key, _) in set_fields(&var["valueFrom"]) {
            if !["fieldRef", "secretKeyRef", "configMapKeyRef"].contains(&key.as_str()) {
                judgement.refuse(&format!("container {name}: env {}: {key}", var["name"]));
            }
        }
    }
}

fn security(judgement: &mut Judgement, at: &str, context: &Value) {
    for (key, value) in set_fields(context) {
        match key.as_str() {
            known if SECURITY.contains(&known) => {}
            "privileged" if value == &Value::Bool(false) => {}
            "procMount" if value == "Default" => {}
            "supplementalGroupsPolicy" if value == "Merge" => {}
            "seccompProfile" | "appArmorProfile" | "seLinuxOptions" => {
                note_once(judgement, &format!("{key} is not applied in a bed"));
            }
            _ => judgement.refuse(&format!("{at}.{key}")),
        }
    }
    if !list(&context["capabilities"]["add"]).is_empty() {
        note_once(judgement, "capabilities.add is not applied in a bed: what is not dropped is there");
    }
}

impl Judgement {
    fn refuse(&mut self, what: &str) {
        self.refused.push(format!("{what} is not supported by the bed's node agent"));
    }
}

fn note_once(judgement: &mut Judgement, note: &str) {
    if !judgement.notes.iter().any(|known| known == note) {
        judgement.notes.push(note.to_owned());
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Fields that say something: an empty list or object is as good as none.
fn set_fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten().filter(|(key, value)| {
        let empty = match value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty() && *key != "emptyDir",
            _ => false,
        };
        !empty
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use serde_json::json;

    fn judged(spec: Value) -> Judgement {
        judge(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn what_an_ordinary_pod_has_is_handled() {
        let judgement = judged(json!({
            "nodeName": "a", "restartPolicy": "Always", "hostNetwork": false,
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/x"}},
                {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "containers": [{"name": "c", "image": "i", "readinessProbe": {"httpGet": {"port": 1}},
                "volumeMounts": [{"name": "e", "mountPath": "/e", "readOnly": true}],
                "securityContext": {"runAsNonRoot": true, "capabilities": {"drop": ["ALL"]}}}],
        }));
        assert_eq!(judgement, Judgement::default());
    }

    #[rstest::rstest]
    #[case(json!({"containers": [], "volumes": [{"name": "v", "nfs": {"path": "/", "server": "s"}}]}), "volume v: nfs")]
    #[case(json!({"containers": [], "hostNetwork": true}), "spec.hostNetwork")]
    #[case(json!({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "x"}]}]}),
        "container c: volumeMount \"v\": subPath")]
    #[case(json!({"containers": [], "initContainers": [{"name": "c", "restartPolicy": "Always"}]}),
        "container c: restartPolicy")]
    #[case(json!({"containers": [{"name": "c", "livenessProbe": {"grpc": {"port": 1}}}]}),
        "container c: livenessProbe of this kind")]
    #[case(json!({"containers": [{"name": "c", "securityContext": {"privileged": true}}]}),
        "container c: securityContext.privileged")]
    #[case(json!({"containers": [{"name": "c", "env": [{"name": "E", "valueFrom":
        {"resourceFieldRef": {"resource": "limits.cpu"}}}]}]}), "container c: env \"E\": resourceFieldRef")]
    fn what_it_does_not_do_is_refused_by_name(#[case] spec: Value, #[case] what: &str) {
        assert_eq!(judged(spec).refused, [format!("{what} is not supported by the bed's node agent")]);
    }

    #[test]
    fn what_is_left_out_is_noted() {
        let judgement = judged(json!({"containers": [{"name": "c",
            "resources": {"requests": {"cpu": "1"}}, "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}]}));
        assert_eq!(judgement.refused, Vec::<String>::new());
        assert_eq!(judgement.notes.len(), 2);
    }
}
