use std::process::ExitCode;

use clap::Parser;
use slurm_operator::cli::{self, Cli};
use tikv_jemallocator::Jemalloc;

/// The allocator of the system keeps pools for each thread and gives little back after a burst. How this one is set up, stands in
/// `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    match cli::run(&Cli::parse(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slurm-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}
