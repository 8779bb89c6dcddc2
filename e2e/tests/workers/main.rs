//! The worker lifecycle on real Slurm: updates, drains, protection and removal.
//!
//! One program, so that tests that mostly wait run in parallel. `e2e::workers` says which test may change which node.

#![expect(clippy::indexing_slicing, reason = "test code: objects are written as JSON and changed in place")]

mod claims;
mod cordon;
mod ending;
mod in_use;
mod lost_state;
mod orphans;
mod pause;
mod protect;
mod refused;
mod rolling;
mod scheduled;
mod timeout;
