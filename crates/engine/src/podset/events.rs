//! Kubernetes events: one for each kind of action, not one for each worker.

use std::collections::HashSet;

use super::{
    context::Context,
    decision::{Cause, WorkerAction},
    model::Model,
    removal_safety::Blocker,
    status::fold,
    worker_state::{scale_in_reason, update_reason},
};
use crate::plan::Event;

/// Returns the events for the planned actions.
pub(super) fn of_actions(
    context: &Context<'_>,
    actions: &[WorkerAction],
    blockers: &[(String, Blocker)],
) -> Vec<Event> {
    let model = context.model;
    let mut events = Vec::new();
    let mut event = |is_warning, reason, text| events.push(Event { is_warning, reason, text });
    let created = pods(actions, |action| match action {
        WorkerAction::Create(identity) => Some(&identity.name),
        _ => None,
    });
    if let Some((number, names)) = created {
        event(false, "ScalingUp", format!("creating {number} workers: {names}"));
    }
    for action in actions {
        match action {
            WorkerAction::Drain { nodes, reason } => {
                let names = fold(nodes.iter().map(String::as_str));
                let why = longest(context, nodes, blockers);
                event(false, occasion(model, reason), format!("draining {names}: {reason}{why}"));
            }
            WorkerAction::Undrain { nodes } | WorkerAction::Resume { nodes } => {
                let names = fold(nodes.iter().map(String::as_str));
                event(false, "Undraining", format!("returning {names} to service"));
            }
            WorkerAction::Requeue { job, .. } => {
                event(true, "DrainTimeout", format!("requeueing job {job}: still running after the drain timeout"));
            }
            WorkerAction::Kill { job, .. } => {
                event(true, "DrainTimeout", format!("canceling job {job}: still running after the drain timeout"));
            }
            _ => {}
        }
    }
    for (reason, causes) in REMOVALS {
        let removed = pods(actions, |action| match action {
            WorkerAction::Delete(removal) if causes.contains(&removal.why) => Some(&removal.name),
            _ => None,
        });
        if let Some((number, names)) = removed {
            event(*reason == "FailedDaemonPod", reason, format!("deleting {number} pods: {names}"));
        }
    }
    let forgotten = pods(actions, |action| match action {
        WorkerAction::Forget { node } => Some(node),
        _ => None,
    });
    if let Some((_, names)) = forgotten {
        event(false, "DefunctSlurmNodePruned", format!("deleting the Slurm nodes of removed workers: {names}"));
    }
    events
}

/// The job that keeps one of these nodes for the longest time, if there is one.
fn longest(context: &Context<'_>, nodes: &[String], blockers: &[(String, Blocker)]) -> String {
    let nodes: HashSet<&String> = nodes.iter().collect();
    let of_jobs = blockers.iter().filter(|(_, blocker)| matches!(blocker, Blocker::Busy { job: Some(_), .. }));
    let worst = of_jobs.filter(|(node, _)| nodes.contains(node)).max_by_key(|(_, blocker)| *blocker);
    worst.map_or_else(String::new, |(node, blocker)| format!("; {node}: {}", blocker.text(context.now)))
}

/// Event reason by cause. The Go operator's reasons are used where it has one.
const REMOVALS: &[(&str, &[Cause])] = &[
    (
        "ScalingDown",
        &[Cause::ScaleIn, Cause::Mode, Cause::Misplaced, Cause::Vanished, Cause::Duplicate, Cause::Deleted],
    ),
    ("RollingUpdate", &[Cause::Update]),
    ("HostnameMismatch", &[Cause::Renamed]),
    ("FailedDaemonPod", &[Cause::Finished]),
];

fn occasion(model: &Model, reason: &str) -> &'static str {
    if reason == update_reason(model) {
        "RollingUpdate"
    } else if reason == scale_in_reason(model) {
        "ScalingDown"
    } else {
        "NodeCordon"
    }
}

fn pods<'a>(
    actions: &'a [WorkerAction],
    name: impl Fn(&'a WorkerAction) -> Option<&'a String>,
) -> Option<(usize, String)> {
    let names: Vec<&str> = actions.iter().filter_map(name).map(String::as_str).collect();
    (!names.is_empty()).then(|| (names.len(), fold(names.iter().copied())))
}
