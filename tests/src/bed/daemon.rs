//! A long-running process of the bed, its log and what can be done to it.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::error::{Doing as _, Error, Result};

/// How long a process may take to end after SIGTERM before the bed calls it hung.
const TERMINATION: Duration = Duration::from_secs(30);

/// A process that can be started again with the same arguments.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    wanted: bool,
}

impl Daemon {
    /// Describes a process; nothing is started yet.
    pub fn new(name: &str, program: PathBuf, args: Vec<String>, logs: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program,
            args,
            log: logs.join(format!("{name}.log")),
            child: None,
            wanted: false,
        }
    }

    /// Starts it unless it runs; its output is appended to its log.
    pub fn start(&mut self) -> Result<()> {
        self.wanted = true;
        if self.is_running() {
            return Ok(());
        }
        let open = || OpenOptions::new().create(true).append(true).open(&self.log);
        let log = open().doing(|| format!("opening {}", self.log.display()))?;
        let errors = log.try_clone().doing(|| format!("opening {}", self.log.display()))?;
        let child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // A Ctrl-C is for the program; what it started ends with the bed.
            .process_group(0)
            .spawn()
            .doing(|| format!("starting {}", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Starts it again if it ended by itself, as whatever runs a control plane does: kube-controller-manager
    /// ends when the API server goes away while it starts.
    pub fn revive(&mut self) {
        if self.wanted && !self.is_running() {
            tracing::info!(name = self.name, "a process of the bed ended by itself; it is started again");
            if let Err(error) = self.start() {
                tracing::error!(%error, "a process of the bed stays down");
            }
        }
    }

    /// Whether the process was started and did not end.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Sends SIGKILL and waits for the end.
    pub async fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL).await
    }

    /// Sends SIGTERM and waits for the end.
    pub async fn terminate(&mut self) -> Result<()> {
        self.end(Signal::SIGTERM).await
    }

    /// Sends a signal, for instance SIGSTOP or SIGCONT.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.child.as_ref().and_then(Child::id);
        let pid = id.and_then(|id| i32::try_from(id).ok());
        let pid =
            pid.ok_or_else(|| Error::other(format!("{} does not run: it got no {signal}", self.name)))?;
        kill(Pid::from_raw(pid), signal).doing(|| format!("sending {signal} to {}", self.name))
    }

    /// Its log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    async fn end(&mut self, signal: Signal) -> Result<()> {
        self.wanted = false;
        if !self.is_running() {
            self.child = None;
            return Ok(());
        }
        self.signal(signal)?;
        let Some(child) = self.child.as_mut() else { return Ok(()) };
        match tokio::time::timeout(TERMINATION, child.wait()).await {
            Ok(ended) => {
                ended.doing(|| format!("waiting for the end of {}", self.name))?;
                self.child = None;
                Ok(())
            }
            Err(_) => Err(Error::Timeout {
                waited_for: format!("the end of {} after {signal}", self.name),
                seconds: TERMINATION.as_secs(),
                state: String::new(),
            }),
        }
    }
}
