//! Owner references of claims, which decide with which object a claim is deleted (claims-kept).

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{
    context::{Context, DecisionBuilder},
    decision::WorkerAction,
    identity,
    model::Model,
    worker_state::WorkerState,
};

/// Corrects the owner references of claims. Claims of pods that are deleted in this pass are handled by the removal.
pub(super) fn decide(context: &Context<'_>, workers: &[WorkerState<'_>], builder: &mut DecisionBuilder) {
    create_missing(context, workers, builder);
    if context.facts.claims.is_empty() {
        return;
    }
    let (model, with_set) = (context.model, context.model.retention.with_set);
    let workers: BTreeMap<&str, bool> =
        workers.iter().map(|state| (state.worker.uid.as_str(), state.is_alive())).collect();
    let removals = builder.actions.iter().filter_map(|action| match action {
        WorkerAction::Delete(removal) => Some(&removal.claims),
        _ => None,
    });
    let of_removed: HashSet<&str> = removals.flatten().map(String::as_str).collect();
    let mut actions = Vec::new();
    for (name, claim) in &context.facts.claims {
        let is_alive = |owner: &OwnerReference| workers.get(owner.uid.as_str()).copied();
        // A pod that is not listed any more is gone, and the garbage collector deletes the claim.
        let is_gone = |owner: &OwnerReference| owner.kind == "Pod" && is_alive(owner) != Some(true);
        let is_earlier = |owner: &OwnerReference| is_earlier_set(model, owner);
        // Also with an earlier set. If claims are kept now, this one is kept from the garbage collector below.
        let deleted_with_owner = claim.owners.iter().any(|owner| is_gone(owner) || (with_set && is_earlier(owner)));
        if claim.deleting || deleted_with_owner || of_removed.contains(name.as_str()) {
            continue;
        }
        let is_set = |owner: &OwnerReference| owner.uid == model.uid;
        let is_wrong = |owner: &&OwnerReference| {
            is_alive(owner) == Some(true) || (!with_set && is_set(owner)) || is_earlier(owner)
        };
        let drop: Vec<String> = claim.owners.iter().filter(is_wrong).map(|owner| owner.uid.clone()).collect();
        if !drop.is_empty() || (with_set && !claim.owners.iter().any(is_set)) {
            actions.push(WorkerAction::OwnClaim { claim: name.clone(), by_set: with_set, drop });
        }
    }
    builder.actions.append(&mut actions);
}

/// Whether it is an earlier set of the same name, with which the claim is deleted.
pub(super) fn is_earlier_set(model: &Model, owner: &OwnerReference) -> bool {
    owner.kind == model.vocabulary.set_kind && owner.name == model.name && owner.uid != model.uid
}

/// Creates claims that pods wait for. They exist when a pod is created, but may be deleted before it is scheduled.
fn create_missing(context: &Context<'_>, workers: &[WorkerState<'_>], builder: &mut DecisionBuilder) {
    let waiting = workers.iter().filter(|state| state.stays() && state.worker.node.is_none() && !state.worker.pending);
    for usage in waiting.flat_map(|state| identity::claims_of(context.model, context.facts, state.worker)) {
        if usage.is_missing {
            builder.actions.push(WorkerAction::CreateClaim(usage));
        }
    }
}
