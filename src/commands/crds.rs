//! `garage-holdfast crds`: prints the CustomResourceDefinitions.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use holdfast_crds::crd::{self, ConversionService};
use holdfast_crds::merge;
use serde::Deserialize as _;
use serde_json::Value;

use super::convert::read_file;
use crate::cli::{CrdsArgs, CrdsCommand};
use crate::fail;

/// Prints them, or those of another operator with our fields, as a YAML stream.
pub fn main(args: &CrdsArgs) -> ExitCode {
    if let Some(CrdsCommand::Merge { file }) = &args.command {
        return match merged(file) {
            Ok(text) => print(&text),
            Err(what) => fail(what),
        };
    }
    let service = match args.conversion_service.as_deref().map(service).transpose() {
        Ok(service) => service,
        Err(what) => return fail(what),
    };
    match crd::all(service.as_ref()).and_then(|crds| crd::to_yaml(&crds)) {
        Ok(text) => print(&text),
        Err(error) => fail(format!("the CRDs could not be written as YAML: {error}")),
    }
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        // A closed pipe is its reader's business.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(format!("the CRDs could not be printed: {error}")),
    }
}

/// Every document of the file with our fields added; nothing where one cannot be merged.
fn merged(file: &Path) -> Result<String, String> {
    let name = file.display();
    let text = read_file(file).map_err(|error| format!("{name}: {error}"))?;
    let mut out = String::new();
    for document in serde_norway::Deserializer::from_str(&text) {
        let theirs = Value::deserialize(document).map_err(|error| format!("{name}: {error}"))?;
        if theirs.is_null() {
            continue;
        }
        let merged = merge::merge(theirs).map_err(|error| format!("{name}: {error}"))?;
        let yaml = serde_norway::to_string(&merged).map_err(|error| format!("{name}: {error}"))?;
        out.push_str("---\n");
        out.push_str(&yaml);
    }
    if out.is_empty() {
        Err(format!("{name} holds no document: feed it the output of `kubectl get crd`"))
    } else {
        Ok(out)
    }
}

fn service(text: &str) -> Result<ConversionService, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ConversionService {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                port: 443,
                ca_bundle: None,
            })
        }
        _ => Err(format!(
            "--conversion-service {text:?} is not NAMESPACE/NAME; write, for example, garage-holdfast/garage-holdfast"
        )),
    }
}
