//! A fake slurmrestd with an in-memory Slurm cluster.
//!
//! It behaves like the real 24.11 and 26.05, including their quirks; `tests/slurm_fake.rs` runs the same suite against
//! it that e2e runs against real daemons, and compares its responses with recorded ones field by field.

mod answer_cluster;
mod answer_jobs;
mod answer_nodes;
mod cluster;
mod dispatch;
mod faults;
#[cfg(test)]
mod golden;
mod job;
mod node;
mod node_texts;
mod records;
mod refusal;
mod release;
mod render;
mod reply;
mod request;
mod reservation;
mod reservation_rules;
mod routes;
mod schedule;
mod server;
#[cfg(test)]
mod speed;
mod state;
mod update;
mod wire;

pub use cluster::{Cluster, Settings, StateSave};
pub use dispatch::Clock;
pub use faults::{Fault, Faults};
pub use job::{Job, JobSpec, JobState};
pub use node::{Machine, Node};
pub use refusal::Refusal;
pub use release::{Release, RestVersion};
pub use reservation::{Members, Partition, Reservation};
pub use server::{Options, Slurmrestd};
pub use state::{Base, Flag, State};
pub use update::NodeUpdate;

/// The names in a host list.
fn names(list: &str) -> Result<Vec<String>, Refusal> {
    slurm::hostlist::expand(list).map_err(|_| Refusal::NODE_NAME)
}
