//! Records of slurmdbd.

use jiff::Timestamp;
use serde::Deserialize;

use super::{NoVal, envelope::Record, fields};
use crate::states::JobStates;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Account {
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    #[serde(deserialize_with = "fields::text")]
    pub description: String,
    #[serde(deserialize_with = "fields::text")]
    pub organization: String,
}

impl Record for Account {
    const KEY: &'static str = "accounts";
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct User {
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    /// `None`, `Operator` or `Administrator`.
    #[serde(deserialize_with = "fields::list")]
    pub administrator_level: Vec<String>,
    pub default: UserDefaults,
}

/// Defaults for the user's jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserDefaults {
    /// Default account. slurmdbd includes it only together with associations.
    #[serde(deserialize_with = "fields::text")]
    pub account: String,
}

impl Record for User {
    const KEY: &'static str = "users";
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Cluster {
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    /// Address of its slurmctld; without a host it is not connected.
    pub controller: ClusterController,
    /// Host list of its nodes.
    #[serde(deserialize_with = "fields::hostlist")]
    pub nodes: String,
    /// Protocol version of its slurmctld.
    #[serde(deserialize_with = "fields::number")]
    pub rpc_version: u64,
}

/// Address of a cluster's slurmctld.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClusterController {
    #[serde(deserialize_with = "fields::text")]
    pub host: String,
    #[serde(deserialize_with = "fields::number")]
    pub port: u64,
}

impl Record for Cluster {
    const KEY: &'static str = "clusters";
}

/// A quality of service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Qos {
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
}

impl Record for Qos {
    const KEY: &'static str = "qos";
}

/// A job in the accounting database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WireJob")]
pub struct AccountedJob {
    pub job_id: u64,
    pub name: String,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub cluster: String,
    /// Base state and flags.
    pub state: JobStates,
    /// Host list of its nodes, or `None assigned`.
    pub nodes: String,
    pub submitted: Option<Timestamp>,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    /// Run time in seconds.
    pub elapsed: u64,
    /// Time limit in minutes.
    pub time_limit: NoVal,
    pub allocated: Vec<Tres>,
}

impl Record for AccountedJob {
    const KEY: &'static str = "jobs";
}

/// An amount of one trackable resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Tres {
    /// `cpu`, `mem`, `node`, `billing`, `gres`
    #[serde(rename = "type", deserialize_with = "fields::text")]
    pub kind: String,
    /// Name, for kinds with several resources: `gpu`.
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    #[serde(deserialize_with = "fields::number")]
    pub count: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireJob {
    #[serde(deserialize_with = "fields::number")]
    job_id: u64,
    #[serde(deserialize_with = "fields::text")]
    name: String,
    #[serde(deserialize_with = "fields::text")]
    user: String,
    #[serde(deserialize_with = "fields::text")]
    account: String,
    #[serde(deserialize_with = "fields::text")]
    partition: String,
    #[serde(deserialize_with = "fields::text")]
    cluster: String,
    #[serde(deserialize_with = "fields::hostlist")]
    nodes: String,
    state: WireState,
    time: WireTimes,
    tres: WireTres,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireState {
    current: JobStates,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTimes {
    #[serde(deserialize_with = "fields::number")]
    elapsed: u64,
    #[serde(deserialize_with = "fields::time")]
    submission: Option<Timestamp>,
    #[serde(deserialize_with = "fields::time")]
    start: Option<Timestamp>,
    #[serde(deserialize_with = "fields::time")]
    end: Option<Timestamp>,
    limit: NoVal,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTres {
    allocated: Vec<Tres>,
}

impl From<WireJob> for AccountedJob {
    fn from(wire: WireJob) -> Self {
        Self {
            job_id: wire.job_id,
            name: wire.name,
            user: wire.user,
            account: wire.account,
            partition: wire.partition,
            cluster: wire.cluster,
            state: wire.state.current,
            nodes: wire.nodes,
            submitted: wire.time.submission,
            started: wire.time.start,
            ended: wire.time.end,
            elapsed: wire.time.elapsed,
            time_limit: wire.time.limit,
            allocated: wire.tres.allocated,
        }
    }
}
