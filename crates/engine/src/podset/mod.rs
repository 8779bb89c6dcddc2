//! The lifecycle of worker pods: scaling, updates, and draining before removal.
//!
//! [`plan()`] is a pure function from the desired state ([`Model`]) and the observed state ([`Facts`]) to a [`Decision`].

mod adopt;
mod claims;
mod context;
mod decision;
mod drain;
mod events;
mod explain;
mod facts;
mod gres;
mod identity;
mod metadata_sync;
mod metrics;
mod model;
mod node_records;
mod placement;
mod register;
mod removal_order;
mod removal_safety;
mod reservation;
mod scale;
mod status;
mod steps;
mod trust;
mod update;
mod worker_state;

use jiff::{SignedDuration, Timestamp};

pub use decision::{
    Booking, Cause, ClaimUse, Counts, Decision, Description, Finalizers, Identity, PodKey, Removal, WorkerAction,
};
pub use explain::{Delay, Explanation, Standing, Why, explain};
pub use facts::{
    Attempt, AttemptResult, Claim, Cordon, Facts, Hold, Job, JobIndex, JobList, Jobs, KubeNode, NodeCondition,
    OtherSet, Phase, Recall, Reservation, Reserved, SetBy, SlurmCounts, SlurmNode, SlurmObservation, SlurmdState,
    Snapshot, Taint, Worker, Written,
};
pub use metadata_sync::states_of;
pub use metrics::WorkerMetrics;
pub use model::{
    Budget, DEFAULT_BURST, DrainPolicy, HeldGres, Life, Match, Mode, Model, Naming, OnTimeout, Ordinals, Placement,
    Registration, RemovalOrder, Retention, Scaling, Schedule, Term, Toleration, Update,
};
pub use node_records::{Orphans, PodInfo, orphans, silent_pods};
pub use removal_safety::Blocker;
pub use steps::{StepBuilder, claim_template_name, finalizers};
pub use trust::is_stale;
pub use worker_state::Deadline;

use context::{Context, DecisionBuilder};
use removal_safety::registers_until;
use scale::Scale;
use status::Report;
use trust::{NodeObservation, TrustedSlurm};
use worker_state::WorkerState;

/// How often to ask for the jobs again.
const JOBS_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// Plans one pass. Deterministic: the same input gives the same decision.
pub fn plan(model: &Model, facts: &Facts, now: Timestamp) -> Decision {
    let context = Context::new(model, facts, now);
    let mut workers = worker_state::gather(&context);
    let mut builder = DecisionBuilder::default();
    let mut scale = choose(&context, &mut workers, &mut builder);
    // Also while it is paused: only what has an owner is protected.
    if model.life != Life::Deleted {
        adopt::decide(&context, &mut scale, &mut builder);
    }
    let finalizers =
        Finalizers { reservation: act(&context, &workers, &mut scale, &mut builder), drain: must_stay(&context) };
    wake_for_availability(&context, &workers, &mut builder);
    wake_when_trusted(&context, &mut builder);
    wake_for_registration(&context, &workers, &mut builder);
    wake_for_scheduling(&context, &workers, &mut builder);
    // Jobs are read only for a while after each request, and the end of one that waits or is suspended changes no node.
    if builder.needs_jobs {
        builder.wake(now + JOBS_AGAIN);
    }
    let current = status::current(&context, &workers);
    let report = Report {
        context: &context,
        workers: &workers,
        scale: &scale,
        problems: &builder.problems,
        blockers: &builder.blockers,
        gres: gres::new_condition(&context, &workers),
    };
    let counts = status::counts(&context, &workers, scale.desired, current.as_deref());
    Decision {
        worker_metrics: metrics::of(&context, &workers, &counts),
        counts,
        pinned: scale::pins(&context, &workers),
        current,
        finalizers,
        conditions: report.conditions().into_iter().chain(reservation::new_condition(&context)).collect(),
        events: events::of_actions(&context, &builder.actions, &builder.blockers),
        actions: builder.actions,
        next: builder.next,
        needs_jobs: builder.needs_jobs,
        needs_reservations: facts.may_be_reserved || matches!(model.update, Update::Scheduled(_)),
        blockers: builder.blockers,
    }
}

/// Marks the workers to remove, and returns the workers to create.
fn choose(context: &Context<'_>, workers: &mut [WorkerState<'_>], builder: &mut DecisionBuilder) -> Scale {
    if context.model.life == Life::Deleted {
        workers.iter_mut().filter(|state| state.is_alive()).for_each(|state| state.removal = Some(Cause::Deleted));
        return Scale::default();
    }
    let mut scale = scale::decide(context, workers, builder);
    if context.model.blocked.is_some() {
        scale.create.clear();
        return scale;
    }
    update::decide(context, workers, &scale, builder);
    node_records::before(context, &mut scale.create, builder);
    scale
}

/// Plans all actions. Returns whether the set needs the reservation finalizer; `None` if unknown.
fn act(
    context: &Context<'_>,
    workers: &[WorkerState<'_>],
    scale: &mut Scale,
    builder: &mut DecisionBuilder,
) -> Option<bool> {
    let (model, facts) = (context.model, context.facts);
    let create = std::mem::take(&mut scale.create);
    match model.life {
        Life::Active => metadata_sync::decide(context, workers, builder),
        Life::Paused => {
            // Nothing is chosen, but the protection of workers ends with their jobs.
            builder.needs_jobs = false;
            metadata_sync::decide(context, workers, builder);
            return None;
        }
        // Pods and their jobs are garbage-collected with the set: drain.onDelete is off, or waiting is pointless.
        Life::Deleted if facts.yields || !model.drain.on_delete => {
            return reservation::decide(context, workers, 0, builder);
        }
        Life::Deleted => {}
    }
    drain::decide(context, workers, builder);
    node_records::decide(context, workers, &create, builder);
    register::decide(context, workers, builder);
    builder.actions.extend(create.into_iter().map(Box::new).map(WorkerAction::Create));
    claims::decide(context, workers, builder);
    spare(builder);
    reservation::decide(context, workers, scale.desired, builder)
}

/// Drops what is planned for pods that are about to be deleted: it is wasted, and would change the resourceVersion that the
/// delete is conditioned on.
fn spare(builder: &mut DecisionBuilder) {
    let DecisionBuilder { actions, leaving, .. } = builder;
    actions.retain(|action| match action {
        WorkerAction::Patch { pod, .. } | WorkerAction::Conditions { pod, .. } | WorkerAction::Register { pod, .. } => {
            !leaving.contains(&pod.uid)
        }
        _ => true,
    });
}

/// Whether the set needs the drain finalizer.
fn must_stay(context: &Context<'_>) -> bool {
    let is_empty = context.facts.workers.is_empty() && context.facts.creating.is_empty();
    let is_done = context.model.life == Life::Deleted && (is_empty || context.facts.yields);
    context.model.drain.on_delete && !is_done
}

/// Wakes when the next worker reaches `minReadySeconds`.
fn wake_for_availability(context: &Context<'_>, workers: &[WorkerState<'_>], builder: &mut DecisionBuilder) {
    let ready = workers.iter().filter(|state| state.worker.is_healthy()).filter_map(|state| state.worker.ready);
    let soon = ready.map(|ready| ready + context.model.min_ready).filter(|then| *then > context.now);
    if let Some(then) = soon.min() {
        builder.wake(then);
    }
}

/// Wakes when the warm-up of a restarted slurmctld ends: it is trusted then even if its answer does not change.
fn wake_when_trusted(context: &Context<'_>, builder: &mut DecisionBuilder) {
    if let TrustedSlurm::Blind { until: Some(then), .. } = context.slurm {
        builder.wake(then);
    }
}

/// Wakes when a worker should have registered.
fn wake_for_registration(context: &Context<'_>, workers: &[WorkerState<'_>], builder: &mut DecisionBuilder) {
    let is_awaited = |state: &&WorkerState<'_>| {
        state.stays() && !state.worker.has_registered() && matches!(state.observation, NodeObservation::Absent)
    };
    let late = workers.iter().filter(is_awaited).filter_map(registers_until).filter(|until| *until > context.now);
    if let Some(then) = late.min() {
        builder.wake(then);
    }
}

/// Wakes when a worker should have been scheduled.
fn wake_for_scheduling(context: &Context<'_>, workers: &[WorkerState<'_>], builder: &mut DecisionBuilder) {
    let late = workers.iter().filter_map(status::scheduled_until).filter(|until| *until > context.now);
    if let Some(then) = late.min() {
        builder.wake(then);
    }
}

#[cfg(test)]
mod tests;
