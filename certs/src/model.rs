//! Model checking of a rotation: two replicas, the Secret, the two places of the bundle, and an API server that reads
//! them through a cache. Every call is a step of its own, so a turn may fail, die, or be overtaken between any two.
//!
//! What is decided, stored, published, injected and served is the product's own code; the model's state keeps numbers
//! instead of certificates and gives the real ones back to it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::authority::{Authority, Leaf};
use crate::inject::{Found, Wanted};
use crate::manage::{Carried, carried, fits};
use crate::phase::{Policy, Step, decide};
use crate::state::State;

/// The order of the real times: a turn is shorter than the propagation, that is shorter than a leaf's life.
const POLICY: Policy = Policy {
    ca_lifetime: 1_000,
    ca_renew_before: 10,
    leaf_lifetime: 4,
    leaf_renew_before: 1,
    propagation: 2,
};
/// A turn that is not over by then was given up: each of its calls has a deadline.
const TURN: i64 = 1;
const END: i64 = 11;
const REQUEST: &str = "please";

const VERIFIES: &str = "every served certificate verifies under what the API server trusts";

/// Number of a CA.
type Ca = u8;

/// The CAs that a run can need, made once.
static AUTHORITIES: LazyLock<Vec<Authority>> =
    LazyLock::new(|| (0..3).map(|_| Authority::generate(at(0), POLICY.ca_lifetime).unwrap()).collect());
/// Bundles as texts, by the numbers in them.
static BUNDLES: LazyLock<Mutex<std::collections::HashMap<Vec<Ca>, String>>> = LazyLock::new(Mutex::default);

/// No run takes longer.
const LIMIT: Duration = Duration::from_secs(600);

/// Whether it is tried from this state how things end when nothing fails any more. That takes long, so it is one in 16.
fn is_sample(world: &World) -> bool {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish().is_multiple_of(16)
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn number(cert_pem: &str) -> Ca {
    let found = AUTHORITIES.iter().position(|authority| authority.cert_pem == cert_pem).unwrap();
    Ca::try_from(found).unwrap()
}

fn text(bundle: &[Ca]) -> String {
    let mut known = BUNDLES.lock().unwrap();
    let make = || bundle.iter().map(|ca| AUTHORITIES[usize::from(*ca)].cert_pem.as_str()).collect();
    known.entry(bundle.to_vec()).or_insert_with(make).clone()
}

fn numbers(bundle: &str) -> Vec<Ca> {
    const END: &str = "-----END CERTIFICATE-----\n";
    bundle.split_inclusive(END).map(number).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The new CA issues as soon as it is published.
    DoesNotPublishFirst,
    /// The spreading counts from the publication, although the bundle was injected much later.
    CountsFromThePublication,
    /// The old CA goes when the new one issues.
    RetiresAtOnce,
    /// A leader does not look whether the bundles are there.
    DoesNotReadBack,
}

/// The Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Secret {
    current: Ca,
    next: Option<(Ca, i64)>,
    previous: Option<(Ca, i64)>,
    handled: bool,
    requested: bool,
    version: u8,
}

impl Secret {
    fn state(&self) -> State {
        let authority = |ca: Ca| AUTHORITIES[usize::from(ca)].clone();
        State {
            current: authority(self.current),
            next: self.next.map(|(ca, since)| (authority(ca), at(since))),
            previous: self.previous.map(|(ca, since)| (authority(ca).cert_pem, at(since))),
            handled: self.handled.then(|| REQUEST.to_owned()),
        }
    }

    fn request(&self) -> Option<&'static str> {
        self.requested.then_some(REQUEST)
    }

    /// What the product makes of it; a CA that it generated gets the next number.
    fn after(&self, step: Step, now: Timestamp) -> Self {
        let state = self.state().after(step, self.request(), &POLICY, now).unwrap();
        let fresh = self.current + 1;
        Self {
            current: number(&state.current.cert_pem),
            next: state.next.map(|(_, since)| (fresh, since.as_second())),
            previous: state.previous.map(|(cert, since)| (number(&cert), since.as_second())),
            handled: state.handled.is_some(),
            requested: self.requested,
            version: self.version + 1,
        }
    }
}

/// One of the two places, and what the API server believes that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    bundle: Vec<Ca>,
    cached: Vec<Ca>,
    /// Since when the cache is behind.
    behind: Option<i64>,
}

impl Place {
    fn put(&mut self, bundle: Vec<Ca>, now: i64) {
        if self.bundle != bundle {
            self.bundle = bundle;
            self.behind = self.behind.or(Some(now));
        }
    }
}

/// A turn under way: what it read, and which call comes next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Turn {
    began: i64,
    leads: bool,
    call: Call,
    secret: Option<Secret>,
    differed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Call {
    ReadSecret,
    Trust(usize),
    Ensure(usize),
    WriteSecret,
    Inject(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    /// Issuer and end of what it serves.
    leaf: Option<(Ca, i64)>,
    /// It gets requests.
    ready: bool,
    carried: Option<(Vec<Ca>, i64)>,
    turn: Option<Turn>,
    next_turn: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: i64,
    secret: Secret,
    places: [Place; 2],
    replicas: [Replica; 2],
    leader: usize,
    faults: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Tick,
    /// An administrator asks for a rotation.
    Request,
    Begins(usize),
    /// The next call of a turn succeeds.
    Calls(usize),
    /// It fails, before or after it took effect; the turn is over.
    FailsBefore(usize),
    FailsAfter(usize),
    /// The process is killed and starts anew.
    Killed(usize),
    LeaderMoves,
    /// A replica is so slow that it misses its turn.
    Misses(usize),
    /// The API server's cache catches up.
    CatchesUp(usize),
    /// Another hand puts the bundle of before the rotation back (a GitOps tool), while it was not needed yet.
    PutsBack(usize),
}

struct Rotation {
    bug: Bug,
    faults: u8,
}

impl Rotation {
    /// `ensure` for one place.
    fn ensure(world: &mut World, at: usize, wanted: Wanted<'_>, differed: &mut bool) {
        let present = ByteString(text(&world.places[at].bundle).into_bytes());
        if !wanted.is_in(Some(&present)) {
            *differed = true;
            let now = world.now;
            world.places[at].put(numbers(wanted.bundle()), now);
        }
    }

    fn serve(replica: &mut Replica, state: &State, now: Timestamp) {
        let kept = replica.leaf.map(|(issuer, end)| Leaf {
            cert_pem: String::new(),
            key_pem: String::new(),
            issuer_pem: AUTHORITIES[usize::from(issuer)].cert_pem.clone(),
            not_after: at(end),
        });
        if !kept.is_some_and(|leaf| fits(&leaf, state, &POLICY, now)) {
            let end = state.current.leaf_end(now, POLICY.leaf_lifetime);
            replica.leaf = Some((number(&state.current.cert_pem), end.as_second()));
        }
    }

    /// The order of calls is that of `SelfSigned::turn`.
    fn call(&self, world: &mut World, who: usize) -> Option<()> {
        let mut turn = world.replicas[who].turn.take()?;
        let now = at(turn.began);
        let next = match turn.call {
            Call::ReadSecret => {
                Self::serve(&mut world.replicas[who], &world.secret.state(), now);
                turn.secret = Some(world.secret.clone());
                match (world.replicas[who].ready, turn.leads) {
                    (false, _) => Some(Call::Trust(0)),
                    (true, true) => Some(Call::Ensure(0)),
                    (true, false) => None,
                }
            }
            Call::Trust(place) => {
                let state = turn.secret.as_ref()?.state();
                let bundle = state.bundle();
                let wanted = Wanted::Trusting { certificate: &state.current.cert_pem, bundle: &bundle };
                Self::ensure(world, place, wanted, &mut turn.differed);
                if place == 0 {
                    Some(Call::Trust(1))
                } else {
                    world.replicas[who].ready |= !turn.differed;
                    turn.differed = false;
                    turn.leads.then_some(Call::Ensure(0))
                }
            }
            Call::Ensure(place) => {
                let bundle = turn.secret.as_ref()?.state().bundle();
                Self::ensure(world, place, Wanted::Exactly(&bundle), &mut turn.differed);
                if place == 0 {
                    Some(Call::Ensure(1))
                } else {
                    let before = world.replicas[who].carried.take();
                    let before = before.map(|(b, since)| Carried { bundle: text(&b), since: at(since) });
                    let found = Found { differed: turn.differed, absent: false };
                    let after = carried(before, &bundle, found, at(world.now));
                    world.replicas[who].carried = after.map(|c| (numbers(&c.bundle), c.since.as_second()));
                    (self.step(world, who, &turn) != Step::Wait).then_some(Call::WriteSecret)
                }
            }
            Call::WriteSecret => {
                let step = self.step(world, who, &turn);
                let read = turn.secret.take()?;
                if read.version == world.secret.version {
                    world.secret = read.after(step, now);
                    if self.bug == Bug::RetiresAtOnce && step == Step::Switch {
                        world.secret.previous = None;
                    }
                    turn.secret = Some(world.secret.clone());
                    Some(Call::Inject(0))
                } else {
                    // A conflict: the turn fails.
                    None
                }
            }
            Call::Inject(place) => {
                let state = turn.secret.as_ref()?.state();
                Self::ensure(world, place, Wanted::Exactly(&state.bundle()), &mut turn.differed);
                if place == 0 {
                    Some(Call::Inject(1))
                } else {
                    Self::serve(&mut world.replicas[who], &state, now);
                    None
                }
            }
        };
        if let Some(call) = next {
            turn.call = call;
            world.replicas[who].turn = Some(turn);
        }
        Some(())
    }

    fn step(&self, world: &World, who: usize, turn: &Turn) -> Step {
        let Some(secret) = &turn.secret else { return Step::Wait };
        let mut since = world.replicas[who].carried.as_ref().map(|(_, since)| at(*since));
        match self.bug {
            Bug::DoesNotPublishFirst if secret.next.is_some() => return Step::Switch,
            Bug::CountsFromThePublication if since.is_some() => {
                since = secret.next.map(|(_, since)| at(since));
            }
            Bug::DoesNotReadBack => since = secret.next.map(|(_, since)| at(since)),
            _ => {}
        }
        decide(&secret.state().facts(secret.request(), since), &POLICY, at(turn.began))
    }

    /// No fault any more: the rotation ends, and both serve with the new CA, which alone is trusted.
    fn settles(&self, world: &World) -> bool {
        let mut world = world.clone();
        world.secret.requested = true;
        for _ in 0..20 {
            for who in 0..2 {
                world = self.next_state(&world, Action::Begins(who)).unwrap_or(world);
                while let Some(next) = self.next_state(&world, Action::Calls(who)) {
                    world = next;
                }
            }
            for place in &mut world.places {
                place.cached.clone_from(&place.bundle);
                place.behind = None;
            }
            let new = world.secret.current;
            let done = new == 1 && world.secret.previous.is_none() && world.secret.next.is_none();
            let serve = world.replicas.iter().all(|r| r.ready && r.leaf.is_some_and(|(ca, _)| ca == new));
            if done && serve && world.places.iter().all(|place| place.bundle == [new]) {
                return true;
            }
            world.now += 1;
        }
        false
    }
}

impl Model for Rotation {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let place = Place { bundle: vec![0], cached: vec![0], behind: None };
        let replica = Replica { leaf: Some((0, 4)), ready: true, carried: None, turn: None, next_turn: 0 };
        let secret =
            Secret { current: 0, next: None, previous: None, handled: false, requested: false, version: 0 };
        vec![World {
            now: 0,
            secret,
            places: [place.clone(), place],
            replicas: [replica.clone(), replica],
            leader: 0,
            faults: self.faults,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if !world.secret.requested {
            actions.push(Action::Request);
        }
        let may_fail = world.faults > 0;
        for (who, replica) in world.replicas.iter().enumerate() {
            if replica.turn.is_some() {
                actions.push(Action::Calls(who));
                if may_fail {
                    actions.extend([Action::FailsBefore(who), Action::FailsAfter(who)]);
                }
            } else {
                actions.push(Action::Begins(who));
                if may_fail {
                    actions.extend([Action::Killed(who), Action::Misses(who)]);
                }
            }
        }
        for place in 0..2 {
            actions.push(Action::CatchesUp(place));
            if may_fail {
                actions.push(Action::PutsBack(place));
            }
        }
        if may_fail {
            actions.push(Action::LeaderMoves);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        let now = world.now;
        match action {
            Action::Tick => {
                let slow =
                    world.replicas.iter().any(|r| r.turn.as_ref().is_some_and(|t| now >= t.began + TURN));
                let missing = world.replicas.iter().any(|r| r.turn.is_none() && r.next_turn <= now);
                // The cache is behind for less than the propagation.
                let stale =
                    world.places.iter().any(|p| p.behind.is_some_and(|t| now + 1 >= t + POLICY.propagation));
                if slow || stale || missing {
                    return None;
                }
                world.now += 1;
            }
            Action::Request => {
                world.secret = Secret { requested: true, version: world.secret.version + 1, ..world.secret }
            }
            Action::Begins(who) => {
                let leads = world.leader == who;
                let replica = &mut world.replicas[who];
                if replica.turn.is_some() || now < replica.next_turn {
                    return None;
                }
                replica.next_turn = now + 1;
                replica.turn =
                    Some(Turn { began: now, leads, call: Call::ReadSecret, secret: None, differed: false });
            }
            Action::Calls(who) => self.call(&mut world, who)?,
            Action::FailsBefore(who) => {
                world.faults -= 1;
                world.replicas[who].turn = None;
            }
            Action::FailsAfter(who) => {
                world.faults -= 1;
                // What the replica would have learned from the answer is lost.
                let kept = world.replicas[who].clone();
                self.call(&mut world, who)?;
                world.replicas[who] = Replica { turn: None, ..kept };
            }
            Action::Killed(who) => {
                world.faults -= 1;
                world.replicas[who] =
                    Replica { leaf: None, ready: false, carried: None, turn: None, next_turn: now };
            }
            Action::Misses(who) => {
                world.faults -= 1;
                world.replicas[who].next_turn = world.replicas[who].next_turn.max(now + 1);
            }
            Action::LeaderMoves => {
                world.faults -= 1;
                world.leader = 1 - world.leader;
            }
            Action::CatchesUp(place) => {
                let place = &mut world.places[place];
                place.behind.take()?;
                place.cached.clone_from(&place.bundle);
            }
            Action::PutsBack(place) => {
                // Nothing can help against a hand that takes the CA away which issues, or is about to.
                let decided = world.replicas.iter().any(|r| r.turn.as_ref().is_some_and(|t| t.leads));
                if world.secret.next.is_none() || decided || world.places[place].bundle == [0] {
                    return None;
                }
                world.faults -= 1;
                world.places[place].put(vec![0], now);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(VERIFIES, |_, world: &World| {
                world.replicas.iter().filter(|replica| replica.ready).all(|replica| {
                    let Some((issuer, end)) = replica.leaf else { return false };
                    // One that could not look for a whole leaf's life serves an expired one.
                    world.now >= end || world.places.iter().all(|place| place.cached.contains(&issuer))
                })
            }),
            Property::always("a rotation ends when nothing fails any more", |model: &Self, world: &World| {
                world.now < END || !is_sample(world) || model.settles(world)
            }),
            Property::sometimes("two CAs are trusted", |_, world: &World| {
                world.places.iter().all(|place| place.cached == [0, 1])
            }),
            Property::sometimes("a rotation ends", |_, world: &World| {
                world.secret.current == 1
                    && world.places.iter().all(|place| place.cached == [1])
                    && world
                        .replicas
                        .iter()
                        .all(|r| r.leaf.is_some_and(|(ca, end)| ca == 1 && end > world.now))
            }),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.now <= END
    }
}

#[test]
fn at_every_step_of_a_rotation_what_is_served_verifies_and_the_rotation_ends() {
    let begun = Instant::now();
    let never = HasDiscoveries::AllOf(["no such property"].into());
    // More in `make soak`.
    let faults = std::env::var("HOLDFAST_MODEL_FAULTS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let model = Rotation { bug: Bug::None, faults };
    let checker = model.checker().threads(2).finish_when(never).timeout(LIMIT).spawn_bfs().join();
    let (states, seconds) = (checker.unique_state_count(), begun.elapsed().as_secs_f32());
    println!("model rotation: {states} states, {} deep, {seconds:.1} s", checker.max_depth());
    checker.assert_properties();
    assert!(begun.elapsed() < LIMIT, "it was not looked at to its end");
    assert!(states >= 20_000, "only {states} states");
}

#[test]
fn the_model_of_the_rotation_finds_each_seeded_bug() {
    for (bug, faults) in [
        (Bug::DoesNotPublishFirst, 0),
        (Bug::CountsFromThePublication, 1),
        (Bug::RetiresAtOnce, 0),
        (Bug::DoesNotReadBack, 1),
    ] {
        let found = HasDiscoveries::AnyOf([VERIFIES].into());
        let checker = Rotation { bug, faults }.checker().threads(2).finish_when(found).spawn_bfs().join();
        let path = checker.discovery(VERIFIES).unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("bug {bug:?}: broken after {} steps", path.into_actions().len());
    }
}
