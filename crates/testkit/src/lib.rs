//! Development only: what the tests of several crates share.

pub mod api_server;
pub mod conformance;
pub mod slurmrestd;
mod wait;

pub use wait::wait_for;
