//! Partitions.

use serde::Deserialize;

use super::{NoVal, envelope::Record, fields};

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WirePartition")]
pub struct Partition {
    pub name: String,
    /// Whether jobs may be submitted and started: `UP`, `DOWN`, `DRAIN`, `INACTIVE`.
    pub state: Vec<String>,
    /// Host list of its nodes.
    pub nodes: String,
    /// Node sets in the partition: `ALL`, or names.
    pub node_sets: String,
    pub total_nodes: u64,
    pub total_cpus: u64,
    /// Trackable resources: `cpu=8,mem=4G,node=2,billing=8`.
    pub tres: String,
    /// Maximum time limit of a job in minutes.
    pub max_time: NoVal,
    /// Default time limit of a job in minutes.
    pub default_time: NoVal,
    /// Jobs in partitions with a higher tier are scheduled first.
    pub priority_tier: u64,
    /// Accounts that may use it; empty means all.
    pub allowed_accounts: Vec<String>,
    /// Name of its topology; since v0.0.43.
    pub topology: String,
}

impl Record for Partition {
    const KEY: &'static str = "partitions";
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePartition {
    #[serde(deserialize_with = "fields::text")]
    name: String,
    partition: WireState,
    nodes: WireNodes,
    cpus: WireCpus,
    tres: WireTres,
    maximums: WireTime,
    defaults: WireTime,
    priority: WirePriority,
    accounts: WireAccounts,
    #[serde(deserialize_with = "fields::text")]
    node_sets: String,
    #[serde(deserialize_with = "fields::text")]
    topology: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireState {
    #[serde(deserialize_with = "fields::list")]
    state: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNodes {
    #[serde(deserialize_with = "fields::hostlist")]
    configured: String,
    #[serde(deserialize_with = "fields::number")]
    total: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireCpus {
    #[serde(deserialize_with = "fields::number")]
    total: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTres {
    #[serde(deserialize_with = "fields::text")]
    configured: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTime {
    time: NoVal,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePriority {
    #[serde(deserialize_with = "fields::number")]
    tier: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireAccounts {
    #[serde(deserialize_with = "fields::list")]
    allowed: Vec<String>,
}

impl From<WirePartition> for Partition {
    fn from(wire: WirePartition) -> Self {
        Self {
            name: wire.name,
            state: wire.partition.state,
            nodes: wire.nodes.configured,
            node_sets: wire.node_sets,
            total_nodes: wire.nodes.total,
            total_cpus: wire.cpus.total,
            tres: wire.tres.configured,
            max_time: wire.maximums.time,
            default_time: wire.defaults.time,
            priority_tier: wire.priority.tier,
            allowed_accounts: wire.accounts.allowed,
            topology: wire.topology,
        }
    }
}
