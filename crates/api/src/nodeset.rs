//! `NodeSet`: workers, the nodes that run jobs.

mod drain;
mod update;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::{LocalObjectReference, SecretKeySelector, count, null_as_default, one, yes};
use crate::template::{Overlay, PodTemplate};

pub use drain::{Drain, OnTimeout};
pub use update::{DEFAULT_MAX_UNAVAILABLE, RollingUpdate, ScheduledUpdate, UpdateStrategy, UpdateType};

/// What the user asks for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "NodeSet",
    plural = "nodesets",
    shortname = "nodesets",
    shortname = "nss",
    shortname = "slurmd",
    namespaced,
    status = "NodeSetStatus",
    derive = "PartialEq",
    doc = "A set of like workers of a Slurm cluster: pods with slurmd, each of them a node of Slurm.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "DESIRED", type_ = "integer", json_path = ".status.desired"),
    printcolumn(name = "REPLICAS", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "UPDATED", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(name = "READY", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "STATUS", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "IDLE", type_ = "integer", json_path = ".status.slurmIdle", priority = 1),
    printcolumn(name = "ALLOCATED", type_ = "integer", json_path = ".status.slurmAllocated", priority = 1),
    printcolumn(name = "DOWN", type_ = "integer", json_path = ".status.slurmDown", priority = 1),
    printcolumn(name = "DRAIN", type_ = "integer", json_path = ".status.slurmDrain", priority = 1),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetSpec {
    /// The Controller of the Slurm cluster that the workers join.
    pub controller_ref: LocalObjectReference,

    /// How many workers to run; 1 if not set. Not used when there is one per Kubernetes node.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Whether to run a number of workers (`StatefulSet`, also if not set) or one on every Kubernetes node that fits
    /// (`DaemonSet`). When it changes, the workers of the other mode are drained and removed.
    #[serde(default)]
    pub scaling_mode: ScalingMode,

    /// Fields of the slurmd container, merged over the operator's. The image is needed.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub slurmd: Overlay,

    /// ssh to the workers, for users with a job there. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Ssh>,

    /// Fields of the container that prints slurmd's log.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub logfile: Overlay,

    /// What the workers' pods have beyond what the operator gives them. spec.hostname, followed by the worker's number, is
    /// the name of its Slurm node; without hyphens at its ends it names the Slurm partition and feature of this set.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "PodTemplate::is_empty")]
    pub template: PodTemplate,

    /// Parameters of the Slurm nodes: words of the form Key=Value, for example Weight=10 Features=a100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// A Slurm partition of exactly these workers. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,

    /// Claims that each worker gets for itself, as in a `StatefulSet`. They cannot be changed later.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub volume_claim_templates: Vec<Overlay>,

    /// How workers are replaced when their template changes. One quarter at a time if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,

    /// How long a worker may take to get rid of its jobs before it is removed, and what happens then. As long as its jobs
    /// take if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,

    /// How many old revisions of the template to keep for a way back. 0 if not set.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub revision_history_limit: i32,

    /// What becomes of the workers' claims. They are kept if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<ClaimRetention>,

    /// How many seconds a new worker must be ready before it counts as available. 0 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: Option<i32>,

    /// How many digits the numbers of workers have at least: with 3, the worker 7 is called 007. 0 if not set.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub ordinal_padding: i32,

    /// Whether a worker comes back to the Kubernetes node where it ran before; false if not set. Only with scalingMode
    /// `StatefulSet`.
    #[serde(default)]
    pub pin_to_node: bool,

    /// Whether workers with running jobs resist an eviction, for example by kubectl drain. True if not set.
    #[serde(default = "yes")]
    pub workload_disruption_protection: bool,

    /// Whether Slurm's record of a worker is removed once its Kubernetes node is gone (`NodeNotFound`) or not (Never, also if
    /// not set). Only with scalingMode `DaemonSet`.
    #[serde(default)]
    pub prune_slurm_node_records: PruneRecords,

    /// Whether two workers may share a Kubernetes node. False if not set.
    #[serde(default)]
    pub oversubscribe_node: bool,
}

/// How many workers there are.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScalingMode {
    /// A number of them.
    #[default]
    StatefulSet,
    /// One on every Kubernetes node that fits.
    DaemonSet,
}

impl ScalingMode {
    /// The value of the label that tells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
        }
    }
}

/// When Slurm's record of a worker is removed.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PruneRecords {
    /// Not because a Kubernetes node is gone.
    #[default]
    Never,
    /// Once its Kubernetes node is gone.
    NodeNotFound,
}

/// ssh to workers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Ssh {
    /// Whether workers run sshd. False if not set.
    #[serde(default)]
    pub enabled: bool,

    /// Lines for the end of sshd's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_sshd_config: Option<String>,

    /// The sssd.conf that says where users and groups come from.
    pub sssd_conf_ref: SecretKeySelector,
}

/// A Slurm partition.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Whether there is one; false if not set. It has the name of the set.
    #[serde(default)]
    pub enabled: bool,

    /// Its parameters on one line, for example State=UP MaxTime=UNLIMITED.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[^\n]+$"))]
    pub config: Option<String>,
}

/// What becomes of the claims of workers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetention {
    /// When the `NodeSet` is deleted. Retain if not set.
    #[serde(default)]
    pub when_deleted: Retention,

    /// When their worker is removed because fewer are wanted. Retain if not set.
    #[serde(default)]
    pub when_scaled: Retention,
}

/// What becomes of a claim.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// It stays, with its data.
    #[default]
    Retain,
    /// It goes, with its data.
    Delete,
}

/// What the operator saw and did.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetStatus {
    /// How many workers there should be.
    #[serde(default)]
    pub desired: i32,

    /// How many pods there are.
    #[serde(default)]
    pub replicas: i32,

    /// How many pods have the newest template.
    #[serde(default)]
    pub updated_replicas: i32,

    /// How many pods have the template that all of them had before the running update.
    #[serde(default)]
    pub current_replicas: i32,

    /// How many pods are ready.
    #[serde(default)]
    pub ready_replicas: i32,

    /// How many pods have been ready for minReadySeconds.
    #[serde(default)]
    pub available_replicas: i32,

    /// How many pods are not available.
    #[serde(default)]
    pub unavailable_replicas: i32,

    /// How many workers Slurm knows.
    #[serde(default)]
    pub slurm_registered: i32,

    /// How many workers run no job.
    #[serde(default)]
    pub slurm_idle: i32,

    /// How many workers run jobs, whether or not there is room for more.
    #[serde(default)]
    pub slurm_allocated: i32,

    /// How many workers Slurm counts as down.
    #[serde(default)]
    pub slurm_down: i32,

    /// How many workers take no new jobs.
    #[serde(default)]
    pub slurm_drain: i32,

    /// The generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The hash of the newest template, which pods made from it have in a label.
    pub node_set_hash: String,

    /// Name of the revision that all pods had before the running update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,

    /// Name of the newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,

    /// How often two different templates had the same hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,

    /// With pinToNode: the Kubernetes node of each worker, by its number.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub ordinal_to_node: BTreeMap<String, String>,

    /// The labels of the pods, as a selector.
    pub selector: String,

    /// Ready says whether all workers can run jobs; `ReservationCreated` whether Slurm holds the reservation of a scheduled
    /// update.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl NodeSetSpec {
    /// How many workers to run, where that is not up to the Kubernetes nodes.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        count(self.replicas)
    }

    /// How many digits the numbers of workers have at least.
    #[must_use]
    pub fn ordinal_padding(&self) -> u8 {
        u8::try_from(self.ordinal_padding).unwrap_or(if self.ordinal_padding < 0 { 0 } else { u8::MAX })
    }

    /// How many seconds a worker must be ready before it is available.
    #[must_use]
    pub fn min_ready_seconds(&self) -> u32 {
        self.min_ready_seconds.map_or(0, count)
    }

    /// How many old revisions to keep.
    #[must_use]
    pub fn revision_history_limit(&self) -> u32 {
        count(self.revision_history_limit)
    }

    /// Whether workers come back to their Kubernetes nodes.
    #[must_use]
    pub fn pins_to_node(&self) -> bool {
        self.pin_to_node && self.scaling_mode == ScalingMode::StatefulSet
    }

    /// Whether Slurm's record of a worker goes with its Kubernetes node.
    #[must_use]
    pub fn prunes_records(&self) -> bool {
        self.prune_slurm_node_records == PruneRecords::NodeNotFound && self.scaling_mode == ScalingMode::DaemonSet
    }

    /// What becomes of claims.
    #[must_use]
    pub fn claim_retention(&self) -> ClaimRetention {
        self.persistent_volume_claim_retention_policy.unwrap_or_default()
    }

    /// ssh to workers, if it is on.
    #[must_use]
    pub fn ssh(&self) -> Option<&Ssh> {
        self.ssh.as_ref().filter(|ssh| ssh.enabled)
    }

    /// The partition of these workers, if there is one.
    #[must_use]
    pub fn partition(&self) -> Option<&Partition> {
        self.partition.as_ref().filter(|partition| partition.enabled)
    }

    /// How workers are replaced.
    #[must_use]
    pub fn update_strategy(&self) -> UpdateStrategy {
        self.update_strategy.clone().unwrap_or_default()
    }

    /// How workers get rid of their jobs.
    #[must_use]
    pub fn drain(&self) -> Drain {
        self.drain.clone().unwrap_or_default()
    }
}

impl NodeSet {
    /// What Slurm calls the set: its node set, feature and partition.
    #[must_use]
    pub fn slurm_name(&self) -> String {
        let hostname = self.spec.template.hostname().and_then(|hostname| hostname.split_whitespace().next());
        let name = hostname.map(|hostname| hostname.trim_matches('-')).filter(|name| !name.is_empty());
        name.map_or_else(|| self.name_any(), str::to_owned)
    }
}

#[cfg(test)]
mod tests;
