//! Logging.

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Logging flags.
#[derive(Args, Debug)]
pub struct LogArgs {
    /// Log level (error, warn, info, debug, trace) or a filter such as `info,slurm_operator=debug`
    #[arg(long, env = "LOG_LEVEL", default_value = "info", alias = "zap-log-level")]
    pub log_level: String,
    /// Log format: one JSON object per line, or human-readable lines
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

/// Log formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// Human-readable.
    #[value(alias = "plain")]
    Pretty,
}

/// Initialises logging to standard error.
pub fn start_log(args: &LogArgs) -> Result<()> {
    // kube logs every failed call without context; the operator logs these failures itself.
    let filter = EnvFilter::try_new(format!("{},kube_client::client::builder=off", known(&args.log_level)))
        .with_context(|| format!("`{}` is not a log level", args.log_level))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        LogFormat::Pretty => lines.try_init(),
    }
    .map_err(|error| anyhow::anyhow!("cannot initialise logging: {error}"))
}

/// Levels of other operators that are worse than any here.
fn known(level: &str) -> &str {
    if ["dpanic", "panic", "fatal"].contains(&level) { "error" } else { level }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_other_operators_are_known() {
        let shows = |level| EnvFilter::try_new(known(level)).map(|filter| filter.max_level_hint());
        for (level, most) in
            [("fatal", "error"), ("panic", "error"), ("dpanic", "error"), ("warn", "warn"), ("debug", "debug")]
        {
            assert_eq!(shows(level).unwrap(), Some(most.parse().unwrap()), "{level}");
        }
    }
}
