//! Hold and refill on a real Garage site under object load (behaviour.md, sections 11 and 12).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::bed::{self, Bed, Disks, assets};
use holdfast_tests::load::{Load, Pace};
use holdfast_tests::service::{HOLD, REPLACE, answered};
use holdfast_tests::site::{Member, Pool, Site, condition, garage_image};
use holdfast_tests::suite::{self, TestResult};
use holdfast_tests::{Error, secrets, test};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);
/// A whole proof with the bed's short waits, on a loaded machine.
const PROOF: Duration = Duration::from_secs(600);
/// A step of a hold or of a refill.
const STEP: Duration = Duration::from_secs(300);

const OUT_OF_SERVICE: &str = "NodeLocalOutOfService";
const REPLACED: &str = "NodeLocalIdentityReplaced";

fn main() -> ExitCode {
    suite::run(
        "service",
        &bed::Options::default(),
        vec![
            test!(a_hold_without_a_proof_waits_and_touches_nothing),
            test!(a_disk_is_serviced_and_refilled_under_load_and_no_object_is_lost),
            test!(a_completed_replacement_applied_again_does_nothing),
            test!(blocks_that_vanished_from_one_disk_are_found_by_the_proof_and_only_then_it_is_true),
            test!(a_restarted_member_voids_what_was_proven_and_starts_nothing),
            test!(a_disk_that_is_kept_comes_back_as_it_was_without_a_layout_version),
            test!(a_hold_waits_while_two_others_cannot_reach_each_other),
            test!(a_label_that_returns_during_a_hold_is_taken_away_again_and_counted),
            test!(a_disk_that_died_without_a_hold_is_refilled_while_the_reconciler_is_killed),
            test!(a_site_of_the_oldest_garage_is_serviced),
            test!(no_secret_is_in_anything_that_the_bed_produced),
        ],
    )
}

fn site() -> Site {
    let mut site = Site::new(assets::GARAGE);
    site.spec = json!({"network": {"rpcPingTimeout": "2s", "rpcTimeout": "10s"}});
    site
}

async fn layout(site: &Site, member: &Member) -> Result<Value, Error> {
    site.ask(member, "GetClusterLayout").await
}

/// The members on every Node but one.
async fn others(bed: &Bed, site: &Site, node: &str) -> Result<Vec<Member>, Error> {
    Ok(site.members(bed).await?.into_iter().filter(|member| member.node != node).collect())
}

/// The activation label of the site's pool on a Node, if it is there: key and value.
async fn activation(bed: &Bed, node: &str) -> Result<Option<(String, String)>, Error> {
    let text = bed.kubectl(&["get", "node", node, "-o", "json"]).await?;
    let node: Value = serde_json::from_str(&text).map_err(|error| Error::other(error.to_string()))?;
    let labels = node["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let ours = labels.into_iter().find(|(key, _)| key.contains("-node-local-pool-"));
    Ok(ours.map(|(key, value)| (key, value.as_str().unwrap_or_default().to_owned())))
}

async fn hold(bed: &Bed, site: &Site, node: &str) -> TestResult {
    site.annotate(bed, HOLD, Some(&format!("{}/{node}", site.pools[0].name))).await?;
    site.wait_reason(bed, OUT_OF_SERVICE, "SafeToService", STEP).await?;
    // What the condition promises, seen with other eyes.
    let members = site.members(bed).await?;
    assert!(members.iter().all(|member| member.node != node), "a Pod runs on {node}: {members:?}");
    assert_eq!(activation(bed, node).await?, None, "{node} is still active");
    assert!(bed.agent(node)?.pods().iter().all(|pod| pod.namespace != site.namespace), "a process on {node}");
    Ok(())
}

/// Releases a hold after the disks were swapped, and replaces the identity. Returns old and new.
async fn refill(
    bed: &Bed,
    site: &Site,
    node: &str,
) -> Result<(String, String), Box<dyn std::error::Error + Send + Sync>> {
    let old = site.identity(bed, node).await?;
    let pair = format!("{}/{node}", site.pools[0].name);
    site.annotate(bed, HOLD, None).await?;
    let said = site.wait_reason(bed, OUT_OF_SERVICE, "DifferentIdentity", STEP).await?;
    let wanted = format!("{REPLACE}={pair}/{old}");
    let message = said["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains(&wanted), "the exact annotation {wanted} is not in {message:?}");
    site.annotate(bed, REPLACE, Some(&format!("{pair}/{old}"))).await?;
    site.wait_reason(bed, REPLACED, "Replaced", STEP).await?;
    let new = site.identity(bed, node).await?;
    assert_ne!(new, old);
    Ok((old, new))
}

async fn a_hold_without_a_proof_waits_and_touches_nothing(bed: Arc<Bed>) -> TestResult {
    // The product's own machines: what happens to a storage machine must not happen to it as well.
    for node in ["infra-1", "infra-2"] {
        bed.add_node(node, &[("bed/role", "infra")]).await?;
    }
    bed.install(&["nodeSelector.bed/role=infra"]).await?;
    let site = site();
    site.bring_up(&bed).await?;
    let before = activation(&bed, "kn-3").await?;
    assert!(before.is_some());
    site.annotate(&bed, HOLD, Some("fast/kn-3")).await?;
    site.wait_reason(&bed, OUT_OF_SERVICE, "WaitingForProof", 2 * MINUTE).await?;
    assert_eq!(activation(&bed, "kn-3").await?, before);
    assert_eq!(site.members(&bed).await?.len(), 3);
    // Another hold is refused while this one stands.
    let said = site.annotate(&bed, HOLD, Some("fast/kn-2")).await.expect_err("a second hold was accepted");
    assert!(said.to_string().contains("kn-3"), "{said}");
    site.annotate(&bed, HOLD, None).await?;
    site.wait(&bed, "the cancelled hold gone from the conditions", 2 * MINUTE, |object| {
        let condition = condition(object, OUT_OF_SERVICE);
        if condition["reason"] == "WaitingForProof" { Err(condition.to_string()) } else { Ok(()) }
    })
    .await?;
    assert_eq!(activation(&bed, "kn-3").await?, before);
    Ok(())
}

async fn a_disk_is_serviced_and_refilled_under_load_and_no_object_is_lost(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = site.members(&bed).await?;
    let mut load = Load::new(Arc::new(site.store(&members, "story").await?));
    load.write(40, 40_000).await?;
    site.verify(&bed, "before-the-service", PROOF).await?;

    let rest = others(&bed, &site, "kn-3").await?;
    load.store().set_endpoints(&rest.iter().map(Member::s3).collect::<Vec<_>>());
    load.run(Pace::default());
    hold(&bed, &site, "kn-3").await?;
    let held = layout(&site, &rest[0]).await?;
    assert_eq!(held["version"], 1, "a hold makes no layout version");

    site.swap_disks(&bed, "kn-3")?;
    let (old, new) = refill(&bed, &site, "kn-3").await?;
    for member in &rest {
        let after = layout(&site, member).await?;
        assert_eq!(after["version"], 2, "one version");
        let roles = site.role_ids(member).await?;
        assert!(roles.contains(&new) && !roles.contains(&old) && roles.len() == 3, "{after}");
    }
    let history = site.ask(&rest[0], "GetClusterLayoutHistory").await?;
    assert!(!history.to_string().contains("Draining"), "the old version is settled: {history}");
    // Without its request nothing stays True that the next request could be taken for answered by.
    site.annotate(&bed, REPLACE, None).await?;
    site.wait(&bed, "no answer without a request", MINUTE, |object| {
        let replaced = condition(object, REPLACED);
        if replaced.is_null() { Ok(()) } else { Err(replaced.to_string()) }
    })
    .await?;
    let report = load.stop().await;
    assert_eq!((report.wrong, report.failed_puts, report.failed_gets), (0, 0, 0), "{report:?}");
    assert!(report.written > 0, "{report:?}");

    // Nothing says True before a new proof (R6).
    let object = site.get(&bed.client).await?.data;
    assert_ne!(condition(&object, "FullyReplicated")["status"], "True");
    site.verify(&bed, "after-the-service", PROOF).await?;
    let members = site.members(&bed).await?;
    load.store().set_endpoints(&members.iter().map(Member::s3).collect::<Vec<_>>());
    let objects = load.verify().await?;
    // Small objects are inline; each of the load's has one block.
    let blocks = bed.disks.blocks("kn-3", &site.pools[0].data())?.len();
    assert!(blocks >= objects, "{blocks} blocks of {objects} objects on the new disk");
    Ok(())
}

async fn a_completed_replacement_applied_again_does_nothing(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let members = site.members(&bed).await?;
    let now = site.identity(&bed, "kn-3").await?;
    let stale = "0f".repeat(32);
    let said = site.annotate(&bed, REPLACE, Some(&format!("fast/kn-3/{stale}"))).await;
    let said = said.expect_err("a stale identity was accepted").to_string();
    assert!(said.contains(&now[..16]), "the current identity is not named: {said}");
    assert_eq!(layout(&site, &members[0]).await?["version"], 2);
    assert_eq!(site.identity(&bed, "kn-3").await?, now);
    Ok(())
}

async fn blocks_that_vanished_from_one_disk_are_found_by_the_proof_and_only_then_it_is_true(
    bed: Arc<Bed>,
) -> TestResult {
    let site = site();
    let data = site.pools[0].data();
    let members = site.members(&bed).await?;
    let blocks = bed.disks.blocks("kn-2", &data)?;
    let lost: Vec<_> = blocks.iter().step_by(3).collect();
    assert!(lost.len() >= 10, "{} blocks are there", blocks.len());
    for block in &lost {
        Disks::remove_block(block)?;
    }
    // Everything passive reads healthy: nothing but a proof finds it.
    for member in &members {
        assert_eq!(site.ask(member, "GetClusterHealth").await?["status"], "healthy");
    }
    site.verify(&bed, "after-the-loss", PROOF).await?;
    let missing: Vec<_> = lost.iter().filter(|block| !block.exists()).collect();
    assert!(
        missing.is_empty(),
        "True, and {} of {} blocks are missing: {missing:?}",
        missing.len(),
        lost.len()
    );
    // A node that misses items is never made to delete a block by our repair.
    assert_eq!(site.deleted_block(&bed)?, None);
    Ok(())
}

async fn a_restarted_member_voids_what_was_proven_and_starts_nothing(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let member = site.member(&bed, "kn-2").await?;
    bed.kubectl(&["-n", &site.namespace, "delete", "pod", &member.pod]).await?;
    site.wait_reason(&bed, "FullyReplicated", "NotVerified", 3 * MINUTE).await?;
    let deadline = Instant::now() + 4 * MINUTE;
    while site.wait_up_within(&bed, MINUTE).await.is_err() {
        assert!(Instant::now() < deadline, "the site did not come back\n{}", bed.state().await);
    }
    sleep(Duration::from_secs(20)).await;
    let object = site.get(&bed.client).await?.data;
    let verification = &object["status"]["redundancy"]["verification"];
    assert_eq!(verification["phase"], "Idle", "coming back starts nothing (P16)");
    assert!(verification["verifiedAt"].is_string(), "when it was last proven is kept: {verification}");
    Ok(())
}

async fn a_disk_that_is_kept_comes_back_as_it_was_without_a_layout_version(bed: Arc<Bed>) -> TestResult {
    let site = site();
    let before = site.identity(&bed, "kn-2").await?;
    let version = layout(&site, &site.member(&bed, "kn-2").await?).await?["version"].clone();
    site.verify(&bed, "before-a-disk-is-kept", PROOF).await?;
    hold(&bed, &site, "kn-2").await?;
    site.annotate(&bed, HOLD, None).await?;
    site.wait_reason(&bed, OUT_OF_SERVICE, "InService", STEP).await?;
    assert_eq!(site.identity(&bed, "kn-2").await?, before);
    assert_eq!(layout(&site, &site.member(&bed, "kn-2").await?).await?["version"], version);
    site.wait_up_within(&bed, 2 * MINUTE).await?;
    Ok(())
}

async fn a_hold_waits_while_two_others_cannot_reach_each_other(bed: Arc<Bed>) -> TestResult {
    let site = site();
    site.verify(&bed, "before-the-cut", PROOF).await?;
    let members = site.members(&bed).await?;
    bed.network.isolate(&members[0].uid, &members[1].uid, true)?;
    // Garage notices by its pings.
    let deadline = Instant::now() + 2 * MINUTE;
    while site.ask(&members[0], "GetClusterHealth").await?["status"] == "healthy" {
        assert!(Instant::now() < deadline, "the cut was not noticed");
        sleep(Duration::from_secs(1)).await;
    }
    site.annotate(&bed, HOLD, Some("fast/kn-3")).await?;
    let said = site
        .wait(&bed, "the broken link named", 3 * MINUTE, |object| {
            let condition = condition(object, OUT_OF_SERVICE);
            if condition["reason"] == "WaitingForHealth" {
                Ok(condition.clone())
            } else {
                Err(condition.to_string())
            }
        })
        .await;
    let active = activation(&bed, "kn-3").await?;
    site.annotate(&bed, HOLD, None).await?;
    bed.network.isolate(&members[0].uid, &members[1].uid, false)?;
    let message = said?["message"].as_str().unwrap_or_default().to_owned();
    for node in ["kn-1", "kn-2"] {
        let id = site.identity(&bed, node).await?;
        assert!(message.contains(&id[..16]), "{node} ({id}) is not named: {message}");
    }
    assert!(active.is_some(), "kn-3 was touched");
    let deadline = Instant::now() + 3 * MINUTE;
    for member in &members {
        while site.ask(member, "GetClusterHealth").await?["status"] != "healthy" {
            assert!(Instant::now() < deadline, "{} does not see the others again", member.node);
            sleep(Duration::from_secs(1)).await;
        }
    }
    Ok(())
}

async fn a_label_that_returns_during_a_hold_is_taken_away_again_and_counted(bed: Arc<Bed>) -> TestResult {
    let site = site();
    site.verify(&bed, "before-the-contest", PROOF).await?;
    let (key, value) = activation(&bed, "kn-3").await?.expect("kn-3 is active");
    hold(&bed, &site, "kn-3").await?;
    for _ in 0..3 {
        bed.kubectl(&["label", "node", "kn-3", &format!("{key}={value}")]).await?;
        let deadline = Instant::now() + 2 * MINUTE;
        while activation(&bed, "kn-3").await?.is_some() {
            assert!(Instant::now() < deadline, "the label stayed\n{}", bed.state().await);
            sleep(Duration::from_millis(500)).await;
        }
        site.wait_reason(&bed, OUT_OF_SERVICE, "SafeToService", STEP).await?;
    }
    let events = bed.kubectl(&["-n", &site.namespace, "get", "events", "-o", "json"]).await?;
    assert!(events.contains("ActivationContested"), "nobody was told");
    site.annotate(&bed, HOLD, None).await?;
    site.wait_reason(&bed, OUT_OF_SERVICE, "InService", STEP).await?;
    Ok(())
}

async fn a_disk_that_died_without_a_hold_is_refilled_while_the_reconciler_is_killed(
    bed: Arc<Bed>,
) -> TestResult {
    let site = site();
    site.wait_up_within(&bed, 3 * MINUTE).await?;
    let rest = others(&bed, &site, "kn-1").await?;
    let version = layout(&site, &rest[0]).await?["version"].as_u64().unwrap();
    let load = Load::new(Arc::new(site.store(&rest, "sudden").await?));
    load.write(20, 40_000).await?;
    let old = site.identity(&bed, "kn-1").await?;
    let machine = bed.agent("kn-1")?;
    machine.power_off().await;
    site.swap_disks(&bed, "kn-1")?;
    machine.power_on();
    // The members' own condition names the annotation that is missing.
    let wanted = format!("{REPLACE}=fast/kn-1/{old}");
    site.wait(&bed, "the annotation to set named", STEP, |object| {
        let ready = condition(object, "NodeLocalPoolsReady");
        if ready["message"].to_string().contains(&wanted) { Ok(()) } else { Err(ready.to_string()) }
    })
    .await?;
    load.write(5, 40_000).await?;

    let mark = bed.audit_mark()?;
    site.annotate(&bed, REPLACE, Some(&format!("fast/kn-1/{old}"))).await?;
    // It may be done before the last kill.
    let done = site.wait_reason(&bed, REPLACED, "Replaced", 2 * STEP);
    tokio::select! {
        kills = bed.kill_leaders(mark, 5) => {
            kills?;
            site.wait_reason(&bed, REPLACED, "Replaced", 2 * STEP).await?;
        }
        said = done => { said?; }
    }
    let new = site.identity(&bed, "kn-1").await?;
    let after = layout(&site, &rest[0]).await?;
    assert_eq!(after["version"].as_u64(), Some(version + 1), "one version, however often it was begun");
    let roles = site.role_ids(&rest[0]).await?;
    assert!(roles.contains(&new) && !roles.contains(&old) && roles.len() == 3, "{after}");
    site.annotate(&bed, REPLACE, None).await?;
    site.verify(&bed, "after-the-sudden-death", PROOF).await?;
    let members = site.members(&bed).await?;
    load.store().set_endpoints(&members.iter().map(Member::s3).collect::<Vec<_>>());
    assert_eq!(load.verify().await?, 25);
    Ok(())
}

async fn a_site_of_the_oldest_garage_is_serviced(bed: Arc<Bed>) -> TestResult {
    assets::garage(assets::OLDEST_GARAGE)?;
    let mut old = site();
    old.image = garage_image(assets::OLDEST_GARAGE);
    (old.namespace, old.name) = ("old".to_owned(), "site-old".to_owned());
    old.pools = vec![Pool::new("old", &["kn-7", "kn-8", "kn-9"])];
    old.bring_up(&bed).await?;
    let members = old.members(&bed).await?;
    let load = Load::new(Arc::new(old.store(&members, "old").await?));
    load.write(20, 40_000).await?;
    old.verify(&bed, "before", PROOF).await?;
    hold(&bed, &old, "kn-9").await?;
    old.swap_disks(&bed, "kn-9")?;
    let (was, is) = refill(&bed, &old, "kn-9").await?;
    let roles = old.role_ids(&others(&bed, &old, "kn-9").await?[0]).await?;
    assert!(roles.contains(&is) && !roles.contains(&was) && roles.len() == 3, "{roles:?}");
    old.annotate(&bed, REPLACE, None).await?;
    old.verify(&bed, "after", PROOF).await?;
    let object = old.get(&bed.client).await?.data;
    answered(&object, "after")?;
    let members = old.members(&bed).await?;
    load.store().set_endpoints(&members.iter().map(Member::s3).collect::<Vec<_>>());
    assert_eq!(load.verify().await?, 20);
    Ok(())
}

/// Last, when everything has happened that this suite makes happen.
async fn no_secret_is_in_anything_that_the_bed_produced(bed: Arc<Bed>) -> TestResult {
    let site = site();
    if site.members(&bed).await?.is_empty() {
        // Alone, it has a site of its own to look at.
        bed.install(&[]).await?;
        site.bring_up(&bed).await?;
        let members = site.members(&bed).await?;
        Load::new(Arc::new(site.store(&members, "seen").await?)).write(1, 1_000).await?;
    }
    let (secrets, shown) = (bed.secrets(&site).await?, bed.shown().await?);
    // It looks for each kind, in each kind of place.
    for kind in ["admin-token", "rpc", "S3 key", "service account token", "ca.key"] {
        assert!(secrets.keys().any(|name| name.contains(kind)), "no {kind} among {:?}", secrets.keys());
    }
    for place in
        ["log pods/", "log audit", "the events", "the garageclusters", "the configmaps", "metrics of"]
    {
        assert!(
            shown.iter().any(|(name, text)| name.contains(place) && text.len() > 100),
            "nothing in {place}"
        );
    }
    let leaks = secrets::leaks(&secrets, &shown);
    assert!(leaks.is_empty(), "{leaks:#?}");
    Ok(())
}
