//! The bed itself: a real control plane, Nodes that run Pods, a network and disks that can fail, and a real
//! Garage site made of hand-written manifests, without the product.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::bed::{self, Bed, Component, Disks, wait};
use holdfast_tests::load::{Load, Pace};
use holdfast_tests::proxy::{AdminProxy, Fault};
use holdfast_tests::site::{Member, Site};
use holdfast_tests::suite::{self, TestResult};
use holdfast_tests::test;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    suite::run(
        "bed",
        &bed::Options::default(),
        vec![
            test!(the_api_server_has_the_version_that_was_asked_for),
            test!(a_killed_api_server_comes_back_with_everything_it_had),
            test!(an_api_server_that_hangs_answers_nothing_until_it_goes_on),
            test!(a_token_of_a_service_account_is_that_account),
            test!(serve_names_what_is_missing_at_its_start),
            test!(garage_runs_in_the_pods_of_a_daemon_set_and_keeps_objects),
            test!(a_dead_garage_is_started_again_and_the_load_sees_no_loss),
            test!(a_pulled_cable_is_seen_by_garage_and_by_kubernetes),
            test!(two_members_that_cannot_reach_each_other_are_both_reached_by_the_third),
            test!(an_admin_api_can_refuse_delay_hang_and_lie),
            test!(a_full_disk_has_no_room_and_a_freed_one_has),
            test!(a_disk_can_go_away_under_the_running_garage),
            test!(single_blocks_can_be_removed_and_corrupted),
            test!(a_pod_does_not_start_on_a_disk_that_is_not_mounted),
        ],
    )
}

async fn the_api_server_has_the_version_that_was_asked_for(bed: Arc<Bed>) -> TestResult {
    let version = bed.client.apiserver_version().await?;
    assert_eq!(version.git_version, format!("v{}", bed.control_plane.version()));
    let said = bed.kubectl(&["version"]).await?;
    assert!(said.contains(&format!("Server Version: v{}", bed.control_plane.version())), "{said}");
    let said = bed.helm(&["version", "--short"]).await?;
    assert!(said.starts_with("v4."), "{said}");
    Ok(())
}

async fn a_killed_api_server_comes_back_with_everything_it_had(bed: Arc<Bed>) -> TestResult {
    bed.kubectl(&["create", "namespace", "before"]).await?;
    bed.control_plane.kill(Component::ApiServer).await?;
    assert!(bed.kubectl(&["get", "namespaces"]).await.is_err());
    bed.control_plane.start_component(Component::ApiServer).await?;
    bed.control_plane.wait_ready().await?;
    let said = bed.kubectl(&["get", "namespace", "before", "-o", "name"]).await?;
    assert_eq!(said.trim(), "namespace/before");
    Ok(())
}

async fn an_api_server_that_hangs_answers_nothing_until_it_goes_on(bed: Arc<Bed>) -> TestResult {
    bed.control_plane.pause(Component::ApiServer).await?;
    let said = bed.kubectl(&["get", "namespaces", "--request-timeout=1s"]).await;
    bed.control_plane.resume(Component::ApiServer).await?;
    assert!(said.is_err());
    bed.control_plane.wait_ready().await?;
    Ok(())
}

async fn a_token_of_a_service_account_is_that_account(bed: Arc<Bed>) -> TestResult {
    let account = ["-n", "before", "create", "serviceaccount", "someone"];
    bed.kubectl(&account).await?;
    let token = bed.kubectl(&["-n", "before", "create", "token", "someone"]).await?;
    let token = format!("--token={}", token.trim());
    // The administrator's kubeconfig has a token too; the flag wins.
    let said = bed.kubectl(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", &token]).await?;
    assert_eq!(said, "system:serviceaccount:before:someone");
    Ok(())
}

/// Bad input at the start: no cluster, a wrong kubeconfig, no CRDs, no permissions. No suite before this one
/// in the same bed has installed the product.
async fn serve_names_what_is_missing_at_its_start(bed: Arc<Bed>) -> TestResult {
    // The tests before this one may not have run.
    for what in
        [&["create", "namespace", "start"][..], &["-n", "start", "create", "serviceaccount", "nobody"]]
    {
        bed.kubectl(what).await?;
    }
    let serve = |port: u16| {
        let listen = |port: u16| format!("127.0.0.1:{port}");
        ["serve", "--log-format", "text", "--webhook-listen"]
            .map(str::to_owned)
            .into_iter()
            .chain([listen(port), "--metrics-listen".to_owned(), listen(port + 1)])
            .chain(["--pod-namespace".to_owned(), "start".to_owned()])
            .collect::<Vec<_>>()
    };
    let run = async |port: u16, kubeconfig: Option<&std::path::Path>, seconds: u64| {
        let args = serve(port);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        bed.product_for(&args, kubeconfig, Duration::from_secs(seconds)).await
    };
    let (code, said) = run(18_443, Some(&bed.root.join("nowhere")), 20).await?;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no way to a Kubernetes API server") && said.contains("set KUBECONFIG"), "{said}");

    let broken = bed.root.join("broken-kubeconfig");
    std::fs::write(&broken, "clusters: {")?;
    let (code, said) = run(18_443, Some(&broken), 20).await?;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("kubeconfig"), "{said}");

    let (code, said) = run(18_443, None, 10).await?;
    assert_eq!(code, None, "it waits for the CRDs: {said}");
    assert!(said.contains("the API server does not know this kind: install the CRDs"), "{said}");
    assert!(!said.contains("watch goes on"), "no watch goes on without its kind: {said}");

    let token = bed.kubectl(&["-n", "start", "create", "token", "nobody"]).await?;
    let nobody = bed.root.join("nobody-kubeconfig");
    std::fs::copy(&bed.control_plane.kubeconfig, &nobody)?;
    let config = format!("--kubeconfig={}", nobody.display());
    let user = bed.kubectl(&[&config, "config", "view", "-o", "jsonpath={.users[0].name}"]).await?;
    bed.kubectl(&[&config, "config", "unset", &format!("users.{user}")]).await?;
    let token = format!("--token={}", token.trim());
    bed.kubectl(&[&config, "config", "set-credentials", &user, &token]).await?;
    let (code, said) = run(18_443, Some(&nobody), 10).await?;
    assert_eq!(code, None, "{said}");
    assert!(said.contains("not permitted (RBAC)"), "{said}");
    Ok(())
}

async fn garage_runs_in_the_pods_of_a_daemon_set_and_keeps_objects(bed: Arc<Bed>) -> TestResult {
    let site = site();
    site.prepare(&bed).await?;
    bed.apply(&manifests(&site)).await?;
    let members = ready(&bed, &site, 3).await?;
    assert_eq!(
        members.iter().map(|member| member.node.as_str()).collect::<Vec<_>>(),
        ["kn-1", "kn-2", "kn-3"]
    );

    // What the product does for its pools, by hand.
    let mut peers = Vec::new();
    let mut roles = Vec::new();
    for member in &members {
        let id = id(&site, member).await?;
        peers.push(json!(format!("{id}@{}:3901", member.ip)));
        roles.push(json!({"id": id, "zone": "rack-1", "capacity": 1_000_000_000, "tags": []}));
    }
    let first = &members[0];
    site.tell(first, "ConnectClusterNodes", Value::from(peers)).await?;
    site.tell(first, "UpdateClusterLayout", json!({"roles": roles})).await?;
    site.tell(first, "ApplyClusterLayout", json!({"version": 1})).await?;
    health(&site, first, "healthy", 3).await?;

    let load = Load::new(Arc::new(site.store(&members, "first").await?));
    load.write(20, 20_000).await?;
    assert_eq!(load.verify().await?, 20);
    // A write is answered when two of three have its block; a third that missed it asks for it much later (2 x
    // `rpc_timeout` after its reference came, 10 minutes here).
    let mut copies = BTreeMap::new();
    for member in &members {
        for block in bed.disks.blocks(&member.node, &site.pools[0].data())? {
            *copies.entry(block.file_stem().unwrap_or_default().to_owned()).or_insert(0) += 1;
        }
    }
    assert_eq!(copies.len(), 20, "one block an object: {copies:?}");
    assert!(copies.values().all(|copies| *copies >= 2), "a write was answered with one copy: {copies:?}");
    Ok(())
}

async fn a_dead_garage_is_started_again_and_the_load_sees_no_loss(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = ready(&bed, &site, 3).await?;
    let mut load = Load::new(Arc::new(site.store(&members[..2], "under-load").await?));
    load.run(Pace::default());
    let killed = &members[2];
    let before = id(&site, killed).await?;
    bed.signal(&site.namespace, killed, Signal::SIGKILL)?;
    let pods: Api<Pod> = Api::namespaced(bed.client.clone(), &site.namespace);
    wait::until(pods, "the restart of a killed Garage", MINUTE, |seen| {
        let pod = seen.get(&killed.pod).ok_or("its Pod is gone")?;
        let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first());
        let status = status.ok_or("no container status")?;
        if status.restart_count == 1 && status.ready { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await?;
    assert!(answers(&site, killed, "GetClusterHealth").await);
    assert_eq!(id(&site, killed).await?, before, "the identity is on the disk");
    health(&site, &members[0], "healthy", 3).await?;
    let report = load.stop().await;
    assert_eq!(report.wrong, 0, "{report:?}");
    assert!(report.written > 0, "{report:?}");
    load.verify().await?;
    Ok(())
}

async fn a_pulled_cable_is_seen_by_garage_and_by_kubernetes(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = ready(&bed, &site, 3).await?;
    bed.network.set_node_link("kn-3", false)?;
    assert!(site.ask(&members[2], "GetClusterHealth").await.is_err());
    health(&site, &members[0], "degraded", 2).await?;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(bed.client.clone());
    wait::until(nodes.clone(), "kn-3 not Ready", 2 * MINUTE, |seen| node_ready(seen.get("kn-3"), "Unknown"))
        .await?;
    bed.network.set_node_link("kn-3", true)?;
    wait::until(nodes, "kn-3 Ready", MINUTE, |seen| node_ready(seen.get("kn-3"), "True")).await?;
    health(&site, &members[0], "healthy", 3).await?;
    Ok(())
}

async fn two_members_that_cannot_reach_each_other_are_both_reached_by_the_third(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = ready(&bed, &site, 3).await?;
    bed.network.isolate(&members[1].uid, &members[2].uid, true)?;
    // The two see it; the third is told that all is well (behaviour.md, O8).
    health(&site, &members[1], "degraded", 2).await?;
    health(&site, &members[2], "degraded", 2).await?;
    health(&site, &members[0], "healthy", 3).await?;
    bed.network.isolate(&members[1].uid, &members[2].uid, false)?;
    health(&site, &members[1], "healthy", 3).await?;
    health(&site, &members[2], "healthy", 3).await?;
    Ok(())
}

async fn an_admin_api_can_refuse_delay_hang_and_lie(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = ready(&bed, &site, 3).await?;
    let member = &members[0];
    let missing = id(&site, &members[1]).await?;
    let proxy: AdminProxy = bed.admin_proxy(member)?;
    let health = "GetClusterHealth";

    site.ask(member, health).await?;
    assert_eq!(proxy.count_calls().get(health), Some(&1), "a call goes through the proxy");
    assert_eq!(proxy.take_calls().len(), 1);

    proxy.refuse(true);
    let error = wait_for_error(&site, member, health).await;
    assert!(error.contains("error sending request"), "{error}");
    proxy.heal();
    assert!(answers(&site, member, health).await, "the port answers again");

    proxy.inject(health, Some(1), Fault::Status(503));
    assert!(site.ask(member, health).await.unwrap_err().to_string().contains("503"));
    proxy.inject(health, Some(1), Fault::Delay(Duration::from_millis(300)));
    let begun = std::time::Instant::now();
    site.ask(member, health).await?;
    assert!(begun.elapsed() >= Duration::from_millis(300));
    proxy.inject(health, Some(1), Fault::without_field("/storageNodesUp"));
    assert_eq!(site.ask(member, health).await?.get("storageNodesUp"), None);
    proxy.inject(health, Some(1), Fault::Garbage("<html>"));
    assert!(site.ask(member, health).await.is_err());
    proxy.inject("GetNodeInfo?node=*", Some(1), Fault::without_node(&missing, Some("Timeout")));
    let answer = site.ask(member, "GetNodeInfo?node=*").await?;
    assert_eq!(answer["success"].get(&missing), None);
    assert_eq!(answer["error"][&missing], "Timeout");

    // Processed, but the answer is lost.
    let before = site.ask(member, "GetClusterLayout").await?["stagedRoleChanges"].clone();
    proxy.inject("UpdateClusterLayout", Some(1), Fault::CutAfterProcessed);
    let change =
        json!({"roles": [{"id": "5".repeat(64), "zone": "rack-1", "capacity": 1_000_000_000, "tags": []}]});
    assert!(site.tell(member, "UpdateClusterLayout", change).await.is_err());
    assert_ne!(site.ask(member, "GetClusterLayout").await?["stagedRoleChanges"], before);
    site.tell(member, "RevertClusterLayout", json!({})).await?;

    proxy.inject(health, None, Fault::Hang);
    let hung = tokio::time::timeout(Duration::from_secs(1), site.ask(member, health)).await;
    assert!(hung.is_err(), "a call that hangs has no answer");
    // Everything else of the Pod is as it was.
    Load::new(Arc::new(site.store(&members[..1], "beside-the-proxy").await?)).write(1, 10_000).await?;

    drop(proxy);
    assert!(answers(&site, member, health).await, "Garage answers by itself again");
    Ok(())
}

async fn a_full_disk_has_no_room_and_a_freed_one_has(bed: Arc<Bed>) -> TestResult {
    let data = site().pools[0].data();
    let before = bed.disks.available("kn-1", &data)?;
    bed.disks.fill("kn-1", &data, MIB)?;
    assert!(bed.disks.available("kn-1", &data)? <= MIB);
    bed.disks.free("kn-1", &data)?;
    assert!(bed.disks.available("kn-1", &data)? >= before - MIB);

    bed.disks.mount("kn-1", "/srv/spare", 4 * MIB)?;
    bed.disks.read_only("kn-1", "/srv/spare", true)?;
    assert!(bed.disks.mark("kn-1", "/srv/spare").is_err());
    bed.disks.read_only("kn-1", "/srv/spare", false)?;
    bed.disks.mark("kn-1", "/srv/spare")?;
    bed.disks.replace("kn-1", "/srv/spare")?;
    assert_eq!(std::fs::read_dir(bed.disks.path("kn-1", "/srv/spare"))?.count(), 0, "a new disk is empty");
    Ok(())
}

async fn a_disk_can_go_away_under_the_running_garage(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = ready(&bed, &site, 3).await?;
    let total = async |member: &Member| -> Result<Option<u64>, holdfast_tests::Error> {
        let id = id(&site, member).await?;
        let status = site.ask(member, "GetClusterStatus").await?;
        let own =
            status["nodes"].as_array().and_then(|all| all.iter().find(|node| node["id"] == id.as_str()));
        Ok(own.and_then(|node| node["dataPartition"]["total"].as_u64()))
    };
    assert_eq!(total(&members[2]).await?, Some(site.pools[0].data_size));
    bed.unmount_under(&site.namespace, &members[2], "/data/data")?;
    // Garage looks at its disks every 10 s and says nothing of it but other numbers.
    let deadline = tokio::time::Instant::now() + MINUTE;
    while total(&members[2]).await? == Some(site.pools[0].data_size) {
        assert!(tokio::time::Instant::now() < deadline, "Garage still reports the disk that is gone");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    health_now(&site, &members[0], "healthy", 3).await?;
    // A new Pod mounts it anew.
    bed.kubectl(&["-n", &site.namespace, "delete", "pod", &members[2].pod]).await?;
    let members = ready(&bed, &site, 3).await?;
    site.tell(&members[0], "ConnectClusterNodes", json!([peer(&site, &members[2]).await?])).await?;
    health(&site, &members[0], "healthy", 3).await?;
    assert_eq!(total(&members[2]).await?, Some(site.pools[0].data_size));
    Ok(())
}

async fn single_blocks_can_be_removed_and_corrupted(bed: Arc<Bed>) -> TestResult {
    let data = site().pools[0].data();
    let blocks = bed.disks.blocks("kn-2", &data)?;
    assert!(blocks.len() >= 2);
    Disks::remove_block(&blocks[0])?;
    let whole = std::fs::read(&blocks[1])?;
    Disks::corrupt_block(&blocks[1])?;
    assert_ne!(std::fs::read(&blocks[1])?, whole);
    assert_eq!(bed.disks.blocks("kn-2", &data)?.len(), blocks.len() - 1);
    Ok(())
}

async fn a_pod_does_not_start_on_a_disk_that_is_not_mounted(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = ready(&bed, &site, 3).await?;
    bed.kubectl(&["-n", &site.namespace, "delete", "pod", "--wait=false", &members[2].pod]).await?;
    bed.disks.unmount("kn-3", &site.pools[0].data())?;
    let events: Api<Event> = Api::namespaced(bed.client.clone(), &site.namespace);
    let what = "an event that the marker is missing on kn-3";
    wait::until(events, what, MINUTE, |seen| {
        let found = seen.iter().find(|event| {
            event.reason.as_deref() == Some("FailedMount")
                && event.message.as_ref().is_some_and(|message| message.contains(".garage-volume-id"))
        });
        found.map(|_| ()).ok_or_else(|| format!("{} events, none of them", seen.len()))
    })
    .await?;
    assert_eq!(
        site.members(&bed)
            .await?
            .iter()
            .filter(|member| member.node == "kn-3" && member.uid != members[2].uid)
            .count(),
        0,
        "no process of the new Pod has an address"
    );
    Ok(())
}

fn site() -> Site {
    Site::new(bed::assets::GARAGE)
}

async fn id(site: &Site, member: &Member) -> Result<String, holdfast_tests::Error> {
    let info = site.ask(member, "GetNodeInfo?node=self").await?;
    let id = info["success"].as_object().and_then(|nodes| nodes.keys().next().cloned());
    id.ok_or_else(|| holdfast_tests::Error::other(format!("no identity in {info}")))
}

async fn peer(site: &Site, member: &Member) -> Result<String, holdfast_tests::Error> {
    Ok(format!("{}@{}:3901", id(site, member).await?, member.ip))
}

/// Waits until the DaemonSet has so many ready Pods that all answer.
async fn ready(bed: &Bed, site: &Site, wanted: i32) -> Result<Vec<Member>, holdfast_tests::Error> {
    let sets: Api<DaemonSet> = Api::namespaced(bed.client.clone(), &site.namespace);
    let pods_ready = wait::until(sets, "ready Pods of the DaemonSet", 2 * MINUTE, |seen| {
        let status = seen.get("garage").and_then(|set| set.status.clone()).ok_or("no status")?;
        let current = status.number_ready == wanted && status.desired_number_scheduled == wanted;
        if current { Ok(()) } else { Err(format!("{} of {wanted} are ready", status.number_ready)) }
    });
    pods_ready.await?;
    let members = site.members(bed).await?;
    for member in &members {
        assert!(answers(site, member, "GetClusterHealth").await, "{member:?} answers");
    }
    Ok(members)
}

/// Whether a call is answered within some seconds; a process that just started needs some of them.
async fn answers(site: &Site, member: &Member, call: &str) -> bool {
    for _ in 0..100 {
        if site.ask(member, call).await.is_ok() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}

async fn wait_for_error(site: &Site, member: &Member, call: &str) -> String {
    for _ in 0..100 {
        if let Err(error) = site.ask(member, call).await {
            return error.to_string();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    "no error".to_owned()
}

/// Waits until a member's view of the health is so; there is nothing to watch in Garage.
async fn health(site: &Site, member: &Member, status: &str, up: u64) -> TestResult {
    let deadline = tokio::time::Instant::now() + 2 * MINUTE;
    loop {
        match health_now(site, member, status, up).await {
            Ok(()) => return Ok(()),
            Err(error) if tokio::time::Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn health_now(site: &Site, member: &Member, status: &str, up: u64) -> TestResult {
    let health = site.ask(member, "GetClusterHealth").await?;
    if health["status"] == status && health["storageNodesUp"] == up {
        Ok(())
    } else {
        Err(format!("wanted {status} with {up} up, {} says {health}", member.node).into())
    }
}

fn node_ready(node: Option<&k8s_openapi::api::core::v1::Node>, wanted: &str) -> Result<(), String> {
    let conditions = node.and_then(|node| node.status.as_ref()?.conditions.clone()).unwrap_or_default();
    let ready =
        conditions.into_iter().find(|condition| condition.type_ == "Ready").ok_or("no condition Ready")?;
    if ready.status == wanted { Ok(()) } else { Err(format!("Ready is {}", ready.status)) }
}

/// A Garage site as a person would write it: what the product makes of a pool, in short.
fn manifests(site: &Site) -> String {
    let pool = &site.pools[0];
    let config = r#"metadata_dir = "/data/metadata"
data_dir = "/data/data"
db_engine = "lmdb"
replication_factor = 3
rpc_bind_addr = "[::]:3901"
rpc_ping_timeout_msec = 2000
rpc_timeout_msec = 10000
[s3_api]
api_bind_addr = "[::]:3900"
s3_region = "garage"
[admin]
api_bind_addr = "[::]:3903"
"#;
    let labels = json!({"garage.rajsingh.info/cluster": site.name});
    let secret = |key: &str, name: &str| json!({"name": name, "valueFrom": {"secretKeyRef": {"name": "garage", "key": key}}});
    let host = |path: &str, kind: &str| json!({"path": path, "type": kind});
    let documents = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": site.namespace}}),
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "garage", "namespace": site.namespace},
            "stringData": {"rpc": "0f".repeat(32), "admin": site.token},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "garage", "namespace": site.namespace},
            "data": {"garage.toml": config},
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "garage", "namespace": site.namespace},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "nodeSelector": {(pool.label()): ""},
                        "containers": [{
                            "name": "garage",
                            "image": site.image,
                            "command": ["/garage", "server"],
                            "env": [
                                secret("rpc", "GARAGE_RPC_SECRET"),
                                secret("admin", "GARAGE_ADMIN_TOKEN"),
                                {"name": "GARAGE_CONFIG_FILE", "value": "/etc/garage/garage.toml"},
                            ],
                            "volumeMounts": [
                                {"name": "config", "mountPath": "/etc/garage", "readOnly": true},
                                {"name": "metadata", "mountPath": "/data/metadata"},
                                {"name": "data", "mountPath": "/data/data"},
                                {"name": "verify-data", "mountPath": "/var/run/markers/data", "readOnly": true},
                            ],
                        }],
                        "volumes": [
                            {"name": "config", "configMap": {"name": "garage"}},
                            {"name": "metadata", "hostPath": host(&pool.metadata(), "Directory")},
                            {"name": "data", "hostPath": host(&pool.data(), "Directory")},
                            {"name": "verify-data", "hostPath": host(&format!("{}/.garage-volume-id", pool.data()), "File")},
                        ],
                    },
                },
            },
        }),
    ];
    holdfast_tests::site::yaml(&documents).unwrap()
}
