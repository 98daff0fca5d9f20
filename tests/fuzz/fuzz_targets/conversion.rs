//! Conversion of any bytes: no panic, the result is JSON, and v1beta2 -> v1beta1 -> v1beta2 is the identity (C4, C5).
#![no_main]

use holdfast_crds::convert::{Version, convert_raw};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fn without_empty_annotations(mut object: Value) -> Value {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata")
        && metadata.get("annotations").and_then(Value::as_object).is_some_and(|a| a.is_empty())
    {
        metadata.shift_remove("annotations");
    }
    object
}

fuzz_target!(|data: &[u8]| {
    let mut old = Vec::new();
    if convert_raw(data, Version::V1beta1, &mut old).is_err() {
        assert!(old.is_empty());
        let mut new = Vec::new();
        let _ = convert_raw(data, Version::V1beta2, &mut new);
        return;
    }
    let mut new = Vec::new();
    let back = convert_raw(&old, Version::V1beta2, &mut new);
    // Deeper than serde_json reads is conversion's business alone.
    let Ok(before) = serde_json::from_slice::<Value>(data) else { return };
    serde_json::from_slice::<Value>(&old).expect("the result is JSON");
    if before.get("apiVersion").and_then(Value::as_str) == Some(Version::V1beta2.api_version()) {
        back.expect("what was converted down goes back up");
        let after = serde_json::from_slice::<Value>(&new).expect("the result is JSON");
        assert_eq!(without_empty_annotations(after), without_empty_annotations(before));
    }
});
