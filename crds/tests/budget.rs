//! The size budget of `behaviour.md` section 6: 256 storage nodes with full lists.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::ids::{LayoutVersion, NodeId};
use holdfast_crds::status::{
    Coordination, DeferReason, DeferredNode, Evidence, Incarnation, NodeRedundancy, NodeStage, Phase,
    Redundancy, Scope, StorageNodes, Time, Trigger, Verification,
};
use holdfast_crds::v1beta2::{GarageCluster, GarageClusterSpec, GarageClusterStatus};
use serde_json::json;

const NODES: u32 = 256;

fn ids() -> impl Iterator<Item = NodeId> {
    (0..NODES).map(|i| {
        let mut bytes = [0xff; 32];
        bytes[..4].copy_from_slice(&i.to_be_bytes());
        NodeId::from_bytes(bytes)
    })
}

fn time() -> Time {
    "2026-11-30T01:02:03Z".parse::<jiff::Timestamp>().map(Time::new).unwrap()
}

/// How far a proof is, for what can be in status at once.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// Every node is deferred and due a recheck; so none is finished and none has an incarnation (P10, P11).
    AllDeferred,
    /// Every node is finished; so nothing is deferred, due or missed.
    Settling,
    /// Half of the nodes are another site's.
    Federated,
}

/// Every list and map of that moment, full, with every counter as long as it gets in practice.
fn full(moment: Moment) -> Redundancy {
    let all: BTreeSet<NodeId> = ids().collect();
    let (local, remote): (BTreeSet<NodeId>, BTreeSet<NodeId>) = match moment {
        Moment::Federated => (ids().step_by(2).collect(), ids().skip(1).step_by(2).collect()),
        _ => (all.clone(), BTreeSet::new()),
    };
    let none = BTreeSet::new();
    let deferred = if moment == Moment::AllDeferred { &local } else { &none };
    let finished = if moment == Moment::AllDeferred { &none } else { &local };
    Redundancy {
        scope: Some(Scope::Cluster),
        storage_nodes: Some(StorageNodes { total: 256, local: 256, remote: 256, verified: 256 }),
        progress_observed_at: Some(time()),
        last_progress_at: Some(time()),
        deferred_nodes: deferred
            .iter()
            .map(|&node_id| DeferredNode {
                node_id,
                reason: DeferReason::NotReporting,
                since: time(),
                retry_after: Some(time()),
            })
            .collect(),
        coordination: (!remote.is_empty()).then(|| Coordination {
            remote_repair_worker_ids: remote.iter().map(|&id| (id, 123_456)).collect(),
            last_remote_repair_at: Some(time()),
            last_remote_repair_node_id: remote.first().copied(),
        }),
        nodes: ids()
            .map(|node_id| NodeRedundancy {
                node_id,
                observed: true,
                resync_queue_length: Some(1_234_567_890),
                resync_idle: Some(false),
                block_errors: Some(1_234_567),
                no_room_seen_at: None,
                metadata_sync_partitions: Some(1280),
                metadata_queue_length: Some(1_234_567_890),
                // Only one repair of ours runs at any moment (P6).
                block_repair_progress: (Some(node_id) == ids().next()).then(|| "x".repeat(64)),
            })
            .collect(),
        verification: Some(Verification {
            phase: Phase::ScanningBlocks,
            trigger: Some(Trigger::LayoutChanged),
            started_at: Some(time()),
            phase_started_at: Some(time()),
            verified_at: Some(time()),
            layout_version: Some(LayoutVersion(u64::MAX)),
            topology_hash: Some("0".repeat(64)),
            request_token: Some("é".repeat(253)),
            current_node_id: ids().next(),
            completed_node_ids: finished.clone(),
            evidence: Some(Evidence {
                node_stage: Some(NodeStage::Blocks),
                stage_launched_at: Some(time()),
                worker_baseline: Some(123_456),
                sync_error_baselines: ["bucket_v2", "object", "version", "block_ref", "key"]
                    .into_iter()
                    .map(|t| (format!("{t} sync"), i64::MAX))
                    .chain(remote.iter().map(|id| (id.to_string(), 123_456)))
                    .collect(),
                launches: Some(3),
                tables_done_node_ids: local.clone(),
                tables_recheck_node_ids: deferred.clone(),
                missed_node_ids: deferred.clone(),
                blocks_launches: deferred.iter().map(|&id| (id, 3)).collect(),
                // None: a quiet period asks for 0 of each resync worker (P14), and a baseline of 0 is not stored. With
                // Garage's eight workers a node, 2048 zeroes would take 144 KiB.
                resync_error_baselines: BTreeMap::new(),
                incarnations: finished
                    .iter()
                    .map(|&id| {
                        let incarnation = Incarnation {
                            pod_uid: Some("2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c".to_owned()),
                            restart_count: Some(12),
                            highest_worker_id: Some(123_456),
                            data_total: Some(17_592_186_044_416),
                            metadata_total: Some(1_099_511_627_776),
                        };
                        (id, incarnation)
                    })
                    .collect(),
                ..Evidence::default()
            }),
        }),
    }
}

const MOMENTS: [Moment; 3] = [Moment::AllDeferred, Moment::Settling, Moment::Federated];

/// Another operator's drain that names every node in every list.
fn full_drain() -> serde_json::Value {
    let ids: Vec<String> = ids().map(|id| id.to_string()).collect();
    let counters = |workers: u32| -> BTreeMap<String, u64> {
        ids.iter().flat_map(|id| (0..workers).map(move |w| (format!("{id}/{w}"), 123_456))).collect()
    };
    json!({
        "roleRemovalNodeIds": ids, "removedStorageNodeIds": ids, "unavailableSourceNodeIds": ids,
        "verificationNodeIds": ids, "repairBaselines": counters(1), "repairWorkerIds": counters(1),
        "resyncErrorBaselines": counters(8),
        "managedPodUids": ids.iter().map(|id| (id, "2b7c9e10-4d3f-4a6b-8c21-0f5e6d7a8b9c")).collect::<BTreeMap<_, _>>(),
    })
}

#[test]
fn the_status_of_256_storage_nodes_with_full_lists_stays_in_its_budget() {
    for moment in MOMENTS {
        let redundancy = full(moment);
        let size = serde_json::to_vec(&redundancy).unwrap().len();
        assert!(size < 256 * 1024, "status.redundancy has {size} bytes ({moment:?})");

        let mut cluster = GarageCluster::new("site-a", GarageClusterSpec::default());
        cluster.status = Some(GarageClusterStatus {
            redundancy: Some(redundancy),
            storage_drain: Some(full_drain()),
            ..GarageClusterStatus::default()
        });
        let whole = serde_json::to_vec(&cluster.status).unwrap().len();
        assert!(whole < 1024 * 1024, "the status has {whole} bytes ({moment:?})");
    }
}

#[test]
fn full_lists_read_back_as_they_were_written() {
    for moment in MOMENTS {
        let written = full(moment);
        let text = serde_json::to_string(&written).unwrap();
        assert_eq!(serde_json::from_str::<Redundancy>(&text).unwrap(), written);
    }
}
