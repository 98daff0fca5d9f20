//! Starts the test bed, plays the demo on it, or soaks it.

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use holdfast_tests::bed::{self, Bed, assets};
use holdfast_tests::{Error, Result};
use holdfast_tests::{demo, soak};

/// A real Kubernetes control plane and real Garage on this machine, without a cluster and without root.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Start a bed with the product and a site; print how to reach it, and wait for Ctrl-C
    Up {
        /// Garage's version
        #[arg(long, default_value = assets::GARAGE)]
        garage: String,
        /// Only the control plane: no Nodes, no product, no site
        #[arg(long)]
        bare: bool,
    },
    /// Tell the product's story, step by step
    Demo {
        /// Leave the bed running at the end and print how to reach it with kubectl
        #[arg(long)]
        keep: bool,
        /// Use the product's own waiting times (hours) instead of short ones
        #[arg(long)]
        real_times: bool,
        /// Garage's version
        #[arg(long, default_value = assets::GARAGE)]
        garage: String,
    },
    /// Disrupt a site under object load, one disruption after the other, and say what was lost
    Soak {
        /// How long disruptions begin
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// Chooses what happens
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Garage's version
        #[arg(long, default_value = assets::GARAGE)]
        garage: String,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !bed::enter::is_inside()
        && let Err(error) = ready(&arguments)
    {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let root = bed::enter();
    match play(&arguments, &root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\n✘ {error}");
            ExitCode::FAILURE
        }
    }
}

/// What must be there before a bed makes sense: its binaries and the product's.
fn ready(arguments: &Arguments) -> Result<()> {
    assets::control_plane("kube-apiserver", assets::KUBERNETES)?;
    if matches!(arguments.command, What::Up { bare: true, .. }) {
        return Ok(());
    }
    let product = bed::beside_the_program("garage-holdfast");
    if product.exists() {
        return Ok(());
    }
    Err(Error::other(format!("{} is missing: cargo build --workspace --bins", product.display())))
}

fn play(arguments: &Arguments, root: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::other(format!("no runtime: {error}")))?;
    runtime.block_on(async {
        match &arguments.command {
            What::Demo { keep, real_times, garage } => {
                let options = demo::Options { keep: *keep, real_times: *real_times, garage: garage.clone() };
                demo::run(root, &options).await
            }
            What::Soak { minutes, seed, garage } => {
                let options = soak::Options { minutes: *minutes, seed: *seed, garage: garage.clone() };
                soak::run(root, &options).await
            }
            What::Up { garage, bare } => {
                let bed = Bed::start(root, &bed::Options::default()).await?;
                if *bare {
                    return demo::keep(&bed).await;
                }
                let site = holdfast_tests::site::Site::new(garage);
                site.prepare(&bed).await?;
                bed.install(&[]).await?;
                bed.apply(&site.manifest()?).await?;
                demo::keep(&bed).await
            }
        }
    })
}
