//! The election (`lease.rs`): two replicas and one Lease. Reads, writes and answers are steps of their own, so a write
//! may fail, take effect unseen, or take effect long after its sender gave up; a process may be slow, killed, or told
//! to end. Every decision, every observation and every written Lease is the product's.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use stateright::{Model, Property};

use super::{Bounds, catches, check, is_sample};
use crate::lease::{
    Decision, Seen, Timing, claimed, decide, ends_in_time, holds_until, is_lost, observe, released,
};

/// The shortest times that keep the order of the real ones: a write (1 s) ends well before a lease (3 s).
const TIMING: Timing = Timing { duration: s(3), retry: s(1), call: s(1) };
/// Deadline of a write of the reconciler.
const DEADLINE: Duration = s(1);

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const LEADERS: &str = "never two leaders";
const WRITERS: &str = "never two leaders writing";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The API server does not compare resource versions.
    NoCompareAndSwap,
    /// A renewal counts from its answer and not from the start of its turn.
    CountsFromTheAnswer,
    /// A write may begin as long as the lease holds, however long it takes.
    IgnoresTheDeadline,
    /// Another's lease is taken over without having watched it stand still for its duration.
    DoesNotWatch,
    /// The lease is given back while a write is under way.
    GivesBackTooEarly,
}

/// A Lease as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stored {
    holder: Option<String>,
    version: u8,
}

impl Stored {
    fn lease(&self) -> Lease {
        Lease {
            metadata: ObjectMeta {
                resource_version: Some(self.version.to_string()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: self.holder.clone(),
                lease_duration_seconds: i32::try_from(TIMING.duration.as_secs()).ok(),
                ..LeaseSpec::default()
            }),
        }
    }
}

/// A write on its way: on which version (`None` creates), with whom as holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Write {
    on: Option<u8>,
    holder: Option<String>,
}

impl Write {
    fn of(lease: &Lease) -> Self {
        Self {
            on: lease.metadata.resource_version.as_ref().map(|version| version.parse().unwrap()),
            holder: lease.spec.as_ref().unwrap().holder_identity.clone(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Sleeping(Duration),
    Reading { before: Duration },
    Writing { before: Duration, write: Write, answer: Option<Option<Stored>> },
    GivingBack,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    me: String,
    seen: Option<Seen>,
    /// As `Leadership::until`.
    until: u64,
    leads: bool,
    step: Step,
    /// When a write of the reconciler began that is still under way.
    work: Option<Duration>,
}

impl Process {
    fn new(me: &str) -> Self {
        let step = Step::Sleeping(Duration::ZERO);
        Self { me: me.to_owned(), seen: None, until: 0, leads: false, step, work: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: Duration,
    lease: Option<Stored>,
    processes: [Process; 2],
    /// A write whose sender gave up: it may still take effect.
    late: Option<Write>,
    /// Faults that may still happen.
    faults: u8,
    /// How many different ones led so far.
    takeovers: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    /// A second passes.
    Tick,
    Look(usize),
    ReadFails(usize),
    ReadAnswers(usize),
    /// The API server takes the write, or finds a conflict.
    Stores(usize),
    Answers(usize),
    /// No answer in time: the write was lost.
    LostBefore(usize),
    /// No answer in time: the write was stored, or refused.
    LostAfter(usize),
    /// No answer in time: the write comes later.
    Late(usize),
    LateStores,
    BeginsWork(usize),
    EndsWork(usize),
    /// The process is killed and another one takes its place.
    Killed(usize),
    /// It is told to end.
    Stopped(usize),
    GivesBack(usize),
}

struct Election {
    bug: Bug,
    bounds: Bounds,
}

impl Election {
    fn end(&self) -> Duration {
        s(self.bounds.end.unsigned_abs())
    }
}

impl Election {
    fn store(&self, state: &mut State, write: &Write) -> Option<Stored> {
        let current = state.lease.as_ref().map(|stored| stored.version);
        if current != write.on && self.bug != Bug::NoCompareAndSwap {
            return None;
        }
        let stored = Stored { holder: write.holder.clone(), version: current.unwrap_or(0) + 1 };
        state.lease = Some(stored.clone());
        Some(stored)
    }

    fn is_leader(state: &State, at: usize) -> bool {
        ends_in_time(state.now, Duration::ZERO, state.processes[at].until)
    }

    fn may_write(&self, state: &State, at: usize) -> bool {
        let deadline = if self.bug == Bug::IgnoresTheDeadline { Duration::ZERO } else { DEADLINE };
        ends_in_time(state.now, deadline, state.processes[at].until)
    }

    /// The turn's end without a renewal.
    fn missed(process: &mut Process, now: Duration) {
        process.step = if process.leads && is_lost(now, process.until, &TIMING) {
            process.until = 0;
            process.work = None;
            Step::Ended
        } else {
            Step::Sleeping(now + TIMING.retry)
        };
    }

    /// Nothing fails any more: somebody leads soon.
    fn settles(&self, state: &State) -> bool {
        let mut state = state.clone();
        for _ in 0..12 {
            for at in 0..2 {
                for action in [Action::EndsWork(at), Action::Look(at), Action::ReadAnswers(at)] {
                    state = self.next_state(&state, action).unwrap_or(state);
                }
                for action in [Action::Stores(at), Action::Answers(at), Action::GivesBack(at)] {
                    state = self.next_state(&state, action).unwrap_or(state);
                }
                if state.processes[at].step == Step::Ended {
                    // Kubernetes starts another.
                    state.processes[at] = Process::new(&format!("later-{at}"));
                }
            }
            if (0..2).any(|at| self.may_write(&state, at)) {
                return true;
            }
            state.now += s(1);
        }
        false
    }
}

impl Model for Election {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: Duration::ZERO,
            lease: None,
            processes: [Process::new("a"), Process::new("b")],
            late: None,
            faults: self.bounds.faults,
            takeovers: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        for at in 0..2 {
            let may_fail = state.faults > 0;
            match &state.processes[at].step {
                Step::Sleeping(until) if *until <= state.now => actions.push(Action::Look(at)),
                Step::Reading { .. } => {
                    actions.push(Action::ReadAnswers(at));
                    if may_fail {
                        actions.push(Action::ReadFails(at));
                    }
                }
                Step::Writing { answer: None, .. } => {
                    actions.push(Action::Stores(at));
                    if may_fail {
                        actions.push(Action::LostBefore(at));
                        if state.late.is_none() {
                            actions.push(Action::Late(at));
                        }
                    }
                }
                Step::Writing { .. } => {
                    actions.push(Action::Answers(at));
                    if may_fail {
                        actions.push(Action::LostAfter(at));
                    }
                }
                Step::GivingBack => actions.push(Action::GivesBack(at)),
                _ => {}
            }
            if state.processes[at].work.is_some() {
                actions.push(Action::EndsWork(at));
            } else {
                actions.push(Action::BeginsWork(at));
            }
            if may_fail && state.processes[at].step != Step::Ended {
                actions.extend([Action::Killed(at), Action::Stopped(at)]);
            }
        }
        if state.late.is_some() {
            actions.push(Action::LateStores);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let now = state.now;
        match action {
            Action::Tick => {
                // A write of the reconciler is given up at its deadline, whatever else the process does.
                if state.processes.iter().any(|p| p.work.is_some_and(|begun| now >= begun + DEADLINE)) {
                    return None;
                }
                state.now += s(1);
            }
            Action::Look(at) => {
                let process = &mut state.processes[at];
                if !matches!(process.step, Step::Sleeping(until) if until <= now) {
                    return None;
                }
                process.step = Step::Reading { before: now };
            }
            Action::ReadFails(at) => {
                state.faults -= 1;
                Self::missed(&mut state.processes[at], now);
            }
            Action::ReadAnswers(at) => {
                let current = state.lease.as_ref().map(Stored::lease);
                let process = &mut state.processes[at];
                let Step::Reading { before } = process.step else { return None };
                process.seen =
                    current.as_ref().map(|lease| observe(lease, process.seen.as_ref(), now, &TIMING));
                let mut decision = decide(process.seen.as_ref(), &process.me, now);
                if self.bug == Bug::DoesNotWatch && decision == Decision::Wait && now >= TIMING.duration {
                    decision = Decision::TakeOver;
                }
                if decision == Decision::Wait {
                    Self::missed(process, now);
                } else {
                    let lease =
                        claimed("lease", &process.me, current.as_ref(), &TIMING, Timestamp::UNIX_EPOCH);
                    process.step = Step::Writing { before, write: Write::of(&lease), answer: None };
                }
            }
            Action::Stores(at) => {
                let Step::Writing { write, answer: None, .. } = state.processes[at].step.clone() else {
                    return None;
                };
                let stored = self.store(&mut state, &write);
                let Step::Writing { answer, .. } = &mut state.processes[at].step else { return None };
                *answer = Some(stored);
            }
            Action::Answers(at) => {
                let process = &mut state.processes[at];
                let Step::Writing { before, answer: Some(answer), .. } = process.step.clone() else {
                    return None;
                };
                match answer {
                    None => Self::missed(process, now),
                    Some(stored) => {
                        process.seen = Some(observe(&stored.lease(), process.seen.as_ref(), now, &TIMING));
                        let before = if self.bug == Bug::CountsFromTheAnswer { now } else { before };
                        process.until = holds_until(before, &TIMING).unwrap();
                        process.step = Step::Sleeping(now + TIMING.retry);
                        if !std::mem::replace(&mut process.leads, true) {
                            state.takeovers += 1;
                        }
                    }
                }
            }
            Action::LostBefore(at) | Action::LostAfter(at) => {
                state.faults -= 1;
                Self::missed(&mut state.processes[at], now);
            }
            Action::Late(at) => {
                let Step::Writing { write, .. } = state.processes[at].step.clone() else { return None };
                state.faults -= 1;
                state.late = Some(write);
                Self::missed(&mut state.processes[at], now);
            }
            Action::LateStores => {
                let write = state.late.take()?;
                self.store(&mut state, &write);
            }
            Action::BeginsWork(at) => {
                if !state.processes[at].leads || !self.may_write(&state, at) {
                    return None;
                }
                state.processes[at].work = Some(now);
            }
            Action::EndsWork(at) => {
                state.processes[at].work.take()?;
            }
            Action::Killed(at) => {
                state.faults -= 1;
                state.processes[at] = Process::new(&format!("{}'", state.processes[at].me));
            }
            Action::Stopped(at) => {
                state.faults -= 1;
                let process = &mut state.processes[at];
                process.until = 0;
                // The reconciler is aborted before the lease is given back.
                if self.bug != Bug::GivesBackTooEarly {
                    process.work = None;
                }
                let held = process.seen.as_ref().and_then(|seen| seen.holder.as_deref())
                    == Some(process.me.as_str());
                process.step = if held { Step::GivingBack } else { Step::Ended };
            }
            Action::GivesBack(at) => {
                if state.processes[at].step != Step::GivingBack {
                    return None;
                }
                let lease = state.lease.as_ref().map(Stored::lease);
                if let Some(lease) = lease.and_then(|lease| released(lease, &state.processes[at].me)) {
                    self.store(&mut state, &Write::of(&lease));
                }
                state.processes[at].step = Step::Ended;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LEADERS, |_, state: &State| {
                (0..2).filter(|at| Self::is_leader(state, *at)).count() < 2
            }),
            Property::always(WRITERS, |_, state: &State| {
                state.processes.iter().filter(|p| p.work.is_some()).count() < 2
            }),
            Property::always("somebody leads soon after the last fault", |model: &Self, state: &State| {
                state.now < model.end() || !is_sample(state) || model.settles(state)
            }),
            Property::sometimes("a leader writes", |_, state: &State| state.processes[0].work.is_some()),
            Property::sometimes("a lease that ran out is taken over", |_, state: &State| {
                state.takeovers == 2 && state.faults > 0 && state.now == s(3)
            }),
            Property::sometimes("a lease that was given back is taken at once", |_, state: &State| {
                state.processes[0].step == Step::Ended && state.takeovers == 2 && state.now <= s(1)
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.now <= self.end()
    }
}

#[test]
fn two_replicas_never_lead_or_write_at_once_and_one_leads_soon_after_the_last_fault() {
    // A lease runs out and is taken over in that time.
    check("lease", Election { bug: Bug::None, bounds: Bounds::of(4, 1) }, 20_000);
}

#[test]
fn the_model_of_the_lease_finds_each_seeded_bug() {
    for (bug, faults, property) in [
        (Bug::NoCompareAndSwap, 1, LEADERS),
        (Bug::CountsFromTheAnswer, 0, LEADERS),
        (Bug::IgnoresTheDeadline, 0, WRITERS),
        (Bug::DoesNotWatch, 0, LEADERS),
        (Bug::GivesBackTooEarly, 1, WRITERS),
    ] {
        catches(&format!("{bug:?}"), Election { bug, bounds: Bounds { end: 4, faults } }, property);
    }
}
