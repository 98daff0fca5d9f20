//! `garage-holdfast crds`: prints the CustomResourceDefinitions.

use std::io::Write as _;
use std::process::ExitCode;

use holdfast_crds::crd::{self, ConversionService};

use crate::cli::CrdsArgs;
use crate::fail;

/// Prints them as a YAML stream.
pub fn main(args: &CrdsArgs) -> ExitCode {
    let service = match args.conversion_service.as_deref().map(service).transpose() {
        Ok(service) => service,
        Err(what) => return fail(what),
    };
    match crd::all(service.as_ref()).and_then(|crds| crd::to_yaml(&crds)) {
        // A closed pipe is its reader's business.
        Ok(text) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(error) => fail(format!("the CRDs could not be printed: {error}")),
        },
        Err(error) => fail(format!("the CRDs could not be written as YAML: {error}")),
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
