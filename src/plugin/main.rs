//! `kubectl holdfast`: sees and operates sites. Thin: the rules and the words are those of `holdfast-crds`, and
//! everything that it changes is one annotation, which the webhooks judge like anybody's.

mod cli;
mod cluster;
mod explain;
mod generate;
mod report;
mod request;
mod style;
mod table;
mod wait;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

/// How a command ends when it does not end well.
#[derive(Debug)]
pub struct Failure {
    /// One line: what, where, what to do.
    what: String,
    /// The exit code.
    code: u8,
}

impl Failure {
    /// Something could not be read, written or understood.
    pub fn error(what: impl Into<String>) -> Self {
        Self { what: what.into(), code: code::ERROR }
    }

    /// With an exit code of its own.
    pub fn with(code: u8, what: impl Into<String>) -> Self {
        Self { what: what.into(), code }
    }
}

/// Exit codes, the same for every command.
pub mod code {
    /// Something could not be read or written.
    pub const ERROR: u8 = 1;
    /// A command line that was not understood.
    pub const USAGE: u8 = 2;
    /// It does not go on by itself, or the request is refused: a person must act.
    pub const ACT: u8 = 3;
    /// Time ran out.
    pub const TIMEOUT: u8 = 4;
    /// Nothing to wait for: nobody asked.
    pub const NOTHING: u8 = 5;
}

fn main() -> ExitCode {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        return end(Err(Failure::error(
            "another TLS provider was installed first; this is a defect of this build",
        )));
    }
    end(run(cli::Cli::parse()))
}

fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {}", failure.what);
            ExitCode::from(failure.code)
        }
    }
}

fn run(cli: cli::Cli) -> Result<(), Failure> {
    use cli::Command;
    match cli.command {
        Command::Explain { reason } => {
            print(&explain::text(reason.as_deref(), style::Style::of_stdout()).map_err(Failure::error)?)
        }
        Command::Completions { shell } => print(&generate::completions(shell)),
        Command::Man { directory } => generate::man(&directory).map_err(Failure::error),
        command => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| Failure::error(format!("the runtime could not be started: {error}")))?;
            runtime.block_on(with_cluster(&cli.target, command))
        }
    }
}

async fn with_cluster(target: &cli::Target, command: cli::Command) -> Result<(), Failure> {
    use cli::Command;
    if target.all_namespaces && !matches!(command, Command::Status { .. }) {
        return Err(Failure::with(
            code::USAGE,
            "-A goes with status only: every other command is about one GarageCluster; name its namespace with -n",
        ));
    }
    let api = cluster::Cluster::connect(target).await?;
    match command {
        Command::Status { cluster, output } => {
            let sites = api.sites(cluster.as_deref(), target.all_namespaces).await?;
            print(&table::show(
                &sites,
                output,
                cluster.is_some(),
                style::Style::of_stdout(),
                jiff::Timestamp::now(),
            )?)
        }
        Command::Wait { cluster, goal, timeout, keep_waiting } => {
            wait::run(&api, cluster.as_deref(), goal, timeout, keep_waiting).await
        }
        Command::Hold { cluster, member, dry_run } => {
            let site = api.site(&cluster).await?;
            api.perform(&site, &request::hold(&site, &member)?, dry_run).await
        }
        Command::Release { cluster, dry_run } => {
            let site = api.site(&cluster).await?;
            api.perform(&site, &request::release(&site)?, dry_run).await
        }
        Command::Replace { cluster, member, yes, dry_run } => {
            let site = api.site(&cluster).await?;
            let plan = request::replace(&site, &member)?;
            if !dry_run && !yes {
                request::confirm(&plan)?;
            }
            api.perform(&site, &plan, dry_run).await
        }
        Command::Verify { cluster, dry_run } => {
            let site = api.site(&cluster).await?;
            api.perform(&site, &request::verify(&site, jiff::Timestamp::now())?, dry_run).await
        }
        Command::Explain { .. } | Command::Completions { .. } | Command::Man { .. } => Ok(()),
    }
}

/// Prints; a reader that closed the pipe had enough.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::error(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
