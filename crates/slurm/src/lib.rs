//! Slurm types, configuration and REST client, independent of Kubernetes.
//!
//! All modules except [`client`] are pure: no clock, no randomness, no I/O. Callers pass in the time and unique ids.

pub mod client;
pub mod conf;
pub mod gres;
pub mod hostlist;
pub mod series;
pub mod states;
pub mod token;
pub mod tres;
pub mod version;
pub mod wire;
