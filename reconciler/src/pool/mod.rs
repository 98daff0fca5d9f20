//! Pools: membership, the workloads of the site, and the layout that holds its members (section 13).
//!
//! [`step`] is a pure function: what one pass saw goes in, what is to be done and what the status says
//! comes out. Every action stands for itself: a process killed between any two goes on from what the next
//! pass sees, and an idle site has no action at all.

pub mod compare;
pub mod condition;
pub mod connect;
pub mod gate;
pub mod identity;
pub mod layout;
pub mod membership;
pub mod node_status;
pub mod record;
pub mod render;
pub mod secrets;
pub mod site;
pub mod status;
pub mod workers;
pub mod workloads;

pub mod spec;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_crds::conditions::PoolsReason;
use holdfast_crds::ids::{NodeId, Pair};
use holdfast_crds::v1beta2::GarageCluster;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

use crate::act::{Action, Outcome};
use crate::observe::Observation;
use condition::{PoolsCondition, Problem};
use membership::Members;
pub use site::Settings;

/// What the shell remembers between passes. It spares calls; losing it costs nothing else.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// What each running process answered to `GetNodeInfo?node=self` (see [`identity::unread`]).
    pub identities: BTreeMap<Incarnation, NodeId>,
    /// Worker variables that were set on a process since its start, with their values.
    pub variables: BTreeMap<Incarnation, BTreeMap<String, String>>,
}

/// One run of a process: another Pod, another address or a restart of the container is another run, and
/// may be another identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    /// UID of the Pod.
    pub pod_uid: String,
    /// Restarts of its `garage` container.
    pub restarts: i32,
    /// The Pod's address.
    pub address: std::net::IpAddr,
}

/// What [`step`] decides from.
pub struct Input<'a> {
    /// What this pass saw.
    pub observation: &'a Observation,
    /// What the processes answered.
    pub memory: &'a Memory,
    /// The pair that is held out of service: ordinary activation skips it (H5).
    pub held: Option<&'a Pair>,
    /// The process's settings.
    pub settings: &'a Settings,
    /// 32 fresh random bytes, used only where the site's RPC secret is generated.
    pub entropy: &'a [u8; 32],
}

/// What [`step`] decided.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolStep {
    /// What to do, in this order. Each one is safe on its own; after a failure the rest may go on.
    pub actions: Vec<Action>,
    /// Which actions set a worker variable: index in `actions` -> run of the process. The shell notes the
    /// executed ones in [`Memory::variables`].
    pub variables: BTreeMap<usize, Incarnation>,
    /// `NodeLocalPoolsReady`; `None` removes it (no pools, or not managed here).
    pub condition: Option<PoolsCondition>,
    /// What the pools fill in the GarageCluster's status; `None` leaves those fields alone.
    pub status: Option<status::ClusterPart>,
    /// Another pass is due then at the latest, because time alone changes something.
    pub wake_after: Option<jiff::SignedDuration>,
}

impl PoolStep {
    /// Notes what became of `actions[index]`: a worker variable that was set is not set again in the same run
    /// of the process.
    pub fn note(&self, index: usize, outcome: &Outcome, memory: &mut Memory) {
        if let (Some(run), true, Some(Action::SetWorkerVariable { variable, value, .. })) =
            (self.variables.get(&index), outcome.executed(), self.actions.get(index))
        {
            memory.variables.entry(run.clone()).or_default().insert(variable.clone(), value.clone());
        }
    }
}

/// Names of the Secrets that a pass must read for the pools of this cluster, given those that it has
/// (`secrets::to_read`); none where pools are not run here.
pub fn secrets_to_read(
    cluster: &GarageCluster,
    settings: &Settings,
    have: &BTreeMap<String, Arc<Secret>>,
) -> BTreeSet<String> {
    let view = spec::ClusterView::new(cluster);
    if !settings.manage || view.is_handle() || !view.has_pools() {
        return BTreeSet::new();
    }
    spec::read(&view, settings).map(|site| secrets::to_read(&site, have)).unwrap_or_default()
}

/// Plans one pass of the pools.
pub fn step(input: &Input<'_>, now: Timestamp) -> PoolStep {
    let kubernetes = &input.observation.kubernetes;
    let cluster = spec::ClusterView::new(&kubernetes.cluster);
    if !input.settings.manage || cluster.is_deleted() || cluster.is_handle() || !cluster.has_pools() {
        return PoolStep::default();
    }
    if cluster.is_suspended() {
        return refused(
            PoolsReason::Suspended,
            "maintenance.suspended is set: nothing is written or launched; unset it to go on",
        );
    }
    let site = match spec::read(&cluster, input.settings) {
        Ok(site) => site,
        Err((reason, message)) => return refused(reason, &message),
    };
    let Some(records) = record::read_all(kubernetes) else {
        let mut step = refused(PoolsReason::NotObserved, "the GarageNodes could not be read");
        if let Some(condition) = &mut step.condition {
            condition.unknown = true;
        }
        return step;
    };

    let mut step = PoolStep::default();
    let mut problems: Vec<Problem> = Vec::new();
    if !site.not_managed.is_empty() {
        problems.push(Problem::new(
            PoolsReason::NotManaged,
            format!(
                "{} is not run here, only node-local pools are; the pools go on",
                site.not_managed.join(" and ")
            ),
        ));
    }

    let secrets = match secrets::plan(
        &site,
        cluster.annotations(),
        &kubernetes.secrets,
        input.entropy,
        cluster.resource_version(),
    ) {
        secrets::Plan::Ready(ready, actions) => {
            step.actions.extend(actions);
            Some(ready)
        }
        secrets::Plan::Making(actions) => {
            step.actions.extend(actions);
            None
        }
        secrets::Plan::Refused(message) => {
            problems.push(Problem::new(PoolsReason::ConfigurationInvalid, message));
            None
        }
    };
    if let Some(ready) = &secrets {
        workloads::plan(&site, ready, kubernetes, &mut step.actions, &mut problems);
    }

    let members = Members::read(&site, input, &records, &mut problems);
    let hands = condition::other_hands(&cluster, &records, &members);
    problems.extend(hands.iter().cloned());
    members.plan(&site, input, hands.is_empty(), &mut step, &mut problems);
    connect::plan(&members, input, &mut step.actions);
    workers::plan(&site, &members, input, &mut step);
    layout::plan(&site, &members, input, &cluster, hands.is_empty(), &mut step.actions, &mut problems);
    step.wake_after = condition::waiting(&site, &members, input, now, &mut problems);

    let mut condition = PoolsCondition::from_problems(problems, members.all.len());
    condition.note_outdated(&members);
    step.status = Some(status::fill(&site, &members, input, &condition, &cluster, now));
    step.condition = Some(condition);
    node_status::plan(&site, &members, input, now, &mut step.actions);
    step
}

/// Nothing is done, and why.
fn refused(reason: PoolsReason, message: &str) -> PoolStep {
    PoolStep {
        condition: Some(PoolsCondition::from_problems(vec![Problem::new(reason, message.to_owned())], 0)),
        ..PoolStep::default()
    }
}
