//! Nodes that go down, restart, or do not reach each other.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::bed::Bed;
use holdfast_tests::suite::TestResult;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use crate::sites::{Ground, MINUTE, STEP, verification};

/// P11, P12, P6: a node goes down in its own tables turn, while its peers have theirs, and comes back without
/// the items of the meantime but with their blocks, which a blocks repair would delete.
pub async fn a_node_down_in_its_turn_is_deferred_its_peers_are_checked_again_and_it_is_finished_later(
    bed: Arc<Bed>,
) -> TestResult {
    let ground = Ground::take(&bed).await?;
    let ids = ground.ids().await?;
    ground.request("down").await?;
    let trail = ground.trail();
    let down = ground.stage("Tables").await?;
    let member = ground.member(&down).await?;
    let machine = bed.agent(&member.node)?;
    // Its peers see a process that ends, and then nothing any more.
    bed.signal(&ground.site.namespace, &member, Signal::SIGKILL)?;
    machine.power_off().await;

    ground
        .site
        .wait(&bed, "the node deferred", STEP, |object| {
            let deferred = &object["status"]["redundancy"]["deferredNodes"];
            let ours =
                deferred.as_array().and_then(|all| all.iter().find(|one| one["nodeId"] == down.as_str()));
            match ours {
                // Whichever a pass sees first.
                Some(one) if one["retryAfter"].is_string() && one["reason"] != "RepairFailed" => Ok(()),
                _ => Err(deferred.to_string()),
            }
        })
        .await?;
    let peers: Vec<_> = ground.site.members(&bed).await?;
    let peers: Vec<_> = peers.into_iter().filter(|peer| peer.node != member.node).collect();
    ground.write_through(&peers);
    ground.write(20).await?;
    copy_blocks(&ground, &peers[0].node, &member.node)?;

    ground
        .reason_with("Partial", &[&down[..16], "deferred", "a peer was missed in the tables turn of"])
        .await?;
    let recheck = ground.verification().await?["evidence"]["tablesRecheckNodeIds"].clone();
    for peer in ids.keys().filter(|id| **id != down) {
        assert!(recheck.to_string().contains(peer), "{peer} pushed past a node that was down: {recheck}");
    }
    trail.never_true()?;
    drop(trail);
    machine.power_on();
    // Without a new request.
    ground.proven("down").await?;
    ground.give_back();
    Ok(())
}

/// O8: the third node reaches both and says that all is well.
pub async fn two_nodes_that_do_not_reach_each_other_are_never_true(bed: Arc<Bed>) -> TestResult {
    let ground = Ground::take(&bed).await?;
    let members = ground.site.members(&bed).await?;
    bed.network.isolate(&members[0].uid, &members[1].uid, true)?;
    let deadline = Instant::now() + 3 * MINUTE;
    for cut in &members[..2] {
        while ground.site.ask(cut, "GetClusterHealth").await?["status"] == "healthy" {
            assert!(Instant::now() < deadline, "{} did not notice the cut", cut.node);
            sleep(Duration::from_secs(1)).await;
        }
    }
    assert_eq!(ground.site.ask(&members[2], "GetClusterHealth").await?["status"], "healthy");
    ground.request("cut").await?;
    let trail = ground.trail();
    ground.write_through(&members[2..]);
    ground.write(10).await?;
    ground.reason_with("Partial", &["does not see node"]).await?;
    // Some passes, and the retry of what is deferred.
    sleep(Duration::from_secs(40)).await;
    let said = ground.reason("Partial").await?;
    for cut in &members[..2] {
        let id = ground.site.identity(&bed, &cut.node).await?;
        assert!(said.contains(&id[..16]), "{} ({id}) is not named: {said}", cut.node);
    }
    trail.never_true()?;
    drop(trail);
    bed.network.isolate(&members[0].uid, &members[1].uid, false)?;
    ground.proven("cut").await?;
    ground.give_back();
    Ok(())
}

/// P10: the node whose turn it is restarts, once in each stage of one proof.
pub async fn a_garage_restarted_in_every_stage_is_scanned_again_within_bounds(bed: Arc<Bed>) -> TestResult {
    const RESTARTS: usize = 4;
    let ground = Ground::take(&bed).await?;
    let ids = ground.ids().await?;
    let before = ground.launches()?;
    ground.request("restarts").await?;
    let trail = ground.trail();
    for stage in ["Tables", "Blocks", "Pause", "Settling"] {
        let node = ground.stage(stage).await?;
        // Nobody's turn is left in Settling.
        let node = if node.is_empty() { ids.keys().next().cloned().unwrap_or_default() } else { node };
        trail.never_true()?;
        let member = ground.member(&node).await?;
        bed.signal(&ground.site.namespace, &member, Signal::SIGKILL)?;
        // Its restart is seen before the next stage counts.
        ground
            .site
            .wait(&bed, &format!("the restart in {stage} noticed"), STEP, |object| {
                let verification = verification(object);
                let completed = verification["completedNodeIds"].to_string().contains(&node);
                let evidence = &verification["evidence"];
                let again = verification["currentNodeId"] == node.as_str()
                    && (evidence["nodeStage"] == "Pause" || evidence["stageLaunchedAt"].is_string());
                if completed || again { Err(verification.to_string()) } else { Ok(()) }
            })
            .await?;
    }
    ground.proven("restarts").await?;
    // Three of each without a restart. One that is asked first knows for some seconds not how much room the others
    // have, so that a restart may cost every node its turns, and the tables turns once more for who was missed.
    let launched = ground.launches_since(before)?;
    assert!(launched.tables >= 3 && launched.tables <= 3 + 6 * RESTARTS, "{launched:?}");
    assert!(launched.blocks >= 3 && launched.blocks <= 3 + 3 * RESTARTS, "{launched:?}");
    ground.give_back();
    Ok(())
}

/// Puts the blocks of one Node on another's disk too.
fn copy_blocks(ground: &Ground, from: &str, to: &str) -> TestResult {
    let (disks, data) = (&ground.bed.disks, ground.site.pools[0].data());
    let (source, target) = (disks.path(from, &data), disks.path(to, &data));
    let mut copied = 0;
    for block in disks.blocks(from, &data)? {
        let copy = target.join(block.strip_prefix(&source)?);
        if !copy.exists() {
            fs::create_dir_all(copy.parent().ok_or("a block lies in no folder")?)?;
            fs::copy(&block, &copy)?;
            copied += 1;
        }
    }
    if copied < 20 { Err(format!("{copied} blocks were copied to {to}").into()) } else { Ok(()) }
}
