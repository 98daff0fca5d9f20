//! Seeded schedules of events, the run of one, and the search for the shortest that still fails.

use super::garage::{Garage, GarageVersion};
use super::invariants::{Broken, check_garage};
use super::mutation::Mutation;
use super::observe::ReadFault;
use super::rng::Rng;
use super::world::{LaunchFault, PassFault, World, WriteFault};
use crate::proof::{Busy, SiteRole};
use holdfast_crds::status::Phase;

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Time passes, with a calm pass every minute at the latest.
    Pass(i64),
    /// Time passes without a pass: the product is not running.
    Away(i64),
    /// A pass with something wrong in it.
    Faulty(PassFault),
    /// A new token.
    Request,
    /// `onTopologyChange` on or off.
    Flag(bool),
    /// A write by a client.
    Write,
    /// A process dies, or starts again (in a new Pod or not).
    Kill(usize),
    /// See above.
    Start(usize, bool),
    /// Dies and starts within a second.
    Restart(usize, bool),
    /// SIGSTOP, SIGCONT.
    Freeze(usize),
    /// See above.
    Thaw(usize),
    /// A link is cut, or all are whole again.
    Cut(usize, usize),
    /// See above.
    Heal,
    /// A disk is full (data or metadata), or has room again.
    Fill(usize, bool, bool),
    /// The data disk goes, or comes back.
    Unmount(usize),
    /// See above.
    Mount(usize),
    /// Block files vanish from one node, or from all.
    LoseBlocks(usize, u16),
    /// See above.
    LoseEverywhere(usize),
    /// A person starts a blocks repair, or retries errors, or scrubs.
    Manual(usize),
    /// See above.
    Retry(usize),
    /// See above.
    Scrub(usize),
    /// Another hand on the layout: tags only, or a capacity; staging; a refill.
    Layout(bool),
    /// See above.
    Stage(bool),
    /// See above.
    Replace(usize),
    /// A drain is active (or over).
    Busy(bool),
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Each is a property of its own that a seed flips.
pub struct Schedule {
    /// Its seed, also of the model's own chance.
    pub seed: u64,
    /// 2.0.0 rather than 2.5.0.
    pub old: bool,
    /// Local storage nodes.
    pub local: usize,
    /// Remote storage nodes.
    pub remote: usize,
    /// The site's role where it is federated.
    pub follower: bool,
    /// Garage's own syncs every 10 minutes.
    pub anti_entropy: bool,
    /// Clients write all the time.
    pub busy: bool,
    /// Events, in order.
    pub events: Vec<Event>,
}

/// A broken invariant, and after which event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What.
    pub broken: Broken,
    /// After which event (its index; the number of events is the calm end).
    pub after: usize,
}

impl Schedule {
    /// The schedule of a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (local, remote) = match rng.below(12) {
            0 => (1, 0),
            1 => (2, 0),
            2 => (2, 1),
            3 => (1, 2),
            _ => (3, 0),
        };
        let count = rng.between(4, 22);
        let mut out = Self {
            seed,
            old: rng.one_in(4),
            local,
            remote,
            follower: rng.one_in(2),
            anti_entropy: rng.one_in(4),
            busy: rng.one_in(4),
            events: vec![Event::Pass(60)],
        };
        if !rng.one_in(8) {
            out.events.push(Event::Request);
        }
        for _ in 0..count {
            let event = out.event(&mut rng);
            out.events.push(event);
        }
        out
    }

    fn event(&self, rng: &mut Rng) -> Event {
        let index = |n: u64| usize::try_from(n).unwrap_or(0);
        let n = (self.local + self.remote) as u64;
        let x = index(rng.below(n));
        let y = index(rng.below(n));
        match rng.below(64) {
            0..=15 => Event::Pass(*pick(rng, &[1, 10, 30, 60, 60, 120, 300, 700])),
            16 => Event::Away(*pick(rng, &[30, 200, 1000])),
            17..=27 => Event::Faulty(fault(rng, n)),
            28..=30 => Event::Request,
            31 => Event::Flag(rng.one_in(2)),
            32..=36 => Event::Write,
            37 | 38 => Event::Kill(x),
            39..=41 => Event::Start(x, rng.one_in(2)),
            42 | 43 => Event::Restart(x, rng.one_in(2)),
            44 => Event::Freeze(x),
            45 => Event::Thaw(x),
            46 | 47 => Event::Cut(x, y),
            48 => Event::Heal,
            49 | 50 => Event::Fill(x, rng.one_in(2), true),
            51 | 52 => Event::Fill(x, rng.one_in(2), false),
            53 => Event::Unmount(x),
            54 => Event::Mount(x),
            55 | 56 => Event::LoseBlocks(x, u16::try_from(rng.below(1 << 16)).unwrap_or(0)),
            57 => {
                if rng.one_in(4) {
                    Event::LoseEverywhere(index(rng.below(4)))
                } else {
                    Event::Write
                }
            }
            58 => Event::Manual(x),
            59 => {
                if rng.one_in(2) {
                    Event::Retry(x)
                } else {
                    Event::Scrub(x)
                }
            }
            60 => Event::Layout(rng.one_in(2)),
            61 => Event::Stage(rng.one_in(2)),
            62 => Event::Replace(x),
            _ => Event::Busy(rng.one_in(2)),
        }
    }
}

fn pick<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[usize::try_from(rng.below(of.len() as u64)).unwrap_or(0)]
}

fn fault(rng: &mut Rng, n: u64) -> PassFault {
    let mut out = PassFault::default();
    // Singly and in pairs.
    for _ in 0..=rng.below(2) {
        let x = usize::try_from(rng.below(n)).unwrap_or(0);
        match rng.below(19) {
            0 => out.read = ReadFault::NoAnswer,
            1 | 2 => out.read = ReadFault::Silent(x),
            3 => out.read = ReadFault::NoView(x),
            4 => out.read = ReadFault::NoMetrics,
            5 => out.read = *pick(rng, &[ReadFault::OddHealth, ReadFault::Torn]),
            6 => out.stale = true,
            7 | 8 => out.write = WriteFault::Before,
            9 => out.write = WriteFault::After,
            10 => out.launch = LaunchFault::CrashBefore,
            11 => out.launch = LaunchFault::CrashAfter,
            12 => out.launch = LaunchFault::Refused,
            13 => out.launch = LaunchFault::LostBefore,
            14 => out.launch = LaunchFault::LostAfter,
            15 => out.launch = LaunchFault::Late(80),
            16 => out.after = WriteFault::Before,
            17 => out.failing_scan = true,
            _ => out.clock = *pick(rng, &[-40, -5, 5]),
        }
    }
    out
}

/// Runs a schedule with a bug (or none): events, then a calm end in which it must converge.
pub fn run(schedule: &Schedule, mutation: Mutation) -> Result<World, Violation> {
    let version = if schedule.old { GarageVersion::V200 } else { GarageVersion::V250 };
    let mut garage = Garage::new(schedule.seed, version, schedule.local, schedule.remote);
    garage.anti_entropy = schedule.anti_entropy;
    garage.busy = schedule.busy;
    let role = match (schedule.remote > 0, schedule.follower) {
        (false, _) => SiteRole::Unset,
        (_, true) => SiteRole::Follower,
        _ => SiteRole::Writer,
    };
    let mut w = World::new(garage, role);
    w.mutation = mutation;
    let mut tokens = 0;
    for (i, event) in schedule.events.iter().enumerate() {
        apply(&mut w, *event, &mut tokens).map_err(|broken| Violation { broken, after: i })?;
    }
    calm_end(&mut w, schedule).map_err(|broken| Violation { broken, after: schedule.events.len() })?;
    Ok(w)
}

fn pass_for(w: &mut World, seconds: i64) -> Result<(), Broken> {
    let mut left = seconds;
    while left > 0 {
        // A pass comes at least every 60 s while a proof runs (P19), and every 60 s otherwise (P16).
        let every = left.min(60);
        w.garage.advance(every);
        left -= every;
        check_garage(w)?;
        w.calm()?;
    }
    Ok(())
}

fn apply(w: &mut World, event: Event, tokens: &mut u32) -> Result<(), Broken> {
    match event {
        Event::Pass(seconds) => return pass_for(w, seconds),
        Event::Away(seconds) => {
            w.garage.advance(seconds);
            return check_garage(w);
        }
        Event::Faulty(fault) => {
            w.garage.advance(5);
            check_garage(w)?;
            w.pass(fault)?;
        }
        Event::Request => {
            *tokens += 1;
            w.request(&format!("token-{tokens}"));
            return w.calm().map(|_| ());
        }
        Event::Flag(on) => w.site.on_topology_change = on,
        Event::Write => w.garage.write(),
        Event::Kill(x) => w.garage.kill(x),
        Event::Start(x, pod) => w.garage.start(x, pod),
        Event::Restart(x, pod) => {
            w.garage.kill(x);
            w.garage.advance(1);
            w.garage.start(x, pod);
        }
        Event::Freeze(x) => w.garage.freeze(x),
        Event::Thaw(x) => w.garage.thaw(x),
        Event::Cut(x, y) => w.garage.cut(x, y),
        Event::Heal => w.garage.heal(),
        Event::Fill(x, data, full) => w.garage.fill(x, data, full),
        Event::Unmount(x) => w.garage.unmount(x),
        Event::Mount(x) => w.garage.mount(x),
        Event::LoseBlocks(x, which) => w.garage.lose_blocks(x, which),
        Event::LoseEverywhere(i) => {
            for x in 0..w.garage.nodes.len() {
                w.garage.lose_blocks(x, 1 << i);
            }
        }
        Event::Manual(x) => w.garage.begin_blocks(x, false, 0),
        Event::Retry(x) => w.garage.retry_errors(x),
        Event::Scrub(x) => w.garage.scrub(x),
        Event::Layout(tags) => w.garage.change_layout(tags),
        Event::Stage(on) => w.garage.layout.staged = on,
        Event::Replace(x) => {
            w.garage.replace(x);
        }
        Event::Busy(on) => {
            let what = "a storage drain is active".to_owned();
            w.site.busy = on.then_some(Busy { what, moves_data: true });
        }
    }
    check_garage(w)
}

/// The faults stop: a new request must lead to True (or, with a block lost everywhere, never), and then it
/// must be quiet.
fn calm_end(w: &mut World, schedule: &Schedule) -> Result<(), Broken> {
    w.garage.heal();
    for x in 0..w.garage.nodes.len() {
        w.garage.thaw(x);
        w.garage.mount(x);
        w.garage.fill(x, true, false);
        w.garage.fill(x, false, false);
        if w.garage.nodes[x].storage {
            w.garage.start(x, false);
        }
    }
    w.garage.layout.staged = false;
    w.site.busy = None;
    w.garage.advance(120);
    if schedule.old {
        for x in 0..w.garage.nodes.len() {
            w.garage.scrub(x);
        }
    }
    check_garage(w)?;
    w.garage.forgive_nothing();
    // Remote nodes mend by themselves.
    w.garage.anti_entropy |= schedule.remote > 0;
    w.garage.slowness = 3;
    w.request("the-last-token");
    let limit = if schedule.remote > 0 { 400 } else { 200 };
    for _ in 0..limit {
        // Nothing needs a pass a minute in the quiet period; fewer make more schedules.
        w.garage.advance(if w.phase() == Phase::Settling { 150 } else { 60 });
        check_garage(w)?;
        w.calm()?;
        if w.phase() == Phase::Verified {
            break;
        }
    }
    if w.garage.lost_everywhere() != 0 {
        return if w.phase() == Phase::Verified { Err(Broken::NotQuiet) } else { Ok(()) };
    }
    if w.phase() != Phase::Verified {
        return Err(Broken::NoProgress(format!(
            "{:?} {}: {}",
            w.phase(),
            w.reason(),
            w.site.condition.as_ref().map(|c| c.message.clone()).unwrap_or_default()
        )));
    }
    // Queues run dry, then nothing is written and nothing launched.
    w.garage.anti_entropy = false;
    w.garage.busy = false;
    for _ in 0..4 {
        w.garage.advance(400);
        w.calm()?;
    }
    let (writes, launched) = (w.writes, w.launched);
    for _ in 0..3 {
        w.garage.advance(200);
        w.calm()?;
    }
    if w.writes != writes || w.launched != launched || w.phase() != Phase::Verified {
        return Err(Broken::NotQuiet);
    }
    Ok(())
}

/// The shortest list of events (by leaving out) that still breaks the same family of invariants.
pub fn shrink(schedule: &Schedule, mutation: Mutation) -> (Schedule, Violation) {
    let mut best = schedule.clone();
    let Err(mut violation) = run(&best, mutation) else {
        let none = Violation { broken: Broken::NoProgress("nothing is broken".to_owned()), after: 0 };
        return (best, none);
    };
    let family = std::mem::discriminant(&violation.broken);
    let mut size = best.events.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at + size <= best.events.len() {
            let mut shorter = best.clone();
            shorter.events.drain(at..at + size);
            match run(&shorter, mutation) {
                Err(v) if std::mem::discriminant(&v.broken) == family => {
                    best = shorter;
                    violation = v;
                }
                _ => at += size,
            }
        }
        size /= 2;
    }
    (best, violation)
}
