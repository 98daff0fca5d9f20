//! V12: the annotations that carry v1beta2 through v1beta1 are not for hand edits.

use serde::Deserialize;
use serde_json::Value;

use super::view::{Annotations, ClusterView, RawCluster};
use super::{Refusal, Rule};
use crate::convert::{Version, convert_raw};
use crate::names::annotation::cluster as key;

/// Kubernetes' limit for the annotations of an object: bytes of all keys and values.
const MAX_ANNOTATION_BYTES: usize = 262_144;

const WORDS: [&str; 2] = [key::GATEWAY_TIER_PRESENT, key::NODE_LOCAL_POOLS_PRESENT];

/// The three carriers with their annotation's key.
fn carriers<'v>(annotations: &'v Annotations<'_>) -> [(&'static str, Option<&'v str>); 3] {
    [
        (key::V1BETA2_NODE_LOCAL_POOLS, annotations.pools_carrier.as_deref()),
        (key::V1BETA2_GATEWAY_TIER, annotations.gateway_carrier.as_deref()),
        (key::HOLDFAST_CARRIED, annotations.carried.as_deref()),
    ]
}

fn has_word(annotations: &Annotations<'_>, word: &str) -> bool {
    annotations.marker.as_deref().is_some_and(|m| m.split(',').any(|w| w == word))
}

pub(super) fn validate(
    addressed: Version,
    old: Option<&ClusterView<'_>>,
    new: &ClusterView<'_>,
) -> Result<(), Refusal> {
    let none = Annotations::default();
    let old_annotations = old.map_or(&none, |o| &o.annotations);
    match (addressed, new.version) {
        (Version::V1beta1, Version::V1beta1) => through_v1beta1(old_annotations, &new.annotations)?,
        // The API server converted it: what the carriers brought stands in its place by now.
        (Version::V1beta1, Version::V1beta2) => {
            nothing_left_over(addressed, old_annotations, &new.annotations)?;
            if let Some(raw) = &new.raw {
                same_tiers(old.and_then(|o| o.raw.as_ref()), raw)?;
            }
        }
        (Version::V1beta2, Version::V1beta2) => {
            nothing_left_over(addressed, old_annotations, &new.annotations)?;
        }
        // A converted view of a v1beta2 object: its carriers are the conversion's own.
        (Version::V1beta2, Version::V1beta1) => {}
    }
    size(old, new)
}

/// Through v1beta1 the carriers keep every byte, and their words stay with them.
fn through_v1beta1(old: &Annotations<'_>, new: &Annotations<'_>) -> Result<(), Refusal> {
    for ((name, was), (_, is)) in carriers(old).into_iter().zip(carriers(new)) {
        let what = match (was, is) {
            (was, is) if was == is => continue,
            // An empty carrier carries nothing, so nothing is lost with it.
            (Some(""), None) => continue,
            (None, _) => "added",
            (_, None) => "removed",
            (Some(_), Some(_)) => "changed",
        };
        return Err(Refusal::new(
            Rule::V12,
            format_args!(
                "{name} cannot be {what} through v1beta1: it carries what only v1beta2 can express; {}",
                if was.is_some() {
                    "keep it byte for byte, or make the change through garage.rajsingh.info/v1beta2"
                } else {
                    "remove it and make the change through garage.rajsingh.info/v1beta2"
                },
            ),
        ));
    }
    for (word, carrier) in WORDS.into_iter().zip([&old.gateway_carrier, &old.pools_carrier]) {
        let carried = carrier.as_deref().is_some_and(|c| !c.is_empty());
        let what = match (has_word(old, word), has_word(new, word)) {
            (false, true) => "added to",
            (true, false) if carried => "removed from",
            _ => continue,
        };
        return Err(Refusal::new(
            Rule::V12,
            format_args!(
                "the word {word} cannot be {what} {} through v1beta1: it says what that object carries; \
                 leave it as it was, or make the change through garage.rajsingh.info/v1beta2",
                key::V1BETA2_ONLY,
            ),
        ));
    }
    Ok(())
}

/// In v1beta2 neither carriers nor their words, but for what the old object had.
fn nothing_left_over(
    addressed: Version,
    old: &Annotations<'_>,
    new: &Annotations<'_>,
) -> Result<(), Refusal> {
    let next = match addressed {
        Version::V1beta2 => "remove it and write the tier or pool itself into spec",
        Version::V1beta1 => "remove it and make the change through garage.rajsingh.info/v1beta2",
    };
    for ((name, was), (_, is)) in carriers(old).into_iter().zip(carriers(new)) {
        // The conversion itself keeps in it what v1beta1 said and v1beta2 has no place for.
        if name == key::HOLDFAST_CARRIED && addressed == Version::V1beta1 {
            continue;
        }
        if is.is_some() && is != was {
            return Err(Refusal::new(
                Rule::V12,
                format_args!(
                    "{name} cannot be set through {addressed}: the conversion alone writes it; {next}"
                ),
            ));
        }
    }
    for word in WORDS {
        if has_word(new, word) && !has_word(old, word) {
            return Err(Refusal::new(
                Rule::V12,
                format_args!(
                    "the word {word} cannot be added to {} through {}: it is written by the conversion to v1beta1 alone; \
                     remove the word, others may stay",
                    key::V1BETA2_ONLY,
                    addressed,
                ),
            ));
        }
    }
    Ok(())
}

/// The parts of a gateway tier that v1beta1 cannot express.
const GATEWAY_ONLY: [&str; 4] = ["rpcPublicAddr", "readinessProbe", "env", "envFrom"];

/// A v1beta1 request, seen as v1beta2: the pools, and what is carried of the gateway tier, are as before.
fn same_tiers(old: Option<&RawCluster<'_>>, new: &RawCluster<'_>) -> Result<(), Refusal> {
    let refuse = |field: &str, was: bool, is: bool| {
        let what = match (was, is) {
            (false, _) => "added",
            (true, false) => "removed",
            (true, true) => "changed",
        };
        Err(Refusal::new(
            Rule::V12,
            format_args!(
                "{field} cannot be {what} through v1beta1, which cannot express it; keep the carrier annotations byte for byte, \
                 or make the change through garage.rajsingh.info/v1beta2"
            ),
        ))
    };
    let (was, is) = (old.and_then(|o| o.pools), new.pools);
    if !same_json(was, is) {
        return refuse("spec.storage.nodeLocalPools", was.is_some(), is.is_some());
    }
    let (was, is) = (old.and_then(|o| o.gateway), new.gateway);
    if was == is {
        return Ok(());
    }
    let was_whole = old.is_some_and(|o| o.storage);
    // Beside a storage tier the whole gateway is carried; alone, only what v1beta1 has no field for.
    let same = match (was.is_some() && was_whole, is.is_some() && new.storage) {
        (_, true) => same_json(was, is),
        (true, false) if is.is_none() => false,
        _ => gateway_only(was) == gateway_only(is),
    };
    if same { Ok(()) } else { refuse("spec.gateway", was.is_some(), is.is_some()) }
}

fn same_json(a: Option<&str>, b: Option<&str>) -> bool {
    let value = |text: &str| serde_json::from_str::<Value>(text).ok();
    match (a, b) {
        (Some(a), Some(b)) => a == b || value(a).is_some_and(|a| Some(a) == value(b)),
        (a, b) => a.is_none() && b.is_none(),
    }
}

fn gateway_only(gateway: Option<&str>) -> Vec<Option<Value>> {
    let mut gateway = gateway.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default();
    GATEWAY_ONLY.iter().map(|f| gateway.get_mut(f).map(Value::take)).collect()
}

/// The view in the other version stays within Kubernetes' limit, or at least does not grow.
fn size(old: Option<&ClusterView<'_>>, new: &ClusterView<'_>) -> Result<(), Refusal> {
    if !may_be_oversize(new) {
        return Ok(());
    }
    let size = other_view_bytes(new)?;
    if size <= MAX_ANNOTATION_BYTES {
        return Ok(());
    }
    // An old object that cannot be measured is no excuse for a new one that is too large.
    let before = old.and_then(|o| other_view_bytes(o).ok());
    if before.is_some_and(|before| size <= before) {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::V12,
        format_args!(
            "the object's {} view would have {size} bytes of annotations{}, and Kubernetes allows {MAX_ANNOTATION_BYTES}; \
             shorten annotations, pools or the gateway tier by {} bytes",
            other(new.version),
            before.map_or_else(String::new, |b| format!(" ({b} before)")),
            size - MAX_ANNOTATION_BYTES,
        ),
    ))
}

/// A cheap upper bound, so that ordinary objects are never converted here: carried values are parts of `spec`, and
/// the pointers that name them are shorter than what surrounds them there.
fn may_be_oversize(view: &ClusterView<'_>) -> bool {
    view.raw.is_some_and(|raw| view.annotations.bytes + 4 * raw.spec_bytes + 4096 > MAX_ANNOTATION_BYTES)
}

fn other_view_bytes(view: &ClusterView<'_>) -> Result<usize, Refusal> {
    let Some(raw) = view.raw else { return Ok(0) };
    let mut converted = Vec::with_capacity(raw.object.len());
    convert_raw(raw.object.as_bytes(), other(view.version), &mut converted).map_err(|e| {
        Refusal::new(Rule::V12, format_args!("the object has no {} view: {e}", other(view.version)))
    })?;
    let measured = serde_json::from_slice::<Measured<'_>>(&converted).ok();
    Ok(measured.and_then(|m| m.metadata.annotations).map_or(0, |a| a.bytes))
}

const fn other(version: Version) -> Version {
    match version {
        Version::V1beta1 => Version::V1beta2,
        Version::V1beta2 => Version::V1beta1,
    }
}

/// What is measured of a converted object.
#[derive(Deserialize)]
struct Measured<'a> {
    #[serde(borrow, default)]
    metadata: MeasuredMeta<'a>,
}

#[derive(Default, Deserialize)]
struct MeasuredMeta<'a> {
    #[serde(borrow)]
    annotations: Option<Annotations<'a>>,
}
