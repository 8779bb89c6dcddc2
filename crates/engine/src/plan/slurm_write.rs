//! Writes to Slurm, and what plans need to know of it.

use std::{collections::BTreeMap, fmt};

use slurm::{
    hostlist,
    states::NodeStates,
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

/// Whether a Slurm node is in service, and why not, as a plan saw it. Slurm has no preconditions: a write compares this
/// with the node just before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceState {
    pub reason: String,
    pub is_drain: bool,
    pub is_down: bool,
}

impl ServiceState {
    pub fn of(reason: &str, states: &NodeStates) -> Self {
        Self { reason: reason.to_owned(), is_drain: states.is_drain(), is_down: states.is_down() }
    }

    /// Whether a node is still like this.
    pub fn is(&self, reason: &str, states: &NodeStates) -> bool {
        self.reason == reason && self.is_drain == states.is_drain() && self.is_down == states.is_down()
    }
}

/// Jobs to end, and where the plan saw them. A job that has left its node since is left alone, and so are all jobs of a node
/// that is no longer as the plan saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobsOnNodes {
    pub jobs: BTreeMap<JobId, String>,
    pub nodes: BTreeMap<String, ServiceState>,
}

impl JobsOnNodes {
    fn ids(&self) -> String {
        let ids: Vec<String> = self.jobs.keys().map(ToString::to_string).collect();
        ids.join(", ")
    }
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
    /// Change the state of nodes: drain, undrain or resume. Nodes that are no longer as the plan saw them are left alone.
    SetState { nodes: BTreeMap<String, ServiceState>, change: Box<NodeUpdate> },
    /// Change other fields of a node.
    Update { node: String, change: Box<NodeUpdate> },
    /// Delete a node record, unless the node is no longer as the plan saw it, or a job names it.
    Forget { node: String, state: ServiceState },
    /// Requeue jobs.
    Requeue(JobsOnNodes),
    /// Cancel jobs.
    Cancel(JobsOnNodes),
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
            Self::SetState { nodes, change } => {
                let names = hostlist::text(nodes.keys().map(String::as_str));
                let why = change.drain_reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
                Title { why, ..title(change.verb(), names) }
            }
            Self::Update { node, change } => title(change.verb(), node.clone()),
            Self::Forget { node, .. } => title("delete the node", node.clone()),
            Self::Requeue(jobs) => title("requeue job", jobs.ids()),
            Self::Cancel(jobs) => title("cancel job", jobs.ids()),
            Self::Reserve(reservation) => title("write the reservation", reservation.name().to_owned()),
            Self::Unreserve { name } => title("delete the reservation", name.clone()),
        }
    }
}
