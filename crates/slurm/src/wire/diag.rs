//! slurmctld's statistics about itself.

use jiff::Timestamp;
use serde::{Deserialize, de::MapAccess};

use super::{envelope::Body, fields};

/// What slurmctld counts, since it started or since midnight UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Diag {
    /// When these numbers were taken.
    #[serde(deserialize_with = "fields::time")]
    pub req_time: Option<Timestamp>,
    /// Since when they count; after a restart of slurmctld, since then.
    #[serde(deserialize_with = "fields::time")]
    pub req_time_start: Option<Timestamp>,
    /// Threads that serve requests now.
    #[serde(deserialize_with = "fields::number")]
    pub server_thread_count: u64,
    /// Messages waiting to go out.
    #[serde(deserialize_with = "fields::number")]
    pub agent_queue_size: u64,
    /// Threads that send them.
    #[serde(deserialize_with = "fields::number")]
    pub agent_count: u64,
    /// Records waiting for slurmdbd.
    #[serde(deserialize_with = "fields::number")]
    pub dbd_agent_queue_size: u64,
    /// Jobs handed in.
    #[serde(deserialize_with = "fields::number")]
    pub jobs_submitted: u64,
    /// Jobs started.
    #[serde(deserialize_with = "fields::number")]
    pub jobs_started: u64,
    /// Jobs that ended well.
    #[serde(deserialize_with = "fields::number")]
    pub jobs_completed: u64,
    /// Jobs cancelled.
    #[serde(deserialize_with = "fields::number")]
    pub jobs_canceled: u64,
    /// Jobs that failed.
    #[serde(deserialize_with = "fields::number")]
    pub jobs_failed: u64,
    /// Jobs waiting, at `job_states_ts`.
    #[serde(deserialize_with = "fields::number")]
    pub jobs_pending: u64,
    /// Jobs running, at `job_states_ts`.
    #[serde(deserialize_with = "fields::number")]
    pub jobs_running: u64,
    /// When those two were counted.
    #[serde(deserialize_with = "fields::time")]
    pub job_states_ts: Option<Timestamp>,
    /// Rounds of the main scheduler.
    #[serde(deserialize_with = "fields::number")]
    pub schedule_cycle_total: u64,
    /// How long its last round took, in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub schedule_cycle_last: u64,
    /// How long its longest took.
    #[serde(deserialize_with = "fields::number")]
    pub schedule_cycle_max: u64,
    /// How long a round takes on average.
    #[serde(deserialize_with = "fields::number")]
    pub schedule_cycle_mean: u64,
    /// Jobs in its queue.
    #[serde(deserialize_with = "fields::number")]
    pub schedule_queue_length: u64,
    /// Jobs started by backfill.
    #[serde(deserialize_with = "fields::number")]
    pub bf_backfilled_jobs: u64,
    /// Rounds of backfill.
    #[serde(deserialize_with = "fields::number")]
    pub bf_cycle_counter: u64,
    /// How long its last round took, in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub bf_cycle_last: u64,
    /// How long its longest took.
    #[serde(deserialize_with = "fields::number")]
    pub bf_cycle_max: u64,
    /// How long a round takes on average.
    #[serde(deserialize_with = "fields::number")]
    pub bf_cycle_mean: u64,
    /// Jobs in its queue.
    #[serde(deserialize_with = "fields::number")]
    pub bf_queue_len: u64,
    /// Whether it is at work.
    #[serde(deserialize_with = "fields::flag")]
    pub bf_active: bool,
    /// Requests by their kind.
    pub rpcs_by_message_type: Vec<RpcByType>,
    /// Requests by their user.
    pub rpcs_by_user: Vec<RpcByUser>,
}

/// How many requests of one kind there were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RpcByType {
    /// The kind: `REQUEST_NODE_INFO`.
    #[serde(deserialize_with = "fields::text")]
    pub message_type: String,
    /// How many.
    #[serde(deserialize_with = "fields::number")]
    pub count: u64,
    /// How many wait; from v0.0.42 on.
    #[serde(deserialize_with = "fields::number")]
    pub queued: u64,
    /// How many were dropped; from v0.0.42 on.
    #[serde(deserialize_with = "fields::number")]
    pub dropped: u64,
    /// All their time, in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub total_time: u64,
    /// Their time on average, in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub average_time: u64,
}

/// How many requests of one user there were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RpcByUser {
    /// The number of the user.
    #[serde(deserialize_with = "fields::number")]
    pub user_id: u64,
    /// The user.
    #[serde(deserialize_with = "fields::text")]
    pub user: String,
    /// How many.
    #[serde(deserialize_with = "fields::number")]
    pub count: u64,
    /// All their time, in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub total_time: u64,
    /// Their time on average, in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub average_time: u64,
}

/// The answer while it is read.
#[derive(Debug, Default)]
pub struct DiagAnswer(Option<Diag>);

impl Body for DiagAnswer {
    type Output = Diag;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key == "statistics" {
            self.0 = Some(map.next_value()?);
        }
        Ok(key == "statistics")
    }

    fn finish(self) -> Result<Diag, &'static str> {
        self.0.ok_or("statistics")
    }
}
