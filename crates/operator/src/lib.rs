//! Runs Slurm on Kubernetes: one program with subcommands.

pub mod access;
pub mod certificates;
pub mod cli;
pub mod crds;
pub mod explain;
pub mod exporter;
pub mod failure;
pub mod frontends;
pub mod get;
pub mod health;
pub mod host_keys;
pub mod kube_view;
pub mod lease;
mod lock;
pub mod machine;
pub mod manager;
pub mod metrics;
pub mod offline_plan;
pub mod process;
pub mod random;
pub mod rbac;
pub mod slurm_view;
pub mod sources;
pub mod status;
pub mod telemetry;
pub mod trigger;
pub mod webhook;
