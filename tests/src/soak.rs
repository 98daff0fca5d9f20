//! The soak: a site under object load, and one disruption after the other, chosen by a seed.
//!
//! Each disruption ends with the site well again, or the soak ends with an error. At the end every object that
//! Garage ever acknowledged is read back, and what happened is printed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::bed::{self, Bed, Component, Disks};
use crate::error::{Error, Result};
use crate::load::{Load, Pace};
use crate::service::{HOLD, REPLACE};
use crate::site::{Member, Site, condition};

/// How long, and which story.
#[derive(Debug, Clone)]
pub struct Options {
    /// Disruptions begin until then.
    pub minutes: u64,
    /// Chooses them.
    pub seed: u64,
    /// Garage's version.
    pub garage: String,
}

const PROOF: Duration = Duration::from_secs(900);
const STEP: Duration = Duration::from_secs(600);

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Disruption {
    KillGarage,
    FreezeGarage,
    CutNode,
    CutTwo,
    PowerOff,
    DeletePod,
    KillLeader,
    KillApiServer,
    RotateCertificates,
    ChangeLayoutByHand,
    LoseBlocks,
    KeepDisk,
    SwapDisk,
}

/// Each as often as it stands here.
const DISRUPTIONS: [Disruption; 15] = [
    Disruption::KillGarage,
    Disruption::FreezeGarage,
    Disruption::CutNode,
    Disruption::CutTwo,
    Disruption::PowerOff,
    Disruption::DeletePod,
    Disruption::KillLeader,
    Disruption::KillLeader,
    Disruption::KillApiServer,
    Disruption::RotateCertificates,
    Disruption::ChangeLayoutByHand,
    Disruption::LoseBlocks,
    Disruption::KeepDisk,
    Disruption::SwapDisk,
    Disruption::SwapDisk,
];

/// Plays it in the bed's folder `root`.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    println!("soak: {} minutes, Garage {}, seed {}", options.minutes, options.garage, options.seed);
    let bed = Arc::new(Bed::start(root, &bed::Options::default()).await?);
    for node in ["infra-1", "infra-2"] {
        bed.add_node(node, &[("bed/role", "infra")]).await?;
    }
    bed.install(&["nodeSelector.bed/role=infra"]).await?;
    let mut site = Site::new(&options.garage);
    site.spec = json!({"network": {"rpcPingTimeout": "2s", "rpcTimeout": "10s"}});
    site.bring_up(&bed).await?;
    let members = site.members(&bed).await?;
    let load = Load::new(Arc::new(site.store(&members, "soak").await?));
    load.write(30, 40_000).await?;

    let mut soak = Soak {
        bed: bed.clone(),
        site,
        load,
        rng: StdRng::seed_from_u64(options.seed),
        begun: Instant::now(),
        done: BTreeMap::new(),
        proofs: 0,
        unfinished: 0,
    };
    soak.load.run(Pace { object_size: 24 << 10, pause: Duration::from_millis(1500), writers: 1 });
    let played = soak.play(Duration::from_secs(options.minutes * 60)).await;
    let report = soak.load.stop().await;
    if let Err(error) = played {
        let logs = bed::beside_the_program("bed-logs").join("soak");
        bed::keep_logs(&bed.logs, &logs)?;
        let state = bed.state().await;
        return Err(Error::other(format!("{error}\n\nThe bed:\n{state}\nits logs: {}", logs.display())));
    }
    soak.aim(None).await?;
    let objects = soak.load.verify().await?;
    println!("\nwhat happened in {} minutes:", soak.begun.elapsed().as_secs() / 60);
    for (disruption, times) in &soak.done {
        println!("  {times:>3} x {disruption:?}");
    }
    println!("  {:>3} proofs that ended True", soak.proofs);
    println!("  {:>3} uploads that a dying node left unfinished, ended by hand", soak.unfinished);
    println!(
        "objects: {objects} written and all read back equal, {} reads meanwhile, {} wrong\n\
         requests that failed while a node was away: {} writes, {} reads (none was acknowledged)",
        report.read, report.wrong, report.failed_puts, report.failed_gets
    );
    if report.wrong > 0 {
        return Err(Error::other(format!("{} objects came back different: {report:?}", report.wrong)));
    }
    println!("lost: nothing");
    Ok(())
}

struct Soak {
    bed: Arc<Bed>,
    site: Site,
    load: Load,
    rng: StdRng,
    begun: Instant,
    done: BTreeMap<Disruption, u32>,
    proofs: u32,
    unfinished: u64,
}

impl Soak {
    async fn play(&mut self, time: Duration) -> Result<()> {
        while self.begun.elapsed() < time {
            let disruption =
                *DISRUPTIONS.choose(&mut self.rng).ok_or_else(|| Error::other("no disruptions"))?;
            let nodes = self.site.nodes();
            let node = nodes.choose(&mut self.rng).cloned().ok_or_else(|| Error::other("no nodes"))?;
            let begun = self.begun.elapsed().as_secs();
            println!("{:>4}:{:02}  {disruption:?} {node}", begun / 60, begun % 60);
            self.disrupt(disruption, &node)
                .await
                .map_err(|error| Error::other(format!("{disruption:?} of {node}: {error}")))?;
            self.well()
                .await
                .map_err(|error| Error::other(format!("after {disruption:?} of {node}: {error}")))?;
            *self.done.entry(disruption).or_default() += 1;
            sleep(Duration::from_secs(self.rng.random_range(1..10))).await;
        }
        self.verify().await
    }

    async fn disrupt(&mut self, disruption: Disruption, node: &str) -> Result<()> {
        let bed = self.bed.clone();
        let away = Duration::from_secs(self.rng.random_range(5..40));
        match disruption {
            Disruption::KillGarage => {
                let member = self.site.member(&bed, node).await?;
                bed.signal(&self.site.namespace, &member, Signal::SIGKILL)?;
            }
            Disruption::FreezeGarage => {
                let member = self.site.member(&bed, node).await?;
                bed.signal(&self.site.namespace, &member, Signal::SIGSTOP)?;
                sleep(away).await;
                // Its liveness probe may have ended it meanwhile.
                let _ = bed.signal(&self.site.namespace, &member, Signal::SIGCONT);
            }
            Disruption::CutNode => {
                bed.network.set_node_link(node, false)?;
                sleep(away).await;
                bed.network.set_node_link(node, true)?;
            }
            Disruption::CutTwo => {
                let members = self.site.members(&bed).await?;
                let pair: Vec<&Member> = members.iter().filter(|member| member.node != node).collect();
                let [one, other] = pair[..] else { return Err(Error::other("not three members")) };
                bed.network.isolate(&one.uid, &other.uid, true)?;
                sleep(away).await;
                bed.network.isolate(&one.uid, &other.uid, false)?;
            }
            Disruption::PowerOff => {
                let machine = bed.agent(node)?;
                machine.power_off().await;
                sleep(away).await;
                machine.power_on();
            }
            Disruption::DeletePod => {
                let member = self.site.member(&bed, node).await?;
                bed.kubectl(&["-n", &self.site.namespace, "delete", "pod", &member.pod]).await?;
            }
            Disruption::KillLeader => {
                // There is none for a moment after the last one was killed.
                let _ = bed.signal_leader(Signal::SIGKILL).await;
            }
            Disruption::KillApiServer => {
                bed.control_plane.kill(Component::ApiServer).await?;
                sleep(away / 4).await;
                bed.control_plane.start_component(Component::ApiServer).await?;
                bed.control_plane.wait_ready().await?;
            }
            Disruption::RotateCertificates => {
                let token: u32 = self.rng.random();
                let annotation = format!("garage.rajsingh.info/rotate-webhook-ca=soak-{token}");
                let secret = ["-n", "garage-holdfast", "annotate", "--overwrite", "secret"];
                let name = "garage-holdfast-ca";
                bed.kubectl(&[&secret[..], &[name, &annotation]].concat()).await?;
            }
            Disruption::ChangeLayoutByHand => {
                let member = self.site.member(&bed, node).await?;
                let layout = self.site.ask(&member, "GetClusterLayout").await?;
                let id = self.site.identity(&bed, node).await?;
                let mut roles = layout["roles"].as_array().into_iter().flatten();
                let role = roles.find(|role| role["id"] == id.as_str());
                let mut role = role.cloned().ok_or_else(|| Error::other("the member has no role"))?;
                let tag = format!("soak-{}", self.rng.random_range(0..1000));
                role["tags"].as_array_mut().ok_or_else(|| Error::other("no tags"))?.push(json!(tag));
                let role = json!({"id": role["id"], "zone": role["zone"], "capacity": role["capacity"], "tags": role["tags"]});
                self.site.tell(&member, "UpdateClusterLayout", json!({"roles": [role]})).await?;
                sleep(away / 4).await;
                let next = layout["version"].as_u64().unwrap_or_default() + 1;
                self.site.tell(&member, "ApplyClusterLayout", json!({"version": next})).await?;
            }
            Disruption::LoseBlocks => {
                self.verify().await?;
                let blocks = bed.disks.blocks(node, &self.site.pools[0].data())?;
                let lost: Vec<_> = blocks.iter().step_by(5).collect();
                for block in &lost {
                    Disks::remove_block(block)?;
                }
                self.verify().await?;
                let missing = lost.iter().filter(|block| !block.exists()).count();
                if missing > 0 {
                    return Err(Error::other(format!(
                        "True, and {missing} of {} blocks are missing",
                        lost.len()
                    )));
                }
            }
            Disruption::KeepDisk => {
                self.hold(node).await?;
                sleep(away).await;
                self.site.annotate(&bed, HOLD, None).await?;
                self.site.wait_reason(&bed, "NodeLocalOutOfService", "InService", STEP).await?;
            }
            Disruption::SwapDisk => {
                self.hold(node).await?;
                let old = self.site.identity(&bed, node).await?;
                self.site.swap_disks(&bed, node)?;
                self.site.annotate(&bed, HOLD, None).await?;
                self.site.wait_reason(&bed, "NodeLocalOutOfService", "DifferentIdentity", STEP).await?;
                let pair = format!("{}/{node}", self.site.pools[0].name);
                self.site.annotate(&bed, REPLACE, Some(&format!("{pair}/{old}"))).await?;
                self.site.wait_reason(&bed, "NodeLocalIdentityReplaced", "Replaced", STEP).await?;
                self.site.annotate(&bed, REPLACE, None).await?;
                self.verify().await?;
            }
        }
        Ok(())
    }

    /// Proves the site and holds a node; its clients are sent to the others.
    async fn hold(&mut self, node: &str) -> Result<()> {
        self.verify().await?;
        self.aim(Some(node)).await?;
        let pair = format!("{}/{node}", self.site.pools[0].name);
        self.site.annotate(&self.bed, HOLD, Some(&pair)).await?;
        self.site.wait_reason(&self.bed, "NodeLocalOutOfService", "SafeToService", STEP).await?;
        let running = self.bed.agent(node)?.pods().iter().any(|pod| pod.namespace == self.site.namespace);
        if running { Err(Error::other(format!("safe was said while a Pod ran on {node}"))) } else { Ok(()) }
    }

    async fn verify(&mut self) -> Result<()> {
        self.end_unfinished_uploads().await?;
        self.proofs += 1;
        let token = format!("soak-{}", self.proofs);
        self.site.verify(&self.bed, &token, PROOF).await
    }

    /// What docs/src/missing-block.md tells a person to do after a node died: it leaves references to blocks that nobody
    /// wrote, and no proof ends over them.
    async fn end_unfinished_uploads(&mut self) -> Result<()> {
        let members = self.site.members(&self.bed).await?;
        let member = members.first().ok_or_else(|| Error::other("no members"))?;
        let bucket = self.site.ask(member, "GetBucketInfo?globalAlias=soak").await?;
        // Longer than a request of the load may take.
        let old = json!({"bucketId": bucket["id"], "olderThanSecs": 40});
        let ended = self.site.tell(member, "CleanupIncompleteUploads", old).await?;
        let ended = ended["uploadsDeleted"].as_u64().unwrap_or_default();
        if ended > 0 {
            self.unfinished += ended;
            self.site.tell(member, "RetryBlockResync?node=*", json!({"all": true})).await?;
        }
        Ok(())
    }

    /// Sends the load to the members, but not to one.
    async fn aim(&self, without: Option<&str>) -> Result<()> {
        let members = self.site.members(&self.bed).await?;
        let members = members.iter().filter(|member| Some(member.node.as_str()) != without);
        self.load.store().set_endpoints(&members.map(Member::s3).collect::<Vec<_>>());
        Ok(())
    }

    /// Waits until the site has all it should have, and sends the load to all members.
    async fn well(&self) -> Result<()> {
        self.site
            .wait(&self.bed, "a site that is well", STEP, |object| {
                let ready = condition(object, "NodeLocalPoolsReady");
                let healthy = object["status"]["health"]["status"] == "healthy";
                if ready["status"] == "True" && healthy { Ok(()) } else { Err(ready.to_string()) }
            })
            .await?;
        self.site.wait_up_within(&self.bed, STEP).await?;
        self.aim(None).await
    }
}
