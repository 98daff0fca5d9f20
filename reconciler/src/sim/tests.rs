#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::invariants::Broken;
use super::*;

/// `HOLDFAST_SIM_SCHEDULES` scales it: 100,000 in `make test`, 1,000,000 in `make soak`.
fn schedules() -> u64 {
    std::env::var("HOLDFAST_SIM_SCHEDULES").ok().and_then(|s| s.parse().ok()).unwrap_or(2_000)
}

/// Runs seeds on two threads; the first seed that fails, if any.
fn first_failure(from: u64, count: u64, mutation: Mutation) -> Option<u64> {
    let next = AtomicU64::new(from);
    let failed = AtomicU64::new(u64::MAX);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count || failed.load(Ordering::Relaxed) < u64::MAX {
                        return;
                    }
                    if run(&Schedule::new(seed), mutation).is_err() {
                        failed.fetch_min(seed, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    Some(failed.into_inner()).filter(|s| *s < u64::MAX)
}

#[test]
#[ignore = "minutes of processor time unoptimized: tests/simulation.sh runs it optimized"]
fn no_schedule_of_faults_breaks_an_invariant_and_all_converge_when_the_faults_stop() {
    let from = std::env::var("HOLDFAST_SIM_FROM").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    if let Some(seed) = first_failure(from, schedules(), Mutation::None) {
        let (schedule, violation) = shrink(&Schedule::new(seed), Mutation::None);
        panic!("seed {seed}: {violation:?} in {schedule:#?}");
    }
}

/// What chance seldom brings together: a disk of an old release is full, misses a block, is freed, and a whole
/// proof follows without a scrub (O9, end).
fn a_full_disk_that_an_old_release_did_not_notice() -> Schedule {
    let pass = Event::Pass(700);
    let mut events = vec![Event::Pass(60), Event::Fill(1, true, true), Event::Pass(60), Event::Write];
    events.extend([Event::Pass(60), Event::Fill(1, true, false), Event::Request, pass, pass, pass, pass]);
    Schedule {
        seed: 7,
        old: true,
        local: 3,
        remote: 0,
        follower: false,
        anti_entropy: false,
        busy: false,
        events,
    }
}

#[test]
fn a_disk_that_an_old_release_filled_without_a_word_is_not_proven_without_a_scrub() {
    let schedule = a_full_disk_that_an_old_release_did_not_notice();
    run(&schedule, Mutation::None).unwrap_or_else(|violation| panic!("{violation:?}"));
    let caught = run(&schedule, Mutation::ForgetUnscrubbed).expect_err("a bug that was not caught");
    assert!(matches!(caught.broken, Broken::FalseTrue { node: 1, .. }), "{caught:?}");
}

#[test]
#[ignore = "minutes of processor time unoptimized: tests/simulation.sh runs it optimized"]
fn every_seeded_bug_is_caught() {
    let mut missed = Vec::new();
    // The one that only a directed schedule reaches has a test of its own.
    for mutation in Mutation::ALL.into_iter().filter(|m| *m != Mutation::ForgetUnscrubbed) {
        match first_failure(0, 20_000, mutation) {
            None => missed.push(mutation),
            Some(seed) => {
                let (schedule, violation) = shrink(&Schedule::new(seed), mutation);
                println!(
                    "{mutation:?}: seed {seed}, {} events, {:?}",
                    schedule.events.len(),
                    violation.broken
                );
            }
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
