//! A batch job as slurmctld knows it.

/// What is asked for with a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Its name.
    pub name: String,
    /// Who owns it.
    pub user: String,
    /// Its account.
    pub account: String,
    /// Where to run; empty for the default partition.
    pub partition: String,
    /// How many nodes.
    pub nodes: u32,
    /// Exactly these nodes; overrides `nodes`.
    pub required: Vec<String>,
    /// CPUs on each node; 0 for all.
    pub cpus: u32,
    /// Minutes; `None` for no limit.
    pub time_limit: Option<u32>,
    /// How many seconds its script runs; `None` for ever.
    pub runs_for: Option<u32>,
    /// Whether it may be put back into the queue.
    pub requeue: bool,
    /// Wait, whatever is free.
    pub hold: bool,
    /// The comment of its user.
    pub comment: String,
    /// The script.
    pub script: String,
    /// Its working directory.
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

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobState {
    /// Waits for nodes.
    Pending,
    /// Runs.
    Running,
    /// Its script ended well.
    Completed,
    /// Someone cancelled it.
    Cancelled,
    /// It ran into its limit.
    Timeout,
    /// Its script ended badly, by a signal for one.
    Failed,
    /// Its node went down.
    NodeFail,
}

impl JobState {
    /// As slurmrestd says it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Cancelled => "CANCELLED",
            Self::Timeout => "TIMEOUT",
            Self::Failed => "FAILED",
            Self::NodeFail => "NODE_FAIL",
        }
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

/// A record in slurmctld's job table.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its number.
    pub id: u32,
    /// What was asked for.
    pub spec: JobSpec,
    /// Where it is in its life.
    pub state: JobState,
    /// Whether its nodes are still being cleaned up.
    pub completing: bool,
    /// Why it waits or why it ended.
    pub reason: &'static str,
    /// The nodes that it has or had.
    pub nodes: Vec<String>,
    /// When it was submitted.
    pub submitted_at: i64,
    /// Not before this.
    pub eligible_at: i64,
    /// When it started; 0 for not yet.
    pub started_at: i64,
    /// When it ended, or will end at the latest; 0 for unknown.
    pub ends_at: i64,
    /// How often it was put back into the queue.
    pub restarts: u32,
    /// The signal that ended it; 0 for none.
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

    /// When the limit will stop it, if it has one.
    #[must_use]
    pub fn deadline(&self) -> Option<i64> {
        let minutes = i64::from(self.spec.time_limit?);
        Some(self.started_at.saturating_add(minutes * 60))
    }
}
