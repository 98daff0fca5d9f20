//! A hold and a replacement on a real Garage site while calls fail, machines lose power and other hands meddle
//! (behaviour.md, sections 11 and 12).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use holdfast_tests::bed::{self, Bed, assets};
use holdfast_tests::load::Load;
use holdfast_tests::proxy::Fault;
use holdfast_tests::service::{HOLD, REPLACE};
use holdfast_tests::site::{Member, Site, condition};
use holdfast_tests::suite::{self, TestResult};
use holdfast_tests::{Error, test};
use serde_json::json;
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);
/// A whole proof with the bed's short waits, on a loaded machine.
const PROOF: Duration = Duration::from_secs(600);
/// A step of a hold or of a refill.
const STEP: Duration = Duration::from_secs(300);

const OUT_OF_SERVICE: &str = "NodeLocalOutOfService";
const REPLACED: &str = "NodeLocalIdentityReplaced";
const OFF: &str = "node.kubernetes.io/out-of-service";

/// What was written before anything happened.
static WRITTEN: OnceLock<Load> = OnceLock::new();

fn main() -> ExitCode {
    suite::run(
        "service_faults",
        &bed::Options::default(),
        vec![
            test!(a_machine_that_lost_its_power_in_a_hold_is_safe_only_when_its_end_is_certain),
            test!(a_replacement_survives_failing_calls_a_second_machine_and_a_deleted_pod),
            test!(everything_is_there_after_all_of_that),
        ],
    )
}

fn site() -> Site {
    let mut site = Site::new(assets::GARAGE);
    site.spec = json!({"network": {"rpcPingTimeout": "2s", "rpcTimeout": "10s"}});
    site
}

/// The members on every Node but one.
async fn others(bed: &Bed, site: &Site, node: &str) -> Result<Vec<Member>, Error> {
    Ok(site.members(bed).await?.into_iter().filter(|member| member.node != node).collect())
}

async fn layout_version(site: &Site, member: &Member) -> Result<u64, Error> {
    Ok(site.ask(member, "GetClusterLayout").await?["version"].as_u64().unwrap_or_default())
}

/// Waits until a condition has the reason, and asserts that its message names what it should.
async fn said(bed: &Bed, site: &Site, kind: &str, reason: &str, named: &[&str]) -> TestResult {
    let condition = site.wait_reason(bed, kind, reason, STEP).await?;
    let message = condition["message"].as_str().unwrap_or_default();
    for word in named {
        assert!(message.contains(word), "{reason} does not name {word}: {message}");
    }
    Ok(())
}

async fn a_machine_that_lost_its_power_in_a_hold_is_safe_only_when_its_end_is_certain(
    bed: Arc<Bed>,
) -> TestResult {
    for node in ["infra-1", "infra-2"] {
        bed.add_node(node, &[("bed/role", "infra")]).await?;
    }
    bed.install(&["nodeSelector.bed/role=infra"]).await?;
    let site = site();
    site.bring_up(&bed).await?;
    let load = Load::new(Arc::new(site.store(&site.members(&bed).await?, "before").await?));
    load.write(20, 40_000).await?;
    WRITTEN.get_or_init(|| load);
    site.verify(&bed, "before-the-hold", PROOF).await?;

    let held = site.member(&bed, "kn-3").await?;
    let rest = others(&bed, &site, "kn-3").await?;
    bed.kubectl(&["cordon", "kn-3"]).await?;
    // What keeps the Pod's object keeps it longer than its process: nobody confirms an end meanwhile.
    let namespace = site.namespace.as_str();
    let finalizers = |value: &str| format!("{{\"metadata\":{{\"finalizers\":{value}}}}}");
    let keep = finalizers("[\"example.com/held\"]");
    bed.kubectl(&["-n", namespace, "patch", "pod", &held.pod, "--type=merge", "-p", &keep]).await?;
    site.annotate(&bed, HOLD, Some("fast/kn-3")).await?;
    said(&bed, &site, OUT_OF_SERVICE, "Terminating", &["kn-3"]).await?;
    let machine = bed.agent("kn-3")?;
    machine.power_off().await;

    // Another machine cannot be held meanwhile, and this one's identity cannot be replaced (V6, V2).
    let refused =
        site.annotate(&bed, HOLD, Some("fast/kn-2")).await.expect_err("a hold was moved").to_string();
    assert!(refused.contains("kn-3"), "{refused}");
    let id = site.identity(&bed, "kn-3").await?;
    let both = site.annotate(&bed, REPLACE, Some(&format!("fast/kn-3/{id}"))).await;
    both.expect_err("a replacement was accepted beside a hold");

    let deadline = Instant::now() + 3 * MINUTE;
    let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    while bed.kubectl(&["get", "node", "kn-3", "-o", ready]).await?.trim() == "True" {
        assert!(Instant::now() < deadline, "kn-3 stays Ready without power");
        sleep(Duration::from_secs(1)).await;
    }
    let object = site.get(&bed.client).await?.data;
    assert_eq!(condition(&object, OUT_OF_SERVICE)["reason"], "Terminating", "its Pod is still there");
    bed.kubectl(&[
        "-n",
        namespace,
        "delete",
        "pod",
        &held.pod,
        "--force",
        "--grace-period=0",
        "--wait=false",
    ])
    .await?;
    let drop = finalizers("null");
    bed.kubectl(&["-n", namespace, "patch", "pod", &held.pod, "--type=merge", "-p", &drop]).await?;
    said(&bed, &site, OUT_OF_SERVICE, "TerminationUnconfirmed", &["Ready", OFF]).await?;
    // The administrator looked: the machine is off.
    bed.kubectl(&["taint", "node", "kn-3", &format!("{OFF}=nodeshutdown:NoExecute")]).await?;
    said(&bed, &site, OUT_OF_SERVICE, "SafeToService", &["kn-3"]).await?;

    // While Garage does not answer nobody knows, and what was said is taken back.
    let proxies = rest.iter().map(|member| bed.admin_proxy(member)).collect::<Result<Vec<_>, _>>()?;
    for proxy in &proxies {
        proxy.refuse(true);
    }
    let unknown = site.wait_reason(&bed, OUT_OF_SERVICE, "NotObserved", STEP).await?;
    assert_eq!(unknown["status"], "Unknown", "{unknown}");
    let object = site.get(&bed.client).await?.data;
    assert!(object["status"]["nodeLocalService"]["safeSince"].is_null(), "{}", object["status"]);
    for proxy in &proxies {
        proxy.heal();
    }
    said(&bed, &site, OUT_OF_SERVICE, "SafeToService", &["kn-3"]).await?;

    site.swap_disks(&bed, "kn-3")?;
    bed.kubectl(&["taint", "node", "kn-3", &format!("{OFF}-")]).await?;
    machine.power_on();
    assert_eq!(layout_version(&site, &rest[0]).await?, 1, "a hold makes no layout version");
    Ok(())
}

async fn a_replacement_survives_failing_calls_a_second_machine_and_a_deleted_pod(
    bed: Arc<Bed>,
) -> TestResult {
    let site = site();
    let rest = others(&bed, &site, "kn-3").await?;
    let mut proxies = rest.iter().map(|member| bed.admin_proxy(member)).collect::<Result<Vec<_>, _>>()?;
    for proxy in &proxies {
        for call in [
            "ConnectClusterNodes",
            "UpdateClusterLayout",
            "PreviewClusterLayoutChanges",
            "ApplyClusterLayout",
        ] {
            proxy.inject(call, Some(1), Fault::Status(503));
            proxy.inject(call, Some(1), Fault::CutAfterProcessed);
        }
        proxy.inject("ClusterLayoutSkipDeadNodes", None, Fault::Status(503));
    }
    let old = site.identity(&bed, "kn-3").await?;
    site.annotate(&bed, HOLD, None).await?;
    said(&bed, &site, OUT_OF_SERVICE, "DifferentIdentity", &[&format!("{REPLACE}=fast/kn-3/{old}")]).await?;
    // The new process answers as well.
    let new = site.member(&bed, "kn-3").await?;
    proxies.push(bed.admin_proxy(&new)?);
    proxies[2].inject("ClusterLayoutSkipDeadNodes", None, Fault::Status(503));

    site.annotate(&bed, REPLACE, Some(&format!("fast/kn-3/{old}"))).await?;
    said(&bed, &site, REPLACED, "Settling", &["kn-3"]).await?;
    for member in &rest {
        assert_eq!(layout_version(&site, member).await?, 2, "one version, however often it failed");
    }
    let asked = proxies.iter().map(|proxy| proxy.count_calls().remove("ApplyClusterLayout").unwrap_or(0));
    assert_eq!(asked.sum::<usize>(), 2, "one that failed, and one that was done and lost its answer");
    // From here until the pins are repaired nothing can be changed (V7).
    site.annotate(&bed, REPLACE, None).await.expect_err("the request went in the middle of its work");
    site.annotate(&bed, HOLD, Some("fast/kn-1")).await.expect_err("a hold in the middle of a replacement");

    // A second machine fails. Nothing is skipped, and it is said what to do.
    let second = site.identity(&bed, "kn-2").await?;
    let machine = bed.agent("kn-2")?;
    machine.power_off().await;
    said(&bed, &site, REPLACED, "SettlingBlocked", &[&second[..16], "must be up"]).await?;
    for proxy in &proxies {
        proxy.take_calls();
    }
    // And somebody drains the third: its Pod must come back although its records are being moved.
    bed.kubectl(&["drain", "kn-3", "--ignore-daemonsets", "--delete-emptydir-data"]).await?;
    bed.kubectl(&["-n", &site.namespace, "delete", "pod", &new.pod]).await?;
    let deadline = Instant::now() + STEP;
    while site.member(&bed, "kn-3").await.is_ok_and(|member| member.uid == new.uid)
        || site
            .ask(&site.member(&bed, "kn-3").await.unwrap_or(new.clone()), "GetClusterHealth")
            .await
            .is_err()
    {
        assert!(Instant::now() < deadline, "kn-3 does not come back\n{}", bed.state().await);
        sleep(Duration::from_secs(1)).await;
    }
    let history = site.ask(&rest[0], "GetClusterLayoutHistory").await?.to_string();
    assert!(history.contains("Draining"), "settled while a second machine was down: {history}");
    let skips =
        proxies.iter().map(|proxy| proxy.count_calls().remove("ClusterLayoutSkipDeadNodes").unwrap_or(0));
    assert_eq!(skips.sum::<usize>(), 0, "a skip would have acknowledged for kn-2");

    // It goes on when the machine is back, although the first answer to the skip is lost.
    proxies[0].heal();
    proxies[0].inject("ClusterLayoutSkipDeadNodes", Some(1), Fault::CutAfterProcessed);
    proxies.truncate(1);
    machine.power_on();
    said(&bed, &site, REPLACED, "Replaced", &[&old[..16]]).await?;
    bed.kubectl(&["uncordon", "kn-3"]).await?;
    let is = site.identity(&bed, "kn-3").await?;
    let roles = site.role_ids(&rest[0]).await?;
    assert!(roles.contains(&is) && !roles.contains(&old) && roles.len() == 3, "{roles:?}");
    assert_eq!(layout_version(&site, &rest[0]).await?, 2);
    let object = site.get(&bed.client).await?.data;
    assert!(
        object["status"]["nodeLocalService"]["replacement"]["skippedAt"].is_string(),
        "{}",
        object["status"]
    );
    Ok(())
}

async fn everything_is_there_after_all_of_that(bed: Arc<Bed>) -> TestResult {
    let site = site();
    site.annotate(&bed, REPLACE, None).await?;
    site.wait_condition(&bed, "NodeLocalPoolsReady", "True", STEP).await?;
    let members = site.members(&bed).await?;
    let after = Load::new(Arc::new(site.store(&members, "after").await?));
    after.write(10, 40_000).await?;
    site.verify(&bed, "after-all-of-that", PROOF).await?;
    assert_eq!(after.verify().await?, 10);
    if let Some(before) = WRITTEN.get() {
        before.store().set_endpoints(&members.iter().map(Member::s3).collect::<Vec<_>>());
        assert_eq!(before.verify().await?, 20);
    }
    // Every member has every block by itself. An object's content follows from its key, and Garage keeps equal blocks
    // once: the ten written last have those of the first ten.
    let on = |node: &str| bed.disks.blocks(node, &site.pools[0].data()).map(|blocks| blocks.len());
    let counts = [on("kn-1")?, on("kn-2")?, on("kn-3")?];
    assert!(counts.iter().all(|count| *count >= 20), "{counts:?} blocks of 20 contents");
    Ok(())
}
