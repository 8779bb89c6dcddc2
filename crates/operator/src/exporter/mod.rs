//! `slurm-operator exporter`: the nodes, jobs and statistics of a Slurm cluster as metrics, under the names of soperator's exporter.
//!
//! It needs neither the operator nor Kubernetes: only a slurmrestd. Slurm is read at an interval, never because of a scrape.

mod collect;
mod link;
mod own_metrics;
mod pages;
mod plan_rounds;
mod store;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use kube::config::Kubeconfig;
use slurm::token::Token;
use slurm_operator_api::common::duration;

use crate::{
    frontends::slinky,
    health::serve,
    process::{address, signals},
    telemetry::{LogArgs, LogFormat, start_log},
};
use collect::{Collector, Source};
use link::{Link, Origin, TokenSource};
use own_metrics::OwnMetrics;
use store::Store;

/// slurmrestd of a cluster that nothing else is known of.
const LOCAL: &str = "http://localhost:6820";

/// Flags of `slurm-operator exporter`. Those of soperator's exporter have its names, environment variables and defaults.
#[derive(Args, Debug)]
pub struct ExporterArgs {
    /// Address of the server of Slurm's metrics (/metrics, /health)
    #[arg(long, env = "SLURM_EXPORTER_METRICS_BIND_ADDRESS", default_value = ":8080", value_parser = address)]
    pub metrics_bind_address: SocketAddr,
    /// Address of the server of the exporter's own metrics (/metrics)
    #[arg(long, env = "SLURM_EXPORTER_MONITORING_BIND_ADDRESS", default_value = ":8081", value_parser = address)]
    pub monitoring_bind_address: SocketAddr,
    /// URL of slurmrestd; defaults to that of the Controller --cluster-name, or to `http://localhost:6820`
    #[arg(long, env = "SLURM_EXPORTER_SLURM_API_SERVER", value_name = "URL")]
    pub slurm_api_server: Option<String>,
    /// File with the certificate authority of slurmrestd; defaults to those of the system
    #[arg(long, env = "SLURM_EXPORTER_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Name of the Controller whose key signs tokens, unless another source of tokens is named
    #[arg(long, env = "SLURM_EXPORTER_CLUSTER_NAME", value_name = "NAME")]
    pub cluster_name: Option<String>,
    /// Namespace of the Controller; defaults to that of the pod or of the kubeconfig
    #[arg(long, env = "SLURM_EXPORTER_CLUSTER_NAMESPACE", value_name = "NAMESPACE")]
    pub cluster_namespace: Option<String>,
    /// Kubeconfig for --cluster-name; defaults to the pod's own access, or KUBECONFIG
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_path: Option<PathBuf>,
    /// File with a token; it is read for each call, so that something else can renew it
    #[arg(long, env = "SLURM_EXPORTER_TOKEN_FILE", value_name = "FILE", conflicts_with_all = ["static_token", "standalone"])]
    pub token_file: Option<PathBuf>,
    /// Token; use the environment variable, because others can read the command line
    #[arg(
        long,
        env = "SLURM_EXPORTER_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true,
        conflicts_with = "standalone"
    )]
    pub static_token: Option<String>,
    /// Get tokens from `scontrol token`
    #[arg(long)]
    pub standalone: bool,
    /// Path of scontrol, for --standalone
    #[arg(long, env = "SLURM_EXPORTER_SCONTROL_PATH", value_name = "FILE", default_value = "scontrol")]
    pub scontrol_path: PathBuf,
    /// Lifetime of tokens from scontrol; each is replaced after four fifths of it
    #[arg(long, env = "SLURM_EXPORTER_KEY_ROTATION_INTERVAL", value_name = "DURATION", default_value = "30m", value_parser = period)]
    pub key_rotation_interval: Duration,
    /// How often Slurm is read, such as 30s or 1m30s
    #[arg(long, env = "SLURM_EXPORTER_COLLECTION_INTERVAL", value_name = "DURATION", default_value = "30s", value_parser = period)]
    pub collection_interval: Duration,
    /// How many reads of the same list may be under way; a further one is skipped
    #[arg(long, env = "SLURM_EXPORTER_MAX_COLLECTOR_INFLIGHT", value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_collector_inflight: u16,
    /// Where jobs are read: from slurmctld, or from slurmdbd, which also has those that ended long ago
    #[arg(long, env = "SLURM_EXPORTER_JOB_SOURCE", value_enum, default_value_t)]
    pub job_source: JobSource,
    /// With --job-source accounting: how long after its end a job is shown
    #[arg(long, env = "SLURM_EXPORTER_ACCOUNTING_JOBS_LOOKBACK", value_name = "DURATION", default_value = "1h", value_parser = period)]
    pub accounting_jobs_lookback: Duration,
    /// Export some series also under other names: `slurm_rpc_calls_total`, `slurm_rpc_duration_seconds_total`,
    /// `soperator_metrics_requests_total` and `scollector_collection_errors_total`
    #[arg(long, env = "SLURM_EXPORTER_ALIAS_NAMES")]
    pub alias_names: bool,
    /// Log level (error, warn, info, debug, trace) or a filter such as `info,slurm_operator=debug`
    #[arg(long, env = "SLURM_EXPORTER_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
    /// Log format: one JSON object per line, or human-readable lines
    #[arg(long, env = "SLURM_EXPORTER_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

/// Where jobs are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum JobSource {
    /// From slurmctld.
    #[default]
    Controller,
    /// From slurmdbd.
    Accounting,
}

/// A period in the notation of Go or Prometheus: `1h30m`, `1d`.
fn period(text: &str) -> Result<Duration, String> {
    let mut hours = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| c.is_alphabetic()).unwrap_or(rest.len()));
        let (unit, tail) = tail.split_at(tail.find(|c: char| !c.is_alphabetic()).unwrap_or(tail.len()));
        // Go has no longer units than hours.
        let times = match unit {
            "d" => 24,
            "w" => 7 * 24,
            "y" => 365 * 24,
            _ => 1_u64,
        };
        match number.parse::<u64>().ok().filter(|_| times > 1).and_then(|number| number.checked_mul(times)) {
            Some(number) => hours.extend([number.to_string().as_str(), "h"]),
            None => hours.extend([number, unit]),
        }
        rest = tail;
    }
    let period = duration::parse(&hours).map_err(|_| format!("`{text}` is not a duration like 30s, 1h30m or 1d"))?;
    let period = Duration::try_from(period).unwrap_or_default();
    if period < Duration::from_secs(1) { Err(format!("`{text}` is less than a second")) } else { Ok(period) }
}

/// Runs until a termination signal or an unrecoverable error.
pub fn run(args: &ExporterArgs) -> Result<()> {
    start_log(&LogArgs { log_level: args.log_level.clone(), log_format: args.log_format })?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(start(args))
}

async fn start(args: &ExporterArgs) -> Result<()> {
    let origin = origin(args).await?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), slurm = %origin, "started");
    let exporter = Exporter::new(origin, args);
    tokio::select! {
        result = serve(args.metrics_bind_address, exporter.metrics()) => result,
        result = serve(args.monitoring_bind_address, exporter.own_metrics()) => result,
        ended = exporter.collect() => ended,
        signalled = signals() => {
            tracing::info!("stopping");
            signalled
        }
    }
}

/// The slurmrestd to read, and the source of its tokens.
async fn origin(args: &ExporterArgs) -> Result<Origin> {
    let named = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let url = named(&args.slurm_api_server);
    let tokens = match (&args.token_file, named(&args.static_token)) {
        (Some(file), _) => Some(TokenSource::File(file.clone())),
        (None, Some(token)) => {
            Some(TokenSource::Static(Token::from_text(&token).context("--static-token or SLURM_EXPORTER_TOKEN")?))
        }
        (None, None) if args.standalone => {
            Some(TokenSource::Scontrol { path: args.scontrol_path.clone(), lifetime: args.key_rotation_interval })
        }
        (None, None) => None,
    };
    let ca_file = args.ca_file.clone();
    match (tokens, named(&args.cluster_name)) {
        (None, Some(name)) => {
            let config = kubeconfig(args).await?;
            let namespace = named(&args.cluster_namespace).unwrap_or_else(|| config.default_namespace.clone());
            let client = kube::Client::try_from(config).context("cannot create the Kubernetes client")?;
            Ok(Origin::Controller { client, cluster: slinky::cluster_key(&namespace, &name), url, ca_file })
        }
        (tokens, _) => {
            let tokens = tokens.unwrap_or(TokenSource::None);
            Ok(Origin::Url { url: url.unwrap_or_else(|| LOCAL.to_owned()), ca_file, tokens })
        }
    }
}

async fn kubeconfig(args: &ExporterArgs) -> Result<kube::Config> {
    let hint = "--cluster-name needs a Kubernetes cluster (a pod, KUBECONFIG or --kubeconfig-path); without one, name a source of \
                tokens: --token-file, SLURM_EXPORTER_TOKEN or --standalone";
    let Some(path) = &args.kubeconfig_path else { return kube::Config::infer().await.context(hint) };
    let file = Kubeconfig::read_from(path).with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
    kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await.context(hint)
}

/// An exporter of one cluster.
struct Exporter {
    collector: Collector,
    store: Store,
    own: OwnMetrics,
    interval: Duration,
}

impl Exporter {
    fn new(origin: Origin, args: &ExporterArgs) -> Self {
        let (store, own) = (Store::default(), OwnMetrics::new(args.alias_names));
        let interval = args.collection_interval;
        let source = Source {
            link: Link::new(origin, interval / 2),
            lookback: match args.job_source {
                JobSource::Controller => None,
                JobSource::Accounting => Some(args.accounting_jobs_lookback),
            },
        };
        let collector = Collector {
            source: Arc::new(source),
            interval,
            most: args.max_collector_inflight.into(),
            aliases: args.alias_names,
            store: store.clone(),
            own: own.clone(),
        };
        Self { collector, store, own, interval }
    }

    fn metrics(&self) -> axum::Router {
        pages::slurm(self.store.clone(), self.own.clone(), self.interval)
    }

    fn own_metrics(&self) -> axum::Router {
        pages::own(self.own.clone())
    }

    async fn collect(&self) -> Result<()> {
        self.collector.run().await
    }
}

#[cfg(test)]
mod tests;
