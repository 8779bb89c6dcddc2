//! The daemons of a SlurmCluster, apart from accounting.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::accounting::Accounting;
use crate::{
    common::{shared::null_as_default, template::Overlay},
    nebius::shared::{
        CgroupVersion, IntOrText, NodeContainer, NodeVolume, NodeVolumeMount, PROMETHEUS_DURATION, Placement, Quantity,
        Sssd, shared_memory,
    },
};

/// The daemons of a cluster.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct SlurmNodes {
    /// slurmctld.
    pub controller: Controller,

    /// Workers. `NodeSets` are the other way to have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Worker>,

    /// Login nodes.
    pub login: Login,

    /// Accounting.
    pub accounting: Accounting,

    /// slurmrestd.
    pub rest: Rest,

    /// The exporter of metrics.
    pub exporter: Exporter,
}

/// slurmctld.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Controller {
    #[serde(flatten)]
    pub placement: Placement,

    /// Whether the pod uses the user namespace of its Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,

    /// Container that runs slurmctld.
    pub slurmctld: NodeContainer,

    /// Container that runs munged.
    pub munge: NodeContainer,

    #[serde(flatten)]
    pub sssd: Sssd,

    /// Volumes of the pod.
    pub volumes: ControllerVolumes,

    /// Metrics that slurmctld itself has, from Slurm 25.11 on.
    #[serde(default)]
    pub open_metrics: OpenMetrics,

    /// Service account of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

/// Volumes of slurmctld.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ControllerVolumes {
    /// Volume for the state of slurmctld.
    pub spool: NodeVolume,

    /// Volume with the jail.
    pub jail: NodeVolume,

    /// Volumes that only the containers of the pod see.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub custom_mounts: Vec<NodeVolumeMount>,
}

/// Metrics that slurmctld itself has.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct OpenMetrics {
    /// Whether Prometheus reads them. Defaults to true.
    pub enabled: bool,

    /// The `ServiceMonitor`.
    pub service_monitor: ServiceMonitor,
}

impl Default for OpenMetrics {
    fn default() -> Self {
        Self { enabled: true, service_monitor: ServiceMonitor::default() }
    }
}

/// How Prometheus reads metrics of slurmctld.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceMonitor {
    /// How often metrics are read. Defaults to 30s.
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub interval: String,

    /// How long a read may take. Defaults to 28s.
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub scrape_timeout: String,

    /// Which metrics are read. All if empty.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<MetricsEndpoint>,
}

impl Default for ServiceMonitor {
    fn default() -> Self {
        Self { interval: "30s".into(), scrape_timeout: "28s".into(), endpoints: Vec::new() }
    }
}

/// A part of the metrics of slurmctld.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum MetricsEndpoint {
    Jobs,
    JobsUsersAccts,
    Nodes,
    Partitions,
    Scheduler,
}

/// Workers that belong to the SlurmCluster itself.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    #[serde(flatten)]
    pub placement: Placement,

    /// Number of workers. Defaults to 0.
    #[serde(default)]
    pub size: i32,

    /// Whether the pods use the user namespace of their Kubernetes node. Defaults to false: each has one of its own.
    #[serde(default)]
    pub host_users: bool,

    /// Maximum number of workers that an update may make unavailable: a number, or a percentage. Defaults to 20%.
    #[serde(default = "a_fifth")]
    pub max_unavailable: IntOrText,

    /// Container that runs slurmd.
    pub slurmd: NodeContainer,

    /// Container that runs munged.
    pub munge: NodeContainer,

    /// Volumes of the pods.
    pub volumes: WorkerVolumes,

    /// Version of the control groups on the Kubernetes nodes. That of the SlurmCluster if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_version: Option<CgroupVersion>,

    /// Name of the `ConfigMap` with supervisord.conf, instead of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisord_config_map_ref_name: Option<String>,

    /// Name of the `ConfigMap` with `sshd_config`, instead of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sshd_config_map_ref_name: Option<String>,

    /// Annotations of the pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub worker_annotations: BTreeMap<String, String>,

    /// Text for the field Extra of each Slurm node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_node_extra: Option<String>,

    /// Whether workers use `GDRCopy`. Defaults to false.
    #[serde(default, rename = "enableGDRCopy")]
    pub enable_gdr_copy: bool,
}

/// Volumes of the workers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WorkerVolumes {
    /// Volume for the state of slurmd.
    pub spool: NodeVolume,

    /// Volume with the jail.
    pub jail: NodeVolume,

    /// Volumes that jobs see below the jail.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub jail_sub_mounts: Vec<NodeVolumeMount>,

    /// Volumes that only the containers of the pod see.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub custom_mounts: Vec<NodeVolumeMount>,

    /// Size of /dev/shm. Defaults to 64Gi.
    #[serde(default = "shared_memory")]
    pub shared_memory_size: Quantity,
}

/// Login nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Login {
    #[serde(flatten)]
    pub placement: Placement,

    /// Number of login nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i32>,

    /// Whether the pods use the user namespace of their Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,

    /// Container that runs sshd.
    pub sshd: NodeContainer,

    /// Container that runs munged.
    pub munge: NodeContainer,

    #[serde(flatten)]
    pub sssd: Sssd,

    /// Volumes of the pods.
    pub volumes: LoginVolumes,

    /// Public keys of root, one per item.
    pub ssh_root_public_keys: Vec<String>,

    /// Type of the Service: `LoadBalancer` or `NodePort`.
    pub sshd_service_type: String,

    /// Annotations of the Service.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub sshd_service_annotations: BTreeMap<String, String>,

    /// Address of the load balancer.
    #[serde(default, rename = "sshdServiceLoadBalancerIP", skip_serializing_if = "Option::is_none")]
    pub sshd_service_load_balancer_ip: Option<String>,

    /// Networks that the load balancer accepts connections from. All if empty.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub sshd_service_load_balancer_source_ranges: Vec<String>,

    /// Port on every Kubernetes node, for a Service of type `NodePort`. Chosen by Kubernetes if 0 (default).
    #[serde(default)]
    pub sshd_service_node_port: i32,

    /// Name of the `ConfigMap` with `sshd_config`, instead of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sshd_config_map_ref_name: Option<String>,

    /// Limits for the sessions of a user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_isolation: Option<UserIsolation>,
}

/// Volumes of login nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LoginVolumes {
    /// Volume with the jail.
    pub jail: NodeVolume,

    /// Volumes that sessions see below the jail.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub jail_sub_mounts: Vec<NodeVolumeMount>,

    /// Volumes that only the containers of the pod see.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub custom_mounts: Vec<NodeVolumeMount>,
}

/// Limits for the sessions of a user.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "!has(self.memoryHigh) || self.memoryHigh == null || !has(self.memoryMax) || self.memoryMax == null \
         || quantity(string(self.memoryHigh)).compareTo(quantity(string(self.memoryMax))) <= 0"
    )
    .message("memoryHigh must not be more than memoryMax")
)]
pub struct UserIsolation {
    /// Whether sessions are limited. Defaults to false.
    #[serde(default)]
    pub enabled: bool,

    /// Memory above which the sessions of a user are slowed down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_high: Option<Quantity>,

    /// Memory above which processes of a user are ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<Quantity>,

    /// Share of the CPU time of the sessions of a user. Defaults to 100.
    #[serde(default = "hundred")]
    #[schemars(range(min = 1, max = 10000))]
    pub cpu_weight: i64,
}

/// slurmrestd.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rest {
    #[serde(flatten)]
    pub placement: Placement,

    /// Whether users can reach slurmrestd. Defaults to false.
    #[serde(default)]
    pub enabled: bool,

    /// Number of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i32>,

    /// Whether the pods use the user namespace of their Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,

    /// Number of threads of slurmrestd. Defaults to 3.
    #[serde(default = "three")]
    #[schemars(range(min = 2, max = 1024))]
    pub thread_count: i32,

    /// Number of connections that slurmrestd has at a time. Defaults to 10.
    #[serde(default = "ten")]
    #[schemars(range(min = 2))]
    pub max_connections: i32,

    /// Container that runs slurmrestd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<NodeContainer>,
}

/// The exporter of metrics.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.accountingJobsLookback.matches('[1-9]')")
        .message("accountingJobsLookback must be more than zero")
)]
pub struct Exporter {
    #[serde(flatten)]
    pub placement: Placement,

    /// Whether the exporter runs. Defaults to false.
    #[serde(default)]
    pub enabled: bool,

    /// Number of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i32>,

    /// Whether the pods use the user namespace of their Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,

    /// Service account of the pods. The operator's if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,

    /// Container that runs the exporter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exporter_container: Option<NodeContainer>,

    /// How Prometheus reads the metrics.
    #[serde(default = "PodMonitorConfig::usual")]
    pub pod_monitor_config: PodMonitorConfig,

    /// How often the exporter asks Slurm. Defaults to 30s.
    #[serde(default = "half_a_minute")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub collection_interval: String,

    /// How many requests of one kind the exporter has at a time. Defaults to 1.
    #[serde(default = "crate::common::shared::one")]
    #[schemars(range(min = 1))]
    pub max_collector_inflight: i32,

    /// Where the exporter reads jobs: controller (default) asks slurmctld, accounting asks slurmdbd.
    #[serde(default)]
    pub job_source: JobSource,

    /// How far back the exporter asks slurmdbd for jobs. Defaults to 1h.
    #[serde(default = "one_hour")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub accounting_jobs_lookback: String,

    /// Deprecated, and ignored: use exporterContainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exporter: Option<DeprecatedExporter>,

    /// Deprecated, and ignored: the exporter needs no munged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub munge: Option<NodeContainer>,

    /// Deprecated, and ignored: the exporter needs no volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<ExporterVolumes>,
}

/// How Prometheus reads the metrics of the exporter.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodMonitorConfig {
    /// Label of the pods whose value is the job of the metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_label: Option<String>,

    /// How often metrics are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub interval: Option<String>,

    /// How long a read may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub scrape_timeout: Option<String>,

    /// Changes to the labels of the pods before metrics are read.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub relabel_config: Vec<Overlay>,

    /// Changes to the labels of metrics.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub metric_relabel_configs: Vec<Overlay>,
}

impl PodMonitorConfig {
    /// What applies if the spec says nothing.
    fn usual() -> Self {
        Self {
            job_label: Some("slurm-exporter".into()),
            interval: Some(half_a_minute()),
            scrape_timeout: Some("20s".into()),
            ..Self::default()
        }
    }
}

/// Where the exporter reads jobs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum JobSource {
    /// slurmctld.
    #[default]
    Controller,
    /// slurmdbd.
    Accounting,
}

/// The exporter, in versions before it had a container of its own.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DeprecatedExporter {
    #[serde(flatten)]
    pub container: NodeContainer,

    /// Name of a `PodTemplate` for the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_name_ref: Option<String>,
}

/// Volumes of the exporter.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ExporterVolumes {
    /// Volume with the jail.
    pub jail: NodeVolume,
}

fn a_fifth() -> IntOrText {
    IntOrText::Text("20%".into())
}

fn hundred() -> i64 {
    100
}

fn three() -> i32 {
    3
}

fn ten() -> i32 {
    10
}

fn half_a_minute() -> String {
    "30s".into()
}

fn one_hour() -> String {
    "1h".into()
}
