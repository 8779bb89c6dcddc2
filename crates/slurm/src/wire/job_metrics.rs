//! The fields of jobs that become metrics, from slurmctld and from slurmdbd.

use jiff::Timestamp;
use serde::Deserialize;

use super::{Job, NoVal, Tres, envelope::Record, fields};
use crate::states::JobStates;

/// The fields of a job that become metrics. Texts are cut to what a label may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobMetrics {
    pub job_id: u32,
    /// Id of the array; zero or unset if none.
    pub array_job_id: NoVal,
    /// Index of the task in the array.
    pub array_task_id: NoVal,
    /// Tasks of the array that have no record of their own yet: `0-2`.
    #[serde(deserialize_with = "fields::label")]
    pub array_task_string: String,
    #[serde(deserialize_with = "fields::label")]
    pub name: String,
    pub user_id: NoVal,
    #[serde(deserialize_with = "fields::label")]
    pub user_name: String,
    /// The name of the user, unless the job says otherwise.
    #[serde(deserialize_with = "fields::label")]
    pub mail_user: String,
    #[serde(deserialize_with = "fields::label")]
    pub partition: String,
    /// Base state and flags.
    pub job_state: JobStates,
    /// Why the job is pending or failed, in one word.
    #[serde(deserialize_with = "fields::label")]
    pub state_reason: String,
    /// From 25.05 on with placeholders, such as `slurm-%j.out`.
    #[serde(deserialize_with = "fields::label")]
    pub standard_output: String,
    #[serde(deserialize_with = "fields::label")]
    pub standard_error: String,
    /// Without placeholders; since 25.05.
    #[serde(deserialize_with = "fields::label")]
    pub stdout_expanded: String,
    #[serde(deserialize_with = "fields::label")]
    pub stderr_expanded: String,
    /// Host list of the nodes that the job has or had.
    #[serde(deserialize_with = "fields::hostlist")]
    pub nodes: String,
    pub node_count: NoVal,
    pub cpus: NoVal,
    /// In MiB.
    pub memory_per_node: NoVal,
    #[serde(deserialize_with = "fields::time")]
    pub submit_time: Option<Timestamp>,
    /// Start time, or the expected one.
    #[serde(deserialize_with = "fields::time")]
    pub start_time: Option<Timestamp>,
    /// End time, or the latest possible one.
    #[serde(deserialize_with = "fields::time")]
    pub end_time: Option<Timestamp>,
    /// Requested trackable resources.
    #[serde(deserialize_with = "fields::label")]
    pub tres_req_str: String,
    /// Allocated trackable resources.
    #[serde(deserialize_with = "fields::label")]
    pub tres_alloc_str: String,
}

impl Record for JobMetrics {
    const KEY: &'static str = Job::KEY;
    const MOST: usize = 64 << 20;

    fn size(&self) -> usize {
        let texts = [
            &self.array_task_string,
            &self.name,
            &self.user_name,
            &self.mail_user,
            &self.partition,
            &self.state_reason,
            &self.standard_output,
            &self.standard_error,
            &self.stdout_expanded,
            &self.stderr_expanded,
            &self.nodes,
            &self.tres_req_str,
            &self.tres_alloc_str,
        ];
        size_of::<Self>() + texts.into_iter().map(String::len).sum::<usize>()
    }
}

/// The same of a job in the accounting database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WireJob")]
pub struct AccountedJobMetrics(pub JobMetrics);

impl Record for AccountedJobMetrics {
    const KEY: &'static str = Job::KEY;
    const MOST: usize = JobMetrics::MOST;

    fn size(&self) -> usize {
        self.0.size()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireJob {
    #[serde(deserialize_with = "fields::number")]
    job_id: u64,
    array: WireArray,
    #[serde(deserialize_with = "fields::label")]
    name: String,
    #[serde(deserialize_with = "fields::label")]
    user: String,
    #[serde(deserialize_with = "fields::label")]
    partition: String,
    state: WireState,
    #[serde(deserialize_with = "fields::label")]
    stdout: String,
    #[serde(deserialize_with = "fields::label")]
    stderr: String,
    #[serde(deserialize_with = "fields::label")]
    stdout_expanded: String,
    #[serde(deserialize_with = "fields::label")]
    stderr_expanded: String,
    #[serde(deserialize_with = "fields::hostlist")]
    nodes: String,
    #[serde(deserialize_with = "fields::number")]
    allocation_nodes: u64,
    required: WireRequired,
    time: WireTimes,
    tres: WireTres,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireArray {
    job_id: NoVal,
    task_id: NoVal,
    #[serde(deserialize_with = "fields::label")]
    task: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireState {
    current: JobStates,
    #[serde(deserialize_with = "fields::label")]
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireRequired {
    #[serde(rename = "CPUs")]
    cpus: NoVal,
    memory_per_node: NoVal,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTimes {
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
    #[serde(deserialize_with = "fields::few")]
    allocated: Vec<Tres>,
    #[serde(deserialize_with = "fields::few")]
    requested: Vec<Tres>,
}

impl From<WireJob> for AccountedJobMetrics {
    fn from(wire: WireJob) -> Self {
        let WireTimes { submission, start, end, limit } = wire.time;
        let is_running = wire.state.current.is_running();
        // As slurmctld says it for a running job: the time at which its limit ends it.
        let latest = || {
            let minutes = i64::try_from(limit.number()?).ok()?;
            let limit = jiff::SignedDuration::from_secs(minutes.checked_mul(60)?);
            start.filter(|_| is_running)?.checked_add(limit).ok()
        };
        Self(JobMetrics {
            job_id: u32::try_from(wire.job_id).unwrap_or_default(),
            array_job_id: wire.array.job_id,
            array_task_id: wire.array.task_id,
            array_task_string: wire.array.task,
            name: wire.name,
            user_id: NoVal::Unset,
            user_name: wire.user,
            mail_user: String::new(),
            partition: wire.partition,
            job_state: wire.state.current,
            state_reason: wire.state.reason,
            standard_output: wire.stdout,
            standard_error: wire.stderr,
            stdout_expanded: wire.stdout_expanded,
            stderr_expanded: wire.stderr_expanded,
            nodes: wire.nodes,
            // It says how many nodes the job has, not how many it waits for.
            node_count: Some(wire.allocation_nodes).filter(|nodes| *nodes > 0).map_or(NoVal::Unset, NoVal::Is),
            cpus: wire.required.cpus,
            memory_per_node: wire.required.memory_per_node,
            submit_time: submission,
            start_time: start,
            end_time: end.or_else(latest),
            tres_req_str: text(&wire.tres.requested),
            tres_alloc_str: text(&wire.tres.allocated),
        })
    }
}

/// Trackable resources as slurmctld writes them.
fn text(all: &[Tres]) -> String {
    let one = |tres: &Tres| {
        let Tres { kind, name, count } = tres;
        let slash = if name.is_empty() { "" } else { "/" };
        // Memory is counted in MiB.
        let unit = if kind == "mem" { "M" } else { "" };
        format!("{kind}{slash}{name}={count}{unit}")
    };
    all.iter().map(one).collect::<Vec<_>>().join(",")
}
