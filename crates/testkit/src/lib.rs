//! Development only: what the tests of several crates share.

pub mod api_server;
pub mod conformance;
mod rng;
pub mod slurmrestd;
mod wait;

pub use rng::Rng;
pub use wait::wait_for;
