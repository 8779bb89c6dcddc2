//! Partitions.

use serde::Deserialize;

use super::{NoVal, envelope::Record, fields};

/// A partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WirePartition")]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Whether jobs may be handed in and started: `UP`, `DOWN`, `DRAIN`, `INACTIVE`.
    pub state: Vec<String>,
    /// Its nodes, as a host list.
    pub nodes: String,
    /// The node sets it is made of: `ALL`, or names.
    pub node_sets: String,
    /// How many nodes.
    pub total_nodes: u64,
    /// How many processors.
    pub total_cpus: u64,
    /// Its trackable resources: `cpu=8,mem=4G,node=2,billing=8`.
    pub tres: String,
    /// The longest time a job may run, in minutes.
    pub max_time: NoVal,
    /// How long a job may run that does not say, in minutes.
    pub default_time: NoVal,
    /// The higher, the sooner its jobs are looked at.
    pub priority_tier: u64,
    /// Accounts that may use it; none named means all.
    pub allowed_accounts: Vec<String>,
    /// How its topology is called; from v0.0.43 on.
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
