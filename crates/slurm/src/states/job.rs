//! The states of jobs.

use super::{States, Word};

/// The states of a job: one base state and any number of flags.
pub type JobStates = States<JobState>;

impl JobStates {
    /// The job is waiting for resources or its start time.
    pub fn is_pending(&self) -> bool {
        self.has(JobState::Pending)
    }

    /// The job is running. A completing job is not.
    pub fn is_running(&self) -> bool {
        self.has(JobState::Running)
    }

    /// The job has nodes: it is configuring, running, suspended or completing.
    pub fn holds_nodes(&self) -> bool {
        let holding = [JobState::Running, JobState::Suspended, JobState::Completing, JobState::Configuring];
        self.has_any(&holding) || self.has(JobState::Stopped)
    }

    /// The job has ended. Its nodes may still be cleaned up.
    pub fn has_ended(&self) -> bool {
        self.has_any(&ENDED)
    }

    /// The job has ended and nothing of it is left on any node.
    pub fn is_finished(&self) -> bool {
        self.has_ended() && !self.has(JobState::Completing)
    }
}

/// States of a job that has ended.
const ENDED: [JobState; 9] = [
    JobState::Completed,
    JobState::Cancelled,
    JobState::Failed,
    JobState::Timeout,
    JobState::NodeFail,
    JobState::Preempted,
    JobState::BootFail,
    JobState::Deadline,
    JobState::OutOfMemory,
];

/// One state or flag of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "see the documentation of squeue")]
pub enum JobState {
    // base states: a job has exactly one
    Pending,
    Running,
    Suspended,
    Completed,
    Cancelled,
    Failed,
    Timeout,
    NodeFail,
    Preempted,
    BootFail,
    Deadline,
    OutOfMemory,
    // flags
    Completing,
    Configuring,
    Requeued,
    RequeueHold,
    SpecialExit,
    Resizing,
    Stopped,
    LaunchFailed,
    ReconfigFail,
    PowerUpNode,
    Revoked,
    RequeueFed,
    ResvDelHold,
    Signaling,
    StageOut,
    Expediting,
}

impl Word for JobState {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::Pending, "PENDING"),
        (Self::Running, "RUNNING"),
        (Self::Suspended, "SUSPENDED"),
        (Self::Completed, "COMPLETED"),
        (Self::Cancelled, "CANCELLED"),
        (Self::Failed, "FAILED"),
        (Self::Timeout, "TIMEOUT"),
        (Self::NodeFail, "NODE_FAIL"),
        (Self::Preempted, "PREEMPTED"),
        (Self::BootFail, "BOOT_FAIL"),
        (Self::Deadline, "DEADLINE"),
        (Self::OutOfMemory, "OUT_OF_MEMORY"),
        (Self::Completing, "COMPLETING"),
        (Self::Configuring, "CONFIGURING"),
        (Self::Requeued, "REQUEUED"),
        (Self::RequeueHold, "REQUEUE_HOLD"),
        (Self::SpecialExit, "SPECIAL_EXIT"),
        (Self::Resizing, "RESIZING"),
        (Self::Stopped, "STOPPED"),
        (Self::LaunchFailed, "LAUNCH_FAILED"),
        (Self::ReconfigFail, "RECONFIG_FAIL"),
        (Self::PowerUpNode, "POWER_UP_NODE"),
        (Self::Revoked, "REVOKED"),
        (Self::RequeueFed, "REQUEUE_FED"),
        (Self::ResvDelHold, "RESV_DEL_HOLD"),
        (Self::Signaling, "SIGNALING"),
        (Self::StageOut, "STAGE_OUT"),
        (Self::Expediting, "EXPEDITING"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_table() {
        // (states; p pending, r running, h holds nodes, e ended, f finished)
        let table = [
            ("PENDING", "p"),
            ("PENDING+REQUEUED+COMPLETING", "ph"),
            ("RUNNING", "rh"),
            ("RUNNING+CONFIGURING", "rh"),
            ("SUSPENDED", "h"),
            ("COMPLETED", "ef"),
            ("COMPLETED+COMPLETING", "he"),
            ("CANCELLED", "ef"),
            ("CANCELLED+COMPLETING", "he"),
            ("NODE_FAIL", "ef"),
            ("OUT_OF_MEMORY", "ef"),
            ("BRAND_NEW", ""),
        ];
        for (text, expected) in table {
            let words: Vec<&str> = text.split('+').collect();
            let states: JobStates = serde_json::from_value(serde_json::json!(words)).unwrap();
            let answers = [
                ('p', states.is_pending()),
                ('r', states.is_running()),
                ('h', states.holds_nodes()),
                ('e', states.has_ended()),
                ('f', states.is_finished()),
            ];
            let found: String = answers.into_iter().filter(|(_, yes)| *yes).map(|(letter, _)| letter).collect();
            assert_eq!(found, expected, "{text}");
        }
        for (word, text) in JobState::ALL {
            assert_eq!(word.as_str(), *text);
        }
    }

    #[test]
    fn a_single_word_and_null_are_accepted() {
        let states: JobStates = serde_json::from_str("\"RUNNING\"").unwrap();
        assert!(states.is_running());
        let none: JobStates = serde_json::from_str("null").unwrap();
        assert!(none.is_empty());
    }

    #[test]
    fn unknown_words_survive() {
        let text = r#"["RUNNING","BRAND_NEW","ESC\u0041PED"]"#;
        let states: JobStates = serde_json::from_str(text).unwrap();
        assert_eq!(states.unknown(), ["BRAND_NEW", "ESCAPED"]);
        assert_eq!(states.to_string(), "RUNNING+BRAND_NEW+ESCAPED");
        assert_eq!(serde_json::to_string(&states).unwrap(), r#"["RUNNING","BRAND_NEW","ESCAPED"]"#);
        serde_json::from_str::<JobStates>("[1]").unwrap_err();
        serde_json::from_str::<JobStates>("{}").unwrap_err();
    }
}
