//! `SlurmCluster`: a whole Slurm cluster whose jobs share one root file system.

mod accounting;
mod config;
mod nodes;
mod plugstack;
mod status;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::shared::{CgroupVersion, NodeContainer, NodeVolume, Placement, PullPolicy, unconfined};
use crate::common::{
    shared::{LocalObjectReference, null_as_default},
    template::Overlay,
};

pub use accounting::{
    Accounting, AccountingSlurmConfig, ArchiveChoice, DebugFlag, DebugLevel, ExternalDb, JobAcctGatherParams,
    JobAcctGatherType, MariaDb, MariaDbMetrics, PasswordRef, SlurmdbdConfig, Tls,
};
pub use config::{
    CheckedState, HealthCheckConfig, HealthCheckNodeState, MpiConfig, Partition, PartitionConfiguration, PartitionType,
    SlurmConfig, Topology, WorkerFeature,
};
pub use nodes::{
    Controller, ControllerVolumes, DeprecatedExporter, Exporter, ExporterVolumes, JobSource, Login, LoginVolumes,
    MetricsEndpoint, OpenMetrics, PodMonitorConfig, Rest, ServiceMonitor, SlurmNodes, UserIsolation, Worker,
    WorkerVolumes,
};
pub use plugstack::{CustomPlugin, NcclDebug, NcclInspectorPreConf, NcclLogLevel, PlugStackConfig, Pyxis};
pub use status::SlurmClusterStatus;

/// Desired state of the SlurmCluster.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "slurm.nebius.ai",
    version = "v1",
    kind = "SlurmCluster",
    plural = "slurmclusters",
    namespaced,
    status = "SlurmClusterStatus",
    derive = "PartialEq",
    doc = "A Slurm cluster: slurmctld, login nodes, accounting and workers. Jobs share one root file system, the jail.",
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Controllers",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"ControllersAvailable\")].status"
    ),
    printcolumn(name = "Workers", type_ = "integer", json_path = ".status.readyWorkers"),
    printcolumn(name = "Login", type_ = "integer", json_path = ".status.readyLogin"),
    printcolumn(
        name = "SConfigCtrl",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"SConfigControllerAvailable\")].status"
    ),
    printcolumn(
        name = "Accounting",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"AccountingAvailable\")].status"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "!(has(self.slurmNodes.worker) && self.slurmNodes.worker != null && self.slurmNodes.worker.size > 0 \
         && has(self.partitionConfiguration) && self.partitionConfiguration != null \
         && self.partitionConfiguration.partitions.exists(p, size(p.nodeSetRefs) > 0))"
    )
    .message("slurmNodes.worker.size must be 0 if a partition has nodeSetRefs: workers are then those of NodeSets")
)]
pub struct SlurmClusterSpec {
    /// Version of the API that this object was written for, for example 1.23.3. Some defaults depend on it. That of the
    /// operator if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cr_version: Option<String>,

    /// Whether workers have GPUs: gpu or cpu. If not set, `NodeSets` say so, and slurmNodes.worker has GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_type: Option<ClusterType>,

    /// What runs while the cluster is being maintained. Defaults to none: everything.
    #[serde(default)]
    pub maintenance: Maintenance,

    /// How the root file system that jobs share (the jail) is filled.
    pub populate_jail: PopulateJail,

    /// Sets of Kubernetes nodes. Daemons refer to them by name.
    #[schemars(length(min = 1))]
    pub k8s_node_filters: Vec<K8sNodeFilter>,

    /// Volumes. Daemons refer to them by name; jail is the one with the root file system that jobs share.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub volume_sources: Vec<VolumeSource>,

    /// Secrets of the cluster.
    pub secrets: Secrets,

    /// The daemons of the cluster.
    pub slurm_nodes: SlurmNodes,

    /// Partitions of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_configuration: Option<PartitionConfiguration>,

    /// Features of the workers of slurmNodes.worker.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub worker_features: Vec<WorkerFeature>,

    /// Parameters of slurm.conf.
    #[serde(default)]
    pub slurm_config: SlurmConfig,

    /// Lines of slurm.conf. They win over the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_slurm_config: Option<String>,

    /// Lines of cgroup.conf. They win over the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_cgroup_config: Option<String>,

    /// Version of the control groups on the Kubernetes nodes. v2 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_version: Option<CgroupVersion>,

    /// Network topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,

    /// Parameters of MPI.
    #[serde(default)]
    pub mpi_config: MpiConfig,

    /// Plugins of job steps.
    #[serde(default)]
    pub plug_stack_config: PlugStackConfig,

    /// What checks the health of Slurm nodes. Nothing if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check_config: Option<HealthCheckConfig>,

    /// What writes configuration into the jail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s_config_controller: Option<SConfigController>,

    /// Whether an `AppArmor` profile is created for the cluster, and used. Defaults to false.
    #[serde(default)]
    pub use_default_app_armor_profile: bool,
}

/// Whether workers have GPUs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ClusterType {
    Gpu,
    Cpu,
}

/// What runs while a cluster is being maintained.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Maintenance {
    /// Everything.
    #[default]
    None,
    /// Nothing.
    Downscale,
    /// Nothing, and the Job that fills the jail is deleted.
    DownscaleAndDeletePopulateJail,
    /// Nothing but the Job that fills the jail, which overwrites it.
    DownscaleAndOverwritePopulateJail,
    /// Everything but the Job that fills the jail.
    SkipPopulateJail,
}

/// How the jail is filled.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PopulateJail {
    /// Image with the content of the jail.
    pub image: String,

    /// When the image is pulled. Defaults to `IfNotPresent`.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,

    /// Secrets for the registry of the image.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// Name of the entry of k8sNodeFilters that says on which Kubernetes nodes the Job may run.
    pub k8s_node_filter_name: String,

    /// Volume with the content of the jail, instead of the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jail_snapshot_volume: Option<NodeVolume>,

    /// Whether a jail that has content is overwritten. Defaults to false.
    #[serde(default)]
    pub overwrite: bool,

    /// `AppArmor` profile. Defaults to unconfined.
    #[serde(default = "unconfined")]
    pub app_armor_profile: String,

    /// Priority class of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,

    /// Whether the pod uses the user namespace of its Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,
}

/// A set of Kubernetes nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct K8sNodeFilter {
    /// Name of the filter, unique in the cluster.
    #[schemars(length(min = 1))]
    pub name: String,

    /// Labels of the Kubernetes nodes.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Affinity of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Overlay>,

    /// Tolerations of the pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Overlay>,
}

/// A volume with its name: exactly one more field says what it is, as in a pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct VolumeSource {
    /// Name of the volume, unique in the cluster.
    #[schemars(length(min = 1))]
    pub name: String,

    #[serde(flatten)]
    pub source: Map<String, Value>,
}

/// Secrets of a cluster.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Secrets {
    /// Name of the Secret with the host keys of sshd. The name of the cluster with -sshd-keys if not set; it is created
    /// if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sshd_keys_name: Option<String>,
}

/// What writes configuration into the jail.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("duration(self.reconfigureWaitTimeout) > duration(self.reconfigurePollInterval)")
        .message("reconfigureWaitTimeout must be longer than reconfigurePollInterval")
)]
pub struct SConfigController {
    /// Where the pods run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<SConfigControllerNode>,

    /// Container of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<NodeContainer>,

    /// User that owns the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_uid: Option<i64>,

    /// Group that owns the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_gid: Option<i64>,

    /// How often it asks whether a reconfiguration has reached all nodes, for example 20s. Defaults to 20s.
    #[serde(default = "twenty_seconds")]
    pub reconfigure_poll_interval: String,

    /// How long it waits for that, for example 5m. Defaults to 5m.
    #[serde(default = "five_minutes")]
    pub reconfigure_wait_timeout: String,

    /// Whether the pods use the user namespace of their Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,

    /// Service account of the pods. The operator's if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub service_account_name: Option<String>,
}

/// Where pods run that write configuration into the jail.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SConfigControllerNode {
    #[serde(flatten)]
    pub placement: Placement,

    /// Number of pods; one of them writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i32>,

    /// Whether the pods use the user namespace of their Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,
}

fn twenty_seconds() -> String {
    "20s".into()
}

fn five_minutes() -> String {
    "5m".into()
}
