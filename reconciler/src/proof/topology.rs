//! `verification.topologyHash` (section 6, D13).

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::observe::{Layout, ZoneRedundancy};

/// The hash of a layout: the first 32 hex characters cover the storage node IDs alone, the last 32 also
/// zone and capacity of each and the layout's parameters. `None` while no role is a storage role.
/// Tags and gateways do not count (P3).
pub fn topology_hash(layout: &Layout) -> Option<String> {
    let mut ids = Sha256::new();
    let mut roles = Sha256::new();
    let mut any = false;
    for (id, role) in layout.roles.iter().filter(|(_, role)| role.is_storage()) {
        any = true;
        let id = id.to_string();
        ids.update(id.as_bytes());
        // The zone may hold anything: its length goes first, so that no two lists read the same.
        roles.update(format!("{id} {} {} {}\n", role.zone.len(), role.zone, role.capacity.unwrap_or(0)));
    }
    match layout.parameters.zone_redundancy {
        ZoneRedundancy::Maximum => roles.update("maximum"),
        ZoneRedundancy::AtLeast(n) => roles.update(format!("at least {n}")),
    }
    any.then(|| {
        let mut out = String::with_capacity(64);
        for byte in ids.finalize().iter().take(16).chain(roles.finalize().iter().take(16)) {
            let _ = write!(out, "{byte:02x}");
        }
        out
    })
}

/// What differs between two hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The set of storage nodes.
    Nodes,
    /// A zone, a capacity or the parameters.
    Roles,
}

/// Compares a recorded hash with the current one.
pub fn difference(old: &str, new: &str) -> Option<Difference> {
    if old == new {
        None
    } else if old.get(..32) == new.get(..32) {
        Some(Difference::Roles)
    } else {
        Some(Difference::Nodes)
    }
}
