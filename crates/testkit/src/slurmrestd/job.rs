//! Jobs of the fake slurmctld.

/// A job submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    pub name: String,
    pub user: String,
    pub account: String,
    /// Empty for the default partition.
    pub partition: String,
    /// Number of nodes.
    pub nodes: u32,
    /// Exactly these nodes; overrides `nodes`.
    pub required: Vec<String>,
    /// CPUs per node; 0 for all.
    pub cpus: u32,
    /// In minutes; `None` for no limit.
    pub time_limit: Option<u32>,
    /// Run time of the script in seconds; `None` for unlimited.
    pub runs_for: Option<u32>,
    /// Whether the job may be requeued.
    pub requeue: bool,
    pub hold: bool,
    pub comment: String,
    pub script: String,
    pub directory: String,
}

impl Default for JobSpec {
    fn default() -> Self {
        Self {
            name: "job".to_owned(),
            user: "slurm".to_owned(),
            account: String::new(),
            partition: String::new(),
            nodes: 1,
            required: Vec::new(),
            cpus: 1,
            time_limit: None,
            runs_for: None,
            requeue: true,
            hold: false,
            comment: String::new(),
            script: "#!/bin/sh\nsleep infinity\n".to_owned(),
            directory: "/tmp".to_owned(),
        }
    }
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobState {
    Pending,
    Running,
    /// Stopped by an admin. Its node can look idle.
    Suspended,
    /// The script succeeded.
    Completed,
    Cancelled,
    /// The time limit was reached.
    Timeout,
    /// The script failed, for example because of a signal.
    Failed,
    /// The node went down.
    NodeFail,
}

impl JobState {
    /// As sent by slurmrestd.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Suspended => "SUSPENDED",
            Self::Completed => "COMPLETED",
            Self::Cancelled => "CANCELLED",
            Self::Timeout => "TIMEOUT",
            Self::Failed => "FAILED",
            Self::NodeFail => "NODE_FAIL",
        }
    }

    /// Whether the job has ended.
    #[must_use]
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Pending | Self::Running | Self::Suspended)
    }
}

/// A record in slurmctld's job table.
#[derive(Clone, Debug)]
pub struct Job {
    pub id: u32,
    pub spec: JobSpec,
    pub state: JobState,
    /// Whether its nodes are still being cleaned up.
    pub completing: bool,
    /// Why the job is pending or ended.
    pub reason: &'static str,
    /// Nodes that the job has or had.
    pub nodes: Vec<String>,
    pub submitted_at: i64,
    /// Earliest start time.
    pub eligible_at: i64,
    /// 0 if not started.
    pub started_at: i64,
    /// End time, or the latest possible one; 0 if unknown.
    pub ends_at: i64,
    /// Number of requeues.
    pub restarts: u32,
    /// Signal that ended the job; 0 if none.
    pub signal: u16,
}

impl Job {
    pub(super) fn new(id: u32, spec: JobSpec, now: i64) -> Self {
        let reason = if spec.hold { "JobHeldUser" } else { "None" };
        Self {
            id,
            spec,
            state: JobState::Pending,
            completing: false,
            reason,
            nodes: Vec::new(),
            submitted_at: now,
            eligible_at: now,
            started_at: 0,
            ends_at: 0,
            restarts: 0,
            signal: 0,
        }
    }

    /// Whether the job has nodes: it is running, suspended or completing.
    #[must_use]
    pub fn holds_nodes(&self) -> bool {
        matches!(self.state, JobState::Running | JobState::Suspended) || self.completing
    }

    /// When the time limit ends the job, if it has one.
    #[must_use]
    pub fn deadline(&self) -> Option<i64> {
        let minutes = i64::from(self.spec.time_limit?);
        Some(self.started_at.saturating_add(minutes * 60))
    }
}
