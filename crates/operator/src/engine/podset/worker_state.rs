//! Every worker with all that is known of it, joined once.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;
use slurm_operator_api::names::REASON_PREFIX;

use super::{
    context::Context,
    decision::Cause,
    facts::{Cordon, Jobs, KubeNode, SlurmdState, Worker},
    identity,
    model::{Mode, Model},
    trust::{NodeObservation, TrustedSlurm},
};

/// One worker.
pub(super) struct WorkerState<'a> {
    /// Its pod.
    pub(super) worker: &'a Worker,
    /// The name of its Slurm node.
    pub(super) name: Option<&'a str>,
    /// Its number.
    pub(super) ordinal: Option<u32>,
    /// What Slurm says.
    pub(super) observation: NodeObservation<'a>,
    /// Its Kubernetes node.
    pub(super) node: Option<&'a KubeNode>,
    /// When its last job ends.
    pub(super) deadline: Deadline,
    /// Why it goes, if it does.
    pub(super) removal: Option<Cause>,
}

/// What stands in the annotation of a worker whose jobs have no end: later than any real one.
pub(super) const NO_LIMIT: &str = "9999-01-01T00:00:00Z";

/// When the last job of a worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deadline {
    /// Nothing runs, or nothing is known.
    Now,
    /// At the latest then.
    At(Timestamp),
    /// There is no limit.
    Never,
}

impl WorkerState<'_> {
    /// Whether it is there to stay, as far as its pod goes.
    pub(super) fn is_alive(&self) -> bool {
        !self.worker.terminating
    }

    /// Whether nothing speaks against it.
    pub(super) fn stays(&self) -> bool {
        self.is_alive() && self.removal.is_none()
    }

    /// Whether its Kubernetes node takes no pods, or a user wants it drained.
    pub(super) fn is_cordoned(&self) -> bool {
        self.worker.cordon == Cordon::User || self.node.is_some_and(|node| node.unschedulable)
    }

    /// Whether it was registered, runs, and Slurm does not know it any more.
    pub(super) fn is_lost(&self) -> bool {
        let runs = self.worker.slurmd != SlurmdState::Stopped && !self.worker.phase.is_over();
        runs && self.is_alive() && matches!(self.observation, NodeObservation::Absent) && self.worker.has_registered()
    }

    /// Whether we drain it in order to remove it.
    pub(super) fn is_leaving_slurm(&self) -> bool {
        self.observation.drained_for().is_some_and(is_removal)
    }
}

/// The whole reason of a drain for a scale-in.
pub(super) fn scale_in_reason(model: &Model) -> String {
    format!("{REASON_PREFIX}NodeSet ({}/{}) is scaling in", model.namespace, model.name)
}

/// The whole reason of a drain for an update.
pub(super) fn update_reason(model: &Model) -> String {
    format!("{REASON_PREFIX}NodeSet ({}/{}) is being updated", model.namespace, model.name)
}

/// The whole reason of any other drain after which the worker is removed.
pub(super) fn removal_reason(model: &Model) -> String {
    format!("{REASON_PREFIX}NodeSet ({}/{}) is removing this worker", model.namespace, model.name)
}

/// Whether the reason says that the worker is to be removed, in our words or in those of the Go operator.
pub(super) fn is_removal(reason: &str) -> bool {
    let Some(text) = reason.strip_prefix(REASON_PREFIX) else { return false };
    let ours = [") is scaling in", ") is being updated", ") is removing this worker"];
    let theirs = ") is pending termination for scale-in";
    (text.starts_with("NodeSet (") && ours.iter().any(|end| text.ends_with(end))) || text.ends_with(theirs)
}

/// Whether the reason says that the worker is to be updated.
pub(super) fn is_update(reason: &str) -> bool {
    reason.starts_with(REASON_PREFIX) && reason.ends_with(") is being updated")
}

/// Joins the facts. The order is that of the workers' numbers and names.
pub(super) fn gather<'a>(context: &Context<'a>) -> Vec<WorkerState<'a>> {
    let Context { model, facts, slurm, .. } = context;
    let mut workers: Vec<WorkerState<'a>> = facts
        .workers
        .iter()
        .map(|worker| {
            let name = worker.slurm_node();
            let observation = slurm.observe(name);
            WorkerState {
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

/// From the running jobs, or else as it was last written to the pod.
fn deadline(
    worker: &Worker,
    name: Option<&str>,
    observation: NodeObservation<'_>,
    slurm: &TrustedSlurm<'_>,
) -> Deadline {
    if !observation.is_busy() && !matches!(observation, NodeObservation::Blind | NodeObservation::Pending(..)) {
        return Deadline::Now;
    }
    if let (Some(Jobs::Read(jobs)), Some(name)) = (slurm.snapshot().map(|snapshot| &snapshot.jobs), name) {
        let ends = jobs.get(name).into_iter().flatten().map(|job| job.ends.map_or(Deadline::Never, Deadline::At));
        return ends.max().unwrap_or(Deadline::Now);
    }
    match worker.deadline.as_deref() {
        Some(NO_LIMIT) => Deadline::Never,
        text => text.and_then(|text| text.parse().ok()).map_or(Deadline::Now, Deadline::At),
    }
}

/// The names of Slurm nodes that have a pod.
pub(super) fn taken<'a>(workers: &[WorkerState<'a>]) -> HashSet<&'a str> {
    workers.iter().filter_map(|state| state.name).collect()
}

/// The workers of one mode by the Kubernetes node where they run or will run.
pub(super) fn by_home<'a>(workers: &[WorkerState<'a>], mode: Mode) -> BTreeMap<&'a str, Vec<usize>> {
    let mut homes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, state) in workers.iter().enumerate().filter(|(_, state)| state.worker.mode() == mode) {
        if let Some(home) = state.worker.home() {
            homes.entry(home).or_default().push(index);
        }
    }
    homes
}
