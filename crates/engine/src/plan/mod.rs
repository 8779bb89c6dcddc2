//! The plan of a reconcile: plain data that never prints a secret.

mod objects;
mod slurm_write;

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::OwnerReference};
use kube::ResourceExt;

use crate::{
    conditions::NewCondition,
    podset::{Blocker, WorkerMetrics},
};

pub use objects::{
    Desired, FIELD_MANAGER, Fingerprint, FromTemplate, GeneratedSecret, MetadataPatch, ObjectVersion,
    PodConditionPatch, SecretContent, Takeover,
};
pub use slurm_write::{ClusterKey, JobsOnNodes, Needs, ServiceState, SlurmCall, SlurmWrite};

/// Everything that one reconcile will do.
#[derive(Debug, Default)]
pub struct Plan<S> {
    /// The steps of a stage are independent and run concurrently. A stage runs only if all previous steps succeeded.
    pub stages: Vec<Vec<Step>>,
    /// The new status, without conditions.
    pub status: S,
    /// All conditions; one that is not listed is removed.
    pub conditions: Vec<NewCondition>,
    /// Events about problems. They are published when the status changes.
    pub events: Vec<Event>,
    /// Events about what the plan does. They are always published.
    pub action_events: Vec<Event>,
    /// Metrics of workers, for a `NodeSet`.
    pub worker_metrics: Option<Box<WorkerMetrics>>,
    /// Workers that are to be removed and cannot yet, by Slurm node.
    pub waiting: Vec<(String, Blocker)>,
    /// What the next plan needs to know of Slurm beyond its nodes.
    pub needs: Option<Needs>,
    /// When to reconcile again.
    pub next: Next,
}

/// One write.
#[derive(Debug)]
pub enum Step {
    /// Apply a child object.
    Apply(Box<Desired>),
    /// Create a Secret with random or signed content.
    GenerateSecret(Box<GeneratedSecret>),
    /// Replace the owners of a child.
    SetOwners(Box<ObjectVersion>, Vec<OwnerReference>),
    /// Delete a child; the text says why.
    Delete(Box<ObjectVersion>, &'static str),
    /// Create an object. An existing one of the same name is left unchanged.
    Create(Box<FromTemplate>),
    /// Patch labels and annotations of an object.
    PatchMetadata(Box<MetadataPatch>),
    /// Patch conditions of a pod.
    PatchConditions(Box<PodConditionPatch>),
    /// Request a larger volume for a claim.
    GrowClaim(Box<ObjectVersion>, Quantity),
    /// Write to Slurm.
    Slurm(Box<SlurmWrite>),
    /// Add or remove a finalizer of the reconciled object.
    Finalizer {
        name: &'static str,
        /// Whether the finalizer should be present.
        wanted: bool,
    },
    /// Run in order; stop at the first failure.
    Chain(Vec<Step>),
    /// Delete workers, after a last look at Slurm.
    DeleteDrained(Box<DrainedWorkers>),
    /// Make the slurmd of a worker register again.
    Register(Box<RegisterWorker>),
    /// Make slurmctld reread its files, once they are in its pod.
    Reread(Box<RereadFiles>),
    /// Make slurmd or sackd read new keys.
    ReadKeys(Box<ReadKeys>),
}

/// A slurmctld that should reread its files.
#[derive(Debug)]
pub struct RereadFiles {
    pub pod: ObjectVersion,
    /// Where slurmctld runs.
    pub container: &'static str,
    /// The files that it should find, as [`crate::hash::hash_of_sums`] hashes them.
    pub hash: String,
    /// Names the change: slurmctld is asked once for each.
    pub change: String,
}

/// A daemon that should read a key ring.
#[derive(Debug)]
pub struct ReadKeys {
    pub pod: ObjectVersion,
    pub container: &'static str,
    /// The process, which executes itself anew on SIGHUP.
    pub program: &'static str,
    /// Where the kubelet brings the files. If that is not where the daemon reads them, they are copied.
    pub folder: &'static str,
    /// The hash of the key ring.
    pub hash: String,
    /// The annotation that makes the kubelet update the files.
    pub asked: (&'static str, String),
    /// The annotation that says which ring the daemon has read.
    pub read: &'static str,
}

/// A worker whose slurmd should register again, unless steps of jobs run there.
#[derive(Debug)]
pub struct RegisterWorker {
    pub pod: ObjectVersion,
    /// Where slurmd runs.
    pub container: &'static str,
    /// The name of its Slurm node.
    pub node: String,
}

/// Workers to delete. Those whose Slurm node is no longer drained as the plan saw it are left alone.
#[derive(Debug)]
pub struct DrainedWorkers {
    pub cluster: ClusterKey,
    /// By Slurm node.
    pub workers: BTreeMap<String, DrainedWorker>,
}

/// A worker to delete.
#[derive(Debug)]
pub struct DrainedWorker {
    pub state: ServiceState,
    pub delete: Step,
}

impl Step {
    /// The name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Apply(_) => "apply",
            Self::GenerateSecret(_) => "mint",
            Self::SetOwners(..) => "own",
            Self::Delete(..) => "delete",
            Self::Create(_) => "create",
            Self::PatchMetadata(_) => "amend",
            Self::PatchConditions(_) => "mark",
            Self::GrowClaim(..) => "grow_claim",
            Self::Slurm(_) => "slurm",
            Self::Finalizer { .. } => "finalizer",
            Self::Chain(_) => "chain",
            Self::DeleteDrained(_) => "delete_drained",
            Self::Register(_) => "register",
            Self::Reread(_) => "reread",
            Self::ReadKeys(_) => "read_keys",
        }
    }

    /// The steps that it consists of, or the step itself.
    pub fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Chain(steps) => steps.iter().collect(),
            Self::DeleteDrained(drained) => drained.workers.values().flat_map(|worker| worker.delete.parts()).collect(),
            step => vec![step],
        }
    }

    /// A description for users.
    pub fn title(&self) -> String {
        if let Self::Chain(steps) = self {
            return steps.iter().map(Self::title).collect::<Vec<_>>().join(", then ");
        }
        if let Self::DeleteDrained(drained) = self {
            let titles = drained.workers.values().map(|worker| worker.delete.title());
            return titles.collect::<Vec<_>>().join("; ");
        }
        let Title { what, object, why } = self.titled();
        format!("{what} {object}{why}")
    }

    /// The parts of the title. Those of a step that consists of others are empty.
    pub fn titled(&self) -> Title {
        let title = |what: String, object: &str, why: String| Title { what, object: object.to_owned(), why };
        let plain = |what: String, object: &str| title(what, object, String::new());
        match self {
            Self::Apply(desired) => plain(format!("apply {}", desired.resource.kind), &desired.object.name_any()),
            Self::GenerateSecret(generated) => {
                plain("generate the content of Secret".to_owned(), &generated.secret.object.name_any())
            }
            Self::SetOwners(child, _) => plain(format!("set the owners of {}", child.resource.kind), &child.name),
            Self::Delete(object, why) => {
                title(format!("delete {}", object.resource.kind), &object.name, format!(": {why}"))
            }
            Self::Create(object) => plain(format!("create {}", object.resource.kind), object.name()),
            Self::PatchMetadata(patch) => {
                plain(format!("{} of {}", patch.title(), patch.target.resource.kind), &patch.target.name)
            }
            Self::PatchConditions(patch) => plain(format!("{} of Pod", patch.title()), &patch.target.name),
            Self::GrowClaim(claim, size) => {
                title("grow PersistentVolumeClaim".to_owned(), &claim.name, format!(" to {}", size.0))
            }
            Self::Slurm(write) => {
                let Title { what, object, why } = write.call.titled();
                Title { what, object, why: format!("{why} in Slurm") }
            }
            Self::Finalizer { name, wanted: true } => plain("add the finalizer".to_owned(), name),
            Self::Finalizer { name, wanted: false } => plain("remove the finalizer".to_owned(), name),
            Self::Register(register) => plain("ask slurmd to register again in Pod".to_owned(), &register.pod.name),
            Self::Reread(reread) => plain("reread the configuration in Pod".to_owned(), &reread.pod.name),
            Self::ReadKeys(keys) => plain(format!("make {} read its keys in Pod", keys.program), &keys.pod.name),
            Self::Chain(_) | Self::DeleteDrained(_) => Title::default(),
        }
    }
}

/// What a step does, to which object, and why. Steps that differ only in the object can be told of in one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Title {
    pub what: String,
    pub object: String,
    /// Follows the object without a space; empty if nothing more is to be said.
    pub why: String,
}

/// When to reconcile again if nothing triggers it earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// Only when something changes.
    #[default]
    OnChange,
    /// After this delay.
    After(Duration),
}

impl Next {
    /// At a point in time, but at least a second from now, so that a mistake cannot cause a hot loop.
    pub fn at(when: Timestamp, now: Timestamp) -> Self {
        let wait = when.duration_since(now).max(SignedDuration::from_secs(1));
        Self::After(wait.try_into().unwrap_or(Duration::from_secs(1)))
    }
}

/// An event on the reconciled object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether a user should act.
    pub is_warning: bool,
    /// `CamelCase`, from a fixed set.
    pub reason: &'static str,
    /// The message.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_in_the_past_causes_no_hot_loop() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(Next::at(now, now), Next::After(Duration::from_secs(1)));
        assert_eq!(Next::at(now - SignedDuration::from_hours(1), now), Next::After(Duration::from_secs(1)));
        assert_eq!(Next::at(now + SignedDuration::from_mins(5), now), Next::After(Duration::from_mins(5)));
    }
}
