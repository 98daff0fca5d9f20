#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

//! The transition table of the proof, every phase by every event, as a page of the documentation.
//!
//! Nothing of it is written by hand: each cell is what [`super::step`] does on the Garage model. So a rule that
//! changes changes the page, and the test below says so.

use std::fmt::Write as _;

use holdfast_crds::status::Phase;

use super::{Busy, SiteRole, Step};
use crate::sim::observe::ReadFault;
use crate::sim::{Garage, GarageVersion, PassFault, World, WriteFault};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/transitions.md");

const PHASES: [Phase; 7] = [
    Phase::Idle,
    Phase::Pending,
    Phase::SyncingMetadata,
    Phase::ScanningBlocks,
    Phase::Settling,
    Phase::Partial,
    Phase::Verified,
];

/// What happens, in the words of the page.
struct Event {
    what: &'static str,
    /// It happens to the world, before the pass.
    to: fn(&mut World),
    /// It happens in the pass.
    fault: PassFault,
}

const fn happens(what: &'static str, to: fn(&mut World)) -> Event {
    let fault = PassFault {
        read: ReadFault::None,
        stale: false,
        write: WriteFault::None,
        launch: crate::sim::LaunchFault::None,
        after: WriteFault::None,
        failing_scan: false,
        clock: 0,
    };
    Event { what, to, fault }
}

fn unread(what: &'static str, read: ReadFault) -> Event {
    Event { fault: PassFault { read, ..PassFault::default() }, ..happens(what, |_| {}) }
}

fn events() -> Vec<Event> {
    vec![
        happens("nothing", |_| {}),
        happens("the annotation gets a new value", |w| w.request("two")),
        happens("the annotation is removed", |w| w.site.token = None),
        happens("a node goes down", |w| w.garage.kill(1)),
        happens("a node's container restarts", |w| {
            w.garage.kill(1);
            w.garage.advance(5);
            w.garage.start(1, false);
        }),
        happens("a node's Pod is replaced", |w| {
            w.garage.kill(1);
            w.garage.advance(5);
            w.garage.start(1, true);
        }),
        happens("a node freezes (connected, answers nothing)", |w| w.garage.freeze(1)),
        happens("two nodes cannot reach each other, the third reaches both", |w| w.garage.cut(1, 2)),
        happens("a data disk is full", |w| w.garage.fill(1, true, true)),
        happens("a data disk is gone under the running Garage", |w| w.garage.unmount(1)),
        happens("blocks are missing everywhere, and Garage knows", |w| {
            w.garage.write();
            for x in 0..3 {
                w.garage.lose_blocks(x, 0b111);
            }
            for x in 0..3 {
                w.garage.retry_errors(x);
                w.garage.nodes[x].errored |= 0b1;
            }
        }),
        happens("somebody else runs a block repair on a node", |w| w.garage.begin_blocks(1, false, 0)),
        happens("somebody stages a layout change", |w| w.garage.layout.staged = true),
        happens("a member is in hand (a hold, a replacement)", |w| {
            w.site.busy = Some(Busy { what: "a member is out of service".to_owned(), moves_data: false });
        }),
        happens("the layout changes in tags only", |w| w.garage.change_layout(true)),
        happens("a capacity changes, `onTopologyChange` off", |w| {
            w.site.on_topology_change = false;
            w.garage.change_layout(false);
        }),
        happens("a capacity changes, `onTopologyChange` on", |w| {
            w.site.on_topology_change = true;
            w.garage.change_layout(false);
        }),
        happens("a dead node's identity is replaced, `onTopologyChange` off", |w| {
            w.site.on_topology_change = false;
            w.garage.kill(1);
            w.garage.replace(1);
        }),
        happens("a dead node's identity is replaced, `onTopologyChange` on", |w| {
            w.site.on_topology_change = true;
            w.garage.kill(1);
            w.garage.replace(1);
        }),
        unread("the Admin API does not answer", ReadFault::NoAnswer),
        unread("one node's workers cannot be listed", ReadFault::Silent(1)),
        unread("one node's own view cannot be asked (O8)", ReadFault::NoView(1)),
        unread("no metrics page can be read (D2)", ReadFault::NoMetrics),
        unread("the health answer contradicts itself", ReadFault::OddHealth),
        unread("layout and status are of different versions", ReadFault::Torn),
        Event {
            fault: PassFault { write: WriteFault::Before, ..PassFault::default() },
            ..happens("the status cannot be written", |_| {})
        },
        happens("the spec loses its storage tier", |w| w.site.storage_tier = false),
    ]
}

/// A site in this phase, by a story that gets there.
fn world_in(phase: Phase) -> World {
    let mut w = World::new(Garage::new(7, GarageVersion::V250, 3, 0), SiteRole::Unset);
    for _ in 0..3 {
        w.garage.write();
    }
    w.run(120, 60).unwrap();
    if phase != Phase::Idle {
        if phase == Phase::Pending {
            // Somebody has the layout in hand: the request waits.
            w.garage.layout.staged = true;
        }
        if phase == Phase::Partial {
            w.garage.freeze(2);
        }
        w.request("one");
    }
    for _ in 0..240 {
        if w.phase() == phase {
            w.garage.layout.staged = false;
            return w;
        }
        w.run(30, 30).unwrap();
    }
    panic!("{phase:?} was not reached: {:?}, {:?}", w.phase(), w.site.condition);
}

/// What the next pass makes of the event, and where ten minutes of it lead.
fn outcome(before: &World, event: &Event) -> (String, String) {
    let mut w = before.clone();
    w.garage.advance(60);
    (event.to)(&mut w);
    let (phase, before) = (w.phase(), w.launched);
    let step = w.pass(event.fault).unwrap();
    let launches = match (step.actions.is_empty(), w.launched > before) {
        (_, true) => ", launches",
        (false, false) => ", launches nothing",
        (true, false) => "",
    };
    let next = format!("{}{launches}", said(phase, &step));
    let mut last = step;
    for _ in 0..9 {
        w.garage.advance(60);
        last = w.pass(event.fault).unwrap();
    }
    (next, said(phase, &last))
}

/// The phase, bold where it is another, and the condition.
fn said(before: Phase, step: &Step) -> String {
    let Some(redundancy) = step.redundancy.as_ref() else {
        return "`status.redundancy` and the condition are removed".to_owned();
    };
    let next = redundancy.verification.as_ref().map(|v| v.phase).unwrap_or_default();
    let phase = if next == before { "stays".to_owned() } else { format!("**{next:?}**") };
    let condition = step.condition.as_ref().map_or_else(
        || "no condition".to_owned(),
        |c| format!("{}/`{}`", c.status.as_str(), c.reason.as_str()),
    );
    format!("{phase}, {condition}")
}

fn page() -> String {
    let mut page = String::from(
        "# Transitions of the proof\n\n\
         <!-- Generated from the code: HOLDFAST_UPDATE=1 cargo test --workspace --lib transitions -->\n\n\
         What the next pass makes of each event in each phase of `status.redundancy.verification`, and where it is ten \
         minutes later, with a pass a minute and nothing else happening. Each cell is what the product's own decision \
         function did on the executable model of a three-node Garage 2.5.0 site; nothing is written by hand. A phase \
         in bold is another than before; *stays* is the same. Then the `FullyReplicated` condition, and whether the \
         next pass launched a repair.\n\n\
         Some events show only later, when Garage itself has seen them: a cut link or a dead peer takes it a minute \
         and more. Phases also go on by themselves, as the row *nothing* says. The reasons are explained in the \
         [reference](reference.md).\n",
    );
    for phase in PHASES {
        let world = world_in(phase);
        let _ =
            write!(page, "\n## {phase:?}\n\n| event | the next pass | ten minutes later |\n|---|---|---|\n");
        for event in events() {
            let (next, later) = outcome(&world, &event);
            let _ = writeln!(page, "| {} | {next} | {later} |", event.what);
        }
    }
    page
}

#[test]
fn the_page_of_transitions_is_what_the_code_does() {
    let page = page();
    if std::env::var_os("HOLDFAST_UPDATE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let kept = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        kept == page,
        "docs/src/transitions.md is not what the code does: look at what changed, then run \
         HOLDFAST_UPDATE=1 cargo test --workspace --lib transitions"
    );
}

#[test]
fn no_event_leads_to_true_within_one_pass() {
    for phase in PHASES.into_iter().filter(|phase| *phase != Phase::Verified) {
        let world = world_in(phase);
        for event in events() {
            let (next, _) = outcome(&world, &event);
            assert!(!next.contains("True/"), "{phase:?}, {}: {next}", event.what);
        }
    }
}
