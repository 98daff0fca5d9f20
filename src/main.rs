//! `garage-holdfast`: command line, configuration, wiring and supervision. No rules live here.

mod cli;
mod commands;
mod logging;
mod metrics;
mod serve;
mod traces;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    // One crypto provider in the process, before anything can ask for one: with two, rustls panics.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        eprintln!(
            "garage-holdfast: another TLS provider was installed first; this is a defect of this build"
        );
        return ExitCode::FAILURE;
    }
    match cli::Cli::parse().command {
        cli::Command::Serve(args) => serve::main(args),
        cli::Command::Crds(args) => commands::crds::main(&args),
        cli::Command::Convert(args) => commands::convert::run(&args),
        cli::Command::Lint(args) => commands::lint::main(&args),
    }
}

/// Says what went wrong on standard error and fails: what, where, what to do.
fn fail(what: impl std::fmt::Display) -> ExitCode {
    eprintln!("garage-holdfast: {what}");
    ExitCode::FAILURE
}
