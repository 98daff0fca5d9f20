//! Runs one Pod from its binding to its end, as a kubelet's pod worker does: volumes, sandbox, init
//! containers, containers, and at its deletion the other way round, the object last.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, LifecycleHandler, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, ResourceExt as _};
use nix::sys::signal::Signal;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::backoff::BackOff;
use super::container::{self, Running};
use super::env::Place;
use super::node::Node;
use super::plan::{self, Sandbox};
use super::probes::{self, Counter, Target};
use super::record::{PodRecord, Which};
use super::script::Plan;
use super::status::{State, pod_status, whole_seconds};
use super::support;
use super::volumes::{self, Tokens};

/// Later than anything in a bed.
const NEVER: Duration = Duration::from_secs(100_000);

/// What the API server wants of a Pod.
#[derive(Clone)]
pub struct Desired {
    /// The object as it was seen last.
    pub pod: Arc<Pod>,
    /// It is not there any more.
    pub gone: bool,
}

/// When everything of a Pod must have ended, once it has to.
type Stop = watch::Receiver<Option<Instant>>;

/// Runs a Pod until its object is gone and nothing of it is left.
pub async fn run(node: Arc<Node>, record: Arc<PodRecord>, mut desired: watch::Receiver<Desired>) {
    let pod = desired.borrow().pod.clone();
    let (stop, stopping) = watch::channel(None::<Instant>);
    let mut publisher = JoinSet::new();
    let mut life = JoinSet::new();
    // A Pod that ended for good is not run again, whoever restarts the agent.
    let ended = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if !matches!(ended, Some("Succeeded" | "Failed")) {
        publisher.spawn(publish(node.clone(), record.clone(), desired.clone()));
        life.spawn(live(node.clone(), record.clone(), desired.clone(), stopping));
    }
    loop {
        let now = desired.borrow_and_update().clone();
        if now.gone || now.pod.metadata.deletion_timestamp.is_some() {
            let until = Instant::now() + grace(&now.pod);
            stop.send_modify(|old| *old = Some(old.map_or(until, |old| old.min(until))));
            if life.is_empty() {
                break;
            }
        }
        tokio::select! {
            changed = desired.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            Some(_) = life.join_next() => {}
        }
    }
    publisher.shutdown().await;
    record.update(|state| state.finished = true);
    let gone = desired.borrow().gone;
    if !gone && !matches!(ended, Some("Succeeded" | "Failed")) {
        persist(&node, &record, &desired).await;
    }
    let folder = node.config.state.join("pods").join(&record.uid);
    volumes::tear_down(&folder.join("volumes"));
    if let Err(error) = node.config.network.detach_pod(&record.uid) {
        tracing::warn!(pod = record.uid, %error, "the pod's network stays");
    }
    let _ = std::fs::remove_dir_all(&folder);
    let last = desired.borrow().clone();
    if !last.gone {
        delete(&node, &last.pod).await;
    }
}

/// The grace period: of the deletion, else of the spec.
fn grace(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
    let seconds = pod.metadata.deletion_grace_period_seconds.unwrap_or(spec);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0).max(1))
}

async fn delete(node: &Node, pod: &Pod) {
    let api: Api<Pod> = Api::namespaced(node.client(), &pod.namespace().unwrap_or_default());
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
        ..DeleteParams::default()
    };
    loop {
        match node.call(api.delete(&pod.name_any(), &params)).await {
            Ok(_) => return,
            Err(error) if error.is_not_found() || error.is_conflict() => return,
            Err(error) => {
                tracing::warn!(pod = pod.name_any(), %error, "the pod's object was not deleted; trying again");
                tokio::time::sleep(node.config.retry).await;
            }
        }
    }
}

/// Writes the status at every change.
async fn publish(node: Arc<Node>, record: Arc<PodRecord>, mut desired: watch::Receiver<Desired>) {
    loop {
        persist(&node, &record, &desired).await;
        tokio::select! {
            () = record.changed.notified() => {}
            changed = desired.changed() => if changed.is_err() { return },
        }
    }
}

/// Writes the status once, until it is there or the Pod is not.
async fn persist(node: &Node, record: &PodRecord, desired: &watch::Receiver<Desired>) {
    let mut pod = Pod::clone(&desired.borrow().pod);
    let name = pod.name_any();
    let api: Api<Pod> = Api::namespaced(node.client(), &pod.namespace().unwrap_or_default());
    loop {
        let status = pod_status(&pod, &record.state(), node.ip, Timestamp::now());
        if pod.status.as_ref() == Some(&status) {
            return;
        }
        pod.status = Some(status);
        let error = match node.call(api.replace_status(&name, &PostParams::default(), &pod)).await {
            Ok(_) => return,
            Err(error) if error.is_not_found() => return,
            Err(error) => error,
        };
        if !error.is_conflict() {
            tracing::warn!(pod = name, %error, "the pod's status was not written; trying again");
            tokio::time::sleep(node.config.retry).await;
        }
        match node.call(api.get(&name)).await {
            Ok(found) if found.uid().as_deref() == Some(record.uid.as_str()) => pod = found,
            Ok(_) => return,
            Err(error) if error.is_not_found() => return,
            Err(error) => {
                tracing::debug!(pod = name, %error, "the pod cannot be read");
                tokio::time::sleep(node.config.retry).await;
            }
        }
    }
}

/// Everything between binding and end. Returns when no process of the Pod is left.
async fn live(node: Arc<Node>, record: Arc<PodRecord>, desired: watch::Receiver<Desired>, mut stop: Stop) {
    let pod = desired.borrow().pod.clone();
    let Some(spec) = pod.spec.clone() else { return };
    let judgement = support::judge(&spec);
    for note in &judgement.notes {
        record.note(note);
    }
    if !judgement.refused.is_empty() {
        let message = judgement.refused.join("; ");
        tracing::error!(pod = pod.name_any(), message, "a pod is refused");
        record.update(|state| {
            for container in state.init.iter_mut().chain(&mut state.main) {
                container.state = State::Waiting {
                    reason: "CreateContainerConfigError".to_owned(),
                    message: message.clone(),
                };
            }
        });
        node.event(&pod, true, "Failed", &message);
        stopped(&mut stop, NEVER).await;
        return;
    }
    let mut tokens = Tokens::default();
    let Some(sandbox) = prepare(&node, &pod, &record, &mut tokens, &mut stop).await else { return };
    let sandbox = Arc::new(sandbox);
    let mut background = JoinSet::new();
    {
        let (node, sandbox, desired) = (node.clone(), sandbox.clone(), desired.clone());
        background.spawn(async move {
            let folder = sandbox.folder.join("volumes");
            loop {
                tokio::time::sleep(node.config.retry * 5).await;
                let pod = desired.borrow().pod.clone();
                volumes::refresh(&node, &pod, &sandbox.place, &folder, &mut tokens).await;
            }
        });
    }
    let run = |container: Container, which: Which| Runner {
        node: node.clone(),
        record: record.clone(),
        pod: pod.clone(),
        sandbox: sandbox.clone(),
        container,
        which,
    };
    for (at, container) in spec.init_containers.into_iter().flatten().enumerate() {
        if !run(container, Which::Init(at)).run(stop.clone()).await {
            return;
        }
    }
    let mut containers = JoinSet::new();
    for (at, container) in spec.containers.into_iter().enumerate() {
        let runner = run(container, Which::Main(at));
        let stop = stop.clone();
        containers.spawn(async move { runner.run(stop).await });
    }
    while containers.join_next().await.is_some() {}
}

/// Volumes, then the network namespace, each retried until it works; nothing where the Pod ends before.
async fn prepare(
    node: &Arc<Node>,
    pod: &Arc<Pod>,
    record: &PodRecord,
    tokens: &mut Tokens,
    stop: &mut Stop,
) -> Option<Sandbox> {
    let folder = node.config.state.join("pods").join(&record.uid);
    let mut place = Place { pod_ip: String::new(), host_ip: node.ip.to_string() };
    let volumes = loop {
        if stop.borrow().is_some() {
            return None;
        }
        match volumes::set_up(node, pod, &place, &folder.join("volumes"), tokens).await {
            Ok(volumes) => break volumes,
            Err(error) => {
                let message =
                    format!("MountVolume.SetUp failed for volume {:?} : {}", error.volume, error.message);
                node.event(pod, true, "FailedMount", &message);
            }
        }
        if stopped(stop, node.config.retry).await {
            return None;
        }
    };
    let net = loop {
        match node.config.network.attach_pod(&node.config.node_name, &record.uid) {
            Ok(net) => break net,
            Err(error) => node.event(pod, true, "FailedCreatePodSandBox", &error.to_string()),
        }
        if stopped(stop, node.config.retry).await {
            return None;
        }
    };
    place.pod_ip = net.ip.to_string();
    record.update(|state| state.ip = Some(net.ip));
    Some(Sandbox { folder, netns: net.netns, place, volumes })
}

/// Waits, but not longer than until the Pod has to end; true if it has to.
async fn stopped(stop: &mut Stop, wait: Duration) -> bool {
    tokio::time::timeout(wait, stop.wait_for(Option::is_some)).await.is_ok()
}

/// One container of one Pod.
struct Runner {
    node: Arc<Node>,
    record: Arc<PodRecord>,
    pod: Arc<Pod>,
    sandbox: Arc<Sandbox>,
    container: Container,
    which: Which,
}

impl Runner {
    /// Runs the container, again and again as the restart policy says. True if it ended well for good.
    async fn run(self, mut stop: Stop) -> bool {
        let mut back_off = BackOff::new(self.node.config.back_off);
        loop {
            let Some(end) = self.once(&mut stop).await else { return false };
            let success = end.exit_code == 0;
            if stop.borrow().is_some() || !self.restarts(success) {
                return success;
            }
            let delay = back_off.next_delay(std::time::Instant::now());
            if !delay.is_zero() {
                let message = format!(
                    "back-off {}s restarting failed container={} pod={}_{}({})",
                    delay.as_secs(),
                    self.container.name,
                    self.pod.name_any(),
                    self.pod.namespace().unwrap_or_default(),
                    self.record.uid
                );
                self.record.container(self.which, |record| {
                    record.last = Some(end.clone());
                    record.state =
                        State::Waiting { reason: "CrashLoopBackOff".to_owned(), message: message.clone() };
                });
                self.event(true, "BackOff", &message);
                if stopped(&mut stop, delay).await {
                    return success;
                }
            }
            self.record.container(self.which, |record| {
                record.last = Some(end);
                record.restarts += 1;
            });
        }
    }

    fn restarts(&self, success: bool) -> bool {
        let policy =
            self.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always");
        match (policy, self.which) {
            ("Never", _) => false,
            ("Always", Which::Main(_)) => true,
            _ => !success,
        }
    }

    fn event(&self, warning: bool, reason: &str, message: &str) {
        self.node.event(&self.pod, warning, reason, message);
    }

    /// One start and its end; nothing if the Pod has to end before the container could start.
    async fn once(&self, stop: &mut Stop) -> Option<ContainerStateTerminated> {
        let (plan, record) = loop {
            if stop.borrow().is_some() {
                return None;
            }
            let record = self.record.get(self.which)?;
            let planned =
                plan::plan(&self.node, &self.pod, &self.sandbox, &self.container, &record, &self.record)
                    .await;
            let (reason, message) = match planned {
                Ok(plan) => break (plan, record),
                Err(refusal) => refusal,
            };
            self.record.container(self.which, |record| {
                record.state = State::Waiting { reason: reason.to_owned(), message: message.clone() };
            });
            self.event(true, "Failed", &message);
            if stopped(stop, self.node.config.retry).await {
                return None;
            }
        };
        let folder = self.sandbox.folder.join(&self.container.name);
        let since = Timestamp::now();
        let id = format!("bed://{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>());
        self.record.container(self.which, |record| {
            record.log = Some(plan.log.clone());
            record.id = Some(id.clone());
        });
        let started = container::start(&plan, &folder, &self.sandbox.netns).await;
        let mut end = ContainerStateTerminated {
            container_id: Some(id),
            started_at: Some(Time(whole_seconds(since))),
            ..ContainerStateTerminated::default()
        };
        match started {
            Err(message) => {
                self.event(true, "Failed", &message);
                end.exit_code = 128;
                end.reason = Some("StartError".to_owned());
                end.message = Some(message);
            }
            Ok(running) => {
                tracing::debug!(pod = self.pod.name_any(), container = record.name, pid = %running.pid, "started");
                let target = Target {
                    netns: self.sandbox.netns.clone(),
                    ip: self.record.state().ip.map(std::net::IpAddr::V4)?,
                    pid: running.pid,
                    env: plan.env.clone(),
                    identity: plan.identity.clone(),
                };
                self.record.container(self.which, |record| {
                    record.state = State::Running { since };
                    record.pid = Some(running.pid.as_raw());
                });
                self.event(false, "Started", &format!("Started container {}", self.container.name));
                end.exit_code = self.follow(running, target, stop).await;
                end.reason = Some(if end.exit_code == 0 { "Completed" } else { "Error" }.to_owned());
                end.message = self.last_words(&plan);
            }
        }
        end.finished_at = Some(Time(whole_seconds(Timestamp::now())));
        self.record.container(self.which, |record| {
            record.state = State::Terminated(end.clone());
            record.ready = matches!(self.which, Which::Init(_)) && end.exit_code == 0;
            record.started = false;
            record.pid = None;
        });
        Some(end)
    }

    fn last_words(&self, plan: &Plan) -> Option<String> {
        let mut words = container::tail(&plan.termination_log.source, 4096);
        let from_log = self.container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
        if words.is_empty() && from_log {
            words = container::tail(&plan.log, 2048);
        }
        (!words.is_empty()).then_some(words)
    }

    /// Follows a container to its end: probes it, stops it when the Pod or a probe says so.
    async fn follow(&self, mut running: Running, target: Target, stop: &mut Stop) -> i32 {
        let (failed, mut failures) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(probe(
            self.node.clone(),
            self.record.clone(),
            self.pod.clone(),
            self.container.clone(),
            self.which,
            target.clone(),
            failed,
        ));
        let pid = running.pid;
        let mut wait = std::pin::pin!(running.wait());
        let mut deadline: Option<Instant> = None;
        let mut killed = false;
        let mut must_stop = stop.clone();
        loop {
            let kill_at = if killed { None } else { deadline }.unwrap_or_else(|| Instant::now() + NEVER);
            let begin = tokio::select! {
                exit = &mut wait => return exit,
                until = next_stop(&mut must_stop, deadline) => Some((until, None)),
                Some((message, grace)) = failures.recv(), if deadline.is_none() =>
                    Some((Instant::now() + grace, Some(message))),
                () = tokio::time::sleep_until(kill_at) => None,
            };
            match begin {
                None => {
                    killed = true;
                    container::send(pid, Signal::SIGKILL);
                }
                Some((until, message)) => {
                    if deadline.is_none() {
                        tasks.spawn(terminate(
                            self.node.clone(),
                            self.pod.clone(),
                            self.container.clone(),
                            target.clone(),
                            until,
                            message,
                        ));
                    }
                    deadline = Some(deadline.map_or(until, |old| old.min(until)));
                }
            }
        }
    }
}

/// Waits until the Pod has to end, or sooner than was known.
async fn next_stop(stop: &mut Stop, known: Option<Instant>) -> Instant {
    let sooner =
        stop.wait_for(|until| until.is_some_and(|until| known.is_none_or(|known| until < known))).await;
    let until = sooner.ok().and_then(|until| *until);
    match until {
        Some(until) => until,
        // The Pod's worker is gone; this task goes with it.
        _ => std::future::pending().await,
    }
}

/// Ends a container gently: the `preStop` hook, then SIGTERM. Who follows it kills it at the deadline.
async fn terminate(
    node: Arc<Node>,
    pod: Arc<Pod>,
    container: Container,
    target: Target,
    until: Instant,
    message: Option<String>,
) {
    let text = message.unwrap_or_else(|| format!("Stopping container {}", container.name));
    node.event(&pod, false, "Killing", &text);
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.clone());
    if let Some(hook) = hook {
        let limit = until.saturating_duration_since(Instant::now());
        if let Err(error) = run_hook(&hook, &container, &target, limit).await {
            tracing::warn!(pod = pod.name_any(), error, "the preStop hook failed");
        }
    }
    container::send(target.pid, Signal::SIGTERM);
}

async fn run_hook(
    hook: &LifecycleHandler,
    container: &Container,
    target: &Target,
    limit: Duration,
) -> Result<(), String> {
    if let Some(action) = &hook.exec {
        probes::exec(action, target, limit).await
    } else if let Some(action) = &hook.http_get {
        probes::http(action, container, target, limit).await
    } else if let Some(sleep) = &hook.sleep {
        let asked = Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0));
        tokio::time::sleep(asked.min(limit)).await;
        Ok(())
    } else {
        Err("this hook is not supported by the bed's node agent".to_owned())
    }
}

/// Probes a running container: startup first, then readiness and liveness. A verdict that ends the
/// container goes to `failed` with the grace it gets.
async fn probe(
    node: Arc<Node>,
    record: Arc<PodRecord>,
    pod: Arc<Pod>,
    container: Container,
    which: Which,
    target: Target,
    failed: mpsc::Sender<(String, Duration)>,
) {
    let doom = |kind: &str, probe: &k8s_openapi::api::core::v1::Probe| {
        let grace = probe
            .termination_grace_period_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or_else(|| grace(&pod), Duration::from_secs);
        (format!("Container {} failed {kind} probe, will be restarted", container.name), grace)
    };
    let attempts = |kind: &'static str, probe: &k8s_openapi::api::core::v1::Probe| Attempts {
        kind,
        probe: probe.clone(),
        node: node.clone(),
        pod: pod.clone(),
        container: container.clone(),
        target: target.clone(),
        counter: Counter::new(probes::schedule(probe)),
        first: true,
    };
    if let Some(probe) = &container.startup_probe
        && !attempts("Startup", probe).verdict().await
    {
        let _ = failed.send(doom("startup", probe)).await;
        return;
    }
    record.container(which, |record| {
        record.started = true;
        record.ready = container.readiness_probe.is_none();
    });
    let readiness = async {
        let Some(probe) = &container.readiness_probe else { return };
        let mut attempts = attempts("Readiness", probe);
        loop {
            let ready = attempts.verdict().await;
            // Only a change is a change of status.
            if record.get(which).is_some_and(|known| known.ready != ready) {
                record.container(which, |record| record.ready = ready);
            }
        }
    };
    let liveness = async {
        let Some(probe) = &container.liveness_probe else { return };
        let mut attempts = attempts("Liveness", probe);
        while attempts.verdict().await {}
        let _ = failed.send(doom("liveness", probe)).await;
    };
    tokio::join!(readiness, liveness);
}

struct Attempts {
    kind: &'static str,
    probe: k8s_openapi::api::core::v1::Probe,
    node: Arc<Node>,
    pod: Arc<Pod>,
    container: Container,
    target: Target,
    counter: Counter,
    first: bool,
}

impl Attempts {
    /// Tries at the probe's pace until there is a verdict.
    async fn verdict(&mut self) -> bool {
        let schedule = probes::schedule(&self.probe);
        loop {
            tokio::time::sleep(if self.first { schedule.initial_delay } else { schedule.period }).await;
            self.first = false;
            let result = probes::attempt(&self.probe, &self.container, &self.target).await;
            if let Err(error) = &result
                && self.node.is_online()
            {
                let message = format!("{} probe failed: {error}", self.kind);
                self.node.event(&self.pod, true, "Unhealthy", &message);
            }
            if let Some(verdict) = self.counter.record(result.is_ok()) {
                return verdict;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use serde_json::json;

    #[test]
    fn the_deletions_grace_period_goes_before_the_specs() {
        let pod = |metadata: serde_json::Value| -> Pod {
            serde_json::from_value(json!({"metadata": metadata,
                "spec": {"containers": [], "terminationGracePeriodSeconds": 20}}))
            .unwrap()
        };
        assert_eq!(grace(&pod(json!({}))).as_secs(), 20);
        assert_eq!(grace(&pod(json!({"deletionGracePeriodSeconds": 5}))).as_secs(), 5);
        assert_eq!(grace(&pod(json!({"deletionGracePeriodSeconds": 0}))).as_secs(), 1);
    }
}
