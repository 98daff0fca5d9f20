//! R4: the pins move in an order that a crash at any point can resume: Node, recovery pin, status.

use std::time::Duration;

use holdfast_crds::conditions::IdentityReplacedReason as Reason;
use holdfast_crds::ids::NodeId;
use holdfast_crds::status::{NodeLocalService, Replacement, ServicePhase as Phase};

use super::{Facts, Pins, RefillStep, Write, completed, no};

impl Pins {
    /// Every write, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Write> {
        [&self.move_node, &self.move_pin, &self.move_status].into_iter()
    }

    /// The first record that does not name the identity.
    fn due(&self, new: NodeId) -> Option<&Write> {
        if self.node != [Some(new), Some(new)] {
            Some(&self.move_node)
        } else if self.pin != Some(new) {
            Some(&self.move_pin)
        } else if self.status != Some(new) {
            Some(&self.move_status)
        } else {
            None
        }
    }
}

/// One write in a pass, asked about first: another webhook that refuses it is named, and not fought.
pub(super) fn repair(facts: &Facts<'_>, service: &NodeLocalService, intent: &Replacement) -> RefillStep {
    let mut step = RefillStep {
        service: Some(service.clone()),
        wake_after: Some(Duration::from_secs(2)),
        ..RefillStep::default()
    };
    let says = |what: &str| format!("the pins of {} move to the new identity{what}", facts.pair);
    let Some(new) = intent.new_node_id else {
        step.condition = Some(no(
            Reason::RepairingPins,
            says(", and status.nodeLocalService.replacement lacks it: restore the status"),
        ));
        return step;
    };
    // Two sites that undo each other (R5): what another hand made of the roles is named, and no pin moves.
    let roles = facts.garage.core.as_ref().map(|core| &core.layout.roles);
    match roles {
        Ok(roles) if roles.contains_key(&intent.old_node_id) => {
            step.condition = Some(super::reappeared(&facts.pair, intent.old_node_id));
            return step;
        }
        Ok(roles) if !roles.contains_key(&new) => {
            step.condition = Some(no(
                Reason::WaitingForLayoutRoles,
                says(", and another hand removed its role from the layout; give it the role again"),
            ));
            return step;
        }
        Ok(_) => {}
        Err(why) => {
            step.condition = Some(no(
                Reason::RepairingPins,
                says(&format!(", and Garage Admin API does not answer ({})", why.what)),
            ));
            return step;
        }
    }
    let pins = match &facts.pins {
        Ok(pins) => pins,
        Err(why) => {
            step.condition = Some(no(Reason::RepairingPins, says(&format!(", and {why}"))));
            return step;
        }
    };
    let Some(write) = pins.due(new) else {
        let mut next = service.clone();
        next.phase = Phase::Completed;
        next.phase_started_at = Some(facts.now);
        next.garage_node_id = Some(new);
        let mut done = intent.clone();
        done.completed_at = Some(facts.now);
        step.condition = Some(completed(&facts.pair, &done, facts.garage));
        next.replacement = Some(done);
        step.service = Some(next);
        return step;
    };
    match (&facts.free, &facts.dry_run) {
        (Err(why), _) => {
            step.condition = Some(no(Reason::RepairingPins, says(&format!(", and wait while {why}"))));
        }
        (Ok(()), None) => step.checks.push(write.action(true)),
        (Ok(()), Some(Err(why))) => {
            step.condition = Some(no(
                Reason::PinWriteRefused,
                says(&format!(", and a write of them is refused ({why}); mend what refuses it")),
            ));
        }
        (Ok(()), Some(Ok(()))) => {
            step.condition = Some(no(Reason::RepairingPins, says("")));
            step.actions.push(write.action(false));
        }
    }
    step
}
