//! Workers that run although slurmctld does not know them, for example since it lost its state: slurmd is asked to
//! register again.

use jiff::{SignedDuration, Timestamp};

use super::{
    context::{Context, DecisionBuilder},
    decision::WorkerAction,
    facts::{Attempt, AttemptResult, Phase, SlurmObservation, SlurmdState},
    removal_safety::registers_until,
    trust::is_stale,
    worker_state::WorkerState,
};

/// A slurmd that has just started registers by itself.
const STARTS_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// How often a worker that was registered is asked. The jobs that keep it from registering may have ended by then.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// How often a worker that has never registered is asked: it is unlikely that this helps.
const NEVER_SEEN_AGAIN: SignedDuration = SignedDuration::from_secs(60);

/// How many workers are asked in one pass. A kubelet that does not respond must not delay the other steps for long.
const AT_ONCE: usize = 32;

/// The results of the requests are reported in the next pass.
const REPORT_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// Asks the workers that are due.
pub(super) fn decide(context: &Context<'_>, workers: &[WorkerState<'_>], builder: &mut DecisionBuilder) {
    let unknown: Vec<&WorkerState<'_>> = unknown(context, workers).collect();
    // With many, all get their turn before the first one is asked again.
    let rounds = i32::try_from(unknown.len() / AT_ONCE).unwrap_or(i32::MAX);
    let again = AGAIN.max(SignedDuration::from_secs(2).saturating_mul(rounds));
    let reachable = unknown.into_iter().filter(|state| state.node.is_none_or(|node| node.ready));
    let (mut due, later): (Vec<_>, Vec<_>) =
        reachable.map(|state| (due_at(context, state, again), state)).partition(|(at, _)| *at <= context.now);
    due.sort_by_key(|(at, _)| *at);
    if let Some(next) = later.iter().map(|(at, _)| *at).min() {
        builder.wake(next);
    }
    if due.is_empty() {
        return;
    }
    let wait = if due.len() > AT_ONCE { SignedDuration::from_secs(1) } else { REPORT_AFTER };
    builder.wake(context.now + wait);
    let asked = due
        .into_iter()
        .take(AT_ONCE)
        .filter_map(|(_, state)| Some(WorkerAction::Register { pod: state.key(), node: state.name?.to_owned() }));
    builder.actions.extend(asked);
}

/// Workers whose slurmd runs and whose node is not in a current list of slurmctld. The list need not be trusted otherwise:
/// registering once more does no harm.
pub(super) fn unknown<'a, 'b>(
    context: &'b Context<'a>,
    workers: &'b [WorkerState<'a>],
) -> impl Iterator<Item = &'b WorkerState<'a>> {
    let snapshot = match &context.facts.slurm {
        SlurmObservation::Clear(snapshot) => Some(snapshot),
        SlurmObservation::NoClient { .. } | SlurmObservation::Blind { .. } => None,
    };
    let fresh = snapshot.filter(|list| !is_stale(context.now.duration_since(list.read_at), list.period));
    fresh.into_iter().flat_map(move |list| {
        workers.iter().filter(move |state| {
            let is_listed = |name| list.nodes.contains_key(name) || list.pending.contains_key(name);
            runs(state) && state.name.is_some_and(|name| !is_listed(name))
        })
    })
}

/// Whether a command can be run next to its slurmd.
fn runs(state: &WorkerState<'_>) -> bool {
    let worker = state.worker;
    state.is_alive() && worker.phase == Phase::Running && matches!(worker.slurmd, SlurmdState::Running { .. })
}

/// The last attempt in the life of this slurmd.
pub(super) fn attempt<'a>(context: &Context<'a>, state: &WorkerState<'_>) -> Option<&'a Attempt> {
    context
        .facts
        .attempts
        .get(&state.worker.uid)
        .filter(|attempt| started(state).is_none_or(|start| start <= attempt.at))
}

fn due_at(context: &Context<'_>, state: &WorkerState<'_>, again: SignedDuration) -> Timestamp {
    let next = attempt(context, state).map(|attempt| {
        // A worker with steps has been registered, even if we have not seen that.
        let was_known = state.worker.has_registered() || attempt.result == AttemptResult::HasSteps;
        attempt.at + if was_known { again } else { again.max(NEVER_SEEN_AGAIN) }
    });
    let first = if state.worker.has_registered() {
        started(state).map(|start| start + STARTS_WITHIN)
    } else {
        registers_until(state)
    };
    next.or(first).unwrap_or(context.now)
}

fn started(state: &WorkerState<'_>) -> Option<Timestamp> {
    match state.worker.slurmd {
        SlurmdState::Running { since } => since,
        SlurmdState::Stopped | SlurmdState::Unknown => None,
    }
}
