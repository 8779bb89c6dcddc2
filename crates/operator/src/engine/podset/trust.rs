//! Whether what we know of Slurm may be believed (blind-means-wait).

use jiff::{SignedDuration, Timestamp};

use super::facts::{Facts, Hold, Jobs, SlurmNode, SlurmObservation, Snapshot, Written};

/// A list is fresh for so many periods.
const FRESH_PERIODS: i32 = 3;

/// For so long after its start slurmctld may know only some of its nodes.
const WARM_UP: SignedDuration = SignedDuration::from_mins(5);

/// What Slurm says, if it may be believed.
pub(super) enum TrustedSlurm<'a> {
    /// It may.
    Clear(&'a Snapshot),
    /// It may not, and why.
    Blind {
        why: String,
        /// When it may by mere time. Otherwise its reader tells.
        until: Option<Timestamp>,
    },
}

/// What Slurm says of one worker.
#[derive(Clone, Copy, Debug)]
pub(super) enum NodeObservation<'a> {
    /// Nothing that may be believed.
    Blind,
    /// We wrote this to it after that; what it was before is here too, if it was known.
    Pending(&'a Written, Option<&'a SlurmNode>),
    /// There is no such node.
    Absent,
    /// This.
    Known(&'a SlurmNode),
}

impl<'a> NodeObservation<'a> {
    /// The node, if it may be believed.
    pub(super) fn node(self) -> Option<&'a SlurmNode> {
        match self {
            Self::Known(node) => Some(node),
            _ => None,
        }
    }

    /// Whether a job runs there, as far as was last known.
    pub(super) fn is_busy(self) -> bool {
        match self {
            Self::Known(node) | Self::Pending(_, Some(node)) => node.states.is_busy(),
            Self::Blind | Self::Absent | Self::Pending(_, None) => false,
        }
    }

    /// The reason of our drain, if there is one or will be.
    pub(super) fn drained_for(self) -> Option<&'a str> {
        match self {
            Self::Known(node) if node.states.is_drain() && node.hold() == Hold::Ours => Some(&node.reason),
            Self::Pending(Written::Drain { reason }, _) => Some(reason),
            _ => None,
        }
    }
}

impl<'a> TrustedSlurm<'a> {
    /// Judges the observation.
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

    /// What it says of a worker. One that has no name yet cannot be known.
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

    /// The snapshot, if it may be believed.
    pub(super) fn snapshot(&self) -> Option<&'a Snapshot> {
        match self {
            Self::Clear(snapshot) => Some(snapshot),
            Self::Blind { .. } => None,
        }
    }

    /// Whether running jobs could be asked for and were not.
    pub(super) fn has_unread_jobs(&self) -> bool {
        self.snapshot().is_some_and(|snapshot| matches!(snapshot.jobs, Jobs::Unread))
    }
}

/// Whether what was read is too old to be believed.
pub fn is_stale(age: SignedDuration, period: SignedDuration) -> bool {
    // A clock that was set back must not make an old list fresh for hours, so the age counts in both directions.
    age.abs() > period * FRESH_PERIODS
}

/// Why the list may not be believed.
fn distrust<'a>(snapshot: &Snapshot, facts: &Facts, now: Timestamp) -> Option<TrustedSlurm<'a>> {
    let age = now.duration_since(snapshot.read_at);
    if is_stale(age, snapshot.period) {
        let why = format!("the last answer is {} seconds old", age.abs().as_secs());
        return Some(TrustedSlurm::Blind { why, until: None });
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let registered = facts.workers.iter().filter(|worker| worker.has_registered()).count();
    // The pods remember it as well as the status does, and are exact.
    let expected = facts.recall.slurm.registered.min(count(facts.workers.len())).max(count(registered));
    if snapshot.nodes.is_empty() && expected > 0 {
        let why = format!(
            "Slurm lists no nodes at all, and {expected} workers were registered: if slurmctld has lost its state, delete \
             the workers' pods to have them register again"
        );
        return Some(TrustedSlurm::Blind { why, until: None });
    }
    let warm = snapshot.ctld_started.map(|start| start + WARM_UP);
    if warm.is_none_or(|warm| now < warm) && expected > 0 {
        let known = facts.workers.iter().filter_map(|worker| worker.slurm_node());
        let known = count(known.filter(|name| snapshot.nodes.contains_key(*name)).count());
        if known.saturating_mul(2) < expected {
            let why = format!("slurmctld has started lately and knows {known} of {expected} registered workers");
            return Some(TrustedSlurm::Blind { why, until: warm });
        }
    }
    None
}
