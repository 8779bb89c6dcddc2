//! Draining: which workers are drained or resumed, and which pods are deleted.

use std::collections::{BTreeMap, HashSet};

use jiff::SignedDuration;
use slurm::{
    states::NodeState,
    version::{Feature, supports},
};

use super::{
    context::{Context, DecisionBuilder},
    decision::{Cause, Removal, WorkerAction},
    facts::{Hold, KubeNode, SlurmdState},
    identity,
    model::{Model, OnTimeout},
    removal_safety::{RemovalDecision, may_remove},
    trust::NodeObservation,
    worker_state::{WorkerState, is_removal, removal_reason, scale_in_reason, update_reason},
};

/// Maximum length of a reason taken from an annotation or a node condition.
const MAX_REASON: usize = 256;

/// Slurm's clock is read as often as this.
const CLOCK_WITHIN: SignedDuration = SignedDuration::from_secs(5);

/// Slurm changes, grouped so that many nodes need one call.
#[derive(Debug, Default)]
struct Orders<'a> {
    drain: BTreeMap<String, Vec<&'a str>>,
    undrain: Vec<&'a str>,
    resume: Vec<&'a str>,
    /// Jobs to end, and one of their nodes.
    jobs: BTreeMap<u32, &'a str>,
}

/// Plans drains, resumes and pod deletions for all workers.
pub(super) fn decide(context: &Context<'_>, workers: &[WorkerState<'_>], builder: &mut DecisionBuilder) {
    let model = context.model;
    let mut orders = Orders::default();
    let mut removals = Vec::new();
    let shared = shared(workers);
    for state in workers.iter().filter(|state| state.is_alive()) {
        match state.removal {
            None if state.name.is_some_and(|name| shared.contains(name)) => {}
            None => keep(model, state, &mut orders),
            Some(why) => match may_remove(context, state, why) {
                RemovalDecision::Now => {
                    builder.leaving.insert(state.worker.uid.clone());
                    if removals.len() < model.burst && !state.worker.pending {
                        removals.push(removal(context, state, why));
                    }
                }
                RemovalDecision::Wait(blocker) => {
                    // They decide, once the drain is confirmed; and the status says when the last one ends.
                    builder.needs_jobs = true;
                    let name = state.name.unwrap_or(&state.worker.name);
                    builder.blockers.push((name.to_owned(), blocker));
                    if let Some(then) = blocker.until() {
                        builder.wake(then);
                    }
                    empty(model, state, why, &mut orders);
                    outlast(context, state, &mut orders, builder);
                }
            },
        }
    }
    carry_out(model, orders, builder);
    builder.actions.extend(removals.into_iter().map(Box::new).map(WorkerAction::Delete));
}

/// Slurm nodes shared by two pods: the pod that stays is not acted on until the duplicate is gone.
fn shared<'a>(workers: &[WorkerState<'a>]) -> HashSet<&'a str> {
    let doubles = workers.iter().filter(|state| state.is_alive() && state.removal == Some(Cause::Duplicate));
    doubles.filter_map(|state| state.name).collect()
}

/// Drains a worker that is to be removed but cannot be deleted yet.
fn empty<'a>(model: &Model, state: &WorkerState<'a>, why: Cause, orders: &mut Orders<'a>) {
    let (NodeObservation::Known(node), Some(name)) = (state.observation, state.name) else { return };
    let vocabulary = model.vocabulary;
    let reason = match (node.hold(vocabulary), node.states.is_drain()) {
        // An admin's drain is sufficient, and so is an existing drain of ours for a removal.
        (Hold::Foreign, true) => return,
        (Hold::Ours, true)
            if is_removal(vocabulary, &node.reason) || !node.reason.starts_with(vocabulary.reason_prefix) =>
        {
            return;
        }
        // Set down by an admin: add the drain, keep the reason.
        (Hold::Foreign, false) if !node.is_given_up(vocabulary) && !node.is_rebooted() => node.reason.clone(),
        _ => match why {
            Cause::ScaleIn => scale_in_reason(model),
            Cause::Update => update_reason(model),
            _ => removal_reason(model),
        },
    };
    orders.drain.entry(reason).or_default().push(name);
}

/// Handles a worker that stays: drain it if its Kubernetes node is cordoned or a user asked for it, else undo our own drain.
fn keep<'a>(model: &Model, state: &WorkerState<'a>, orders: &mut Orders<'a>) {
    let (NodeObservation::Known(node), Some(name)) = (state.observation, state.name) else { return };
    let is_drain = node.states.is_drain();
    let wanted = || cordon_reason(model, state);
    let drain = |orders: &mut Orders<'a>, reason: String| orders.drain.entry(reason).or_default().push(name);
    match node.hold(model.vocabulary) {
        // slurmctld set it down as not responding or rebooted. With the default ReturnToService, it stays down when slurmd responds
        // again.
        _ if (node.is_unresponsive() || node.is_rebooted()) && !is_drain => {
            let answers = state.worker.is_healthy() && !node.states.has(NodeState::NotResponding);
            let is_over = node.is_given_up(model.vocabulary) || (node.is_rebooted() && model.resumes_rebooted);
            if is_over && answers && wanted().is_none() {
                orders.resume.push(name);
            }
        }
        Hold::Foreign => {}
        Hold::Free => {
            if let Some(reason) = wanted() {
                drain(orders, reason);
            }
        }
        Hold::Ours => match wanted() {
            // The drain was for a removal; replace its reason.
            Some(reason) if is_drain && is_removal(model.vocabulary, &node.reason) => drain(orders, reason),
            Some(_) => {}
            None if !state.worker.is_healthy() => {}
            // slurmctld drains such a node itself, and an old version keeps our reason. The state clears when the node registers
            // with what slurm.conf says.
            None if node.states.has(NodeState::InvalidReg) => {}
            None if node.states.is_down() => {
                let is_back =
                    node.reason == model.vocabulary.terminating_reason || !node.states.has(NodeState::NotResponding);
                if is_back {
                    orders.resume.push(name);
                }
            }
            None => orders.undrain.push(name),
        },
    }
}

/// The reason to drain a worker that stays, if there is one.
fn cordon_reason(model: &Model, state: &WorkerState<'_>) -> Option<String> {
    if let Some(node) = state.node.filter(|node| node.unschedulable) {
        let text = node_reason(model, node).unwrap_or_else(|| {
            let pod = format!("{}/{}", model.namespace, state.worker.name);
            format!("Node ({}) was cordoned, Pod ({pod}) must be cordoned", node.name)
        });
        return Some(format!("{}{text}", model.vocabulary.reason_prefix));
    }
    state.is_cordoned_by_user().then(|| cordon_of_pod(model, state))
}

/// The reason of a drain that the annotation of the worker asks for. The former operator has the same.
pub(super) fn cordon_of_pod(model: &Model, state: &WorkerState<'_>) -> String {
    format!("{}Pod ({}/{}) was cordoned", model.vocabulary.reason_prefix, model.namespace, state.worker.name)
}

/// The reason for the cordon, from the annotation or the conditions of the Kubernetes node.
fn node_reason(model: &Model, node: &KubeNode) -> Option<String> {
    if let Some(text) = node.annotations.get(model.vocabulary.annotation.node_cordon_reason) {
        let clean = one_line(text);
        return Some(if clean.is_empty() { "unknown".to_owned() } else { clean });
    }
    let reported =
        model.propagated_conditions.iter().flat_map(|type_| node.conditions.iter().filter(move |c| c.type_ == *type_));
    let reported: Vec<String> =
        reported.map(|condition| format!("({}: {})", condition.reason, condition.message)).collect();
    (!reported.is_empty()).then(|| one_line(&reported.join("; ")))
}

/// Makes a text fit for a Slurm reason: one line, no control characters, limited length.
fn one_line(text: &str) -> String {
    let plain = text.chars().map(|c| if matches!(c, '\t' | '\r' | '\n') { ' ' } else { c });
    let plain: String = plain.filter(|c| !c.is_control()).collect();
    plain.trim().chars().take(MAX_REASON).collect()
}

/// Handles the jobs of a draining worker after the drain timeout.
fn outlast<'a>(context: &Context<'_>, state: &WorkerState<'a>, orders: &mut Orders<'a>, builder: &mut DecisionBuilder) {
    let model = context.model;
    let (NodeObservation::Known(node), Some(name), Some(snapshot)) =
        (state.observation, state.name, context.slurm.snapshot())
    else {
        return;
    };
    // A suspended job can leave an idle node.
    let has_jobs = || snapshot.jobs.read().is_some_and(|jobs| !jobs.on(name).is_empty());
    if !node.states.is_busy() && !has_jobs() {
        return;
    }
    let is_ours = node.hold(model.vocabulary) == Hold::Ours
        && node.states.is_drain()
        && is_removal(model.vocabulary, &node.reason);
    let Some((time, since)) = model.drain.timeout.zip(node.reason_since.filter(|_| is_ours)) else { return };
    // With a wrong clock, jobs would be ended as soon as their worker drains.
    let Some(ahead) = snapshot.clock_ahead else {
        builder.wake(context.now + CLOCK_WITHIN);
        return;
    };
    let end = since + time - ahead;
    if context.now < end {
        builder.wake(end);
        return;
    }
    builder.problems.outlasting.push(name.to_owned());
    let can = match model.drain.on_timeout {
        OnTimeout::Wait => false,
        OnTimeout::Kill => true,
        OnTimeout::Requeue => supports(snapshot.version, Feature::RestRequeue),
    };
    builder.problems.cannot_requeue |= model.drain.on_timeout == OnTimeout::Requeue && !can;
    if let (true, Some(jobs)) = (can, snapshot.jobs.read()) {
        orders.jobs.extend(jobs.on(name).iter().filter(|job| !job.is_ending).map(|job| (job.id, name)));
    }
}

fn removal(context: &Context<'_>, state: &WorkerState<'_>, why: Cause) -> Removal {
    let (model, facts) = (context.model, context.facts);
    let worker = state.worker;
    let for_good = matches!(why, Cause::ScaleIn | Cause::Misplaced | Cause::Vanished);
    let claims =
        if for_good && model.retention.with_scale { identity::claims_of(model, facts, worker) } else { Vec::new() };
    let known = claims.into_iter().filter(|usage| !usage.is_missing).map(|usage| usage.claim);
    Removal {
        claims: known.collect(),
        name: worker.name.clone(),
        uid: worker.uid.clone(),
        resource_version: worker.resource_version.clone(),
        why,
        drained: drained(state),
    }
}

/// The Slurm node whose drain makes the removal safe; `None` if it is safe without one.
fn drained(state: &WorkerState<'_>) -> Option<String> {
    let is_running = state.worker.slurmd != SlurmdState::Stopped && !state.worker.phase.is_over();
    let is_drained = state.observation.node().is_some_and(|node| node.states.is_drained());
    state.name.filter(|_| is_running && is_drained).map(str::to_owned)
}

fn carry_out(model: &Model, orders: Orders<'_>, builder: &mut DecisionBuilder) {
    let owned = |nodes: Vec<&str>| nodes.into_iter().map(str::to_owned).collect::<Vec<_>>();
    builder
        .actions
        .extend(orders.drain.into_iter().map(|(reason, nodes)| WorkerAction::Drain { nodes: owned(nodes), reason }));
    if !orders.undrain.is_empty() {
        builder.actions.push(WorkerAction::Undrain { nodes: owned(orders.undrain) });
    }
    if !orders.resume.is_empty() {
        builder.actions.push(WorkerAction::Resume { nodes: owned(orders.resume) });
    }
    let end = |(job, node): (u32, &str)| match model.drain.on_timeout {
        OnTimeout::Requeue => WorkerAction::Requeue { job, node: node.to_owned() },
        OnTimeout::Kill | OnTimeout::Wait => WorkerAction::Kill { job, node: node.to_owned() },
    };
    builder.actions.extend(orders.jobs.into_iter().map(end));
}
