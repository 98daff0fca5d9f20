//! One pass over one cluster.

use std::sync::Arc;
use std::time::Duration;

use holdfast_crds::conditions::{
    AnotherControllerReason, ConditionStatus, ConditionType, FullyReplicatedReason, StatusPrunedReason,
};
use holdfast_crds::ids::LayoutVersion;
use holdfast_crds::status::{Phase, Redundancy, Time};
use holdfast_crds::v1beta2::GarageCluster;
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::Value;

use super::read::{self, Live};
use super::{ACTIVE, Error, Shared, serving};
use crate::act::{self, Action, Answer, Clients, DEADLINE, Endpoints, Kind, Outcome, Refusal, Target};
use crate::garage::Secret as Token;
use crate::observe::{
    Ask, GarageView, KubernetesView, Limits, NotObserved, Observation, Tokens, kubernetes, observe_garage,
};
use crate::service::{self, Pairs};
use crate::status::{self, AfterConflict, Parts, StatusWrite};
use crate::{digest, pool, proof};

/// After an action: soon enough to see what became of it.
const AFTER_ACTION: Duration = Duration::from_secs(2);
/// How long a foreign write of what is ours keeps us from acting (section 13, `AnotherController`).
const CONTESTED: i64 = 600;

/// What a process remembers of a cluster between passes. Losing it costs calls, never correctness.
#[derive(Default)]
pub(crate) struct Memory {
    pool: pool::Memory,
    /// The status that our last write left.
    last: Option<Value>,
    /// Until when somebody else's writes keep us from acting, in seconds since the epoch.
    contested_until: i64,
    /// Fields that did not survive a write, and when it is tried again.
    pruned: Option<(Vec<String>, i64)>,
}

/// When the next pass is due.
pub(super) enum Next {
    /// The cluster is gone.
    Gone,
    /// Nothing is under way.
    Idle,
    /// Something is.
    Active(Duration),
}

pub(super) async fn run(cached: &GarageCluster, shared: &Shared, memory: &mut Memory) -> Result<Next, Error> {
    let (namespace, name) = (cached.namespace().unwrap_or_default(), cached.name_any());
    let Some(live) = read::live(&shared.client, &namespace, &name).await? else {
        shared.metrics.forget(&namespace, &name);
        return Ok(Next::Gone);
    };
    if live.cluster.metadata.deletion_timestamp.is_some() {
        // Owned objects go by garbage collection; nothing is launched or changed on the way out.
        return Ok(Next::Idle);
    }
    let now = Timestamp::now();
    memory.notice_another_hand(&live.raw, now);

    let observation = observe(shared, live.cluster.clone(), memory).await?;
    let pairs = pairs(shared, &live.cluster).await;
    shared.metrics.observed(&namespace, &name, &observation.garage);

    let entropy: [u8; 32] = rand::random();
    let held = service::held(&observation.kubernetes);
    let input = pool::Input {
        observation: &observation,
        memory: &memory.pool,
        held: held.as_ref(),
        settings: &shared.settings.pools,
        entropy: &entropy,
    };
    let pools = pool::step(&input, now);
    let previous = live.cluster.status.as_ref().and_then(|s| s.redundancy.as_ref());
    let site = digest::site(&observation.kubernetes, &memory.pool);
    let settings = proof::Settings { timings: shared.timings() };
    let proof = proof::step(&site, &observation.garage, previous, Time::new(now), &settings);
    let input = service::Input {
        observation: &observation,
        stored: &live.raw,
        live: pairs.as_ref(),
        memory: &memory.pool,
        settings: &shared.settings.pools,
        proof: &proof,
        dry_run: None,
    };
    let mut service = service::step(&input, Time::new(now));
    let mut asked = true;
    if !service.checks.is_empty() {
        // Where nobody said no because an object changed since it was read, it is asked again, and until then the
        // record and its condition stay as they are.
        let judged = serving::check(shared, &service.checks).await?;
        asked = judged.is_some();
        service = service::step(&service::Input { dry_run: judged, ..input }, Time::new(now));
    }

    let mut parts = Parts::default();
    parts.pools(&pools);
    match &proof.condition {
        Some(c) => parts.condition(
            ConditionType::FullyReplicated.as_str(),
            c.status,
            c.reason.as_str(),
            c.message.clone(),
        ),
        None => parts.removed_conditions.push(ConditionType::FullyReplicated.as_str().to_owned()),
    }
    parts.redundancy = Some(to_value(proof.redundancy.as_ref())?);
    if asked {
        serving::say(&service, &mut parts)?;
    }
    memory.say(&mut parts, now);

    let mut launches = proof.actions;
    let stands = write(shared, &live, &parts, memory, now).await?;
    if !stands {
        // Somebody's newer evidence stands: this pass's launches rest on an older one.
        launches.clear();
    }
    if memory.may_not_act(now) {
        return Ok(Next::Active(ACTIVE));
    }
    if asked {
        serving::publish(shared, &live, &service).await?;
    }
    // First of all, while what this pass saw is young: a skip acknowledges for whoever is down by then.
    let mut acted = false;
    if stands && !service.actions.is_empty() {
        let clients = clients(shared, &observation.kubernetes, memory);
        acted = serving::act(shared, &live, &service, &clients).await?;
    }
    acted |= act(shared, &observation, &live, pools, launches, proof.redundancy.as_ref(), memory).await?;
    let settled = parts
        .conditions
        .get(ConditionType::NodeLocalPoolsReady.as_str())
        .is_none_or(|(status, ..)| *status == ConditionStatus::True);
    let proving = proof
        .redundancy
        .and_then(|r| r.verification)
        .is_some_and(|v| proof::is_active(v.phase) || v.phase == Phase::Partial);
    Ok(if acted || !asked {
        Next::Active(AFTER_ACTION)
    } else if let Some(after) = service.wake_after {
        Next::Active(after)
    } else if proving || !settled {
        Next::Active(ACTIVE)
    } else {
        Next::Idle
    })
}

fn to_value(redundancy: Option<&Redundancy>) -> Result<Option<Value>, Error> {
    redundancy
        .map(|r| {
            serde_json::to_value(r)
                .map_err(|e| Error::Status(format!("status.redundancy cannot be written as JSON: {e}")))
        })
        .transpose()
}

impl Memory {
    /// Whether what is ours was changed by a write that is not ours while we lead (section 13).
    fn notice_another_hand(&mut self, raw: &Value, now: Timestamp) {
        if status::was_changed_by_another(self.last.as_ref(), &raw["status"]) {
            tracing::warn!(
                "status.redundancy.verification or status.nodeLocalService was changed by another writer; acting stops"
            );
            self.contested_until = now.as_second() + CONTESTED;
        }
    }

    fn may_not_act(&self, now: Timestamp) -> bool {
        self.contested_until > now.as_second() || self.pruned.is_some()
    }

    /// Conditions about our own standing.
    fn say(&mut self, parts: &mut Parts, now: Timestamp) {
        let another = ConditionType::AnotherController.as_str();
        if self.contested_until > now.as_second() {
            parts.condition(
                another,
                ConditionStatus::True,
                AnotherControllerReason::StatusContested.as_str(),
                "status.redundancy.verification or status.nodeLocalService was changed by another controller; launching and acting \
                 stop here until it leaves them alone for 10 minutes: run one controller for these, see the documentation on \
                 running beside another operator"
                    .to_owned(),
            );
        } else {
            parts.removed_conditions.push(another.to_owned());
        }
        if self.pruned.as_ref().is_some_and(|(_, until)| *until <= now.as_second()) {
            self.pruned = None;
        }
        let pruned = ConditionType::StatusPruned.as_str();
        match &self.pruned {
            Some((fields, _)) => {
                parts.redundancy = None;
                parts.node_local_service = None;
                parts.condition(
                    pruned,
                    ConditionStatus::True,
                    StatusPrunedReason::FieldNotStored.as_str(),
                    format!(
                        "the API server does not keep {}: the installed CustomResourceDefinition is older than this release; \
                         install the CRDs of this release; nothing is launched until then",
                        fields.join(", ")
                    ),
                );
                parts.condition(
                    ConditionType::FullyReplicated.as_str(),
                    ConditionStatus::Unknown,
                    FullyReplicatedReason::NotVerified.as_str(),
                    "the status fields of the proof do not survive a write; install the CRDs of this release"
                        .to_owned(),
                );
            }
            None => parts.removed_conditions.push(pruned.to_owned()),
        }
    }
}

/// Reads everything; new processes are asked who they are.
async fn observe(
    shared: &Shared,
    cluster: Arc<GarageCluster>,
    memory: &mut Memory,
) -> Result<Observation, Error> {
    let view = kubernetes::load(cluster, &shared.stores, &shared.client, &shared.settings.pools)
        .await
        .map_err(|error| Error::Load(error.to_string()))?;
    kubernetes::read_identities(&view, &mut memory.pool, &shared.http, &shared.client).await;
    let garage = match kubernetes::endpoints(&view, &memory.pool) {
        None => nothing_to_ask(&view),
        Some((endpoints, admin)) => {
            let site = digest::site(&view, &memory.pool);
            let previous = view.cluster.status.as_ref().and_then(|s| s.redundancy.as_ref());
            let proving = proof::needs_peer_views(&site, previous);
            // O8: every judgement of H1, R1 and R4 rests on everybody's view.
            let serving = service::subject(&view.cluster).is_some();
            let ask = Ask { peer_views: proving || serving, metrics: proving, rpc_timeouts: proving };
            let tokens = Tokens { admin, metrics: None };
            let known = recorded_version(&view.cluster);
            observe_garage(&shared.http, &tokens, &endpoints, known, ask, &Limits::default()).await
        }
    };
    Ok(Observation { kubernetes: view, garage })
}

/// What a hold or a refill looks at closely, where one stands.
async fn pairs(shared: &Shared, cluster: &GarageCluster) -> Option<Pairs> {
    let pair = service::subject(cluster)?;
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    Some(service::live::fetch(&shared.client, &namespace, &name, &pair).await)
}

/// Without a process that could be asked.
fn nothing_to_ask(view: &KubernetesView) -> GarageView {
    let what = if view.pods.is_empty() {
        "any Garage Pod (there is none)"
    } else {
        "any running Garage Pod with a known admin token"
    };
    GarageView::not_observed(NotObserved { what: what.to_owned() })
}

/// The highest layout version that status records (O6).
fn recorded_version(cluster: &GarageCluster) -> Option<LayoutVersion> {
    let status = cluster.status.as_ref()?;
    let proven = status.redundancy.as_ref().and_then(|r| r.verification.as_ref()?.layout_version);
    let applied =
        status.node_local_service.as_ref().and_then(|service| service.replacement.as_ref()?.layout_version);
    proven.max(applied)
}

/// Writes the status once. False when somebody's newer evidence stands instead (P20).
async fn write(
    shared: &Shared,
    live: &Live,
    parts: &Parts,
    memory: &mut Memory,
    now: Timestamp,
) -> Result<bool, Error> {
    let generation = live.cluster.metadata.generation;
    let due = status::plan(&live.raw["status"], parts, generation, now);
    let (namespace, name) = (live.cluster.namespace().unwrap_or_default(), live.cluster.name_any());
    shared.metrics.said(&namespace, &name, parts, due.is_some());
    let Some(due) = due else {
        memory.last = Some(live.raw["status"].clone());
        return Ok(true);
    };
    match write_once(shared, &live.cluster, &due).await? {
        Written::Stored(stored) => {
            keep(shared, live, &due, stored, memory, now).await;
            Ok(true)
        }
        Written::Conflict => {
            let (namespace, name) = (live.cluster.namespace().unwrap_or_default(), live.cluster.name_any());
            let Some(fresh) = read::live(&shared.client, &namespace, &name).await? else { return Ok(false) };
            if fresh.cluster.metadata.uid != live.cluster.metadata.uid {
                return Ok(false);
            }
            match status::after_conflict(&live.raw["status"], &fresh.raw["status"], parts, generation, now) {
                AfterConflict::FreshWins => Ok(false),
                AfterConflict::Nothing => Ok(true),
                AfterConflict::Retry(due) => match write_once(shared, &fresh.cluster, &due).await? {
                    Written::Stored(stored) => {
                        keep(shared, live, &due, stored, memory, now).await;
                        Ok(true)
                    }
                    // Twice in a row: the next pass sees what came of it.
                    Written::Conflict => Ok(false),
                },
            }
        }
    }
}

enum Written {
    Stored(Value),
    Conflict,
}

async fn write_once(shared: &Shared, on: &GarageCluster, due: &StatusWrite) -> Result<Written, Error> {
    let (namespace, name) = (on.namespace().unwrap_or_default(), on.name_any());
    let version = on.metadata.resource_version.clone().unwrap_or_default();
    match perform(shared, &due.action(&namespace, &name, &version), &kubernetes_only(shared)).await? {
        Outcome::Executed(Answer::Stored(stored)) => Ok(Written::Stored(stored)),
        Outcome::Executed(_) => Err(Error::Status("the API server answered without the object".to_owned())),
        Outcome::NotExecuted(Refusal::Conflict(_)) => Ok(Written::Conflict),
        Outcome::NotExecuted(refusal) => Err(Error::Status(refusal.to_string())),
        Outcome::Unknown(why) => Err(Error::Status(why)),
    }
}

/// Remembers what was stored, and says so when a field of ours was cut (section 14).
async fn keep(
    shared: &Shared,
    live: &Live,
    due: &StatusWrite,
    stored: Value,
    memory: &mut Memory,
    now: Timestamp,
) {
    let pruned = due.pruned(&stored);
    if !pruned.is_empty() {
        let fields: Vec<_> = pruned.into_iter().take(5).collect();
        let event = act::Event {
            regarding: target(&live.cluster),
            uid: live.cluster.metadata.uid.clone().unwrap_or_default(),
            warning: true,
            reason: ConditionType::StatusPruned.as_str().to_owned(),
            note: format!(
                "the API server does not keep {}; install the CRDs of this release",
                fields.join(", ")
            ),
        };
        if let Ok(outcome) = perform(shared, &Action::Event(event), &kubernetes_only(shared)).await
            && !outcome.executed()
        {
            tracing::debug!(?outcome, "event");
        }
        memory.pruned = Some((fields, now.as_second() + CONTESTED));
    }
    memory.last = Some(stored["status"].clone());
}

pub(super) fn target(cluster: &GarageCluster) -> Target {
    Target::namespaced(Kind::GarageCluster, &cluster.namespace().unwrap_or_default(), &cluster.name_any())
}

/// Performs the pools' actions and then at most one launch. Returns whether anything was done.
async fn act(
    shared: &Shared,
    observation: &Observation,
    live: &Live,
    pools: pool::PoolStep,
    launches: Vec<Action>,
    redundancy: Option<&Redundancy>,
    memory: &mut Memory,
) -> Result<bool, Error> {
    if pools.actions.is_empty() && launches.is_empty() {
        return Ok(false);
    }
    let clients = clients(shared, &observation.kubernetes, memory);
    for (index, action) in pools.actions.iter().enumerate() {
        let outcome = perform(shared, action, &clients).await?;
        if outcome.executed()
            && let (Some(run), Action::SetWorkerVariable { variable, value, .. }) =
                (pools.variables.get(&index), action)
        {
            memory.pool.variables.entry(run.clone()).or_default().insert(variable.clone(), value.clone());
        }
    }
    for launch in &launches {
        let outcome = match perform(shared, launch, &clients).await? {
            Outcome::Executed(_) => proof::LaunchOutcome::Accepted,
            Outcome::NotExecuted(_) => proof::LaunchOutcome::NotExecuted,
            Outcome::Unknown(_) => proof::LaunchOutcome::Unknown,
        };
        tracing::info!(cluster = %live.cluster.name_any(), ?launch, ?outcome, "repair asked for");
        record_launch(shared, live, redundancy, launch, outcome, memory).await?;
    }
    Ok(true)
}

/// The write that follows a launch (P7): on the fresh object, and only if nobody else's evidence came between.
async fn record_launch(
    shared: &Shared,
    live: &Live,
    written: Option<&Redundancy>,
    launch: &Action,
    outcome: proof::LaunchOutcome,
    memory: &mut Memory,
) -> Result<(), Error> {
    let Some(written) = written else { return Ok(()) };
    let now = Timestamp::now();
    let next = proof::after_launch(written, launch, outcome, Time::new(now));
    if next == *written {
        return Ok(());
    }
    let (namespace, name) = (live.cluster.namespace().unwrap_or_default(), live.cluster.name_any());
    let Some(fresh) = read::live(&shared.client, &namespace, &name).await? else { return Ok(()) };
    let stands = fresh.cluster.status.as_ref().and_then(|s| s.redundancy.as_ref());
    if proof::merge(Some(written), stands) == proof::Merged::Fresh {
        return Ok(());
    }
    let parts = Parts { redundancy: Some(to_value(Some(&next))?), ..Parts::default() };
    write(shared, &fresh, &parts, memory, now).await.map(|_| ())
}

/// Where actions go: Kubernetes, and the processes that this pass could ask.
fn clients(shared: &Shared, view: &KubernetesView, memory: &Memory) -> Clients<Endpoints> {
    match kubernetes::endpoints(view, &memory.pool) {
        None => kubernetes_only(shared),
        Some((endpoints, token)) => Clients {
            kube: shared.client.clone(),
            garage: Endpoints::new(shared.http.clone(), token, endpoints),
        },
    }
}

/// For writes to Kubernetes.
pub(super) fn kubernetes_only(shared: &Shared) -> Clients<Endpoints> {
    Clients {
        kube: shared.client.clone(),
        garage: Endpoints::new(shared.http.clone(), Token::new(""), Vec::new()),
    }
}

/// Performs one action, unless leadership would run out under it. What an action carries is never logged: it
/// may be a Secret.
pub(super) async fn perform(
    shared: &Shared,
    action: &Action,
    clients: &Clients<Endpoints>,
) -> Result<Outcome, Error> {
    if !shared.leadership.may_write(DEADLINE) {
        return Err(Error::NotLeading);
    }
    let outcome = act::perform(action, clients).await;
    let action = action.name();
    match &outcome {
        Outcome::Executed(_) => {
            tracing::debug!(action, "done");
            shared.metrics.action(&action, "executed");
        }
        Outcome::NotExecuted(refusal) => {
            tracing::info!(action, %refusal, "not done");
            shared.metrics.action(&action, "refused");
        }
        Outcome::Unknown(why) => {
            tracing::warn!(action, why, "outcome unknown; the next pass looks");
            shared.metrics.action(&action, "unknown");
        }
    }
    Ok(outcome)
}
