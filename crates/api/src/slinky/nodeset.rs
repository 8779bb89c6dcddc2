//! `NodeSet`: a set of workers, the nodes that run jobs.

mod drain;
mod update;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, Resource, ResourceExt, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{
    shared::{LocalObjectReference, SecretKeySelector, count, null_as_default, one, yes},
    template::{Overlay, PodTemplate},
};

pub use drain::{Drain, OnTimeout};
pub use update::{DEFAULT_MAX_UNAVAILABLE, MaxUnavailable, RollingUpdate, ScheduledUpdate, UpdateStrategy, UpdateType};

/// Desired state of the NodeSet.
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
    doc = "A set of identical workers of a Slurm cluster: pods that run slurmd, each of them a Slurm node.",
    validation = Rule::new("oldSelf.hasValue() || size(self.metadata.name) <= 57")
        .message("the name is too long: with more than 57 characters, not all workers could have a valid hostname")
        .optional_old_self(true),
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
#[x_kube(
    validation = Rule::new("self.controllerRef.name == oldSelf.controllerRef.name")
        .message("controllerRef is immutable: workers that run belong to its cluster. Create another NodeSet for the other one"),
    validation = Rule::new(
        "(has(self.volumeClaimTemplates) ? self.volumeClaimTemplates : []) \
         == (has(oldSelf.volumeClaimTemplates) ? oldSelf.volumeClaimTemplates : [])"
    )
    .message("volumeClaimTemplates are immutable: create another NodeSet with the other claims")
)]
pub struct NodeSetSpec {
    /// Controller of the Slurm cluster that the workers join.
    pub controller_ref: LocalObjectReference,

    /// Number of workers. Defaults to 1. Ignored if scalingMode is `DaemonSet`.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// `StatefulSet` (default) runs a number of workers, `DaemonSet` one on every matching Kubernetes node. After a
    /// change, the workers of the previous mode are drained and removed.
    #[serde(default)]
    pub scaling_mode: ScalingMode,

    /// Fields of the slurmd container, merged over the operator's. The image is required.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub slurmd: Overlay,

    /// SSH access to workers, for users with a running job there. Disabled if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Ssh>,

    /// Fields of the container that prints slurmd's log.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub logfile: Overlay,

    /// Additions to the worker pods. spec.hostname is the prefix of the Slurm node names; the ordinal of the worker is
    /// appended. Without leading and trailing hyphens it is also the name of the Slurm partition and feature of this
    /// set.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "PodTemplate::is_empty")]
    pub template: PodTemplate,

    /// Parameters of the Slurm nodes in the form Key=Value, for example Weight=10 Features=a100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// Generic resources of Slurm for limits of the slurmd container, by the name of the Kubernetes resource, for example
    /// nvidia.com/mig-1g.10gb: gpu:1g.10gb. nvidia.com/gpu and amd.com/gpu are gpu if not set; none stands for no generic
    /// resource. Ignored if extraConf sets Gres.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub gres: BTreeMap<String, String>,

    /// Slurm partition that contains exactly these workers. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,

    /// Claims to create for each worker, as in a `StatefulSet`. Immutable.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub volume_claim_templates: Vec<Overlay>,

    /// How workers are replaced when their template changes. Defaults to a rolling update of 25% at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,

    /// How long to wait for the jobs of a worker before it is removed, and what to do with jobs that are still running
    /// then. Waits without limit if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,

    /// Number of old revisions of the template to keep for rollback. Defaults to 0.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub revision_history_limit: i32,

    /// Whether the workers' claims are kept or deleted. Kept if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<ClaimRetention>,

    /// Seconds that a new worker must be ready before it counts as available. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: Option<i32>,

    /// Minimum number of digits of worker ordinals: with 3, ordinal 7 is written 007. Defaults to 0.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub ordinal_padding: i32,

    /// Whether a recreated worker returns to the Kubernetes node where it ran before. Defaults to false. Used only if
    /// scalingMode is `StatefulSet`.
    #[serde(default)]
    pub pin_to_node: bool,

    /// Whether workers with running jobs are protected from eviction, for example by kubectl drain. Defaults to true.
    #[serde(default = "yes")]
    pub workload_disruption_protection: bool,

    /// When to remove the Slurm node record of a worker: `NodeNotFound` (once its Kubernetes node is deleted) or Never
    /// (default). Used only if scalingMode is `DaemonSet`.
    #[serde(default)]
    pub prune_slurm_node_records: PruneRecords,

    /// Whether several workers may run on one Kubernetes node. Defaults to false.
    #[serde(default)]
    pub oversubscribe_node: bool,
}

/// How the number of workers is determined.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScalingMode {
    /// A fixed number of workers.
    #[default]
    StatefulSet,
    /// One worker on every matching Kubernetes node.
    DaemonSet,
}

impl ScalingMode {
    /// The value of the scaling mode label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
        }
    }
}

/// When the Slurm node record of a worker is removed.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PruneRecords {
    /// Records are kept when a Kubernetes node is deleted.
    #[default]
    Never,
    /// Once the worker's Kubernetes node is deleted.
    NodeNotFound,
}

/// SSH access to workers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Ssh {
    /// Whether workers run sshd. Defaults to false.
    #[serde(default)]
    pub enabled: bool,

    /// Lines appended to `sshd_config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_sshd_config: Option<String>,

    /// The sssd.conf that configures where users and groups come from.
    pub sssd_conf_ref: SecretKeySelector,
}

/// A Slurm partition.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Whether to create the partition. Defaults to false. It is named after the set.
    #[serde(default)]
    pub enabled: bool,

    /// Partition parameters on one line, for example State=UP MaxTime=UNLIMITED.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[^\n]+$"))]
    pub config: Option<String>,
}

/// Whether the claims of workers are kept or deleted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetention {
    /// When the NodeSet is deleted. Defaults to Retain.
    #[serde(default)]
    pub when_deleted: Retention,

    /// When a worker is removed by scaling in. Defaults to Retain.
    #[serde(default)]
    pub when_scaled: Retention,
}

/// Whether a claim is kept or deleted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// The claim is kept with its data.
    #[default]
    Retain,
    /// The claim is deleted with its data.
    Delete,
}

/// Observed state of the NodeSet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetStatus {
    /// Desired number of workers.
    #[serde(default)]
    pub desired: i32,

    /// Number of pods.
    #[serde(default)]
    pub replicas: i32,

    /// Number of pods with the latest template.
    #[serde(default)]
    pub updated_replicas: i32,

    /// Number of pods with the template from before the current update.
    #[serde(default)]
    pub current_replicas: i32,

    /// Number of ready pods.
    #[serde(default)]
    pub ready_replicas: i32,

    /// Number of pods that have been ready for minReadySeconds.
    #[serde(default)]
    pub available_replicas: i32,

    /// Number of pods that are not available.
    #[serde(default)]
    pub unavailable_replicas: i32,

    /// Number of workers registered in Slurm.
    #[serde(default)]
    pub slurm_registered: i32,

    /// Number of workers without running jobs.
    #[serde(default)]
    pub slurm_idle: i32,

    /// Number of workers with running jobs, fully or partly allocated.
    #[serde(default)]
    pub slurm_allocated: i32,

    /// Number of workers that Slurm reports as down.
    #[serde(default)]
    pub slurm_down: i32,

    /// Number of workers that accept no new jobs.
    #[serde(default)]
    pub slurm_drain: i32,

    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Hash of the latest template. Pods created from it carry it in a label.
    pub node_set_hash: String,

    /// Name of the revision from before the current update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,

    /// Name of the latest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,

    /// Number of hash collisions between different templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,

    /// Kubernetes node of each worker, by ordinal. Used with pinToNode.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub ordinal_to_node: BTreeMap<String, String>,

    /// Label selector of the pods.
    pub selector: String,

    /// Conditions of the NodeSet. Ready: all workers can run jobs. `ReservationCreated`: the Slurm reservation for a
    /// scheduled update exists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl NodeSetSpec {
    /// Number of workers to run in scaling mode `StatefulSet`.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        count(self.replicas)
    }

    /// Minimum number of digits of worker ordinals.
    #[must_use]
    pub fn ordinal_padding(&self) -> u8 {
        u8::try_from(self.ordinal_padding).unwrap_or(if self.ordinal_padding < 0 { 0 } else { u8::MAX })
    }

    /// Seconds that a worker must be ready before it counts as available.
    #[must_use]
    pub fn min_ready_seconds(&self) -> u32 {
        self.min_ready_seconds.map_or(0, count)
    }

    /// Number of old revisions to keep.
    #[must_use]
    pub fn revision_history_limit(&self) -> u32 {
        count(self.revision_history_limit)
    }

    /// Whether workers are pinned to their Kubernetes nodes.
    #[must_use]
    pub fn pins_to_node(&self) -> bool {
        self.pin_to_node && self.scaling_mode == ScalingMode::StatefulSet
    }

    /// Whether the Slurm node record of a worker is removed with its Kubernetes node.
    #[must_use]
    pub fn prunes_records(&self) -> bool {
        self.prune_slurm_node_records == PruneRecords::NodeNotFound && self.scaling_mode == ScalingMode::DaemonSet
    }

    #[must_use]
    pub fn claim_retention(&self) -> ClaimRetention {
        self.persistent_volume_claim_retention_policy.unwrap_or_default()
    }

    /// SSH access to workers, if enabled.
    #[must_use]
    pub fn ssh(&self) -> Option<&Ssh> {
        self.ssh.as_ref().filter(|ssh| ssh.enabled)
    }

    /// The partition of these workers, if enabled.
    #[must_use]
    pub fn partition(&self) -> Option<&Partition> {
        self.partition.as_ref().filter(|partition| partition.enabled)
    }

    #[must_use]
    pub fn update_strategy(&self) -> UpdateStrategy {
        self.update_strategy.clone().unwrap_or_default()
    }

    #[must_use]
    pub fn drain(&self) -> Drain {
        self.drain.clone().unwrap_or_default()
    }
}

impl NodeSet {
    /// Name of the set's Slurm node set, feature and partition.
    #[must_use]
    pub fn slurm_name(&self) -> String {
        slurm_name(&self.spec.template, self)
    }
}

fn slurm_name(template: &PodTemplate, set: &impl ResourceExt) -> String {
    let hostname = template.hostname().and_then(|hostname| hostname.split_whitespace().next());
    let name = hostname.map(|hostname| hostname.trim_matches('-')).filter(|name| !name.is_empty());
    name.map_or_else(|| set.name_any(), str::to_owned)
}

/// The fields of a NodeSet that other objects depend on. Nothing else is decoded, so that an invalid field harms only its
/// own set.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = NodeSet)]
pub struct NodeSetBrief {
    pub metadata: ObjectMeta,
    pub spec: NodeSetBriefSpec,
}

/// Fields of the spec of a [`NodeSetBrief`].
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetBriefSpec {
    #[serde(default)]
    pub controller_ref: LocalObjectReference,
    #[serde(default)]
    pub template: PodTemplate,
    #[serde(default, deserialize_with = "null_as_default")]
    pub slurmd: Overlay,
    #[serde(default, deserialize_with = "null_as_default")]
    pub gres: BTreeMap<String, String>,
    partition: Option<Partition>,
    replicas: Option<i32>,
    #[serde(default)]
    scaling_mode: String,
}

impl NodeSetBrief {
    /// Name of the set's Slurm node set, feature and partition.
    #[must_use]
    pub fn slurm_name(&self) -> String {
        slurm_name(&self.spec.template, self)
    }

    /// The partition of these workers, if enabled.
    #[must_use]
    pub fn partition(&self) -> Option<&Partition> {
        self.spec.partition.as_ref().filter(|partition| partition.enabled)
    }

    /// Additions to the worker pods.
    #[must_use]
    pub fn template(&self) -> &PodTemplate {
        &self.spec.template
    }

    /// The image of slurmd.
    #[must_use]
    pub fn image(&self) -> Option<&str> {
        self.spec.slurmd.text("image")
    }

    /// The prefix and the number of Slurm node names, if workers have ordinals. Padding is not considered.
    #[must_use]
    pub fn node_names(&self) -> Option<(String, u32)> {
        let prefix = || self.spec.template.hostname().map_or_else(|| format!("{}-", self.name_any()), str::to_owned);
        let is_numbered = self.spec.scaling_mode != ScalingMode::DaemonSet.as_str();
        is_numbered.then(|| (prefix(), self.spec.replicas.map_or(1, count)))
    }
}

#[cfg(test)]
mod tests;
