//! v1beta2 to v1beta1.

use super::{
    Carried, Members, annotation_text, carried_members, flat_pointer, no_replicas, quoted, some, string, up,
};
use crate::convert::fields::{Pointer, Shape, add_words, annotation_pointer, is_flat, remove_words};
use crate::convert::index::{FLAT_BITS, Field, Index, Level};
use crate::convert::metadata::Metadata;
use crate::convert::scan::Scanner;
use crate::convert::{
    CARRIED_ANNOTATION, GATEWAY_ANNOTATION, GATEWAY_WORD, MARKER_ANNOTATION, POOLS_ANNOTATION, POOLS_WORD,
    Version,
};

/// v1beta1 values that the v1beta2 object carried, each at its place.
#[derive(Default)]
struct PutBack {
    spec: Vec<(String, Vec<u8>)>,
    storage: Vec<(String, Vec<u8>)>,
    places: Vec<(Pointer, Vec<u8>)>,
}

/// Writes the v1beta1 form of an indexed v1beta2 object.
pub(super) fn down(index: &Index, text: &[u8], out: &mut Vec<u8>) {
    if index.annotations.has(Field::Carried.bit())
        && let Some(entry) = index.annotations.get(Field::Carried)
        && let Ok(Some(carried)) = annotation_text(Some(entry.value(text)), CARRIED_ANNOTATION)
        && let Ok(carried) = carried_members(&carried)
        && let Some(put_back) = PutBack::sort(carried)
    {
        let start = out.len();
        if write(index, text, Some(&put_back), out)
            && comes_back(index, text, out.get(start..).unwrap_or_default())
        {
            return;
        }
        out.truncate(start);
    }
    // Without anything to put back there is nothing that could contradict.
    write(index, text, None, out);
}

impl PutBack {
    fn sort(carried: Vec<(String, Vec<u8>)>) -> Option<Self> {
        let mut sorted = Self::default();
        for (pointer, value) in carried {
            match Pointer::parse(&pointer)? {
                Pointer::Spec(key) => sorted.spec.push((key, value)),
                Pointer::Storage(key) => sorted.storage.push((key, value)),
                place => sorted.places.push((place, value)),
            }
        }
        Some(sorted)
    }

    /// Whether these values could have been carried by a v1beta1 object of this view; the rest shows in the proof.
    fn fits(&self, view: &View<'_>) -> bool {
        let spec = self.spec.iter().all(|(key, value)| match key.as_str() {
            "gateway" => !view.is_edge() && view.gateway.is_none(),
            "storage" => match view.tier {
                Tier::None => view.other_storage.is_none(),
                Tier::Storage | Tier::Gateway => {
                    !view.writes_storage() && self.storage.is_empty() && Shape::of(value) != Shape::Object
                }
            },
            "capacityReservePercent" => view.tier != Tier::Storage,
            _ => view.tier == Tier::None,
        });
        let storage = self.storage.iter().all(|(key, _)| match view.tier {
            Tier::None => false,
            Tier::Storage => is_flat(key) || key == "nodeLocalPools",
            Tier::Gateway => !matches!(key.as_str(), "metadata" | "pvcRetentionPolicy"),
        });
        spec && storage
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    Storage,
    Gateway,
    None,
}

/// What of a v1beta2 spec v1beta1 shows, and what it does not (C3).
struct View<'a> {
    index: &'a Index,
    tier: Tier,
    /// Text of the gateway tier, if it is carried.
    gateway_carrier: Option<&'a [u8]>,
    /// Text of the pools, if they are carried.
    pools_carrier: Option<&'a [u8]>,
    /// `gateway: null`, which both versions can have.
    gateway: Option<&'a [u8]>,
    /// A `storage` that is no object, where it can stand.
    other_storage: Option<&'a [u8]>,
}

impl<'a> View<'a> {
    fn of(index: &'a Index, text: &'a [u8], carried: &mut Carried<'a>) -> Self {
        let spec = &index.spec;
        let tier = match (index.storage.present, index.gateway.present) {
            (true, _) => Tier::Storage,
            (false, true) => Tier::Gateway,
            (false, false) => Tier::None,
        };
        let mut view = Self {
            index,
            tier,
            gateway_carrier: None,
            pools_carrier: None,
            gateway: None,
            other_storage: None,
        };
        // v1beta2 knows no such fields at the top of spec; in v1beta1 they would be the tier's.
        for entry in spec.entries.iter().filter(|e| e.name.is_flat()) {
            carried.push(flat_pointer(entry.name), entry.value(text));
        }
        if let Some(entry) = spec.get(Field::Gateway) {
            let value = entry.value(text);
            let known = |name: Field| name.is_gateway_flat() || name.is_gateway_volume();
            if index.gateway.present {
                if tier == Tier::Storage || index.gateway.entries.iter().any(|e| !known(e.name)) {
                    view.gateway_carrier = Some(value);
                }
            } else if value == b"null" {
                view.gateway = Some(value);
            } else {
                carried.push("/spec/gateway", value);
            }
        }
        if let Some(entry) = spec.get(Field::Storage)
            && !index.storage.present
        {
            if tier == Tier::Gateway {
                carried.push("/spec/storage", entry.value(text));
            } else {
                view.other_storage = Some(entry.value(text));
            }
        }
        if let Some(entry) = index.storage.get(Field::NodeLocalPools) {
            let value = entry.value(text);
            if Shape::of(value) == Shape::Array {
                view.pools_carrier = Some(value);
            } else {
                carried.push("/spec/storage/nodeLocalPools", value);
            }
        }
        view
    }

    fn is_edge(&self) -> bool {
        self.tier == Tier::Gateway
    }

    fn level(&self) -> &'a Level {
        if self.is_edge() { &self.index.gateway } else { &self.index.storage }
    }

    fn is_flat(&self, name: Field) -> bool {
        if self.is_edge() { name.is_gateway_flat() } else { name.is_flat() }
    }

    fn is_volume(&self, name: Field) -> bool {
        if self.is_edge() {
            name.is_gateway_volume()
        } else {
            !name.is_flat() && name != Field::NodeLocalPools
        }
    }

    /// Whether v1beta1 gets a `spec.storage`.
    fn writes_storage(&self) -> bool {
        self.level().entries.iter().any(|e| self.is_volume(e.name))
            // Something must say that there is a tier.
            || (self.tier == Tier::Storage
                && !self.index.storage.has(FLAT_BITS)
                && self.gateway_carrier.is_none()
                && self.pools_carrier.is_none())
    }

    /// Whether v1beta1 would take the storage tier for a handle (C2).
    fn looks_like_handle(&self, text: &[u8]) -> bool {
        let storage = &self.index.storage;
        self.tier == Tier::Storage
            && some(&self.index.spec, Field::ConnectTo, text)
            && no_replicas(storage, text)
            && !some(storage, Field::Metadata, text)
            && !some(storage, Field::Data, text)
    }

    fn write(&self, text: &[u8], put_back: &PutBack, members: &mut Members<'_>) {
        let mut spec = members.open("spec");
        let shown = match self.tier {
            Tier::Storage => Field::Storage,
            Tier::Gateway => Field::Gateway,
            Tier::None => Field::Other,
        };
        for entry in &self.index.spec.entries {
            match entry.name {
                Field::Gateway if self.gateway.is_some() => spec.member(entry.member(text)),
                Field::Storage if self.other_storage.is_some() => spec.member(entry.member(text)),
                name @ (Field::Storage | Field::Gateway) => {
                    if name == shown {
                        self.write_tier(text, put_back, &mut spec);
                    }
                }
                name if name.is_flat() => {}
                _ => spec.member(entry.member(text)),
            }
        }
        for (key, value) in &put_back.spec {
            spec.pair_escaped(key, value);
        }
        spec.close();
    }

    fn write_tier(&self, text: &[u8], put_back: &PutBack, spec: &mut Members<'_>) {
        if self.is_edge() {
            spec.pair("gateway", b"true");
        }
        for entry in &self.level().entries {
            if self.is_flat(entry.name) {
                spec.member(entry.member(text));
            }
        }
        if self.writes_storage() || !put_back.storage.is_empty() {
            let mut storage = spec.open("storage");
            for entry in &self.level().entries {
                if self.is_volume(entry.name) {
                    storage.member(entry.member(text));
                }
            }
            for (key, value) in &put_back.storage {
                storage.pair_escaped(key, value);
            }
            storage.close();
        }
    }
}

/// Writes the object; `false` if what should be put back cannot be.
fn write(index: &Index, text: &[u8], put_back: Option<&PutBack>, out: &mut Vec<u8>) -> bool {
    let mut carried = Carried::default();
    let mut metadata = Metadata::new(index, text);
    if put_back.is_some() {
        metadata.remove(CARRIED_ANNOTATION);
    }
    let nothing = PutBack::default();
    let view = View::of(index, text, &mut carried);
    let put_back = put_back.unwrap_or(&nothing);
    if !put_back.fits(&view) || !put_back.places.iter().all(|(place, value)| metadata.put_back(place, value))
    {
        return false;
    }
    if view.looks_like_handle(text) {
        carried.push("/spec/storage", b"{}".as_slice());
    }
    annotate(&mut metadata, &view, carried);

    let mut members = Members::begin(out);
    for entry in &index.top.entries {
        match entry.name {
            Field::ApiVersion => members.text("apiVersion", Version::V1beta1.api_version()),
            Field::Metadata => metadata.write(&mut members),
            Field::Spec if index.spec.present => view.write(text, put_back, &mut members),
            _ => members.member(entry.member(text)),
        }
    }
    if !index.top.has(Field::Metadata.bit()) {
        metadata.write(&mut members);
    }
    members.close();
    true
}

/// Writes the carriers, after carrying what the object itself had under our names: on the way back it would be read
/// as ours.
fn annotate<'a>(metadata: &mut Metadata<'a>, view: &View<'a>, mut carried: Carried<'a>) {
    let is_blank = |value: &[u8]| matches!(value, b"null" | b"\"\"");
    let stash =
        |metadata: &mut Metadata<'a>, key: &'static str, even_blank: bool, carried: &mut Carried<'a>| {
            if let Some(value) = metadata.get(key)
                && (even_blank || !is_blank(value))
            {
                carried.push(annotation_pointer(key), value.to_vec());
                metadata.remove(key);
            }
        };
    stash(metadata, GATEWAY_ANNOTATION, view.gateway_carrier.is_some(), &mut carried);
    stash(metadata, POOLS_ANNOTATION, view.pools_carrier.is_some(), &mut carried);
    let mut words = Vec::new();
    let mut carriers = Vec::new();
    for (key, word, text) in [
        (GATEWAY_ANNOTATION, GATEWAY_WORD, view.gateway_carrier),
        (POOLS_ANNOTATION, POOLS_WORD, view.pools_carrier),
    ] {
        if let Some(text) = text {
            words.push(word);
            carriers.push((key, quoted(text)));
        }
    }
    if !words.is_empty() {
        let had =
            metadata.get(MARKER_ANNOTATION).map(|value| string(value).map(std::borrow::Cow::into_owned));
        let marker = add_words(had.as_ref().and_then(Option::as_deref).unwrap_or_default(), &words);
        if let Some(had) = had
            && (had.is_none() || remove_words(&marker, &words) != had)
        {
            stash(metadata, MARKER_ANNOTATION, true, &mut carried);
        }
        carriers.push((MARKER_ANNOTATION, quoted(marker.as_bytes())));
    }
    let writes = !carried.is_empty() || !carriers.is_empty();
    stash(metadata, CARRIED_ANNOTATION, writes, &mut carried);
    if carried.is_empty() && carriers.is_empty() {
        return;
    }
    metadata.carry_place(&mut carried);
    for (key, value) in carriers {
        metadata.set(key, value);
    }
    if !carried.is_empty() {
        metadata.set(CARRIED_ANNOTATION, carried.to_json());
    }
}

/// Whether a v1beta1 text converts back to exactly this object. An empty `annotations` counts as none.
fn comes_back(index: &Index, text: &[u8], old: &[u8]) -> bool {
    let read = |text: &[u8]| {
        let mut index = Index::default();
        index.read(&mut Scanner::new(text)).ok().map(|()| index)
    };
    let Some(old_index) = read(old) else { return false };
    let mut back = Vec::with_capacity(text.len());
    if up::up(&old_index, old, &mut back).is_err() {
        return false;
    }
    let Some(back_index) = read(&back) else { return false };
    same(index, text, &back_index, &back)
}

/// Whether two objects have the same members at every indexed level, compared as text.
fn same(a: &Index, a_text: &[u8], b: &Index, b_text: &[u8]) -> bool {
    let members = |level: &Level, text: &[u8], below: u64| {
        let mut members: Vec<(Vec<u8>, Vec<u8>)> = level
            .entries
            .iter()
            .filter(|e| e.name == Field::Other || e.name.bit() & below == 0)
            .map(|e| (plain_key(e.key(text)), e.value(text).to_vec()))
            .collect();
        members.sort();
        members
    };
    let level = |of: fn(&Index) -> &Level, below: u64| {
        of(a).present == of(b).present && members(of(a), a_text, below) == members(of(b), b_text, below)
    };
    let both =
        |of: fn(&Index) -> &Level, name: Field| if of(a).present && of(b).present { name.bit() } else { 0 };
    // No annotations and an empty object of them are the same.
    let plain = |i: &Index| i.annotations.present || !i.metadata.has(Field::Annotations.bit());
    let annotations = plain(a) && plain(b);
    level(|i| &i.top, both(|i| &i.metadata, Field::Metadata) | both(|i| &i.spec, Field::Spec))
        && level(|i| &i.metadata, if annotations { Field::Annotations.bit() } else { 0 })
        && (!annotations || members(&a.annotations, a_text, 0) == members(&b.annotations, b_text, 0))
        && level(|i| &i.spec, both(|i| &i.storage, Field::Storage) | both(|i| &i.gateway, Field::Gateway))
        && level(|i| &i.storage, 0)
        && level(|i| &i.gateway, 0)
}

/// A key without escapes that it does not need.
fn plain_key(key: &[u8]) -> Vec<u8> {
    match string(key) {
        Some(key) => key.as_bytes().to_vec(),
        None => key.to_vec(),
    }
}
