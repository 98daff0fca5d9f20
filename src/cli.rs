//! The command line. Every flag of `serve` can come from the environment too.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::commands::{convert, lint};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Makes it safe to service the disks of a Garage storage site on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "garage-holdfast", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the webhooks and, as leader, reconcile.
    Serve(Box<ServeArgs>),
    /// Print the CustomResourceDefinitions as YAML.
    Crds(CrdsArgs),
    /// Convert GarageCluster manifests between v1beta1 and v1beta2.
    Convert(convert::Args),
    /// Judge manifests by the admission rules before they are applied.
    Lint(lint::Args),
}

/// Where the serving certificate comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CertsSource {
    /// A CA of our own in a Secret; we rotate it and inject its bundle.
    SelfSigned,
    /// `tls.crt` and `tls.key` in a folder that somebody else (cert-manager) keeps fresh.
    Files,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Flags of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Where the webhooks listen (TLS).
    #[arg(long, env = "HOLDFAST_WEBHOOK_LISTEN", default_value = "[::]:8443")]
    pub webhook_listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics listen (plain HTTP).
    #[arg(long, env = "HOLDFAST_METRICS_LISTEN", default_value = "[::]:8080")]
    pub metrics_listen: SocketAddr,
    /// Namespace of this Pod: of the lease and the CA Secret.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub pod_namespace: String,
    /// Name of this Pod: its identity in the election and in events.
    #[arg(long, env = "POD_NAME", default_value = "garage-holdfast")]
    pub pod_name: String,
    /// Namespaces to watch (repeat it); none: all.
    #[arg(long = "namespace", env = "HOLDFAST_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Run the node-local pools too; false beside another operator of this API group.
    #[arg(long, env = "HOLDFAST_POOLS_MANAGE", default_value_t = true, action = clap::ArgAction::Set)]
    pub pools_manage: bool,
    /// Name of the Lease of the election.
    #[arg(long, env = "HOLDFAST_LEASE", default_value = "garage-holdfast")]
    pub lease: String,
    /// Name of the Service through which the API server calls the webhooks: the name in the certificate.
    #[arg(long, env = "HOLDFAST_SERVICE", default_value = "garage-holdfast")]
    pub service: String,
    /// Where the serving certificate comes from.
    #[arg(long, env = "HOLDFAST_CERTS_SOURCE", value_enum, default_value = "self-signed")]
    pub certs_source: CertsSource,
    /// Name of the Secret that holds the CA (self-signed).
    #[arg(long, env = "HOLDFAST_CERTS_SECRET", default_value = "garage-holdfast-ca")]
    pub certs_secret: String,
    /// Folder with tls.crt and tls.key (files).
    #[arg(long, env = "HOLDFAST_CERTS_DIR", default_value = "/var/run/certs")]
    pub certs_dir: PathBuf,
    /// Lifetime of a serving certificate in seconds (self-signed); renewed when a third is left.
    #[arg(long, env = "HOLDFAST_CERTS_LEAF_LIFETIME", default_value_t = 7 * 86_400, value_parser = clap::value_parser!(i64).range(60..=90 * 86_400))]
    pub certs_leaf_lifetime: i64,
    /// ValidatingWebhookConfiguration that gets the CA bundle (self-signed); absent: none.
    #[arg(long, env = "HOLDFAST_INJECT_WEBHOOK_CONFIGURATION")]
    pub inject_webhook_configuration: Option<String>,
    /// CustomResourceDefinition whose conversion stanza gets the CA bundle (self-signed); absent: none.
    #[arg(long, env = "HOLDFAST_INJECT_CRD")]
    pub inject_crd: Option<String>,
    /// The cluster's DNS domain, for the addresses in status.endpoints.
    #[arg(long, env = "HOLDFAST_CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// What to log: error, warn, info, debug, trace, or a filter such as info,holdfast_reconciler=debug.
    #[arg(long, env = "HOLDFAST_LOG", default_value = "info")]
    pub log: String,
    /// Form of the log.
    #[arg(long, env = "HOLDFAST_LOG_FORMAT", value_enum, default_value = "json")]
    pub log_format: LogFormat,
    /// Collector of traces that takes OTLP over HTTP, such as http://collector.monitoring:4318; empty: no traces.
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        value_name = "URL",
        default_value = "",
        hide_default_value = true
    )]
    pub otlp_endpoint: String,
    /// Shorten every waiting time of the proof and of the CA's rotation: for test beds, unsafe with data that matters.
    #[arg(long, env = "HOLDFAST_UNSAFE_SHORT_WAITS", hide = true, default_value_t = false, action = clap::ArgAction::Set)]
    pub unsafe_short_waits: bool,
}

/// Flags of `crds`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CrdsArgs {
    /// Something else than printing them.
    #[command(subcommand)]
    pub command: Option<CrdsCommand>,
    /// Service of the conversion webhook, as NAMESPACE/NAME. Without it the printed CRDs say nothing of
    /// conversion: applied over those of the chart they leave its webhook and the CA bundle as they are;
    /// in a cluster without them there is no conversion, which is enough where only v1beta2 is used.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub conversion_service: Option<String>,
}

/// Subcommands of `crds`.
#[derive(Debug, Subcommand)]
pub enum CrdsCommand {
    /// Add our fields to the CRDs of another operator and print them: for `kubectl replace -f -`.
    Merge {
        /// File with its CRDs, YAML or JSON; `-` is standard input.
        #[arg(short = 'f', long = "filename", value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
}
