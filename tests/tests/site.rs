//! The product brings up real Garage sites, sees what happens to them, and touches nothing that it should
//! not: installed by its own chart, driven by `kubectl apply`, on a network and disks that fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::bed::{self, Bed, Component, assets};
use holdfast_tests::idle::stays_idle;
use holdfast_tests::load::{Load, Pace};
use holdfast_tests::site::{Member, Pool, Site, condition, garage_image};
use holdfast_tests::suite::{self, TestResult};
use holdfast_tests::test;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

const MINUTE: Duration = Duration::from_secs(60);
/// Two passes of an idle cluster, and what a loaded machine adds.
const TWO_PASSES: Duration = Duration::from_secs(150);

fn main() -> ExitCode {
    suite::run(
        "site",
        &bed::Options::default(),
        vec![
            // First: over those of the chart it would take their conversion webhook away.
            test!(the_crds_are_accepted_without_a_warning),
            test!(the_chart_installs_and_two_replicas_serve),
            test!(the_schema_refuses_bad_values),
            test!(a_site_comes_up_although_the_reconciler_is_killed_all_the_time),
            test!(kubectl_shows_the_site_in_columns),
            // Before Garage has anything to mend: its retries come up to an hour later, and are no idleness.
            test!(an_idle_site_makes_no_status_write_in_five_minutes),
            test!(a_site_of_the_oldest_garage_comes_up),
            test!(a_pod_with_another_address_is_reconnected),
            test!(a_frozen_garage_hides_only_its_own_node),
            test!(a_node_with_its_link_down_shows_as_down_and_recovers),
            test!(a_disk_that_is_not_mounted_never_starts_garage_and_is_named),
            test!(a_wiped_metadata_directory_never_enters_the_layout),
            test!(an_api_server_that_goes_away_for_a_while_changes_nothing),
            test!(bad_input_has_one_clear_condition_and_changes_nothing),
            test!(a_changed_admin_token_is_named_and_nothing_is_lost),
        ],
    )
}

fn site() -> Site {
    let mut site = Site::new(assets::GARAGE);
    // A pulled cable is noticed in seconds, not in a minute and a half.
    site.spec = json!({"network": {"rpcPingTimeout": "2s", "rpcTimeout": "10s"}});
    site
}

async fn the_chart_installs_and_two_replicas_serve(bed: Arc<Bed>) -> TestResult {
    // The product's own machines: what happens to a storage machine must not happen to it as well.
    for node in ["infra-1", "infra-2"] {
        bed.add_node(node, &[("bed/role", "infra")]).await?;
    }
    bed.install(&["nodeSelector.bed/role=infra"]).await?;
    assert_eq!(bed.replicas().await?.len(), 2);
    Ok(())
}

async fn the_crds_are_accepted_without_a_warning(bed: Arc<Bed>) -> TestResult {
    let crds = bed.product(&["crds"]).await?;
    let (said, warned) = bed.kubectl_said(&["apply", "--server-side", "-f", "-"], Some(&crds)).await?;
    assert_eq!(said.matches("serverside-applied").count(), 2, "{said}");
    assert_eq!(warned, "");
    // Helm takes over nothing that it did not install.
    bed.kubectl_with(&["delete", "-f", "-"], Some(&crds)).await?;
    Ok(())
}

async fn the_schema_refuses_bad_values(bed: Arc<Bed>) -> TestResult {
    let mut base = site();
    "default".clone_into(&mut base.namespace);
    let bad_spec = [
        (json!({"replication": {"factor": 9}}), "factor"),
        (json!({"replication": {"consistencyMode": "sometimes"}}), "consistencyMode"),
        (json!({"layoutPolicy": "Perhaps"}), "layoutPolicy"),
        (json!({"storage": {"replicas": -1}}), "replicas"),
        (json!({"layoutManagement": {"siteRole": "Reader"}}), "siteRole"),
        (json!({"workers": {"resyncWorkerCount": 9}}), "resyncWorkerCount"),
    ];
    let dry_run = ["apply", "--dry-run=server", "-f", "-"];
    for (spec, named) in bad_spec {
        let mut site = base.clone();
        site.spec = spec.clone();
        let said = bed.kubectl_with(&dry_run, Some(&site.garage_cluster().to_string())).await;
        let error = said.expect_err(&format!("{spec} was accepted")).to_string();
        assert!(error.contains(named), "{spec}: {error}");
    }
    for (spec, named) in [
        (json!({"clusterRef": {"name": "a"}, "zone": "z", "capacity": "1Gi", "nodeId": "beef"}), "nodeId"),
        (json!({"clusterRef": {"name": "a"}, "zone": "z", "capacity": "1Gi", "backing": "Tape"}), "backing"),
        (json!({"zone": "z", "capacity": "1Gi"}), "clusterRef"),
    ] {
        let node = json!({
            "apiVersion": "garage.rajsingh.info/v1beta1", "kind": "GarageNode",
            "metadata": {"name": "bad", "namespace": "default"}, "spec": spec,
        });
        let said = bed.kubectl_with(&dry_run, Some(&node.to_string())).await;
        let error = said.expect_err(&format!("{spec} was accepted")).to_string();
        assert!(error.contains(named), "{spec}: {error}");
    }
    Ok(())
}

async fn a_site_comes_up_although_the_reconciler_is_killed_all_the_time(bed: Arc<Bed>) -> TestResult {
    let site = site();
    site.prepare(&bed).await?;
    let mark = bed.audit_mark()?;
    bed.apply(&site.manifest()?).await?;
    timeout(6 * MINUTE, bed.kill_leaders(mark, 6)).await??;
    site.wait_up(&bed).await?;
    let members = site.members(&bed).await?;
    assert_eq!(
        members.iter().map(|member| member.node.as_str()).collect::<Vec<_>>(),
        ["kn-1", "kn-2", "kn-3"]
    );
    let layout = site.ask(&members[0], "GetClusterLayout").await?;
    assert_eq!(layout["version"], 1, "one layout version, however often it was begun");
    assert_eq!(layout["roles"].as_array().map(Vec::len), Some(3));

    let load = Load::new(Arc::new(site.store(&members, "first").await?));
    load.write(20, 20_000).await?;
    assert_eq!(load.verify().await?, 20);
    Ok(())
}

async fn kubectl_shows_the_site_in_columns(bed: Arc<Bed>) -> TestResult {
    let site = site();
    site.wait(&bed, "the counts of the site", TWO_PASSES, |object| {
        let nodes = &object["status"]["redundancy"]["storageNodes"];
        if nodes["total"] == 3 && nodes["local"] == 3 { Ok(()) } else { Err(nodes.to_string()) }
    })
    .await?;
    let said = bed.kubectl(&["-n", &site.namespace, "get", "garagecluster"]).await?;
    let mut lines = said.lines();
    let header: BTreeSet<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    for column in ["NAME", "PHASE", "AGE"] {
        assert!(header.contains(column), "{said}");
    }
    assert!(lines.any(|line| line.contains(&site.name)), "{said}");
    // Nothing passive ever says that redundancy is proven.
    let object = site.get(&bed.client).await?.data;
    let replicated = condition(&object, "FullyReplicated");
    assert_eq!((&replicated["status"], &replicated["reason"]), (&json!("Unknown"), &json!("NotVerified")));
    let nodes = bed.kubectl(&["-n", &site.namespace, "get", "garagenode", "-o", "name"]).await?;
    assert_eq!(nodes.lines().count(), 3, "{nodes}");
    Ok(())
}

async fn a_site_of_the_oldest_garage_comes_up(bed: Arc<Bed>) -> TestResult {
    assets::garage(assets::OLDEST_GARAGE)?;
    let mut old = site();
    old.image = garage_image(assets::OLDEST_GARAGE);
    (old.namespace, old.name) = ("old".to_owned(), "site-old".to_owned());
    old.pools = vec![Pool::new("old", &["kn-7", "kn-8", "kn-9"])];
    old.bring_up(&bed).await?;
    let members = old.members(&bed).await?;
    let load = Load::new(Arc::new(old.store(&members, "old").await?));
    load.write(5, 20_000).await?;
    load.verify().await?;
    old.wait(&bed, "all nodes of the old site observed", TWO_PASSES, |object| observed(object, 3)).await?;
    bed.kubectl(&["-n", "old", "delete", "garagecluster", "site-old"]).await?;
    Ok(())
}

async fn a_pod_with_another_address_is_reconnected(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let before = site.member(&bed, "kn-2").await?;
    bed.kubectl(&["-n", &site.namespace, "delete", "pod", &before.pod]).await?;
    let deadline = Instant::now() + 4 * MINUTE;
    let after = loop {
        match site.member(&bed, "kn-2").await {
            Ok(after) if healthy(&site, &after).await && healthy_everywhere(&bed, &site).await => {
                break after;
            }
            _ => assert!(Instant::now() < deadline, "kn-2 did not come back\n{}", bed.state().await),
        }
        sleep(Duration::from_millis(500)).await;
    };
    assert_ne!(after.ip, before.ip);
    site.wait_condition(&bed, "NodeLocalPoolsReady", "True", TWO_PASSES).await?;
    assert_eq!(site.ask(&after, "GetClusterLayout").await?["version"], 1, "no layout version for an address");
    Ok(())
}

async fn a_frozen_garage_hides_only_its_own_node(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = three(&bed, &site).await?;
    let frozen = id(&site, &members[2]).await?;
    bed.signal(&site.namespace, &members[2], Signal::SIGSTOP)?;
    let hidden = site
        .wait(&bed, "kn-3 not observed, the others observed", TWO_PASSES, |object| {
            let nodes = object["status"]["redundancy"]["nodes"].as_array().cloned().unwrap_or_default();
            let silent: Vec<&Value> = nodes.iter().filter(|node| node["observed"] == false).collect();
            match silent.as_slice() {
                [one] if one["nodeId"] == frozen.as_str() && nodes.len() == 3 => Ok(()),
                _ => Err(json!(nodes).to_string()),
            }
        })
        .await;
    bed.signal(&site.namespace, &members[2], Signal::SIGCONT)?;
    hidden?;
    site.wait(&bed, "kn-3 observed again", TWO_PASSES, |object| observed(object, 3)).await?;
    Ok(())
}

async fn a_node_with_its_link_down_shows_as_down_and_recovers(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = three(&bed, &site).await?;
    let cut = id(&site, &members[2]).await?;
    let mut load = Load::new(Arc::new(site.store(&members[..2], "cut").await?));
    load.run(Pace::default());
    bed.network.set_node_link("kn-3", false)?;
    until_health(&site, &members[0], "degraded", 2).await?;
    site.wait(&bed, "kn-3 not observed", TWO_PASSES, |object| {
        let nodes = object["status"]["redundancy"]["nodes"].as_array().cloned().unwrap_or_default();
        let node = nodes.into_iter().find(|node| node["nodeId"] == cut.as_str()).unwrap_or_default();
        if node["observed"] == false { Ok(()) } else { Err(node.to_string()) }
    })
    .await?;
    site.wait_condition(&bed, "NodeLocalPoolsReady", "False", TWO_PASSES).await?;
    bed.network.set_node_link("kn-3", true)?;
    until_health(&site, &members[0], "healthy", 3).await?;
    site.wait_condition(&bed, "NodeLocalPoolsReady", "True", TWO_PASSES).await?;
    site.wait(&bed, "all nodes observed", TWO_PASSES, |object| observed(object, 3)).await?;
    let report = load.stop().await;
    assert_eq!(report.wrong, 0, "{report:?}");
    load.verify().await?;
    Ok(())
}

async fn a_disk_that_is_not_mounted_never_starts_garage_and_is_named(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let data = site.pools[0].data();
    let machine = bed.agent("kn-3")?;
    machine.power_off().await;
    bed.disks.unplug("kn-3", &data)?;
    machine.power_on();
    let seen = missing_marker(&bed, &site, &data).await;
    bed.disks.plug("kn-3", &data)?;
    seen?;
    site.wait_up_within(&bed, 4 * MINUTE).await?;
    Ok(())
}

async fn a_wiped_metadata_directory_never_enters_the_layout(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let metadata = site.pools[0].metadata();
    let before = three(&bed, &site).await?;
    let roles = site.role_ids(&before[0]).await?;
    let old = id(&site, &before[2]).await?;
    let machine = bed.agent("kn-3")?;
    machine.power_off().await;
    let (disk, aside) = (bed.disks.path("kn-3", &metadata), bed.root.join("metadata-of-kn-3"));
    copy(&disk, &aside)?;
    bed.disks.wipe("kn-3", &metadata)?;
    machine.power_on();

    let deadline = Instant::now() + 3 * MINUTE;
    let new = loop {
        if let Ok(member) = site.member(&bed, "kn-3").await
            && let Ok(new) = id(&site, &member).await
        {
            break new;
        }
        assert!(Instant::now() < deadline, "Garage did not start on kn-3\n{}", bed.state().await);
        sleep(Duration::from_millis(500)).await;
    };
    assert_ne!(new, old);
    let said = site.wait_condition(&bed, "NodeLocalPoolsReady", "False", TWO_PASSES).await?;
    let message = said["message"].as_str().unwrap_or_default();
    assert!(message.contains("kn-3"), "{message}");
    // Some passes more: it must not change its mind.
    sleep(Duration::from_secs(30)).await;
    assert_eq!(site.role_ids(&before[0]).await?, roles);
    let layout = site.ask(&before[0], "GetClusterLayout").await?;
    assert!(!layout["stagedRoleChanges"].to_string().contains(&new), "{layout}");

    machine.power_off().await;
    bed.disks.wipe("kn-3", &metadata)?;
    copy(&aside, &disk)?;
    machine.power_on();
    site.wait_up_within(&bed, 4 * MINUTE).await?;
    Ok(())
}

async fn an_api_server_that_goes_away_for_a_while_changes_nothing(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = three(&bed, &site).await?;
    bed.control_plane.kill(Component::ApiServer).await?;
    sleep(Duration::from_secs(20)).await;
    bed.control_plane.start_component(Component::ApiServer).await?;
    bed.control_plane.wait_ready().await?;
    site.wait_condition(&bed, "NodeLocalPoolsReady", "True", 2 * TWO_PASSES).await?;
    let after = site.members(&bed).await?;
    let uids = |members: &[Member]| members.iter().map(|member| member.uid.clone()).collect::<Vec<_>>();
    assert_eq!(uids(&after), uids(&members), "no Pod was replaced");
    Ok(())
}

async fn bad_input_has_one_clear_condition_and_changes_nothing(bed: Arc<Bed>) -> TestResult {
    for node in ["kn-4", "kn-5", "kn-6"] {
        bed.add_node(node, &[("bed/spare", "")]).await?;
    }
    let spare = |name: &str| {
        let mut site = site();
        (site.namespace, site.name) = (format!("bad-{name}"), format!("site-{name}"));
        site.pools = vec![Pool::new("spare", &[])];
        "DirectoryOrCreate".clone_into(&mut site.pools[0].host_path_type);
        site
    };
    let pool = |name: &str, label: Value, path: &str| {
        json!({
            "name": name, "selector": {"matchLabels": label}, "capacity": "1Gi",
            "metadata": {"hostPath": format!("{path}/meta"), "hostPathType": "DirectoryOrCreate"},
            "data": {"hostPath": format!("{path}/data"), "hostPathType": "DirectoryOrCreate"},
        })
    };
    let spares = json!({"bed/spare": ""});
    let cases = [
        ("nobody", vec![pool("a", json!({"bed/none": ""}), "/srv/a")], "NoNodesSelected"),
        (
            "twice",
            vec![pool("a", spares.clone(), "/srv/a"), pool("b", spares.clone(), "/srv/b")],
            "SelectorConflict",
        ),
        ("nested", vec![nested(pool("a", spares.clone(), "/srv/n"))], "HostPathConflict"),
    ];
    for (name, pools, reason) in cases {
        let mut bad = spare(name);
        bad.spec = json!({"storage": {"replicas": 0, "nodeLocalPools": pools}});
        expect_reason(&bed, &bad, reason).await?;
        let pods = bed.kubectl(&["-n", &bad.namespace, "get", "pods", "-o", "name"]).await?;
        assert_eq!(pods, "", "{name}: nothing is started");
    }
    let mut secretless = spare("secretless");
    secretless.spec = json!({
        "storage": {"replicas": 0, "nodeLocalPools": [pool("a", spares.clone(), "/srv/s")]},
        "admin": {"adminTokenSecretRef": {"name": "nowhere", "key": "admin-token"}},
    });
    let said = expect_reason(&bed, &secretless, "ConfigurationInvalid").await?;
    assert!(said["message"].to_string().contains("nowhere"), "{said}");
    Ok(())
}

async fn an_idle_site_makes_no_status_write_in_five_minutes(bed: Arc<Bed>) -> TestResult {
    let site = site();
    site.wait_condition(&bed, "NodeLocalPoolsReady", "True", TWO_PASSES).await?;
    // The last queues run empty (2 x rpcTimeout after the last write) before it is idle.
    site.wait(&bed, "queues that are empty", TWO_PASSES, |object| {
        let nodes = object["status"]["redundancy"]["nodes"].as_array().cloned().unwrap_or_default();
        let empty = nodes.iter().filter(|node| node["resyncQueueLength"] == 0 && node["resyncIdle"] == true);
        if empty.count() == 3 { Ok(()) } else { Err(json!(nodes).to_string()) }
    })
    .await?;
    // One pass more, in which the last value is written that comes with it.
    sleep(MINUTE).await;
    stays_idle(&bed, &site, 5 * MINUTE).await?;
    Ok(())
}

/// The Secret holds another token than the running processes took: they are asked with theirs until each was
/// restarted, and that they have to be is said.
async fn a_changed_admin_token_is_named_and_nothing_is_lost(bed: Arc<Bed>) -> TestResult {
    let site = site();
    three(&bed, &site).await?;
    let set = async |token: &str| {
        let patch = json!({"stringData": {"admin-token": token}}).to_string();
        bed.kubectl(&["-n", &site.namespace, "patch", "secret", &site.secret(), "-p", &patch]).await
    };
    set("another-token-of-the-bed").await?;
    let seen = site
        .wait(&bed, "the older configuration named", TWO_PASSES, |object| {
            let ready = condition(object, "NodeLocalPoolsReady");
            let named = ready["message"].to_string().contains("run an older configuration");
            if ready["status"] == "True" && named { Ok(object.clone()) } else { Err(ready.to_string()) }
        })
        .await;
    let observed = seen.as_ref().map(|seen| observed(seen, 3));
    set(&site.token).await?;
    assert_eq!(observed.ok(), Some(Ok(())), "the running processes are asked with the token that they took");
    assert!(!seen?.to_string().contains("another-token-of-the-bed"), "a secret in the object");
    site.wait(&bed, "the configuration current again", 2 * TWO_PASSES, |object| {
        let ready = condition(object, "NodeLocalPoolsReady");
        let older = ready["message"].to_string().contains("older configuration");
        if ready["status"] == "True" && !older { Ok(()) } else { Err(ready.to_string()) }
    })
    .await?;
    Ok(())
}

/// The marker of a disk of kn-3 is named, and no Garage runs there or writes to the empty mount point.
async fn missing_marker(bed: &Bed, site: &Site, data: &str) -> TestResult {
    let said = site
        .wait(bed, "the missing marker named", 2 * TWO_PASSES, |object| {
            let ready = condition(object, "NodeLocalPoolsReady");
            if ready["reason"] == "MarkerMissing" { Ok(ready.clone()) } else { Err(ready.to_string()) }
        })
        .await?;
    let message = said["message"].as_str().unwrap_or_default();
    if !(message.contains("kn-3") && message.contains(data)) {
        return Err(format!("neither Node nor marker in {message:?}").into());
    }
    let pods = bed.agent("kn-3")?.pods();
    let running = pods.iter().filter(|pod| pod.namespace == site.namespace);
    if let Some(pid) = running.flat_map(|pod| &pod.containers).find_map(|container| container.pid) {
        return Err(format!("Garage runs on kn-3 as process {pid}").into());
    }
    if std::fs::read_dir(bed.disks.path("kn-3", data))?.count() > 0 {
        return Err("something was written to the mount point".into());
    }
    Ok(())
}

/// The three members, all running; otherwise a test before this one left the site in pieces.
async fn three(bed: &Bed, site: &Site) -> Result<Vec<Member>, holdfast_tests::Error> {
    site.wait_up_within(bed, 2 * MINUTE).await?;
    let members = site.members(bed).await?;
    if members.len() == 3 {
        return Ok(members);
    }
    Err(holdfast_tests::Error::other(format!("the site has not three members: {members:?}")))
}

/// Data inside of metadata.
fn nested(mut pool: Value) -> Value {
    pool["data"]["hostPath"] = json!(format!("{}/inside", pool["metadata"]["hostPath"].as_str().unwrap()));
    pool
}

/// Applies a GarageCluster that cannot work: it is refused, or says so in its condition.
async fn expect_reason(bed: &Bed, bad: &Site, reason: &str) -> Result<Value, holdfast_tests::Error> {
    bed.apply(&bad.manifest()?).await?;
    bad.wait(bed, &format!("{reason} on {}", bad.name), TWO_PASSES, |object| {
        let ready = condition(object, "NodeLocalPoolsReady");
        let fits = ready["status"] == "False" && ready["reason"] == reason;
        if fits { Ok(ready.clone()) } else { Err(ready.to_string()) }
    })
    .await
}

fn observed(object: &Value, wanted: usize) -> Result<(), String> {
    let nodes = object["status"]["redundancy"]["nodes"].as_array().cloned().unwrap_or_default();
    if nodes.iter().filter(|node| node["observed"] == true).count() == wanted && nodes.len() == wanted {
        Ok(())
    } else {
        Err(json!(nodes).to_string())
    }
}

async fn id(site: &Site, member: &Member) -> Result<String, holdfast_tests::Error> {
    let info = site.ask(member, "GetNodeInfo?node=self").await?;
    let id = info["success"].as_object().and_then(|nodes| nodes.keys().next().cloned());
    id.ok_or_else(|| holdfast_tests::Error::other(format!("no identity in {info}")))
}

async fn healthy(site: &Site, member: &Member) -> bool {
    site.ask(member, "GetClusterHealth").await.is_ok_and(|health| health["status"] == "healthy")
}

async fn healthy_everywhere(bed: &Bed, site: &Site) -> bool {
    for member in site.members(bed).await.unwrap_or_default() {
        if !healthy(site, &member).await {
            return false;
        }
    }
    true
}

/// Waits until a member's own view is so; there is nothing to watch in Garage.
async fn until_health(site: &Site, member: &Member, status: &str, up: u64) -> TestResult {
    let deadline = Instant::now() + 3 * MINUTE;
    loop {
        let health = site.ask(member, "GetClusterHealth").await?;
        if health["status"] == status && health["storageNodesUp"] == up {
            return Ok(());
        }
        assert!(Instant::now() < deadline, "wanted {status} with {up} up, {} says {health}", member.node);
        sleep(Duration::from_millis(300)).await;
    }
}

fn copy(from: &Path, to: &Path) -> TestResult {
    std::fs::create_dir_all(to)?;
    let done = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status()?;
    if done.success() {
        Ok(())
    } else {
        Err(format!("cp -a {} {}: {done}", from.display(), to.display()).into())
    }
}
