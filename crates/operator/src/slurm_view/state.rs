//! What is known of one Slurm cluster, and how an answer changes it.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use engine::podset::{self, Job, JobIndex, JobList, Jobs, Reservation, SlurmNode, SlurmObservation, Snapshot, Written};
use jiff::{SignedDuration, Timestamp};
use slurm::{
    client::Client as Slurm,
    hostlist,
    states::JobState,
    version::SlurmVersion,
    wire::{self, JobBrief, NodeBrief, Ping},
};

/// The memory for the names of nodes and partitions in all jobs together. Whoever controls slurmrestd could otherwise fill our
/// memory with a few short host lists.
const MAX_NAMES: usize = 64 << 20;

/// The memory for a name, besides its text: the job, and its place in a map.
const NAME: usize = 100;

/// What is known of one Slurm cluster.
#[derive(Default)]
pub(super) struct State {
    pub(super) client: Option<Slurm>,
    pub(super) url: String,
    pub(super) nodes: Arc<HashMap<String, SlurmNode>>,
    pub(super) jobs: Option<JobList>,
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
    /// When slurmctld started, by its own clock.
    pub(super) started: Option<Timestamp>,
    /// The last look at slurmctld's clock.
    pub(super) clock: Option<ClockReading>,
    pub(super) slurm_version: Option<SlurmVersion>,
    pub(super) accounting: Option<AccountingAnswer>,
    /// The QOS of slurmdbd, if it answered last.
    pub(super) qos: Option<Arc<BTreeSet<String>>>,
}

/// What slurmdbd answered last: for each of its clusters, the address of slurmctld if that is connected; or why it did not answer.
pub type AccountingAnswer = Result<BTreeMap<String, Option<String>>, String>;

impl State {
    pub(super) fn observation(&self) -> SlurmObservation {
        if let Some((since, why)) = &self.problem {
            return SlurmObservation::Blind { since: *since, why: why.clone() };
        }
        let (Some(_), Some(asked)) = (&self.client, self.asked) else {
            return SlurmObservation::NoClient { why: "not polled yet".to_owned() };
        };
        let clock_ahead = self.clock.as_ref().and_then(ClockReading::ahead);
        SlurmObservation::Clear(Arc::new(Snapshot {
            nodes: Arc::clone(&self.nodes),
            read_at: Timestamp::now() - asked.elapsed(),
            period: self.period,
            ctld_started: self.started.map(|started| started - clock_ahead.unwrap_or_default()),
            clock_ahead,
            version: self.slurm_version,
            pending: self.written.iter().map(|(node, (_, what))| (node.clone(), what.clone())).collect(),
            jobs: self.jobs.clone().map_or(Jobs::Unread, Jobs::Read),
            reservations: self.reservations.clone(),
        }))
    }
}

/// An older reading of slurmctld's clock is not used.
const CLOCK_AGE: Duration = Duration::from_mins(1);

/// A step of slurmctld's clock; its times are in whole seconds.
const STEP: SignedDuration = SignedDuration::from_secs(2);

/// What slurmctld's clock showed, at some time between the request and the response. By our monotonic clock, so that a step of
/// our wall clock is not taken for one of slurmctld's.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    pub(super) shown: Timestamp,
    pub(super) asked: Instant,
    pub(super) answered: Instant,
}

impl ClockReading {
    /// How far slurmctld's clock is ahead of ours now.
    fn ahead(&self) -> Option<SignedDuration> {
        let age = self.answered.elapsed();
        (age < CLOCK_AGE).then(|| (self.shown + signed(age)).duration_since(Timestamp::now()))
    }

    /// Whether the clock has gone back since an earlier reading. What changes until it is again where it was would not be
    /// reported.
    pub(super) fn has_gone_back(&self, earlier: &Self) -> bool {
        let least = signed(self.asked.saturating_duration_since(earlier.answered));
        self.shown.duration_since(earlier.shown) < least - STEP
    }
}

/// All nodes, and the running Slurm version.
pub(super) type Nodes = (Option<SlurmVersion>, Vec<(String, SlurmNode)>);

/// The result of one read.
pub(super) struct Answers {
    pub(super) asked: Instant,
    /// `None`: unchanged.
    pub(super) nodes: Option<Nodes>,
    pub(super) jobs: Extra<JobIndex>,
    pub(super) reservations: Extra<HashMap<String, Reservation>>,
}

/// What to announce after a read.
#[derive(Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct News {
    /// Slurm was unreachable before.
    pub(super) is_back: bool,
    /// The Slurm version is known now, or has changed.
    pub(super) is_other: bool,
    /// Another Slurm version answers than before: it may speak a newer REST version.
    pub(super) is_upgraded: bool,
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
            news.is_upgraded = news.is_other && self.slurm_version.is_some();
            self.slurm_version = version.or(self.slurm_version);
            // Often only node loads have changed, which are not kept: then keep the current map.
            let is_known = |(name, node): &(String, SlurmNode)| self.nodes.get(name) == Some(node);
            if nodes.len() != self.nodes.len() || !nodes.iter().all(is_known) {
                self.nodes = Arc::new(nodes.into_iter().collect());
                news.has_changed = true;
            }
        }
        news.has_changed |= self.take_in_jobs(jobs);
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

impl State {
    /// Returns whether anything changed: the jobs, or the nodes that they can be compared with.
    fn take_in_jobs(&mut self, read: Extra<JobIndex>) -> bool {
        let old = self.jobs.take();
        let jobs = match (read, &old) {
            (Extra::NotRead, _) | (Extra::Same, None) => return false,
            (Extra::Later, _) => {
                self.jobs = old;
                return false;
            }
            (Extra::Same, Some(old)) => Arc::clone(&old.jobs),
            (Extra::New(new), Some(old)) if *old.jobs == new => Arc::clone(&old.jobs),
            (Extra::New(new), _) => Arc::new(new),
        };
        let list = JobList { jobs, nodes: Arc::clone(&self.nodes) };
        let is_same = |old: &JobList| Arc::ptr_eq(&old.jobs, &list.jobs) && Arc::ptr_eq(&old.nodes, &list.nodes);
        let has_changed = !old.as_ref().is_some_and(is_same);
        self.jobs = Some(list);
        has_changed
    }
}

fn signed(duration: Duration) -> SignedDuration {
    duration.try_into().unwrap_or(SignedDuration::MAX)
}

/// Data that is read only on request.
pub(super) enum Extra<T> {
    NotRead,
    /// Requested, but not due yet.
    Later,
    /// Unchanged.
    Same,
    New(T),
}

/// Returns whether anything changed.
fn take<T: PartialEq>(known: &mut Option<Arc<T>>, read: Extra<T>) -> bool {
    match read {
        Extra::Same | Extra::Later => false,
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
        gres: node.gres.into_boxed_str(),
        slurmd_started: node.slurmd_start_time,
        version: node.version.parse().ok(),
    };
    (node.name, reduced)
}

/// What the jobs that have not ended use. `None` if their lists of nodes cannot be read, or are too long to be true.
pub(super) fn index(jobs: &[JobBrief]) -> Option<JobIndex> {
    let left = Cell::new(MAX_NAMES);
    let keep = |name: &str| left.get().checked_sub(NAME + name.len()).map(|rest| left.set(rest));
    let expand = |list: &str| {
        let nodes = hostlist::expand(list).ok()?;
        nodes.iter().try_for_each(|node| keep(node))?;
        Some(nodes)
    };
    // Many jobs name the same nodes.
    let mut seen: HashSet<&str> = HashSet::new();
    let (mut by_node, mut named_nodes, mut by_partition) =
        (HashMap::<String, Vec<Job>>::new(), HashSet::new(), BTreeMap::<String, usize>::new());
    let with_step_manager = jobs.iter().filter(|job| job.has_step_manager && job.job_state.holds_nodes());
    let step_managers = with_step_manager.map(|job| job.job_id).collect();
    for job in jobs {
        if job.job_state.holds_nodes() {
            let is_ending = job.job_state.has(JobState::Completing);
            for node in expand(&job.nodes)? {
                by_node.entry(node).or_default().push(Job { id: job.job_id, ends: job.deadline(), is_ending });
            }
        }
        if !job.job_state.is_finished() {
            for list in [job.required_nodes.as_str(), job.excluded_nodes.as_str()] {
                if seen.insert(list) {
                    named_nodes.extend(expand(list)?);
                }
            }
            for partition in job.partition.split(',').filter(|name| !name.is_empty()) {
                if let Some(number) = by_partition.get_mut(partition) {
                    *number += 1;
                    continue;
                }
                keep(partition)?;
                by_partition.insert(partition.to_owned(), 1);
            }
        }
    }
    Some(JobIndex { by_node, named_nodes, by_partition, step_managers })
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
    fn a_clock_that_goes_back_is_noticed_and_latency_is_not() {
        let (start, s) = (Instant::now(), Duration::from_secs);
        let reading = |shown: i64, asked: u64, answered: u64| ClockReading {
            shown: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(shown),
            asked: start + s(asked),
            answered: start + s(answered),
        };
        let first = reading(1000, 0, 1);
        assert!(!reading(1005, 5, 6).has_gone_back(&first), "as expected");
        assert!(!reading(1003, 5, 9).has_gone_back(&reading(1000, 0, 4)), "both answers were slow");
        assert!(!reading(1100, 5, 6).has_gone_back(&first), "it went forward");
        assert!(reading(975, 5, 6).has_gone_back(&first), "it went back by half a minute");
        assert!(reading(1000, 5, 6).has_gone_back(&first), "it stood still");
    }

    #[test]
    fn another_slurm_version_is_noticed() {
        let mut state = State::default();
        let mut read = |number, version: Option<&str>| {
            let nodes = Some((version.map(|text| text.parse().unwrap()), Vec::new()));
            let news = state.take_in(number, Answers { nodes, ..unchanged() }, PERIOD);
            (news.is_other, news.is_upgraded)
        };
        assert_eq!(read(1, Some("24.11.5")), (true, false), "the first one is no upgrade");
        assert_eq!(read(2, Some("24.11.5")), (false, false));
        assert_eq!(read(3, None), (false, false), "it may be left out");
        assert_eq!(read(4, Some("25.05.1")), (true, true), "it may speak a newer REST version");
        assert_eq!(read(5, Some("24.11.5")), (true, true), "or an older one");
    }

    #[test]
    fn jobs_with_a_step_manager_are_found_while_they_hold_nodes() {
        let job = |job_id, state, has_step_manager| JobBrief {
            job_id,
            job_state: [state].into_iter().collect(),
            has_step_manager,
            ..JobBrief::default()
        };
        let jobs = [
            job(1, JobState::Running, true),
            job(2, JobState::Running, false),
            job(3, JobState::Pending, true),
            job(4, JobState::Suspended, true),
            job(5, JobState::Completed, true),
        ];
        assert_eq!(index(&jobs).unwrap().step_managers, [1, 4].into());
    }

    #[test]
    fn jobs_on_too_many_nodes_are_not_indexed() {
        let running = || [JobState::Running].into_iter().collect();
        let job = |job_id, nodes: &str| JobBrief {
            job_id,
            nodes: nodes.to_owned(),
            job_state: running(),
            ..JobBrief::default()
        };
        let one = index(&[job(1, "w[0-9999]"), job(2, "w[0-9999]")]).unwrap();
        assert_eq!(one.on("w9999").len(), 2);
        let many: Vec<JobBrief> = (0..20).map(|id| job(id, "w[0-65535]")).collect();
        assert!(index(&many).is_none(), "a million names");
        let long = format!("{}[0-65535]", "w".repeat(200));
        let many: Vec<JobBrief> = (0..5).map(|id| job(id, &long)).collect();
        assert!(index(&many).is_none(), "long names");
        let partitions = (0..700_000).map(|number| format!("p{number}")).collect::<Vec<_>>().join(",");
        let job = JobBrief { partition: partitions, job_state: running(), ..JobBrief::default() };
        assert!(index(&[job]).is_none(), "many partitions");
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
