//! The output of a plan.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    facts::{SlurmCounts, Worker},
    metrics::WorkerMetrics,
    removal_safety::Blocker,
};
use crate::{conditions::NewCondition, plan::Event};

/// Everything that one pass decides.
#[derive(Debug, Default)]
pub struct Decision {
    /// Independent actions: they may run concurrently, and a failure does not stop the others.
    pub actions: Vec<WorkerAction>,
    pub counts: Counts,
    /// For the status: the Kubernetes node of each pinned worker, by ordinal.
    pub pinned: BTreeMap<u32, String>,
    /// For the status: the revision that all workers had before the current update.
    pub current: Option<String>,
    /// The finalizers that the set must have: added before the actions, removed after them.
    pub finalizers: Finalizers,
    pub conditions: Vec<NewCondition>,
    pub events: Vec<Event>,
    pub worker_metrics: WorkerMetrics,
    /// When to plan again if nothing changes before.
    pub next: Option<Timestamp>,
    /// Whether the next plan needs the running jobs.
    pub needs_jobs: bool,
    /// Whether the next plan needs the reservations.
    pub needs_reservations: bool,
    /// Workers that are to be removed and cannot yet, by Slurm node.
    pub blockers: Vec<(String, Blocker)>,
}

/// Which finalizers the set needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finalizers {
    /// Whether its reservation exists in Slurm or is to be created. `None` if unknown: leave the finalizer as it is.
    pub reservation: Option<bool>,
    /// Whether its workers must be drained before it is deleted.
    pub drain: bool,
}

/// Worker counts for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub desired: u32,
    /// All pods, also terminating ones.
    pub replicas: u32,
    /// Pods with the newest revision.
    pub updated: u32,
    /// Pods with the revision before the current update.
    pub current: u32,
    pub ready: u32,
    /// Pods that have been ready for `minReadySeconds`.
    pub available: u32,
    /// Desired workers that are not available.
    pub unavailable: u32,
    pub slurm: SlurmCounts,
}

/// One change in Kubernetes or Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerAction {
    /// Create a worker.
    Create(Box<Identity>),
    /// Delete a worker's pod, conditioned on its UID and resourceVersion.
    Delete(Box<Removal>),
    /// Change labels and annotations of a pod; `None` removes one.
    Patch {
        pod: PodKey,
        labels: BTreeMap<&'static str, Option<String>>,
        annotations: BTreeMap<&'static str, Option<String>>,
    },
    /// Change the given conditions of a pod, and no others.
    Conditions {
        pod: PodKey,
        /// Conditions to set to True: type and message.
        set: Vec<(String, String)>,
        /// Types of conditions to remove.
        remove: Vec<String>,
    },
    /// Drain Slurm nodes, with one call for all of them.
    Drain {
        nodes: Vec<String>,
        /// The complete reason, with our prefix.
        reason: String,
    },
    /// Undrain Slurm nodes, with one call for all of them.
    Undrain { nodes: Vec<String> },
    /// Resume Slurm nodes that are down, with one call for all of them.
    Resume { nodes: Vec<String> },
    /// Update comment, features and topology of a Slurm node; `None` leaves a field as it is.
    Describe(Box<Description>),
    /// Delete a node from Slurm. If it is refused, it is tried again.
    Forget { node: String },
    /// Become the owner of a pod that has none, conditioned on its UID and resourceVersion.
    Adopt { pod: PodKey, resource_version: String },
    /// Make the slurmd of a worker register again.
    Register { pod: PodKey, node: String },
    /// Requeue a job that runs on this Slurm node.
    Requeue { job: u32, node: String },
    /// Cancel a job that runs on this Slurm node.
    Kill { job: u32, node: String },
    /// Create a claim that a pod waits for.
    CreateClaim(ClaimUse),
    /// Change the owner references of a claim. Only references to the set and its workers are touched.
    OwnClaim {
        claim: String,
        /// Whether the set becomes an owner.
        by_set: bool,
        /// UIDs of owners to remove.
        drop: Vec<String>,
    },
    /// Create or update the maintenance reservation.
    Reserve(Box<Booking>),
    /// Delete the maintenance reservation.
    Unreserve { reservation: String },
}

/// Identifies a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodKey {
    pub name: String,
    pub uid: String,
}

impl PodKey {
    pub(super) fn of(worker: &Worker) -> Self {
        Self { name: worker.name.clone(), uid: worker.uid.clone() }
    }
}

/// The part of a pod that is specific to one worker; the rest is the template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    /// Also the name of the Slurm node, unless a numbered worker uses the host network.
    pub hostname: String,
    pub ordinal: Option<u32>,
    /// The Kubernetes node where it must run, set as required node affinity.
    pub node: Option<String>,
    /// Labels specific to this worker.
    pub labels: BTreeMap<&'static str, String>,
    /// Annotations copied from its Kubernetes node.
    pub annotations: BTreeMap<&'static str, String>,
    /// Missing claims are created before the pod.
    pub claims: Vec<ClaimUse>,
    /// Whether to delete the Slurm node of its predecessor first. If Slurm refuses, or the node has changed since, the worker is
    /// created by a later plan.
    pub forget: bool,
}

/// A claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUse {
    /// The volume name, which is also the name of the claim template.
    pub volume: String,
    pub claim: String,
    pub is_missing: bool,
    /// Whether the set owns the claim when it is created.
    pub by_set: bool,
}

/// A pod to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// For logs and events.
    pub why: Cause,
    /// Names of claims to delete with the pod: first make the pod their only owner among the set and its workers.
    pub claims: Vec<String>,
    /// The Slurm node, if the pod may be deleted only because it is drained.
    pub drained: Option<String>,
}

/// Why a worker is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its pod has terminated.
    Finished,
    /// The number of replicas was reduced.
    ScaleIn,
    /// It is outdated.
    Update,
    /// The scaling mode of the set has changed.
    Mode,
    /// Its Kubernetes node does not match, or no longer matches.
    Misplaced,
    /// Its Kubernetes node is gone.
    Vanished,
    /// Another worker is on its Kubernetes node.
    Duplicate,
    /// Its hostname has changed.
    Renamed,
    /// The set is being deleted.
    Deleted,
}

impl Cause {
    /// For messages to users.
    pub fn text(self) -> &'static str {
        match self {
            Self::Finished => "its pod has terminated",
            Self::ScaleIn => "scale-in",
            Self::Update => "it is outdated",
            Self::Mode => "the scaling mode has changed",
            Self::Misplaced => "its Kubernetes node does not match",
            Self::Vanished => "its Kubernetes node is gone",
            Self::Duplicate => "another worker is on its Kubernetes node",
            Self::Renamed => "its hostname has changed",
            Self::Deleted => "the set is being deleted",
        }
    }
}

/// An update of a Slurm node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    pub node: String,
    pub comment: Option<String>,
    /// Available and active features.
    pub features: Option<(Vec<String>, Vec<String>)>,
    pub topology: Option<String>,
}

/// A maintenance reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    pub name: String,
    pub nodes: Vec<String>,
    /// Start and duration in minutes; `None` if they must not change any more.
    pub time: Option<(Timestamp, u32)>,
    pub flags: Vec<String>,
}
