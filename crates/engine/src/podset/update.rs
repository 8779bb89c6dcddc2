//! Which outdated workers are replaced (budget).

use jiff::Timestamp;
use slurm::states::NodeState;

use super::{
    adopt,
    context::{Context, DecisionBuilder},
    decision::Cause,
    facts::{Hold, SlurmdState},
    model::{Budget, Model, Update},
    removal_order,
    removal_safety::is_reported_late,
    scale::{Scale, count, indexes},
    trust::NodeObservation,
    worker_state::{WorkerState, is_update},
};

/// Marks the outdated workers to replace in this pass.
pub(super) fn decide(
    context: &Context<'_>,
    workers: &mut [WorkerState<'_>],
    scale: &Scale,
    builder: &mut DecisionBuilder,
) {
    let model = context.model;
    let chosen = match &model.update {
        Update::OnDelete => Vec::new(),
        Update::Rolling { max_unavailable } => rolling(context, workers, scale, *max_unavailable, builder),
        Update::Scheduled(_) => {
            let reservation = (model.vocabulary.name.reservation)(&model.name);
            indexes(workers, |state| {
                is_old(model, state) && (is_broken(context, state) || is_reserved(state, &reservation))
            })
        }
    };
    for index in chosen {
        if let Some(state) = workers.get_mut(index) {
            state.removal = Some(Cause::Update);
        }
    }
}

fn rolling(
    context: &Context<'_>,
    workers: &[WorkerState<'_>],
    scale: &Scale,
    budget: Budget,
    builder: &mut DecisionBuilder,
) -> Vec<usize> {
    let model = context.model;
    if budget.of(scale.desired) == 0 {
        return Vec::new();
    }
    // Workers that we are draining for the update count against the budget even if they have failed since: reverting the
    // drain would only waste it.
    let is_draining =
        |state: &WorkerState<'_>| state.drained_for().is_some_and(|reason| is_update(model.vocabulary, reason));
    let draining = indexes(workers, |state| is_old(model, state) && is_draining(state));
    // Replacing a broken worker does not make another one unavailable, but until its successor serves it is one that does not.
    let mut chosen = indexes(workers, |state| is_old(model, state) && is_broken(context, state) && !is_draining(state));
    let is_sound = |state: &WorkerState<'_>| is_old(model, state) && !is_broken(context, state) && !is_draining(state);
    // A worker with a pending write may be in any state, and one that Slurm has lost registers again, so they count as out of
    // service.
    let is_unsettled = |state: &WorkerState<'_>| {
        state.is_leaving_slurm() || state.is_lost() || matches!(state.observation, NodeObservation::Pending(..))
    };
    let reverting = count(workers.iter().filter(|state| is_sound(state) && is_unsettled(state)).count());
    let fresh =
        workers.iter().filter(|state| state.stays() && !is_old(model, state) && !serves(model, state, context.now));
    let unavailable = scale.missing + count(fresh.count()) + count(chosen.len()) + count(draining.len()) + reverting;
    // A worker that lost its owner may be one of those that the update has taken out of service.
    let left = if adopt::is_adopting(context) { 0 } else { budget.of(scale.desired).saturating_sub(unavailable) };
    let waiting = indexes(workers, |state| is_sound(state) && !is_unsettled(state));
    // They are chosen by when their jobs end, as soon as the budget allows.
    builder.needs_jobs |=
        waiting.iter().filter_map(|index| workers.get(*index)).any(|state| state.observation.is_busy());
    let held = |index: &usize| workers.get(*index).is_none_or(is_held);
    builder.problems.held_back = names(workers, waiting.iter().copied().filter(held));
    // Those that do not serve, such as one that still starts, come first: each of them uses the budget whether it is
    // replaced or not. One that others have set down waits its turn.
    let (serving, others): (Vec<usize>, Vec<usize>) =
        waiting.into_iter().filter(|index| !held(index)).partition(|index| {
            workers.get(*index).is_some_and(|state| serves(model, state, context.now) || is_set_down(state))
        });
    let left_for_serving = left.saturating_sub(count(others.len()));
    chosen.extend(draining);
    if context.slurm.snapshot().is_some() {
        for (candidates, left) in [(others, left), (serving, left_for_serving)] {
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            chosen.extend(removal_order::pick(context, workers, candidates, left, builder));
        }
    }
    chosen
}

fn names(workers: &[WorkerState<'_>], indexes: impl Iterator<Item = usize>) -> Vec<String> {
    indexes.filter_map(|index| workers.get(index)).map(|state| state.worker.name.clone()).collect()
}

/// Whether the worker stays and does not have the newest revision, or the key ring that it needs.
pub(super) fn is_old(model: &Model, state: &WorkerState<'_>) -> bool {
    let has_old_key = model.needs_key_ring && !state.worker.has_key_ring;
    state.stays() && (has_old_key || state.worker.revision.as_deref() != Some(&model.revision))
}

/// Whether it cannot run jobs and will not recover by itself. A worker cordoned by a user is left for the user to inspect.
fn is_broken(context: &Context<'_>, state: &WorkerState<'_>) -> bool {
    let worker = state.worker;
    if worker.is_healthy() || state.is_cordoned_by_user() {
        return false;
    }
    let is_silent = match state.observation {
        NodeObservation::Blind | NodeObservation::Pending(..) => false,
        NodeObservation::Absent => !worker.has_registered(),
        NodeObservation::Known(node) => {
            !node.states.is_busy() && !node.states.is_available() && state.hold(node) != Hold::Foreign
        }
    };
    let is_stopped = worker.slurmd == SlurmdState::Stopped && !is_reported_late(context, state);
    worker.phase.is_over() || is_stopped || is_silent
}

/// Whether a user, an admin or a cordon keeps it out of service: replacing it would lose that, or gain nothing.
pub(super) fn is_held(state: &WorkerState<'_>) -> bool {
    let is_foreign = |node: &super::facts::SlurmNode| {
        node.states.is_drain() && state.hold(node) == Hold::Foreign && !node.is_refused()
    };
    state.observation.node().is_some_and(is_foreign) || state.is_cordoned()
}

/// Whether an admin or slurmctld has taken its Slurm node out of service.
fn is_set_down(state: &WorkerState<'_>) -> bool {
    state.observation.node().is_some_and(|node| node.states.is_down() && state.hold(node) == Hold::Foreign)
}

/// Whether it can run jobs, or is only drained on request.
fn serves(model: &Model, state: &WorkerState<'_>, now: Timestamp) -> bool {
    let knows = match state.observation {
        NodeObservation::Known(node) => {
            // A node that does not respond may be its predecessor's.
            let is_silent = node.states.has(NodeState::NotResponding);
            node.states.is_registered() && !is_silent && !node.states.is_down() && !state.is_leaving_slurm()
        }
        NodeObservation::Blind | NodeObservation::Pending(..) | NodeObservation::Absent => false,
    };
    knows && state.worker.is_available(model.min_ready, now)
}

fn is_reserved(state: &WorkerState<'_>, reservation: &str) -> bool {
    let holds = |node: &super::facts::SlurmNode| {
        node.states.has(NodeState::Maintenance) && node.reservation.split(',').any(|name| name == reservation)
    };
    state.observation.node().is_some_and(holds)
}
