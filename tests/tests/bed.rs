//! The bed itself: a real control plane, Nodes, Pods, a network and disks that can fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;
use std::sync::Arc;

use holdfast_tests::bed::{self, Bed, Component};
use holdfast_tests::suite::{self, TestResult};
use holdfast_tests::test;

fn main() -> ExitCode {
    suite::run(
        "bed",
        bed::Options::default(),
        vec![
            test!(the_api_server_has_the_version_that_was_asked_for),
            test!(a_killed_api_server_comes_back_with_everything_it_had),
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
    assert!(bed.client.apiserver_version().await.is_err());
    bed.control_plane.start_component(Component::ApiServer).await?;
    bed.control_plane.wait_ready().await?;
    let said = bed.kubectl(&["get", "namespace", "before", "-o", "name"]).await?;
    assert_eq!(said.trim(), "namespace/before");
    Ok(())
}
