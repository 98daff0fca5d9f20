//! Whatever ends a bed, nothing of it is left; and beds do not see each other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use holdfast_tests::bed::assets;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A bed with a control plane, as a process of its own.
struct Started {
    child: Child,
    processes: BTreeSet<u32>,
}

impl Started {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_holdfast-bed"))
            .args(["up", "--bare"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let up = said.map_while(Result::ok).any(|line| line.contains("goes on until Ctrl-C"));
        assert!(up, "the bed did not come up (without its binaries: make assets)");
        let processes = descendants(child.id());
        assert!(processes.len() >= 6, "init, the program, and four of the control plane: {processes:?}");
        Self { child, processes }
    }

    fn end_by(mut self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
        self.child.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let left: Vec<u32> = self.processes.iter().copied().filter(|pid| lives(*pid)).collect();
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "processes {left:?} live on after {signal}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let folder = assets::cache_folder().unwrap().join("bed");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "{} is an empty mount point", folder.display());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(folder.to_str().unwrap()), "nothing is mounted outside of the bed");
    }
}

/// All processes below one.
fn descendants(of: u32) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Some((parent, _)) = parent_and_state(pid) else { continue };
        children.entry(parent).or_default().push(pid);
    }
    let mut found = BTreeSet::new();
    let mut next = vec![of];
    while let Some(pid) = next.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.insert(child);
            next.push(child);
        }
    }
    found
}

fn lives(pid: u32) -> bool {
    // A zombie that nobody collects (in a container without an init) does nothing any more.
    parent_and_state(pid).is_some_and(|(_, state)| state != "Z")
}

fn parent_and_state(pid: u32) -> Option<(u32, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
    let state = rest.next()?.to_owned();
    Some((rest.next()?.parse().ok()?, state))
}

#[test]
fn nothing_is_left_of_a_bed_that_is_killed_and_two_beds_run_side_by_side() {
    // The same ports and the same folder, twice.
    let (first, second) = (Started::start(), Started::start());
    first.end_by(Signal::SIGKILL);
    assert!(second.processes.iter().all(|pid| lives(*pid)), "the other bed goes on");
    second.end_by(Signal::SIGTERM);
}
