//! Whether the pod of a worker may be deleted: the one place that decides no-job-lost and blind-means-wait.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use slurm::states::NodeState;

use super::{
    context::Context,
    decision::Cause,
    facts::{SlurmNode, SlurmdState},
    node_records::PodInfo,
    trust::NodeObservation,
    worker_state::{Deadline, WorkerState},
};

/// A slurmd that has not registered after this time is not expected to register any more.
const REGISTERS_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// Whether a pod may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemovalDecision {
    /// No job can be lost.
    Now,
    Wait(Blocker),
}

/// Why the pod of a worker that is to be removed must not be deleted yet. The order is that of how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocker {
    /// The worker has not registered. Until this time it may still do so and get a job.
    MayRegister { until: Option<Timestamp> },
    /// A write to the Slurm node was not confirmed by a later answer of slurmrestd.
    Unconfirmed,
    /// No job runs there, but one could start.
    NotDrained,
    /// It is drained, and the jobs that may be left there, for example suspended ones, are being read.
    JobsUnread,
    /// Jobs are running; the one that ends last, if the jobs were read.
    Busy { deadline: Deadline, job: Option<u32> },
    /// slurmd is running, but slurmctld does not know the node, so jobs that run there are not listed.
    UnknownToSlurm,
    /// It has not registered under its name, and a node with the feature of the set has no pod.
    OtherName,
    /// The state of Slurm is unknown.
    SlurmUnknown,
}

impl Blocker {
    /// When to look again, if nothing changes.
    pub(super) fn until(self) -> Option<Timestamp> {
        match self {
            Self::MayRegister { until } => until,
            _ => None,
        }
    }

    /// One of a fixed set of words, for programs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::MayRegister { .. } => "MayRegister",
            Self::Unconfirmed => "Unconfirmed",
            Self::NotDrained => "NotDrained",
            Self::JobsUnread => "JobsUnread",
            Self::Busy { .. } => "Busy",
            Self::UnknownToSlurm => "UnknownToSlurm",
            Self::OtherName => "OtherName",
            Self::SlurmUnknown => "SlurmUnknown",
        }
    }

    /// For messages to users.
    pub fn text(self, now: Timestamp) -> String {
        let job = |job: Option<u32>| job.map_or_else(|| "a job".to_owned(), |id| format!("job {id}"));
        match self {
            Self::MayRegister { until: Some(until) } => format!("may still register until {}", time(until, now)),
            Self::MayRegister { until: None } => "may still register".to_owned(),
            Self::Unconfirmed => "waiting for Slurm to confirm the last change".to_owned(),
            Self::NotDrained => "not drained yet".to_owned(),
            Self::JobsUnread => "waiting for the list of jobs".to_owned(),
            Self::Busy { deadline: Deadline::At(end), job: id } => {
                format!("blocked by {} until {}", job(id), time(end, now))
            }
            Self::Busy { deadline: Deadline::Never, job: id } => {
                format!("blocked by {}, which has no time limit", job(id))
            }
            Self::Busy { deadline: Deadline::Now, .. } => "blocked by running jobs".to_owned(),
            Self::UnknownToSlurm => "unknown to slurmctld, although slurmd is running".to_owned(),
            Self::OtherName => {
                "a Slurm node with the feature of this set has no pod: it may have registered under that name; if not, delete the pod"
                    .to_owned()
            }
            Self::SlurmUnknown => "the state of Slurm is unknown".to_owned(),
        }
    }
}

/// A time of day, with the date if it is not soon.
pub(super) fn time(then: Timestamp, now: Timestamp) -> String {
    let is_soon = then.duration_since(now) < SignedDuration::from_hours(20);
    then.strftime(if is_soon { "%H:%M UTC" } else { "%Y-%m-%d %H:%M UTC" }).to_string()
}

/// Decides whether the pod of a worker may be deleted for this cause.
pub(super) fn may_remove(context: &Context<'_>, state: &WorkerState<'_>, cause: Cause) -> RemovalDecision {
    let worker = state.worker;
    if worker.phase.is_over() {
        return RemovalDecision::Now;
    }
    let is_stopped = worker.slurmd == SlurmdState::Stopped;
    let busy = || Blocker::Busy { deadline: state.deadline, job: last_job(context, state) };
    let blocker = match state.observation {
        NodeObservation::Blind if is_stopped && !worker.has_registered() => return RemovalDecision::Now,
        NodeObservation::Blind => Blocker::SlurmUnknown,
        _ if is_reported_late(context, state) => busy(),
        _ if is_stopped => return RemovalDecision::Now,
        NodeObservation::Known(node) if node.states.is_drained() => {
            match state.name.and_then(|name| context.slurm.jobs_on_drained(name, node)) {
                Some([]) => return RemovalDecision::Now,
                Some(_) => busy(),
                None => Blocker::JobsUnread,
            }
        }
        NodeObservation::Known(node) if cause == Cause::Vanished && is_dead(node) => return RemovalDecision::Now,
        NodeObservation::Known(node) if node.states.is_busy() => busy(),
        NodeObservation::Known(_) => Blocker::NotDrained,
        NodeObservation::Pending(..) => Blocker::Unconfirmed,
        NodeObservation::Absent if worker.has_registered() => Blocker::UnknownToSlurm,
        NodeObservation::Absent if cause == Cause::Vanished => return RemovalDecision::Now,
        NodeObservation::Absent if *context.has_other_names.get_or_init(|| has_other_names(context)) => {
            Blocker::OtherName
        }
        // It may still register and get a job; then it is drained like any other worker.
        NodeObservation::Absent => {
            let until = registers_until(state);
            if until.is_some_and(|until| context.now >= until) {
                return RemovalDecision::Now;
            }
            Blocker::MayRegister { until }
        }
    };
    RemovalDecision::Wait(blocker)
}

/// Whether a slurmd of the set responds whose node has no pod: workers from before the operator set their names may have registered
/// under another one.
fn has_other_names(context: &Context<'_>) -> bool {
    let Some(snapshot) = context.slurm.snapshot() else { return false };
    let facts = context.facts;
    let others = facts.others.iter().flat_map(|other| &other.workers);
    let pods = facts.workers.iter().chain(&facts.orphans).chain(others);
    let names: HashSet<&str> = pods.filter_map(|worker| worker.slurm_node()).collect();
    let is_live = |node: &SlurmNode| {
        node.states.is_registered() && !node.states.is_down() && !node.states.has(NodeState::NotResponding)
    };
    // With a comment it is the worker of a set that may be in another Kubernetes cluster.
    let is_stray = |node: &SlurmNode| PodInfo::parse(&node.comment).is_none();
    snapshot.nodes.iter().any(|(name, node)| {
        let has_feature = node.features.contains(&context.model.slurm_name);
        has_feature && is_live(node) && is_stray(node) && !names.contains(name.as_str())
    })
}

/// Until when a worker is expected to register.
pub(super) fn registers_until(state: &WorkerState<'_>) -> Option<Timestamp> {
    let since = match state.worker.slurmd {
        // The kubelet's clock may be behind that of the API server.
        SlurmdState::Running { since } => since.max(state.worker.created),
        SlurmdState::Stopped | SlurmdState::Unknown => state.worker.created,
    };
    since.map(|since| since + REGISTERS_WITHIN)
}

/// Whether no job runs on the node and none can start.
fn is_dead(node: &SlurmNode) -> bool {
    node.states.is_down() && !node.states.is_busy()
}

/// Whether the kubelet has not reported yet that slurmd of a new pod has started: Slurm knows better.
pub(super) fn is_reported_late(context: &Context<'_>, state: &WorkerState<'_>) -> bool {
    let is_young = state.worker.created.is_some_and(|created| context.now < created + REGISTERS_WITHIN);
    let runs_jobs = |node: &SlurmNode| node.states.is_busy() && !node.states.has(NodeState::NotResponding);
    state.worker.slurmd == SlurmdState::Stopped && is_young && state.observation.node().is_some_and(runs_jobs)
}

/// The job that ends last, if the jobs were read.
fn last_job(context: &Context<'_>, state: &WorkerState<'_>) -> Option<u32> {
    let jobs = context.slurm.jobs()?.on(state.name?).iter();
    jobs.max_by_key(|job| (job.ends.map_or(Deadline::Never, Deadline::At), job.id)).map(|job| job.id)
}
