//! Everything that knows Slurm and nothing of Kubernetes.
//!
//! The modules are pure: no clock, no randomness, no I/O. Callers bring the time and the unique ids.

pub mod conf;
pub mod hostlist;
pub mod token;
