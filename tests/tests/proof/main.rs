//! The proof on real Garage: what it is told by disks that fill or go away, nodes that go down, links that
//! break, blocks that are nowhere, calls that fail and processes that are killed (behaviour.md, sections 8 and
//! 9), and that it is True only when it is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod calls;
mod disks;
mod nodes;
mod real_times;
mod sites;

use std::process::ExitCode;

use holdfast_tests::bed;
use holdfast_tests::suite;
use holdfast_tests::test;

use calls::{
    a_proof_scans_each_node_once_and_shows_its_phases,
    a_proof_whose_leader_is_killed_in_every_stage_ends_true,
    every_kind_of_admin_call_of_a_proof_may_fail_before_or_after_it_was_processed,
};
use disks::{
    a_block_that_is_nowhere_gives_block_errors_until_it_is_back,
    a_data_disk_unmounted_under_garage_voids_the_proof_and_the_next_one_mends_it,
    a_member_that_lost_its_metadata_is_replaced_and_keeps_its_blocks,
    full_data_and_metadata_disks_are_named_and_mended_before_it_is_true,
};
use nodes::{
    a_garage_restarted_in_every_stage_is_scanned_again_within_bounds,
    a_node_down_in_its_turn_is_deferred_its_peers_are_checked_again_and_it_is_finished_later,
    two_nodes_that_do_not_reach_each_other_are_never_true,
};
use real_times::the_products_own_waiting_times_end_in_true_on_the_oldest_and_the_newest_garage;

/// Set, only the proof with the product's own waiting times runs, which takes half an hour (`make soak`).
const REAL_TIMES: &str = "HOLDFAST_REAL_TIMES";

fn main() -> ExitCode {
    if std::env::var_os(REAL_TIMES).is_some() {
        let options = bed::Options { real_times: true, ..bed::Options::default() };
        let tests =
            vec![test!(the_products_own_waiting_times_end_in_true_on_the_oldest_and_the_newest_garage)];
        return suite::run("proof", &options, tests);
    }
    suite::run_side_by_side(
        "proof",
        &bed::Options::default(),
        sites::AT_ONCE,
        vec![
            // The longest first.
            test!(a_garage_restarted_in_every_stage_is_scanned_again_within_bounds),
            test!(a_node_down_in_its_turn_is_deferred_its_peers_are_checked_again_and_it_is_finished_later),
            test!(full_data_and_metadata_disks_are_named_and_mended_before_it_is_true),
            test!(a_block_that_is_nowhere_gives_block_errors_until_it_is_back),
            test!(a_data_disk_unmounted_under_garage_voids_the_proof_and_the_next_one_mends_it),
            test!(two_nodes_that_do_not_reach_each_other_are_never_true),
            test!(a_member_that_lost_its_metadata_is_replaced_and_keeps_its_blocks),
            test!(every_kind_of_admin_call_of_a_proof_may_fail_before_or_after_it_was_processed),
            test!(a_proof_scans_each_node_once_and_shows_its_phases),
            test!(a_proof_whose_leader_is_killed_in_every_stage_ends_true),
        ],
    )
}
