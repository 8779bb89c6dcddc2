//! Plans for Slurm clusters: pure functions from plain models and facts to plans, for all API front ends.
//!
//! Nothing here knows a custom resource, a client, a clock or a source of randomness.

pub mod component;
pub mod conditions;
pub mod config;
pub mod daemons;
pub mod gres;
pub mod hash;
pub mod jailed;
pub mod json;
pub mod lint;
pub mod overlay;
pub mod plan;
pub mod podset;
pub mod quantity;
