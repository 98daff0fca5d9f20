//! Review bodies and the objects in them: no panic, and every answer is a ConversionReview.
#![no_main]

use holdfast_crds::convert::{Version, review};
use holdfast_crds::validate::{ClusterView, Kind, Lookup, Operation, Request, validate};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let mut out = Vec::new();
    if let Ok(answered) = review::answer(data, &mut out) {
        if serde_json::from_slice::<Value>(data).is_ok() {
            let response: Value = serde_json::from_slice(&out).expect("the answer is JSON");
            assert_eq!(response["response"]["uid"], answered.uid);
        }
    } else {
        assert!(out.is_empty());
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = ClusterView::from_json("object", text);
    for kind in [Kind::GarageCluster, Kind::GarageNode] {
        for old in [None, Some("{}"), Some(text)] {
            let operation = if old.is_some() { Operation::Update } else { Operation::Create };
            if let Ok(request) = Request::from_json(kind, operation, Version::V1beta2, "", old, Some(text)) {
                let verdict = validate(&request, &Lookup::default());
                assert!(verdict.message().chars().count() <= 480);
            }
        }
    }
});
