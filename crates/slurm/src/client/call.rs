//! The calls that this crate makes: their paths, and which of them a server offers.

use std::{collections::BTreeMap, fmt};

use reqwest::Method;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::Error;
use crate::version::{RestVersion, SlurmVersion};

/// A call to slurmrestd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "see the client method of each call")]
pub enum Call {
    OpenApi,
    Ping,
    Diag,
    Conf,
    Reconfigure,
    Nodes,
    UpdateNodes,
    Node,
    UpdateNode,
    DeleteNode,
    NewNode,
    NodeTopology,
    Jobs,
    JobStates,
    Job,
    SubmitJob,
    CancelJob,
    RequeueJob,
    Partitions,
    Partition,
    Reservations,
    Reservation,
    WriteReservation,
    DeleteReservation,
    Accounts,
    Users,
    Clusters,
    Qos,
    AccountedJobs,
}

/// Path and kind of a call.
pub(super) struct Route {
    pub method: Method,
    pub plugin: &'static str,
    /// As in the server's own list of paths.
    pub path: &'static str,
    pub kind: Kind,
}

/// Kind of a call; decides how its response is interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Reads many records: has a longer timeout and may be retried.
    List,
    /// Reads one object: may be retried; an empty response means that the object does not exist.
    Get,
    /// Changes something: never retried.
    Write,
}

impl Call {
    pub(super) const ALL: [Self; 27] = [
        Self::Ping,
        Self::Diag,
        Self::Conf,
        Self::Reconfigure,
        Self::Nodes,
        Self::UpdateNodes,
        Self::Node,
        Self::UpdateNode,
        Self::DeleteNode,
        Self::NewNode,
        Self::Jobs,
        Self::JobStates,
        Self::Job,
        Self::SubmitJob,
        Self::CancelJob,
        Self::RequeueJob,
        Self::Partitions,
        Self::Partition,
        Self::Reservations,
        Self::Reservation,
        Self::WriteReservation,
        Self::DeleteReservation,
        Self::Accounts,
        Self::Users,
        Self::Clusters,
        Self::Qos,
        Self::AccountedJobs,
    ];

    pub(super) fn route(self) -> Route {
        let slurm = |method, kind, path| Route { method, plugin: "slurm", path, kind };
        let slurmdb = |path| Route { method: Method::GET, plugin: "slurmdb", path, kind: Kind::List };
        match self {
            Self::OpenApi => Route { method: Method::GET, plugin: "", path: "openapi/v3", kind: Kind::List },
            Self::Ping => slurm(Method::GET, Kind::List, "ping/"),
            Self::Diag => slurm(Method::GET, Kind::List, "diag/"),
            Self::Conf => slurm(Method::GET, Kind::List, "conf"),
            // These two are GET in Slurm, but have side effects.
            Self::Reconfigure => slurm(Method::GET, Kind::Write, "reconfigure/"),
            Self::RequeueJob => slurm(Method::GET, Kind::Write, "job/{job_id}/requeue"),
            Self::Nodes => slurm(Method::GET, Kind::List, "nodes/"),
            Self::UpdateNodes => slurm(Method::POST, Kind::Write, "nodes/"),
            Self::Node => slurm(Method::GET, Kind::Get, "node/{node_name}"),
            Self::UpdateNode | Self::NodeTopology => slurm(Method::POST, Kind::Write, "node/{node_name}"),
            Self::DeleteNode => slurm(Method::DELETE, Kind::Write, "node/{node_name}"),
            Self::NewNode => slurm(Method::POST, Kind::Write, "new/node/"),
            Self::Jobs => slurm(Method::GET, Kind::List, "jobs/"),
            Self::JobStates => slurm(Method::GET, Kind::List, "jobs/state/"),
            Self::Job => slurm(Method::GET, Kind::Get, "job/{job_id}"),
            Self::SubmitJob => slurm(Method::POST, Kind::Write, "job/submit"),
            Self::CancelJob => slurm(Method::DELETE, Kind::Write, "job/{job_id}"),
            Self::Partitions => slurm(Method::GET, Kind::List, "partitions/"),
            Self::Partition => slurm(Method::GET, Kind::Get, "partition/{partition_name}"),
            Self::Reservations => slurm(Method::GET, Kind::List, "reservations/"),
            Self::Reservation => slurm(Method::GET, Kind::Get, "reservation/{reservation_name}"),
            Self::WriteReservation => slurm(Method::POST, Kind::Write, "reservation"),
            Self::DeleteReservation => slurm(Method::DELETE, Kind::Write, "reservation/{reservation_name}"),
            Self::Accounts => slurmdb("accounts/"),
            Self::Users => slurmdb("users/"),
            Self::Clusters => slurmdb("clusters/"),
            Self::Qos => slurmdb("qos/"),
            Self::AccountedJobs => slurmdb("jobs/"),
        }
    }

    /// Description for messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenApi => "list what is offered",
            Self::Ping => "ping",
            Self::Diag => "read statistics",
            Self::Conf => "read the configuration",
            Self::Reconfigure => "reconfigure",
            Self::Nodes => "list nodes",
            Self::UpdateNodes => "change nodes",
            Self::Node => "read node",
            Self::UpdateNode => "change node",
            Self::DeleteNode => "delete node",
            Self::NewNode => "make node",
            Self::NodeTopology => "change topology of node",
            Self::Jobs => "list jobs",
            Self::JobStates => "list job states",
            Self::Job => "read job",
            Self::SubmitJob => "submit job",
            Self::CancelJob => "cancel job",
            Self::RequeueJob => "requeue job",
            Self::Partitions => "list partitions",
            Self::Partition => "read partition",
            Self::Reservations => "list reservations",
            Self::Reservation => "read reservation",
            Self::WriteReservation => "write reservation",
            Self::DeleteReservation => "delete reservation",
            Self::Accounts => "list accounts",
            Self::Users => "list users",
            Self::Clusters => "list clusters",
            Self::Qos => "list QOS",
            Self::AccountedJobs => "list accounted jobs",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What both the server and this crate support.
#[derive(Clone, Debug)]
pub(super) struct Capabilities {
    pub rest: RestVersion,
    pub slurm: Option<SlurmVersion>,
    calls: Vec<Call>,
}

impl Capabilities {
    pub(super) fn has(&self, call: Call) -> bool {
        match call {
            Call::OpenApi => true,
            // No path of its own: versions before v0.0.43 drop the field with only a warning.
            Call::NodeTopology => self.rest >= RestVersion::V43,
            _ => self.calls.contains(&call),
        }
    }

    /// Chooses the newest version that both sides support, or the requested one.
    pub(super) fn negotiate(paths: &OpenApi, wanted: Option<RestVersion>) -> Result<Self, Error> {
        let served = |rest: &RestVersion| paths.has(*rest, Call::Ping);
        let rest = RestVersion::ALL.into_iter().rev().filter(|rest| wanted.is_none_or(|wanted| wanted == *rest));
        let Some(rest) = rest.into_iter().find(served) else {
            return Err(Error::NoCommonVersion { offered: paths.versions() });
        };
        let calls = Call::ALL.into_iter().filter(|call| paths.has(rest, *call)).collect();
        Ok(Self { rest, slurm: paths.slurm(), calls })
    }
}

/// The part of `/openapi/v3` that lists what the server offers: of 1.5 MB only the paths are kept.
#[derive(Debug, Default, Deserialize)]
pub(super) struct OpenApi {
    #[serde(deserialize_with = "slurm_paths")]
    paths: BTreeMap<String, Methods>,
    #[serde(default)]
    info: Info,
}

/// The paths of Slurm, which are a few hundred.
fn slurm_paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Methods>, D::Error> {
    deserializer.deserialize_map(PathsVisitor)
}

/// The number of paths that are kept.
const MAX_PATHS: usize = 10_000;

struct PathsVisitor;

impl<'de> Visitor<'de> for PathsVisitor {
    type Value = BTreeMap<String, Methods>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("paths")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut paths = BTreeMap::new();
        while let Some((path, methods)) = map.next_entry::<String, Methods>()? {
            if path.starts_with("/slurm") && paths.len() < MAX_PATHS {
                paths.insert(path, methods);
            }
        }
        Ok(paths)
    }
}

/// Methods of a path. The descriptions, nearly all of the text, are skipped.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Methods {
    get: Option<IgnoredAny>,
    post: Option<IgnoredAny>,
    delete: Option<IgnoredAny>,
}

impl Methods {
    fn has(&self, method: &Method) -> bool {
        match method.as_str() {
            "GET" => self.get.is_some(),
            "POST" => self.post.is_some(),
            "DELETE" => self.delete.is_some(),
            _ => false,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Info {
    version: String,
}

impl OpenApi {
    fn has(&self, rest: RestVersion, call: Call) -> bool {
        let Route { method, plugin, path, .. } = call.route();
        let full = format!("/{plugin}/{rest}/{path}");
        self.paths.get(&full).is_some_and(|methods| methods.has(&method))
    }

    /// `Slurm-24.11.5&openapi/slurmctld&…`
    fn slurm(&self) -> Option<SlurmVersion> {
        let text = self.info.version.strip_prefix("Slurm-")?;
        text.split('&').next()?.parse().ok()
    }

    fn versions(&self) -> Vec<String> {
        let mut versions: Vec<String> =
            self.paths.keys().filter_map(|path| path.strip_prefix("/slurm/")?.split('/').next()).map(short).collect();
        versions.dedup();
        versions
    }
}

/// Shortens server-provided text for messages.
fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(32).collect()
}
