//! The objects that run Slurm's daemons, as plain functions from plain models.

pub mod claims;
pub mod keys;
pub mod pods;
pub mod shared;
pub mod slurmctld;
pub mod slurmrestd;
#[cfg(test)]
mod tests;
pub mod verdict;
