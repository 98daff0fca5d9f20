//! Baseline and start (P1, P2, P3), and what a changed set of local nodes means.

use holdfast_crds::status::{Evidence, Phase, Trigger, Verification};

use super::site::SiteRole;
use super::topology::{Difference, difference};
use super::turns::Pass;

impl Pass<'_> {
    /// P1 to P3: records the baseline, starts a proof, or lets one go stale.
    pub(super) fn start(&mut self) {
        let hash = self.f.topology_hash.clone();
        let version = hash.is_some().then_some(self.f.core.layout.version);
        let changed = match (&self.v.topology_hash, &hash) {
            // P1: the first layout with storage roles is a baseline, and one without is none.
            (None, _) => None,
            (Some(_), None) => Some(Difference::Nodes),
            (Some(old), Some(new)) => difference(old, new),
        };
        self.v.topology_hash = hash;
        // P3: a higher version with an equal hash is followed.
        self.v.layout_version = version;

        let token = self.f.site.token.clone().filter(|t| self.v.request_token.as_ref() != Some(t));
        if let Some(token) = token {
            self.v.request_token = Some(token);
            self.restart(Trigger::Requested);
        } else if let Some(difference) = changed {
            if self.f.topology_hash.is_some() && self.may_start_itself() {
                self.restart(match difference {
                    Difference::Nodes => Trigger::NodeChanged,
                    Difference::Roles => Trigger::LayoutChanged,
                });
            } else {
                self.stop("the layout changed after the last proof");
            }
        } else if self.e.unrecognized {
            // Section 6: an unrecognized shape restarts the proof; a finished one proves nothing any more.
            match (self.v.phase, self.v.trigger) {
                (Phase::Idle, _) => self.e = Evidence::default(),
                (Phase::Verified, _) | (_, None) => self.stop("its evidence cannot be read"),
                (_, Some(trigger)) => self.restart(trigger),
            }
        }
        self.follow_local_nodes();
    }

    /// P2: only with the flag on, never on a Follower, and in a federation only on the Writer.
    fn may_start_itself(&self) -> bool {
        let role = self.f.site.site_role;
        self.f.site.on_topology_change
            && role != SiteRole::Follower
            && (!self.f.federated || role == SiteRole::Writer)
    }

    /// P2: begins a proof from nothing. `verifiedAt`, the token and the baseline stay.
    fn restart(&mut self, trigger: Trigger) {
        self.v = Verification {
            phase: Phase::Pending,
            trigger: Some(trigger),
            started_at: Some(self.now),
            phase_started_at: Some(self.now),
            verified_at: self.v.verified_at,
            layout_version: self.v.layout_version,
            topology_hash: self.v.topology_hash.take(),
            request_token: self.v.request_token.take(),
            ..Verification::default()
        };
        self.e = Evidence::default();
        self.deferred.clear();
    }

    /// P3: a proof that no longer speaks of this layout goes, with its evidence and its lists.
    pub(super) fn stop(&mut self, why: &str) {
        if self.v.phase != Phase::Idle || self.v.verified_at.is_some() {
            self.notes.idle_because = Some(why.to_owned());
        }
        self.enter(Phase::Idle);
        self.clear_turn();
        self.v.completed_node_ids.clear();
        self.e = Evidence::default();
        self.deferred.clear();
    }

    /// A node that is no longer local leaves all lists; one that became local was not proven.
    fn follow_local_nodes(&mut self) {
        let local = &self.f.local;
        if self.v.current_node_id.is_some_and(|id| !local.contains(&id)) {
            self.clear_turn();
        }
        let storage = &self.f.storage;
        self.deferred.retain(|id, _| local.contains(id));
        Self::keep_local(local, &mut self.v.completed_node_ids);
        Self::keep_local(local, &mut self.e.tables_done_node_ids);
        Self::keep_local(local, &mut self.e.tables_recheck_node_ids);
        Self::keep_local(local, &mut self.e.missed_node_ids);
        self.e.blocks_launches.retain(|id, _| local.contains(id));
        self.e.incarnations.retain(|id, _| storage.contains(id));
        let proven = local
            .iter()
            .all(|id| self.v.completed_node_ids.contains(id) && self.e.incarnations.contains_key(id));
        if self.v.phase == Phase::Verified && (local.is_empty() || !proven) {
            self.stop("the storage nodes of this site changed after the last proof");
        }
    }
}
