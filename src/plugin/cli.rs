//! The plugin's command line. Its flags for the cluster are those that kubectl's own commands have.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// See and operate Garage storage sites: wait for full redundancy, take a member out of service, refill it.
///
/// Exit codes: 0 done; 1 something could not be read or written; 2 a command line that was not understood; 3 a
/// person must act, or the request is refused; 4 time ran out; 5 nothing to wait for.
#[derive(Debug, Parser)]
#[command(name = "kubectl-holdfast", bin_name = "kubectl holdfast", version, arg_required_else_help = true)]
pub struct Cli {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster and namespace.
#[derive(Debug, Default, Args)]
pub struct Target {
    /// The namespace; absent: that of the kubeconfig context
    #[arg(short = 'n', long, global = true)]
    pub namespace: Option<String>,
    /// All namespaces (status)
    #[arg(short = 'A', long, global = true, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// The kubeconfig context; absent: the current one
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig file; absent: $KUBECONFIG, or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show sites: phases, progress of each node, deferred nodes, conditions and what to do next
    Status {
        /// GarageCluster; absent: all of the namespace
        cluster: Option<String>,
        /// Format; absent: a table
        #[arg(short = 'o', long, value_enum)]
        output: Option<Output>,
    },
    /// Wait for an outcome, with progress; exits 0 when it is reached, 3 when a person must act, 4 when time runs
    /// out, 5 when nobody asked for it
    Wait {
        /// GarageCluster; absent: the only one of the namespace
        cluster: Option<String>,
        /// What to wait for
        #[arg(long = "for", value_enum, default_value_t)]
        goal: Goal,
        /// Longest wait, such as 90s, 30m, 12h; absent: no end
        #[arg(long, value_parser = timeout)]
        timeout: Option<std::time::Duration>,
        /// Go on waiting when a person must act
        #[arg(long)]
        keep_waiting: bool,
    },
    /// Take a member out of service: sets node-local-out-of-service
    Hold {
        /// GarageCluster
        cluster: String,
        /// Member as POOL/NODE, or the Kubernetes Node's name where it has one member
        member: String,
        /// Only say what would be done; the API server judges it, nothing is stored
        #[arg(long)]
        dry_run: bool,
    },
    /// End a hold: removes node-local-out-of-service
    Release {
        /// GarageCluster
        cluster: String,
        /// Only say what would be done; the API server judges it, nothing is stored
        #[arg(long)]
        dry_run: bool,
    },
    /// Replace the identity of a member whose disk was wiped or replaced: finds the old one, asks, and sets
    /// node-local-replace-identity
    Replace {
        /// GarageCluster
        cluster: String,
        /// Member as POOL/NODE, or the Kubernetes Node's name where it has one member
        member: String,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
        /// Only say what would be done; the API server judges it, nothing is stored
        #[arg(long)]
        dry_run: bool,
    },
    /// Request a full proof: sets verify-redundancy to a fresh token
    Verify {
        /// GarageCluster
        cluster: String,
        /// Only say what would be done; the API server judges it, nothing is stored
        #[arg(long)]
        dry_run: bool,
    },
    /// Say what a condition's reason means and what to do next
    Explain {
        /// Reason or condition; absent: all of them
        reason: Option<String>,
    },
    /// Print shell completions
    Completions {
        /// Shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write man pages into a directory
    Man {
        /// Directory
        directory: PathBuf,
    },
}

/// `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One JSON array of sites
    Json,
    /// The same as YAML
    Yaml,
}

/// `wait --for`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// FullyReplicated is True, for the latest request
    #[default]
    Redundancy,
    /// The disk of the held member may be touched
    Hold,
    /// The member is back in service
    Release,
    /// The identity is replaced
    Replacement,
}

/// A duration as Kubernetes tools write it.
fn timeout(text: &str) -> Result<std::time::Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write, for example, 90s, 30m or 12h");
    let duration: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    if duration.is_zero() {
        return Err(wrong());
    }
    duration.try_into().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_flags_of_kubectl_are_taken_before_and_after_the_subcommand() {
        for line in [
            &["kubectl-holdfast", "-n", "objects", "--context", "a", "--kubeconfig", "f", "status"][..],
            &["kubectl-holdfast", "status", "--namespace=objects", "--context=a", "--kubeconfig=f"][..],
        ] {
            let cli = Cli::try_parse_from(line).unwrap();
            assert_eq!(cli.target.namespace.as_deref(), Some("objects"));
            assert_eq!(cli.target.context.as_deref(), Some("a"));
            assert_eq!(cli.target.kubeconfig.as_deref(), Some(std::path::Path::new("f")));
        }
        assert!(Cli::try_parse_from(["kubectl-holdfast", "status", "-A", "-n", "x"]).is_err());
    }

    #[test]
    fn a_timeout_is_a_positive_duration_with_a_unit() {
        assert_eq!(timeout("1h30m").unwrap().as_secs(), 5400);
        assert_eq!(timeout("90s").unwrap().as_secs(), 90);
        for bad in ["", "12", "0s", "-5m", "soon"] {
            assert!(timeout(bad).unwrap_err().contains("12h"), "{bad}");
        }
    }
}
