//! kubectl and helm as an administrator uses them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::bed::{Bed, assets, beside_the_program, enter};
use crate::error::{Doing as _, Error, Result};

/// How a command ended and what it said.
#[derive(Debug)]
pub struct Said {
    /// Its exit code; absent: a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Bed {
    /// Runs kubectl as the administrator and returns what it printed; fails when it does.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with(args, None).await
    }

    /// `kubectl apply -f -` of a manifest.
    pub async fn apply(&self, manifest: &str) -> Result<String> {
        self.kubectl_with(&["apply", "-f", "-"], Some(manifest)).await
    }

    /// Runs kubectl with something on its standard input.
    pub async fn kubectl_with(&self, args: &[&str], input: Option<&str>) -> Result<String> {
        Ok(self.kubectl_said(args, input).await?.0)
    }

    /// Runs kubectl and returns what it printed and what it warned of.
    pub async fn kubectl_said(&self, args: &[&str], input: Option<&str>) -> Result<(String, String)> {
        let kubectl = assets::control_plane("kubectl", assets::KUBERNETES)?;
        run(self.tool(&kubectl), "kubectl", args, input).await
    }

    /// Runs the product's own binary outside of any Pod, and returns what it printed.
    pub async fn product(&self, args: &[&str]) -> Result<String> {
        let product = beside_the_program("garage-holdfast");
        Ok(run(self.tool(&product), "garage-holdfast", args, None).await?.0)
    }

    /// Runs the product's own binary outside of any Pod with a kubeconfig (absent: the administrator's) for a
    /// while, or until it ends. Returns its exit code, if it ended by itself, and all that it printed.
    pub async fn product_for(
        &self,
        args: &[&str],
        kubeconfig: Option<&Path>,
        within: Duration,
    ) -> Result<(Option<i32>, String)> {
        let mut command = self.tool(&beside_the_program("garage-holdfast"));
        if let Some(kubeconfig) = kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        let said = self.root.join("product-for.log");
        let log = std::fs::File::create(&said).doing(|| format!("creating {}", said.display()))?;
        let same = log.try_clone().doing(|| format!("opening {}", said.display()))?;
        let mut child = command
            .args(args)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(same)
            .kill_on_drop(true)
            .spawn()
            .doing(|| "starting garage-holdfast")?;
        let ended = tokio::time::timeout(within, child.wait()).await;
        let code = if let Ok(status) = ended {
            status.doing(|| "waiting for garage-holdfast")?.code()
        } else {
            child.kill().await.doing(|| "stopping garage-holdfast")?;
            None
        };
        let text = std::fs::read_to_string(&said).doing(|| format!("reading {}", said.display()))?;
        Ok((code, text))
    }

    /// Runs `kubectl holdfast …`: kubectl finds the plugin on the PATH, beside the product. Its standard input is
    /// empty and nothing is a terminal. Never fails by its exit code, which is what it says.
    pub async fn plugin(&self, args: &[&str]) -> Result<Said> {
        let output = self.plugin_command()?.args(args).stdin(Stdio::null()).kill_on_drop(true).output();
        let output = output.await.doing(|| "running kubectl holdfast")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Said { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) })
    }

    /// The same on a terminal of 120 columns: all that it drew, escape sequences included, and its exit code.
    pub async fn plugin_on_a_terminal(&self, args: &str, answer: &str) -> Result<Said> {
        let kubectl = assets::control_plane("kubectl", assets::KUBERNETES)?;
        let seen = self.root.join("terminal.txt");
        let mut command = Command::new("script");
        let plugin = self.plugin_command()?;
        for (name, value) in plugin.as_std().get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        let line = format!("stty cols 120; exec '{}' holdfast {args}", kubectl.display());
        let mut child = command
            .args(["--quiet", "--flush", "--return", "--command", &line])
            .arg(&seen)
            .env("TERM", "xterm-256color")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .doing(|| "starting script")?;
        if let Some(mut pipe) = child.stdin.take() {
            pipe.write_all(answer.as_bytes()).await.doing(|| "answering the plugin")?;
            // Open until it ends: for a terminal the end of input would be one key more.
            let status = child.wait().await.doing(|| "running kubectl holdfast on a terminal")?;
            drop(pipe);
            let text = std::fs::read(&seen).doing(|| format!("reading {}", seen.display()))?;
            return Ok(Said {
                code: status.code(),
                out: String::from_utf8_lossy(&text).into_owned(),
                err: String::new(),
            });
        }
        Err(Error::other("script has no standard input"))
    }

    fn plugin_command(&self) -> Result<Command> {
        let kubectl = assets::control_plane("kubectl", assets::KUBERNETES)?;
        let plugin = beside_the_program("kubectl-holdfast");
        let folder = plugin.parent().unwrap_or(&plugin).display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = self.tool(&kubectl);
        command.arg("holdfast").env("PATH", format!("{folder}:{path}"));
        Ok(command)
    }

    /// Runs helm as the administrator and returns what it printed; fails when it does.
    pub async fn helm(&self, args: &[&str]) -> Result<String> {
        let helm = assets::control_plane("helm", assets::KUBERNETES)?;
        Ok(run(self.tool(&helm), "helm", args, None).await?.0)
    }

    /// Installs (or upgrades) the product by its chart as release `garage-holdfast` in the namespace of the
    /// same name, and waits until its Deployment is available: from then on the API server reaches and trusts its
    /// webhooks. `set` are further `--set` values.
    pub async fn install(&self, set: &[&str]) -> Result<String> {
        let chart = chart().display().to_string();
        let mut args = vec!["upgrade", "--install", "garage-holdfast", chart.as_str()];
        args.extend(["--namespace", "garage-holdfast", "--create-namespace", "--wait", "--timeout", "3m"]);
        args.extend(["--set", "image.repository=garage-holdfast,image.tag=bed"]);
        for value in set {
            args.extend(["--set", value]);
        }
        self.helm(&args).await
    }

    fn tool(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let home = self.root.join("home");
        command
            .env("KUBECONFIG", &self.control_plane.kubeconfig)
            // Caches and plugins of the person who runs the bed are none of its business.
            .env("HOME", &home)
            .env_remove("XDG_CACHE_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME");
        command
    }
}

/// A shell script that runs kubectl (or with `--shell` a shell) against the bed from outside of it.
pub fn wrapper(bed: &Bed) -> Result<String> {
    let way_in = enter::way_in()?.join(" ");
    let kubectl = assets::control_plane("kubectl", assets::KUBERNETES)?;
    // kubectl finds the plugin there, and a shell the bed's own program.
    let plugin = super::beside_the_program("kubectl-holdfast");
    let programs = plugin.parent().unwrap_or(Path::new("."));
    Ok(format!(
        "#!/bin/sh\n\
         # kubectl in the bed that wrote this; it ends with the bed.\n\
         if [ \"$1\" = --shell ]; then set -- sh; else set -- '{}' \"$@\"; fi\n\
         exec {way_in} env KUBECONFIG='{}' PATH='{}':\"$PATH\" \"$@\"\n",
        kubectl.display(),
        bed.control_plane.kubeconfig.display(),
        programs.display()
    ))
}

/// The product's chart.
pub fn chart() -> PathBuf {
    workspace().join("charts/garage-holdfast")
}

/// The checkout that the tests were built from.
pub fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_owned()
}

async fn run(
    mut command: Command,
    name: &str,
    args: &[&str],
    input: Option<&str>,
) -> Result<(String, String)> {
    let mut child = command
        .args(args)
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .doing(|| format!("starting {name}"))?;
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
        // A command that ends before it read everything says why by itself.
        let _ = pipe.write_all(input.as_bytes()).await;
    }
    let output = child.wait_with_output().await.doing(|| format!("running {name}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok((stdout, String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Err(Error::Command {
        command: format!("{name} {}", args.join(" ")),
        status: output.status.to_string(),
        stderr: format!("{}{stdout}", String::from_utf8_lossy(&output.stderr)).trim().to_owned(),
    })
}
