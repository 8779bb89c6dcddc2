//! Writes to Slurm, and what plans need to know of it.

use std::fmt;

use slurm::{
    hostlist,
    wire::{JobId, NodeUpdate, ReservationSpec},
};

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

impl fmt::Display for SlurmCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Update { nodes, change } => {
                let names = hostlist::fold(nodes.iter().map(String::as_str)).unwrap_or_else(|_| nodes.join(","));
                write!(f, "{} {names}", change.verb())?;
                change.drain_reason().map_or(Ok(()), |reason| write!(f, " ({reason})"))
            }
            Self::Forget { node } => write!(f, "delete the node {node}"),
            Self::Requeue { job } => write!(f, "requeue job {job}"),
            Self::Cancel { job } => write!(f, "cancel job {job}"),
            Self::Reserve(reservation) => write!(f, "write the reservation {}", reservation.name()),
            Self::Unreserve { name } => write!(f, "delete the reservation {name}"),
        }
    }
}
