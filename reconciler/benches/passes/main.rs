//! What whole passes cost while nothing changes: `make bench`.
//!
//! One process has the sites (an API server and Admin APIs over TCP), another one the reconciler, whose processor time
//! and memory are looked at. A pass is what the loop makes of a cluster: it reads Kubernetes and Garage, decides, and
//! compares the status; eight at once, as in the loop. Without `--bench` it is one short round that must only be right.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_precision_loss, missing_docs)]

#[path = "../../../crds/benches/common/mod.rs"]
mod common;
mod sites;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use common::spent;
use futures::{StreamExt, stream};
use holdfast_crds::v1beta2::GarageCluster;
use holdfast_reconciler::controller::{Metrics, Passes, Settings};
use holdfast_reconciler::pool;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// What one process measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Figures {
    clusters: usize,
    nodes: usize,
    passes: u64,
    /// Processor time of a pass, in microseconds: the first tenth of the passes, and the last one.
    early: f64,
    late: f64,
    /// Of all.
    pass: f64,
    /// Resident bytes: with filled caches, after the first tenth of the passes, and at the end.
    filled: u64,
    begun: u64,
    ended: u64,
    /// Of one pass: reads of Kubernetes, calls of Garage.
    reads: f64,
    calls: f64,
    /// Writes of all passes after the first ones.
    writes: u64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse::<usize>().unwrap();
    match arguments.first().map(String::as_str) {
        Some("sites") => sites::serve(number(1), number(2)),
        Some("settle") => block_on(async {
            let reconciler = Reconciler::start(&arguments[1]).await;
            reconciler.round(3 * reconciler.all.len()).await;
        }),
        Some("measure") => println!("{}", json!(measure(number(1), number(2), number(3)))),
        _ if arguments.iter().any(|argument| argument == "--bench") => long(&arguments),
        _ => short(),
    }
}

/// This program in another role.
fn role(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Ends with the process that began it.
struct Sites(Child, String);

impl Sites {
    fn start(clusters: usize, nodes: usize) -> Self {
        let mut child = role(&["sites", &clusters.to_string(), &nodes.to_string()]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serves ").expect("the sites are not served").to_owned();
        Self(child, address)
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The product's passes, with filled caches.
struct Reconciler {
    client: kube::Client,
    passes: Passes,
    all: Vec<Arc<GarageCluster>>,
}

impl Reconciler {
    async fn start(address: &str) -> Self {
        let url = format!("http://{address}").parse().unwrap();
        let client = kube::Client::try_from(kube::Config::new(url)).unwrap();
        let settings = Settings { pools: pool::Settings::default(), short_waits: false };
        let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
        let passes = Passes::start(client.clone(), settings, metrics).await.unwrap();
        let all = passes.clusters();
        Self { client, passes, all }
    }

    /// So many passes, over one cluster after the other.
    async fn round(&self, count: usize) {
        stream::iter(self.all.iter().cycle().take(count))
            .map(|cluster| self.passes.pass(cluster.clone()))
            .buffer_unordered(8)
            .for_each(|result| async { result.unwrap() })
            .await;
    }

    /// Reads, calls and writes since it was asked last.
    async fn counts(&self) -> [u64; 3] {
        let request = http::Request::get("/counts").body(Vec::new()).unwrap();
        self.client.request(request).await.unwrap()
    }
}

/// About `wanted` passes over all clusters.
fn measure(clusters: usize, nodes: usize, wanted: usize) -> Figures {
    let sites = Sites::start(clusters, nodes);
    // Another process writes what a first look has to say, so that there is nothing left to write here.
    assert!(role(&["settle", &sites.1]).status().unwrap().success());
    block_on(async {
        let reconciler = Reconciler::start(&sites.1).await;
        assert_eq!(reconciler.all.len(), clusters);
        let filled = resident();
        // Each asks who is there.
        reconciler.round(clusters).await;
        reconciler.counts().await;
        let clock = Instant::now();
        let each = (wanted / 10).next_multiple_of(clusters);
        let mut parts = Vec::new();
        let mut begun = 0;
        while parts.len() * each < wanted || parts.len() < 2 {
            let before = spent(clock);
            reconciler.round(each).await;
            parts.push((spent(clock) - before) as f64 / 1e3 / each as f64);
            if begun == 0 {
                begun = resident();
            }
        }
        let done = parts.len() * each;
        let [reads, calls, writes] = reconciler.counts().await;
        Figures {
            clusters,
            nodes,
            passes: done as u64,
            early: parts[0],
            late: parts[parts.len() - 1],
            pass: parts.iter().sum::<f64>() / parts.len() as f64,
            filled,
            begun,
            ended: resident(),
            reads: reads as f64 / done as f64,
            calls: calls as f64 / done as f64,
            writes,
        }
    })
}

/// The same in a process of its own, whose memory nobody else has used.
fn measured(clusters: usize, nodes: usize, wanted: usize) -> Figures {
    let numbers = [clusters, nodes, wanted].map(|n| n.to_string());
    let child = role(&["measure", &numbers[0], &numbers[1], &numbers[2]]).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let figures: Figures = serde_json::from_slice(&output.stdout).expect("nothing was measured");
    assert!(figures.passes > 0 && figures.pass > 0.0 && figures.calls >= 6.0, "{figures:?}");
    assert_eq!(figures.writes, 0, "nothing changes, and yet it is written: {figures:?}");
    figures
}

fn short() {
    let one = measured(1, 3, 20);
    let many = measured(20, 3, 20);
    let large = measured(1, 12, 20);
    // Nobody is asked more because there are more of them.
    for figures in [&many, &large] {
        assert!((figures.calls - one.calls).abs() < 0.01, "{one:?} {figures:?}");
        assert!((figures.reads - one.reads).abs() < 0.01, "{one:?} {figures:?}");
    }
    println!("passes: {one:?}\n{many:?}\n{large:?}");
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn long(arguments: &[String]) {
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    let rounds: usize = after("--rounds").map_or(3, |n| n.parse().unwrap());
    println!(
        "{:<10}{:>6}{:>12}{:>14}{:>12}{:>9}{:>12}{:>14}{:>8}{:>8}",
        "clusters",
        "nodes",
        "us a pass",
        "passes/CPU-s",
        "late/early",
        "filled",
        "after",
        "at the end",
        "reads",
        "calls"
    );
    let mut kept = Vec::new();
    let mut rows = Vec::new();
    for (clusters, nodes, wanted) in
        [(1, 3, 2000), (1, 32, 1000), (1, 255, 200), (100, 3, 4000), (1000, 3, 10_000)]
    {
        let all: Vec<Figures> = (0..rounds).map(|_| measured(clusters, nodes, wanted)).collect();
        let of = |figure: fn(&Figures) -> f64| median(all.iter().map(figure).collect());
        let (pass, ratio) = (of(|f| f.pass), of(|f| f.late / f.early));
        let [filled, begun, ended] =
            [of(|f| f.filled as f64), of(|f| f.begun as f64), of(|f| f.ended as f64)]
                .map(|bytes| bytes / 1e6);
        println!(
            "{clusters:<10}{nodes:>6}{pass:>12.0}{:>14.0}{ratio:>12.2}{filled:>6.1} MB{begun:>9.1} MB{ended:>11.1} MB{:>8.1}{:>8.1}",
            1e6 / pass,
            of(|f| f.reads),
            of(|f| f.calls)
        );
        rows.push((pass, ended));
        kept.extend(all);
    }
    let [three, middle, large, hundred, thousand] = rows[..] else { return };
    println!("a pass over 32 nodes against 3: {:.1} x the time for 10.7 x the nodes", middle.0 / three.0);
    println!("a pass over 255 nodes against 3: {:.1} x the time for 85 x the nodes", large.0 / three.0);
    println!("a pass of one among 100 clusters against alone: {:.2} x", hundred.0 / three.0);
    println!("a pass of one among 1,000 clusters against alone: {:.2} x", thousand.0 / three.0);
    println!("memory of a cluster of three nodes: {:.1} KB", (thousand.1 - three.1) * 1e3 / 999.0);
    if let Some(path) = after("--json").map(PathBuf::from) {
        std::fs::write(&path, json!(kept).to_string()).unwrap();
    }
}
