//! Compares the generic resources that Slurm has with those that workers hold.

use std::collections::HashMap;

use slurm::gres::counts;
use slurm_operator_api::common::conditions::{GRES_MISMATCH, reason};

use super::{context::Context, model::HeldGres, status::fold, worker_state::WorkerState};
use crate::conditions::{ConditionStatus, NewCondition};

/// The condition of a set whose workers hold generic resources.
pub(super) fn new_condition(context: &Context<'_>, workers: &[WorkerState<'_>]) -> Option<NewCondition> {
    let held = context.model.gres.as_ref()?;
    let new = |status, why, text| Some(NewCondition::new(GRES_MISMATCH, status, why, text));
    if context.slurm.snapshot().is_none() {
        let text = "the state of Slurm is unknown".to_owned();
        return new(ConditionStatus::Unknown, reason::SLURM_UNREACHABLE, text);
    }
    match mismatch(context, held, workers) {
        Some(text) => new(ConditionStatus::True, GRES_MISMATCH, text),
        None => new(ConditionStatus::False, reason::AS_EXPECTED, "Slurm has what the workers hold".to_owned()),
    }
}

/// What differs, and what to do about it. What workers of other revisions hold is not known.
fn mismatch(context: &Context<'_>, held: &HeldGres, workers: &[WorkerState<'_>]) -> Option<String> {
    let current = workers
        .iter()
        .filter(|state| state.stays() && state.worker.revision.as_deref() == Some(context.model.revision.as_str()));
    let (mut others, mut invalid) = (Vec::new(), Vec::new());
    // Most nodes have the same text.
    let mut known: HashMap<&str, bool> = HashMap::new();
    for (name, node) in current.filter_map(|state| state.name.zip(state.observation.node())) {
        if node.is_refused() {
            invalid.push((name, node.reason.as_str()));
        } else if !*known.entry(&*node.gres).or_insert_with(|| is_same(held, &node.gres)) {
            others.push((name, &*node.gres));
        }
    }
    let text = |found: &[(&str, &str)], says: &dyn Fn(String, &str) -> String| -> Option<String> {
        let (_, first) = found.first()?;
        Some(says(fold(found.iter().map(|(name, _)| *name)), first))
    };
    let texts = [
        text(&others, &|names, found| {
            let wanted: Vec<String> = held.counts.iter().map(|(name, count)| format!("{name}:{count}")).collect();
            let found = if found.is_empty() { "none" } else { found };
            format!("the workers {names} hold {}, but Slurm has {found}: {}", wanted.join(","), held.advice)
        }),
        text(&invalid, &|names, why| {
            format!(
                "Slurm refuses {names} ({why}): slurmd must find the devices that its pod holds. Use an image that can detect them, or \
                 describe them in a gres.conf of your own"
            )
        }),
    ];
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Whether Slurm has as much of everything as a worker holds. It may have more names, which the user has added.
fn is_same(held: &HeldGres, found: &str) -> bool {
    let found = counts(found);
    held.counts.iter().all(|(name, count)| found.get(name.as_str()).copied().unwrap_or(0) == *count)
}
