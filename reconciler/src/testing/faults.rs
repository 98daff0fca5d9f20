//! Which write or call of a run fails, and how: what a sweep goes through.

use std::collections::BTreeMap;

/// How a write or a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Nothing happens, and the caller cannot tell.
    Before,
    /// It takes effect, and its answer is lost.
    After,
    /// It takes effect, and the process dies with the answer.
    Crash,
    /// No answer, and it takes effect some passes later (a launch that timed out was seen to run 80 s later).
    Late,
}

/// What fails in a run. Writes and calls are counted from 0 in the order in which they are made.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    plan: BTreeMap<usize, Fault>,
    made: usize,
    /// What was counted, in order.
    pub names: Vec<&'static str>,
}

impl Faults {
    /// With these faults.
    pub fn of(plan: impl IntoIterator<Item = (usize, Fault)>) -> Self {
        Self { plan: plan.into_iter().collect(), ..Self::default() }
    }

    /// Counts a write or a call, and says how it fails.
    pub fn next(&mut self, name: &'static str) -> Option<Fault> {
        let fault = self.plan.get(&self.made).copied();
        self.made += 1;
        self.names.push(name);
        fault
    }

    /// One more fault.
    pub fn fail(&mut self, at: usize, fault: Fault) {
        self.plan.insert(at, fault);
    }

    /// How many were made.
    pub const fn made(&self) -> usize {
        self.made
    }
}

/// Every `n`-th case; all of them in the long simulation (`tests/simulation.sh`).
pub fn sampled<T>(cases: impl IntoIterator<Item = T>, n: usize) -> impl Iterator<Item = T> {
    let all = std::env::var_os("HOLDFAST_SIM_SCHEDULES").is_some();
    cases.into_iter().step_by(if all { 1 } else { n })
}

/// Every single fault at the first `writes` writes.
pub fn singles(writes: usize) -> impl Iterator<Item = Vec<(usize, Fault)>> {
    (0..writes).flat_map(|at| {
        [Fault::Before, Fault::After, Fault::Crash, Fault::Late].map(|fault| vec![(at, fault)])
    })
}

/// Every pair of faults at the first `writes` writes; a crash differs from a lost answer in what follows it, which
/// the singles show.
pub fn pairs(writes: usize) -> impl Iterator<Item = Vec<(usize, Fault)>> {
    const EACH: [Fault; 3] = [Fault::Before, Fault::After, Fault::Late];
    (0..writes).flat_map(move |first| {
        (first + 1..writes).flat_map(move |second| {
            EACH.into_iter().flat_map(move |a| EACH.into_iter().map(move |b| vec![(first, a), (second, b)]))
        })
    })
}
