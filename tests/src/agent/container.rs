//! Starts a container from its plan, follows it, and runs commands beside it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::script::{self, Identity, Plan};

/// Building a root takes milliseconds; a script that hangs must not hang the Pod.
const START_LIMIT: Duration = Duration::from_secs(60);

/// What stands above a container's main process and passes on how it ended. (`unshare --fork` would do, but
/// it does not tell a SIGKILL.) The first process that it starts is the first of the new PID namespace.
const HOLDER: &str = "sh \"$1\"; exit $?";

/// A container that was started.
pub struct Running {
    child: Child,
    /// The main process in the bed's PID namespace.
    pub pid: Pid,
    ended: bool,
}

/// Starts a container. The error is a text for a person, with the end of its log.
pub async fn start(plan: &Plan, folder: &Path, netns: &Path) -> Result<Running, String> {
    let text = |error: std::io::Error| format!("failed to create the container: {error}");
    for folder in [&plan.root, &folder.to_owned()] {
        std::fs::create_dir_all(folder).map_err(text)?;
    }
    let file = folder.join("start.sh");
    std::fs::write(&file, script::script(plan)).map_err(text)?;
    std::fs::write(&plan.termination_log.source, "").map_err(text)?;
    let mut child = Command::new("nsenter")
        .arg(format!("--net={}", netns.display()))
        .args(["unshare", "--mount", "--pid", "--uts", "--ipc", "--", "sh", "-c", HOLDER, "holder"])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(text)?;
    let mut pid = None;
    let mut started = false;
    if let Some(pipe) = child.stdout.take() {
        let mut lines = BufReader::new(pipe).lines();
        let told = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(number) = line.strip_prefix("pid ") {
                    pid = number.parse().ok().map(Pid::from_raw);
                } else if line == "started" {
                    // The holder keeps the pipe open; there is no end to wait for.
                    started = true;
                    break;
                }
            }
        };
        if tokio::time::timeout(START_LIMIT, told).await.is_err() {
            if let Some(pid) = pid {
                send(pid, Signal::SIGKILL);
            }
            return Err(format!("the container was not made in {} s", START_LIMIT.as_secs()));
        }
    }
    if let (Some(pid), true) = (pid, started) {
        return Ok(Running { child, pid, ended: false });
    }
    let output = child.wait_with_output().await.map_err(text)?;
    let outside = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("failed to start the container: {outside}{}", tail(&plan.log, 1024)))
}

impl Running {
    /// Waits for the end and returns the exit code, 128 + N where signal N ended it. Everything of the
    /// container is gone then: its main process is the first of a PID namespace.
    pub async fn wait(&mut self) -> i32 {
        let code = match self.child.wait().await {
            Ok(status) => status.code().unwrap_or(255),
            Err(error) => {
                tracing::error!(%error, "a container cannot be waited for");
                255
            }
        };
        self.ended = true;
        code
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            send(self.pid, Signal::SIGKILL);
        }
    }
}

/// Sends a signal. A process that ended already is no error.
pub fn send(pid: Pid, signal: Signal) {
    if let Err(error) = kill(pid, signal) {
        tracing::debug!(%pid, %signal, %error, "a signal found nobody");
    }
}

/// Runs a command beside a container's main process, with the same environment and rights. Returns
/// whether it succeeded, and what it printed.
pub async fn exec(
    pid: Pid,
    identity: &Identity,
    env: &[(String, String)],
    argv: &[String],
    limit: Duration,
) -> Result<(), String> {
    let child = Command::new("nsenter")
        .arg(format!("--target={pid}"))
        .args(["--mount", "--pid", "--net", "--uts", "--ipc", "--"])
        .args(script::command(identity, env, argv))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| error.to_string())?;
    match tokio::time::timeout(limit, child.wait_with_output()).await {
        Err(_) => Err(format!("command timed out after {} s", limit.as_secs())),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => Err(format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout).trim(),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// The last bytes of a file, for a message.
pub fn tail(file: &PathBuf, bytes: usize) -> String {
    let content = std::fs::read(file).unwrap_or_default();
    let from = content.len().saturating_sub(bytes);
    String::from_utf8_lossy(content.get(from..).unwrap_or_default()).trim().to_owned()
}
