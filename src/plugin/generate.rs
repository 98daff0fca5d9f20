//! Shell completions and man pages, from the command line's own definition.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;

/// Completions of the binary. kubectl completes plugins through `kubectl_complete-holdfast`; the docs say how.
pub fn completions(shell: Shell) -> String {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kubectl-holdfast", &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Writes `kubectl-holdfast.1` and a page for each subcommand.
pub fn man(directory: &Path) -> Result<(), String> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command().bin_name("kubectl-holdfast"), directory))
        .map_err(|error| format!("the man pages could not be written to {}: {error}", directory.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn completions_of_every_shell_know_every_subcommand() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let text = completions(shell);
            for command in Cli::command().get_subcommands() {
                assert!(text.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }

    #[test]
    fn every_subcommand_has_a_man_page() {
        let directory = tempfile::tempdir().unwrap();
        man(directory.path()).unwrap();
        for command in Cli::command().get_subcommands() {
            let page = directory.path().join(format!("kubectl-holdfast-{}.1", command.get_name()));
            assert!(page.exists(), "{}", page.display());
        }
        assert!(directory.path().join("kubectl-holdfast.1").exists());
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        assert!(man(Path::new("/proc/nowhere")).unwrap_err().contains("/proc/nowhere"));
    }
}
