//! What a SlurmCluster says about slurm.conf and its partitions.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::shared::null_as_default;

/// Partitions of a cluster.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.configType != 'structured' || size(self.partitions) > 0")
        .message("partitions must not be empty if configType is structured")
)]
pub struct PartitionConfiguration {
    /// Where partitions come from. default (the default) makes partitions of all nodes, custom takes rawConfig, and
    /// structured takes partitions.
    #[serde(default)]
    pub config_type: PartitionType,

    /// `PartitionName` lines of slurm.conf, if configType is custom.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub raw_config: Vec<String>,

    /// Partitions, if configType is structured.
    // With a default, so that rules never see a null.
    #[serde(default)]
    pub partitions: Vec<Partition>,
}

/// Where partitions come from.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PartitionType {
    /// Partitions of all nodes.
    #[default]
    Default,
    /// Lines of slurm.conf.
    Custom,
    /// Partitions of `NodeSets`.
    Structured,
}

/// A partition.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Partition {
    /// Name of the partition.
    #[schemars(length(min = 1))]
    pub name: String,

    /// Whether it contains all nodes. Defaults to false.
    #[serde(default)]
    pub is_all: bool,

    /// Names of the `NodeSets` that it contains.
    // With a default, so that rules never see a null.
    #[serde(default)]
    pub node_set_refs: Vec<String>,

    /// Further parameters of the partition in the form Key=Value, for example State=UP MaxTime=UNLIMITED.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// Features of some workers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WorkerFeature {
    /// Name of the feature.
    #[schemars(length(min = 1))]
    pub name: String,

    /// Slurm nodes that have it, for example worker-[0-3].
    #[schemars(length(min = 1))]
    pub hostlist_expr: String,

    /// Name of a Slurm node set of these nodes. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodeset_name: Option<String>,
}

/// Parameters of slurm.conf.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct SlurmConfig {
    /// `DefMemPerNode`, in megabytes. Defaults to 0.
    pub def_mem_per_node: i32,

    /// `DefCpuPerGPU`. Defaults to 4.
    #[serde(rename = "defCpuPerGPU")]
    pub def_cpu_per_gpu: i32,

    /// `CompleteWait`, in seconds. Defaults to 5.
    pub complete_wait: i32,

    /// Epilog.
    pub epilog: String,

    /// Prolog.
    pub prolog: String,

    /// `TaskProlog`.
    pub task_prolog: String,

    /// `TaskPluginParam`.
    pub task_plugin_param: String,

    /// `MaxJobCount`. Defaults to 20000.
    pub max_job_count: i32,

    /// `MinJobAge`, in seconds. The default depends on crVersion: 28800 before version 2, otherwise 1800.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_job_age: Option<i32>,

    /// `MessageTimeout`, in seconds. Defaults to 60.
    pub message_timeout: i32,

    /// `TopologyPlugin`. Defaults to topology/tree.
    pub topology_plugin: String,

    /// `TopologyParam`. Defaults to `SwitchAsNodeRank`.
    pub topology_param: String,

    /// `SuspendTime`, in seconds: how long an ephemeral worker runs without a job. Defaults to 1000000000.
    pub suspend_time: i32,

    /// `ResumeTimeout`, in seconds. Defaults to 1800.
    #[schemars(range(min = 1))]
    pub resume_timeout: i32,
}

impl Default for SlurmConfig {
    fn default() -> Self {
        Self {
            def_mem_per_node: 0,
            def_cpu_per_gpu: 4,
            complete_wait: 5,
            epilog: String::new(),
            prolog: String::new(),
            task_prolog: String::new(),
            task_plugin_param: String::new(),
            max_job_count: 20_000,
            min_job_age: None,
            message_timeout: 60,
            topology_plugin: "topology/tree".into(),
            topology_param: "SwitchAsNodeRank".into(),
            suspend_time: 1_000_000_000,
            resume_timeout: 1800,
        }
    }
}

/// Network topology.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Topology {
    /// Number of nodes in a block, if the topology has blocks. Defaults to 18.
    pub block_size: i64,
}

impl Default for Topology {
    fn default() -> Self {
        Self { block_size: 18 }
    }
}

/// Parameters of MPI.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct MpiConfig {
    /// Environment variables for `PMIx`, separated by semicolons. Defaults to `OMPI_MCA_btl_tcp_if_include=eth0`.
    pub pmix_env: String,
}

impl Default for MpiConfig {
    fn default() -> Self {
        Self { pmix_env: "OMPI_MCA_btl_tcp_if_include=eth0".into() }
    }
}

/// What checks the health of Slurm nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheckConfig {
    /// `HealthCheckInterval`, in seconds.
    pub health_check_interval: i32,

    /// `HealthCheckProgram`.
    pub health_check_program: String,

    /// `HealthCheckNodeState`: in which states a node is checked.
    #[schemars(length(min = 1))]
    pub health_check_node_state: Vec<HealthCheckNodeState>,
}

/// A state in which a node is checked.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheckNodeState {
    /// The state.
    pub state: CheckedState,
}

/// States of `HealthCheckNodeState`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CheckedState {
    /// Fully allocated.
    Alloc,
    /// Any state.
    Any,
    /// Nodes are checked one after the other.
    Cycle,
    /// Without jobs.
    Idle,
    /// Without jobs and not drained.
    NondrainedIdle,
    /// Partly allocated.
    Mixed,
}
