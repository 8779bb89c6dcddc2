//! Worker pods without an owner, for example after `kubectl delete --cascade=orphan` or a restore from a backup.

use super::{
    context::{Context, DecisionBuilder},
    decision::{Identity, PodKey, WorkerAction},
    facts::Worker,
    identity,
    model::Mode,
    scale::Scale,
};

/// Adopts the pods that are certainly workers of the set, and drops the new workers that would have the names of any.
pub(super) fn decide(context: &Context<'_>, scale: &mut Scale, builder: &mut DecisionBuilder) {
    if context.facts.orphans.is_empty() {
        return;
    }
    let all = context.facts.orphans.iter().map(AsRef::as_ref);
    let (ours, others): (Vec<&Worker>, Vec<&Worker>) = all.partition(|orphan| is_ours(context, orphan));
    let taken = |identity: &Identity, orphan: &&&Worker| {
        orphan.name == identity.name || orphan.slurm_node() == Some(&identity.hostname)
    };
    scale.create.retain(|identity| {
        if let Some(orphan) = others.iter().find(|orphan| taken(identity, orphan)) {
            let owner = format!("the pod {}, which has no owner", orphan.name);
            builder.problems.taken_names.entry(owner).or_default().push(identity.hostname.clone());
            return false;
        }
        !ours.iter().any(|orphan| taken(identity, &orphan))
    });
    let adopt = |orphan: &Worker| WorkerAction::Adopt {
        pod: PodKey::of(orphan),
        resource_version: orphan.resource_version.clone(),
    };
    builder.actions.extend(ours.into_iter().map(adopt));
}

/// Whether there are pods that will be workers of the set in the next pass.
pub(super) fn is_adopting(context: &Context<'_>) -> bool {
    context.facts.orphans.iter().any(|orphan| is_ours(context, orphan))
}

/// Whether a pod with the labels of the set also has a name and a revision of it.
fn is_ours(context: &Context<'_>, orphan: &Worker) -> bool {
    let model = context.model;
    let is_named = match orphan.mode() {
        Mode::Numbered => identity::ordinal_of_name(model, &orphan.name).is_some(),
        Mode::PerNode => orphan.home().is_some_and(|node| identity::pod_name_on(model, node) == orphan.name),
    };
    let is_known = |revision: &String| *revision == model.revision || context.facts.known_revisions.contains(revision);
    is_named && !orphan.terminating && orphan.revision.as_ref().is_some_and(is_known)
}
