//! What becomes of `metadata.annotations`: a small state over the indexed text, written only if it changed.

use std::borrow::Cow;

use super::fields::{Pointer, Shape};
use super::index::{Field, Index};
use super::raw::{Carried, Members};

/// What stands at `metadata` or at `metadata.annotations`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place<'a> {
    Absent,
    /// Something else than an object.
    Other(Cow<'a, [u8]>),
    Object,
}

/// The metadata of the object being written.
pub(super) struct Metadata<'a> {
    index: &'a Index,
    text: &'a [u8],
    /// `metadata` itself.
    place: Place<'a>,
    annotations: Place<'a>,
    /// Our annotations of the source that are not taken over.
    removed: u64,
    /// Ours that are written: JSON texts of their values.
    set: Vec<(&'static str, Field, Vec<u8>)>,
    changed: bool,
}

/// The index's name of one of our annotations.
fn name_of(key: &str) -> Field {
    match key {
        super::GATEWAY_ANNOTATION => Field::GatewayCarrier,
        super::POOLS_ANNOTATION => Field::PoolsCarrier,
        super::MARKER_ANNOTATION => Field::Marker,
        _ => Field::Carried,
    }
}

impl<'a> Metadata<'a> {
    pub(super) fn new(index: &'a Index, text: &'a [u8]) -> Self {
        let place = |value: Option<&'a [u8]>, object: bool| match value {
            None => Place::Absent,
            Some(_) if object => Place::Object,
            Some(other) => Place::Other(Cow::Borrowed(other)),
        };
        let metadata = index.top.get(Field::Metadata).map(|e| e.value(text));
        let annotations = index.metadata.get(Field::Annotations).map(|e| e.value(text));
        Self {
            index,
            text,
            place: place(metadata, index.metadata.present),
            annotations: place(annotations, index.annotations.present),
            removed: 0,
            set: Vec::new(),
            changed: false,
        }
    }

    /// The JSON text of one of our annotations.
    pub(super) fn get(&self, key: &'static str) -> Option<&[u8]> {
        let name = name_of(key);
        if let Some((_, _, value)) = self.set.iter().find(|(_, n, _)| *n == name) {
            return Some(value);
        }
        if self.removed & name.bit() != 0 {
            return None;
        }
        self.index.annotations.get(name).map(|e| e.value(self.text))
    }

    /// Removes one of our annotations; places that become empty by it go too.
    pub(super) fn remove(&mut self, key: &'static str) {
        if self.get(key).is_none() {
            return;
        }
        let name = name_of(key);
        self.changed = true;
        self.removed |= name.bit();
        self.set.retain(|(_, n, _)| *n != name);
        if self.has_no_annotations() {
            self.annotations = Place::Absent;
            if !self.has_other_members() {
                self.place = Place::Absent;
            }
        }
    }

    /// Sets one of our annotations to a JSON text.
    pub(super) fn set(&mut self, key: &'static str, value: Vec<u8>) {
        let name = name_of(key);
        self.changed = true;
        self.place = Place::Object;
        self.annotations = Place::Object;
        self.removed |= name.bit();
        self.set.retain(|(_, n, _)| *n != name);
        self.set.push((key, name, value));
    }

    fn has_no_annotations(&self) -> bool {
        let annotations = &self.index.annotations;
        let gone = (self.removed & annotations.seen).count_ones() as usize;
        self.set.is_empty() && annotations.entries.len() == gone
    }

    fn has_other_members(&self) -> bool {
        let metadata = &self.index.metadata;
        metadata.entries.len() > usize::from(metadata.has(Field::Annotations.bit()))
    }

    /// Remembers a place that writing annotations is about to hide.
    pub(super) fn carry_place(&self, carried: &mut Carried<'a>) {
        match (&self.place, &self.annotations) {
            (Place::Absent, _) => {}
            (Place::Other(value), _) => carried.push("/metadata", value.clone()),
            (Place::Object, Place::Other(value)) => carried.push("/metadata/annotations", value.clone()),
            (Place::Object, Place::Absent) => {
                if !self.has_other_members() {
                    carried.push("/metadata", b"{}".as_slice());
                }
            }
            (Place::Object, Place::Object) => {
                if self.has_no_annotations() && !self.has_other_members() {
                    carried.push("/metadata", b"{}".as_slice());
                }
            }
        }
    }

    /// Puts a carried value back. `false` if it is no place of ours or cannot stand there.
    pub(super) fn put_back(&mut self, pointer: &Pointer, value: &[u8]) -> bool {
        let place = |value: &[u8]| match Shape::of(value) {
            Shape::EmptyObject => Some(Place::Object),
            Shape::Object => None,
            _ => Some(Place::Other(Cow::Owned(value.to_vec()))),
        };
        match pointer {
            Pointer::Metadata => {
                let Some(place) = place(value) else { return false };
                if self.place == Place::Absent {
                    self.place = place;
                    self.changed = true;
                }
            }
            Pointer::Annotations => {
                let Some(place) = place(value) else { return false };
                if self.place == Place::Absent {
                    self.place = Place::Object;
                }
                if self.place == Place::Object && self.annotations == Place::Absent {
                    self.annotations = place;
                }
                self.changed = true;
            }
            Pointer::Annotation(key) => self.set(key, value.to_vec()),
            Pointer::Spec(_) | Pointer::Storage(_) => return false,
        }
        true
    }

    /// Writes `metadata` as a member: at its place in the source, or at the end if the source had none.
    pub(super) fn write(&self, members: &mut Members<'_>) {
        if !self.changed {
            if let Some(entry) = self.index.top.get(Field::Metadata) {
                members.member(entry.member(self.text));
            }
            return;
        }
        match &self.place {
            Place::Absent => {}
            Place::Other(value) => members.pair("metadata", value),
            Place::Object => {
                let mut inner = members.open("metadata");
                let mut written = false;
                for entry in &self.index.metadata.entries {
                    if entry.name == Field::Annotations {
                        self.write_annotations(&mut inner);
                        written = true;
                    } else {
                        inner.member(entry.member(self.text));
                    }
                }
                if !written {
                    self.write_annotations(&mut inner);
                }
                inner.close();
            }
        }
    }

    fn write_annotations(&self, members: &mut Members<'_>) {
        match &self.annotations {
            Place::Absent => {}
            Place::Other(value) => members.pair("annotations", value),
            Place::Object => {
                let mut inner = members.open("annotations");
                for entry in &self.index.annotations.entries {
                    if self.removed & entry.name.bit() == 0 || entry.name == Field::Other {
                        inner.member(entry.member(self.text));
                    }
                }
                for (key, _, value) in &self.set {
                    inner.pair(key, value);
                }
                inner.close();
            }
        }
    }
}
