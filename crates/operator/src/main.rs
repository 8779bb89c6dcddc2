use std::process::ExitCode;

use clap::Parser;
use slurm_operator::cli::{self, Cli};

fn main() -> ExitCode {
    match cli::run(&Cli::parse(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slurm-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}
