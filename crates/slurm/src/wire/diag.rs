//! Statistics of slurmctld.

use jiff::Timestamp;
use serde::{Deserialize, de::MapAccess};

use super::{envelope::Body, fields};

/// Counters of slurmctld, since its start or since midnight UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Diag {
    /// When the statistics were collected.
    #[serde(deserialize_with = "fields::time")]
    pub req_time: Option<Timestamp>,
    /// Start of the counting; also reset by a restart of slurmctld.
    #[serde(deserialize_with = "fields::time")]
    pub req_time_start: Option<Timestamp>,
    #[serde(deserialize_with = "fields::number")]
    pub server_thread_count: u64,
    /// Number of outgoing messages in the queue.
    #[serde(deserialize_with = "fields::number")]
    pub agent_queue_size: u64,
    /// Threads that send messages.
    #[serde(deserialize_with = "fields::number")]
    pub agent_count: u64,
    /// Records waiting for slurmdbd.
    #[serde(deserialize_with = "fields::number")]
    pub dbd_agent_queue_size: u64,
    #[serde(deserialize_with = "fields::number")]
    pub jobs_submitted: u64,
    #[serde(deserialize_with = "fields::number")]
    pub jobs_started: u64,
    #[serde(deserialize_with = "fields::number")]
    pub jobs_completed: u64,
    #[serde(deserialize_with = "fields::number")]
    pub jobs_canceled: u64,
    #[serde(deserialize_with = "fields::number")]
    pub jobs_failed: u64,
    /// Pending jobs at `job_states_ts`.
    #[serde(deserialize_with = "fields::number")]
    pub jobs_pending: u64,
    /// Running jobs at `job_states_ts`.
    #[serde(deserialize_with = "fields::number")]
    pub jobs_running: u64,
    /// When pending and running jobs were counted.
    #[serde(deserialize_with = "fields::time")]
    pub job_states_ts: Option<Timestamp>,
    /// Cycles of the main scheduler.
    #[serde(deserialize_with = "fields::number")]
    pub schedule_cycle_total: u64,
    /// Duration of its last cycle in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub schedule_cycle_last: u64,
    /// Duration of its longest cycle in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub schedule_cycle_max: u64,
    /// Mean duration of a cycle in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub schedule_cycle_mean: u64,
    #[serde(deserialize_with = "fields::number")]
    pub schedule_queue_length: u64,
    /// Jobs started by backfill.
    #[serde(deserialize_with = "fields::number")]
    pub bf_backfilled_jobs: u64,
    /// Backfill cycles.
    #[serde(deserialize_with = "fields::number")]
    pub bf_cycle_counter: u64,
    /// Duration of the last cycle in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub bf_cycle_last: u64,
    /// Duration of the longest cycle in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub bf_cycle_max: u64,
    /// Mean duration of a cycle in microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub bf_cycle_mean: u64,
    #[serde(deserialize_with = "fields::number")]
    pub bf_queue_len: u64,
    /// Whether backfill is running now.
    #[serde(deserialize_with = "fields::flag")]
    pub bf_active: bool,
    #[serde(deserialize_with = "fields::few")]
    pub rpcs_by_message_type: Vec<RpcByType>,
    #[serde(deserialize_with = "fields::few")]
    pub rpcs_by_user: Vec<RpcByUser>,
}

/// Statistics of one type of request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RpcByType {
    /// Message type: `REQUEST_NODE_INFO`.
    #[serde(deserialize_with = "fields::text")]
    pub message_type: String,
    #[serde(deserialize_with = "fields::number")]
    pub count: u64,
    /// Since v0.0.42.
    #[serde(deserialize_with = "fields::number")]
    pub queued: u64,
    /// Since v0.0.42.
    #[serde(deserialize_with = "fields::number")]
    pub dropped: u64,
    /// In microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub total_time: u64,
    /// In microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub average_time: u64,
}

/// Statistics of one user's requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RpcByUser {
    #[serde(deserialize_with = "fields::number")]
    pub user_id: u64,
    #[serde(deserialize_with = "fields::text")]
    pub user: String,
    #[serde(deserialize_with = "fields::number")]
    pub count: u64,
    /// In microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub total_time: u64,
    /// In microseconds.
    #[serde(deserialize_with = "fields::number")]
    pub average_time: u64,
}

/// Response body during decoding.
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
