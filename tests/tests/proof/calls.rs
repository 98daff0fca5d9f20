//! Launches counted: undisturbed, with failing Admin calls, and with the product killed.

use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::bed::Bed;
use holdfast_tests::error::Error;
use holdfast_tests::proxy::{AdminProxy, Fault};
use holdfast_tests::suite::TestResult;
use nix::sys::signal::Signal;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::sites::{Ground, PROOF, STEP, verification};

const LAUNCH: &str = "LaunchRepairOperation";
/// Every call that a pass of a proof reads from.
const READS: [&str; 7] = [
    "GetClusterHealth",
    "GetClusterStatus",
    "GetClusterLayout",
    "GetClusterLayoutHistory",
    "ListWorkers",
    "ListBlockErrors",
    "/metrics",
];
/// Decides the order of the faults.
const SEED: u64 = 5;

/// P6 to P9, P17.
pub async fn a_proof_scans_each_node_once_and_shows_its_phases(bed: Arc<Bed>) -> TestResult {
    let ground = Ground::take(&bed).await?;
    let ids = ground.ids().await?;
    let proxies = proxies(&ground).await?;
    let before = ground.launches()?;
    ground.request("undisturbed").await?;
    let trail = ground.trail();
    ground.proven("undisturbed").await?;
    let phases = trail.phases();
    assert_eq!(phases.first().map(String::as_str), Some("SyncingMetadata"), "{phases:?}");
    assert!(phases.ends_with(&["ScanningBlocks", "Settling", "Verified"].map(str::to_owned)), "{phases:?}");
    // A pass that could not see everybody, on a starved machine, costs another tables turn, and never a scan.
    let launched = ground.launches_since(before)?;
    assert!(launched.blocks == 3 && (3..=9).contains(&launched.tables), "{launched:?}");
    for (id, proxy) in &proxies {
        let calls = proxy.take_calls();
        let asked: Vec<_> = calls.iter().filter(|call| call.path.contains(LAUNCH)).collect();
        assert!(asked.iter().all(|call| call.path.ends_with(&format!("?node={id}"))), "{asked:?}");
        assert!(asked.first().is_some_and(|call| call.body.contains("tables")), "{asked:?}");
        assert_eq!(asked.iter().filter(|call| call.body.contains("blocks")).count(), 1, "{asked:?}");
    }
    let object = ground.site.get(&bed.client).await?.data;
    let redundancy = &object["status"]["redundancy"];
    let verification = verification(&object);
    assert_eq!(redundancy["storageNodes"], json!({"total": 3, "local": 3, "remote": 0, "verified": 3}));
    assert_eq!(verification["completedNodeIds"], json!(ids.keys().collect::<Vec<_>>()));
    assert_eq!(verification["trigger"], "Requested");
    assert!(verification["verifiedAt"].is_string(), "{verification}");
    assert_eq!(object["status"]["redundancy"].get("deferredNodes"), None);
    ground.give_back();
    Ok(())
}

/// Section 14 and the sweep of the simulation, a selection of it on real Garage: each call that a proof reads
/// from fails once before and once after Garage processed it, and so do launches of both kinds.
pub async fn every_kind_of_admin_call_of_a_proof_may_fail_before_or_after_it_was_processed(
    bed: Arc<Bed>,
) -> TestResult {
    let ground = Ground::take(&bed).await?;
    let proxies = proxies(&ground).await?;
    let at = |turn: usize| -> &AdminProxy { &proxies[turn].1 };
    let before = ground.launches()?;
    // Launches go to the node's own endpoint, in the order of IDs.
    at(0).inject(LAUNCH, Some(1), Fault::Status(500));
    at(1).inject(LAUNCH, Some(1), Fault::CutAfterProcessed);
    ground.request("failing-calls").await?;
    let reads = async {
        let mut faults: Vec<(&str, bool)> =
            READS.iter().flat_map(|call| [(*call, false), (*call, true)]).collect();
        faults.shuffle(&mut StdRng::seed_from_u64(SEED));
        for (call, processed) in faults {
            let fault = if processed { Fault::CutAfterProcessed } else { Fault::Status(503) };
            once_anywhere(&proxies, call, &fault).await?;
        }
        Ok::<(), Error>(())
    };
    let repairs = async {
        ground
            .site
            .wait(&bed, "the blocks round", PROOF, |object| {
                let verification = verification(object);
                if verification["phase"] == "ScanningBlocks" { Ok(()) } else { Err(verification.to_string()) }
            })
            .await?;
        at(0).inject(LAUNCH, Some(1), Fault::CutAfterProcessed);
        at(1).inject(LAUNCH, Some(1), Fault::Status(500));
        at(2).inject(LAUNCH, Some(1), Fault::Garbage("<html>"));
        Ok::<(), Error>(())
    };
    tokio::try_join!(reads, repairs)?;
    ground.proven("failing-calls").await?;
    assert!(proxies.iter().all(|(_, proxy)| proxy.armed("") == 0), "a fault met no call");
    let launched = ground.launches_since(before)?;
    // A launch that was lost is asked for again, and one whose answer was lost may be: Garage gains at most one each.
    // A call that failed may also have cost a look at everybody, and with it another tables turn.
    assert!((3..=9).contains(&launched.tables), "two tables launches failed: {launched:?}");
    assert!((3..=6).contains(&launched.blocks), "three blocks launches failed: {launched:?}");
    let mut asked = Vec::new();
    for (_, proxy) in &proxies {
        asked.extend(proxy.take_calls().into_iter().filter(|call| call.path.contains(LAUNCH)));
    }
    let (tables, blocks): (Vec<_>, Vec<_>) = asked.iter().partition(|call| call.body.contains("tables"));
    assert!(tables.len() <= 9 && blocks.len() <= 6, "{asked:?}");
    ground.give_back();
    Ok(())
}

/// P17, and section 14: Garage gains at most one extra scan for each kill.
pub async fn a_proof_whose_leader_is_killed_in_every_stage_ends_true(bed: Arc<Bed>) -> TestResult {
    let ground = Ground::take_alone(&bed).await?;
    let before = ground.launches()?;
    ground.request("killed-leaders").await?;
    let stages = ["Tables", "Blocks", "Pause", "Settling"];
    for stage in stages {
        ground.stage(stage).await?;
        let deadline = Instant::now() + STEP;
        while bed.signal_leader(Signal::SIGKILL).await.is_err() {
            assert!(Instant::now() < deadline, "nobody leads\n{}", bed.state().await);
            sleep(Duration::from_millis(500)).await;
        }
    }
    ground.proven("killed-leaders").await?;
    let launched = ground.launches_since(before)?;
    assert!(launched.tables >= 3 && launched.blocks >= 3, "{launched:?}");
    // The same for a pass that sees nobody; scans are counted exactly.
    assert!(launched.tables <= 9 + stages.len() && launched.blocks <= 3 + stages.len(), "{launched:?}");
    ground.give_back();
    Ok(())
}

/// A proxy before each member, by identity and in the order of turns.
async fn proxies(ground: &Ground) -> Result<Vec<(String, AdminProxy)>, Error> {
    let mut proxies = Vec::new();
    for (id, node) in ground.ids().await? {
        let member = ground.site.member(&ground.bed, &node).await?;
        proxies.push((id, ground.bed.admin_proxy(&member)?));
    }
    Ok(proxies)
}

/// The next call of its kind fails, wherever it goes.
async fn once_anywhere(proxies: &[(String, AdminProxy)], call: &str, fault: &Fault) -> Result<(), Error> {
    let deadline = Instant::now() + STEP;
    for (_, proxy) in proxies {
        proxy.inject(call, Some(1), fault.clone());
    }
    while proxies.iter().all(|(_, proxy)| proxy.armed(call) > 0) {
        if Instant::now() > deadline {
            return Err(Error::other(format!("no {call} came")));
        }
        sleep(Duration::from_millis(50)).await;
    }
    for (_, proxy) in proxies {
        proxy.disarm(call);
    }
    Ok(())
}
