//! Garage's worker variables from `spec.workers`, set after every start of a process (section 13): Garage
//! keeps them for the life of the process only.

use super::membership::Members;
use super::site::Site;
use super::{Input, PoolStep};
use crate::act::Action;

/// Sets what was not set since the process started.
pub fn plan(site: &Site, members: &Members<'_>, input: &Input<'_>, step: &mut PoolStep) {
    let Ok(core) = &input.observation.garage.core else { return };
    for member in members.all.values() {
        if member.record.is_some_and(super::record::Record::is_suspended) {
            continue;
        }
        let Some(process) = &member.process else { continue };
        let Some(id) = process.id.filter(|id| core.nodes.get(id).is_some_and(|node| node.is_up)) else {
            continue;
        };
        let set = input.memory.variables.get(&process.incarnation);
        for (name, value) in &site.worker_variables {
            if set.and_then(|set| set.get(*name)) == Some(value) {
                continue;
            }
            step.variables.insert(step.actions.len(), process.incarnation.clone());
            step.actions.push(Action::SetWorkerVariable {
                node: id,
                variable: (*name).to_owned(),
                value: value.clone(),
            });
        }
    }
}
