//! What is known of one Slurm cluster, and how an answer changes it.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use engine::podset::{self, Job, Jobs, Reservation, SlurmNode, SlurmObservation, Snapshot, Written};
use jiff::{SignedDuration, Timestamp};
use slurm::{
    client::Client as Slurm,
    hostlist,
    states::JobState,
    version::SlurmVersion,
    wire::{self, JobBrief, NodeBrief, Ping},
};

/// What is known of one Slurm cluster.
#[derive(Default)]
pub(super) struct State {
    pub(super) client: Option<Slurm>,
    pub(super) url: String,
    pub(super) nodes: Arc<HashMap<String, SlurmNode>>,
    pub(super) jobs: Option<Arc<HashMap<String, Vec<Job>>>>,
    pub(super) reservations: Option<Arc<HashMap<String, Reservation>>>,
    /// When the last list was requested, on the monotonic clock: a wall-clock step must not make an old list look
    /// fresh.
    pub(super) asked: Option<Instant>,
    pub(super) period: SignedDuration,
    /// Number of reads started. A node written after a read started is pending until a later read.
    pub(super) reads: u64,
    pub(super) written: HashMap<String, (u64, Written)>,
    /// Why and since when Slurm is unreachable.
    pub(super) problem: Option<(Timestamp, String)>,
    pub(super) pings: Vec<Ping>,
    pub(super) started: Option<Timestamp>,
    pub(super) slurm_version: Option<SlurmVersion>,
}

impl State {
    pub(super) fn observation(&self) -> SlurmObservation {
        if let Some((since, why)) = &self.problem {
            return SlurmObservation::Blind { since: *since, why: why.clone() };
        }
        let (Some(_), Some(asked)) = (&self.client, self.asked) else {
            return SlurmObservation::NoClient { why: "not polled yet".to_owned() };
        };
        SlurmObservation::Clear(Arc::new(Snapshot {
            nodes: Arc::clone(&self.nodes),
            read_at: Timestamp::now() - asked.elapsed(),
            period: self.period,
            ctld_started: self.started,
            version: self.slurm_version,
            pending: self.written.iter().map(|(node, (_, what))| (node.clone(), what.clone())).collect(),
            jobs: self.jobs.clone().map_or(Jobs::Unread, Jobs::Read),
            reservations: self.reservations.clone(),
        }))
    }
}

/// All nodes, and the running Slurm version.
pub(super) type Nodes = (Option<SlurmVersion>, Vec<(String, SlurmNode)>);

/// The result of one read.
pub(super) struct Answers {
    pub(super) asked: Instant,
    /// `None`: unchanged.
    pub(super) nodes: Option<Nodes>,
    pub(super) jobs: Extra<HashMap<String, Vec<Job>>>,
    pub(super) reservations: Extra<HashMap<String, Reservation>>,
}

/// What to announce after a read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Slurm was unreachable before.
    pub(super) is_back: bool,
    /// The Slurm version has changed.
    pub(super) is_other: bool,
    /// Data used for planning has changed, or is no longer stale or pending.
    pub(super) has_changed: bool,
}

impl State {
    /// Stores the result of a read; `period` is the expected time until the next one.
    pub(super) fn take_in(&mut self, number: u64, answers: Answers, period: Duration) -> News {
        let Answers { asked, nodes, jobs, reservations } = answers;
        // If the view was stale, plans that found it stale wait for this read.
        let was_stale = self.asked.is_some_and(|asked| podset::is_stale(signed(asked.elapsed()), self.period));
        let mut news = News { is_back: self.problem.take().is_some(), has_changed: was_stale, ..News::default() };
        if let Some((version, nodes)) = nodes {
            news.is_other = version.is_some() && version != self.slurm_version;
            self.slurm_version = version.or(self.slurm_version);
            // Often only node loads have changed, which are not kept: then keep the current map.
            let is_known = |(name, node): &(String, SlurmNode)| self.nodes.get(name) == Some(node);
            if nodes.len() != self.nodes.len() || !nodes.iter().all(is_known) {
                self.nodes = Arc::new(nodes.into_iter().collect());
                news.has_changed = true;
            }
        }
        news.has_changed |= take(&mut self.jobs, jobs);
        news.has_changed |= take(&mut self.reservations, reservations);
        self.asked = Some(asked);
        self.period = signed(period);
        let waiting = self.written.len();
        self.written.retain(|_, (written, _)| *written >= number);
        // Wake plans that wait for their own writes to be confirmed, even if nothing else changed.
        news.has_changed |= self.written.len() < waiting;
        news
    }
}

fn signed(duration: Duration) -> SignedDuration {
    duration.try_into().unwrap_or(SignedDuration::MAX)
}

/// Data that is read only on request.
pub(super) enum Extra<T> {
    NotRead,
    Same,
    New(T),
}

/// Returns whether anything changed.
fn take<T: PartialEq>(known: &mut Option<Arc<T>>, read: Extra<T>) -> bool {
    match read {
        Extra::Same => false,
        // Not requested.
        Extra::NotRead => {
            *known = None;
            false
        }
        Extra::New(new) => {
            let changed = known.as_deref() != Some(&new);
            if changed {
                *known = Some(Arc::new(new));
            }
            changed
        }
    }
}

/// A node, reduced to the fields used for planning.
pub(super) fn of_node(node: NodeBrief) -> (String, SlurmNode) {
    let reduced = SlurmNode {
        states: node.state,
        reason: node.reason,
        reason_since: node.reason_changed_at,
        comment: node.comment,
        features: node.features,
        active_features: node.active_features,
        topology: node.topology,
        reservation: node.reservation,
    };
    (node.name, reduced)
}

/// The jobs on each node.
pub(super) fn by_node(jobs: &[JobBrief]) -> HashMap<String, Vec<Job>> {
    let mut by_node: HashMap<String, Vec<Job>> = HashMap::new();
    for job in jobs.iter().filter(|job| job.job_state.holds_nodes()) {
        // An unparsable node list only hides the deadline of one job.
        for node in hostlist::expand(&job.nodes).unwrap_or_default() {
            let is_ending = job.job_state.has(JobState::Completing);
            by_node.entry(node).or_default().push(Job { id: job.job_id, ends: job.deadline(), is_ending });
        }
    }
    by_node
}

pub(super) fn of_reservation(reservation: wire::Reservation) -> (String, Reservation) {
    let reduced = Reservation {
        nodes: reservation.node_list,
        flags: reservation.flags,
        start: reservation.start_time,
        end: reservation.end_time,
    };
    (reservation.name, reduced)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(1);

    fn unchanged() -> Answers {
        Answers { asked: Instant::now(), nodes: None, jobs: Extra::NotRead, reservations: Extra::NotRead }
    }

    #[test]
    fn a_late_answer_wakes_plans_that_found_the_view_stale() {
        let mut state = State::default();
        let nodes = Some((None, vec![("w-0".to_owned(), SlurmNode::default())]));
        assert!(state.take_in(1, Answers { nodes, ..unchanged() }, PERIOD).has_changed);
        assert_eq!(state.take_in(2, unchanged(), PERIOD), News::default(), "nothing is new");
        state.asked = Instant::now().checked_sub(PERIOD * 6);
        assert!(state.take_in(3, unchanged(), PERIOD).has_changed, "it was too old and no longer is");
        assert_eq!(state.take_in(4, unchanged(), PERIOD), News::default());
    }

    #[test]
    fn a_slow_answer_is_not_stale_on_arrival() {
        let mut state = State::default();
        let took = Duration::from_secs(4);
        let asked = Instant::now().checked_sub(took).expect("the machine is up for longer");
        state.take_in(1, Answers { asked, ..unchanged() }, took + PERIOD);
        assert_eq!(state.take_in(2, unchanged(), PERIOD), News::default(), "the view was never stale");
    }
}
