//! `garage-holdfast lint`: the admission rules on files.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use holdfast_crds::lint::{Live, Offline, Report, lint};

use super::convert::read_file;
use super::live::Cluster;

/// How the report is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One line a finding.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Judges GarageCluster and GarageNode manifests by the rules of the webhook, before they are applied.
///
/// Reads YAML and JSON files, directories of them (`*.yaml`, `*.yml`, `*.json`), and the output of Kustomize or Helm on
/// standard input. What needs the state of a cluster is listed as unchecked.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files or directories; `-` is standard input.
    #[arg(value_name = "FILE|DIR|-", required = true)]
    pub paths: Vec<PathBuf>,
    /// Format of the report.
    #[arg(short = 'o', long, value_enum, default_value_t)]
    pub output: Output,
    /// Check what needs live state against the cluster of this kubeconfig context.
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
}

/// Judges with or without a cluster at hand, as the arguments say.
pub fn main(args: &Args) -> ExitCode {
    match &args.context {
        None => run(args, &Offline),
        Some(context) => match Cluster::connect(context) {
            Ok(cluster) => run(args, &cluster),
            Err(what) => {
                eprintln!("error: {what}");
                ExitCode::from(2)
            }
        },
    }
}

/// Judges and prints. 0: nothing found, 1: something would be refused, 2: a file cannot be read.
fn run(args: &Args, live: &dyn Live) -> ExitCode {
    let mut report = Report::default();
    for path in &args.paths {
        let judged = files(path).and_then(|files| {
            for file in files {
                let name =
                    if file == Path::new("-") { "standard input".into() } else { file.to_string_lossy() };
                report.merge(lint(&name, &read_file(&file)?, live));
            }
            Ok(())
        });
        if let Err(error) = judged {
            eprintln!("error: {}: {error}", path.display());
            return ExitCode::from(2);
        }
    }
    let text = match args.output {
        Output::Text => report.to_text(),
        Output::Json => report.to_json() + "\n",
    };
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        eprintln!("error: standard output: {error}");
        return ExitCode::from(2);
    }
    if report.failed() { ExitCode::from(1) } else { ExitCode::SUCCESS }
}

/// The file itself, or the manifests in a directory and those below it, sorted.
fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            // A link to a directory could lead in a circle.
            if entry.file_type()?.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
