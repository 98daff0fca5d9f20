//! Disks that fill, go away and lose what is on them.

use std::fs;
use std::sync::Arc;

use holdfast_tests::bed::{Bed, Disks};
use holdfast_tests::service::REPLACE;
use holdfast_tests::site::condition;
use holdfast_tests::suite::TestResult;
use serde_json::json;

use crate::sites::{Ground, STEP};

/// The data volume in Garage's container.
const DATA: &str = "/data/data";
const ASIDE: &str = "/data/aside";

/// O9, P15, P16: real Garage says "healthy" all the time, and acknowledges every write.
pub async fn full_data_and_metadata_disks_are_named_and_mended_before_it_is_true(
    bed: Arc<Bed>,
) -> TestResult {
    let ground = Ground::take(&bed).await?;
    ground.prove("before-the-disks-fill").await?;
    let members = ground.site.members(&bed).await?;
    let pool = &ground.site.pools[0];
    let (full, other) = (members[0].node.as_str(), members[1].node.as_str());
    let (full_id, other_id) =
        (ground.site.identity(&bed, full).await?, ground.site.identity(&bed, other).await?);

    bed.disks.fill(full, &pool.data(), 0)?;
    ground.reason_with("NotVerified", &[&full_id[..16], "had no room"]).await?;
    let trail = ground.trail();
    ground.request("full").await?;
    ground.reason_with("PreconditionsNotMet", &[&full_id[..16], "no room", "data"]).await?;
    ground.write(10).await?;
    let held = ground.blocks(full)?.len();
    assert!(held < ground.load.objects(), "{full} took {held} blocks with its disk full");
    bed.disks.fill(other, &pool.metadata(), 0)?;
    bed.disks.free(full, &pool.data())?;
    ground.reason_with("PreconditionsNotMet", &[&other_id[..16], "no room", "metadata"]).await?;
    ground.write(10).await?;
    for member in &members {
        assert_eq!(ground.site.ask(member, "GetClusterHealth").await?["status"], "healthy");
    }
    trail.never_true()?;
    drop(trail);
    bed.disks.free(other, &pool.metadata())?;
    ground.proven("full").await?;
    ground.give_back();
    Ok(())
}

/// O9, P16: what is written meanwhile lies beneath the mount point, and no health, queue or error shows it.
pub async fn a_data_disk_unmounted_under_garage_voids_the_proof_and_the_next_one_mends_it(
    bed: Arc<Bed>,
) -> TestResult {
    let ground = Ground::take(&bed).await?;
    ground.prove("before-the-disk-goes").await?;
    let member = ground.site.members(&bed).await?.remove(2);
    let pid = bed.agent(&member.node)?.pid_of(&ground.site.namespace, &member.pod).ok_or("no process")?;
    Disks::move_in_pod(pid, DATA, ASIDE)?;
    let id = ground.site.identity(&bed, &member.node).await?;
    ground.reason_with("NotVerified", &[&id[..16], "another file system"]).await?;
    let trail = ground.trail();
    ground.write(20).await?;
    let held = ground.blocks(&member.node)?.len();
    assert!(held < ground.load.objects(), "{held} blocks on a disk that is not mounted");
    Disks::move_in_pod(pid, ASIDE, DATA)?;
    assert_eq!(ground.blocks(&member.node)?.len(), held, "what was written beneath is not on the disk");
    assert_eq!(ground.site.ask(&member, "GetClusterHealth").await?["status"], "healthy");
    // Coming back proves nothing.
    trail.never_true()?;
    drop(trail);
    ground.prove("after-the-disk-is-back").await?;
    ground.give_back();
    Ok(())
}

/// Section 14: a block that is missing on every replica. The list of errors empties on a retry while it still is.
pub async fn a_block_that_is_nowhere_gives_block_errors_until_it_is_back(bed: Arc<Bed>) -> TestResult {
    let ground = Ground::take(&bed).await?;
    ground.prove("before-the-loss").await?;
    let data = ground.site.pools[0].data();
    let nodes = ground.site.nodes();
    let lost = bed.disks.blocks(&nodes[0], &data)?.remove(0);
    let name = lost.file_name().ok_or("a block without a name")?.to_owned();
    let content = fs::read(&lost)?;
    for node in &nodes {
        let copies = bed.disks.blocks(node, &data)?;
        let copy = copies.iter().find(|block| block.file_name() == Some(&name)).ok_or("no copy")?;
        Disks::remove_block(copy)?;
    }
    ground.request("lost").await?;
    let trail = ground.trail();
    let said = ground.reason("BlockErrors").await?;
    assert_eq!(said, "1 block has resync errors");
    let members = ground.site.members(&bed).await?;
    for member in &members {
        ground.site.tell(member, "RetryBlockResync?node=self", json!({"all": true})).await?;
    }
    // Found missing again.
    let said = ground.reason("BlockErrors").await?;
    assert_eq!(said, "1 block has resync errors");
    trail.never_true()?;
    drop(trail);
    fs::write(&lost, content)?;
    for member in &members {
        ground.site.tell(member, "RetryBlockResync?node=self", json!({"all": true})).await?;
    }
    ground.proven("lost").await?;
    ground.give_back();
    Ok(())
}

/// R1 to R6 after a loss of metadata alone: the blocks on its data disk are kept, as no blocks repair runs before
/// the items that refer to them are back (P6).
pub async fn a_member_that_lost_its_metadata_is_replaced_and_keeps_its_blocks(bed: Arc<Bed>) -> TestResult {
    let ground = Ground::take(&bed).await?;
    ground.prove("before-the-metadata-is-lost").await?;
    let node = ground.site.nodes()[0].clone();
    let (pool, old) = (&ground.site.pools[0], ground.site.identity(&bed, &node).await?);
    let files =
        |node: &str| -> Result<Vec<(u64, std::path::PathBuf)>, Box<dyn std::error::Error + Send + Sync>> {
            let blocks = bed.disks.blocks(node, &pool.data())?;
            let numbered = |block: std::path::PathBuf| {
                Ok((std::os::unix::fs::MetadataExt::ino(&fs::metadata(&block)?), block))
            };
            blocks.into_iter().map(numbered).collect()
        };
    let before = files(&node)?;
    let machine = bed.agent(&node)?;
    machine.power_off().await;
    bed.disks.wipe(&node, &pool.metadata())?;
    machine.power_on();
    let pair = format!("{}/{node}/{old}", pool.name);
    ground
        .site
        .wait(&bed, "the annotation to set named", STEP, |object| {
            let ready = condition(object, "NodeLocalPoolsReady");
            let named = ready["message"].to_string().contains(&format!("{REPLACE}={pair}"));
            if named { Ok(()) } else { Err(ready.to_string()) }
        })
        .await?;
    let trail = ground.trail();
    ground.site.annotate(&bed, REPLACE, Some(&pair)).await?;
    ground.site.wait_reason(&bed, "NodeLocalIdentityReplaced", "Replaced", STEP).await?;
    ground.site.annotate(&bed, REPLACE, None).await?;
    assert_ne!(ground.site.identity(&bed, &node).await?, old);
    trail.never_true()?;
    drop(trail);
    ground.prove("after-the-metadata-was-lost").await?;
    assert_eq!(files(&node)?, before, "the same files, none fetched again");
    ground.give_back();
    Ok(())
}
