//! The quiet period and its end (P14, D4, D9, D10).

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{Evidence, Phase, Time};

use super::facts::{Facts, NodeFacts};
use super::turns::{Flow, Pass};

/// What a quiet observation showed of the remote storage nodes.
///
/// The resync workers of local nodes are not among it: 0 errors are required of each, so a baseline of theirs could say
/// nothing else, and 2048 zeroes (256 nodes with Garage's eight workers) would break the budget of section 6.
struct Remote {
    /// Sum of the five sync workers' errors of each: what must not move during the quiet period.
    errors: BTreeMap<String, i64>,
    /// One whose sync workers are not idle and empty.
    busy: Option<NodeId>,
}

impl Pass<'_> {
    /// Length of the quiet period over the local nodes, in seconds.
    pub(super) fn quiet_period(&self) -> i64 {
        let spec = self.f.site.rpc_timeout.map_or(self.t.rpc_timeout, seconds_up);
        let longest = self
            .f
            .local
            .iter()
            .map(|id| self.f.garage.rpc_timeouts.get(id).map_or(spec, |d| seconds_up(*d)))
            .max()
            .unwrap_or(spec);
        (2 * longest + self.t.quiet_margin).max(self.t.quiet_min)
    }

    /// What of the quiet period the remote storage nodes need for a pass of their own, in seconds (D9).
    fn remote_interval(&self) -> i64 {
        if self.f.remote().next().is_some() { self.t.anti_entropy } else { 0 }
    }

    /// Its end, while it runs, as far as it is known.
    pub(super) fn quiet_end(&self) -> Option<Time> {
        let passed = self.e.quiet_since?.plus_seconds(self.remote_interval());
        Some(self.e.remote_passes_seen_at.map_or(passed, |t| t.max(passed)).plus_seconds(self.quiet_period()))
    }

    /// A change restarts only the quiet period; nothing is launched again.
    pub(super) fn drop_quiet_period(&mut self) {
        self.e.quiet_since = None;
        self.e.remote_passes_seen_at = None;
        self.e.resync_busy_node_ids = BTreeSet::new();
        self.e.resync_error_baselines = BTreeMap::new();
        if self.e.node_stage.is_none() {
            self.e.sync_error_baselines = BTreeMap::new();
        }
    }

    pub(super) fn settle(&mut self) -> Flow {
        self.enter(Phase::Settling);
        let now = match quiet(self.f, &self.e) {
            Ok(now) => now,
            Err(why) => {
                self.drop_quiet_period();
                self.notes.waits_for = Some(why);
                return Flow::Wait;
            }
        };
        let waits_for = |id: NodeId| Some(format!("the table sync of remote storage node {}", id.short()));
        let unchanged = now.errors == self.e.sync_error_baselines;
        match self.e.quiet_since.and_then(|t| self.elapsed_since(t)) {
            Some(elapsed) if unchanged => {
                if elapsed >= self.remote_interval() {
                    // A pass of every remote node began in the meantime; idle now, it has ended.
                    if now.busy.is_none() {
                        self.e.remote_passes_seen_at.get_or_insert(self.now);
                    }
                    let Some(seen) = self.e.remote_passes_seen_at else {
                        self.notes.waits_for = now.busy.and_then(waits_for);
                        return Flow::Wait;
                    };
                    let quiet =
                        if self.remote_interval() == 0 { elapsed } else { self.now.seconds_since(seen) };
                    if quiet >= self.quiet_period() {
                        match (self.with_checks_due(), now.busy) {
                            (Some(id), _) => {
                                self.notes.waits_for =
                                    Some(format!("the block resync of node {}", id.short()));
                            }
                            (None, Some(id)) => self.notes.waits_for = waits_for(id),
                            (None, None) => self.verified(),
                        }
                    }
                }
            }
            // It begins when everybody is idle: a pass that runs already may have gone past what is missing here.
            _ if now.busy.is_some() => {
                self.drop_quiet_period();
                self.notes.waits_for = now.busy.and_then(waits_for);
            }
            _ => {
                self.e.quiet_since = Some(self.now);
                self.e.remote_passes_seen_at = None;
                self.e.sync_error_baselines = now.errors;
            }
        }
        Flow::Wait
    }

    /// A local node whose resync workers were busy in every pass since the quiet period was over.
    ///
    /// When it began, every check that the proof made necessary was queued for a time before its end. So a node that is
    /// seen idle after its end has made them all. On a site that is written to, new checks become due all the time, so
    /// that its nodes are never all idle in every pass (D4).
    fn with_checks_due(&mut self) -> Option<NodeId> {
        let f = self.f;
        let open = |id: &&NodeId| f.workers(**id).is_none_or(|w| !w.resync.nothing_due());
        let before = std::mem::take(&mut self.e.resync_busy_node_ids);
        let open = f.local.iter().filter(|id| before.is_empty() || before.contains(id)).filter(open);
        self.e.resync_busy_node_ids = open.copied().collect();
        self.e.resync_busy_node_ids.first().copied()
    }

    fn verified(&mut self) {
        self.enter(Phase::Verified);
        self.v.verified_at = Some(self.now);
        let done = std::mem::take(&mut self.e);
        // P16 needs what each node was; block errors must be able to go back to Settling without a launch.
        self.e = Evidence {
            tables_done_node_ids: done.tables_done_node_ids,
            incarnations: done.incarnations,
            sync_metrics_unread: done.sync_metrics_unread,
            ..Evidence::default()
        };
        self.notes.progressed = true;
    }
}

/// P14: whether every local node is quiet in this pass, and in a federation every other one up and answering.
/// The error says who is not, in fixed words.
///
/// That a remote node's sync workers are busy is no disturbance: two of the five begin a pass every ten seconds
/// and the others every ten minutes (FACTS 7), so that a period in which nobody is ever seen busy does not come.
fn quiet(f: &Facts<'_>, e: &Evidence) -> Result<Remote, String> {
    for id in &f.local {
        let node = f.node(*id).filter(|n| n.up && n.reporting);
        let Some(node) = node else { return Err(format!("node {} to answer", id.short())) };
        quiet_node(*id, node, e)?;
    }
    if let Some(id) = f.blind.as_ref().and_then(|blind| blind.iter().next()) {
        return Err(format!("node {} to see every storage node up", id.short()));
    }
    let h = &f.core.health;
    if h.storage_nodes_up < h.storage_nodes || h.partitions_all_ok < h.partitions {
        // In a federation this may be a remote node; it is named below where the list shows it.
        if let Some(id) = f.remote().find(|id| !f.up(*id)) {
            return Err(format!("remote storage node {} to be up", id.short()));
        }
        return Err("every partition to have all its nodes up".to_owned());
    }
    let mut remote = Remote { errors: BTreeMap::new(), busy: None };
    for id in f.remote() {
        let Some(tables) = f.workers(id).filter(|_| f.up(id)).and_then(|w| w.tables.as_ref()) else {
            return Err(format!("remote storage node {} to answer with its sync workers", id.short()));
        };
        remote.errors.insert(id.to_string(), tables.errors.iter().sum());
        if !tables.idle_and_empty {
            remote.busy = remote.busy.or(Some(id));
        }
    }
    Ok(remote)
}

fn quiet_node(id: NodeId, node: &NodeFacts, e: &Evidence) -> Result<(), String> {
    let short = id.short();
    let Some(workers) = &node.workers else { return Err(format!("node {short} to answer")) };
    // P16 compares with its Pod; while there is none, nothing vouches for the process.
    if e.incarnations.get(&id).is_none_or(|i| i.pod_uid.is_some() && node.incarnation.pod_uid.is_none()) {
        return Err(format!("the Pod of node {short}"));
    }
    if workers.running_repair().is_some() {
        return Err(format!("the block repair that runs on node {short}"));
    }
    if workers.resync.idle.is_none() {
        return Err(format!("node {short} to show its block resync workers"));
    }
    for (_, errors) in &workers.resync.persistent_errors {
        // A gauge, stale until the worker wakes: 0 is required, not only unchanged (D4).
        if *errors != Some(0) {
            return Err(format!("the blocks in error on node {short}"));
        }
    }
    if node.block_errors.as_ref().is_none_or(|b| !b.is_empty()) {
        return Err(format!("the blocks in error on node {short}"));
    }
    Ok(())
}

fn seconds_up(d: std::time::Duration) -> i64 {
    let whole = i64::try_from(d.as_secs()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
    whole + i64::from(d.subsec_nanos() > 0)
}
