//! What is shown of each site when the metrics are scraped: the status as this process last wrote it, so that a
//! series ends with its site and never shows two phases at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use holdfast_crds::conditions::ConditionStatus;
use holdfast_crds::status::{DeferReason, NodeLocalService, Phase, Redundancy, Time};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::metrics::{Cluster, without_room};
use crate::observe::GarageView;
use crate::status::Parts;

/// Figures of one site.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    redundancy: Option<Redundancy>,
    service: Option<NodeLocalService>,
    /// Type to status and reason.
    conditions: BTreeMap<String, (ConditionStatus, String)>,
    without_room: Option<i64>,
}

impl Figures {
    /// Takes over what a status write says; what it leaves alone stays.
    pub(super) fn take(&mut self, parts: &Parts) {
        if let Some(redundancy) = &parts.redundancy {
            self.redundancy = redundancy.clone().and_then(|value| serde_json::from_value(value).ok());
        }
        if let Some(service) = &parts.node_local_service {
            self.service = service.clone().and_then(|value| serde_json::from_value(value).ok());
        }
        for kind in &parts.removed_conditions {
            self.conditions.remove(kind);
        }
        for (kind, (status, reason, _)) in &parts.conditions {
            self.conditions.insert(kind.clone(), (*status, reason.clone()));
        }
    }

    /// Whether a pass has said anything of it.
    pub(super) fn is_known(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Takes over what the last pass saw of the disks.
    pub(super) fn room(&mut self, view: &GarageView) {
        self.without_room = without_room(view);
    }
}

/// Labels: the site's, and further ones. (The derived form takes no borrowed words.)
fn labels<'a, const N: usize>(site: &'a Cluster, more: [(&'a str, &'a str); N]) -> Vec<(&'a str, &'a str)> {
    let mut labels = vec![("namespace", site.namespace.as_str()), ("cluster", site.cluster.as_str())];
    labels.extend(more);
    labels
}

/// Every site, read when it is scraped.
#[derive(Debug)]
pub(super) struct Sites(pub Arc<Mutex<BTreeMap<Cluster, Figures>>>);

impl Collector for Sites {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let sites = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        per_site(&mut encoder, &sites)?;
        phases(&mut encoder, &sites)?;

        let mut metric = encoder.encode_descriptor(
            "storage_nodes",
            "storage nodes of the layout, by state: total, local, remote, verified, deferred, repair_failed, silent, without_room",
            None,
            MetricType::Gauge,
        )?;
        for (site, figures) in &sites {
            for (state, count) in states(figures) {
                metric.encode_family(&labels(site, [("state", state)]).as_slice())?.encode_gauge(&count)?;
            }
        }

        let mut metric = encoder.encode_descriptor(
            "service_phase",
            "1 for the phase of a hold or a refill",
            None,
            MetricType::Gauge,
        )?;
        for (site, figures) in &sites {
            if let Some(service) = &figures.service {
                let (operation, phase) = (format!("{:?}", service.operation), format!("{:?}", service.phase));
                let labels = labels(site, [("operation", &operation), ("phase", &phase)]);
                metric.encode_family(&labels)?.encode_gauge(&1_i64)?;
            }
        }

        let mut metric = encoder.encode_descriptor(
            "condition",
            "1 for the status and reason that a condition has",
            None,
            MetricType::Gauge,
        )?;
        for (site, figures) in &sites {
            for (kind, (status, reason)) in &figures.conditions {
                let labels = labels(site, [("type", kind), ("status", status.as_str()), ("reason", reason)]);
                metric.encode_family(&labels)?.encode_gauge(&1_i64)?;
            }
        }
        Ok(())
    }
}

/// A figure of one site; absent where it is not known.
type Read = fn(&Figures) -> Option<i64>;

/// Name, what it is, where it comes from.
const PER_SITE: &[(&str, &str, Read)] = &[
    (
        "fully_replicated",
        "FullyReplicated of a site: 1 True, 0 False, -1 Unknown; absent until it is set",
        |f| {
            f.conditions.get("FullyReplicated").map(|(status, _)| match status {
                ConditionStatus::True => 1,
                ConditionStatus::False => 0,
                ConditionStatus::Unknown => -1,
            })
        },
    ),
    ("proof_phase_start_timestamp_seconds", "begin of the proof's phase, seconds since the epoch", |f| {
        seconds(f.redundancy.as_ref()?.verification.as_ref()?.phase_started_at)
    }),
    (
        "proof_last_progress_timestamp_seconds",
        "last time remaining work decreased, seconds since the epoch; moves in steps of 60 s",
        |f| seconds(f.redundancy.as_ref()?.last_progress_at),
    ),
    (
        "verified_timestamp_seconds",
        "end of the last completed proof, seconds since the epoch; kept when it is void; 0 before the first",
        |f| Some(f.redundancy.as_ref()?.verification.as_ref()?.verified_at.map_or(0, Time::as_second)),
    ),
    ("proof_stage_launches", "launches of the running stage; at most 3", |f| {
        Some(f.redundancy.as_ref()?.verification.as_ref()?.evidence.as_ref()?.launches.unwrap_or(0).into())
    }),
    (
        "deferred_since_timestamp_seconds",
        "since when the longest deferred node waits, seconds since the epoch; absent without one",
        |f| seconds(f.redundancy.as_ref()?.deferred_nodes.iter().map(|d| d.since).min()),
    ),
    (
        "resync_queue_blocks",
        "blocks in the resync queues of all storage nodes, delayed rechecks included",
        |f| sum(f.redundancy.as_ref()?.nodes.iter().map(|n| n.resync_queue_length)),
    ),
    ("metadata_queue_items", "entries in the Merkle and insert queues of all storage nodes", |f| {
        sum(f.redundancy.as_ref()?.nodes.iter().map(|n| n.metadata_queue_length))
    }),
    (
        "block_errors",
        "blocks with resync errors, summed over nodes: one block counts on each node that misses it",
        |f| sum(f.redundancy.as_ref()?.nodes.iter().map(|n| n.block_errors.map(i64::from))),
    ),
    (
        "service_phase_start_timestamp_seconds",
        "begin of the phase of a hold or a refill, seconds since the epoch",
        |f| seconds(f.service.as_ref()?.phase_started_at),
    ),
    ("service_start_timestamp_seconds", "begin of a hold or a refill, seconds since the epoch", |f| {
        seconds(f.service.as_ref()?.started_at)
    }),
];

fn per_site(encoder: &mut DescriptorEncoder<'_>, sites: &BTreeMap<Cluster, Figures>) -> std::fmt::Result {
    for (name, help, read) in PER_SITE {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, figures) in sites {
            if let Some(value) = read(figures) {
                metric.encode_family(labels)?.encode_gauge(&value)?;
            }
        }
    }
    Ok(())
}

const PHASES: [Phase; 7] = [
    Phase::Idle,
    Phase::Pending,
    Phase::SyncingMetadata,
    Phase::ScanningBlocks,
    Phase::Settling,
    Phase::Partial,
    Phase::Verified,
];

fn phases(encoder: &mut DescriptorEncoder<'_>, sites: &BTreeMap<Cluster, Figures>) -> std::fmt::Result {
    let help = "1 for the phase of the proof, 0 for the others";
    let mut metric = encoder.encode_descriptor("proof_phase", help, None, MetricType::Gauge)?;
    for (site, figures) in sites {
        let Some(verification) = figures.redundancy.as_ref().and_then(|r| r.verification.as_ref()) else {
            continue;
        };
        for one in PHASES {
            let phase = format!("{one:?}");
            let labels = labels(site, [("phase", &phase)]);
            metric.encode_family(&labels)?.encode_gauge(&i64::from(one == verification.phase))?;
        }
    }
    Ok(())
}

fn states(figures: &Figures) -> Vec<(&'static str, i64)> {
    let mut states = Vec::new();
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    if let Some(redundancy) = &figures.redundancy {
        if let Some(nodes) = redundancy.storage_nodes {
            states.extend([
                ("total", nodes.total.into()),
                ("local", nodes.local.into()),
                ("remote", nodes.remote.into()),
                ("verified", nodes.verified.into()),
            ]);
        }
        let deferred = &redundancy.deferred_nodes;
        let failed = deferred.iter().filter(|d| d.reason == DeferReason::RepairFailed).count();
        states.push(("deferred", count(deferred.len())));
        states.push(("repair_failed", count(failed)));
        states.push(("silent", count(redundancy.nodes.iter().filter(|n| !n.observed).count())));
    }
    states.extend(figures.without_room.map(|n| ("without_room", n)));
    states
}

fn seconds(time: Option<Time>) -> Option<i64> {
    time.map(Time::as_second)
}

/// The sum of what is known; `None` where nothing is: absence is not zero.
fn sum(counts: impl Iterator<Item = Option<i64>>) -> Option<i64> {
    counts.flatten().reduce(i64::saturating_add)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use serde_json::json;

    use super::super::metrics::Metrics;
    use super::*;

    fn parts() -> Parts {
        let mut parts = Parts::default();
        parts.condition("FullyReplicated", ConditionStatus::False, "Partial", "m".to_owned());
        parts.redundancy = Some(Some(json!({
            "scope": "Cluster", "storageNodes": {"total": 3, "local": 3, "remote": 0, "verified": 2},
            "verification": {"phase": "Partial", "phaseStartedAt": "2026-01-02T03:00:00Z"},
            "deferredNodes": [{"nodeId": "01".repeat(32), "reason": "RepairFailed", "since": "2026-01-02T03:00:00Z"}],
            "nodes": [
                {"nodeId": "01".repeat(32), "observed": false},
                {"nodeId": "02".repeat(32), "observed": true, "resyncQueueLength": 7, "blockErrors": 1},
            ],
        })));
        parts.node_local_service = Some(Some(json!({"pool": "fast", "kubernetesNode": "kn-1",
            "operation": "OutOfService", "phase": "Waiting", "startedAt": "2026-01-02T03:00:00Z"})));
        parts
    }

    fn scrape(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn a_site_is_shown_as_its_status_says_and_ends_with_it() {
        let mut registry = Registry::with_prefix("garage_holdfast");
        let metrics = Metrics::register(&mut registry);
        metrics.said("objects", "site-a", &parts(), false);
        let text = scrape(&registry);
        let site = r#"namespace="objects",cluster="site-a""#;
        for line in [
            format!("garage_holdfast_fully_replicated{{{site}}} 0\n"),
            format!("garage_holdfast_proof_phase{{{site},phase=\"Partial\"}} 1\n"),
            format!("garage_holdfast_proof_phase{{{site},phase=\"Verified\"}} 0\n"),
            format!("garage_holdfast_storage_nodes{{{site},state=\"repair_failed\"}} 1\n"),
            format!("garage_holdfast_storage_nodes{{{site},state=\"silent\"}} 1\n"),
            format!("garage_holdfast_resync_queue_blocks{{{site}}} 7\n"),
            format!("garage_holdfast_deferred_since_timestamp_seconds{{{site}}} 1767322800\n"),
            format!(
                "garage_holdfast_service_phase{{{site},operation=\"OutOfService\",phase=\"Waiting\"}} 1\n"
            ),
            format!(
                "garage_holdfast_condition{{{site},type=\"FullyReplicated\",status=\"False\",reason=\"Partial\"}} 1\n"
            ),
        ] {
            assert!(text.contains(&line), "{line}{text}");
        }
        // Never observed by any node: absent, not 0.
        assert!(!text.contains(&format!("garage_holdfast_metadata_queue_items{{{site}}}")), "{text}");
        for name in ["kn-1", "0101", "0202"] {
            assert!(!text.contains(name), "{name} is an object's name");
        }
        metrics.forget("objects", "site-a");
        assert!(!scrape(&registry).contains("site-a"));
    }

    #[test]
    fn a_write_that_leaves_a_part_alone_leaves_its_figures_alone() {
        let mut figures = Figures::default();
        figures.take(&parts());
        figures.take(&Parts::default());
        assert!(figures.redundancy.is_some() && figures.service.is_some() && figures.conditions.len() == 1);
        let gone = Parts {
            redundancy: Some(None),
            node_local_service: Some(None),
            removed_conditions: vec!["FullyReplicated".to_owned()],
            ..Parts::default()
        };
        figures.take(&gone);
        assert!(figures.redundancy.is_none() && figures.service.is_none() && figures.conditions.is_empty());
    }

    #[test]
    fn an_action_is_counted_by_its_kind_without_the_names_in_it() {
        let mut registry = Registry::with_prefix("garage_holdfast");
        let metrics = Metrics::register(&mut registry);
        metrics.action("LaunchRepairOperation Blocks on 0101010101010101", "executed");
        let text = scrape(&registry);
        assert!(
            text.contains(
                r#"garage_holdfast_actions_total{action="LaunchRepairOperation",result="executed"} 1"#
            ),
            "{text}"
        );
    }
}
