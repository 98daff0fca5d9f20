//! The reconciler's pass around the pure step, with everything that can go wrong between its parts.

use std::borrow::Cow;

use holdfast_crds::status::{Phase, Redundancy, Time};
use jiff::Timestamp;

use super::garage::Garage;
use super::invariants::{self, Broken};
use super::mutation::Mutation;
use super::observe::{ReadFault, observe};
use crate::act::{Action, RepairKind};
use crate::proof::{
    self, LaunchOutcome, Member, Merged, PodFacts, PreviousCondition, Settings, Site, SiteRole, Step,
};

/// What happens to a status write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteFault {
    /// It succeeds.
    #[default]
    None,
    /// It fails and nothing is stored.
    Before,
    /// It is stored, and the answer is lost.
    After,
}

/// What happens to a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LaunchFault {
    /// It is executed and the answer says so.
    #[default]
    None,
    /// The process is killed before it.
    CrashBefore,
    /// It is executed and the process is killed.
    CrashAfter,
    /// Certainly not executed.
    Refused,
    /// Not executed, and nobody knows.
    LostBefore,
    /// Executed, and nobody knows.
    LostAfter,
    /// A time-out; executed this many seconds later.
    Late(i64),
}

/// Everything that can go wrong in one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassFault {
    /// The reads.
    pub read: ReadFault,
    /// The status that it starts from is an older one.
    pub stale: bool,
    /// The status write.
    pub write: WriteFault,
    /// The launch.
    pub launch: LaunchFault,
    /// The write after the launch.
    pub after: WriteFault,
    /// The adopted scan will end with errors.
    pub failing_scan: bool,
    /// This process's clock is off by so much.
    pub clock: i64,
}

/// One launch that went out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// On which node (index).
    pub node: usize,
    /// Which.
    pub kind: RepairKind,
    /// When.
    pub at: i64,
}

/// Garage, the status, and the reconciler.
#[derive(Debug, Clone)]
pub struct World {
    /// The Garage model.
    pub garage: Garage,
    /// What is set on the GarageCluster.
    pub site: Site,
    /// The stored status.
    pub stored: Option<Redundancy>,
    older: Option<Redundancy>,
    /// Settings of the product.
    pub settings: Settings,
    /// A seeded bug.
    pub mutation: Mutation,
    /// Launches in this proof.
    pub launches: Vec<Launch>,
    /// All launches.
    pub launched: u32,
    /// Status writes.
    pub writes: u32,
    /// Passes.
    pub passes: u32,
    /// The processes as the site shows them.
    processes: Vec<(u32, i32, i64, super::Alive)>,
    /// A node that did not answer in this pass: what runs there cannot be seen.
    pub silent: Option<usize>,
}

/// Seconds as the product's time.
pub fn time(seconds: i64) -> Time {
    Time::new(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH))
}

impl World {
    /// A site with the given Garage.
    pub fn new(garage: Garage, site_role: SiteRole) -> Self {
        let remote = garage.nodes.iter().any(|n| n.remote);
        let mut world = Self {
            garage,
            site: Site {
                namespace: "objects".to_owned(),
                name: "site-a".to_owned(),
                uid: "uid-here".to_owned(),
                storage_tier: true,
                site_role,
                remote_clusters: remote,
                ..Site::default()
            },
            stored: None,
            older: None,
            settings: Settings::default(),
            mutation: Mutation::None,
            launches: Vec::new(),
            launched: 0,
            writes: 0,
            passes: 0,
            processes: Vec::new(),
            silent: None,
        };
        world.refresh_site();
        world
    }

    /// The phase, for short.
    pub fn phase(&self) -> Phase {
        self.stored.as_ref().and_then(|r| r.verification.as_ref()).map(|v| v.phase).unwrap_or_default()
    }

    /// The reason of the condition, for short.
    pub fn reason(&self) -> &str {
        self.site.condition.as_ref().map_or("", |c| c.reason.as_str())
    }

    /// Requests a proof.
    pub fn request(&mut self, token: &str) {
        self.site.token = Some(token.to_owned());
    }

    fn refresh_site(&mut self) {
        let nodes = self.garage.nodes.iter();
        let now: Vec<_> = nodes.map(|n| (n.pod, n.restarts, n.started_at, n.alive)).collect();
        if now == self.processes {
            return;
        }
        self.processes = now;
        let here = self.garage.nodes.iter().filter(|n| !n.remote);
        let members = here.map(|n| Member { id: Some(n.id), external: false, gateway: false });
        self.site.members = Some(members.collect());
        let here = self.garage.nodes.iter().filter(|n| !n.remote && n.alive != super::Alive::Down);
        self.site.pods = here
            .map(|n| {
                let facts = PodFacts {
                    uid: format!("pod-{}", n.pod),
                    restarts: n.restarts,
                    started_at: Some(time(n.started_at)),
                };
                (n.id, facts)
            })
            .collect();
    }

    /// One pass: read, decide, write, launch, write. Returns what was broken.
    pub fn pass(&mut self, fault: PassFault) -> Result<Step, Broken> {
        self.passes += 1;
        self.silent = match fault.read {
            ReadFault::Silent(x) => Some(x),
            _ => None,
        };
        self.refresh_site();
        let previous = if fault.stale { self.older.clone() } else { self.stored.clone() };
        let views = proof::needs_peer_views(&self.site, previous.as_ref());
        let mut view = observe(&mut self.garage, views, fault.read);
        let now = time(self.garage.now + fault.clock);
        let mut site = Cow::Borrowed(&self.site);
        if self.mutation != Mutation::None {
            self.mutation.blind(&mut view, site.to_mut());
        }
        let settings = self.mutation.settings(&self.settings);
        let mut step = proof::step(&site, &view, previous.as_ref(), now, &settings);
        if self.passes.is_multiple_of(8)
            && proof::step(&site, &view, previous.as_ref(), now, &settings) != step
        {
            return Err(Broken::NotDeterministic);
        }
        self.mutation.corrupt(&mut step, previous.as_ref(), self);
        invariants::check_step(self, &view, &step, previous.as_ref())?;

        let reason =
            step.condition.as_ref().map(|c| (c.status.as_str(), c.reason.as_str(), c.message.clone()));
        let same_condition = match (&self.site.condition, &reason) {
            (Some(old), Some((_, reason, message))) => old.reason == *reason && old.message == *message,
            (None, None) => true,
            _ => false,
        };
        let changed = step.redundancy != previous || !same_condition;
        let mut may_act = !step.actions.is_empty();
        if changed {
            if proof::merge(previous.as_ref(), self.stored.as_ref()) == Merged::Fresh || fault.stale {
                return Ok(step);
            }
            match fault.write {
                WriteFault::Before => {
                    // A seeded bug may launch although the write failed.
                    may_act &= self.mutation == Mutation::LaunchWithoutWrite;
                }
                WriteFault::After | WriteFault::None => {
                    self.store(step.redundancy.clone());
                    if let Some((status, reason, message)) = reason {
                        let since = match &self.site.condition {
                            Some(old) if old.status == status => old.since,
                            _ => Some(now),
                        };
                        self.site.condition = Some(PreviousCondition {
                            status: status.to_owned(),
                            reason: reason.to_owned(),
                            message,
                            since,
                        });
                    }
                    may_act &= fault.write == WriteFault::None;
                }
            }
        }
        if may_act {
            for action in &step.actions {
                self.launch(action, fault)?;
            }
        }
        Ok(step)
    }

    fn store(&mut self, next: Option<Redundancy>) {
        self.writes += 1;
        let started = |r: &Option<Redundancy>| {
            let v = r.as_ref().and_then(|r| r.verification.as_ref());
            v.map(|v| (v.started_at, v.request_token.clone()))
        };
        if started(&next) != started(&self.stored) {
            self.launches.clear();
            self.garage.forgive_nothing();
        }
        self.older = std::mem::replace(&mut self.stored, next);
    }

    fn launch(&mut self, action: &Action, fault: PassFault) -> Result<(), Broken> {
        let Action::LaunchRepair { node, kind } = action else { return Ok(()) };
        if fault.launch == LaunchFault::CrashBefore {
            return Ok(());
        }
        invariants::check_launch(self, *node, *kind)?;
        let Some(x) = self.garage.nodes.iter().position(|n| n.id == *node) else { return Ok(()) };
        self.launched += 1;
        let reachable = self.garage.nodes[x].alive == super::Alive::Up;
        let outcome = match fault.launch {
            _ if !reachable => LaunchOutcome::NotExecuted,
            LaunchFault::Refused => LaunchOutcome::NotExecuted,
            LaunchFault::LostBefore | LaunchFault::Late(_) | LaunchFault::LostAfter => LaunchOutcome::Unknown,
            _ => LaunchOutcome::Accepted,
        };
        let blocks = *kind == RepairKind::Blocks;
        match fault.launch {
            _ if !reachable => {}
            LaunchFault::Refused | LaunchFault::LostBefore => {}
            LaunchFault::Late(after) => self.garage.begin_later(x, blocks, after),
            _ if blocks => self.garage.begin_blocks(x, true, u64::from(fault.failing_scan)),
            _ => self.garage.ask_sync(x),
        }
        if outcome != LaunchOutcome::NotExecuted {
            self.launches.push(Launch { node: x, kind: *kind, at: self.garage.now });
        }
        if fault.launch == LaunchFault::CrashAfter {
            return Ok(());
        }
        let Some(written) = &self.stored else { return Ok(()) };
        let now = time(self.garage.now + fault.clock);
        let next = proof::after_launch(written, action, outcome, now);
        if next != *written && fault.after != WriteFault::Before {
            self.store(Some(next));
        }
        Ok(())
    }

    /// A calm pass.
    pub fn calm(&mut self) -> Result<Step, Broken> {
        self.pass(PassFault::default())
    }

    /// Time passes, with a calm pass every `every` seconds.
    pub fn run(&mut self, seconds: i64, every: i64) -> Result<(), Broken> {
        let end = self.garage.now + seconds;
        while self.garage.now < end {
            self.garage.advance(every);
            invariants::check_garage(self)?;
            self.calm()?;
        }
        Ok(())
    }
}
