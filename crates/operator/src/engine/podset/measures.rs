//! What is counted of workers, for metrics.

use jiff::SignedDuration;

use super::{
    cases::Case,
    decision::Counts,
    mirror::own,
    pass::Pass,
    trust::{Look, View},
};
use crate::machine::Measures;

/// The numbers of this moment. A worker that drained or registered is told of until it is gone or shows it.
pub(super) fn of(pass: &Pass<'_>, cases: &[Case<'_>], counts: &Counts) -> Measures {
    let mut measures = Measures { workers: workers(counts, &pass.view), ..Measures::default() };
    for case in cases.iter().filter(|case| case.is_alive()) {
        let since = case.look.node().and_then(|node| node.reason_since).filter(|_| case.is_leaving_slurm());
        match (since, case.look) {
            (Some(since), Look::Known(node)) if node.states.is_drained() => {
                measures.drained.push((case.worker.uid.clone(), pass.now.duration_since(since)));
            }
            (Some(since), _) => {
                measures.draining_since = Some(measures.draining_since.map_or(since, |oldest| oldest.min(since)));
            }
            (None, _) => {}
        }
        let registered = own(case).is_some_and(|node| node.states.is_registered());
        if registered && !case.worker.has_registered() {
            // Slurm may know it before Kubernetes finds it ready.
            let took = case.worker.ready.map_or(SignedDuration::ZERO, |ready| pass.now.duration_since(ready));
            measures.registered.push((case.worker.uid.clone(), took));
        }
    }
    measures
}

fn workers(counts: &Counts, view: &View<'_>) -> Vec<(&'static str, u32)> {
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
    // What Slurm said once is no measurement.
    let is_clear = matches!(view, View::Clear(_));
    pods.into_iter().chain(slurm.into_iter().filter(|_| is_clear)).collect()
}
