//! What a request costs: a server in a process of its own, asked over TLS.
//!
//! Prints the processor time of the server's process for an admission request and the objects that it converts in a
//! second of it, latencies at 500 requests a second, resident memory, and the time from exec to the first answer:
//! medians over rounds, each with a new server. Beside them those of a controller-runtime webhook for the same kinds,
//! measured once on a machine of the same kind; or, with `--against URL`, of another webhook server that runs on this
//! machine and is sent the same.
//!
//! Arguments: seconds of load a round (default 10), `--rounds N` (default 3), `--json FILE` for all rounds,
//! `--only TEXT` of the lists (`admission`: none), `--against https://HOST:PORT`, with `--convert-path` and `--admit-path` where its routes are others than ours.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    missing_docs
)]

#[path = "../../tests/common/mod.rs"]
mod common;
mod payload;
#[path = "../../../crds/benches/common/mod.rs"]
mod shared;
mod target;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Facts, members};
use holdfast_crds::convert::Version;
use holdfast_webhook::{CertSlot, Config, Server};
use serde_json::json;
use target::Target;

const SERVER: &str = "--as-server";
const RATE: u32 = 500;

/// A figure of a round: its name in JSON, what it is, its unit, whether more is better, and the peer's.
struct Figure {
    name: String,
    what: String,
    unit: &'static str,
    more_is_better: bool,
    peer: Option<f64>,
    value: f64,
}

/// The lists that are converted: how many objects, 20 KB or 1.4 KB, to which version.
type List = (usize, bool, Version);

const LISTS: [List; 12] = [
    (500, false, Version::V1beta1),
    (500, false, Version::V1beta2),
    (500, true, Version::V1beta1),
    (500, true, Version::V1beta2),
    (50, false, Version::V1beta1),
    (50, false, Version::V1beta2),
    (50, true, Version::V1beta1),
    (50, true, Version::V1beta2),
    (1, false, Version::V1beta1),
    (1, false, Version::V1beta2),
    (1, true, Version::V1beta1),
    (1, true, Version::V1beta2),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|i| arguments.get(i + 1));
    if arguments.iter().any(|a| a == SERVER) {
        server();
    } else if !arguments.iter().any(|a| a == "--test") {
        let rounds = after("--rounds").map_or(3, |n| n.parse::<usize>().unwrap());
        let seconds = arguments.get(1).and_then(|a| a.parse().ok()).unwrap_or(10);
        let only = after("--only").map_or("", String::as_str);
        let lists: Vec<_> = LISTS.into_iter().filter(|list| what(*list).contains(only)).collect();
        // One core for the client; the other is the server's.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let measured = |target: &dyn Fn() -> Target| -> Vec<Vec<Figure>> {
            (0..rounds).map(|_| runtime.block_on(measure(&target(), seconds, &lists))).collect()
        };
        let ours = measured(&Target::own);
        let other = after("--against")
            .map(|url| measured(&|| Target::at(url, after("--convert-path"), after("--admit-path"))));
        print(&ours, other.as_deref(), seconds, after("--json"));
    }
}

fn what((count, large, to): List) -> String {
    format!("list of {count} of {} to {to}", if large { "20 KB" } else { "1.4 KB" })
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
}

fn median(rounds: &[Vec<Figure>], i: usize) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(|round| round[i].value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Medians and how many times better than the other they are.
fn print(rounds: &[Vec<Figure>], other: Option<&[Vec<Figure>]>, seconds: u32, json_file: Option<&String>) {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let machine =
        format!("{cores} x {}, Linux {}", model.trim_start_matches(['\t', ' ', ':']), said("uname", &["-r"]));
    let versions =
        format!("garage-holdfast {}, {}", env!("CARGO_PKG_VERSION"), said("rustc", &["--version"]));
    println!("{machine}\n{versions}\nmedians of {} rounds, {seconds} s of load each\n", rounds.len());
    println!("{:<44} {:>10} {:<22} {:>9} {:>7}", "", "median", "", "peer", "better");
    let mut figures = serde_json::Map::new();
    for (i, figure) in rounds[0].iter().enumerate() {
        let ours = median(rounds, i);
        let peer = match other {
            Some(other) => Some(median(other, i)).filter(|theirs| !theirs.is_nan()),
            None => figure.peer,
        };
        let ratio = peer.map(|peer| if figure.more_is_better { ours / peer } else { peer / ours });
        let digits = usize::from(ours < 1000.0) * 3;
        let (what, unit) = (&figure.what, figure.unit);
        let peer_text = peer.map_or_else(String::new, |p| format!("{:.*}", usize::from(p < 1000.0) * 2, p));
        let ratio_text = ratio.map_or_else(String::new, |r| format!("{r:.1} x"));
        println!("{what:<44} {ours:>10.digits$} {unit:<22} {peer_text:>9} {ratio_text:>7}");
        figures.insert(
            figure.name.clone(),
            json!({"unit": unit, "median": ours, "peer": peer, "ratio": ratio,
                "rounds": rounds.iter().map(|r| r[i].value).collect::<Vec<_>>()}),
        );
    }
    if let Some(file) = json_file {
        let all =
            json!({"machine": machine, "versions": versions, "secondsOfLoad": seconds, "figures": figures});
        std::fs::write(file, serde_json::to_string_pretty(&all).unwrap() + "\n").unwrap();
    }
}

/// Serves until killed, as the product does: on a thread of its own. Its first line tells where.
fn server() {
    let cert = common::certificate();
    let slot = Arc::new(arc_swap::ArcSwapOption::from(Some(cert.key)));
    let facts = Arc::new(Facts::default());
    *facts.members.lock().unwrap() = members();
    let mut registry = prometheus_client::registry::Registry::default();
    let config = Config::new(([127, 0, 0, 1], 0).into());
    // Opening the listener asks for some runtime; it is not the one that serves.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server =
        runtime.block_on(async { Server::bind(config, CertSlot::new(slot), facts, &mut registry) }).unwrap();
    drop(runtime);
    println!("{}", server.local_addr());
    server.run_here(tokio_util::sync::CancellationToken::new()).unwrap();
}

/// One round.
async fn measure(target: &Target, seconds: u32, lists: &[List]) -> Vec<Figure> {
    let sender = target.connect().await;
    let review = payload::admission();
    let first = target.admit(&sender, review.clone()).await;
    let first_answer = target.begun.map_or(f64::NAN, |begun| begun.elapsed().as_secs_f64() * 1e3);
    assert!(String::from_utf8_lossy(&first).contains(r#""allowed":true"#));
    let idle = target.resident();

    // Open loop: a late answer delays no other request.
    let total = RATE * seconds;
    let before = target.cpu();
    let start = tokio::time::Instant::now();
    let mut asked = Vec::new();
    for i in 0..total {
        tokio::time::sleep_until(start + Duration::from_secs(1) / RATE * i).await;
        let answer = target.admit(&sender, review.clone());
        asked.push(tokio::spawn(async move {
            let begun = Instant::now();
            answer.await;
            begun.elapsed()
        }));
    }
    let mut took = Vec::new();
    for task in asked {
        took.push(task.await.unwrap());
    }
    let admission = target.cpu().saturating_sub(before).as_secs_f64() * 1e3 / f64::from(total);
    took.sort_unstable();
    let quantile = |q: f64| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let i = ((took.len() - 1) as f64 * q) as usize;
        took[i].as_secs_f64() * 1e3
    };
    let figure = |name: &str, what: &str, unit, more_is_better, peer, value| Figure {
        name: name.to_owned(),
        what: what.to_owned(),
        unit,
        more_is_better,
        peer,
        value,
    };
    let mut figures = vec![
        figure(
            "admissionCpuMilliseconds",
            "admission, CPU of the server",
            "ms a request",
            false,
            Some(0.68),
            admission,
        ),
        figure(
            "admissionP99Milliseconds",
            "admission at 500/s over TLS, p99",
            "ms",
            false,
            Some(1.7),
            quantile(0.99),
        ),
        figure(
            "admissionP50Milliseconds",
            "admission at 500/s over TLS, p50",
            "ms",
            false,
            None,
            quantile(0.5),
        ),
        figure(
            "firstAnswerMilliseconds",
            "from exec to the first answer",
            "ms",
            false,
            Some(40.0),
            first_answer,
        ),
        figure("idleMegabytes", "resident memory after the first answer", "MB", false, Some(32.0), idle),
    ];
    for list in lists {
        let per_cpu_second = convert(target, &sender, *list).await;
        let peer = (*list == LISTS[0]).then_some(8_700.0);
        let what = what(*list);
        let name = format!("convertedPerCpuSecond/{what}");
        figures.push(figure(&name, &what, "objects a CPU-second", true, peer, per_cpu_second));
        if *list == LISTS[0] {
            let resident = target.resident();
            let what = "resident memory after lists of 500";
            figures.push(figure("residentMegabytes", what, "MB", false, Some(32.0), resident));
        }
    }
    figures
}

/// Objects that are converted in a second of the server's processor time.
async fn convert(target: &Target, sender: &target::Sender, (count, large, to): List) -> f64 {
    let review = payload::conversion(count, large, to);
    target.convert(sender, review.clone()).await;
    // About 30 MB in all.
    let times = (30_000_000 / review.len()).clamp(3, 2000);
    let before = target.cpu();
    for _ in 0..times {
        let answer = target.convert(sender, review.clone()).await;
        assert!(answer.ends_with(b"}}}") && answer.len() > count * 300);
    }
    (count * times) as f64 / target.cpu().saturating_sub(before).as_secs_f64()
}
