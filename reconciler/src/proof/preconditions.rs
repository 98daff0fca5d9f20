//! Preconditions pause in place (P15, P4).

use super::is_active;
use super::turns::Pass;
use crate::observe::judge::{self, Room};
use holdfast_crds::status::{NodeStage, Phase};

impl Pass<'_> {
    /// Finds the first failing precondition of a proof that could otherwise go on.
    pub(super) fn check_preconditions(&mut self) {
        if !is_active(self.v.phase) && self.v.phase != Phase::Partial {
            return;
        }
        let Some((what, moves_data)) = self.first_failing() else { return };
        self.notes.precondition = Some(what);
        if moves_data {
            self.drop_quiet_period();
        }
        // The two clean observations of a tables stage have nothing else between them (P7).
        if self.e.node_stage == Some(NodeStage::Tables) {
            self.e.idle_since = None;
        }
    }

    fn first_failing(&self) -> Option<(String, bool)> {
        if let Some(busy) = &self.f.site.busy {
            return Some((busy.what.clone(), busy.moves_data));
        }
        if let Err(why) = judge::settled(self.f.core) {
            return Some((why.to_string(), false));
        }
        for id in &self.f.storage {
            let Some(node) = self.f.node(*id).filter(|n| n.up) else { continue };
            let short = id.short();
            match node.room {
                Room::Enough => {}
                Room::None(disk) if node.blind_to_failed_writes => {
                    let version = self.version(*id);
                    return Some((
                        format!(
                            "storage node {short} has no room in its {disk}, and {version} does \
                             not notice failed block writes: make room, then scrub it"
                        ),
                        false,
                    ));
                }
                Room::None(disk) => {
                    return Some((format!("storage node {short} has no room in its {disk}"), false));
                }
                Room::Unknown(_) => {
                    return Some((format!("storage node {short} does not show how much room it has"), false));
                }
            }
        }
        if let Some((id, since)) = self.f.storage.iter().find_map(|id| Some((*id, self.unscrubbed.get(id)?)))
        {
            return Some((
                format!(
                    "storage node {} had no room at {since} under a Garage before 2.3.0, which does not notice \
                     failed block writes, and no scrub of it was completed since ({} now)",
                    id.short(),
                    self.version(id),
                ),
                false,
            ));
        }
        if self.f.local.is_empty() {
            return Some(("no storage node of the layout is local to this site".to_owned(), false));
        }
        None
    }

    fn version(&self, id: holdfast_crds::ids::NodeId) -> String {
        let version = self.f.core.nodes.get(&id).and_then(|n| n.version.as_deref());
        version.map_or_else(
            || "its Garage of unknown version".to_owned(),
            |v| format!("Garage {}", v.rsplit(':').next().unwrap_or(v)),
        )
    }
}
