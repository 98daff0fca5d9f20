//! Conversion as clients of the API server see it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use holdfast_tests::Result;
use holdfast_tests::bed::Bed;
use holdfast_tests::suite::TestResult;
use http::Method;
use serde_json::{Value, json};

use crate::support::{clusters, get, post, replicas, request, webhook_client, without_admission};

const V1BETA1: &str = "garageclusters.v1beta1.garage.rajsingh.info";
const POOLS_CARRIER: &str = "garage.rajsingh.info/v1beta2-node-local-pools";
const GATEWAY_CARRIER: &str = "garage.rajsingh.info/v1beta2-gateway-tier";

fn pool(name: &str) -> Value {
    json!({
        "name": name,
        "selector": {"matchLabels": {"disk": name}},
        "capacity": "2Ti",
        "metadata": {"hostPath": format!("/srv/garage/{name}/meta"), "hostPathType": "Directory"},
        "dataPaths": [
            {"path": "/data/a", "hostPath": format!("/srv/garage/{name}/a"), "capacity": "1Ti"},
            {"path": "/data/b", "hostPath": format!("/srv/garage/{name}/b"), "readOnly": true},
        ],
        "podTemplate": {"env": [{"name": "GARAGE_LOG", "value": "a,\"b\"\n"}], "priorityClassName": "storage"},
    })
}

/// Two pools, a gateway tier with what v1beta1 cannot say, and annotations of others.
fn rich(name: &str) -> Value {
    json!({
        "apiVersion": "garage.rajsingh.info/v1beta2", "kind": "GarageCluster",
        "metadata": {"name": name, "labels": {"team": "storage"}, "annotations": {"example.com/owner": "a \"b\" ü"}},
        "spec": {
            "zone": "rack-1",
            "replication": {"factor": 3, "consistencyMode": "degraded"},
            "admin": {"adminTokenSecretRef": {"name": "site-a-admin", "key": "admin-token"}},
            "layoutManagement": {"siteRole": "Writer", "redundancyVerification": {"onTopologyChange": true}},
            "storage": {"replicas": 0, "nodeLocalPools": [pool("fast"), pool("slow")],
                "podAnnotations": {"example.com/scrape": "yes"}, "tolerations": [{"key": "a", "operator": "Exists"}]},
            "gateway": {"replicas": 2, "rpcPublicAddr": "gateway.example.net:3901",
                "env": [{"name": "A", "value": "b"}], "envFrom": [{"configMapRef": {"name": "c"}}],
                "readinessProbe": {"tcpSocket": {"port": 3900}}, "resources": {"requests": {"cpu": "100m"}}},
        },
    })
}

/// What a client wrote: without what the API server keeps about it.
fn written(object: &Value) -> Value {
    let mut object = object.clone();
    for field in ["managedFields", "resourceVersion", "generation"] {
        object["metadata"].as_object_mut().unwrap().remove(field);
    }
    object
}

pub async fn a_v1beta1_client_edits_an_object_with_pools_and_a_gateway_and_nothing_is_lost(
    bed: Arc<Bed>,
) -> TestResult {
    bed.kubectl(&["create", "namespace", "edited"]).await?;
    post(&bed.client, &clusters("v1beta2", "edited"), &rich("site-a")).await?;
    let stored = async || get(&bed, &format!("{}/site-a", clusters("v1beta2", "edited"))).await;
    let mut expected = written(&stored().await?);
    let shown = get(&bed, &format!("{}/site-a", clusters("v1beta1", "edited"))).await?;
    assert!(shown["metadata"]["annotations"][POOLS_CARRIER].as_str().unwrap().contains("slow"), "{shown}");
    assert!(
        shown["metadata"]["annotations"][GATEWAY_CARRIER].as_str().unwrap().contains("envFrom"),
        "{shown}"
    );

    // What `kubectl edit` and `kubectl replace` send: the whole object as it was shown.
    let edited = bed.kubectl(&["-n", "edited", "get", V1BETA1, "site-a", "-o", "json"]).await?;
    let mut edited: Value = serde_json::from_str(&edited)?;
    edited["metadata"]["labels"]["edited"] = json!("yes");
    edited["spec"]["zone"] = json!("rack-2");
    bed.kubectl_with(&["replace", "-f", "-"], Some(&edited.to_string())).await?;
    expected["metadata"]["labels"]["edited"] = json!("yes");
    expected["spec"]["zone"] = json!("rack-2");
    assert_eq!(written(&stored().await?), expected, "replace");

    let change = r#"{"metadata":{"annotations":{"example.com/note":"n"}},"spec":{"podLabels":{"app":"x"}}}"#;
    bed.kubectl(&["-n", "edited", "patch", V1BETA1, "site-a", "--type", "merge", "-p", change]).await?;
    expected["metadata"]["annotations"]["example.com/note"] = json!("n");
    expected["spec"]["storage"]["podLabels"] = json!({"app": "x"});
    assert_eq!(written(&stored().await?), expected, "merge patch");

    let applied = json!({
        "apiVersion": "garage.rajsingh.info/v1beta1", "kind": "GarageCluster",
        "metadata": {"name": "site-a", "namespace": "edited", "labels": {"applied": "yes"}},
        "spec": {"deletionPolicy": "Drain"},
    });
    let apply = ["apply", "--server-side", "--field-manager", "gitops", "-f", "-"];
    bed.kubectl_with(&apply, Some(&applied.to_string())).await?;
    expected["metadata"]["labels"]["applied"] = json!("yes");
    expected["spec"]["deletionPolicy"] = json!("Drain");
    assert_eq!(written(&stored().await?), expected, "server-side apply");

    let status = json!({"status": {"replicas": 0, "selector": "", "phase": "Running"}});
    let subresource = format!("{}/site-a/status", clusters("v1beta1", "edited"));
    request(&bed.client, Method::PATCH, &subresource, "application/merge-patch+json", Some(&status)).await?;
    expected["status"] = status["status"].clone();
    assert_eq!(written(&stored().await?), expected, "status");
    Ok(())
}

const MANY: usize = 500;

/// One of five shapes.
fn one_of_many(i: usize) -> Value {
    let name = format!("c-{i:03}");
    let mut object = rich(&name);
    match i % 5 {
        0 => {}
        1 => object["spec"]["gateway"] = Value::Null,
        2 => object["spec"] = json!({"storage": {"replicas": 3, "data": {"size": "1Ti"}}, "zone": "rack-1"}),
        3 => {
            object["spec"] = json!({
                "connectTo": {"adminApiEndpoint": "http://elsewhere:3903"},
                "gateway": {"replicas": 2, "podLabels": {"a": "b"}},
            });
        }
        _ => object["spec"] = json!({"connectTo": {"adminApiEndpoint": "http://elsewhere:3903"}}),
    }
    if object["spec"]["gateway"].is_null() {
        object["spec"].as_object_mut().unwrap().remove("gateway");
    }
    object
}

async fn make_many(bed: &Bed) -> Result<()> {
    let damaged = |i: usize| {
        let mut object = one_of_many(i);
        if i == 250 {
            // Under reserved names, of no shape that conversion writes.
            object["metadata"]["annotations"][POOLS_CARRIER] = json!("[{");
            object["metadata"]["annotations"][GATEWAY_CARRIER] = json!("not json");
        }
        if i == 251 {
            object["metadata"]["annotations"]["example.com/large"] = json!("x".repeat(200_000));
        }
        object
    };
    futures::stream::iter(0..MANY)
        .map(|i| async move { post(&bed.client, &clusters("v1beta2", "many"), &damaged(i)).await.map(drop) })
        .buffer_unordered(16)
        .try_collect::<()>()
        .await
}

pub async fn a_list_of_500_objects_is_whole_in_both_versions_with_one_damaged(bed: Arc<Bed>) -> TestResult {
    bed.kubectl(&["create", "namespace", "many"]).await?;
    // What the cases left behind that no v1beta1 list can show (V12): the API server reads every object of the
    // kind before it answers its first list of a version.
    for case in ["adm-v12-oversize-old-grows", "adm-v12-oversize-old-shrinks"] {
        let gone =
            ["-n", case, "delete", "garageclusters.v1beta2.garage.rajsingh.info", "--all", "--wait=false"];
        bed.kubectl(&gone).await?;
    }
    without_admission(&bed, make_many(&bed)).await?;
    let wanted: Vec<String> = (0..MANY).map(|i| format!("c-{i:03}")).collect();
    let mut lists = Vec::new();
    for version in ["v1beta2", "v1beta1"] {
        let begun = Instant::now();
        let list = get(&bed, &clusters(version, "many")).await?;
        let took = begun.elapsed();
        println!("LIST of {MANY} through {version}: {took:?}");
        assert!(took < Duration::from_secs(10), "{version}: {took:?}");
        let items = list["items"].as_array().unwrap().clone();
        let names: Vec<&str> = items.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect();
        assert_eq!(names, wanted, "{version}");
        lists.push(items);
    }
    // The same objects through the command.
    for (from, to, version) in [(&lists[0], &lists[1], "v1beta1"), (&lists[1], &lists[0], "v1beta2")] {
        let converted = convert(&bed, from, version).await?;
        assert_eq!(converted.len(), to.len());
        let differences: Vec<String> = std::iter::zip(&converted, to)
            .filter(|(command, server)| command != server)
            .map(|(command, server)| format!("by command {command}\nby server  {server}"))
            .collect();
        assert!(
            differences.is_empty(),
            "{} objects differ in {version}, the first:\n{}",
            differences.len(),
            differences[0]
        );
    }
    Ok(())
}

/// Through `garage-holdfast convert`.
async fn convert(
    bed: &Bed,
    objects: &[Value],
    version: &str,
) -> Result<Vec<Value>, Box<dyn std::error::Error + Send + Sync>> {
    let file = bed.root.join(format!("to-convert-to-{version}.json"));
    let text: Vec<String> = objects.iter().map(Value::to_string).collect();
    std::fs::write(&file, text.join("\n"))?;
    let converted = bed.product(&["convert", "-f", &file.display().to_string(), "--to", version]).await?;
    let values: std::result::Result<Vec<Value>, _> =
        serde_json::Deserializer::from_str(&converted).into_iter().collect();
    Ok(values?)
}

pub async fn a_terminating_object_keeps_its_finalizers_in_both_versions(bed: Arc<Bed>) -> TestResult {
    bed.kubectl(&["create", "namespace", "leaving"]).await?;
    let mut object = rich("site-a");
    object["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    post(&bed.client, &clusters("v1beta2", "leaving"), &object).await?;
    bed.kubectl(&["-n", "leaving", "delete", "garagecluster", "site-a", "--wait=false"]).await?;
    let path = |version| format!("{}/site-a", clusters(version, "leaving"));
    let (old, new) = (get(&bed, &path("v1beta1")).await?, get(&bed, &path("v1beta2")).await?);
    for field in ["finalizers", "deletionTimestamp", "deletionGracePeriodSeconds", "uid", "creationTimestamp"]
    {
        assert!(!old["metadata"][field].is_null(), "{field} in {old}");
        assert_eq!(old["metadata"][field], new["metadata"][field], "{field}");
    }
    assert_eq!(old["metadata"]["finalizers"], json!(["example.com/a", "example.com/b"]));
    // One each way, then it is gone.
    for (version, rest) in [("v1beta1", json!(["example.com/b"])), ("v1beta2", json!([]))] {
        let mut object = get(&bed, &path(version)).await?;
        object["metadata"]["finalizers"] = rest;
        request(&bed.client, Method::PUT, &path(version), "application/json", Some(&object)).await?;
    }
    let gone = get(&bed, &path("v1beta2")).await.expect_err("it is still there").to_string();
    assert!(gone.contains("404"), "{gone}");
    Ok(())
}

pub async fn the_unserved_version_and_a_damaged_carrier_fail_by_name(bed: Arc<Bed>) -> TestResult {
    let client = webhook_client(&bed).await?;
    let replicas = replicas(&bed).await?;
    assert_eq!(replicas.len(), 2, "{replicas:?}");
    let mut damaged = rich("site-d");
    damaged["apiVersion"] = json!("garage.rajsingh.info/v1beta1");
    damaged["metadata"]["namespace"] = json!("objects");
    damaged["spec"] = json!({"replicas": 0, "gateway": false});
    damaged["metadata"]["annotations"] = json!({POOLS_CARRIER: "[{"});
    let cases = [
        ("garage.rajsingh.info/v1alpha1", rich("site-a"), vec!["v1alpha1"]),
        ("garage.rajsingh.info/v1beta2", damaged, vec![POOLS_CARRIER, "site-d", "objects"]),
    ];
    for (pod, address) in replicas {
        for (desired, object, named) in &cases {
            let review = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
                "request": {"uid": "a-uid-of-ours", "desiredAPIVersion": desired, "objects": [object]},
            });
            let answer = client.post(address, "/convert", &review).await?;
            assert_eq!(answer.status, 200, "{pod}");
            let response = &answer.body["response"];
            assert_eq!(response["uid"], "a-uid-of-ours");
            assert_eq!(response["result"]["status"], "Failed");
            let message = response["result"]["message"].as_str().unwrap();
            assert!(named.iter().all(|name| message.contains(name)), "{message}");
        }
    }
    Ok(())
}
