//! A Writer and a Follower of one Garage layout (behaviour.md, section 10). Each site has a GarageCluster of its
//! own and repairs its own nodes; what one knows of the other it reads in Garage. One API server stands for the
//! two that a federation has: nothing in it connects the two objects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use holdfast_tests::bed::{self, Bed, assets};
use holdfast_tests::load::Load;
use holdfast_tests::repairs::Launches;
use holdfast_tests::service::{VERIFY, answered};
use holdfast_tests::site::{Member, Pool, Site, condition, yaml};
use holdfast_tests::suite::{self, TestResult};
use holdfast_tests::{Error, test};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_secs(300);
/// Two proofs that wait for each other, with one anti-entropy interval each.
const PROOF: Duration = Duration::from_secs(800);
const REPLICATED: &str = "FullyReplicated";

fn main() -> ExitCode {
    suite::run(
        "federation",
        &bed::Options::default(),
        vec![
            test!(two_sites_of_one_layout_are_told_apart_and_without_a_role_nothing_runs),
            test!(a_follower_waits_for_the_writer_and_each_repairs_its_own_nodes_alone),
        ],
    )
}

fn site(name: &str, other: &str) -> Site {
    let mut site = Site::new(assets::GARAGE);
    (site.namespace, site.name) = (name.to_owned(), name.to_owned());
    let nodes: Vec<String> = (1..=3).map(|number| format!("{name}-{number}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    site.pools = vec![Pool::new(name, &nodes)];
    site.spec = json!({
        "zone": name,
        "layoutPolicy": "Manual",
        "network": {
            "rpcPingTimeout": "2s", "rpcTimeout": "5s",
            "rpcSecretRef": {"name": "rpc", "key": "secret"},
        },
        "remoteClusters": [
            {"name": other, "zone": other, "connection": {"adminApiEndpoint": format!("http://{other}:3903")}},
        ],
    });
    site
}

fn sites() -> [Site; 2] {
    [site("north", "south"), site("south", "north")]
}

async fn role(bed: &Bed, site: &Site, role: &str) -> Result<(), Error> {
    let patch = json!({"spec": {"layoutManagement": {"siteRole": role}}}).to_string();
    let words = ["-n", &site.namespace, "patch", "garagecluster", &site.name, "--type=merge", "-p", &patch];
    bed.kubectl(&words).await.map(|_| ())
}

/// The three members of a site, running, and their identities.
async fn members(bed: &Bed, site: &Site) -> Result<Vec<(Member, String)>, Error> {
    let deadline = Instant::now() + STEP;
    loop {
        let mut known = Vec::new();
        for member in site.members(bed).await? {
            if let Ok(id) = site.identity(bed, &member.node).await {
                known.push((member, id));
            }
        }
        if known.len() == 3 {
            return Ok(known);
        }
        if Instant::now() > deadline {
            return Err(Error::other(format!("{} has no three members: {known:?}", site.name)));
        }
        sleep(Duration::from_secs(1)).await;
    }
}

async fn two_sites_of_one_layout_are_told_apart_and_without_a_role_nothing_runs(bed: Arc<Bed>) -> TestResult {
    for node in ["infra-1", "infra-2"] {
        bed.add_node(node, &[("bed/role", "infra")]).await?;
    }
    bed.install(&["nodeSelector.bed/role=infra"]).await?;
    let sites = sites();
    for site in &sites {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": site.namespace}});
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "rpc", "namespace": site.namespace},
            "stringData": {"secret": "5a".repeat(32)},
        });
        bed.apply(&yaml(&[namespace, secret])?).await?;
        site.prepare(&bed).await?;
        bed.apply(&site.manifest()?).await?;
    }
    // One layout of both, by hand: with `layoutPolicy: Manual` it is the administrator's.
    let (mut peers, mut roles, mut everybody) = (Vec::new(), Vec::new(), Vec::new());
    for site in &sites {
        let uid = site.get(&bed.client).await?.uid().unwrap();
        for (member, id) in members(&bed, site).await? {
            peers.push(format!("{id}@{}:3901", member.ip));
            let tags = [
                format!("cluster:{}/{}", site.name, site.namespace),
                format!("cluster-uid:{uid}"),
                "tier:storage".to_owned(),
            ];
            roles.push(json!({"id": id, "zone": site.name, "capacity": 1_000_000_000, "tags": tags}));
            everybody.push((site.clone(), member));
        }
    }
    let first = &everybody[0].1;
    sites[0].tell(first, "ConnectClusterNodes", json!(peers)).await?;
    sites[0].tell(first, "UpdateClusterLayout", json!({"roles": roles})).await?;
    sites[0].tell(first, "ApplyClusterLayout", json!({"version": 1})).await?;
    let deadline = Instant::now() + 3 * MINUTE;
    for (site, member) in &everybody {
        loop {
            let health = site.ask(member, "GetClusterHealth").await?;
            if health["status"] == "healthy" && health["storageNodesUp"] == 6 {
                break;
            }
            assert!(Instant::now() < deadline, "{} says {health}", member.node);
            sleep(Duration::from_secs(1)).await;
        }
    }
    let members: Vec<Member> = everybody.into_iter().map(|(_, member)| member).collect();
    let load = Load::new(Arc::new(sites[0].store(&members, "federated").await?));
    load.write(30, 40_000).await?;

    // P5: nobody knows who may begin.
    for site in &sites {
        site.annotate(&bed, VERIFY, Some("without-a-role")).await?;
        site.wait_reason(&bed, REPLICATED, "SiteRoleUnset", STEP).await?;
    }
    sleep(Duration::from_secs(20)).await;
    for site in &sites {
        let redundancy = site.get(&bed.client).await?.data["status"]["redundancy"].clone();
        assert_eq!(redundancy.get("verification"), None, "{redundancy}");
        assert_eq!(redundancy["nodes"].as_array().map(Vec::len), Some(6), "{redundancy}");
        assert_eq!(site.launches(&bed)?, Launches::default());
        site.annotate(&bed, VERIFY, None).await?;
    }
    Ok(())
}

async fn a_follower_waits_for_the_writer_and_each_repairs_its_own_nodes_alone(bed: Arc<Bed>) -> TestResult {
    let [north, south] = sites();
    role(&bed, &north, "Writer").await?;
    role(&bed, &south, "Follower").await?;
    for site in [&north, &south] {
        site.wait(&bed, "three of six nodes local", STEP, |object| {
            let redundancy = &object["status"]["redundancy"];
            let counts = &redundancy["storageNodes"];
            let fits = redundancy["scope"] == "Local" && counts["total"] == 6 && counts["local"] == 3;
            if fits { Ok(()) } else { Err(redundancy.to_string()) }
        })
        .await?;
    }
    north.annotate(&bed, VERIFY, Some("writer")).await?;
    north
        .wait(&bed, "the Writer's blocks turns", PROOF, |object| {
            let evidence = &object["status"]["redundancy"]["verification"]["evidence"];
            let scans = evidence["nodeStage"] == "Blocks" && evidence["stageLaunchedAt"].is_string();
            if scans { Ok(()) } else { Err(condition(object, REPLICATED).to_string()) }
        })
        .await?;
    assert_eq!(south.launches(&bed)?, Launches::default(), "the Writer repairs no node of the Follower");

    // F1, F2: what is launched on the Writer's nodes is seen there.
    south.annotate(&bed, VERIFY, Some("follower")).await?;
    south.wait_reason(&bed, REPLICATED, "WaitingForOtherSite", STEP).await?;
    let deadline = Instant::now() + PROOF;
    while south.launches(&bed)? == Launches::default() {
        assert!(Instant::now() < deadline, "the Follower waits for good\n{}", bed.state().await);
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(north.launches(&bed)?.blocks, 3, "the Follower began before the Writer had scanned its nodes");

    for (site, token, words) in [
        (&north, "writer", "3/6 federated storage nodes verified (writer-local)"),
        (&south, "follower", "3/6 federated storage nodes verified (follower-local)"),
    ] {
        let said: Value = site
            .wait(&bed, "VerifiedLocal", PROOF, |object| {
                answered(object, token).map(|()| condition(object, REPLICATED).clone())
            })
            .await?;
        assert_eq!(said["reason"], "VerifiedLocal");
        assert!(said["message"].to_string().contains(words), "{said}");
        let launched = site.launches(&bed)?;
        assert_eq!(launched.blocks, 3, "{launched:?}");
        assert!((3..=9).contains(&launched.tables), "{launched:?}");
        assert_eq!(site.deleted_block(&bed)?, None);
    }
    Ok(())
}
