//! `verification.topologyHash` (section 6, D13).

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
        ids.update(id.as_bytes());
        roles.update(id.as_bytes());
        // The zone may hold anything: its length goes first, so that no two lists read the same.
        roles.update(role.zone.len().to_be_bytes());
        roles.update(role.zone.as_bytes());
        roles.update(role.capacity.unwrap_or(0).to_be_bytes());
    }
    match layout.parameters.zone_redundancy {
        ZoneRedundancy::Maximum => roles.update("maximum"),
        ZoneRedundancy::AtLeast(n) => roles.update(format!("at least {n}")),
    }
    any.then(|| {
        let mut both = [0u8; 32];
        both[..16].copy_from_slice(&ids.finalize()[..16]);
        both[16..].copy_from_slice(&roles.finalize()[..16]);
        hex::encode(both)
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
