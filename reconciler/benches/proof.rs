//! What one decision of the proof costs: `make bench`, one line a size of the site.
//!
//! Processor time of this process, not the clock: other load on the machine hardly moves it. The site is the
//! executable model of Garage in the middle of its blocks stage; a step is what a pass decides from one observation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_precision_loss)]

#[path = "../../crds/benches/common/mod.rs"]
mod common;

use std::hint::black_box;

use common::measure;
use holdfast_crds::status::Phase;
use holdfast_reconciler::proof::{self, SiteRole};
use holdfast_reconciler::sim::observe::{ReadFault, observe};
use holdfast_reconciler::sim::world::time;
use holdfast_reconciler::sim::{Garage, GarageVersion, World};

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    println!("{:<8} {:>14} {:>16} {:>14}", "nodes", "us a step", "us a step, node", "status bytes");
    for nodes in [3, 32, 256] {
        let mut world = World::new(Garage::new(7, GarageVersion::V250, nodes, 0), SiteRole::Unset);
        world.request("one");
        for _ in 0..100_000 {
            if world.phase() == Phase::ScanningBlocks {
                break;
            }
            world.garage.advance(30);
            world.calm().unwrap();
        }
        assert_eq!(world.phase(), Phase::ScanningBlocks);
        let view = observe(&mut world.garage, true, ReadFault::None);
        let now = time(world.garage.now + 30);
        let step = || {
            proof::step(black_box(&world.site), black_box(&view), world.stored.as_ref(), now, &world.settings)
        };
        let bytes = serde_json::to_vec(&step().redundancy).unwrap().len();
        let calls = (3000 / nodes as u64).max(8);
        let ns = measure(calls, || drop(black_box(step())));
        let micros = ns as f64 / 1e3;
        println!("{nodes:<8} {micros:>14.1} {:>16.3} {bytes:>14}", micros / nodes as f64);
    }
}
