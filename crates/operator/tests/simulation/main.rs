//! The worker lifecycle in a simulated cluster: the real plan and the real execution of it, everything else by chance.
//!
//! `SIM_SEED=n` tells the scenario of one seed again; `SIM_SCENARIOS=n` says how many are told, from that seed on.

#[cfg(test)]
mod api;
#[cfg(test)]
mod bugs;
#[cfg(test)]
mod effects;
#[cfg(test)]
mod fake_cluster;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod scenario;
#[cfg(test)]
mod slurm;
#[cfg(test)]
mod tests;
