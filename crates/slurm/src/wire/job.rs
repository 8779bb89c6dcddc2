//! Jobs in slurmctld.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::MapAccess};
use thiserror::Error;

use super::{
    NoVal,
    envelope::{Body, Record},
    fields,
};
use crate::states::JobStates;

/// Id of a job, or of one task of a job array: `12` or `12_3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// Id of the job or the whole array.
    pub id: u32,
    /// Index of the task in the array.
    pub task: Option<u32>,
}

impl From<u32> for JobId {
    fn from(id: u32) -> Self {
        Self { id, task: None }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        self.task.map_or(Ok(()), |task| write!(f, "_{task}"))
    }
}

/// A text is not a job id.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a job id such as 12 or 12_3")]
pub struct NotAJobId(String);

impl FromStr for JobId {
    type Err = NotAJobId;

    fn from_str(text: &str) -> Result<Self, NotAJobId> {
        let fail = || NotAJobId(text.chars().take(64).collect());
        let number = |part: &str| part.parse::<u32>().map_err(|_| fail());
        match text.split_once('_') {
            None => number(text).map(Self::from),
            Some((id, task)) => Ok(Self { id: number(id)?, task: Some(number(task)?) }),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Job {
    pub job_id: u32,
    /// Id of the array; zero or unset if none.
    pub array_job_id: NoVal,
    /// Index of the task in the array.
    pub array_task_id: NoVal,
    /// Tasks of the array that have no record of their own yet: `0-2`.
    #[serde(deserialize_with = "fields::text")]
    pub array_task_string: String,
    /// Id of the first component of the heterogeneous job; zero or unset if none.
    pub het_job_id: NoVal,
    pub het_job_offset: NoVal,
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    #[serde(deserialize_with = "fields::number")]
    pub user_id: u64,
    #[serde(deserialize_with = "fields::text")]
    pub user_name: String,
    #[serde(deserialize_with = "fields::text")]
    pub account: String,
    /// Partition, or several in which the job may start.
    #[serde(deserialize_with = "fields::text")]
    pub partition: String,
    #[serde(deserialize_with = "fields::text")]
    pub qos: String,
    /// Base state and flags.
    pub job_state: JobStates,
    /// Why the job is pending or failed, in one word.
    #[serde(deserialize_with = "fields::text")]
    pub state_reason: String,
    /// Details of the reason.
    #[serde(deserialize_with = "fields::text")]
    pub state_description: String,
    /// Host list of the nodes that the job has or had.
    #[serde(deserialize_with = "fields::hostlist")]
    pub nodes: String,
    /// Host list of the nodes that the job requires.
    #[serde(deserialize_with = "fields::hostlist")]
    pub required_nodes: String,
    /// Node that runs the batch script.
    #[serde(deserialize_with = "fields::text")]
    pub batch_host: String,
    pub node_count: NoVal,
    pub cpus: NoVal,
    pub tasks: NoVal,
    #[serde(deserialize_with = "fields::time")]
    pub submit_time: Option<Timestamp>,
    #[serde(deserialize_with = "fields::time")]
    pub eligible_time: Option<Timestamp>,
    /// Start time, or the expected one.
    #[serde(deserialize_with = "fields::time")]
    pub start_time: Option<Timestamp>,
    /// End time, or the latest possible one.
    #[serde(deserialize_with = "fields::time")]
    pub end_time: Option<Timestamp>,
    /// In minutes.
    pub time_limit: NoVal,
    /// Requested trackable resources.
    #[serde(deserialize_with = "fields::text")]
    pub tres_req_str: String,
    /// Allocated trackable resources.
    #[serde(deserialize_with = "fields::text")]
    pub tres_alloc_str: String,
    /// Jobs with a higher priority start first.
    pub priority: NoVal,
    /// Whether the job is held.
    #[serde(deserialize_with = "fields::flag")]
    pub hold: bool,
    /// Whether the job may be requeued.
    #[serde(deserialize_with = "fields::flag")]
    pub requeue: bool,
    /// Number of requeues.
    #[serde(deserialize_with = "fields::number")]
    pub restart_cnt: u64,
    pub exit_code: ExitCode,
    #[serde(deserialize_with = "fields::text")]
    pub resv_name: String,
    #[serde(deserialize_with = "fields::text")]
    pub dependency: String,
    #[serde(deserialize_with = "fields::text")]
    pub comment: String,
    #[serde(deserialize_with = "fields::text")]
    pub admin_comment: String,
    #[serde(deserialize_with = "fields::text")]
    pub cluster: String,
}

impl Record for Job {
    const KEY: &'static str = "jobs";
}

/// State, nodes, partition and time limit of a job only: for long lists that are polled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobBrief {
    pub job_id: u32,
    /// Base state and flags.
    pub job_state: JobStates,
    /// Host list of the nodes that the job has or had.
    #[serde(deserialize_with = "fields::hostlist")]
    pub nodes: String,
    /// Host list of the nodes that the job requires.
    #[serde(deserialize_with = "fields::hostlist")]
    pub required_nodes: String,
    /// Host list of the nodes that the job must not get.
    #[serde(deserialize_with = "fields::hostlist")]
    pub excluded_nodes: String,
    /// Partition, or several in which the job may start.
    #[serde(deserialize_with = "fields::text")]
    pub partition: String,
    /// Start time, or the expected one.
    #[serde(deserialize_with = "fields::time")]
    pub start_time: Option<Timestamp>,
    /// In minutes.
    pub time_limit: NoVal,
    /// Whether slurmd manages the steps of the job (`--stepmgr`).
    #[serde(rename = "flags", deserialize_with = "step_manager")]
    pub has_step_manager: bool,
}

fn step_manager<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    fields::list(deserializer).map(|flags| flags.iter().any(|flag| flag == "STEPMGR_ENABLED"))
}

impl Job {
    /// Latest end time of a running job with a time limit.
    pub fn deadline(&self) -> Option<Timestamp> {
        deadline(&self.job_state, self.start_time, self.time_limit)
    }
}

impl JobBrief {
    /// Latest end time of a running job with a time limit.
    pub fn deadline(&self) -> Option<Timestamp> {
        deadline(&self.job_state, self.start_time, self.time_limit)
    }
}

fn deadline(state: &JobStates, start: Option<Timestamp>, limit: NoVal) -> Option<Timestamp> {
    let minutes = i64::try_from(limit.number()?).ok()?;
    let limit = jiff::SignedDuration::from_secs(minutes.checked_mul(60)?);
    start.filter(|_| state.holds_nodes())?.checked_add(limit).ok()
}

impl Record for JobBrief {
    const KEY: &'static str = Job::KEY;

    fn size(&self) -> usize {
        let texts = [&self.nodes, &self.required_nodes, &self.excluded_nodes, &self.partition];
        size_of::<Self>() + texts.into_iter().map(String::len).sum::<usize>()
    }
}

/// How a job or its batch script ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ExitCode {
    /// `SUCCESS`, `SIGNALED`.
    #[serde(deserialize_with = "fields::list")]
    pub status: Vec<String>,
    pub return_code: NoVal,
}

/// One entry of the list of job states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobStateEntry {
    /// A job, a task of an array (`2_0`) or several tasks (`2_[1-2]`).
    #[serde(deserialize_with = "fields::text")]
    pub job_id: String,
    /// Base state and flags.
    pub state: JobStates,
}

impl Record for JobStateEntry {
    const KEY: &'static str = "jobs";
}

/// A submitted job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submitted {
    pub job_id: u32,
    /// Message of a job-submit plugin for the user.
    pub user_message: String,
}

/// Response to a submission during decoding.
#[derive(Debug, Default)]
pub struct SubmitAnswer {
    job_id: Option<u32>,
    user_message: Option<String>,
}

impl Body for SubmitAnswer {
    type Output = Submitted;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "job_id" => self.job_id = map.next_value()?,
            "job_submit_user_msg" => self.user_message = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(self) -> Result<Submitted, &'static str> {
        let job_id = self.job_id.filter(|id| *id != 0).ok_or("job_id")?;
        Ok(Submitted { job_id, user_message: self.user_message.unwrap_or_default() })
    }
}

/// Result for one job of a call to cancel, signal or requeue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StepStatus {
    /// Job or step.
    #[serde(deserialize_with = "fields::text")]
    pub step_id: String,
    pub error: StepError,
}

/// Error of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StepError {
    /// Slurm's error code; zero if none.
    pub code: i64,
    /// Meaning of the error code.
    #[serde(deserialize_with = "fields::text")]
    pub string: String,
}

/// Response to such a call: empty (v0.0.41), or the failures.
#[derive(Debug, Default)]
pub struct StepStatuses(Vec<StepStatus>);

impl Body for StepStatuses {
    type Output = Vec<StepStatus>;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key == "status" {
            self.0 = map.next_value::<Option<fields::Few<_>>>()?.unwrap_or_default().0;
        }
        Ok(key == "status")
    }

    fn finish(self) -> Result<Vec<StepStatus>, &'static str> {
        Ok(self.0)
    }
}
