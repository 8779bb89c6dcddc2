//! `cargo xtask bench`: measures an operator of this API group at scale, ours or another, on the same work.

mod audit;
mod bars;
mod budget;
mod cluster;
mod compare;
mod load;
mod objects;
mod phases;
mod plot;
mod process;
mod report;
mod scale;
mod table;
mod world;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::{report::Report, scale::ScaleArgs};

/// Measures an operator of this API group at scale.
///
/// Exit codes: 0 all budgets are kept, 1 some are not or it failed (the reason is on stderr), 2 wrong usage.
#[derive(Parser)]
#[command(name = "cargo xtask bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Lead an operator from nothing to many workers and back, and measure each phase
    Scale(Box<ScaleArgs>),
    /// Show two reports side by side
    Compare { a: PathBuf, b: PathBuf },
    /// Draw cost against the number of workers, a curve for each report; by phase if each report has a single size
    Plot {
        #[arg(required = true)]
        reports: Vec<PathBuf>,
        /// Where the SVG goes
        #[arg(long, default_value = "scale.svg")]
        output: PathBuf,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Cli::parse().command).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: some budgets are not kept");
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
        Task::Scale(args) => {
            let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            // What was started ends with the future that started it.
            tokio::select! {
                kept = scale::run(args) => kept,
                _ = interrupt.recv() => bail!("interrupted"),
                _ = terminate.recv() => bail!("interrupted"),
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
