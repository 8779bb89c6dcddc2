//! The paths and the REST versions that offer them.

use axum::http::Method;

use super::release::{Release, RestVersion};

/// The endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
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
    Jobs,
    JobStates,
    Submit,
    Job,
    Cancel,
    Requeue,
    RequeueMany,
    Partitions,
    Partition,
    Reservations,
    Reservation,
    Reserve,
    ReserveMany,
    DeleteReservation,
    DbPing,
    DbAccounts,
    DbAccount,
    DbUsers,
    DbUser,
    DbClusters,
    DbCluster,
    DbJobs,
    DbJob,
}

impl Endpoint {
    /// Whether slurmdbd serves it.
    pub(super) fn is_accounting(self) -> bool {
        use Endpoint::{DbAccount, DbAccounts, DbCluster, DbClusters, DbJob, DbJobs, DbPing, DbUser, DbUsers};
        matches!(self, DbPing | DbAccounts | DbAccount | DbUsers | DbUser | DbClusters | DbCluster | DbJobs | DbJob)
    }
}

/// A method on a path; `V` stands for the REST version.
#[derive(Debug)]
pub(super) struct Route {
    method: Method,
    path: &'static str,
    since: RestVersion,
    pub endpoint: Endpoint,
}

const fn get(path: &'static str, since: RestVersion, endpoint: Endpoint) -> Route {
    Route { method: Method::GET, path, since, endpoint }
}

const fn post(path: &'static str, since: RestVersion, endpoint: Endpoint) -> Route {
    Route { method: Method::POST, path, since, endpoint }
}

const fn delete(path: &'static str, since: RestVersion, endpoint: Endpoint) -> Route {
    Route { method: Method::DELETE, path, since, endpoint }
}

use RestVersion::{V41, V42, V43, V44, V45};

/// Paths without a parameter come before paths with a parameter that would match them too.
static ROUTES: [Route; 34] = [
    get("/openapi/v3", V41, Endpoint::OpenApi),
    get("/slurm/V/ping/", V41, Endpoint::Ping),
    get("/slurm/V/diag/", V41, Endpoint::Diag),
    get("/slurm/V/conf", V45, Endpoint::Conf),
    get("/slurm/V/reconfigure/", V41, Endpoint::Reconfigure),
    get("/slurm/V/nodes/", V41, Endpoint::Nodes),
    post("/slurm/V/nodes/", V41, Endpoint::UpdateNodes),
    get("/slurm/V/node/{node_name}", V41, Endpoint::Node),
    post("/slurm/V/node/{node_name}", V41, Endpoint::UpdateNode),
    delete("/slurm/V/node/{node_name}", V41, Endpoint::DeleteNode),
    post("/slurm/V/new/node/", V44, Endpoint::NewNode),
    get("/slurm/V/jobs/", V41, Endpoint::Jobs),
    get("/slurm/V/jobs/state/", V41, Endpoint::JobStates),
    post("/slurm/V/jobs/requeue", V45, Endpoint::RequeueMany),
    post("/slurm/V/job/submit", V41, Endpoint::Submit),
    get("/slurm/V/job/{job_id}", V41, Endpoint::Job),
    delete("/slurm/V/job/{job_id}", V41, Endpoint::Cancel),
    get("/slurm/V/job/{job_id}/requeue", V45, Endpoint::Requeue),
    get("/slurm/V/partitions/", V41, Endpoint::Partitions),
    get("/slurm/V/partition/{partition_name}", V41, Endpoint::Partition),
    get("/slurm/V/reservations/", V41, Endpoint::Reservations),
    post("/slurm/V/reservations/", V43, Endpoint::ReserveMany),
    post("/slurm/V/reservation", V43, Endpoint::Reserve),
    get("/slurm/V/reservation/{reservation_name}", V41, Endpoint::Reservation),
    delete("/slurm/V/reservation/{reservation_name}", V43, Endpoint::DeleteReservation),
    get("/slurmdb/V/ping/", V42, Endpoint::DbPing),
    get("/slurmdb/V/accounts/", V41, Endpoint::DbAccounts),
    get("/slurmdb/V/account/{account_name}", V41, Endpoint::DbAccount),
    get("/slurmdb/V/users/", V41, Endpoint::DbUsers),
    get("/slurmdb/V/user/{name}", V41, Endpoint::DbUser),
    get("/slurmdb/V/clusters/", V41, Endpoint::DbClusters),
    get("/slurmdb/V/cluster/{cluster_name}", V41, Endpoint::DbCluster),
    get("/slurmdb/V/jobs/", V41, Endpoint::DbJobs),
    get("/slurmdb/V/job/{job_id}", V41, Endpoint::DbJob),
];

impl Route {
    /// Whether a server offers it.
    fn offered(&self, release: Release, version: RestVersion, accounting: bool) -> bool {
        // The only path that a newer release added to an older REST version.
        let given = self.endpoint == Endpoint::DeleteReservation && release >= Release::V26_05;
        (version >= self.since || given) && (accounting || !self.endpoint.is_accounting())
    }

    /// Returns the path parameter (empty if there is none) if the path matches. Trailing slashes are ignored.
    fn matches<'a>(&self, path: &'a str) -> Option<(Option<RestVersion>, &'a str)> {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        let (mut version, mut parameter) = (None, "");
        for wanted in self.path.split('/').filter(|segment| !segment.is_empty()) {
            let segment = segments.next()?;
            if wanted == "V" {
                version = Some(segment.parse::<RestVersion>().ok()?);
            } else if wanted.starts_with('{') {
                parameter = segment;
            } else if wanted != segment {
                return None;
            }
        }
        segments.next().is_none().then_some((version, parameter))
    }

    /// Method and path with `{version}` for the version: the key under which calls are counted.
    pub(super) fn template(&self) -> String {
        format!("{} {}", self.method, self.path.replace("/V/", "/{version}/"))
    }
}

/// The endpoint and parameters of a request.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub route: &'static Route,
    /// The newest version for paths without one.
    pub version: RestVersion,
    pub parameter: &'a str,
}

/// Finds the route of a request, if the server offers it.
pub(super) fn find<'a>(release: Release, accounting: bool, method: &Method, path: &'a str) -> Option<Call<'a>> {
    let served = release.rest_versions();
    let path = if path == "/openapi" || path == "/openapi.json" { "/openapi/v3" } else { path };
    ROUTES.iter().filter(|route| route.method == *method).find_map(|route| {
        let (version, parameter) = route.matches(path)?;
        let version = version.or_else(|| served.last().copied())?;
        let offered = served.contains(&version) && route.offered(release, version, accounting);
        offered.then_some(Call { route, version, parameter })
    })
}

/// All paths that a server offers, with their methods.
pub(super) fn offered(release: Release, accounting: bool) -> impl Iterator<Item = (String, String)> {
    release.rest_versions().iter().flat_map(move |version| {
        let routes = ROUTES.iter().filter(|route| route.endpoint != Endpoint::OpenApi);
        routes.filter(move |route| route.offered(release, *version, accounting)).map(move |route| {
            (route.path.replace("/V/", &format!("/{version}/")), route.method.as_str().to_lowercase())
        })
    })
}
