//! Manifest files: no panic in reading, linting, converting and writing.
#![no_main]

use holdfast_crds::convert::Version;
use holdfast_crds::convert::stream::convert_stream;
use holdfast_crds::lint::{Offline, lint};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let report = lint("file", text, &Offline);
    let _ = (report.to_text(), report.to_json());
    let _ = convert_stream(text, Version::V1beta1);
    let _ = convert_stream(text, Version::V1beta2);
});
