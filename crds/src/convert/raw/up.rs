//! v1beta1 to v1beta2.

use std::borrow::Cow;

use super::{
    Carried, Members, annotation_text, carried_members, flat_pointer, no_replicas, quoted, some, string,
    type_name,
};
use crate::convert::fields::{Pointer, Shape, remove_words, storage_pointer};
use crate::convert::index::{Entry, FLAT_BITS, Field, Index, Level, read_tier, unescape};
use crate::convert::metadata::Metadata;
use crate::convert::scan::{ScanError, Scanner};
use crate::convert::{
    CARRIED_ANNOTATION, GATEWAY_ANNOTATION, GATEWAY_WORD, MARKER_ANNOTATION, POOLS_ANNOTATION, POOLS_WORD,
    Problem, Version,
};

/// What our annotations on a v1beta1 object hold.
#[derive(Default)]
struct Carriers {
    /// Text of the gateway tier and where its members lie.
    gateway: Option<(String, Level)>,
    /// Text of the array of pools.
    pools: Option<String>,
    /// What v1beta1 has no place for.
    carried: Option<Vec<(Pointer, Vec<u8>)>>,
}

const CARRIER_BITS: u64 = Field::GatewayCarrier.bit() | Field::PoolsCarrier.bit() | Field::Carried.bit();

impl Carriers {
    fn read(index: &Index, text: &[u8]) -> Result<Self, Problem> {
        let mut carriers = Self::default();
        if !index.annotations.has(CARRIER_BITS) {
            return Ok(carriers);
        }
        let read = |name, key| annotation_text(index.annotations.get(name).map(|e| e.value(text)), key);
        if let Some(gateway) = read(Field::GatewayCarrier, GATEWAY_ANNOTATION)? {
            let mut level = Level::default();
            read_tier(gateway.as_bytes(), &mut level).map_err(|e| not_json(GATEWAY_ANNOTATION, e))?;
            if !level.present {
                return Err(wrong_type(GATEWAY_ANNOTATION, "an object", &gateway));
            }
            carriers.gateway = Some((gateway.into_owned(), level));
        }
        if let Some(pools) = read(Field::PoolsCarrier, POOLS_ANNOTATION)? {
            let mut scanner = Scanner::new(pools.as_bytes());
            scanner.space();
            scanner.value().map_err(|e| not_json(POOLS_ANNOTATION, e))?;
            if !scanner.at_end() {
                return Err(not_json(
                    POOLS_ANNOTATION,
                    ScanError { at: scanner.pos, what: "text after the value" },
                ));
            }
            if !pools.trim_start().starts_with('[') {
                return Err(wrong_type(POOLS_ANNOTATION, "an array", &pools));
            }
            carriers.pools = Some(pools.into_owned());
        }
        if let Some(carried) = read(Field::Carried, CARRIED_ANNOTATION)? {
            let members = carried_members(&carried)?.into_iter().map(|(text, value)| {
                Pointer::parse(&text)
                    .filter(|p| p.is_from_v1beta2(Shape::of(&value)))
                    .map(|p| (p, value))
                    .ok_or_else(|| {
                        Problem::DamagedAnnotation(
                            CARRIED_ANNOTATION,
                            format!("{text:?} with this value was not written by a conversion"),
                        )
                    })
            });
            carriers.carried = Some(members.collect::<Result<_, _>>()?);
        }
        Ok(carriers)
    }

    fn spec_value(&self, key: &str) -> Option<&[u8]> {
        let wanted = |p: &Pointer| matches!(p, Pointer::Spec(k) if k == key);
        self.carried.iter().flatten().find(|(p, _)| wanted(p)).map(|(_, v)| v.as_slice())
    }
}

fn not_json(key: &'static str, error: ScanError) -> Problem {
    Problem::DamagedAnnotation(key, format!("not JSON: {error}"))
}

fn wrong_type(key: &'static str, wanted: &str, text: &str) -> Problem {
    let found = type_name(text.as_bytes());
    Problem::DamagedAnnotation(key, format!("expected the JSON text of {wanted}, found {found}"))
}

/// Which tiers a v1beta1 spec declares (C2).
struct Tiers {
    gateway: bool,
    storage: bool,
    /// `gateway: null` and a `storage` that is no object, where they stand as they are in v1beta2.
    kept: u64,
}

/// C2: a spec that declares no tier.
fn looks_like_handle(index: &Index, text: &[u8]) -> bool {
    some(&index.spec, Field::ConnectTo, text)
        && no_replicas(&index.spec, text)
        && !some(&index.storage, Field::Metadata, text)
        && !some(&index.storage, Field::Data, text)
}

impl Tiers {
    fn of(index: &Index, text: &[u8], carriers: &Carriers) -> Result<Self, Problem> {
        let spec = &index.spec;
        let value = |name| spec.get(name).map(|e| e.value(text));
        let gateway = value(Field::Gateway) == Some(b"true");
        let forced = carriers.spec_value("storage").is_some_and(|v| Shape::of(v).is_object());
        let has_carrier = carriers.gateway.is_some() || carriers.pools.is_some();
        let storage = spec.present
            && !gateway
            && (forced || !looks_like_handle(index, text))
            && (spec.has(FLAT_BITS) || index.storage.present || has_carrier || forced);
        if carriers.pools.is_some() && !storage {
            return Err(Problem::PoolsWithoutStorage);
        }
        if carriers.gateway.is_some() && !storage && !(gateway && spec.present) {
            return Err(Problem::GatewayWithoutTier);
        }
        let keep_gateway = value(Field::Gateway) == Some(b"null") && carriers.gateway.is_none();
        let keep_storage = !gateway && !storage && spec.has(Field::Storage.bit()) && !index.storage.present;
        let kept = if keep_gateway { Field::Gateway.bit() } else { 0 }
            | if keep_storage { Field::Storage.bit() } else { 0 };
        Ok(Self { gateway, storage, kept })
    }

    fn keeps(&self, field: Field) -> bool {
        self.kept & field.bit() != 0
    }

    /// What v1beta2 has no place for.
    fn carry<'a>(&self, index: &Index, text: &'a [u8], carriers: &Carriers) -> Result<Carried<'a>, Problem> {
        let mut carried = Carried::default();
        let spec = &index.spec;
        if !self.gateway
            && !self.keeps(Field::Gateway)
            && let Some(entry) = spec.get(Field::Gateway)
        {
            carried.push("/spec/gateway", entry.value(text));
        }
        for entry in &spec.entries {
            let lost = if self.gateway { !entry.name.is_gateway_flat() } else { !self.storage };
            if entry.name.is_flat() && lost {
                carried.push(flat_pointer(entry.name), entry.value(text));
            }
        }
        let Some(storage) = spec.get(Field::Storage) else { return Ok(carried) };
        let whole = if self.gateway {
            index.storage.entries.is_empty()
        } else if self.storage {
            let said = spec.has(FLAT_BITS) || carriers.gateway.is_some() || carriers.pools.is_some();
            !index.storage.present || (index.storage.entries.is_empty() && said)
        } else {
            index.storage.present
        };
        if whole {
            carried.push("/spec/storage", storage.value(text));
        } else {
            for entry in &index.storage.entries {
                if !self.takes(entry.name) {
                    let key = entry.key(text);
                    let key = key.strip_prefix(b"\"").and_then(|k| k.strip_suffix(b"\"")).and_then(unescape);
                    let key = key.ok_or_else(|| {
                        Problem::NotJson("a key of spec.storage that is not valid Unicode".to_owned())
                    })?;
                    carried.push(storage_pointer(&key), entry.value(text));
                }
            }
        }
        Ok(carried)
    }

    /// Whether a member of v1beta1's `spec.storage` has a place in the tier.
    fn takes(&self, name: Field) -> bool {
        if self.gateway { name.is_gateway_volume() } else { !name.is_flat() && name != Field::NodeLocalPools }
    }
}

/// Writes the v1beta2 form of an indexed v1beta1 object.
pub(super) fn up(index: &Index, text: &[u8], out: &mut Vec<u8>) -> Result<(), Problem> {
    let carriers = Carriers::read(index, text)?;
    let tiers = Tiers::of(index, text, &carriers)?;
    let mut carried =
        if index.spec.present { tiers.carry(index, text, &carriers)? } else { Carried::default() };
    let mut metadata = Metadata::new(index, text);
    consume(&mut metadata, &carriers);
    if !carried.is_empty() {
        metadata.carry_place(&mut carried);
        metadata.set(CARRIED_ANNOTATION, carried.to_json());
    }

    let mut members = Members::begin(out);
    for entry in &index.top.entries {
        match entry.name {
            Field::ApiVersion => members.text("apiVersion", Version::V1beta2.api_version()),
            Field::Metadata => metadata.write(&mut members),
            Field::Spec if index.spec.present => write_spec(index, text, &carriers, &tiers, &mut members),
            _ => members.member(entry.member(text)),
        }
    }
    if !index.top.has(Field::Metadata.bit()) {
        metadata.write(&mut members);
    }
    members.close();
    Ok(())
}

/// Removes what was read from our annotations and puts back what belongs in the metadata.
fn consume(metadata: &mut Metadata<'_>, carriers: &Carriers) {
    let mut words = Vec::new();
    if carriers.gateway.is_some() {
        words.push(GATEWAY_WORD);
        metadata.remove(GATEWAY_ANNOTATION);
    }
    if carriers.pools.is_some() {
        words.push(POOLS_WORD);
        metadata.remove(POOLS_ANNOTATION);
    }
    if !words.is_empty()
        && let Some(marker) = metadata.get(MARKER_ANNOTATION).and_then(string)
    {
        match remove_words(&marker, &words) {
            Some(left) if left == marker => {}
            Some(left) => {
                let left = quoted(left.as_bytes());
                metadata.set(MARKER_ANNOTATION, left);
            }
            None => metadata.remove(MARKER_ANNOTATION),
        }
    }
    if carriers.carried.is_some() {
        metadata.remove(CARRIED_ANNOTATION);
    }
    for (pointer, value) in carriers.carried.iter().flatten() {
        metadata.put_back(pointer, value);
    }
}

fn write_spec(index: &Index, text: &[u8], carriers: &Carriers, tiers: &Tiers, members: &mut Members<'_>) {
    let mut spec = members.open("spec");
    let mut pending = tiers.gateway || tiers.storage;
    for entry in &index.spec.entries {
        let keep = match entry.name {
            Field::Gateway => tiers.keeps(Field::Gateway),
            Field::Storage => tiers.keeps(Field::Storage),
            name if name.is_flat() => false,
            _ => {
                spec.member(entry.member(text));
                continue;
            }
        };
        if keep {
            spec.member(entry.member(text));
        }
        if std::mem::take(&mut pending) {
            write_tiers(index, text, carriers, tiers, &mut spec);
        }
    }
    if pending {
        write_tiers(index, text, carriers, tiers, &mut spec);
    }
    for (pointer, value) in carriers.carried.iter().flatten() {
        let Pointer::Spec(key) = pointer else { continue };
        let there = match key.as_str() {
            "gateway" => tiers.gateway || tiers.keeps(Field::Gateway) || carriers.gateway.is_some(),
            // As an object it only says that there is a tier.
            "storage" => tiers.storage || tiers.keeps(Field::Storage) || Shape::of(value).is_object(),
            _ => false,
        };
        if !there {
            spec.pair_escaped(key, value);
        }
    }
    spec.close();
}

fn write_tiers(index: &Index, text: &[u8], carriers: &Carriers, tiers: &Tiers, spec: &mut Members<'_>) {
    let live = |entries: &mut dyn Iterator<Item = &Entry>, tier: &mut Members<'_>| {
        entries.for_each(|e| tier.member(e.member(text)));
    };
    let volumes = || index.storage.entries.iter().filter(|e| tiers.takes(e.name));
    if tiers.gateway {
        let mut tier = spec.open("gateway");
        if let Some((carrier, level)) = &carriers.gateway {
            for entry in &level.entries {
                // The live flat fields win, also where one was removed; volumes only where there are any.
                let replaced = entry.name.is_gateway_volume() && index.storage.has(entry.name.bit());
                if !entry.name.is_gateway_flat() && !replaced {
                    tier.member(entry.member(carrier.as_bytes()));
                }
            }
        }
        live(&mut index.spec.entries.iter().filter(|e| e.name.is_gateway_flat()), &mut tier);
        live(&mut volumes(), &mut tier);
        tier.close();
        return;
    }
    let mut tier = spec.open("storage");
    live(&mut index.spec.entries.iter().filter(|e| e.name.is_flat()), &mut tier);
    live(&mut volumes(), &mut tier);
    let carried_pools = || {
        let pools = |p: &Pointer| matches!(p, Pointer::Storage(_));
        carriers.carried.iter().flatten().find(|(p, _)| pools(p)).map(|(_, v)| Cow::Borrowed(v.as_slice()))
    };
    let pools = carriers.pools.as_ref().map(|p| Cow::Borrowed(p.trim().as_bytes()));
    if let Some(pools) = pools.or_else(carried_pools) {
        tier.pair("nodeLocalPools", &pools);
    }
    tier.close();
    if let Some((carrier, _)) = &carriers.gateway {
        spec.pair("gateway", carrier.trim().as_bytes());
    }
}
