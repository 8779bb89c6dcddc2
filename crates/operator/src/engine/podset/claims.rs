//! Who owns the claims of workers, and so with whom they go (claims-kept).

use std::collections::{BTreeMap, HashSet};

use super::{
    cases::Case,
    decision::Deed,
    pass::{Draft, Pass},
};

/// Corrects the owners of claims. Those of pods that go now are left to their removal.
pub(super) fn decide(pass: &Pass<'_>, cases: &[Case<'_>], draft: &mut Draft) {
    if pass.seen.claims.is_empty() {
        return;
    }
    let (model, with_set) = (pass.model, pass.model.retention.with_set);
    let workers: BTreeMap<&str, bool> = cases.iter().map(|case| (case.worker.uid.as_str(), case.is_alive())).collect();
    let removals = draft.deeds.iter().filter_map(|deed| match deed {
        Deed::Delete(removal) => Some(&removal.claims),
        _ => None,
    });
    let going: HashSet<&str> = removals.flatten().map(|(claim, _)| claim.as_str()).collect();
    let mut deeds = Vec::new();
    for (name, claim) in &pass.seen.claims {
        let is_alive = |owner: &String| workers.get(owner.as_str()).copied();
        let goes_with_pod = claim.owners.iter().any(|owner| is_alive(owner) == Some(false));
        if claim.deleting || goes_with_pod || going.contains(name.as_str()) {
            continue;
        }
        let is_set = |owner: &String| *owner == model.uid;
        let is_wrong = |owner: &&String| is_alive(owner) == Some(true) || (!with_set && is_set(owner));
        let drop: Vec<String> = claim.owners.iter().filter(is_wrong).cloned().collect();
        if !drop.is_empty() || (with_set && !claim.owners.iter().any(is_set)) {
            let uid = claim.uid.clone();
            deeds.push(Deed::OwnClaim { claim: name.clone(), uid, by_set: with_set, drop });
        }
    }
    draft.deeds.append(&mut deeds);
}
