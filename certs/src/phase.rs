//! What a rotation does next: a pure function over what is stored, what the API server has, and a time.

use jiff::Timestamp;

/// Lifetimes and waits, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Of a CA.
    pub ca_lifetime: i64,
    /// A new CA is published when less than this is left.
    pub ca_renew_before: i64,
    /// Of a leaf.
    pub leaf_lifetime: i64,
    /// A new leaf is issued when less than this is left.
    pub leaf_renew_before: i64,
    /// From the moment both bundles were read back with both CAs to the switch: API servers read
    /// their configuration through caches. Also longer than a turn of a replica, whatever call of it is slow.
    pub propagation: i64,
}

impl Default for Policy {
    fn default() -> Self {
        const DAY: i64 = 86_400;
        Self {
            ca_lifetime: 365 * DAY,
            ca_renew_before: 120 * DAY,
            leaf_lifetime: 7 * DAY,
            leaf_renew_before: 2 * DAY,
            propagation: 60,
        }
    }
}

impl Policy {
    /// The same with leaves of this lifetime, renewed when a third is left.
    #[must_use]
    pub fn with_leaf_lifetime(self, seconds: i64) -> Self {
        Self { leaf_lifetime: seconds, leaf_renew_before: seconds / 3, ..self }
    }

    /// The same with hardly a wait for the caches of API servers: for test beds, which have one.
    #[must_use]
    pub fn with_short_waits(self) -> Self {
        Self { propagation: self.propagation.min(10), ..self }
    }
}

/// The stored facts that a rotation depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// End of the CA that issues.
    pub current_not_after: Timestamp,
    /// Since when a next CA is published beside it, if one is.
    pub next_published_at: Option<Timestamp>,
    /// When the previous CA stopped issuing, while it is still in the bundle.
    pub switched_at: Option<Timestamp>,
    /// An administrator asked for a rotation that was not begun yet.
    pub requested: bool,
    /// Since when every look has found both places carrying exactly the present bundle; `None` when the last one
    /// did not.
    pub carried_since: Option<Timestamp>,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing now.
    Wait,
    /// Make a next CA and publish it beside the current one.
    Publish,
    /// Let the next CA issue; the current becomes the previous.
    Switch,
    /// Take the previous CA out of the bundle.
    Retire,
}

/// Decides. One thing at a time: a next CA is not published while a previous one is still there.
pub fn decide(facts: &Facts, policy: &Policy, now: Timestamp) -> Step {
    let since = |t: Timestamp| now.as_second() - t.as_second();
    let left = -since(facts.current_not_after);
    if facts.next_published_at.is_some() {
        // From the read-back and not from the publication: the bundle may have been injected much later, or put back
        // by another hand meanwhile. An expired CA protects nobody: no reason to wait for the caches then.
        let spread = |t| since(t) >= policy.propagation || left <= 0;
        return if facts.carried_since.is_some_and(spread) { Step::Switch } else { Step::Wait };
    }
    if let Some(switched) = facts.switched_at {
        // Its last leaf was issued before the switch was written, which is a moment after the time on record.
        let last = policy.leaf_lifetime + policy.propagation;
        return if since(switched) > last { Step::Retire } else { Step::Wait };
    }
    if facts.requested || left < policy.ca_renew_before {
        return Step::Publish;
    }
    Step::Wait
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_second(s).unwrap()
    }
    const POLICY: Policy = Policy {
        ca_lifetime: 1000,
        ca_renew_before: 300,
        leaf_lifetime: 100,
        leaf_renew_before: 30,
        propagation: 10,
    };
    fn steady() -> Facts {
        Facts {
            current_not_after: at(1000),
            next_published_at: None,
            switched_at: None,
            requested: false,
            carried_since: Some(at(0)),
        }
    }

    #[test]
    fn a_steady_ca_is_left_alone_until_its_last_third_or_a_request() {
        assert_eq!(decide(&steady(), &POLICY, at(700)), Step::Wait);
        assert_eq!(decide(&steady(), &POLICY, at(701)), Step::Publish);
        assert_eq!(decide(&Facts { requested: true, ..steady() }, &POLICY, at(0)), Step::Publish);
    }

    #[test]
    fn leaves_switch_only_after_both_bundles_were_read_back_and_had_time_to_spread() {
        let f = Facts { next_published_at: Some(at(700)), carried_since: Some(at(705)), ..steady() };
        assert_eq!(decide(&f, &POLICY, at(714)), Step::Wait);
        assert_eq!(decide(&f, &POLICY, at(715)), Step::Switch);
        assert_eq!(decide(&Facts { carried_since: None, ..f }, &POLICY, at(900)), Step::Wait);
    }

    #[test]
    fn a_bundle_that_was_put_back_by_another_hand_has_its_whole_time_to_spread_again() {
        let f = Facts { next_published_at: Some(at(700)), carried_since: Some(at(805)), ..steady() };
        assert_eq!(decide(&f, &POLICY, at(810)), Step::Wait);
        assert_eq!(decide(&f, &POLICY, at(815)), Step::Switch);
    }

    #[test]
    fn an_expired_ca_does_not_wait_for_caches_but_for_the_bundles() {
        let f = Facts { next_published_at: Some(at(1000)), carried_since: Some(at(1001)), ..steady() };
        assert_eq!(decide(&f, &POLICY, at(1001)), Step::Switch);
        assert_eq!(decide(&Facts { carried_since: None, ..f }, &POLICY, at(1001)), Step::Wait);
    }

    #[test]
    fn the_old_ca_stays_until_its_last_leaf_has_expired_and_blocks_the_next_rotation() {
        let f =
            Facts { current_not_after: at(5000), switched_at: Some(at(710)), requested: true, ..steady() };
        assert_eq!(decide(&f, &POLICY, at(820)), Step::Wait);
        assert_eq!(decide(&f, &POLICY, at(821)), Step::Retire);
    }
}
