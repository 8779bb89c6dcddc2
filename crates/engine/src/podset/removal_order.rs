//! Which workers are removed first.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::{
    context::{Context, DecisionBuilder},
    facts::Phase,
    worker_state::{Deadline, WorkerState},
};

/// Picks the `count` candidates to remove first. Does not choose between busy workers while their jobs are unread; workers
/// that are already being drained stay chosen.
pub(super) fn pick(
    context: &Context<'_>,
    workers: &[WorkerState<'_>],
    mut candidates: Vec<usize>,
    count: usize,
    builder: &mut DecisionBuilder,
) -> Vec<usize> {
    if count >= candidates.len() {
        return candidates;
    }
    candidates.sort_by_cached_key(|index| workers.get(*index).map(key));
    candidates.truncate(count);
    let is_open = |index: &usize| {
        workers.get(*index).is_some_and(|state| state.observation.is_busy() && !state.is_leaving_slurm())
    };
    builder.needs_jobs |= candidates.iter().any(is_open);
    if context.slurm.has_unread_jobs() {
        candidates.retain(|index| !is_open(index));
    }
    candidates
}

/// Sort key, compared field by field; the worker with the smallest key is removed first.
#[expect(clippy::struct_excessive_bools, reason = "most criteria are yes or no")]
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key<'a> {
    has_node: bool,
    phase: u8,
    is_ready: bool,
    cost: i32,
    // Keep draining a worker once started: switching to another one would waste both drains.
    is_in_service: bool,
    is_busy: bool,
    deadline: Deadline,
    is_not_cordoned: bool,
    ordinal: Reverse<Option<u32>>,
    ready: Reverse<Option<Timestamp>>,
    created: Reverse<Option<Timestamp>>,
    name: &'a str,
}

/// The sort key of a worker.
pub(super) fn key<'a>(state: &WorkerState<'a>) -> Key<'a> {
    let worker = state.worker;
    Key {
        has_node: worker.node.is_some(),
        phase: match worker.phase {
            Phase::Running => 2,
            Phase::Unknown => 1,
            Phase::Pending | Phase::Succeeded | Phase::Failed => 0,
        },
        is_ready: worker.ready.is_some(),
        cost: worker.deletion_cost.as_deref().map_or(0, cost),
        is_in_service: !state.is_leaving_slurm(),
        is_busy: state.observation.is_busy(),
        deadline: state.deadline,
        is_not_cordoned: !state.is_cordoned(),
        ordinal: Reverse(state.ordinal),
        ready: Reverse(worker.ready),
        created: Reverse(worker.created),
        name: &worker.name,
    }
}

/// Parses the deletion cost. As in Kubernetes, only the canonical form of a number is valid.
fn cost(text: &str) -> i32 {
    text.parse().ok().filter(|number: &i32| number.to_string() == text).unwrap_or(0)
}
