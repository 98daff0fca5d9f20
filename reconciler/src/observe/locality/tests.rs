#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::observe::{LayoutParameters, ZoneRedundancy};
use crate::testing::node;
use holdfast_crds::ids::LayoutVersion;

const UID: &str = "0b1e6f7c-0000-4000-8000-000000000001";
const OTHER: &str = "0b1e6f7c-0000-4000-8000-000000000002";

fn layout(roles: &[(u8, &[&str])]) -> Layout {
    let role = |tags: &[&str]| Role {
        zone: "dc1".into(),
        capacity: Some(1 << 40),
        tags: tags.iter().map(ToString::to_string).collect(),
    };
    Layout {
        version: LayoutVersion(1),
        roles: roles.iter().map(|(id, tags)| (node(*id), role(tags))).collect(),
        parameters: LayoutParameters { zone_redundancy: ZoneRedundancy::Maximum },
        staged: vec![],
        staged_parameters: None,
    }
}

fn member(id: u8) -> Member {
    Member { ids: [node(id)].into(), external: false, gateway: false }
}

fn find(layout: &Layout, remote_clusters: bool, garage_nodes: &[Member]) -> Locality {
    let site = Site {
        name: "site-a",
        namespace: "objects",
        uid: UID,
        has_remote_clusters: remote_clusters,
        garage_nodes,
    };
    locality(layout, &site)
}

fn ids(of: &[u8]) -> BTreeSet<NodeId> {
    of.iter().map(|&b| node(b)).collect()
}

#[test]
fn a_lone_site_knows_its_roles_by_its_uid_tag_or_else_by_its_name_tag() {
    let own_uid = format!("cluster-uid:{UID}");
    let layout = layout(&[(1, &[&own_uid]), (2, &["cluster:site-a/objects"]), (3, &["node3"])]);
    let found = find(&layout, false, &[]);
    assert!(!found.federated);
    assert_eq!((found.local.clone(), found.remote.clone()), (ids(&[1, 2]), ids(&[3])));
    assert_eq!(found.scope(), Some(Scope::Local));
    assert_eq!(found.all(), ids(&[1, 2, 3]));
}

#[test]
fn another_sites_uid_makes_a_federation_and_tags_no_longer_count() {
    let (own_uid, other_uid) = (format!("cluster-uid:{UID}"), format!("cluster-uid:{OTHER}"));
    let layout = layout(&[(1, &[&own_uid]), (2, &[&own_uid]), (3, &[&other_uid])]);
    let found = find(&layout, false, &[member(1)]);
    assert!(found.federated);
    assert_eq!((found.local, found.remote), (ids(&[1]), ids(&[2, 3])));
}

#[test]
fn remote_clusters_alone_make_a_federation() {
    let own_uid = format!("cluster-uid:{UID}");
    let layout = layout(&[(1, &[&own_uid])]);
    assert!(find(&layout, true, &[]).federated);
    assert_eq!(find(&layout, true, &[]).local, ids(&[]));
    assert_eq!(find(&layout, true, &[member(1)]).scope(), Some(Scope::Cluster));
}

/// Section 2: its roles carry the UID of the object before.
#[test]
fn a_recreated_cluster_is_no_federation_and_keeps_its_members() {
    let old_uid = format!("cluster-uid:{OTHER}");
    let layout = layout(&[(1, &[&old_uid]), (2, &[&old_uid])]);
    let found = find(&layout, false, &[member(1), member(2)]);
    assert!(!found.federated);
    assert_eq!(found.local, ids(&[1, 2]));
    assert!(find(&layout, false, &[member(1)]).federated, "node 2 is nobody's here");
}

#[test]
fn external_and_gateway_members_are_never_local() {
    let own_uid = format!("cluster-uid:{UID}");
    let layout = layout(&[(1, &[&own_uid]), (2, &[&own_uid]), (3, &[&own_uid])]);
    let external = Member { external: true, ..member(2) };
    let gateway = Member { gateway: true, ..member(3) };
    assert_eq!(find(&layout, false, &[member(1), external.clone()]).local, ids(&[1, 3]));
    assert_eq!(find(&layout, true, &[member(1), external.clone(), gateway]).local, ids(&[1]));
    // Claimed by two GarageNodes, one of them external: not ours to repair.
    assert_eq!(find(&layout, true, &[member(2), external]).local, ids(&[]));
}

#[test]
fn a_layout_without_storage_roles_has_no_scope() {
    let mut layout = layout(&[(1, &["cluster:site-a/objects"])]);
    layout.roles.get_mut(&node(1)).unwrap().capacity = None;
    assert_eq!(find(&layout, false, &[]).scope(), None);
}
