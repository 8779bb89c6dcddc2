//! `slurm-jail`: fills the root file system that the nodes of a `SlurmCluster` share, and lets a worker enter it.

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::{ArgAction, Parser, Subcommand, builder::BoolishValueParser};
use jail::{
    complement,
    populate::{self, Options, Outcome, Outside},
    wait,
};

#[derive(Parser)]
#[command(name = "slurm-jail", about, version)]
struct Cli {
    /// Where the volume of the jail is mounted
    #[arg(long, global = true, env = "JAIL_PATH", default_value = "/mnt/jail", value_name = "FOLDER")]
    jail: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Copy a root file system to the jail, unless it is populated. A run that was interrupted goes on where it was
    Populate {
        /// The root file system to copy
        #[arg(long, env = "JAIL_SOURCE", default_value = "/jail", value_name = "FOLDER")]
        source: PathBuf,
        /// Make the jail equal to the source, also if it is populated: other files in it are removed
        #[arg(long, env = "OVERWRITE", value_parser = BoolishValueParser::new(), action = ArgAction::Set, num_args = 0..=1, default_value = "false", default_missing_value = "true", value_name = "BOOL")]
        overwrite: bool,
        /// What identifies this request to overwrite, which is then carried out once, however often this runs
        #[arg(long, env = "POPULATE_REQUEST", default_value = "", value_name = "ID")]
        request: String,
        /// How many folders are copied at the same time
        #[arg(long, default_value = "8", value_name = "N")]
        threads: NonZeroUsize,
    },
    /// Show in the jail what jobs need of this container: /proc, /sys, /dev, /tmp, Slurm's programs, mounted volumes
    Complement {
        /// Volumes that are mounted below this folder are shown at the same place in the jail
        #[arg(long, default_value = "/mnt/jail.upper", value_name = "FOLDER")]
        upper: PathBuf,
    },
    /// Wait until the jail is populated
    Wait {
        /// And until its slurm.conf has a line for this node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Seconds between two looks
        #[arg(long, default_value = "1", value_name = "SECONDS")]
        every: NonZeroUsize,
    },
}

/// What brings a run to the disk from time to time does not cost more than a few percent of it.
const SYNC: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let stopped = Arc::new(AtomicBool::new(false));
    // As process 1 of a container it would not end without that.
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stopped.clone())
            .context("cannot watch for signals")?;
        signal_hook::flag::register(signal, stopped.clone()).context("cannot watch for signals")?;
    }
    let stop = || {
        if stopped.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    };
    let say = |text: &str| eprintln!("{text}");
    match cli.command {
        Command::Populate { source, overwrite, request, threads } => {
            let arch = std::env::consts::ARCH;
            let options = Options { source, jail: cli.jail, overwrite, request, threads, arch, sync: SYNC };
            let outcome = populate::run(&options, &Outside { stop: &stop, say: &say })?;
            say(match outcome {
                Outcome::Already => "the jail was populated before",
                Outcome::Adopted => "the jail was populated by soperator: nothing was copied",
                Outcome::Populated => "the jail is populated",
            });
            Ok(())
        }
        Command::Complement { upper } => complement::run(&cli.jail, &upper, std::env::consts::ARCH, &say),
        Command::Wait { node, every } => {
            let every = Duration::from_secs(u64::try_from(every.get())?);
            wait::run(&cli.jail, node.as_deref(), every, &stop, &say)
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

    #[test]
    fn overwrite_is_a_flag_and_a_value() {
        let overwrite = |args: &[&str]| {
            let all = ["slurm-jail", "populate"].iter().chain(args);
            let Ok(Cli { command: Command::Populate { overwrite, .. }, .. }) = Cli::try_parse_from(all) else {
                return None;
            };
            Some(overwrite)
        };
        assert_eq!(overwrite(&[]), Some(false));
        assert_eq!(overwrite(&["--overwrite"]), Some(true));
        assert_eq!(overwrite(&["--overwrite=0"]), Some(false));
        assert_eq!(overwrite(&["--overwrite=1"]), Some(true));
        assert_eq!(overwrite(&["--overwrite=maybe"]), None);
    }
}
