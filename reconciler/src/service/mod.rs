//! Servicing one member's disk: a hold (`hold`) or a refill (`refill`), of which at most one is under way in a
//! cluster (V2, V6). Decides which one this pass is about, and gathers what it decides from.

mod facts;
pub mod live;
#[cfg(test)]
mod tests;

use std::time::Duration;

use holdfast_crds::conditions::{ConditionStatus, ConditionType, IdentityReplacedReason, OutOfServiceReason};
use holdfast_crds::ids::{KubernetesNodeName, Pair, PoolName};
use holdfast_crds::names::annotation::cluster::{OUT_OF_SERVICE, REPLACE_IDENTITY};
use holdfast_crds::requests::{HoldRequest, ReplaceRequest};
use holdfast_crds::status::{NodeLocalService, ServiceOperation, ServicePhase as Phase, Time};
use holdfast_crds::v1beta2::GarageCluster;
use kube::ResourceExt as _;
use serde_json::Value;

use crate::act::Action;
use crate::hold::{self, Request};
use crate::observe::{KubernetesView, Observation};
use crate::pool::condition::Problem;
use crate::pool::membership::Members;
use crate::pool::site::Site;
use crate::pool::{record, spec};
use crate::{pool, proof, refill};

pub use live::Pairs;

/// What [`step`] decides from.
pub struct Input<'a> {
    /// What this pass saw.
    pub observation: &'a Observation,
    /// The cluster's JSON as it was read: the rules of admission judge it again (section 4).
    pub stored: &'a Value,
    /// The pair of [`subject`], read live; `None` where there is no subject.
    pub live: Option<&'a Pairs>,
    /// What the processes answered.
    pub memory: &'a pool::Memory,
    /// The pools' settings.
    pub settings: &'a pool::Settings,
    /// What this pass decided about the proof (H1).
    pub proof: &'a proof::Step,
    /// What came of the step's [`ServiceStep::checks`], when it is asked again.
    pub dry_run: Option<Result<(), String>>,
}

/// A condition to set: status, reason, message.
pub type Said = (ConditionStatus, &'static str, String);

/// What [`step`] decided.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServiceStep {
    /// The next `status.nodeLocalService`; `None` removes it.
    pub service: Option<NodeLocalService>,
    /// `NodeLocalOutOfService`; `None` removes it.
    pub out_of_service: Option<Said>,
    /// `NodeLocalIdentityReplaced`; `None` removes it.
    pub identity_replaced: Option<Said>,
    /// Dry runs to be performed before anything is written (R1); then the step is asked again. Empty: it stands.
    pub checks: Vec<Action>,
    /// To be done in this order after the status was written, if it stood; the first that was not executed
    /// ends the row.
    pub actions: Vec<Action>,
    /// Another pass is due then at the latest.
    pub wake_after: Option<Duration>,
}

impl ServiceStep {
    /// The conditions by type; `None` removes one.
    pub fn conditions(&self) -> [(ConditionType, Option<&Said>); 2] {
        [
            (ConditionType::NodeLocalOutOfService, self.out_of_service.as_ref()),
            (ConditionType::NodeLocalIdentityReplaced, self.identity_replaced.as_ref()),
        ]
    }
}

/// The two requests that stand on a cluster.
struct Requests {
    hold: Option<Result<Pair, String>>,
    replace: Option<Result<ReplaceRequest, String>>,
}

impl Requests {
    fn read(cluster: &GarageCluster) -> Self {
        Self {
            hold: cluster.annotation(OUT_OF_SERVICE).map(|value| {
                value.parse::<HoldRequest>().map(|request| request.0).map_err(|error| error.to_string())
            }),
            replace: cluster
                .annotation(REPLACE_IDENTITY)
                .map(|value| value.parse::<ReplaceRequest>().map_err(|error| error.to_string())),
        }
    }

    fn pair(&self) -> Option<&Pair> {
        match (&self.hold, &self.replace) {
            (Some(Ok(pair)), _) => Some(pair),
            (None, Some(Ok(request))) => Some(&request.pair),
            _ => None,
        }
    }
}

/// Reads the members of the pools and hands them over; `Err`: why they are not known.
pub fn with_members<T>(
    input: &Input<'_>,
    use_them: impl FnOnce(&Site, &Members<'_>, &[Problem]) -> T,
) -> Result<T, String> {
    let kubernetes = &input.observation.kubernetes;
    let view = spec::ClusterView::new(&kubernetes.cluster);
    let site = spec::read(&view, input.settings).map_err(|(_, why)| why)?;
    let records =
        record::read_all(kubernetes).ok_or_else(|| "the GarageNodes could not be read".to_owned())?;
    let entropy = [0; 32];
    let pools = pool::Input {
        observation: input.observation,
        memory: input.memory,
        held: None,
        settings: input.settings,
        entropy: &entropy,
    };
    let mut problems = Vec::new();
    let members = Members::read(&site, &pools, &records, &mut problems);
    Ok(use_them(&site, &members, &problems))
}

/// The pair of a service in status; `None` where it names none.
pub fn pair_of(service: &NodeLocalService) -> Option<Pair> {
    let pool = service.pool.parse::<PoolName>().ok()?;
    let node = service.kubernetes_node.parse::<KubernetesNodeName>().ok()?;
    Some(Pair { pool, node })
}

/// Whether something was begun that has to be finished or undone.
const fn is_under_way(service: &NodeLocalService) -> bool {
    !matches!(service.phase, Phase::Waiting | Phase::InService | Phase::Completed)
}

/// The pair that a pass must look at closely: of the service under way, else of the request that stands.
pub fn subject(cluster: &GarageCluster) -> Option<Pair> {
    let service = cluster.status.as_ref().and_then(|status| status.node_local_service.as_ref());
    if let Some(service) = service.filter(|service| is_under_way(service)) {
        return pair_of(service);
    }
    let requests = Requests::read(cluster);
    let replace = requests.replace.as_ref().and_then(|request| request.as_ref().ok());
    if requests.hold.is_none()
        && replace.is_some()
        && service.is_some_and(|service| refill::is_answered(replace, service))
    {
        // A completed request that stays in Git costs nothing (R5).
        return None;
    }
    requests.pair().cloned()
}

/// Whether a hold wants its member without activation.
pub(crate) fn is_off(service: &NodeLocalService) -> bool {
    service.operation == ServiceOperation::OutOfService
        && matches!(service.phase, Phase::Deactivating | Phase::Terminating | Phase::OutOfService)
}

/// The pair that ordinary activation leaves alone (H5): from the intent to deactivate it until it is released; and
/// where the record was lost, the pair that the annotation names as long as its Node lacks the label.
pub fn held(kubernetes: &KubernetesView) -> Option<Pair> {
    let cluster = &kubernetes.cluster;
    let service = cluster.status.as_ref().and_then(|status| status.node_local_service.as_ref());
    if let Some(service) = service.filter(|service| service.phase != Phase::Waiting) {
        return if is_off(service) { pair_of(service) } else { None };
    }
    let pair = Requests::read(cluster).hold?.ok()?;
    let node = kubernetes.nodes.get(pair.node.as_str())?;
    let label = cluster.id()?.activation_label(&pair.pool);
    (!node.labels().contains_key(&label)).then_some(pair)
}

/// Plans one pass of the hold or of the refill.
pub fn step(input: &Input<'_>, now: Time) -> ServiceStep {
    let cluster = &input.observation.kubernetes.cluster;
    let previous = cluster.status.as_ref().and_then(|status| status.node_local_service.as_ref());
    let requests = Requests::read(cluster);
    let mut step = match previous.filter(|service| is_under_way(service)) {
        Some(service) if service.operation == ServiceOperation::ReplaceIdentity => {
            refill_step(input, previous, &requests, now)
        }
        Some(service) => match (pair_of(service), &requests.hold, &requests.replace) {
            // H7: the disk was swapped, and its replacement is authorized now.
            (Some(pair), None, Some(Ok(request)))
                if service.phase == Phase::Restoring
                    && request.pair == pair
                    && facts::is_active_again(input, &pair) =>
            {
                refill_step(input, previous, &requests, now)
            }
            (Some(pair), hold, _) => {
                let request = match hold {
                    None => Request::Gone,
                    Some(Ok(asked)) if *asked == pair => Request::Stands,
                    Some(_) => Request::Differs,
                };
                hold_step(input, &pair, service, request, now)
            }
            // A record that names nobody holds nobody.
            (None, ..) => ServiceStep::default(),
        },
        None => match (&requests.hold, &requests.replace) {
            (Some(Ok(pair)), _) => {
                let waiting = previous.filter(|service| {
                    service.operation == ServiceOperation::OutOfService
                        && service.phase == Phase::Waiting
                        && pair_of(service).as_ref() == Some(pair)
                });
                let begun;
                let service = if let Some(service) = waiting {
                    service
                } else {
                    begun = hold::begin(pair, now);
                    &begun
                };
                hold_step(input, pair, service, Request::Stands, now)
            }
            (None, Some(Ok(_))) => refill_step(input, previous, &requests, now),
            // What is finished stays on record; what only waited is forgotten with its request.
            _ => finished(input, previous),
        },
    };
    // A request that cannot be understood, or that stands beside another, is never silently ignored.
    if let Some(Err(error)) = &requests.hold
        && step.out_of_service.is_none()
    {
        step.out_of_service =
            Some((ConditionStatus::False, OutOfServiceReason::Refused.as_str(), error.clone()));
    }
    if let Some(replace) = &requests.replace
        && step.identity_replaced.is_none()
    {
        let message = match replace {
            Err(error) => error.clone(),
            Ok(_) => format!(
                "V2: {REPLACE_IDENTITY} and a hold are never acted on together; remove {OUT_OF_SERVICE} and wait until the member is released, or remove {REPLACE_IDENTITY}"
            ),
        };
        step.identity_replaced =
            Some((ConditionStatus::False, IdentityReplacedReason::Refused.as_str(), message));
    }
    step
}

fn finished(input: &Input<'_>, previous: Option<&NodeLocalService>) -> ServiceStep {
    let Some(service) = previous.filter(|service| service.phase != Phase::Waiting) else {
        return ServiceStep::default();
    };
    let Some(pair) = pair_of(service) else { return ServiceStep::default() };
    let mut step = ServiceStep { service: Some(service.clone()), ..ServiceStep::default() };
    if service.operation == ServiceOperation::OutOfService {
        let (status, reason, message) = hold::in_service(&pair);
        step.out_of_service = Some((status, reason.as_str(), message));
    } else {
        // Without its request nothing is answered any more: a True that stayed would answer the next one before it
        // was looked at. That another hand undid it is still said (R5).
        let said = service
            .replacement
            .as_ref()
            .map(|done| refill::completed(&pair, done, &input.observation.garage));
        step.identity_replaced = said.filter(|(status, ..)| *status != ConditionStatus::True).map(text);
    }
    step
}

fn hold_step(
    input: &Input<'_>,
    pair: &Pair,
    service: &NodeLocalService,
    request: Request,
    now: Time,
) -> ServiceStep {
    let facts = facts::of_hold(input, pair, service, request, now);
    let step = hold::step(&facts, service);
    ServiceStep {
        service: step.service,
        out_of_service: step.condition.map(|(status, reason, message)| (status, reason.as_str(), message)),
        identity_replaced: None,
        checks: Vec::new(),
        actions: step.actions,
        wake_after: step.wake_after,
    }
}

fn refill_step(
    input: &Input<'_>,
    previous: Option<&NodeLocalService>,
    requests: &Requests,
    now: Time,
) -> ServiceStep {
    let request = requests.replace.as_ref().and_then(|request| request.as_ref().ok());
    let pair = previous.filter(|service| is_under_way(service)).and_then(pair_of);
    let Some(pair) = pair.or_else(|| request.map(|request| request.pair.clone())) else {
        return finished(input, previous);
    };
    let facts = refill::read(input, &pair, request, previous, facts::allowed(input), now);
    let step = refill::step(&facts, previous);
    ServiceStep {
        service: step.service,
        out_of_service: None,
        identity_replaced: step.condition.map(text),
        checks: step.checks,
        actions: step.actions,
        wake_after: step.wake_after,
    }
}

fn text((status, reason, message): refill::Said) -> Said {
    (status, reason.as_str(), message)
}
