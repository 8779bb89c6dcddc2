//! The life of workers on real Slurm: how they are updated, drained, protected and removed.
//!
//! One program, so that scenes which only wait do so side by side: see `e2e::workers` for who may change which node.

#![expect(clippy::indexing_slicing, reason = "test code: objects are written as JSON and changed in place")]

mod claims;
mod cordon;
mod ending;
mod lost_state;
mod pause;
mod protect;
mod refused;
mod rolling;
mod scheduled;
mod timeout;
