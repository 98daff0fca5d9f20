//! A proof while clients write and read all the time (behaviour.md, P7, P8, P14): it ends, and not before what was
//! missing is back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::bed::{self, Bed, Disks, assets};
use holdfast_tests::load::{Load, Pace};
use holdfast_tests::site::{Pool, Site};
use holdfast_tests::suite::{self, TestResult};
use holdfast_tests::test;
use serde_json::json;

/// A proof with the bed's short waits, on a loaded machine.
const PROOF: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    suite::run(
        "traffic",
        &bed::Options::default(),
        vec![test!(a_site_that_is_written_to_all_the_time_is_proven_on_the_newest_and_the_oldest_garage)],
    )
}

async fn a_site_that_is_written_to_all_the_time_is_proven_on_the_newest_and_the_oldest_garage(
    bed: Arc<Bed>,
) -> TestResult {
    for node in ["infra-1", "infra-2"] {
        bed.add_node(node, &[("bed/role", "infra")]).await?;
    }
    bed.install(&["nodeSelector.bed/role=infra"]).await?;
    for (number, garage) in [assets::GARAGE, assets::OLDEST_GARAGE].into_iter().enumerate() {
        let mut site = Site::new(garage);
        (site.namespace, site.name) = (format!("objects-{number}"), format!("site-{number}"));
        site.spec = json!({"network": {"rpcPingTimeout": "2s", "rpcTimeout": "5s"}});
        let nodes: Vec<String> = (1..=3).map(|node| format!("kn-{number}{node}")).collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        site.pools = vec![Pool::new(&format!("fast-{number}"), &nodes)];
        site.bring_up(&bed).await?;
        proven_under_load(&bed, &site).await?;
    }
    Ok(())
}

async fn proven_under_load(bed: &Arc<Bed>, site: &Site) -> TestResult {
    let members = site.members(bed).await?;
    let mut load = Load::new(Arc::new(site.store(&members, "traffic").await?));
    load.write(40, 40_000).await?;
    load.run(Pace { object_size: 8 << 10, pause: Duration::from_millis(40), writers: 3 });

    // Files vanish from a disk: nothing passive says so.
    let blocks = bed.disks.blocks(&members[0].node, &site.pools[0].data())?;
    let lost: Vec<_> = blocks.into_iter().step_by(4).collect();
    assert!(lost.len() >= 10, "{} blocks", lost.len());
    for block in &lost {
        Disks::remove_block(block)?;
    }
    let before = load.report().written;
    site.verify(bed, "while-clients-write", PROOF).await?;
    let missing = lost.iter().filter(|block| !block.exists()).count();
    assert_eq!(missing, 0, "True, and {missing} of {} blocks are missing", lost.len());

    let report = load.stop().await;
    assert!(report.written > before + 100, "that was no load: {report:?}");
    assert_eq!((report.wrong, report.failed_puts, report.failed_gets), (0, 0, 0), "{report:?}");
    load.verify().await?;
    Ok(())
}
