//! Jobs, as slurmctld knows them.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, de::MapAccess};
use thiserror::Error;

use super::{
    NoVal,
    envelope::{Body, Record},
    fields,
};
use crate::states::JobStates;

/// A job, or one task of an array of jobs: `12` or `12_3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// The number of the job, or of the whole array.
    pub id: u32,
    /// The task of the array.
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

/// A text that names no job.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a job such as 12 or 12_3")]
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

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Its number.
    pub job_id: u32,
    /// The number of the array it belongs to; zero or unset if none.
    pub array_job_id: NoVal,
    /// Which task of the array it is.
    pub array_task_id: NoVal,
    /// Which tasks of the array have not been split off yet: `0-2`.
    #[serde(deserialize_with = "fields::text")]
    pub array_task_string: String,
    /// The first job of the heterogeneous job it belongs to; zero or unset if none.
    pub het_job_id: NoVal,
    /// Which part of the heterogeneous job it is.
    pub het_job_offset: NoVal,
    /// Its name.
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    /// The number of its user.
    #[serde(deserialize_with = "fields::number")]
    pub user_id: u64,
    /// Its user.
    #[serde(deserialize_with = "fields::text")]
    pub user_name: String,
    /// The account it is charged to.
    #[serde(deserialize_with = "fields::text")]
    pub account: String,
    /// Its partition, or several it could start in.
    #[serde(deserialize_with = "fields::text")]
    pub partition: String,
    /// Its quality of service.
    #[serde(deserialize_with = "fields::text")]
    pub qos: String,
    /// Base state and flags.
    pub job_state: JobStates,
    /// Why it waits or has failed, in one word.
    #[serde(deserialize_with = "fields::text")]
    pub state_reason: String,
    /// More about that.
    #[serde(deserialize_with = "fields::text")]
    pub state_description: String,
    /// The nodes it has or had, as a host list.
    #[serde(deserialize_with = "fields::hostlist")]
    pub nodes: String,
    /// The nodes it must have, as a host list.
    #[serde(deserialize_with = "fields::hostlist")]
    pub required_nodes: String,
    /// Where its script runs.
    #[serde(deserialize_with = "fields::text")]
    pub batch_host: String,
    /// How many nodes.
    pub node_count: NoVal,
    /// How many processors.
    pub cpus: NoVal,
    /// How many tasks.
    pub tasks: NoVal,
    /// When it was handed in.
    #[serde(deserialize_with = "fields::time")]
    pub submit_time: Option<Timestamp>,
    /// From when on it may start.
    #[serde(deserialize_with = "fields::time")]
    pub eligible_time: Option<Timestamp>,
    /// When it started, or is expected to.
    #[serde(deserialize_with = "fields::time")]
    pub start_time: Option<Timestamp>,
    /// When it ended, or must have ended.
    #[serde(deserialize_with = "fields::time")]
    pub end_time: Option<Timestamp>,
    /// How long it may run, in minutes.
    pub time_limit: NoVal,
    /// The trackable resources it asked for.
    #[serde(deserialize_with = "fields::text")]
    pub tres_req_str: String,
    /// The trackable resources it has.
    #[serde(deserialize_with = "fields::text")]
    pub tres_alloc_str: String,
    /// Its place in the queue: the higher the sooner.
    pub priority: NoVal,
    /// Whether somebody holds it back.
    #[serde(deserialize_with = "fields::flag")]
    pub hold: bool,
    /// Whether it may be put back into the queue.
    #[serde(deserialize_with = "fields::flag")]
    pub requeue: bool,
    /// How often it was.
    #[serde(deserialize_with = "fields::number")]
    pub restart_cnt: u64,
    /// How it ended.
    pub exit_code: ExitCode,
    /// The reservation it uses.
    #[serde(deserialize_with = "fields::text")]
    pub resv_name: String,
    /// What it waits for.
    #[serde(deserialize_with = "fields::text")]
    pub dependency: String,
    /// Its user's free text.
    #[serde(deserialize_with = "fields::text")]
    pub comment: String,
    /// The administrators' free text.
    #[serde(deserialize_with = "fields::text")]
    pub admin_comment: String,
    /// The cluster it runs on.
    #[serde(deserialize_with = "fields::text")]
    pub cluster: String,
}

impl Record for Job {
    const KEY: &'static str = "jobs";
}

/// What a job does, where and until when, and nothing else: for long lists that are read over and over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobBrief {
    /// Its number.
    pub job_id: u32,
    /// Base state and flags.
    pub job_state: JobStates,
    /// The nodes it has or had, as a host list.
    #[serde(deserialize_with = "fields::hostlist")]
    pub nodes: String,
    /// When it started, or is expected to.
    #[serde(deserialize_with = "fields::time")]
    pub start_time: Option<Timestamp>,
    /// How long it may run, in minutes.
    pub time_limit: NoVal,
}

impl Job {
    /// By when it will have ended at the latest, if it runs and has a limit.
    pub fn deadline(&self) -> Option<Timestamp> {
        deadline(&self.job_state, self.start_time, self.time_limit)
    }
}

impl JobBrief {
    /// By when it will have ended at the latest, if it runs and has a limit.
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
}

/// How a job or its script ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ExitCode {
    /// In words: `SUCCESS`, `SIGNALED`.
    #[serde(deserialize_with = "fields::list")]
    pub status: Vec<String>,
    /// What the process returned.
    pub return_code: NoVal,
}

/// One line of the short list of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobStateEntry {
    /// The job, a task of an array (`2_0`) or several tasks (`2_[1-2]`).
    #[serde(deserialize_with = "fields::text")]
    pub job_id: String,
    /// Base state and flags.
    pub state: JobStates,
}

impl Record for JobStateEntry {
    const KEY: &'static str = "jobs";
}

/// A job that was handed in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submitted {
    /// Its number.
    pub job_id: u32,
    /// What a job-submit plugin has to say to the user.
    pub user_message: String,
}

/// The answer to a job handed in, while it is read.
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

/// What became of one job that a call was to end, to signal or to requeue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StepStatus {
    /// The job or step.
    #[serde(deserialize_with = "fields::text")]
    pub step_id: String,
    /// What went wrong with it.
    pub error: StepError,
}

/// What went wrong with one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StepError {
    /// Slurm's number of the error; zero if none.
    pub code: i64,
    /// What that number means.
    #[serde(deserialize_with = "fields::text")]
    pub string: String,
}

/// The answer to such a call: says nothing (v0.0.41), or what failed.
#[derive(Debug, Default)]
pub struct StepStatuses(Vec<StepStatus>);

impl Body for StepStatuses {
    type Output = Vec<StepStatus>;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key == "status" {
            self.0 = map.next_value::<Option<_>>()?.unwrap_or_default();
        }
        Ok(key == "status")
    }

    fn finish(self) -> Result<Vec<StepStatus>, &'static str> {
        Ok(self.0)
    }
}
