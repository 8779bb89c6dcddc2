//! Calls served by slurmdbd. A slurmrestd without accounting does not offer them.

use jiff::Timestamp;

use super::{Answer, Call, Client, Error, transport::Request};
use crate::wire::{Account, AccountedJob, AccountedJobMetrics, Cluster, Listing, Qos, Records, User};

/// Filter for accounted jobs. If nothing is set, slurmdbd returns the jobs since midnight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Jobs of these users.
    pub users: Vec<String>,
    /// Jobs of these accounts.
    pub accounts: Vec<String>,
    /// Jobs of these clusters.
    pub clusters: Vec<String>,
    /// Jobs in these states: `RUNNING`, `COMPLETED`.
    pub states: Vec<String>,
    /// Jobs that ran on these nodes.
    pub nodes: Vec<String>,
    /// Jobs that had not ended by this time.
    pub start: Option<Timestamp>,
    /// Jobs that had started by this time.
    pub end: Option<Timestamp>,
}

impl JobFilter {
    fn apply(&self, mut request: Request) -> Request {
        let lists = [
            ("users", &self.users),
            ("account", &self.accounts),
            ("cluster", &self.clusters),
            ("state", &self.states),
            ("node", &self.nodes),
        ];
        for (key, words) in lists {
            if !words.is_empty() {
                request = request.query(key, words.join(","));
            }
        }
        for (key, time) in [("start_time", self.start), ("end_time", self.end)] {
            if let Some(time) = time {
                request = request.query(key, format!("uts{}", time.as_second().max(0)));
            }
        }
        request
    }
}

impl Client {
    /// Lists all accounts.
    pub async fn accounts(&self) -> Result<Answer<Listing<Account>>, Error> {
        self.list(Call::Accounts).await
    }

    /// Lists all users, with their default accounts.
    pub async fn users(&self) -> Result<Answer<Listing<User>>, Error> {
        // Without associations slurmdbd omits the default account.
        self.ask::<Records<User>>(Request::new(Call::Users).query("with_assocs", "true")).await
    }

    /// Lists all clusters.
    pub async fn clusters(&self) -> Result<Answer<Listing<Cluster>>, Error> {
        self.list(Call::Clusters).await
    }

    /// Lists all QOS.
    pub async fn qos(&self) -> Result<Answer<Listing<Qos>>, Error> {
        self.list(Call::Qos).await
    }

    /// Lists jobs in the accounting database.
    pub async fn accounted_jobs(&self, filter: &JobFilter) -> Result<Answer<Listing<AccountedJob>>, Error> {
        self.ask::<Records<AccountedJob>>(filter.apply(Request::new(Call::AccountedJobs))).await
    }

    /// Lists jobs in the accounting database with only the fields that become metrics, and with their own times also if those are
    /// outside of the filter's.
    pub async fn accounted_job_metrics(
        &self,
        filter: &JobFilter,
    ) -> Result<Answer<Listing<AccountedJobMetrics>>, Error> {
        let request = filter.apply(Request::new(Call::AccountedJobs));
        self.ask_list(request.query("skip_steps", "true").query("disable_truncate_usage_time", "true")).await
    }
}
