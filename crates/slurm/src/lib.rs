//! Everything that knows Slurm and nothing of Kubernetes.
//!
//! All modules but [`client`] are pure: no clock, no randomness, no I/O. Callers bring the time and the unique ids.

pub mod client;
pub mod conf;
pub mod hostlist;
pub mod states;
pub mod token;
pub mod version;
pub mod wire;
