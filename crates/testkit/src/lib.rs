//! Test helpers shared by several crates. For development only.

pub mod api_server;
pub mod audit;
pub mod conformance;
mod damage;
mod lock;
mod rng;
pub mod slurmrestd;
mod wait;

pub use damage::damage;
pub use lock::lock;
pub use rng::Rng;
pub use wait::wait_for;
