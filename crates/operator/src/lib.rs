//! Runs Slurm on Kubernetes: one program with subcommands.

pub mod cli;
pub mod crds;
