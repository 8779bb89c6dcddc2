//! The objects that run Slurm's daemons, as plain functions from plain models.

pub mod claim_templates;
pub mod keys;
pub mod pods;
pub mod progress;
pub mod shared;
pub mod slurmctld;
pub mod slurmd;
pub mod slurmrestd;
#[cfg(test)]
mod tests;
