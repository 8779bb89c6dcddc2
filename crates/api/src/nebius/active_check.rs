//! `ActiveCheck`: a job that runs now and then to find out whether a cluster works.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::shared::{NamedVolume, PullPolicy, unconfined};
use crate::common::{
    shared::{LocalObjectReference, null_as_default, yes},
    template::Overlay,
};

/// Desired state of the ActiveCheck.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "slurm.nebius.ai",
    version = "v1alpha1",
    kind = "ActiveCheck",
    plural = "activechecks",
    namespaced,
    status = "ActiveCheckStatus",
    derive = "PartialEq",
    doc = "A Kubernetes Job or Slurm jobs that run by a schedule to find out whether a cluster or its nodes work.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.checkType"),
    printcolumn(name = "Init", type_ = "boolean", json_path = ".spec.runAfterCreation"),
    printcolumn(name = "Suspend", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "K8s Status", type_ = "string", json_path = ".status.k8sJobsStatus.lastJobStatus"),
    printcolumn(name = "Slurm Status", type_ = "string", json_path = ".status.slurmJobsStatus.lastRunStatus"),
    printcolumn(name = "Slurm Submit Time", type_ = "string", json_path = ".status.slurmJobsStatus.lastRunSubmitTime"),
    printcolumn(name = "Slurm ID", type_ = "string", json_path = ".status.slurmJobsStatus.lastRunId"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ActiveCheckSpec {
    /// Name of the check.
    pub name: String,

    /// Name of the SlurmCluster to check.
    pub slurm_cluster_ref_name: String,

    /// Names of `ActiveChecks` that must have succeeded before this one runs for the first time.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,

    /// When the check runs, in cron notation. Defaults to the first minute of a year.
    #[serde(default = "yearly")]
    pub schedule: String,

    /// Whether the schedule is suspended. Defaults to true.
    #[serde(default = "yes")]
    pub suspend: bool,

    /// Whether the check runs once after it was created. Defaults to true.
    #[serde(default = "yes")]
    pub run_after_creation: bool,

    /// Seconds after which a pod of the check is ended. Defaults to 1800.
    #[serde(default = "half_an_hour")]
    pub active_deadline_seconds: i64,

    /// Number of successful Jobs to keep. Defaults to 3.
    #[serde(default = "three")]
    pub successful_jobs_history_limit: i32,

    /// Number of failed Jobs to keep. Defaults to 16.
    #[serde(default = "sixteen")]
    pub failed_jobs_history_limit: i32,

    /// Whether the check is a Kubernetes Job or Slurm jobs. Defaults to k8sJob.
    #[serde(default)]
    pub check_type: CheckType,

    /// The Kubernetes Job, if checkType is k8sJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k8s_job_spec: Option<K8sJobSpec>,

    /// The Slurm jobs, if checkType is slurmJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_job_spec: Option<SlurmJobSpec>,

    /// What happens after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_reactions: Option<Reactions>,

    /// What happens after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reactions: Option<Reactions>,

    /// Name of a `PodTemplate` for the pods of the check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_name_ref: Option<String>,

    /// Labels of the Kubernetes nodes where the pods may run.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Affinity of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Overlay>,

    /// Tolerations of the pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Overlay>,

    /// Whether the pods use the user namespace of their Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,
}

/// What a check runs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum CheckType {
    /// A Kubernetes Job.
    #[default]
    K8sJob,
    /// Slurm jobs.
    SlurmJob,
}

/// A Kubernetes Job.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct K8sJobSpec {
    /// Container that runs the check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_container: Option<CheckContainer>,

    /// Container that runs munged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub munge_container: Option<CheckContainer>,

    /// Name of the `ConfigMap` with the script: key script.sh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_ref_name: Option<String>,
}

/// Slurm jobs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlurmJobSpec {
    /// Container that submits the jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_container: Option<CheckContainer>,

    /// Container that runs munged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub munge_container: Option<CheckContainer>,

    /// Name of the `ConfigMap` with the batch script: key sbatch.sh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sbatch_script_ref_name: Option<String>,

    /// The batch script itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sbatch_script: Option<String>,

    /// Whether a job runs on each worker. Defaults to false: one job.
    #[serde(default)]
    pub each_worker_jobs: bool,

    /// Number of jobs at a time, if one runs on each worker. 0 (default) means all at once.
    #[serde(default)]
    pub max_number_of_jobs: i64,
}

/// A container of a check.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CheckContainer {
    /// Image of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,

    /// When the image is pulled. Defaults to `IfNotPresent`.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,

    /// Secrets for the registry of the image.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// Program to run instead of that of the image.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,

    /// Arguments of the program.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,

    /// Directory that the program starts in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,

    /// Environment variables.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<Overlay>,

    /// Volumes of the pod.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<NamedVolume>,

    /// Where the container mounts them.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<Overlay>,

    /// `AppArmor` profile. Defaults to unconfined.
    #[serde(default = "unconfined")]
    pub app_armor_profile: String,
}

/// What happens after a check.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Reactions {
    /// Drains the Slurm nodes of the jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_slurm_node: Option<DrainSlurmNode>,

    /// Writes a comment to the Slurm nodes of the jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment_slurm_node: Option<CommentSlurmNode>,

    /// Creates a reservation for each Slurm node of the jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_reservation: Option<Reservation>,

    /// Deletes the reservation of each Slurm node of the jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_reservation: Option<Reservation>,
}

/// How Slurm nodes are drained.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DrainSlurmNode {
    /// Prefix of the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_reason_prefix: Option<String>,
}

/// How a comment is written to Slurm nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CommentSlurmNode {
    /// Prefix of the comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment_prefix: Option<String>,
}

/// Reservations of Slurm nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Prefix of the names: the name of the Slurm node follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// Observed state of the ActiveCheck.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ActiveCheckStatus {
    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// State of the last update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_status: Option<String>,

    /// Why the last update is in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// The Kubernetes Jobs, if checkType is k8sJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k8s_jobs_status: Option<K8sJobsStatus>,

    /// The Slurm jobs, if checkType is slurmJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_jobs_status: Option<SlurmJobsStatus>,

    /// Conditions of the ActiveCheck.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// State of the Kubernetes Jobs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct K8sJobsStatus {
    /// When the state of the last Job last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,

    /// When the last Job was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_job_schedule_time: Option<Time>,

    /// When a Job last succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_job_successful_time: Option<Time>,

    /// Name of the last Job.
    pub last_job_name: String,

    /// State of the last Job: Active, Pending, Complete, Failed, Suspended or Unknown.
    pub last_job_status: String,
}

/// State of the Slurm jobs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlurmJobsStatus {
    /// When the state of the last run last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,

    /// Slurm job id of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_id: Option<String>,

    /// Name of the Slurm job of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_name: Option<String>,

    /// State of the last run: `InProgress`, Complete, Failed, Cancelled, Error or Skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_status: Option<String>,

    /// When the jobs of the last run were submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_submit_time: Option<Time>,

    /// Jobs of the last run that failed.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub last_run_fail_jobs_and_reasons: Vec<JobAndReason>,

    /// Jobs of the last run of which it is not known whether they failed.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub last_run_error_jobs_and_reasons: Vec<JobAndReason>,

    /// Jobs of the last run that were cancelled.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub last_run_cancelled_jobs: Vec<String>,
}

/// A Slurm job, and what happened to it.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct JobAndReason {
    /// Slurm job id.
    #[serde(rename = "jobID")]
    pub job_id: String,

    /// What happened to the job.
    pub reason: String,
}

fn yearly() -> String {
    "0 0 1 1 *".into()
}

fn half_an_hour() -> i64 {
    1800
}

fn three() -> i32 {
    3
}

fn sixteen() -> i32 {
    16
}
