//! The main paths, each so many times over, for `tests/instructions.sh` to count instructions of.
//!
//! `instructions NAME TIMES`; without arguments it lists the names. Nothing is timed here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::hint::black_box;

use common::object;
use holdfast_crds::convert::{Version, convert_value, review};
use holdfast_crds::validate::{Fact, Kind, Lookup, Member, Operation, Request, validate};
use serde_json::{Value, json};

/// Runs a path so many times.
type Path = fn(u32);

const PATHS: [(&str, Path); 3] =
    [("conversion-down", conversion_down), ("conversion-up", conversion_up), ("admission", admission)];

/// A list of 50, so many times.
fn convert(times: u32, object: &Value, to: Version) {
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "u", "desiredAPIVersion": to.api_version(), "objects": vec![object; 50]}})
    .to_string();
    let mut out = Vec::with_capacity(2 * review.len());
    for _ in 0..times {
        out.clear();
        assert!(review::answer(black_box(review.as_bytes()), &mut out).unwrap().failure.is_none());
    }
}

fn conversion_down(times: u32) {
    convert(times, &object("site-a", false), Version::V1beta1);
}

fn conversion_up(times: u32) {
    convert(times, &convert_value(&object("site-a", false), Version::V1beta1).unwrap(), Version::V1beta2);
}

/// A hold is set and allowed.
fn admission(times: u32) {
    let member = |node: &str| Member {
        pool: "fast".to_owned(),
        kubernetes_node: node.to_owned(),
        node_id: Some("0f".repeat(32)),
        pin: None,
    };
    let lookup =
        Lookup { members: Fact::Known(["kn-1", "kn-2", "kn-3"].map(member).to_vec()), ..Lookup::default() };
    let mut held = object("site-a", false);
    held["metadata"]["annotations"]["garage.rajsingh.info/node-local-out-of-service"] = json!("fast/kn-2");
    let (old, new) = (object("site-a", false).to_string(), held.to_string());
    for _ in 0..times {
        let request = Request::from_json(
            Kind::GarageCluster,
            Operation::Update,
            Version::V1beta2,
            "",
            Some(black_box(&old)),
            Some(black_box(&new)),
        )
        .unwrap();
        assert!(validate(&request, &lookup).allowed());
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    match arguments.as_slice() {
        [name, times] => {
            let (_, path) = PATHS.into_iter().find(|(known, _)| known == name).expect("a known path");
            path(times.parse().expect("a number"));
        }
        _ => PATHS.iter().for_each(|(name, _)| println!("{name}")),
    }
}
