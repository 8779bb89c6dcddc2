//! Writes to Slurm, and what plans need to know of it.

use std::fmt;

use slurm::{
    hostlist,
    wire::{JobId, NodeUpdate, ReservationSpec},
};

use super::Title;

/// Identifies a Slurm cluster by the custom resource that describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterKey {
    /// The API group of the custom resource.
    pub group: &'static str,
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a plan needs to know of a Slurm cluster. Nodes are always read; this is read only while a plan needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    pub cluster: ClusterKey,
    pub jobs: bool,
    pub reservations: bool,
}

/// A write to Slurm.
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmWrite {
    pub cluster: ClusterKey,
    pub call: SlurmCall,
}

/// A call to Slurm.
#[derive(Clone, Debug, PartialEq)]
pub enum SlurmCall {
    /// Update nodes.
    Update { nodes: Vec<String>, change: Box<NodeUpdate> },
    /// Delete a node record.
    Forget { node: String },
    /// Requeue a job.
    Requeue { job: JobId },
    /// Cancel a job.
    Cancel { job: JobId },
    /// Create or update a reservation.
    Reserve(Box<ReservationSpec>),
    /// Delete a reservation.
    Unreserve { name: String },
}

impl SlurmCall {
    /// A description for users.
    pub(super) fn titled(&self) -> Title {
        let title = |what: &str, object: String| Title { what: what.to_owned(), object, why: String::new() };
        match self {
            Self::Update { nodes, change } => {
                let names = hostlist::text(nodes.iter().map(String::as_str));
                let why = change.drain_reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
                Title { why, ..title(change.verb(), names) }
            }
            Self::Forget { node } => title("delete the node", node.clone()),
            Self::Requeue { job } => title("requeue job", job.to_string()),
            Self::Cancel { job } => title("cancel job", job.to_string()),
            Self::Reserve(reservation) => title("write the reservation", reservation.name().to_owned()),
            Self::Unreserve { name } => title("delete the reservation", name.clone()),
        }
    }
}
