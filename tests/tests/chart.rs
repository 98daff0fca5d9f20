//! The chart, rendered by the real helm over a matrix of values: what it contains, what it must never contain,
//! and what its schema refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use holdfast_tests::bed::tools::chart;
use holdfast_tests::chart::{EVERYTHING, of_kind, template};
use serde_json::Value;

/// What helm makes of values, or why it refuses them; `None` where helm was not built and no bed is wanted either.
fn helm(set: &[&str]) -> Option<Result<Vec<Value>, String>> {
    template(set).map_err(|error| error.to_string()).transpose()
}

const MATRIX: &[&[&str]] = &[
    &[],
    EVERYTHING,
    &["pools.manage=false"],
    &["crds.install=false", "pools.manage=false"],
    &["certs.source=\"cert-manager\""],
    &[
        "certs.source=\"cert-manager\"",
        "certs.certManager.issuerRef={\"name\": \"ours\", \"kind\": \"ClusterIssuer\"}",
    ],
    &["watch.namespaces=[\"a\", \"b\"]"],
    &["webhooks.failurePolicy=\"Ignore\"", "replicas=1"],
    &[
        "topologySpreadConstraints=[{\"maxSkew\": 1, \"topologyKey\": \"zone\", \"whenUnsatisfiable\": \"DoNotSchedule\"}]",
    ],
    &["tracing.otlpEndpoint=\"http://collector.monitoring:4318\""],
    &["affinity={\"nodeAffinity\": {}}", "priorityClassName=\"high\"", "podLabels={\"a\": \"b\"}"],
];

#[test]
fn every_combination_renders_objects_with_names_and_kinds() {
    for set in MATRIX {
        let Some(rendered) = helm(set) else { return };
        let documents = rendered.unwrap_or_else(|e| panic!("{set:?}: {e}"));
        for d in &documents {
            assert!(d["apiVersion"].is_string() && d["kind"].is_string(), "{set:?}: {d}");
            assert!(d["metadata"]["name"].as_str().is_some_and(|n| n.len() <= 63), "{set:?}: {d}");
        }
        let names: Vec<String> =
            documents.iter().map(|d| format!("{}/{}", d["kind"], d["metadata"]["name"])).collect();
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        // A RoleBinding of the same name stands in each watched namespace.
        if !set.iter().any(|s| s.starts_with("watch")) {
            assert_eq!(unique.len(), names.len(), "{set:?}: {names:?}");
        }
    }
}

#[test]
fn the_webhooks_see_nothing_of_the_control_planes_own_and_never_hold_it_up() {
    for set in MATRIX {
        let Some(rendered) = helm(set) else { return };
        let documents = rendered.unwrap();
        let configurations = of_kind(&documents, "ValidatingWebhookConfiguration");
        assert_eq!(configurations.len(), 1);
        for hook in configurations[0]["webhooks"].as_array().unwrap() {
            assert_eq!(hook["sideEffects"], "None");
            assert!(hook["timeoutSeconds"].as_i64().unwrap() <= 10);
            assert!(!hook["matchConditions"].as_array().unwrap().is_empty());
            let excluded = hook["namespaceSelector"]["matchExpressions"][0]["values"].to_string();
            assert!(excluded.contains("kube-system") && excluded.contains("holdfast-system"), "{excluded}");
            for rule in hook["rules"].as_array().unwrap() {
                assert_eq!(rule["apiGroups"], serde_json::json!(["garage.rajsingh.info"]));
                for resource in rule["resources"].as_array().unwrap() {
                    let resource = resource.as_str().unwrap();
                    assert!(
                        resource.starts_with("garageclusters") || resource.starts_with("garagenodes"),
                        "{resource}"
                    );
                }
            }
        }
        assert!(of_kind(&documents, "MutatingWebhookConfiguration").is_empty());
    }
}

#[test]
fn the_definitions_are_kept_on_uninstall_and_absent_when_another_owns_them() {
    let Some(rendered) = helm(&[]) else { return };
    let documents = rendered.unwrap();
    let crds = of_kind(&documents, "CustomResourceDefinition");
    assert_eq!(crds.len(), 2);
    for crd in crds {
        assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    }
    let documents = helm(&["crds.install=false"]).unwrap().unwrap();
    assert!(of_kind(&documents, "CustomResourceDefinition").is_empty());
}

#[test]
fn pods_have_no_privileges_and_the_replicas_survive_a_drain() {
    for set in MATRIX {
        let Some(rendered) = helm(set) else { return };
        let documents = rendered.unwrap();
        let deployment = of_kind(&documents, "Deployment")[0];
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let container = &pod["containers"][0]["securityContext"];
        assert_eq!(container["allowPrivilegeEscalation"], false);
        assert_eq!(container["readOnlyRootFilesystem"], true);
        assert_eq!(container["capabilities"]["drop"], serde_json::json!(["ALL"]));
        assert!(pod["topologySpreadConstraints"].as_array().is_some_and(|c| !c.is_empty()));
        let budgets = of_kind(&documents, "PodDisruptionBudget").len();
        assert_eq!(budgets, usize::from(deployment["spec"]["replicas"].as_i64().unwrap() > 1), "{set:?}");
    }
}

/// What a hold (label of a Node) and a refill (claim, pin, identity) write, whoever runs the pools.
#[test]
fn the_roles_cover_hold_and_refill_also_beside_another_operator() {
    for set in [&[][..], &["pools.manage=false"][..]] {
        let Some(rendered) = helm(set) else { return };
        let documents = rendered.unwrap();
        let rules: Vec<&Value> = documents
            .iter()
            .filter(|d| d["kind"] == "ClusterRole")
            .flat_map(|d| d["rules"].as_array().unwrap())
            .collect();
        let may = |resource: &str, verb: &str| {
            let has = |list: &Value, word: &str| list.as_array().is_some_and(|l| l.iter().any(|w| w == word));
            rules.iter().any(|r| has(&r["resources"], resource) && has(&r["verbs"], verb))
        };
        for (resource, verb) in [
            ("nodes", "get"),
            ("nodes", "patch"),
            ("garagenodes", "list"),
            ("garagenodes", "patch"),
            ("garagenodes/status", "patch"),
            ("garageclusters", "get"),
            ("garageclusters/status", "patch"),
            ("pods", "get"),
            ("events", "create"),
        ] {
            assert!(may(resource, verb), "{set:?}: {verb} {resource}");
        }
        assert!(!rules.iter().any(|r| r.to_string().contains("\"*\"")), "a wildcard in a role");
    }
}

#[test]
fn alerts_have_what_a_person_needs_at_night() {
    let Some(rendered) = helm(EVERYTHING) else { return };
    let documents = rendered.unwrap();
    let rules = of_kind(&documents, "PrometheusRule")[0]["spec"]["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 9);
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        assert!(rule["expr"].as_str().unwrap().contains("garage_holdfast_"), "{name}");
        assert!(rule["for"].is_string() && rule["labels"]["severity"].is_string(), "{name}");
        for text in ["summary", "description"] {
            let said = rule["annotations"][text].as_str().unwrap();
            assert!(said.ends_with('.') && !said.contains("{{ `"), "{name}: {said}");
        }
    }
    let off = helm(&["metrics.prometheusRule.enabled=true", "metrics.prometheusRule.notVerifiedDays=0"]);
    let off = off.unwrap().unwrap();
    assert!(!of_kind(&off, "PrometheusRule")[0].to_string().contains("GarageNotVerified"));
}

#[test]
fn the_dashboard_is_one_that_grafana_reads() {
    let Some(rendered) = helm(EVERYTHING) else { return };
    let documents = rendered.unwrap();
    let text =
        of_kind(&documents, "ConfigMap")[0]["data"]["garage-holdfast.json"].as_str().unwrap().to_owned();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(
            panel["targets"][0]["expr"].as_str().unwrap().contains("garage_holdfast_"),
            "{}",
            panel["title"]
        );
    }
}

#[test]
fn what_is_opt_in_is_absent_by_default() {
    let Some(rendered) = helm(&[]) else { return };
    let documents = rendered.unwrap();
    for kind in ["PodMonitor", "ServiceMonitor", "PrometheusRule", "NetworkPolicy", "ConfigMap"] {
        assert!(of_kind(&documents, kind).is_empty(), "{kind}");
    }
}

#[test]
fn a_collector_of_traces_is_told_to_the_pods_and_nothing_keeps_them_from_it() {
    for (endpoint, told) in [
        ("", None),
        ("http://collector.monitoring:4318", Some("http://collector.monitoring:4318")),
        ("https://collector.example/otlp", Some("https://collector.example/otlp")),
    ] {
        let set = format!("tracing.otlpEndpoint={endpoint:?}");
        let Some(rendered) = helm(&[set.as_str(), "networkPolicy.enabled=true"]) else { return };
        let documents = rendered.unwrap();
        let deployment = of_kind(&documents, "Deployment")[0];
        let environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
        let named = environment.iter().find(|env| env["name"] == "OTEL_EXPORTER_OTLP_ENDPOINT");
        assert_eq!(named.and_then(|env| env["value"].as_str()), told);
        // A policy that limited egress would have to let them through.
        let policy = &of_kind(&documents, "NetworkPolicy")[0]["spec"];
        assert_eq!(policy["policyTypes"], serde_json::json!(["Ingress"]));
    }
}

#[test]
fn the_schema_refuses_what_it_does_not_know_and_names_the_path() {
    for (value, path) in [
        ("replicas=0", "replicas"),
        ("replicas=\"two\"", "replicas"),
        ("webhooks.failurePolicy=\"Maybe\"", "failurePolicy"),
        ("certs.source=\"acme\"", "source"),
        ("watch.namespaces=[\"Not A Name\"]", "namespaces"),
        ("metrics.podMonitor.interval=\"often\"", "interval"),
        ("metrics.prometheusRule.notVerifiedDays=-1", "notVerifiedDays"),
        ("podDisruptionBudget.minAvailable=\"half\"", "minAvailable"),
        ("networkPolicy.metricsFrom=\"all\"", "metricsFrom"),
        ("imagee={}", "imagee"),
        ("log.colour=true", "colour"),
        ("tracing.otlpEndpoint=\"collector:4318\"", "otlpEndpoint"),
        ("tracing.otlpEndpoint=\"grpc://collector:4317\"", "otlpEndpoint"),
        ("tracing.otlpEndpoint=\"http://u:p@collector:4318\"", "otlpEndpoint"),
        ("tracing.otlpEndpoint=\"http://collector:4318?x\"", "otlpEndpoint"),
    ] {
        let Some(rendered) = helm(&[value]) else { return };
        let error = rendered.expect_err(value);
        assert!(error.contains(path), "{value}: {error}");
    }
}

#[test]
fn the_schema_describes_every_value() {
    fn walk(path: &str, values: &Value, schema: &Value, root: &Value) {
        let schema = schema["$ref"].as_str().map_or(schema, |r| root.pointer(&r[1..]).unwrap());
        for (key, value) in values.as_object().unwrap() {
            let here = format!("{path}.{key}");
            let known = &schema["properties"][key];
            if known.is_null() {
                assert!(
                    schema["additionalProperties"].is_object() || schema.get("properties").is_none(),
                    "{here} is not described"
                );
            } else if value.is_object() {
                walk(&here, value, known, root);
            }
        }
    }
    let values = std::fs::read_to_string(chart().join("values.yaml")).unwrap();
    let schema = std::fs::read_to_string(chart().join("values.schema.json")).unwrap();
    let (values, schema): (Value, Value) =
        (serde_norway::from_str(&values).unwrap(), serde_json::from_str(&schema).unwrap());
    walk("", &values, &schema, &schema);
}
