//! Logs.

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How to log.
#[derive(Args, Debug)]
pub struct LogArgs {
    /// error, warn, info, debug, trace; or a filter such as `info,slurm_operator=debug`
    #[arg(long, env = "LOG_LEVEL", default_value = "info", alias = "zap-log-level")]
    pub log_level: String,
    /// One JSON object a line, or lines for human eyes
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

/// A form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For machines.
    #[default]
    Json,
    /// For humans.
    Pretty,
}

/// Starts logging to standard error.
pub fn start_log(args: &LogArgs) -> Result<()> {
    // kube reports every refused call by itself, without saying what it was for; we do.
    let filter = EnvFilter::try_new(format!("{},kube_client::client::builder=off", args.log_level))
        .with_context(|| format!("`{}` is not a log level", args.log_level))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        LogFormat::Pretty => lines.try_init(),
    }
    .map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))
}
