use std::process::ExitCode;

use slurm_operator::cli;
use tikv_jemallocator::Jemalloc;

/// jemalloc, because the system allocator keeps per-thread arenas and returns little memory after a burst. It is
/// configured in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let program = cli::program(std::env::args_os().next().as_deref());
    let cli = cli::parse(program, std::env::args_os()).unwrap_or_else(|error| error.exit());
    match cli::run(&cli, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", program.name());
            ExitCode::FAILURE
        }
    }
}
