//! Nodes in slurmctld.

use jiff::Timestamp;
use serde::Deserialize;

use super::{NoVal, envelope::Record, fields};
use crate::states::NodeStates;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Slurm node name.
    pub name: String,
    /// Hostname reported by its slurmd.
    #[serde(deserialize_with = "fields::text")]
    pub hostname: String,
    /// Address of its slurmd.
    #[serde(deserialize_with = "fields::text")]
    pub address: String,
    /// Port of its slurmd.
    #[serde(deserialize_with = "fields::number")]
    pub port: u64,
    /// Base state and flags.
    pub state: NodeStates,
    /// Reason for down or drain. May remain after the node has recovered.
    #[serde(deserialize_with = "fields::text")]
    pub reason: String,
    /// User who set the reason.
    #[serde(deserialize_with = "fields::text")]
    pub reason_set_by_user: String,
    /// When the reason was set.
    #[serde(deserialize_with = "fields::time")]
    pub reason_changed_at: Option<Timestamp>,
    #[serde(deserialize_with = "fields::text")]
    pub comment: String,
    /// Free text that jobs can select by.
    #[serde(deserialize_with = "fields::text")]
    pub extra: String,
    /// Available features.
    #[serde(deserialize_with = "fields::list")]
    pub features: Vec<String>,
    /// Active features.
    #[serde(deserialize_with = "fields::list")]
    pub active_features: Vec<String>,
    /// Location in the topology; since v0.0.43.
    #[serde(deserialize_with = "fields::text")]
    pub topology: String,
    #[serde(deserialize_with = "fields::list")]
    pub partitions: Vec<String>,
    /// Reservation that is active on the node.
    #[serde(deserialize_with = "fields::text")]
    pub reservation: String,
    /// Number of CPUs.
    #[serde(deserialize_with = "fields::number")]
    pub cpus: u64,
    /// CPUs available to jobs.
    #[serde(deserialize_with = "fields::number")]
    pub effective_cpus: u64,
    /// CPUs allocated to jobs.
    #[serde(deserialize_with = "fields::number")]
    pub alloc_cpus: u64,
    /// Load times 100. Changes with every ping.
    #[serde(deserialize_with = "fields::number")]
    pub cpu_load: u64,
    #[serde(deserialize_with = "fields::number")]
    pub sockets: u64,
    /// Cores per socket.
    #[serde(deserialize_with = "fields::number")]
    pub cores: u64,
    /// Threads per core.
    #[serde(deserialize_with = "fields::number")]
    pub threads: u64,
    /// In MiB.
    #[serde(deserialize_with = "fields::number")]
    pub real_memory: u64,
    /// Memory allocated to jobs in MiB.
    #[serde(deserialize_with = "fields::number")]
    pub alloc_memory: u64,
    /// Free memory reported by the operating system in MiB.
    pub free_mem: NoVal,
    /// Generic resources: `gpu:8`.
    #[serde(deserialize_with = "fields::text")]
    pub gres: String,
    /// Generic resources allocated to jobs.
    #[serde(deserialize_with = "fields::text")]
    pub gres_used: String,
    /// Trackable resources: `cpu=4,mem=2G,billing=4`.
    #[serde(deserialize_with = "fields::text")]
    pub tres: String,
    /// Trackable resources allocated to jobs.
    #[serde(deserialize_with = "fields::text")]
    pub tres_used: String,
    /// Nodes with a lower weight are used first.
    #[serde(deserialize_with = "fields::number")]
    pub weight: u64,
    #[serde(deserialize_with = "fields::time")]
    pub boot_time: Option<Timestamp>,
    #[serde(deserialize_with = "fields::time")]
    pub slurmd_start_time: Option<Timestamp>,
    /// When a job last ran on the node.
    #[serde(deserialize_with = "fields::time")]
    pub last_busy: Option<Timestamp>,
    /// When the node resumes automatically from down or drain.
    #[serde(deserialize_with = "fields::time")]
    pub resume_after: Option<Timestamp>,
    /// Version of its slurmd.
    #[serde(deserialize_with = "fields::text")]
    pub version: String,
    #[serde(deserialize_with = "fields::text")]
    pub architecture: String,
    #[serde(deserialize_with = "fields::text")]
    pub operating_system: String,
    /// Instance id in a cloud.
    #[serde(deserialize_with = "fields::text")]
    pub instance_id: String,
    /// Instance type in a cloud.
    #[serde(deserialize_with = "fields::text")]
    pub instance_type: String,
}

impl Record for Node {
    const KEY: &'static str = "nodes";
}

/// The fields of a node that the operator needs, without hardware and usage: decoding a long list takes a third of the
/// time and a sixth of the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeBrief {
    /// Slurm node name.
    pub name: String,
    /// Base state and flags.
    pub state: NodeStates,
    /// Reason for down or drain. May remain after the node has recovered.
    #[serde(deserialize_with = "fields::text")]
    pub reason: String,
    /// When the reason was set.
    #[serde(deserialize_with = "fields::time")]
    pub reason_changed_at: Option<Timestamp>,
    #[serde(deserialize_with = "fields::text")]
    pub comment: String,
    /// Available features.
    #[serde(deserialize_with = "fields::list")]
    pub features: Vec<String>,
    /// Active features.
    #[serde(deserialize_with = "fields::list")]
    pub active_features: Vec<String>,
    /// Location in the topology; since v0.0.43.
    #[serde(deserialize_with = "fields::text")]
    pub topology: String,
    /// Reservation that is active on the node.
    #[serde(deserialize_with = "fields::text")]
    pub reservation: String,
    /// Generic resources: `gpu:8`.
    #[serde(deserialize_with = "fields::text")]
    pub gres: String,
    /// When its slurmd started, by its own clock; not known until it registers.
    #[serde(deserialize_with = "fields::time")]
    pub slurmd_start_time: Option<Timestamp>,
    /// Version of its slurmd.
    #[serde(deserialize_with = "fields::text")]
    pub version: String,
}

impl Record for NodeBrief {
    const KEY: &'static str = Node::KEY;

    fn size(&self) -> usize {
        let texts = [&self.name, &self.reason, &self.comment, &self.topology, &self.reservation, &self.version];
        let words = fields::size_of_words(&self.features) + fields::size_of_words(&self.active_features);
        size_of::<Self>() + texts.into_iter().map(String::len).sum::<usize>() + words
    }
}

/// The fields of a node that become metrics. Texts are cut to what a label may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeMetrics {
    /// Slurm node name.
    #[serde(deserialize_with = "fields::label")]
    pub name: String,
    /// Base state and flags.
    pub state: NodeStates,
    #[serde(deserialize_with = "fields::label")]
    pub reason: String,
    #[serde(deserialize_with = "fields::label")]
    pub comment: String,
    /// Address of its slurmd.
    #[serde(deserialize_with = "fields::label")]
    pub address: String,
    /// Instance id in a cloud.
    #[serde(deserialize_with = "fields::label")]
    pub instance_id: String,
    /// Reservation that is active on the node.
    #[serde(deserialize_with = "fields::label")]
    pub reservation: String,
    #[serde(deserialize_with = "fields::list")]
    pub partitions: Vec<String>,
    pub cpus: NoVal,
    pub alloc_cpus: NoVal,
    pub alloc_idle_cpus: NoVal,
    /// CPUs available to jobs.
    pub effective_cpus: NoVal,
    /// In MiB, as all memory here.
    pub real_memory: NoVal,
    /// Memory that is kept for slurmd.
    pub specialized_memory: NoVal,
    pub alloc_memory: NoVal,
    /// Free memory reported by the operating system.
    pub free_mem: NoVal,
    /// Generic resources: `gpu:8`.
    #[serde(deserialize_with = "fields::label")]
    pub gres: String,
    /// Trackable resources: `cpu=4,mem=2G,billing=4`.
    #[serde(deserialize_with = "fields::label")]
    pub tres: String,
}

impl Record for NodeMetrics {
    const KEY: &'static str = Node::KEY;
    const MOST: usize = 64 << 20;

    fn size(&self) -> usize {
        let texts = [&self.name, &self.reason, &self.comment, &self.address, &self.instance_id, &self.reservation];
        let resources = self.gres.len() + self.tres.len();
        let texts: usize = texts.into_iter().map(String::len).sum();
        size_of::<Self>() + texts + resources + fields::size_of_words(&self.partitions)
    }
}
