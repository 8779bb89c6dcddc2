//! States of nodes and jobs, and the conclusions from them: the only place that decides whether a node is busy, drained
//! or gone.

mod job;
mod set;

pub use job::{JobState, JobStates};
pub use set::{States, Word};

/// The states of a node: one base state and any number of flags.
pub type NodeStates = States<NodeState>;

impl NodeStates {
    /// The base state; `None` if the server sent an unknown one.
    pub fn base(&self) -> Option<NodeState> {
        BASE.into_iter().find(|state| self.has(*state))
    }

    /// A job may be running or completing.
    pub fn is_busy(&self) -> bool {
        self.has_any(&[NodeState::Allocated, NodeState::Mixed, NodeState::Completing])
    }

    /// No job is running or completing.
    pub fn is_idle(&self) -> bool {
        self.has(NodeState::Idle) && !self.is_busy()
    }

    /// The node accepts no new jobs. A drain that is being lifted does not count.
    pub fn is_drain(&self) -> bool {
        self.has(NodeState::Drain) && !self.has(NodeState::Undrain)
    }

    /// The node accepts no new jobs and has none left. Never true with an unknown base state.
    pub fn is_drained(&self) -> bool {
        self.is_drain() && self.base().is_some() && !self.is_busy()
    }

    /// The node accepts no new jobs and is not yet known to be empty.
    pub fn is_draining(&self) -> bool {
        self.is_drain() && !self.is_drained()
    }

    /// The node is out of service.
    pub fn is_down(&self) -> bool {
        self.has(NodeState::Down)
    }

    /// slurmctld set the node down because its slurmd stopped responding: its jobs are already lost.
    pub fn is_down_unresponsive(&self, reason: &str) -> bool {
        self.is_down() && reason.contains("Not responding")
    }

    /// The node is down and its slurmd does not respond: only the record may be left.
    pub fn is_defunct(&self) -> bool {
        self.is_down() && self.has(NodeState::NotResponding)
    }

    /// The slurmd has registered with slurmctld at some time.
    pub fn is_registered(&self) -> bool {
        let never = [NodeState::Future, NodeState::Unknown, NodeState::Invalid];
        let not_yet = [NodeState::DynamicFuture, NodeState::PoweredDown, NodeState::PoweringUp];
        !self.is_empty() && !self.has_any(&never) && !self.has_any(&not_yet)
    }

    /// The node accepts jobs, now or as soon as it has free resources.
    pub fn is_available(&self) -> bool {
        let in_service = self.has_any(&[NodeState::Idle, NodeState::Allocated, NodeState::Mixed]);
        in_service && self.is_registered() && !self.is_drain() && !self.has_any(&OUT_OF_SERVICE)
    }

    /// The node is being powered up or down, or is powered down: what it then lacks is wanted.
    pub fn is_power_managed(&self) -> bool {
        self.has_any(&[
            NodeState::PowerDown,
            NodeState::PowerUp,
            NodeState::PowerDrain,
            NodeState::PowerDownAsap,
            NodeState::PowerDownForce,
            NodeState::PoweredDown,
            NodeState::PoweringDown,
            NodeState::PoweringUp,
        ])
    }

    /// Something is wrong with the node: it runs no jobs, or starts no new ones, and nobody powered it down.
    pub fn is_unavailable(&self) -> bool {
        let wrong = [NodeState::Error, NodeState::Fail, NodeState::Unknown, NodeState::Invalid, NodeState::InvalidReg];
        let is_wrong = self.is_down() || self.has(NodeState::NotResponding) || self.has_any(&wrong);
        (is_wrong || (self.base() == Some(NodeState::Idle) && self.is_drain())) && !self.is_power_managed()
    }

    /// The node has failed, or was taken out of service: it is down or drains, and nobody powered it down.
    pub fn has_failed(&self) -> bool {
        (self.is_down() || self.is_drain()) && !self.is_power_managed()
    }

    /// Jobs still run on a node that accepts no new ones.
    pub fn is_finishing_jobs(&self) -> bool {
        self.is_drain() && self.has_any(&[NodeState::Allocated, NodeState::Mixed])
    }
}

/// In the order of the Go operator: a set with two base states must be interpreted the same way.
const BASE: [NodeState; 7] = [
    NodeState::Allocated,
    NodeState::Down,
    NodeState::Error,
    NodeState::Future,
    NodeState::Idle,
    NodeState::Mixed,
    NodeState::Unknown,
];

/// Flags with which no job starts on a node, whatever its base state.
const OUT_OF_SERVICE: [NodeState; 12] = [
    NodeState::Down,
    NodeState::Error,
    NodeState::Fail,
    NodeState::NotResponding,
    NodeState::Maintenance,
    NodeState::InvalidReg,
    NodeState::PowerDown,
    NodeState::PowerDrain,
    NodeState::PowerDownAsap,
    NodeState::PowerDownForce,
    NodeState::PoweringDown,
    NodeState::RebootIssued,
];

/// One state or flag of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "see the documentation of sinfo")]
pub enum NodeState {
    // base states: a node has exactly one
    Idle,
    Allocated,
    Mixed,
    Down,
    Error,
    Future,
    Unknown,
    Invalid,
    // flags
    Drain,
    NotResponding,
    DynamicNorm,
    Completing,
    Maintenance,
    Reserved,
    Planned,
    Undrain,
    Resume,
    Fail,
    Cloud,
    InvalidReg,
    External,
    Blocked,
    DynamicFuture,
    PowerDown,
    PowerUp,
    PowerDrain,
    PowerDownAsap,
    PowerDownForce,
    PoweredDown,
    PoweringDown,
    PoweringUp,
    RebootRequested,
    RebootIssued,
    RebootCanceled,
}

impl Word for NodeState {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::Idle, "IDLE"),
        (Self::Allocated, "ALLOCATED"),
        (Self::Mixed, "MIXED"),
        (Self::Down, "DOWN"),
        (Self::Error, "ERROR"),
        (Self::Future, "FUTURE"),
        (Self::Unknown, "UNKNOWN"),
        (Self::Invalid, "INVALID"),
        (Self::Drain, "DRAIN"),
        (Self::NotResponding, "NOT_RESPONDING"),
        (Self::DynamicNorm, "DYNAMIC_NORM"),
        (Self::Completing, "COMPLETING"),
        (Self::Maintenance, "MAINTENANCE"),
        (Self::Reserved, "RESERVED"),
        (Self::Planned, "PLANNED"),
        (Self::Undrain, "UNDRAIN"),
        (Self::Resume, "RESUME"),
        (Self::Fail, "FAIL"),
        (Self::Cloud, "CLOUD"),
        (Self::InvalidReg, "INVALID_REG"),
        (Self::External, "EXTERNAL"),
        (Self::Blocked, "BLOCKED"),
        (Self::DynamicFuture, "DYNAMIC_FUTURE"),
        (Self::PowerDown, "POWER_DOWN"),
        (Self::PowerUp, "POWER_UP"),
        (Self::PowerDrain, "POWER_DRAIN"),
        (Self::PowerDownAsap, "POWER_DOWN_ASAP"),
        (Self::PowerDownForce, "POWER_DOWN_FORCE"),
        (Self::PoweredDown, "POWERED_DOWN"),
        (Self::PoweringDown, "POWERING_DOWN"),
        (Self::PoweringUp, "POWERING_UP"),
        (Self::RebootRequested, "REBOOT_REQUESTED"),
        (Self::RebootIssued, "REBOOT_ISSUED"),
        (Self::RebootCanceled, "REBOOT_CANCELED"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(text: &str) -> NodeStates {
        let words: Vec<&str> = text.split('+').filter(|word| !word.is_empty()).collect();
        serde_json::from_value(serde_json::json!(words)).unwrap()
    }

    /// Tests all predicates. The letters: b busy, i idle, d drain, D drained, g draining, w down, x defunct, r
    /// registered, a available.
    #[test]
    fn truth_table() {
        let table = [
            ("", ""),
            ("IDLE", "ira"),
            ("IDLE+DYNAMIC_NORM", "ira"),
            ("ALLOCATED", "bra"),
            ("MIXED", "bra"),
            ("MIXED+PLANNED", "bra"),
            ("IDLE+COMPLETING", "bra"),
            ("IDLE+RESERVED", "ira"),
            ("IDLE+MAINTENANCE+RESERVED", "ir"),
            ("IDLE+DRAIN", "idDr"),
            ("IDLE+DRAIN+DYNAMIC_NORM", "idDr"),
            ("IDLE+DRAIN+UNDRAIN", "ira"),
            ("IDLE+UNDRAIN", "ira"),
            ("ALLOCATED+DRAIN", "bdgr"),
            ("MIXED+DRAIN", "bdgr"),
            ("MIXED+DRAIN+UNDRAIN", "bra"),
            ("IDLE+COMPLETING+DRAIN", "bdgr"),
            ("DOWN", "wr"),
            ("DOWN+COMPLETING", "bwr"),
            ("DOWN+DRAIN", "dDwr"),
            ("DOWN+DRAIN+COMPLETING", "bdgwr"),
            ("DOWN+NOT_RESPONDING", "wxr"),
            ("DOWN+DRAIN+NOT_RESPONDING", "dDwxr"),
            ("IDLE+NOT_RESPONDING", "ir"),
            ("IDLE+FAIL", "ir"),
            ("IDLE+INVALID_REG", "ir"),
            ("IDLE+INVALID_REG+DRAIN", "idDr"),
            ("ERROR", "r"),
            ("ERROR+DRAIN", "dDr"),
            ("FUTURE", ""),
            ("FUTURE+DRAIN", "dD"),
            ("UNKNOWN", ""),
            ("UNKNOWN+NOT_RESPONDING", ""),
            ("INVALID", ""),
            ("IDLE+CLOUD+POWERED_DOWN", "i"),
            ("IDLE+CLOUD+POWERING_UP", "i"),
            ("IDLE+POWERING_DOWN", "ir"),
            ("ALLOCATED+REBOOT_REQUESTED", "bra"),
            ("DOWN+REBOOT_ISSUED", "wr"),
            // An unknown base state of a newer Slurm: jobs may be running, so it never counts as drained.
            ("BRAND_NEW+DRAIN", "dgr"),
            ("BRAND_NEW", "r"),
            // An unknown flag of a newer Slurm changes nothing.
            ("IDLE+BRAND_NEW", "ira"),
        ];
        for (text, expected) in table {
            let states = states(text);
            let answers = [
                ('b', states.is_busy()),
                ('i', states.is_idle()),
                ('d', states.is_drain()),
                ('D', states.is_drained()),
                ('g', states.is_draining()),
                ('w', states.is_down()),
                ('x', states.is_defunct()),
                ('r', states.is_registered()),
                ('a', states.is_available()),
            ];
            let found: String = answers.into_iter().filter(|(_, yes)| *yes).map(|(letter, _)| letter).collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    /// What becomes metrics. The letters: p power managed, u unavailable, f failed, j finishing jobs.
    #[test]
    fn truth_table_of_metrics() {
        let table = [
            ("IDLE", ""),
            ("MIXED+PLANNED", ""),
            ("IDLE+DRAIN", "uf"),
            ("IDLE+DRAIN+UNDRAIN", ""),
            ("IDLE+COMPLETING+DRAIN", "uf"),
            ("ALLOCATED+DRAIN", "fj"),
            ("MIXED+DRAIN+NOT_RESPONDING", "ufj"),
            ("DOWN", "uf"),
            ("DOWN+DRAIN", "uf"),
            ("DOWN+CLOUD+POWERED_DOWN", "p"),
            ("IDLE+DRAIN+POWER_DRAIN", "p"),
            ("DOWN+POWERING_UP", "p"),
            ("IDLE+NOT_RESPONDING", "u"),
            ("UNKNOWN", "u"),
            ("ERROR", "u"),
            ("IDLE+FAIL", "u"),
            ("IDLE+INVALID_REG", "u"),
            ("INVALID", "u"),
            ("FUTURE", ""),
        ];
        for (text, expected) in table {
            let states = states(text);
            let answers = [
                ('p', states.is_power_managed()),
                ('u', states.is_unavailable()),
                ('f', states.has_failed()),
                ('j', states.is_finishing_jobs()),
            ];
            let found: String = answers.into_iter().filter(|(_, yes)| *yes).map(|(letter, _)| letter).collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    /// The predicates never contradict each other, for any input.
    #[test]
    fn laws() {
        let words: Vec<NodeState> = NodeState::ALL.iter().map(|(word, _)| *word).collect();
        for (index, first) in words.iter().enumerate() {
            for second in words.iter().skip(index) {
                for third in words.iter().skip(index) {
                    let states: NodeStates = [*first, *second, *third].into_iter().collect();
                    assert!(!(states.is_drained() && states.is_busy()), "{states}");
                    assert_eq!(states.is_drain(), states.is_drained() || states.is_draining(), "{states}");
                    assert!(!(states.is_drained() && states.is_draining()), "{states}");
                    assert!(!(states.is_available() && (states.is_drain() || states.is_down())), "{states}");
                    assert!(!states.is_defunct() || states.is_down(), "{states}");
                }
            }
        }
    }

    #[test]
    fn unresponsive_is_down_with_slurmctlds_own_reason() {
        assert!(states("DOWN+NOT_RESPONDING").is_down_unresponsive("Not responding"));
        assert!(states("DOWN").is_down_unresponsive("Not responding [slurm@2026-11-15]"));
        assert!(!states("DOWN").is_down_unresponsive("slurm-operator: pod gone"));
        assert!(!states("IDLE+NOT_RESPONDING").is_down_unresponsive("Not responding"));
    }

    #[test]
    fn base_states_come_in_the_go_operators_order() {
        assert_eq!(states("MIXED+IDLE").base(), Some(NodeState::Idle));
        assert_eq!(states("DRAIN+DOWN+ALLOCATED").base(), Some(NodeState::Allocated));
        assert_eq!(states("DRAIN").base(), None);
    }

    #[test]
    fn every_state_word_has_its_own_bit() {
        let all: NodeStates = NodeState::ALL.iter().map(|(word, _)| *word).collect();
        assert_eq!(all.iter().count(), NodeState::ALL.len());
        for (word, text) in NodeState::ALL {
            assert_eq!((states(text).iter().collect::<Vec<_>>(), word.as_str()), (vec![*word], *text));
        }
    }
}
