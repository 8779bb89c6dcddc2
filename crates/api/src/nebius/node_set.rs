//! `NodeSet`: a set of workers, the nodes that run jobs.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::shared::{
    CgroupVersion, Image, IntOrText, ProcMount, Quantity, Resources, SssdOptions, shared_memory, unconfined,
};
use crate::common::{
    shared::{LocalObjectReference, null_as_default, one, yes},
    template::Overlay,
};

/// Desired state of the NodeSet.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "slurm.nebius.ai",
    version = "v1alpha1",
    kind = "NodeSet",
    plural = "nodesets",
    namespaced,
    status = "NodeSetStatus",
    derive = "PartialEq",
    doc = "A set of identical workers of a SlurmCluster: pods that run slurmd, each of them a Slurm node.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Ephemeral", type_ = "boolean", json_path = ".spec.ephemeralNodes")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "!has(self.maxUnavailable) || self.maxUnavailable == null \
         || (string(self.maxUnavailable).matches('^[1-9][0-9]{0,8}%$') \
         ? int(string(self.maxUnavailable).find('^[0-9]+')) * self.replicas / 100 <= 500 \
         : string(self.maxUnavailable).matches('^([1-9][0-9]?|[1-4][0-9][0-9]|500)$'))"
    )
    .message("maxUnavailable must be a number from 1 to 500, or a percentage like 20% of at most 500 workers")
)]
pub struct NodeSetSpec {
    /// Name of the SlurmCluster that the workers join. If not set, the annotation
    /// slurm.nebius.ai/parental-cluster-ref has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,

    /// Number of workers. Defaults to 1.
    #[serde(default = "one")]
    pub replicas: i32,

    /// Maximum number of workers that an update may make unavailable: a number, or a percentage like 20%. The default
    /// depends on crVersion of the SlurmCluster: 20% before version 2, otherwise 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrText>,

    /// How workers are replaced when their template changes: rollingUpdate (default) or slurmAwareRollingUpdate. Either
    /// way they are drained first.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,

    /// slurmd.
    pub slurmd: Slurmd,

    /// munged, which signs what Slurm's daemons send.
    pub munge: Sidecar,

    /// SSSD, where users and groups come from. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd: Option<Sidecar>,

    #[serde(flatten)]
    pub sssd_options: SssdOptions,

    /// Parameters of the Slurm nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_config: Option<NodeConfig>,

    /// GPUs of the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,

    /// Docker in jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docker: Option<Docker>,

    /// Place of the workers in the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,

    /// Whether workers run only while Slurm needs them. Defaults to false.
    #[serde(default)]
    pub ephemeral_nodes: bool,

    /// Number of workers that run at first, if they are ephemeral. Defaults to 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub initial_number_ephemeral_nodes: i32,

    /// Seconds that an ephemeral worker waits until it is in topology.conf. Defaults to 180.
    #[serde(default = "three_minutes")]
    #[schemars(range(min = 60))]
    pub ephemeral_topology_wait_timeout: i32,

    /// Upper limit of a random delay before a worker starts, in seconds. Defaults to 0.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub worker_init_random_delay_seconds: i32,

    /// Whether the pods use the user namespace of their Kubernetes node. Defaults to false: each has one of its own.
    #[serde(default)]
    pub enable_host_user_namespace: bool,

    /// Name of the `ConfigMap` with supervisord.conf, instead of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref_supervisord: Option<String>,

    /// Name of the `ConfigMap` with `sshd_config`, instead of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref_sshd: Option<String>,

    /// Secrets for the registries of the images.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// Containers that run before those of the operator.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub custom_init_containers: Vec<Overlay>,

    /// Annotations of the worker pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub worker_annotations: BTreeMap<String, String>,

    /// Labels of the Kubernetes nodes where workers may run.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Affinity of the worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Overlay>,

    /// Tolerations of the worker pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Overlay>,

    /// Priority class of the worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
}

/// How workers are replaced when their template changes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum UpdateStrategy {
    /// Some at a time.
    #[default]
    RollingUpdate,
    /// Some at a time, after their jobs.
    SlurmAwareRollingUpdate,
}

/// slurmd.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Slurmd {
    #[serde(flatten)]
    pub container: Sidecar,

    /// Additional environment variables.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub custom_env: Vec<Overlay>,

    /// Port of slurmd. Defaults to 6818.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,

    /// Volumes of the workers.
    pub volumes: WorkerVolumes,

    /// Version of the control groups on the Kubernetes nodes. That of the SlurmCluster if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_version: Option<CgroupVersion>,
}

/// A container of worker pods.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Sidecar {
    /// Image of the container.
    pub image: Image,

    /// Requests of the container and, except for the CPU, its limits.
    pub resources: Resources,

    /// Liveness probe, instead of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Overlay>,

    /// Readiness probe, instead of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Overlay>,

    /// What the container may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<Security>,
}

/// What a container may do.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Security {
    /// Content of limits.conf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits_config: Option<String>,

    /// `AppArmor` profile. Defaults to unconfined.
    #[serde(default = "unconfined")]
    pub app_armor_profile: String,

    /// Which parts of /proc the container sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proc_mount: Option<ProcMount>,
}

/// Volumes of workers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkerVolumes {
    /// Volume for the state of slurmd, as in a pod.
    pub spool: Overlay,

    /// Volume with the root file system that jobs share (the jail), as in a pod.
    pub jail: Overlay,

    /// Volumes that jobs see below the jail.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub jail_sub_mounts: Vec<VolumeMount>,

    /// Volumes that only the containers of the pod see.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub custom_volume_mounts: Vec<VolumeMount>,

    /// Size of /dev/shm. Defaults to 64Gi.
    #[serde(default = "shared_memory")]
    pub shared_memory_size: Quantity,

    /// Whether the claims of workers are kept or deleted. Deleted if not set.
    #[serde(default)]
    pub persistent_volume_claim_retention_policy: ClaimRetention,
}

/// A volume, and where it is mounted. Exactly one of volumeSource and volumeClaimTemplateSpec must be set.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// Name of the volume in the pod.
    pub name: String,

    /// Path of the mount.
    pub mount_path: String,

    /// Path within the volume. Its root if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,

    /// Whether it is mounted read-only. It is not if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,

    /// The volume, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_source: Option<Overlay>,

    /// Claim to create for each worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_template_spec: Option<Overlay>,
}

/// Whether the claims of workers are kept or deleted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRetention {
    /// When the NodeSet is deleted. Defaults to Delete.
    pub when_deleted: Retention,

    /// When a worker is removed by scaling in. Defaults to Delete.
    pub when_scaled: Retention,
}

/// Whether a claim is kept or deleted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// The claim is kept with its data.
    Retain,
    /// The claim is deleted with its data.
    #[default]
    Delete,
}

/// Parameters of Slurm nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeConfig {
    /// Features of the Slurm nodes.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,

    /// Whether Slurm may start ephemeral workers by itself. Defaults to true.
    #[serde(default = "yes")]
    pub auto_resume: bool,

    /// Parameters for the `NodeName` line of slurm.conf in the form Key=Value.
    #[serde(default, rename = "static")]
    pub static_: String,

    /// Text for the field Extra of each Slurm node.
    #[serde(default)]
    pub dynamic: String,

    /// Lines for gres.conf, without `NodeName`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub gres_config: Vec<String>,
}

/// GPUs of workers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Whether the workers have GPUs. Defaults to false.
    #[serde(default)]
    pub enabled: bool,

    /// Options for GPUs of NVIDIA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvidia: Option<Nvidia>,
}

/// Options for GPUs of NVIDIA.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Nvidia {
    /// Whether workers use `GDRCopy`. Defaults to false.
    #[serde(default)]
    pub gdr_copy_enabled: bool,
}

/// Docker in jobs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Docker {
    /// Whether jobs can use Docker. Defaults to true.
    #[serde(default = "yes")]
    pub enabled: bool,
}

/// Place of workers in the network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Name of the fabric that connects the workers. Defaults to root.
    #[serde(default = "root")]
    pub fabric: String,
}

/// Observed state of the NodeSet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetStatus {
    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Phase of the NodeSet: Pending, Configuring, Provisioning, Ready, Degraded or Terminating.
    #[serde(default = "pending")]
    pub phase: String,

    /// Number of ready workers.
    pub replicas: i32,

    /// Label selector of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,

    /// Conditions of the NodeSet. `PodsReady`: all workers are ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

fn three_minutes() -> i32 {
    180
}

fn root() -> String {
    "root".into()
}

fn pending() -> String {
    "Pending".into()
}
