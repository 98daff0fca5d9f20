//! The values that people write into annotations: no panic, and what is read is written back the same.
#![no_main]

use holdfast_crds::ids::NodeId;
use holdfast_crds::requests::{HoldRequest, ReplaceRequest, RequestToken};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|value: &str| {
    match value.parse::<HoldRequest>() {
        Ok(request) => assert_eq!(request.to_string(), value),
        Err(error) => assert!(error.to_string().len() < 1_000),
    }
    match value.parse::<ReplaceRequest>() {
        Ok(request) => assert!(request.to_string().eq_ignore_ascii_case(value)),
        Err(error) => assert!(error.to_string().len() < 1_000),
    }
    if let Ok(id) = value.parse::<NodeId>() {
        assert!(id.to_string().eq_ignore_ascii_case(value));
    }
    let _ = RequestToken::parse(value);
});
