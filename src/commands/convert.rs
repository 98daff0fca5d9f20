//! `garage-holdfast convert`: GarageCluster manifests between the two versions.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use holdfast_crds::convert::Version;
use holdfast_crds::convert::stream::convert_stream;

/// The version to convert to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// The deprecated version with one flat tier.
    #[value(name = "v1beta1")]
    V1beta1,
    /// The storage version.
    #[value(name = "v1beta2")]
    V1beta2,
}

/// Converts the GarageClusters in a stream of YAML documents or JSON values and prints the whole stream.
///
/// The output is in the input's format. Documents in which nothing changes keep their text and comments. If one
/// cannot be converted nothing is printed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File to read; `-` is standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Version to convert to.
    #[arg(long)]
    pub to: Target,
}

/// Converts and prints. 0: done, 1: a document cannot be converted, 2: a file cannot be read or the output not written.
pub fn run(args: &Args) -> ExitCode {
    let to = match args.to {
        Target::V1beta1 => Version::V1beta1,
        Target::V1beta2 => Version::V1beta2,
    };
    let mut out = String::new();
    for file in &args.files {
        let text = match read_file(file) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("error: {}: {error}", file.display());
                return ExitCode::from(2);
            }
        };
        match convert_stream(&text, to) {
            Ok(converted) => {
                // A stream of one document has no separator of its own.
                if !out.is_empty()
                    && !converted.starts_with("---")
                    && !converted.trim_start().starts_with(['{', '['])
                {
                    out.push_str("---\n");
                }
                out.push_str(&converted);
            }
            Err(error) => {
                eprintln!("{}:{error}", file.display());
                return ExitCode::from(1);
            }
        }
    }
    match std::io::stdout().write_all(out.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: standard output: {error}");
            ExitCode::from(2)
        }
    }
}

/// The text of a file; `-` is standard input.
pub fn read_file(file: &Path) -> std::io::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
}
