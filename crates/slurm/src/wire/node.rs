//! Nodes, as slurmctld knows them.

use jiff::Timestamp;
use serde::Deserialize;

use super::{NoVal, envelope::Record, fields};
use crate::states::NodeStates;

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name in Slurm.
    pub name: String,
    /// The name of the host it runs on, as its slurmd found it.
    #[serde(deserialize_with = "fields::text")]
    pub hostname: String,
    /// Where slurmctld reaches its slurmd.
    #[serde(deserialize_with = "fields::text")]
    pub address: String,
    /// The port of its slurmd.
    #[serde(deserialize_with = "fields::number")]
    pub port: u64,
    /// Base state and flags.
    pub state: NodeStates,
    /// Why it is down or drained. It may still stand after the node came back.
    #[serde(deserialize_with = "fields::text")]
    pub reason: String,
    /// Who gave the reason.
    #[serde(deserialize_with = "fields::text")]
    pub reason_set_by_user: String,
    /// When the reason was given.
    #[serde(deserialize_with = "fields::time")]
    pub reason_changed_at: Option<Timestamp>,
    /// Free text.
    #[serde(deserialize_with = "fields::text")]
    pub comment: String,
    /// More free text, which jobs may select by.
    #[serde(deserialize_with = "fields::text")]
    pub extra: String,
    /// The features it can have.
    #[serde(deserialize_with = "fields::list")]
    pub features: Vec<String>,
    /// The features it has now.
    #[serde(deserialize_with = "fields::list")]
    pub active_features: Vec<String>,
    /// Its place in the topology; from v0.0.43 on.
    #[serde(deserialize_with = "fields::text")]
    pub topology: String,
    /// The partitions it is in.
    #[serde(deserialize_with = "fields::list")]
    pub partitions: Vec<String>,
    /// The reservation that holds it now.
    #[serde(deserialize_with = "fields::text")]
    pub reservation: String,
    /// All processors.
    #[serde(deserialize_with = "fields::number")]
    pub cpus: u64,
    /// Processors for jobs.
    #[serde(deserialize_with = "fields::number")]
    pub effective_cpus: u64,
    /// Processors that jobs have.
    #[serde(deserialize_with = "fields::number")]
    pub alloc_cpus: u64,
    /// Load, times a hundred. It changes with every ping.
    #[serde(deserialize_with = "fields::number")]
    pub cpu_load: u64,
    /// Sockets.
    #[serde(deserialize_with = "fields::number")]
    pub sockets: u64,
    /// Cores of a socket.
    #[serde(deserialize_with = "fields::number")]
    pub cores: u64,
    /// Threads of a core.
    #[serde(deserialize_with = "fields::number")]
    pub threads: u64,
    /// Memory in MiB.
    #[serde(deserialize_with = "fields::number")]
    pub real_memory: u64,
    /// Memory that jobs have, in MiB.
    #[serde(deserialize_with = "fields::number")]
    pub alloc_memory: u64,
    /// Memory that the system calls free, in MiB.
    pub free_mem: NoVal,
    /// Generic resources: `gpu:8`.
    #[serde(deserialize_with = "fields::text")]
    pub gres: String,
    /// Generic resources that jobs have.
    #[serde(deserialize_with = "fields::text")]
    pub gres_used: String,
    /// Trackable resources: `cpu=4,mem=2G,billing=4`.
    #[serde(deserialize_with = "fields::text")]
    pub tres: String,
    /// Trackable resources that jobs have.
    #[serde(deserialize_with = "fields::text")]
    pub tres_used: String,
    /// Which nodes are used first: those of low weight.
    #[serde(deserialize_with = "fields::number")]
    pub weight: u64,
    /// When its host started.
    #[serde(deserialize_with = "fields::time")]
    pub boot_time: Option<Timestamp>,
    /// When its slurmd started.
    #[serde(deserialize_with = "fields::time")]
    pub slurmd_start_time: Option<Timestamp>,
    /// When a job last ran.
    #[serde(deserialize_with = "fields::time")]
    pub last_busy: Option<Timestamp>,
    /// When it comes back by itself from down or drain.
    #[serde(deserialize_with = "fields::time")]
    pub resume_after: Option<Timestamp>,
    /// The release of its slurmd.
    #[serde(deserialize_with = "fields::text")]
    pub version: String,
    /// The processor's kind.
    #[serde(deserialize_with = "fields::text")]
    pub architecture: String,
    /// The operating system.
    #[serde(deserialize_with = "fields::text")]
    pub operating_system: String,
    /// What a cloud calls the machine.
    #[serde(deserialize_with = "fields::text")]
    pub instance_id: String,
    /// What a cloud calls the machine's kind.
    #[serde(deserialize_with = "fields::text")]
    pub instance_type: String,
}

impl Record for Node {
    const KEY: &'static str = "nodes";
}

/// What a node is, what it was told and what it offers, without what it is made of and how it is used: a long list that is read
/// over and over takes a third of the time and a sixth of the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeBrief {
    /// Its name in Slurm.
    pub name: String,
    /// Base state and flags.
    pub state: NodeStates,
    /// Why it is down or drained. It may still stand after the node came back.
    #[serde(deserialize_with = "fields::text")]
    pub reason: String,
    /// When the reason was given.
    #[serde(deserialize_with = "fields::time")]
    pub reason_changed_at: Option<Timestamp>,
    /// Free text.
    #[serde(deserialize_with = "fields::text")]
    pub comment: String,
    /// The features it can have.
    #[serde(deserialize_with = "fields::list")]
    pub features: Vec<String>,
    /// The features it has now.
    #[serde(deserialize_with = "fields::list")]
    pub active_features: Vec<String>,
    /// Its place in the topology; from v0.0.43 on.
    #[serde(deserialize_with = "fields::text")]
    pub topology: String,
    /// The reservation that holds it now.
    #[serde(deserialize_with = "fields::text")]
    pub reservation: String,
}

impl Record for NodeBrief {
    const KEY: &'static str = Node::KEY;
}
