#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

//! The proof against the Garage model, one sentence a test.

mod absent;
mod federation;
mod launches;
mod losses;
mod start;
mod status;

use std::collections::BTreeSet;

use holdfast_crds::conditions::{ConditionStatus, FullyReplicatedReason as Reason};
use holdfast_crds::ids::{LayoutVersion, NodeId};
use holdfast_crds::status::{DeferReason, Evidence, Phase, Redundancy, Scope, Trigger, Verification};

use super::*;
use crate::act::RepairKind;
use crate::sim::garage::{Set, identity};
use crate::sim::observe::{ReadFault, observe};
use crate::sim::world::time;
use crate::sim::{Garage, GarageVersion, LaunchFault, PassFault, World, WriteFault};

fn world() -> World {
    World::new(Garage::new(7, GarageVersion::V250, 3, 0), SiteRole::Unset)
}

/// Runs a minute at a time until the phase is reached.
fn until(w: &mut World, phase: Phase, minutes: usize) {
    for _ in 0..minutes {
        if w.phase() == phase {
            return;
        }
        w.run(60, 60).unwrap();
    }
    panic!("{phase:?} was not reached in {minutes} minutes: {:?}, {:?}", w.phase(), w.site.condition);
}

fn verified() -> World {
    let mut w = world();
    w.request("one");
    until(&mut w, Phase::Verified, 60);
    w
}

fn v(w: &World) -> &Verification {
    w.stored.as_ref().unwrap().verification.as_ref().unwrap()
}

fn deferred(w: &World, x: usize) -> Option<DeferReason> {
    w.stored.as_ref().unwrap().deferred_nodes.iter().find(|d| d.node_id == identity(x)).map(|d| d.reason)
}

fn message(w: &World) -> String {
    w.site.condition.as_ref().unwrap().message.clone()
}

fn launched_on(w: &World, kind: RepairKind) -> Vec<usize> {
    w.launches.iter().filter(|l| l.kind == kind).map(|l| l.node).collect()
}
