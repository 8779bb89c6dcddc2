use std::process::ExitCode;

use clap::Parser;
use slurm_operator::cli::{self, Cli};
use tikv_jemallocator::Jemalloc;

/// jemalloc, because the system allocator keeps per-thread arenas and returns little memory after a burst. It is
/// configured in `.cargo/config.toml`.
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
