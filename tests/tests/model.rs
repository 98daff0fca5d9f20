//! The executable model of Garage against real Garage: the same list of events happens to both, and at each rest both
//! must show the same (FACTS 13). What the simulated schedules find is worth as much as this.
//!
//! `cargo test --workspace --features holdfast-tests/simulation --test model`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use holdfast_reconciler::sim::garage::{ITEMS, Set};
use holdfast_reconciler::sim::{Alive, Garage, GarageVersion};
use holdfast_tests::Error;
use holdfast_tests::bed::{self, Bed, Disks, assets};
use holdfast_tests::load::{Store, content};
use holdfast_tests::site::{Member, Site};
use holdfast_tests::suite::{self, TestResult};
use holdfast_tests::test;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const NODES: [&str; 3] = ["kn-1", "kn-2", "kn-3"];
/// Garage's `rpc_timeout` here and in the model, in seconds.
const RPC_TIMEOUT: i64 = 5;
/// What the model is given to come to rest: the slowest of it is a peer's absence that is noticed.
const REST: i64 = 240;
/// What real Garage may take longer than the model, on a loaded machine.
const LATER: Duration = Duration::from_secs(240);
/// What is at rest stays as it is.
const STAYS: Duration = Duration::from_secs(15);
/// Above what Garage keeps in its tables: each object has one block.
const OBJECT: usize = 40_000;

fn main() -> ExitCode {
    suite::run(
        "model",
        &bed::Options::default(),
        vec![
            // First: before the nodes' own comparison of tables, every ten minutes, mends what the model leaves.
            test!(what_was_written_while_a_machine_was_off_comes_with_the_tables_of_its_peers),
            test!(files_that_vanish_are_missed_by_nobody_until_the_blocks_are_compared),
            test!(a_block_that_is_nowhere_is_an_error_where_it_was_looked_for),
            test!(members_that_do_not_reach_each_other_see_each_other_down),
            test!(a_frozen_member_is_seen_down_and_misses_what_was_written_meanwhile),
            test!(a_restart_forgets_its_repairs),
        ],
    )
}

/// What happens to both.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// An object is written.
    Write,
    /// Block files vanish from a disk.
    Lose(usize, Set),
    /// A repair of the tables begins on a node.
    Tables(usize),
    /// A repair of the blocks begins on a node.
    Blocks(usize),
    /// A machine loses its power.
    Off(usize),
    /// It is there again.
    On(usize),
    /// Two members no longer reach each other.
    Cut(usize, usize),
    /// They do again.
    Heal(usize, usize),
    /// A process is stopped (SIGSTOP).
    Freeze(usize),
    /// It goes on.
    Thaw(usize),
    /// A process is killed, and its container starts again.
    Restart(usize),
}

/// What both show at rest.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// For each member that answers: whom it counts as up.
    up: BTreeMap<usize, BTreeSet<usize>>,
    /// The blocks on each disk, by their objects' numbers.
    blocks: [BTreeSet<usize>; 3],
    /// For each member that answers: its repairs since it started, and whether one still runs.
    repairs: BTreeMap<usize, (usize, bool)>,
    /// For each member that answers: blocks with errors.
    errors: BTreeMap<usize, usize>,
}

fn modelled(garage: &Garage) -> Seen {
    let answering = || (0..3).filter(|x| garage.nodes[*x].alive == Alive::Up);
    let set = |bits: Set| (0..ITEMS).filter(|i| bits >> i & 1 == 1).collect::<BTreeSet<_>>();
    Seen {
        up: answering().map(|o| (o, (0..3).filter(|t| garage.sees_up(o, *t)).collect())).collect(),
        blocks: [0, 1, 2].map(|x| set(garage.nodes[x].blocks)),
        repairs: answering()
            .map(|x| {
                let repairs = &garage.nodes[x].repairs;
                (x, (repairs.len(), repairs.iter().any(|r| !r.done)))
            })
            .collect(),
        errors: answering().map(|x| (x, garage.nodes[x].errored.count_ones() as usize)).collect(),
    }
}

/// Both, and what of the one is what of the other.
struct Pair {
    bed: Arc<Bed>,
    site: Site,
    store: Store,
    model: Garage,
    /// Block hashes by the objects' numbers.
    hashes: Vec<String>,
    /// Identities by the nodes' numbers.
    ids: Vec<String>,
    alive: [bool; 3],
    bucket: String,
    /// Repairs of earlier lists, which real Garage lists until it is started anew.
    earlier: [usize; 3],
}

impl Pair {
    async fn begin(bed: &Arc<Bed>, bucket: &str) -> Result<Self, Error> {
        let mut site = Site::new(assets::GARAGE);
        site.spec = json!({"network": {"rpcPingTimeout": "2s", "rpcTimeout": format!("{RPC_TIMEOUT}s")}});
        if bed.replicas().await?.is_empty() {
            for node in ["infra-1", "infra-2"] {
                bed.add_node(node, &[("bed/role", "infra")]).await?;
            }
            bed.install(&["nodeSelector.bed/role=infra"]).await?;
            site.bring_up(bed).await?;
        }
        site.wait_up(bed).await?;
        let members = site.members(bed).await?;
        let store = site.store(&members, bucket).await?;
        let mut ids = Vec::new();
        for node in NODES {
            ids.push(site.identity(bed, node).await?);
        }
        let mut model = Garage::new(1, GarageVersion::V250, 3, 0);
        model.rpc_timeout = RPC_TIMEOUT;
        let mut pair = Self {
            bed: bed.clone(),
            site,
            store,
            model,
            hashes: Vec::new(),
            ids,
            alive: [true; 3],
            bucket: bucket.to_owned(),
            earlier: [0; 3],
        };
        // The objects that the model begins with.
        for _ in 0..pair.model.written {
            pair.write().await?;
        }
        // The model begins settled: the check that each write queues, two RPC timeouts later, is over.
        sleep(Duration::from_secs(4 * RPC_TIMEOUT.unsigned_abs())).await;
        for (x, (repairs, _)) in pair.real().await?.repairs {
            pair.earlier[x] = repairs;
        }
        Ok(pair)
    }

    /// Block hashes on a disk.
    fn on_disk(&self, x: usize) -> Result<BTreeSet<String>, Error> {
        let files = self.bed.disks.blocks(NODES[x], &self.site.pools[0].data())?;
        Ok(files.iter().map(|file| hash_of(file)).collect())
    }

    /// Writes an object through the members that run, and learns which block it has.
    async fn write(&mut self) -> Result<(), Error> {
        let members = self.site.members(&self.bed).await?;
        let running: Vec<_> = members.iter().filter(|m| self.alive[number(&m.node)]).collect();
        self.store.set_endpoints(&running.iter().map(|m| m.s3()).collect::<Vec<_>>());
        let all = |pair: &Self| -> Result<BTreeSet<String>, Error> {
            let mut all = BTreeSet::new();
            for x in 0..3 {
                all.extend(pair.on_disk(x)?);
            }
            Ok(all)
        };
        let before = all(self)?;
        let key = format!("{}-{}", self.bucket, self.hashes.len());
        self.store.put(&key, content(&key, OBJECT)).await?;
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let new: Vec<String> = all(self)?.difference(&before).cloned().collect();
            if let [hash] = new.as_slice() {
                self.hashes.push(hash.clone());
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::other(format!("{key} has {} new blocks, not one", new.len())));
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn member(&self, x: usize) -> Result<Member, Error> {
        self.site.member(&self.bed, NODES[x]).await
    }

    async fn repair(&self, x: usize, what: &str) -> Result<(), Error> {
        let member = self.member(x).await?;
        let call = format!("LaunchRepairOperation?node={}", self.ids[x]);
        let said = self.site.tell(&member, &call, json!({"repairType": what})).await?;
        if said["error"].as_object().is_none_or(serde_json::Map::is_empty) {
            return Ok(());
        }
        Err(Error::other(format!("the repair was not taken: {said}")))
    }

    async fn happen(&mut self, event: Event) -> Result<(), Error> {
        let model = &mut self.model;
        match event {
            Event::Write => {
                model.write();
                self.write().await
            }
            Event::Lose(x, which) => {
                model.lose_blocks(x, which);
                let files = self.bed.disks.blocks(NODES[x], &self.site.pools[0].data())?;
                for i in (0..self.hashes.len()).filter(|i| which >> i & 1 == 1) {
                    let file = files.iter().find(|file| hash_of(file) == self.hashes[i]);
                    Disks::remove_block(
                        file.ok_or_else(|| Error::other(format!("block {i} is not there")))?,
                    )?;
                }
                Ok(())
            }
            Event::Tables(x) => {
                model.ask_sync(x);
                self.repair(x, "tables").await
            }
            Event::Blocks(x) => {
                model.begin_blocks(x, true, 0);
                self.repair(x, "blocks").await
            }
            Event::Off(x) => {
                model.kill(x);
                (self.alive[x], self.earlier[x]) = (false, 0);
                self.bed.agent(NODES[x])?.power_off().await;
                Ok(())
            }
            Event::On(x) => {
                model.start(x, true);
                self.alive[x] = true;
                self.bed.agent(NODES[x])?.power_on();
                Ok(())
            }
            Event::Cut(a, b) | Event::Heal(a, b) => {
                let on = matches!(event, Event::Cut(..));
                if on {
                    model.cut(a, b)
                } else {
                    model.heal()
                }
                let (a, b) = (self.member(a).await?, self.member(b).await?);
                self.bed.network.isolate(&a.uid, &b.uid, on)
            }
            Event::Freeze(x) => {
                model.freeze(x);
                self.alive[x] = false;
                self.bed.signal(&self.site.namespace, &self.member(x).await?, Signal::SIGSTOP)
            }
            Event::Thaw(x) => {
                model.thaw(x);
                self.alive[x] = true;
                self.bed.signal(&self.site.namespace, &self.member(x).await?, Signal::SIGCONT)
            }
            Event::Restart(x) => {
                model.kill(x);
                model.start(x, false);
                self.earlier[x] = 0;
                self.bed.signal(&self.site.namespace, &self.member(x).await?, Signal::SIGKILL)
            }
        }
    }

    async fn real(&self) -> Result<Seen, Error> {
        let mut seen = Seen {
            up: BTreeMap::new(),
            blocks: Default::default(),
            repairs: BTreeMap::new(),
            errors: BTreeMap::new(),
        };
        for x in 0..3 {
            let here = self.on_disk(x)?;
            seen.blocks[x] = (0..self.hashes.len()).filter(|i| here.contains(&self.hashes[*i])).collect();
            if !self.alive[x] {
                continue;
            }
            let member = self.member(x).await?;
            let status = self.site.ask(&member, "GetClusterStatus").await?;
            let up = status["nodes"].as_array().into_iter().flatten().filter(|node| node["isUp"] == true);
            let up = up.filter_map(|node| self.ids.iter().position(|id| node["id"] == id.as_str())).collect();
            seen.up.insert(x, up);
            let here = format!("?node={}", self.ids[x]);
            let workers = self.site.tell(&member, &format!("ListWorkers{here}"), json!({})).await?;
            let repairs: Vec<&Value> = workers["success"][&self.ids[x]]
                .as_array()
                .ok_or_else(|| Error::other(format!("no workers of {}: {workers}", NODES[x])))?
                .iter()
                .filter(|worker| worker["name"] == "Block repair worker")
                .collect();
            let runs = repairs.iter().any(|worker| worker["state"] != "done");
            seen.repairs.insert(x, (repairs.len() - self.earlier[x].min(repairs.len()), runs));
            let errors = self.site.ask(&member, &format!("ListBlockErrors{here}")).await?;
            let errors = errors["success"][&self.ids[x]]
                .as_array()
                .ok_or_else(|| Error::other(format!("no errors of {}: {errors}", NODES[x])))?;
            // Of this list's own objects: the other lists' are not the model's.
            let ours =
                errors.iter().filter(|error| self.hashes.iter().any(|h| error["blockHash"] == h.as_str()));
            seen.errors.insert(x, ours.count());
        }
        Ok(seen)
    }

    /// Lets events happen to both and waits until both rest alike; `expected` says what the model must show there, so
    /// that a model in which nothing happens passes nothing.
    async fn play(&mut self, events: &[Event], expected: impl Fn(&Seen) -> bool) -> TestResult {
        for event in events {
            self.happen(*event).await.map_err(|error| format!("{event:?}: {error}"))?;
        }
        self.model.advance(REST);
        let wanted = modelled(&self.model);
        assert!(expected(&wanted), "the model itself does something else after {events:?}: {wanted:#?}");
        let deadline = Instant::now() + Duration::from_secs(REST.unsigned_abs()) + LATER;
        let (mut since, mut last) = (None, String::new());
        loop {
            match self.real().await {
                Ok(real) if real == wanted => {
                    let begun = *since.get_or_insert_with(Instant::now);
                    if begun.elapsed() >= STAYS {
                        return Ok(());
                    }
                }
                other => {
                    since = None;
                    last = format!("{other:#?}");
                }
            }
            if Instant::now() > deadline {
                return Err(
                    format!("after {events:?} the model shows {wanted:#?}, and real Garage {last}").into()
                );
            }
            sleep(Duration::from_secs(2)).await;
        }
    }
}

fn hash_of(file: &std::path::Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().split('.').next().unwrap_or_default().to_owned()
}

fn number(node: &str) -> usize {
    NODES.iter().position(|one| *one == node).unwrap_or(NODES.len())
}

fn whole(seen: &Seen, objects: usize) -> bool {
    seen.blocks.iter().all(|blocks| blocks.len() == objects)
}

async fn what_was_written_while_a_machine_was_off_comes_with_the_tables_of_its_peers(
    bed: Arc<Bed>,
) -> TestResult {
    let mut pair = Pair::begin(&bed, "off").await?;
    pair.play(&[], |seen| whole(seen, 3)).await?;
    pair.play(&[Event::Off(2)], |seen| seen.up[&0].len() == 2).await?;
    pair.play(&[Event::Write, Event::Write], |seen| seen.blocks[2].len() == 3).await?;
    // Its own pass after its start gives what it has, and takes nothing.
    pair.play(&[Event::On(2)], |seen| seen.up[&0].len() == 3 && seen.blocks[2].len() == 3).await?;
    pair.play(&[Event::Tables(0)], |seen| whole(seen, 5)).await
}

async fn files_that_vanish_are_missed_by_nobody_until_the_blocks_are_compared(bed: Arc<Bed>) -> TestResult {
    let mut pair = Pair::begin(&bed, "vanish").await?;
    pair.play(&[Event::Lose(1, 0b101)], |seen| seen.blocks[1].len() == 1 && seen.errors[&1] == 0).await?;
    pair.play(&[Event::Tables(0), Event::Tables(1)], |seen| seen.blocks[1].len() == 1).await?;
    pair.play(&[Event::Blocks(0)], |seen| seen.blocks[1].len() == 1 && seen.repairs[&0] == (1, false))
        .await?;
    pair.play(&[Event::Blocks(1)], |seen| whole(seen, 3) && seen.repairs[&1] == (1, false)).await
}

async fn a_block_that_is_nowhere_is_an_error_where_it_was_looked_for(bed: Arc<Bed>) -> TestResult {
    let mut pair = Pair::begin(&bed, "nowhere").await?;
    let lost = [Event::Lose(0, 0b10), Event::Lose(1, 0b10), Event::Lose(2, 0b10)];
    pair.play(&lost, |seen| seen.errors.values().all(|n| *n == 0)).await?;
    pair.play(&[Event::Blocks(2)], |seen| seen.errors[&2] == 1 && seen.errors[&0] == 0).await
}

async fn members_that_do_not_reach_each_other_see_each_other_down(bed: Arc<Bed>) -> TestResult {
    let mut pair = Pair::begin(&bed, "cut").await?;
    let apart = |seen: &Seen| {
        let up = |x| seen.up[&x].iter().copied().collect::<Vec<usize>>();
        (up(0), up(1), up(2)) == (vec![0, 2], vec![1, 2], vec![0, 1, 2])
    };
    pair.play(&[Event::Cut(0, 1)], apart).await?;
    pair.play(&[Event::Heal(0, 1)], |seen| seen.up.values().all(|up| up.len() == 3)).await
}

async fn a_frozen_member_is_seen_down_and_misses_what_was_written_meanwhile(bed: Arc<Bed>) -> TestResult {
    let mut pair = Pair::begin(&bed, "frozen").await?;
    pair.play(&[Event::Freeze(2)], |seen| seen.up[&0].len() == 2 && !seen.up.contains_key(&2)).await?;
    pair.play(&[Event::Write], |seen| seen.blocks[2].len() == 3).await?;
    pair.play(&[Event::Thaw(2)], |seen| seen.up[&0].len() == 3).await?;
    pair.play(&[Event::Tables(0), Event::Tables(1)], |seen| whole(seen, 4)).await
}

async fn a_restart_forgets_its_repairs(bed: Arc<Bed>) -> TestResult {
    let mut pair = Pair::begin(&bed, "restart").await?;
    pair.play(&[Event::Blocks(0), Event::Blocks(1)], |seen| seen.repairs[&0].0 == 1).await?;
    pair.play(&[Event::Restart(0)], |seen| seen.repairs[&0].0 == 0 && seen.repairs[&1].0 == 1).await
}
