//! What is sent: reviews as the API server writes them.

use holdfast_crds::convert::{Version, convert_value};
use serde_json::{Value, json};

use crate::common;
pub use crate::shared::object;

/// A hold is set: the admission request that an administrator waits for.
pub fn admission() -> bytes::Bytes {
    let mut held = object("site-a", false);
    held["metadata"]["annotations"][common::HOLD] = json!("fast/kn-2");
    common::update(&object("site-a", false), &held).to_string().into()
}

/// A list of `count` objects, to `to`.
pub fn conversion(count: usize, large: bool, to: Version) -> bytes::Bytes {
    let objects: Vec<Value> = (0..count)
        .map(|i| {
            let object = object(&format!("c-{i}"), large);
            if to == Version::V1beta2 { convert_value(&object, Version::V1beta1).unwrap() } else { object }
        })
        .collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "c", "desiredAPIVersion": to.api_version(), "objects": objects}})
    .to_string()
    .into()
}
