//! Joins the facts about each worker: pod, Kubernetes node and Slurm node.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;
use slurm_operator_api::common::vocabulary::Vocabulary;

use super::{
    context::Context,
    decision::{Cause, PodKey},
    facts::{Cordon, Hold, KubeNode, SlurmNode, SlurmdState, Worker, original},
    identity,
    model::{Mode, Model},
    trust::{NodeObservation, TrustedSlurm},
};

/// A worker and what is known about it.
pub(super) struct WorkerState<'a> {
    vocabulary: &'static Vocabulary,
    pub(super) worker: &'a Worker,
    /// The name of its Slurm node.
    pub(super) name: Option<&'a str>,
    pub(super) ordinal: Option<u32>,
    pub(super) observation: NodeObservation<'a>,
    pub(super) node: Option<&'a KubeNode>,
    pub(super) deadline: Deadline,
    /// Why it is to be removed; `None` if it stays.
    pub(super) removal: Option<Cause>,
}

/// The deadline annotation of a worker with a job without a time limit: later than any real deadline.
pub(super) const NO_LIMIT: &str = "9999-01-01T00:00:00Z";

/// When the last job of a worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deadline {
    /// No job is running, or the jobs are unknown.
    Now,
    At(Timestamp),
    /// A job has no time limit.
    Never,
}

impl<'a> WorkerState<'a> {
    pub(super) fn key(&self) -> PodKey {
        PodKey::of(self.worker)
    }

    /// Whether its pod is not being deleted.
    pub(super) fn is_alive(&self) -> bool {
        !self.worker.terminating
    }

    /// Whether it is neither being deleted nor to be removed.
    pub(super) fn stays(&self) -> bool {
        self.is_alive() && self.removal.is_none()
    }

    /// Whether its Kubernetes node is unschedulable, or a user cordoned the worker.
    pub(super) fn is_cordoned(&self) -> bool {
        self.is_cordoned_by_user() || self.node.is_some_and(|node| node.unschedulable)
    }

    /// Whether a user cordoned the worker.
    pub(super) fn is_cordoned_by_user(&self) -> bool {
        match self.worker.cordon {
            Cordon::None | Cordon::Node => false,
            Cordon::User => true,
            Cordon::Operator => !self.is_cordoned_by_go_operator(),
        }
    }

    /// Whether the cordon is what the Go operator left of a scale-in. Many programs write under its field manager, so only the
    /// reason of its drain is a proof.
    pub(super) fn is_cordoned_by_go_operator(&self) -> bool {
        let is_of_scale_in = |reason: &str| original(reason).ends_with(GO_SCALE_IN);
        self.worker.cordon == Cordon::Operator && self.drained_for().is_some_and(is_of_scale_in)
    }

    /// Whether it was registered and is running, but Slurm no longer knows its node.
    pub(super) fn is_lost(&self) -> bool {
        let runs = self.worker.slurmd != SlurmdState::Stopped && !self.worker.phase.is_over();
        runs && self.is_alive() && matches!(self.observation, NodeObservation::Absent) && self.worker.has_registered()
    }

    /// Whether we have drained it, or are draining it, in order to remove it.
    pub(super) fn is_leaving_slurm(&self) -> bool {
        self.drained_for().is_some_and(|reason| is_removal(self.vocabulary, reason))
    }

    /// The reason of our drain, set or pending.
    pub(super) fn drained_for(&self) -> Option<&'a str> {
        self.observation.drained_for(self.vocabulary)
    }

    /// Who took its Slurm node out of service.
    pub(super) fn hold(&self, node: &SlurmNode) -> Hold {
        node.hold(self.vocabulary)
    }
}

/// How the Go operator's reason of a drain for a scale-in ends.
const GO_SCALE_IN: &str = ") is pending termination for scale-in";

fn reason(model: &Model, what: &str) -> String {
    let Model { vocabulary, namespace, name, .. } = model;
    format!("{}{} ({namespace}/{name}) {what}", vocabulary.reason_prefix, vocabulary.set_kind)
}

/// The reason of a drain for a scale-in.
pub(super) fn scale_in_reason(model: &Model) -> String {
    reason(model, "is scaling in")
}

/// The reason of a drain for an update.
pub(super) fn update_reason(model: &Model) -> String {
    reason(model, "is being updated")
}

/// The reason of any other drain that precedes a removal.
pub(super) fn removal_reason(model: &Model) -> String {
    reason(model, "is removing this worker")
}

/// Whether a drain with this reason, set by us or by the Go operator, precedes a removal.
pub(super) fn is_removal(vocabulary: &Vocabulary, reason: &str) -> bool {
    let Some(text) = original(reason).strip_prefix(vocabulary.reason_prefix) else { return false };
    let ours = [") is scaling in", ") is being updated", ") is removing this worker"];
    let is_of_set = text.strip_prefix(vocabulary.set_kind).is_some_and(|rest| rest.starts_with(" ("));
    (is_of_set && ours.iter().any(|end| text.ends_with(end))) || text.ends_with(GO_SCALE_IN)
}

/// Whether a drain with this reason precedes an update.
pub(super) fn is_update(vocabulary: &Vocabulary, reason: &str) -> bool {
    let reason = original(reason);
    reason.starts_with(vocabulary.reason_prefix) && reason.ends_with(") is being updated")
}

/// Joins the facts. Sorted by ordinal and name.
pub(super) fn gather<'a>(context: &Context<'a>) -> Vec<WorkerState<'a>> {
    let Context { model, facts, slurm, .. } = context;
    let mut workers: Vec<WorkerState<'a>> = facts
        .workers
        .iter()
        .map(|worker| {
            let name = worker.slurm_node();
            let observation = slurm.observe(name);
            WorkerState {
                vocabulary: model.vocabulary,
                worker,
                name,
                ordinal: identity::ordinal(model, worker),
                observation,
                node: worker.home().and_then(|node| facts.nodes.get(node)).map(AsRef::as_ref),
                deadline: deadline(worker, name, observation, slurm),
                removal: None,
            }
        })
        .collect();
    workers.sort_by(|a, b| (a.ordinal, &a.worker.name, &a.worker.uid).cmp(&(b.ordinal, &b.worker.name, &b.worker.uid)));
    workers
}

/// Computed from the running jobs, or else taken from the annotation of the pod.
fn deadline(
    worker: &Worker,
    name: Option<&str>,
    observation: NodeObservation<'_>,
    slurm: &TrustedSlurm<'_>,
) -> Deadline {
    if let (Some(jobs), Some(name)) = (slurm.jobs(), name) {
        let ends = jobs.on(name).iter().map(|job| job.ends.map_or(Deadline::Never, Deadline::At));
        return ends.max().unwrap_or(Deadline::Now);
    }
    if !observation.is_busy() && !matches!(observation, NodeObservation::Blind | NodeObservation::Pending(..)) {
        return Deadline::Now;
    }
    match worker.deadline.as_deref() {
        Some(NO_LIMIT) => Deadline::Never,
        text => text.and_then(|text| text.parse().ok()).map_or(Deadline::Now, Deadline::At),
    }
}

/// The names of all Slurm nodes that have a pod.
pub(super) fn taken<'a>(workers: &[WorkerState<'a>]) -> HashSet<&'a str> {
    workers.iter().filter_map(|state| state.name).collect()
}

/// Indexes of the workers of one mode, by the Kubernetes node where they run or will run.
pub(super) fn by_home<'a>(workers: &[WorkerState<'a>], mode: Mode) -> BTreeMap<&'a str, Vec<usize>> {
    let mut homes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, state) in workers.iter().enumerate().filter(|(_, state)| state.worker.mode() == mode) {
        if let Some(home) = state.worker.home() {
            homes.entry(home).or_default().push(index);
        }
    }
    homes
}
