//! A Pod's status as a kubelet writes it: a pure function of the object, of what runs, and of the time.
//!
//! Follows the Kubernetes API conventions: a condition's `lastTransitionTime` moves only when its status
//! does, fields of others (`PodScheduled`, readiness gates, `DisruptionTarget`, the QoS class) stay as they
//! are, times are whole seconds. Equal input gives an equal status, so an idle Pod is not written.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// What a container does.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Not running, but meant to.
    Waiting {
        /// Kubernetes' word, like `ContainerCreating` or `CrashLoopBackOff`.
        reason: String,
        /// Details; empty where a kubelet has none.
        message: String,
    },
    /// Running.
    Running {
        /// Since when.
        since: Timestamp,
    },
    /// Ended.
    Terminated(ContainerStateTerminated),
}

/// One container of a Pod, as the agent knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its name in the spec.
    pub name: String,
    /// Its image in the spec.
    pub image: String,
    /// What it does.
    pub state: State,
    /// How it ended the last time, once it was started again (or waits for that).
    pub last: Option<ContainerStateTerminated>,
    /// How often it was started again.
    pub restarts: i32,
    /// Identifies the current or last run.
    pub id: Option<String>,
    /// The readiness probe's word; without one, that it runs.
    pub ready: bool,
    /// The startup probe's word; without one, that it runs.
    pub started: bool,
    /// The main process, while it runs, in the bed's PID namespace.
    pub pid: Option<i32>,
    /// Where its output goes.
    pub log: Option<std::path::PathBuf>,
}

impl Record {
    /// A container that was never started.
    pub fn new(name: &str, image: &str, reason: &str) -> Self {
        Self {
            name: name.to_owned(),
            image: image.to_owned(),
            state: State::Waiting { reason: reason.to_owned(), message: String::new() },
            last: None,
            restarts: 0,
            id: None,
            ready: false,
            started: false,
            pid: None,
            log: None,
        }
    }

    fn succeeded(&self) -> bool {
        matches!(&self.state, State::Terminated(end) if end.exit_code == 0)
    }
}

/// A Pod, as the agent knows it.
#[derive(Debug, Clone, Default)]
pub struct PodState {
    /// When the agent first saw it.
    pub start_time: Option<Timestamp>,
    /// Its address, once it has a network namespace.
    pub ip: Option<Ipv4Addr>,
    /// Init containers, in order.
    pub init: Vec<Record>,
    /// Containers, in the spec's order.
    pub main: Vec<Record>,
    /// The Pod is being deleted and all its containers ended for good.
    pub finished: bool,
}

/// The Pod's whole new status.
pub fn pod_status(pod: &Pod, state: &PodState, host_ip: Ipv4Addr, now: Timestamp) -> PodStatus {
    let now = whole_seconds(now);
    let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always");
    let phase = phase(state, policy);
    let mut status = pod.status.clone().unwrap_or_default();
    let generation = pod.metadata.generation;
    status.phase = Some(phase.to_owned());
    status.observed_generation = generation;
    status.host_ip = Some(host_ip.to_string());
    status.host_ips = Some(vec![HostIP { ip: host_ip.to_string() }]);
    status.pod_ip = state.ip.map(|ip| ip.to_string());
    status.pod_ips = state.ip.map(|ip| vec![PodIP { ip: ip.to_string() }]);
    status.start_time = state.start_time.map(|time| Time(whole_seconds(time))).or(status.start_time);
    status.init_container_statuses = statuses(&state.init);
    status.container_statuses = statuses(&state.main);

    let mut conditions = status.conditions.take().unwrap_or_default();
    let mut set = |type_: &str, verdict: Verdict| {
        let (holds, reason, message) = match verdict {
            Verdict::Holds(reason) => ("True", reason, None),
            Verdict::Fails(reason, message) => ("False", Some(reason), message),
        };
        set_condition(&mut conditions, type_, holds, reason, message, generation, now);
    };
    let sandbox =
        if state.ip.is_some() && !state.finished { Verdict::Holds(None) } else { Verdict::Fails("", None) };
    set("PodReadyToStartContainers", sandbox);
    set("Initialized", initialized(state, phase));
    let containers = containers_ready(state, phase);
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
    let open = gates
        .into_iter()
        .flatten()
        .find(|gate| {
            let holds = |condition: &PodCondition| {
                condition.type_ == gate.condition_type && condition.status == "True"
            };
            !pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten().any(holds)
        })
        .map(|gate| {
            format!("corresponding condition of pod readiness gate {:?} does not hold.", gate.condition_type)
        });
    let ready = match (&containers, open) {
        (Verdict::Holds(_), Some(message)) => Verdict::Fails("ReadinessGatesNotReady", Some(message)),
        _ => containers.clone(),
    };
    set("ContainersReady", containers);
    set("Ready", ready);
    status.conditions = Some(conditions);
    status
}

/// Times of the API have no fractions.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[derive(Clone)]
enum Verdict {
    Holds(Option<&'static str>),
    Fails(&'static str, Option<String>),
}

fn phase(state: &PodState, policy: &str) -> &'static str {
    if state.init.iter().any(|container| !container.succeeded()) {
        let failed = |container: &Record| {
            matches!(&container.state, State::Terminated(end) if end.exit_code != 0) && policy == "Never"
        };
        return if state.init.iter().any(failed) || state.finished { "Failed" } else { "Pending" };
    }
    let (mut waiting, mut running, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for container in &state.main {
        match &container.state {
            State::Running { .. } => running += 1,
            // One that waits to be started again counts as stopped: the Pod did run.
            State::Waiting { .. } if container.last.is_some() => stopped += 1,
            State::Waiting { .. } => waiting += 1,
            State::Terminated(end) => {
                stopped += 1;
                succeeded += i32::from(end.exit_code == 0);
            }
        }
    }
    if waiting > 0 {
        return if state.finished { "Failed" } else { "Pending" };
    }
    if running > 0 {
        return "Running";
    }
    match policy {
        "Always" if !state.finished => "Running",
        _ if stopped == succeeded => "Succeeded",
        "OnFailure" if !state.finished => "Running",
        _ => "Failed",
    }
}

fn initialized(state: &PodState, phase: &str) -> Verdict {
    let incomplete: Vec<_> = state
        .init
        .iter()
        .filter(|container| !container.succeeded())
        .map(|container| container.name.as_str())
        .collect();
    if incomplete.is_empty() {
        return Verdict::Holds((phase == "Succeeded").then_some("PodCompleted"));
    }
    Verdict::Fails(
        "ContainersNotInitialized",
        Some(format!("containers with incomplete status: [{}]", incomplete.join(" "))),
    )
}

fn containers_ready(state: &PodState, phase: &str) -> Verdict {
    match phase {
        "Succeeded" => return Verdict::Fails("PodCompleted", None),
        "Failed" => return Verdict::Fails("PodFailed", None),
        _ => {}
    }
    let unready: Vec<_> = state
        .main
        .iter()
        .filter(|container| !container.ready)
        .map(|container| container.name.as_str())
        .collect();
    if unready.is_empty() {
        return Verdict::Holds(None);
    }
    Verdict::Fails(
        "ContainersNotReady",
        Some(format!("containers with unready status: [{}]", unready.join(" "))),
    )
}

fn set_condition(
    conditions: &mut Vec<PodCondition>,
    type_: &str,
    status: &str,
    reason: Option<&str>,
    message: Option<String>,
    generation: Option<i64>,
    now: Timestamp,
) {
    let old = conditions.iter().position(|condition| condition.type_ == type_);
    let kept = old
        .and_then(|at| conditions.get(at))
        .filter(|condition| condition.status == status)
        .and_then(|condition| condition.last_transition_time.clone());
    let condition = PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.filter(|reason| !reason.is_empty()).map(str::to_owned),
        message,
        last_transition_time: Some(kept.unwrap_or(Time(now))),
        last_probe_time: None,
        observed_generation: generation,
    };
    match old.and_then(|at| conditions.get_mut(at)) {
        Some(place) => *place = condition,
        None => conditions.push(condition),
    }
}

fn statuses(records: &[Record]) -> Option<Vec<ContainerStatus>> {
    (!records.is_empty()).then(|| records.iter().map(container_status).collect())
}

fn container_status(record: &Record) -> ContainerStatus {
    let running = matches!(record.state, State::Running { .. });
    ContainerStatus {
        name: record.name.clone(),
        image: record.image.clone(),
        image_id: record.id.as_ref().map(|_| format!("bed://{}", record.image)).unwrap_or_default(),
        container_id: record.id.clone(),
        restart_count: record.restarts,
        ready: record.ready,
        started: Some(running && record.started),
        state: Some(container_state(&record.state)),
        last_state: Some(ContainerState { terminated: record.last.clone(), ..ContainerState::default() }),
        ..ContainerStatus::default()
    }
}

fn container_state(state: &State) -> ContainerState {
    match state {
        State::Waiting { reason, message } => ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some(reason.clone()),
                message: (!message.is_empty()).then(|| message.clone()),
            }),
            ..ContainerState::default()
        },
        State::Running { since } => ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(Time(whole_seconds(*since))) }),
            ..ContainerState::default()
        },
        State::Terminated(end) => {
            ContainerState { terminated: Some(end.clone()), ..ContainerState::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use serde_json::json;

    const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);

    fn pod(policy: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "generation": 3},
            "spec": {"restartPolicy": policy, "containers": []},
            "status": {"qosClass": "BestEffort", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]},
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn running(ready: bool) -> PodState {
        let mut record = Record::new("garage", "i", "ContainerCreating");
        record.state = State::Running { since: at(10) };
        record.ready = ready;
        record.started = true;
        PodState { ip: Some(Ipv4Addr::new(10, 77, 1, 0)), main: vec![record], ..PodState::default() }
    }

    fn ended(code: i32) -> PodState {
        let mut state = running(false);
        state.main[0].state = State::Terminated(ContainerStateTerminated {
            exit_code: code,
            ..ContainerStateTerminated::default()
        });
        state
    }

    fn condition(status: &PodStatus, type_: &str) -> PodCondition {
        status.conditions.iter().flatten().find(|condition| condition.type_ == type_).cloned().unwrap()
    }

    #[test]
    fn a_transition_time_moves_only_when_the_condition_changes() {
        let mut pod = pod("Always");
        pod.status = Some(pod_status(&pod, &running(false), HOST, at(100)));
        let again = pod_status(&pod, &running(false), HOST, at(200));
        assert_eq!(Some(&again), pod.status.as_ref(), "an unchanged pod has an unchanged status");
        pod.status = Some(pod_status(&pod, &running(true), HOST, at(300)));
        let status = pod.status.unwrap();
        assert_eq!(condition(&status, "Ready").last_transition_time, Some(Time(at(300))));
        assert_eq!(condition(&status, "Initialized").last_transition_time, Some(Time(at(100))));
    }

    #[test]
    fn what_others_wrote_stays() {
        let status = pod_status(&pod("Always"), &running(true), HOST, at(100));
        assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
        assert_eq!(
            condition(&status, "PodScheduled").last_transition_time.unwrap().0.to_string(),
            "2026-01-01T00:00:00Z"
        );
        assert_eq!(status.observed_generation, Some(3));
    }

    #[rstest::rstest]
    #[case("Always", 0, false, "Running")]
    #[case("Always", 1, false, "Running")]
    #[case("Never", 0, false, "Succeeded")]
    #[case("Never", 1, false, "Failed")]
    #[case("OnFailure", 1, false, "Running")]
    #[case("OnFailure", 0, false, "Succeeded")]
    #[case("Always", 0, true, "Succeeded")]
    #[case("Always", 137, true, "Failed")]
    fn the_phase_of_an_ended_pod_follows_its_restart_policy(
        #[case] policy: &str,
        #[case] code: i32,
        #[case] finished: bool,
        #[case] expected: &str,
    ) {
        let state = PodState { finished, ..ended(code) };
        assert_eq!(pod_status(&pod(policy), &state, HOST, at(1)).phase.as_deref(), Some(expected));
    }

    #[test]
    fn a_container_waiting_to_start_again_keeps_the_pod_running_and_unready() {
        let mut state = ended(1);
        let State::Terminated(end) = state.main[0].state.clone() else { panic!() };
        state.main[0].last = Some(end);
        state.main[0].state =
            State::Waiting { reason: "CrashLoopBackOff".to_owned(), message: String::new() };
        let status = pod_status(&pod("Always"), &state, HOST, at(1));
        assert_eq!(status.phase.as_deref(), Some("Running"));
        let ready = condition(&status, "Ready");
        assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("ContainersNotReady")));
        assert_eq!(ready.message.as_deref(), Some("containers with unready status: [garage]"));
    }

    #[test]
    fn an_unfinished_init_container_keeps_the_pod_pending() {
        let mut state = running(false);
        state.init.push(Record::new("prepare", "i", "PodInitializing"));
        let status = pod_status(&pod("Always"), &state, HOST, at(1));
        assert_eq!(status.phase.as_deref(), Some("Pending"));
        assert_eq!(condition(&status, "Initialized").reason.as_deref(), Some("ContainersNotInitialized"));
    }

    #[test]
    fn a_closed_readiness_gate_keeps_the_pod_unready() {
        let mut pod = pod("Always");
        pod.spec.as_mut().unwrap().readiness_gates =
            Some(vec![serde_json::from_value(json!({"conditionType": "x/y"})).unwrap()]);
        let status = pod_status(&pod, &running(true), HOST, at(1));
        assert_eq!(condition(&status, "ContainersReady").status, "True");
        assert_eq!(condition(&status, "Ready").reason.as_deref(), Some("ReadinessGatesNotReady"));
    }
}
