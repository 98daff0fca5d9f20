//! Where the members of one object lie in its text: top level, metadata, annotations, spec and the two tiers.
//! Everything below stays text.

use std::borrow::Cow;

use super::scan::{Key, ScanError, Scanner};
use super::{CARRIED_ANNOTATION, GATEWAY_ANNOTATION, MARKER_ANNOTATION, POOLS_ANNOTATION};

/// A key that conversion knows, or not. The discriminants index the bits of [`Level::seen`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Field {
    /// Anything else.
    Other,
    ApiVersion,
    Kind,
    Metadata,
    Spec,
    ObjectName,
    Namespace,
    Annotations,
    GatewayCarrier,
    PoolsCarrier,
    Marker,
    Carried,
    Storage,
    Gateway,
    ConnectTo,
    NodeLocalPools,
    Data,
    PvcRetentionPolicy,
    // The flat fields, in the order of `fields::FLAT`.
    Replicas,
    Resources,
    NodeSelector,
    Tolerations,
    Affinity,
    TopologySpreadConstraints,
    PodAnnotations,
    PodLabels,
    PriorityClassName,
    SecurityContext,
    ContainerSecurityContext,
    PodDisruptionBudget,
    CapacityReservePercent,
}

impl Field {
    /// Its bit in a mask.
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }

    /// Whether v1beta1 keeps it at the top of spec.
    pub const fn is_flat(self) -> bool {
        self.bit() & FLAT_BITS != 0
    }

    /// Whether a gateway tier has it and v1beta1 keeps it at the top of spec.
    pub const fn is_gateway_flat(self) -> bool {
        self.is_flat() && !matches!(self, Self::CapacityReservePercent)
    }

    /// Whether v1beta1 keeps it in `spec.storage` for a gateway.
    pub const fn is_gateway_volume(self) -> bool {
        matches!(self, Self::Metadata | Self::PvcRetentionPolicy)
    }

    #[inline]
    fn top(key: &[u8]) -> Self {
        match key {
            b"apiVersion" => Self::ApiVersion,
            b"kind" => Self::Kind,
            b"metadata" => Self::Metadata,
            b"spec" => Self::Spec,
            _ => Self::Other,
        }
    }

    #[inline]
    fn metadata(key: &[u8]) -> Self {
        match key {
            b"name" => Self::ObjectName,
            b"namespace" => Self::Namespace,
            b"annotations" => Self::Annotations,
            _ => Self::Other,
        }
    }

    #[inline]
    fn annotation(key: &[u8]) -> Self {
        // All four share this prefix, and few other annotations of an object have it.
        if !key.starts_with(b"garage.rajsingh.info/") {
            return Self::Other;
        }
        [
            (GATEWAY_ANNOTATION, Self::GatewayCarrier),
            (POOLS_ANNOTATION, Self::PoolsCarrier),
            (MARKER_ANNOTATION, Self::Marker),
            (CARRIED_ANNOTATION, Self::Carried),
        ]
        .into_iter()
        .find_map(|(known, name)| (known.as_bytes() == key).then_some(name))
        .unwrap_or(Self::Other)
    }

    #[inline]
    fn spec(key: &[u8]) -> Self {
        match key {
            b"storage" => Self::Storage,
            b"gateway" => Self::Gateway,
            b"connectTo" => Self::ConnectTo,
            _ => Self::flat(key),
        }
    }

    #[inline]
    fn tier(key: &[u8]) -> Self {
        match key {
            b"nodeLocalPools" => Self::NodeLocalPools,
            b"metadata" => Self::Metadata,
            b"data" => Self::Data,
            b"pvcRetentionPolicy" => Self::PvcRetentionPolicy,
            _ => Self::flat(key),
        }
    }

    /// The flat field of this name.
    #[inline]
    pub fn flat(key: &[u8]) -> Self {
        match key {
            b"replicas" => Self::Replicas,
            b"resources" => Self::Resources,
            b"nodeSelector" => Self::NodeSelector,
            b"tolerations" => Self::Tolerations,
            b"affinity" => Self::Affinity,
            b"topologySpreadConstraints" => Self::TopologySpreadConstraints,
            b"podAnnotations" => Self::PodAnnotations,
            b"podLabels" => Self::PodLabels,
            b"priorityClassName" => Self::PriorityClassName,
            b"securityContext" => Self::SecurityContext,
            b"containerSecurityContext" => Self::ContainerSecurityContext,
            b"podDisruptionBudget" => Self::PodDisruptionBudget,
            b"capacityReservePercent" => Self::CapacityReservePercent,
            _ => Self::Other,
        }
    }
}

/// The bits of the flat fields.
pub const FLAT_BITS: u64 = (1 << (Field::CapacityReservePercent as u8 + 1)) - Field::Replicas.bit();

/// One member of an object.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// What its key is.
    pub name: Field,
    start: u32,
    value: u32,
    end: u32,
}

impl Entry {
    /// Key, colon and value as they stand in `text`.
    pub fn member(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// The value as it stands in `text`.
    pub fn value(self, text: &[u8]) -> &[u8] {
        text.get(self.value as usize..self.end as usize).unwrap_or_default()
    }

    /// The key with its quotes.
    pub fn key(self, text: &[u8]) -> &[u8] {
        let head = text.get(self.start as usize..self.value as usize).unwrap_or_default();
        let end = head.iter().rposition(|&b| b == b'"').map_or(0, |quote| quote + 1);
        head.get(..end).unwrap_or_default()
    }
}

/// The members of one object.
#[derive(Debug, Default)]
pub struct Level {
    /// Whether the value is an object at all.
    pub present: bool,
    /// Its members in order. Of a known key given twice only the last counts, as for every JSON decoder here.
    pub entries: Vec<Entry>,
    /// The known keys among them.
    pub seen: u64,
}

impl Level {
    fn clear(&mut self) {
        self.present = false;
        self.entries.clear();
        self.seen = 0;
    }

    /// Whether a member of one of these names is there.
    pub fn has(&self, bits: u64) -> bool {
        self.seen & bits != 0
    }

    /// The member of a known name.
    pub fn get(&self, name: Field) -> Option<Entry> {
        if !self.has(name.bit()) {
            return None;
        }
        self.entries.iter().find(|e| e.name == name).copied()
    }

    #[inline]
    fn push(&mut self, name: Field, start: usize, value: usize, end: usize) {
        if name != Field::Other {
            if self.has(name.bit()) {
                self.entries.retain(|e| e.name != name);
            }
            self.seen |= name.bit();
        }
        // The whole text was checked to be shorter than 4 GiB.
        let cut = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        self.entries.push(Entry { name, start: cut(start), value: cut(value), end: cut(end) });
    }
}

#[inline]
fn classify(key: Key<'_>, of: impl Fn(&[u8]) -> Field) -> Field {
    if key.escaped {
        return unescape(key.raw).map_or(Field::Other, |s| of(s.as_bytes()));
    }
    of(key.raw)
}

/// The string between two quotes. `None` if it has a lone surrogate.
pub fn unescape(raw: &[u8]) -> Option<Cow<'_, str>> {
    if !raw.contains(&b'\\') {
        return std::str::from_utf8(raw).ok().map(Cow::Borrowed);
    }
    let quoted = [b"\"", raw, b"\""].concat();
    serde_json::from_slice::<String>(&quoted).ok().map(Cow::Owned)
}

/// The members of one GarageCluster. Reused from object to object for its memory.
#[derive(Debug, Default)]
pub struct Index {
    /// The object itself.
    pub top: Level,
    /// `metadata`.
    pub metadata: Level,
    /// `metadata.annotations`.
    pub annotations: Level,
    /// `spec`.
    pub spec: Level,
    /// `spec.storage`.
    pub storage: Level,
    /// `spec.gateway` (a tier in v1beta2).
    pub gateway: Level,
}

impl Index {
    /// Reads the object that begins at the scanner's position.
    pub fn read(&mut self, scanner: &mut Scanner<'_>) -> Result<(), ScanError> {
        let Self { top, metadata, annotations, spec, storage, gateway } = self;
        for level in [&mut *top, metadata, annotations, spec, storage, gateway] {
            level.clear();
        }
        top.present = true;
        scanner.object(|s, key| {
            let name = classify(key, Field::top);
            let value = s.pos;
            match name {
                Field::Metadata => {
                    annotations.clear();
                    read_level(s, metadata, Field::metadata, |s, name| {
                        if name != Field::Annotations {
                            return s.value();
                        }
                        read_level(s, annotations, Field::annotation, |s, _| s.value())
                    })?;
                }
                Field::Spec => {
                    storage.clear();
                    gateway.clear();
                    read_level(s, spec, Field::spec, |s, name| match name {
                        Field::Storage => read_level(s, storage, Field::tier, |s, _| s.value()),
                        Field::Gateway => read_level(s, gateway, Field::tier, |s, _| s.value()),
                        _ => s.value(),
                    })?;
                }
                _ => s.value()?,
            }
            top.push(name, key.start, value, s.pos);
            Ok::<(), ScanError>(())
        })
    }
}

/// Reads a value and, if it is an object, its members.
#[inline]
fn read_level<'a>(
    scanner: &mut Scanner<'a>,
    level: &mut Level,
    of: impl Fn(&[u8]) -> Field + Copy,
    mut read: impl FnMut(&mut Scanner<'a>, Field) -> Result<(), ScanError>,
) -> Result<(), ScanError> {
    level.clear();
    if scanner.peek() != b'{' {
        return scanner.value();
    }
    level.present = true;
    scanner.object(|s, key| {
        let name = classify(key, of);
        let value = s.pos;
        read(s, name)?;
        level.push(name, key.start, value, s.pos);
        Ok(())
    })
}

/// Reads the members of a tier from a text of its own (a carrier). `level.present` is false if it is no object.
pub fn read_tier(text: &[u8], level: &mut Level) -> Result<(), ScanError> {
    let mut scanner = Scanner::new(text);
    scanner.space();
    read_level(&mut scanner, level, Field::tier, |s, _| s.value())?;
    if scanner.at_end() { Ok(()) } else { Err(ScanError { at: scanner.pos, what: "text after the value" }) }
}
