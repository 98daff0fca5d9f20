//! Which storage roles are this site's own (P4), and whether other sites share the layout (section 2).

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::Scope;

use super::garage::{Layout, Role};

/// Begin of the tag that names a cluster by its UID.
const UID_TAG: &str = "cluster-uid:";

/// What of the Kubernetes side decides locality.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// The GarageCluster's name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its UID.
    pub uid: &'a str,
    /// `spec.remoteClusters` is not empty.
    pub has_remote_clusters: bool,
    /// The GarageNodes of this cluster in this namespace. An unreadable list is no list (O3): there is no
    /// way to say "none" for it here, on purpose.
    pub garage_nodes: &'a [Member],
}

/// One GarageNode of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Member {
    /// `status.nodeId` and `spec.nodeId`, those that are set and can be read.
    pub ids: BTreeSet<NodeId>,
    /// `spec.external` is set.
    pub external: bool,
    /// `spec.gateway` is true.
    pub gateway: bool,
}

/// The storage roles of the layout by where they live.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Locality {
    /// Whether other sites share the layout.
    pub federated: bool,
    /// Storage nodes of this site: the only ones that are ever repaired.
    pub local: BTreeSet<NodeId>,
    /// All other storage nodes: of other sites, or external ones of this cluster.
    pub remote: BTreeSet<NodeId>,
}

impl Locality {
    /// `Cluster` when every storage role is local. Without any storage role there is no scope.
    pub fn scope(&self) -> Option<Scope> {
        match (self.local.is_empty(), self.remote.is_empty()) {
            (true, true) => None,
            (_, true) => Some(Scope::Cluster),
            (_, false) => Some(Scope::Local),
        }
    }

    /// All storage nodes.
    pub fn all(&self) -> BTreeSet<NodeId> {
        self.local.union(&self.remote).copied().collect()
    }
}

/// P4 over one layout.
pub fn locality(layout: &Layout, site: &Site<'_>) -> Locality {
    let members: BTreeMap<NodeId, &Member> =
        site.garage_nodes.iter().flat_map(|m| m.ids.iter().map(move |&id| (id, m))).collect();
    // An ID that two GarageNodes claim, one of them external, is not ours to repair.
    let external: BTreeSet<NodeId> =
        site.garage_nodes.iter().filter(|m| m.external).flat_map(|m| m.ids.iter().copied()).collect();
    let own =
        |id: &NodeId| members.get(id).is_some_and(|m| !m.external && !m.gateway) && !external.contains(id);

    let storage: Vec<(NodeId, &Role)> =
        layout.roles.iter().filter(|(_, role)| role.is_storage()).map(|(&id, role)| (id, role)).collect();
    // A role with another UID is another site's, unless its node is a member here: then this GarageCluster
    // was created anew and the tag is the old one's.
    let federated = site.has_remote_clusters
        || storage.iter().any(|(id, role)| uids(role).any(|uid| uid != site.uid) && !own(id));

    let name_tag = format!("cluster:{}/{}", site.name, site.namespace);
    let (local, remote) =
        storage.iter().map(|&(id, role)| (id, role)).partition::<Vec<_>, _>(|(id, role)| {
            if federated {
                own(id)
            } else if external.contains(id) {
                false
            } else if uids(role).next().is_some() {
                uids(role).any(|uid| uid == site.uid) || own(id)
            } else {
                role.tags.contains(&name_tag)
            }
        });
    let ids = |roles: Vec<(NodeId, &Role)>| roles.into_iter().map(|(id, _)| id).collect();
    Locality { federated, local: ids(local), remote: ids(remote) }
}

fn uids(role: &Role) -> impl Iterator<Item = &str> {
    role.tags.iter().filter_map(|tag| tag.strip_prefix(UID_TAG))
}

#[cfg(test)]
mod tests;
