//! Owner references of claims, which decide with which object a claim is deleted (claims-kept).

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{
    context::{Context, DecisionBuilder},
    decision::WorkerAction,
    worker_state::WorkerState,
};

/// Corrects the owner references of claims. Claims of pods that are deleted in this pass are handled by the removal.
pub(super) fn decide(context: &Context<'_>, workers: &[WorkerState<'_>], builder: &mut DecisionBuilder) {
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
        let deleted_with_pod = claim.owners.iter().any(|owner| is_alive(owner) == Some(false));
        if claim.deleting || deleted_with_pod || of_removed.contains(name.as_str()) {
            continue;
        }
        let is_set = |owner: &OwnerReference| owner.uid == model.uid;
        let is_wrong = |owner: &&OwnerReference| is_alive(owner) == Some(true) || (!with_set && is_set(owner));
        let drop: Vec<String> = claim.owners.iter().filter(is_wrong).map(|owner| owner.uid.clone()).collect();
        if !drop.is_empty() || (with_set && !claim.owners.iter().any(is_set)) {
            actions.push(WorkerAction::OwnClaim { claim: name.clone(), by_set: with_set, drop });
        }
    }
    builder.actions.append(&mut actions);
}
