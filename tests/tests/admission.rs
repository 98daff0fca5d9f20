//! Admission, conversion and certificates, called by a real API server through the Service of the chart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "admission/cases.rs"]
mod cases;
#[path = "admission/certificates.rs"]
mod certificates;
#[path = "admission/conversion.rs"]
mod conversion;
#[path = "admission/support.rs"]
mod support;
#[path = "admission/verdict.rs"]
mod verdict;

use std::process::ExitCode;

use cases::{
    every_case_gets_its_verdict_from_the_real_api_server,
    the_installed_webhooks_answer_at_once_without_a_leader,
    the_printed_crds_applied_over_those_of_the_chart_leave_conversion_alone,
};
use certificates::{
    a_killed_replica_is_replaced_and_no_certificate_is_refused,
    a_stale_bundle_in_one_of_the_two_places_is_repaired,
    certificates_rotate_under_load_without_a_failed_request,
};
use conversion::{
    a_list_of_500_objects_is_whole_in_both_versions_with_one_damaged,
    a_terminating_object_keeps_its_finalizers_in_both_versions,
    a_v1beta1_client_edits_an_object_with_pools_and_a_gateway_and_nothing_is_lost,
    the_unserved_version_and_a_damaged_carrier_fail_by_name,
};
use holdfast_tests::suite;
use holdfast_tests::{admission_cases, bed, test};

fn main() -> ExitCode {
    suite::run(
        "admission",
        &bed::Options::default(),
        vec![
            // Without a leader up to the certificates: nothing but the webhooks touches the objects.
            test!(the_installed_webhooks_answer_at_once_without_a_leader),
            test!(every_case_gets_its_verdict_from_the_real_api_server),
            test!(a_v1beta1_client_edits_an_object_with_pools_and_a_gateway_and_nothing_is_lost),
            test!(a_list_of_500_objects_is_whole_in_both_versions_with_one_damaged),
            test!(a_terminating_object_keeps_its_finalizers_in_both_versions),
            test!(the_unserved_version_and_a_damaged_carrier_fail_by_name),
            test!(the_printed_crds_applied_over_those_of_the_chart_leave_conversion_alone),
            test!(a_stale_bundle_in_one_of_the_two_places_is_repaired),
            test!(certificates_rotate_under_load_without_a_failed_request),
            test!(a_killed_replica_is_replaced_and_no_certificate_is_refused),
        ],
    )
}
