//! What slurmdbd knows.

use jiff::Timestamp;
use serde::Deserialize;

use super::{NoVal, envelope::Record, fields};
use crate::states::JobStates;

/// An account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Account {
    /// Its name.
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    /// What it is for.
    #[serde(deserialize_with = "fields::text")]
    pub description: String,
    /// Whose it is.
    #[serde(deserialize_with = "fields::text")]
    pub organization: String,
}

impl Record for Account {
    const KEY: &'static str = "accounts";
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct User {
    /// The name.
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    /// `None`, `Operator` or `Administrator`.
    #[serde(deserialize_with = "fields::list")]
    pub administrator_level: Vec<String>,
    /// What is used where the user does not say.
    pub default: UserDefaults,
}

/// What a user's jobs use that do not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserDefaults {
    /// The account. slurmdbd tells it only when asked together with associations.
    #[serde(deserialize_with = "fields::text")]
    pub account: String,
}

impl Record for User {
    const KEY: &'static str = "users";
}

/// A cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Cluster {
    /// Its name.
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    /// Its slurmctld; without a host it is not connected.
    pub controller: ClusterController,
    /// Its nodes, as a host list.
    #[serde(deserialize_with = "fields::hostlist")]
    pub nodes: String,
    /// The protocol that its slurmctld speaks.
    #[serde(deserialize_with = "fields::number")]
    pub rpc_version: u64,
}

/// Where a cluster's slurmctld is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClusterController {
    /// Its address.
    #[serde(deserialize_with = "fields::text")]
    pub host: String,
    /// Its port.
    #[serde(deserialize_with = "fields::number")]
    pub port: u64,
}

impl Record for Cluster {
    const KEY: &'static str = "clusters";
}

/// A job in the books.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WireJob")]
pub struct AccountedJob {
    /// Its number.
    pub job_id: u64,
    /// Its name.
    pub name: String,
    /// Its user.
    pub user: String,
    /// The account it was charged to.
    pub account: String,
    /// Its partition.
    pub partition: String,
    /// Its cluster.
    pub cluster: String,
    /// Base state and flags.
    pub state: JobStates,
    /// The nodes it had, as a host list, or `None assigned`.
    pub nodes: String,
    /// When it was handed in.
    pub submitted: Option<Timestamp>,
    /// When it started.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// How long it ran, in seconds.
    pub elapsed: u64,
    /// How long it might have run, in minutes.
    pub time_limit: NoVal,
    /// What it had.
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
    /// Which one, where there are several: `gpu`.
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    /// How much.
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
