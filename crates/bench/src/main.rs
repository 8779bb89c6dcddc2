//! `cargo xtask bench`: measures this operator, or another one of this API group, at scale.

mod audit;
mod bars;
mod budget;
mod cluster;
mod compare;
mod exporter;
mod fake_cluster;
mod load;
mod objects;
mod phases;
mod plot;
mod pods;
mod probe;
mod process;
mod report;
mod run;
mod scale;
mod table;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::{exporter::ExporterArgs, report::Report, scale::ScaleArgs};

/// Measures an operator of this API group at scale.
///
/// Exit codes: 0 all budgets are met, 1 a budget is exceeded or an error occurred (see stderr), 2 wrong usage.
#[derive(Parser)]
#[command(name = "cargo xtask bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Scale a NodeSet from nothing to many workers and back, and measure each phase
    Scale(Box<ScaleArgs>),
    /// Measure the exporter's reads and scrapes; it needs no cluster
    Exporter(ExporterArgs),
    /// Show two reports side by side
    Compare { a: PathBuf, b: PathBuf },
    /// Draw cost against the number of workers, a curve for each report; by phase if each report has a single size
    Plot {
        #[arg(required = true)]
        reports: Vec<PathBuf>,
        /// The SVG file to write
        #[arg(long, default_value = "scale.svg")]
        output: PathBuf,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Cli::parse().command).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: a budget is exceeded");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(task: &Task) -> Result<bool> {
    match task {
        Task::Scale(args) => until_interrupted(Box::pin(scale::run(args))).await,
        Task::Exporter(args) => until_interrupted(exporter::run(args)).await,
        Task::Compare { a, b } => {
            print!("{}", compare::compare(&Report::read(a)?, &Report::read(b)?));
            Ok(true)
        }
        Task::Plot { reports, output } => {
            let reports = reports.iter().map(|path| Report::read(path)).collect::<Result<Vec<_>>>()?;
            fs::write(output, plot::draw(&reports)).with_context(|| format!("cannot write {}", output.display()))?;
            Ok(true)
        }
    }
}

/// Dropping the future ends what is measured.
async fn until_interrupted(measurement: impl Future<Output = Result<bool>>) -> Result<bool> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        all_met = measurement => all_met,
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("interrupted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_valid() {
        Cli::command().debug_assert();
    }
}
