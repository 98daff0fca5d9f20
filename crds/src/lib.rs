//! The one typed model of `garage.rajsingh.info`: types, names, validation rules, conversion.
//!
//! No I/O, no clock, no client. The webhook and the reconciler share it, so that a rule exists once.

pub mod cluster_status;
pub mod conditions;
pub mod convert;
pub mod crd;
pub mod explain;
pub mod ids;
pub mod lenient;
pub mod lint;
pub mod manifest;
pub mod merge;
pub mod names;
pub mod node;
pub mod reference;
pub mod requests;
pub mod schema;
pub mod spec;
pub mod status;
pub mod units;
pub mod v1beta1;
pub mod v1beta2;
pub mod validate;
