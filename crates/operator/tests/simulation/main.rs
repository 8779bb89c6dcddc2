//! The worker lifecycle in a simulated cluster: the real plan and the real execution, with random actions and faults.
//!
//! `SIM_SEED=n` replays the scenario of one seed; `SIM_SCENARIOS=n` sets how many are run, starting with that seed.

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
mod others;
#[cfg(test)]
mod scenario;
#[cfg(test)]
mod slurm;
#[cfg(test)]
mod tests;
