//! Introducing members to each other (`compat.md` 4): a new process, or one with another address, is
//! unknown to its peers until somebody names it. It needs no role for that.

use super::Input;
use super::membership::{Members, Process};
use crate::act::{Action, Peer};

/// Tells the answering node of every running member that it does not see up, and where it does not know
/// who answers, the first member of all others. Garage passes addresses on by itself.
pub fn plan(members: &Members<'_>, input: &Input<'_>, actions: &mut Vec<Action>) {
    let Ok(core) = &input.observation.garage.core else { return };
    // An identity that contradicts the records is introduced as well: a refill needs its peers to see it.
    let running: Vec<(&Process, Peer)> = members
        .all
        .values()
        .filter_map(|member| member.process.as_ref())
        .filter_map(|process| Some((process, Peer { id: process.id?, address: process.rpc })))
        .collect();
    let hub = core
        .answering
        .and_then(|id| running.iter().find(|(process, _)| process.id == Some(id)))
        .or_else(|| running.first());
    let Some((hub, _)) = hub else { return };
    let strangers: Vec<Peer> = running
        .iter()
        .filter(|(process, peer)| {
            process.id != hub.id && !core.nodes.get(&peer.id).is_some_and(|node| node.is_up)
        })
        .map(|(_, peer)| *peer)
        .collect();
    if !strangers.is_empty() {
        actions.push(Action::ConnectNodes { at: hub.admin, peers: strangers });
    }
}
