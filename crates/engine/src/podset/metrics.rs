//! Worker metrics.

use jiff::{SignedDuration, Timestamp};

use super::{
    context::Context,
    decision::Counts,
    metadata_sync::own_node,
    trust::{NodeObservation, TrustedSlurm},
    worker_state::WorkerState,
};

/// Metrics of a set of workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerMetrics {
    /// The number of workers in each state; a worker may be in several.
    pub workers: Vec<(&'static str, u32)>,
    /// Start of the oldest drain that precedes a removal.
    pub draining_since: Option<Timestamp>,
    /// Workers that are drained and about to be removed, and how long the drain took.
    pub drained: Vec<(String, SignedDuration)>,
    /// Newly registered workers, and the time from pod readiness to registration.
    pub registered: Vec<(String, SignedDuration)>,
}

/// Returns the current values. A drained or newly registered worker is reported in every pass until its pod is gone or has
/// the condition.
pub(super) fn of(context: &Context<'_>, workers: &[WorkerState<'_>], counts: &Counts) -> WorkerMetrics {
    let mut worker_metrics =
        WorkerMetrics { workers: worker_counts(counts, &context.slurm), ..WorkerMetrics::default() };
    for state in workers.iter().filter(|state| state.is_alive()) {
        let since = state.observation.node().and_then(|node| node.reason_since).filter(|_| state.is_leaving_slurm());
        match (since, state.observation) {
            (Some(since), NodeObservation::Known(node)) if node.states.is_drained() => {
                worker_metrics.drained.push((state.worker.uid.clone(), context.now.duration_since(since)));
            }
            (Some(since), _) => {
                worker_metrics.draining_since =
                    Some(worker_metrics.draining_since.map_or(since, |oldest| oldest.min(since)));
            }
            (None, _) => {}
        }
        let registered = own_node(state).is_some_and(|node| node.states.is_registered());
        if registered && !state.worker.has_registered() {
            // A worker may register before its pod becomes ready.
            let took = state.worker.ready.map_or(SignedDuration::ZERO, |ready| context.now.duration_since(ready));
            worker_metrics.registered.push((state.worker.uid.clone(), took));
        }
    }
    worker_metrics
}

fn worker_counts(counts: &Counts, trusted: &TrustedSlurm<'_>) -> Vec<(&'static str, u32)> {
    let pods = [
        ("desired", counts.desired),
        ("there", counts.replicas),
        ("updated", counts.updated),
        ("ready", counts.ready),
        ("available", counts.available),
    ];
    let slurm = [
        ("registered", counts.slurm.registered),
        ("idle", counts.slurm.idle),
        ("allocated", counts.slurm.allocated),
        ("down", counts.slurm.down),
        ("drain", counts.slurm.drain),
    ];
    // Do not export outdated Slurm counts as measurements.
    let is_clear = matches!(trusted, TrustedSlurm::Clear(_));
    pods.into_iter().chain(slurm.into_iter().filter(|_| is_clear)).collect()
}
