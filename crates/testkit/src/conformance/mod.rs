//! Behaviour that the operator needs from any slurmrestd. The suite runs against the fake for every version and, in
//! e2e, against real daemons, so that neither the fake nor the client drifts from real Slurm.
//!
//! A [`Target`] describes the server and what to expect of it. [`run`] runs all cases in order; [`Case::run`] runs one,
//! so that each can be a test. Cases change nodes and jobs and revert their changes, but cases that run concurrently on
//! the same server interfere with each other.

mod accounting;
mod jobs;
mod nodes;
mod outage;
mod scene;
mod server;
mod slurmd;
mod target;

use std::fmt;

use anyhow::Context;

pub use target::{Running, SILENT_REASON, Slurmd, Target};

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// A short name, usable as a test name.
    pub name: &'static str,
    check: for<'a> fn(&'a dyn Target) -> Running<'a>,
}

impl Case {
    pub async fn run(&self, target: &dyn Target) -> anyhow::Result<()> {
        (self.check)(target).await.with_context(|| format!("{} on {}", self.name, target.name()))
    }

    /// Returns the case with this name.
    pub fn named(name: &str) -> anyhow::Result<&'static Self> {
        CASES.iter().find(|case| case.name == name).with_context(|| format!("there is no case {name}"))
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// All cases. Those that stop slurmctld come last.
pub static CASES: [Case; 38] = [
    Case { name: "negotiation", check: |target| Box::pin(server::negotiation(target)) },
    Case { name: "ping", check: |target| Box::pin(server::ping(target)) },
    Case { name: "diag", check: |target| Box::pin(server::diag(target)) },
    Case { name: "conf", check: |target| Box::pin(server::conf(target)) },
    Case { name: "partitions", check: |target| Box::pin(server::partitions(target)) },
    Case { name: "not_offered", check: |target| Box::pin(server::not_offered(target)) },
    Case { name: "bad_token", check: |target| Box::pin(server::bad_token(target)) },
    Case { name: "node_list", check: |target| Box::pin(nodes::list(target)) },
    Case { name: "nodes_unchanged", check: |target| Box::pin(nodes::unchanged(target)) },
    Case { name: "drain_with_reason", check: |target| Box::pin(nodes::drain_with_reason(target)) },
    Case { name: "empty_reason", check: |target| Box::pin(nodes::empty_reason(target)) },
    Case { name: "undrain", check: |target| Box::pin(nodes::undrain(target)) },
    Case { name: "down_and_resume", check: |target| Box::pin(nodes::down_and_resume(target)) },
    Case { name: "resume_of_a_good_node", check: |target| Box::pin(nodes::resume_of_a_good_node(target)) },
    Case { name: "comment_kept", check: |target| Box::pin(nodes::comment_kept(target)) },
    Case { name: "features", check: |target| Box::pin(nodes::features(target)) },
    Case { name: "two_nodes_at_once", check: |target| Box::pin(nodes::two_at_once(target)) },
    Case { name: "unknown_node", check: |target| Box::pin(nodes::unknown(target)) },
    Case { name: "new_node", check: |target| Box::pin(nodes::new_node(target)) },
    Case { name: "job_runs", check: |target| Box::pin(jobs::runs(target)) },
    Case { name: "job_clears_reason", check: |target| Box::pin(jobs::clears_reason(target)) },
    Case { name: "job_names_node", check: |target| Box::pin(jobs::names_node(target)) },
    Case { name: "job_names_a_deleted_node", check: |target| Box::pin(jobs::names_a_deleted_node(target)) },
    Case { name: "job_suspended", check: |target| Box::pin(jobs::suspended(target)) },
    Case { name: "jobs_unchanged", check: |target| Box::pin(jobs::unchanged(target)) },
    Case { name: "job_signal", check: |target| Box::pin(jobs::signal(target)) },
    Case { name: "job_requeue", check: |target| Box::pin(jobs::requeue(target)) },
    Case { name: "job_refused", check: |target| Box::pin(jobs::refused(target)) },
    Case { name: "unknown_job", check: |target| Box::pin(jobs::unknown(target)) },
    Case { name: "reservation", check: |target| Box::pin(server::reservation(target)) },
    Case { name: "accounting", check: |target| Box::pin(accounting::books(target)) },
    Case { name: "bad_registration", check: |target| Box::pin(slurmd::bad_registration(target)) },
    Case { name: "rebooted", check: |target| Box::pin(slurmd::rebooted(target)) },
    Case { name: "second_slurmd", check: |target| Box::pin(slurmd::second(target)) },
    Case { name: "node_named_as_node_set", check: |target| Box::pin(slurmd::named_as_node_set(target)) },
    Case { name: "silent_node", check: |target| Box::pin(slurmd::silent(target)) },
    Case { name: "reconfigure", check: |target| Box::pin(server::reconfigure(target)) },
    Case { name: "slurmctld_down", check: |target| Box::pin(outage::slurmctld_down(target)) },
];

/// Runs all cases in order and stops at the first failure.
pub async fn run(target: &dyn Target) -> anyhow::Result<()> {
    for case in &CASES {
        case.run(target).await?;
    }
    Ok(())
}
