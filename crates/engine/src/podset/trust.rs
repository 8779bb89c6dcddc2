//! Whether the observed state of Slurm can be trusted (blind-means-wait).

use jiff::{SignedDuration, Timestamp};
use slurm_operator_api::common::vocabulary::Vocabulary;

use super::facts::{Facts, Hold, Job, JobIndex, Jobs, SlurmNode, SlurmObservation, Snapshot, Written};

/// A node list is fresh for this many polling intervals.
const FRESH_PERIODS: i32 = 3;

/// For this long after its start, slurmctld may know only some of its nodes. Slurm also resets that time at midnight UTC, which
/// does no harm: it only matters while most workers are missing.
const WARM_UP: SignedDuration = SignedDuration::from_mins(5);

/// The observed state of Slurm, if it can be trusted.
pub(super) enum TrustedSlurm<'a> {
    Clear(&'a Snapshot),
    /// Not trusted; `why` is for messages.
    Blind {
        why: String,
        /// When it becomes trusted without a new answer; `None` if only a new answer helps.
        until: Option<Timestamp>,
    },
}

/// The observed Slurm node of one worker.
#[derive(Clone, Copy, Debug)]
pub(super) enum NodeObservation<'a> {
    /// Slurm is not trusted.
    Blind,
    /// We wrote to the node after the list was requested; the second field is the node as listed, if it was.
    Pending(&'a Written, Option<&'a SlurmNode>),
    /// The node does not exist.
    Absent,
    Known(&'a SlurmNode),
}

impl<'a> NodeObservation<'a> {
    /// The node, if its state can be trusted.
    pub(super) fn node(self) -> Option<&'a SlurmNode> {
        match self {
            Self::Known(node) => Some(node),
            _ => None,
        }
    }

    /// Whether a job is running on the node, as far as known.
    pub(super) fn is_busy(self) -> bool {
        match self {
            Self::Known(node) | Self::Pending(_, Some(node)) => node.states.is_busy(),
            Self::Blind | Self::Absent | Self::Pending(_, None) => false,
        }
    }

    /// The reason of our drain, set or pending.
    pub(super) fn drained_for(self, vocabulary: &Vocabulary) -> Option<&'a str> {
        match self {
            Self::Known(node) if node.states.is_drain() && node.hold(vocabulary) == Hold::Ours => Some(&node.reason),
            Self::Pending(Written::Drain { reason }, _) => Some(reason),
            _ => None,
        }
    }
}

impl<'a> TrustedSlurm<'a> {
    /// Decides whether the observation can be trusted.
    pub(super) fn of(facts: &'a Facts, now: Timestamp) -> Self {
        let snapshot = match &facts.slurm {
            SlurmObservation::NoClient { why } => return Self::Blind { why: why.clone(), until: None },
            SlurmObservation::Blind { since, why } => {
                return Self::Blind { why: format!("no answer since {since:.0}: {why}"), until: None };
            }
            SlurmObservation::Clear(snapshot) => snapshot,
        };
        distrust(snapshot, facts, now).unwrap_or(Self::Clear(snapshot))
    }

    /// Looks up the Slurm node of a worker. A worker without a name has none yet.
    pub(super) fn observe(&self, name: Option<&str>) -> NodeObservation<'a> {
        match (self, name) {
            (Self::Blind { .. }, _) => NodeObservation::Blind,
            (Self::Clear(snapshot), Some(name)) => match (snapshot.pending.get(name), snapshot.nodes.get(name)) {
                (Some(written), node) => NodeObservation::Pending(written, node),
                (None, Some(node)) => NodeObservation::Known(node),
                (None, None) => NodeObservation::Absent,
            },
            (Self::Clear(_), None) => NodeObservation::Absent,
        }
    }

    /// The snapshot, if it can be trusted.
    pub(super) fn snapshot(&self) -> Option<&'a Snapshot> {
        match self {
            Self::Clear(snapshot) => Some(snapshot),
            Self::Blind { .. } => None,
        }
    }

    /// The jobs, if they were read.
    pub(super) fn jobs(&self) -> Option<&'a JobIndex> {
        self.snapshot()?.jobs.read()
    }

    /// Whether the jobs could be read but were not requested.
    pub(super) fn has_unread_jobs(&self) -> bool {
        self.snapshot().is_some_and(|snapshot| matches!(snapshot.jobs, Jobs::Unread))
    }

    /// The jobs on a drained node, if they were read after the drain.
    pub(super) fn jobs_on_drained(&self, name: &str, node: &SlurmNode) -> Option<&'a [Job]> {
        let Jobs::Read(list) = &self.snapshot()?.jobs else { return None };
        let was_drained = |then: &SlurmNode| then.states.is_drain() && then.reason_since == node.reason_since;
        list.nodes.get(name).is_some_and(was_drained).then(|| list.jobs.on(name))
    }
}

/// Whether an answer is too old to be trusted.
pub fn is_stale(age: SignedDuration, period: SignedDuration) -> bool {
    // Use the absolute age: a clock that was set back must not make an old list fresh for hours.
    age.abs() > period * FRESH_PERIODS
}

/// Returns `Blind` if the snapshot cannot be trusted.
fn distrust<'a>(snapshot: &Snapshot, facts: &Facts, now: Timestamp) -> Option<TrustedSlurm<'a>> {
    let age = now.duration_since(snapshot.read_at);
    if is_stale(age, snapshot.period) {
        let why = format!("the last answer of slurmrestd is {} seconds old", age.abs().as_secs());
        return Some(TrustedSlurm::Blind { why, until: None });
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let registered = facts.workers.iter().filter(|worker| worker.has_registered()).count();
    // Pod conditions record registrations too, and more accurately than the status.
    let expected = facts.recall.slurm.registered.min(count(facts.workers.len())).max(count(registered));
    if snapshot.nodes.is_empty() && expected > 0 {
        let why = format!(
            "Slurm lists no nodes, but {expected} workers were registered: slurmctld has lost its state, or started without it"
        );
        return Some(TrustedSlurm::Blind { why, until: None });
    }
    let warm = snapshot.ctld_started.map(|start| start + WARM_UP);
    if warm.is_none_or(|warm| now < warm) && expected > 0 {
        let known = facts.workers.iter().filter_map(|worker| worker.slurm_node());
        let known = count(known.filter(|name| snapshot.nodes.contains_key(*name)).count());
        if known.saturating_mul(2) < expected {
            let why = format!("slurmctld was restarted recently and knows {known} of {expected} registered workers");
            return Some(TrustedSlurm::Blind { why, until: warm });
        }
    }
    None
}
