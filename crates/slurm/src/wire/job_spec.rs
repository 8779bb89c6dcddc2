//! Job submissions and signals.

use serde::Serialize;

use super::NoVal;

/// A job to submit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobSpec {
    name: String,
    script: String,
    current_working_directory: String,
    // Required: slurmrestd rejects a job without environment.
    environment: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus_per_task: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_per_node: Option<NoVal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_limit: Option<NoVal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    required_nodes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    constraints: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    array: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tres_per_node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    standard_output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    hold: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    requeue: bool,
}

impl JobSpec {
    /// Creates a job that runs a script, which must start with `#!`, in `/tmp`.
    pub fn new(name: impl Into<String>, script: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            script: script.into(),
            current_working_directory: "/tmp".to_owned(),
            environment: vec!["PATH=/usr/local/bin:/usr/bin:/bin".to_owned()],
            partition: None,
            account: None,
            nodes: None,
            tasks: None,
            cpus_per_task: None,
            memory_per_node: None,
            time_limit: None,
            required_nodes: None,
            constraints: None,
            reservation: None,
            array: None,
            tres_per_node: None,
            standard_output: None,
            comment: None,
            hold: false,
            requeue: false,
        }
    }

    /// Working directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<String>) -> Self {
        self.current_working_directory = directory.into();
        self
    }

    /// The whole environment, as `NAME=value`.
    #[must_use]
    pub fn environment<S: Into<String>>(mut self, variables: impl IntoIterator<Item = S>) -> Self {
        self.environment = variables.into_iter().map(Into::into).collect();
        self
    }

    /// Partition, or several separated by commas.
    #[must_use]
    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = Some(partition.into());
        self
    }

    #[must_use]
    pub fn account(mut self, account: impl Into<String>) -> Self {
        self.account = Some(account.into());
        self
    }

    /// Number of nodes: `2` or `2-4`.
    #[must_use]
    pub fn nodes(mut self, nodes: impl Into<String>) -> Self {
        self.nodes = Some(nodes.into());
        self
    }

    /// Number of tasks and CPUs per task.
    #[must_use]
    pub fn tasks(mut self, tasks: u32, cpus_per_task: u32) -> Self {
        (self.tasks, self.cpus_per_task) = (Some(tasks), Some(cpus_per_task));
        self
    }

    /// Memory per node in MiB.
    #[must_use]
    pub fn memory_per_node(mut self, mebibytes: u64) -> Self {
        self.memory_per_node = Some(NoVal::Is(mebibytes));
        self
    }

    /// Time limit in minutes.
    #[must_use]
    pub fn time_limit(mut self, minutes: u64) -> Self {
        self.time_limit = Some(NoVal::Is(minutes));
        self
    }

    /// Nodes that the job requires.
    #[must_use]
    pub fn on<S: Into<String>>(mut self, nodes: impl IntoIterator<Item = S>) -> Self {
        self.required_nodes = Some(nodes.into_iter().map(Into::into).collect());
        self
    }

    /// Features that the nodes must have.
    #[must_use]
    pub fn constraints(mut self, constraints: impl Into<String>) -> Self {
        self.constraints = Some(constraints.into());
        self
    }

    #[must_use]
    pub fn reservation(mut self, reservation: impl Into<String>) -> Self {
        self.reservation = Some(reservation.into());
        self
    }

    /// Submits a job array: `0-7`.
    #[must_use]
    pub fn array(mut self, tasks: impl Into<String>) -> Self {
        self.array = Some(tasks.into());
        self
    }

    /// Resources per node: `gres/gpu:2`.
    #[must_use]
    pub fn tres_per_node(mut self, tres: impl Into<String>) -> Self {
        self.tres_per_node = Some(tres.into());
        self
    }

    /// Output file.
    #[must_use]
    pub fn output(mut self, file: impl Into<String>) -> Self {
        self.standard_output = Some(file.into());
        self
    }

    #[must_use]
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// Submits the job held.
    #[must_use]
    pub fn held(mut self) -> Self {
        self.hold = true;
        self
    }

    /// Allows the job to be requeued.
    #[must_use]
    pub fn requeueable(mut self) -> Self {
        self.requeue = true;
        self
    }
}

/// A signal for a job. An enum because slurmrestd responds to unknown names with 200 and an error entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "standard Unix names")]
pub enum Signal {
    Hup,
    Int,
    Quit,
    Kill,
    Usr1,
    Usr2,
    Term,
    Cont,
    Stop,
}

impl Signal {
    /// Name on the wire: `SIGUSR1`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hup => "SIGHUP",
            Self::Int => "SIGINT",
            Self::Quit => "SIGQUIT",
            Self::Kill => "SIGKILL",
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
            Self::Term => "SIGTERM",
            Self::Cont => "SIGCONT",
            Self::Stop => "SIGSTOP",
        }
    }
}
