//! Every worker with all that is known of it, joined once.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;
use slurm_operator_api::names::REASON_PREFIX;

use super::{
    decision::Cause,
    identity,
    model::{Mode, Model},
    pass::Pass,
    seen::{Cordon, Jobs, KubeNode, Slurmd, Worker},
    trust::{Look, View},
};

/// One worker.
pub(super) struct Case<'a> {
    /// Its pod.
    pub(super) worker: &'a Worker,
    /// The name of its Slurm node.
    pub(super) name: Option<&'a str>,
    /// Its number.
    pub(super) ordinal: Option<u32>,
    /// What Slurm says.
    pub(super) look: Look<'a>,
    /// Its Kubernetes node.
    pub(super) node: Option<&'a KubeNode>,
    /// When its last job ends.
    pub(super) deadline: Deadline,
    /// Why it goes, if it does.
    pub(super) goes: Option<Cause>,
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

impl Case<'_> {
    /// Whether it is there to stay, as far as its pod goes.
    pub(super) fn is_alive(&self) -> bool {
        !self.worker.terminating
    }

    /// Whether nothing speaks against it.
    pub(super) fn stays(&self) -> bool {
        self.is_alive() && self.goes.is_none()
    }

    /// Whether its Kubernetes node takes no pods, or a user wants it drained.
    pub(super) fn is_cordoned(&self) -> bool {
        self.worker.cordon == Cordon::User || self.node.is_some_and(|node| node.unschedulable)
    }

    /// Whether it was registered, runs, and Slurm does not know it any more.
    pub(super) fn is_lost(&self) -> bool {
        let runs = self.worker.slurmd != Slurmd::Stopped && !self.worker.phase.is_over();
        runs && self.is_alive() && matches!(self.look, Look::Absent) && self.worker.has_registered()
    }

    /// Whether we drain it in order to remove it.
    pub(super) fn is_leaving_slurm(&self) -> bool {
        self.look.drained_for().is_some_and(is_removal)
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
pub(super) fn gather<'a>(pass: &Pass<'a>) -> Vec<Case<'a>> {
    let Pass { model, seen, view, .. } = pass;
    let mut cases: Vec<Case<'a>> = seen
        .workers
        .iter()
        .map(|worker| {
            let name = worker.slurm_node();
            let look = view.look(name);
            Case {
                worker,
                name,
                ordinal: identity::ordinal(model, worker),
                look,
                node: worker.home().and_then(|node| seen.nodes.get(node)).map(AsRef::as_ref),
                deadline: deadline(worker, name, look, view),
                goes: None,
            }
        })
        .collect();
    cases.sort_by(|a, b| (a.ordinal, &a.worker.name, &a.worker.uid).cmp(&(b.ordinal, &b.worker.name, &b.worker.uid)));
    cases
}

/// From the running jobs, or else as it was last written to the pod.
fn deadline(worker: &Worker, name: Option<&str>, look: Look<'_>, view: &View<'_>) -> Deadline {
    if !look.is_busy() && !matches!(look, Look::Blind | Look::Pending(..)) {
        return Deadline::Now;
    }
    if let (Some(Jobs::Read(jobs)), Some(name)) = (view.snapshot().map(|snapshot| &snapshot.jobs), name) {
        let ends = jobs.get(name).into_iter().flatten().map(|job| job.ends.map_or(Deadline::Never, Deadline::At));
        return ends.max().unwrap_or(Deadline::Now);
    }
    match worker.deadline.as_deref() {
        Some(NO_LIMIT) => Deadline::Never,
        text => text.and_then(|text| text.parse().ok()).map_or(Deadline::Now, Deadline::At),
    }
}

/// The names of Slurm nodes that have a pod.
pub(super) fn taken<'a>(cases: &[Case<'a>]) -> HashSet<&'a str> {
    cases.iter().filter_map(|case| case.name).collect()
}

/// The workers of one mode by the Kubernetes node where they run or will run.
pub(super) fn by_home<'a>(cases: &[Case<'a>], mode: Mode) -> BTreeMap<&'a str, Vec<usize>> {
    let mut homes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, case) in cases.iter().enumerate().filter(|(_, case)| case.worker.mode() == mode) {
        if let Some(home) = case.worker.home() {
            homes.entry(home).or_default().push(index);
        }
    }
    homes
}
