//! The jail: the root file system that login nodes and workers of a `SlurmCluster` share, and in which jobs run.
//!
//! It lies on a volume that many nodes write at the same time, and its users may be root in it. So every access goes through
//! [`tree::Tree`], which follows no symbolic link, and every file appears whole or not at all.
//!
//! This crate knows neither Kubernetes nor Slurm's API: images contain its program, `slurm-jail`, and should change rarely.

pub mod complement;
mod copy;
mod journal;
pub mod layout;
mod nodes;
pub mod populate;
mod scan;
pub mod tree;
pub mod wait;
