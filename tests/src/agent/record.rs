//! What the agent knows of one Pod: shared by the tasks that run it, report it and answer for it.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use nix::unistd::Pid;
use tokio::sync::Notify;

use super::status::{PodState, Record, State};
use super::{ContainerInfo, PodInfo};

/// Which container of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// An init container, by its place.
    Init(usize),
    /// A container, by its place.
    Main(usize),
}

/// One Pod.
pub struct PodRecord {
    /// Its UID.
    pub uid: String,
    namespace: String,
    name: String,
    state: Mutex<PodState>,
    notes: Mutex<Vec<String>>,
    /// Told at every change of the state.
    pub changed: Notify,
}

impl PodRecord {
    /// Begins with what the API server knows: a container that ran before (this Node's power was off)
    /// starts again, with the next restart count.
    pub fn new(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let has_init = spec.is_some_and(|spec| spec.init_containers.iter().flatten().next().is_some());
        let records =
            |containers: Option<&Vec<Container>>, known: Option<&Vec<ContainerStatus>>, reason: &str| {
                containers
                    .into_iter()
                    .flatten()
                    .map(|container| {
                        let before = known.into_iter().flatten().find(|status| status.name == container.name);
                        let image = container.image.as_deref().unwrap_or_default();
                        resumed(Record::new(&container.name, image, reason), before)
                    })
                    .collect::<Vec<_>>()
            };
        let state = PodState {
            start_time: status
                .and_then(|status| status.start_time.as_ref())
                .map_or_else(|| Some(Timestamp::now()), |time| Some(time.0)),
            ip: None,
            init: records(
                spec.and_then(|spec| spec.init_containers.as_ref()),
                status.and_then(|status| status.init_container_statuses.as_ref()),
                "PodInitializing",
            ),
            main: records(
                spec.map(|spec| &spec.containers),
                status.and_then(|status| status.container_statuses.as_ref()),
                if has_init { "PodInitializing" } else { "ContainerCreating" },
            ),
            finished: false,
        };
        Self {
            uid: pod.uid().unwrap_or_default(),
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            state: Mutex::new(state),
            notes: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Changes the state and tells whoever reports it.
    pub fn update(&self, change: impl FnOnce(&mut PodState)) {
        change(&mut self.lock());
        self.changed.notify_one();
    }

    /// Changes one container.
    pub fn container(&self, which: Which, change: impl FnOnce(&mut Record)) {
        self.update(|state| {
            let record = match which {
                Which::Init(at) => state.init.get_mut(at),
                Which::Main(at) => state.main.get_mut(at),
            };
            if let Some(record) = record {
                change(record);
            }
        });
    }

    /// One container's record.
    pub fn get(&self, which: Which) -> Option<Record> {
        let state = self.lock();
        match which {
            Which::Init(at) => state.init.get(at).cloned(),
            Which::Main(at) => state.main.get(at).cloned(),
        }
    }

    /// The state now.
    pub fn state(&self) -> PodState {
        self.lock().clone()
    }

    /// Remembers what is not applied; each sentence once.
    pub fn note(&self, note: &str) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.iter().any(|known| known == note) {
            tracing::info!(pod = self.name, note, "not applied in this bed");
            notes.push(note.to_owned());
        }
    }

    /// The main processes that run.
    pub fn pids(&self) -> Vec<Pid> {
        let state = self.lock();
        state.init.iter().chain(&state.main).filter_map(|record| record.pid).map(Pid::from_raw).collect()
    }

    /// For the outside.
    pub fn info(&self) -> PodInfo {
        let state = self.lock();
        let containers = state
            .init
            .iter()
            .chain(&state.main)
            .map(|record| ContainerInfo {
                name: record.name.clone(),
                pid: record.pid.map(Pid::from_raw),
                restarts: record.restarts,
                log: record.log.clone(),
            })
            .collect();
        PodInfo {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            ip: state.ip,
            containers,
            notes: self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Where a container's output goes.
    pub fn log_file(&self, logs: &std::path::Path, record: &Record) -> PathBuf {
        logs.join(format!("{}_{}_{}.{}.log", self.namespace, self.name, record.name, record.restarts))
    }

    fn lock(&self) -> MutexGuard<'_, PodState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A container that ran under an earlier agent counts as ended: nobody saw how.
fn resumed(mut record: Record, before: Option<&ContainerStatus>) -> Record {
    let Some(before) = before else { return record };
    record.restarts = before.restart_count;
    record.last = before.last_state.as_ref().and_then(|state| state.terminated.clone());
    let state = before.state.as_ref();
    if let Some(running) = state.and_then(|state| state.running.as_ref()) {
        record.last = Some(ContainerStateTerminated {
            exit_code: 255,
            reason: Some("Unknown".to_owned()),
            started_at: running.started_at.clone(),
            finished_at: Some(Time(super::status::whole_seconds(Timestamp::now()))),
            container_id: before.container_id.clone(),
            ..ContainerStateTerminated::default()
        });
    } else if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
        record.last = Some(ended.clone());
    } else if record.last.is_none() {
        return record;
    }
    record.restarts += 1;
    record.state = State::Waiting { reason: "ContainerCreating".to_owned(), message: String::new() };
    record
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_container_that_ran_before_the_power_went_starts_with_the_next_restart_count() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "garage", "image": "i"}, {"name": "new", "image": "i"}]},
            "status": {"containerStatuses": [{"name": "garage", "image": "i", "imageID": "", "ready": true,
                "restartCount": 2, "containerID": "bed://1", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]},
        }))
        .unwrap();
        let state = PodRecord::new(&pod).state();
        assert_eq!(state.main[0].restarts, 3);
        assert_eq!(state.main[0].last.as_ref().unwrap().exit_code, 255);
        assert_eq!(state.main[1].restarts, 0);
        assert!(state.main[1].last.is_none());
    }
}
