//! Builders for the Kubernetes objects that run the Slurm daemons: pure functions of plain models.

pub mod claim_templates;
pub mod failback;
pub mod keyring;
pub mod keys;
pub mod login;
pub mod monitor;
pub mod pods;
pub mod progress;
pub mod shared;
pub mod slurmctld;
pub mod slurmd;
pub mod slurmdbd;
pub mod slurmrestd;
pub mod sshd;
#[cfg(test)]
mod tests;
pub mod trial;
