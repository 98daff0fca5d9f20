//! Conversion of GarageCluster between `v1beta1` and `v1beta2` (`behaviour.md` 5, `compat.md` 7 and 8).
//!
//! v1beta1 has one flat tier, v1beta2 has two tiers that own their fields. What the other version has no place for
//! travels in reserved annotations: a gateway tier beside storage (or one that holds what v1beta1 cannot say) and
//! node-local pools in the two carriers that the full operator uses too, everything else in
//! [`CARRIED_ANNOTATION`], a JSON object of JSON pointers to values. So `v1beta2 -> v1beta1 -> v1beta2` is the
//! identity on every object (C4), nothing is defaulted and nothing is added (C5).
//!
//! * In a **v1beta1** object the carriers hold v1beta2 content; going up consumes them. Carried values are put
//!   back only where the live object says nothing, so an edit made through v1beta1 wins.
//! * In a **v1beta2** object [`CARRIED_ANNOTATION`] holds v1beta1 content (`gateway: false`, pod fields on a handle).
//!   Going down consumes it only if the result converts back to exactly this object; otherwise (somebody edited the
//!   object since) it is carried along unread.

use std::fmt;

mod error;
mod fields;
mod index;
mod metadata;
#[cfg(test)]
mod property_tests;
mod raw;
#[cfg(test)]
mod reference;
pub mod review;
pub mod scan;
pub mod stream;
#[cfg(test)]
mod table_tests;

pub use error::{ConvertError, Problem};
pub use raw::Converter;

/// The API group of both kinds.
pub const GROUP: &str = "garage.rajsingh.info";

/// Carrier: JSON of `spec.gateway` of a v1beta2 object.
pub const GATEWAY_ANNOTATION: &str = "garage.rajsingh.info/v1beta2-gateway-tier";
/// Carrier: JSON array of `spec.storage.nodeLocalPools` of a v1beta2 object.
pub const POOLS_ANNOTATION: &str = "garage.rajsingh.info/v1beta2-node-local-pools";
/// Marker: comma list that names the carriers in use, beside words of others.
pub const MARKER_ANNOTATION: &str = "garage.rajsingh.info/v1beta2-only";
/// Everything else without a place in this version: JSON object of JSON pointers (into the other version) to values.
pub const CARRIED_ANNOTATION: &str = "garage.rajsingh.info/holdfast-carried";
/// The annotations that conversion writes and consumes.
pub const RESERVED: [&str; 4] = [GATEWAY_ANNOTATION, POOLS_ANNOTATION, MARKER_ANNOTATION, CARRIED_ANNOTATION];
/// The marker's word for [`GATEWAY_ANNOTATION`].
pub const GATEWAY_WORD: &str = "gateway-tier-present";
/// The marker's word for [`POOLS_ANNOTATION`].
pub const POOLS_WORD: &str = "node-local-pools-present";

/// A served version of GarageCluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// Served, deprecated: one flat tier.
    V1beta1,
    /// The hub and storage version: two tiers.
    V1beta2,
}

impl Version {
    /// The `apiVersion` of an object in this version.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V1beta1 => "garage.rajsingh.info/v1beta1",
            Self::V1beta2 => "garage.rajsingh.info/v1beta2",
        }
    }

    /// The version that an `apiVersion` names, `None` if it is not one that can be converted.
    pub fn from_api_version(api_version: &str) -> Option<Self> {
        match api_version.strip_prefix(GROUP)?.strip_prefix('/')? {
            "v1beta1" => Some(Self::V1beta1),
            "v1beta2" => Some(Self::V1beta2),
            _ => None,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1beta1 => "v1beta1",
            Self::V1beta2 => "v1beta2",
        })
    }
}

/// Converts one object. An object that already is in `to` passes through unchanged (C5).
pub fn convert_value(object: &serde_json::Value, to: Version) -> Result<serde_json::Value, ConvertError> {
    let mut out = Vec::new();
    convert_raw(object.to_string().as_bytes(), to, &mut out)?;
    serde_json::from_slice(&out).map_err(|e| ConvertError::not_json(&e))
}

/// Converts the JSON text of one object and appends the result to `out`; on an error `out` is as it was.
/// `object` is one complete JSON value in UTF-8.
pub fn convert_raw(object: &[u8], to: Version, out: &mut Vec<u8>) -> Result<(), ConvertError> {
    Converter::default().convert(object, to, out)
}
