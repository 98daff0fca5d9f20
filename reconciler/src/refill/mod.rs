//! Replacing a wiped member's identity (`behaviour.md` section 12).

use holdfast_crds::conditions::{ConditionStatus, IdentityReplacedReason};
use holdfast_crds::requests::ReplaceRequest;
use holdfast_crds::status::{NodeLocalService, Time};

use crate::service::{Input, Said, ServiceStep};

/// One pass of a refill.
pub fn step(
    _input: &Input<'_>,
    previous: Option<&NodeLocalService>,
    _request: Option<&ReplaceRequest>,
    _now: Time,
) -> ServiceStep {
    ServiceStep {
        service: previous.cloned(),
        identity_replaced: Some((
            ConditionStatus::False,
            IdentityReplacedReason::Refused.as_str(),
            "this release does not replace identities: nothing was changed; remove the annotation".to_owned(),
        )),
        ..ServiceStep::default()
    }
}

/// What a replacement that is done says (R6).
pub fn completed(_service: &NodeLocalService) -> Option<Said> {
    None
}
