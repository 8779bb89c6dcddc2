//! What was decided.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::facts::SlurmCounts;
use crate::machine::{Event, NewCondition, WorkerMetrics};

/// Everything that follows from the facts.
#[derive(Debug, Default)]
pub struct Decision {
    /// What to do. No action depends on another one: all may run at the same time, and one that fails stops none.
    pub actions: Vec<WorkerAction>,
    /// Numbers for the status.
    pub counts: Counts,
    /// For the status: the Kubernetes node of each worker that is bound to one.
    pub pinned: BTreeMap<u32, String>,
    /// For the status: the template that all workers had before the running update.
    pub current: Option<String>,
    /// Which finalizers the set must have: added before the actions, taken away after them.
    pub finalizers: Finalizers,
    /// The conditions.
    pub conditions: Vec<NewCondition>,
    /// What a human wants to see in the events.
    pub events: Vec<Event>,
    /// What is counted.
    pub worker_metrics: WorkerMetrics,
    /// When to look again, if nothing happens before.
    pub next: Option<Timestamp>,
    /// Whether the next look at Slurm should include the running jobs.
    pub needs_jobs: bool,
}

/// Why the set must not vanish yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finalizers {
    /// Slurm holds, or will hold, its reservation. `None` if nobody knows: leave it as it is.
    pub reservation: Option<bool>,
    /// Its workers are to be drained before it goes.
    pub drain: bool,
}

/// Numbers for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many workers there should be.
    pub desired: u32,
    /// How many pods there are.
    pub replicas: u32,
    /// How many of them have the newest template.
    pub updated: u32,
    /// How many have the template of before the running update.
    pub current: u32,
    /// How many are ready.
    pub ready: u32,
    /// How many are ready for long enough.
    pub available: u32,
    /// How many are wanted and not available.
    pub unavailable: u32,
    /// What Slurm says.
    pub slurm: SlurmCounts,
}

/// One change of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerAction {
    /// Make a worker.
    Create(Box<Identity>),
    /// Delete a worker's pod, if it is still exactly this one.
    Delete(Box<Removal>),
    /// Change labels and annotations of a pod; `None` removes one.
    Patch {
        /// The pod.
        pod: PodKey,
        /// Its labels.
        labels: BTreeMap<&'static str, Option<String>>,
        /// Its annotations.
        annotations: BTreeMap<&'static str, Option<String>>,
    },
    /// Change conditions of a pod: those named here, and no others.
    Conditions {
        /// The pod.
        pod: PodKey,
        /// These are true: type and message.
        set: Vec<(String, String)>,
        /// These go.
        remove: Vec<String>,
    },
    /// Let no new jobs start on Slurm nodes. One call for all of them.
    Drain {
        /// The nodes.
        nodes: Vec<String>,
        /// The whole reason, as it is to stand there.
        reason: String,
    },
    /// Lift the drain of Slurm nodes. One call for all of them.
    Undrain {
        /// The nodes.
        nodes: Vec<String>,
    },
    /// Bring Slurm nodes back that are down. One call for all of them.
    Resume {
        /// The nodes.
        nodes: Vec<String>,
    },
    /// Tell Slurm what a node is; what is `None` stays.
    Describe(Box<Description>),
    /// Delete Slurm's record of a node. A refusal is no failure: it is tried again.
    Forget {
        /// The node.
        node: String,
    },
    /// Put a job back into the queue.
    Requeue {
        /// The job.
        job: u32,
    },
    /// End a job.
    Kill {
        /// The job.
        job: u32,
    },
    /// Change who owns a claim: of the owners that are the set or one of its workers, only this one remains. Other
    /// owners stay.
    OwnClaim {
        /// The claim.
        claim: String,
        /// Which one of that name.
        uid: String,
        /// Whether the set owns it.
        by_set: bool,
        /// UIDs of owners to take away.
        drop: Vec<String>,
    },
    /// Make the maintenance reservation, or change it.
    Reserve(Box<Booking>),
    /// Delete the maintenance reservation.
    Unreserve {
        /// Its name.
        reservation: String,
    },
}

/// Which pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodKey {
    /// What it is called.
    pub name: String,
    /// Which one of that name.
    pub uid: String,
}

/// What is particular to one worker; the rest is the template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The name of the pod.
    pub name: String,
    /// Its hostname, which is the name of its Slurm node unless the pod shares its Kubernetes node's network.
    pub hostname: String,
    /// Its number.
    pub ordinal: Option<u32>,
    /// The only Kubernetes node where it may run, as required node affinity.
    pub node: Option<String>,
    /// Labels that no other worker has.
    pub labels: BTreeMap<&'static str, String>,
    /// Annotations from its Kubernetes node.
    pub annotations: BTreeMap<&'static str, String>,
    /// Its claims. Those that are missing are made first.
    pub claims: Vec<ClaimUse>,
    /// Whether to delete Slurm's record of its predecessor first. If Slurm refuses, the worker is made all the same.
    pub forget: bool,
}

/// A claim in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUse {
    /// The volume, which has the name of the claim's template.
    pub volume: String,
    /// The claim.
    pub claim: String,
    /// Whether it must be made.
    pub is_missing: bool,
    /// Whether the set owns it, when it is made.
    pub by_set: bool,
}

/// A pod to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// What it is called.
    pub name: String,
    /// Which one of that name.
    pub uid: String,
    /// In which state.
    pub resource_version: String,
    /// Why, for logs.
    pub why: Cause,
    /// Claims that go with it: before, make the pod their only owner among the set and its workers.
    pub claims: Vec<(String, String)>,
}

/// Why a worker goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its pod has ended.
    Finished,
    /// Fewer are wanted.
    ScaleIn,
    /// Its template is old.
    Update,
    /// The set scales in another way now.
    Mode,
    /// Its Kubernetes node is not, or no longer, one to run on.
    Misplaced,
    /// Its Kubernetes node is gone.
    Vanished,
    /// There is another one on its Kubernetes node.
    Duplicate,
    /// It must have another hostname.
    Renamed,
    /// The whole set goes.
    Deleted,
}

/// What to tell Slurm of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The node.
    pub node: String,
    /// Its comment.
    pub comment: Option<String>,
    /// The features it can have, and those it has.
    pub features: Option<(Vec<String>, Vec<String>)>,
    /// Its place in the topology.
    pub topology: Option<String>,
}

/// A maintenance reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// When it starts and how many minutes it lasts; `None` where that must not change any more.
    pub time: Option<(Timestamp, u32)>,
    /// All its flags.
    pub flags: Vec<String>,
}
