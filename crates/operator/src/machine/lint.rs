//! What must hold for every plan, whatever the kind. Tests run it on each plan they see.

use std::collections::HashSet;

use kube::ResourceExt;
use slurm_operator_api::conditions::READY;

use super::{Kind, Next, Plan, Recipe, Step};

/// What is wrong with a plan for this object.
pub fn lint<K: Kind>(object: &K, plan: &Plan<K::Status>) -> Vec<String> {
    let mut wrong = Vec::new();
    let uid = object.uid();
    let namespace = object.namespace();
    let mut touched = HashSet::new();
    for step in plan.stages.iter().flatten().flat_map(Step::parts) {
        let (kind, name) = match step {
            Step::Apply(desired) => (desired.resource.kind.clone(), desired.object.name_any()),
            Step::Mint(mint) => (mint.secret.resource.kind.clone(), mint.secret.object.name_any()),
            Step::Own(child, _) => (format!("owners of {}", child.resource.kind), child.name.clone()),
            Step::Delete(doomed) => (doomed.resource.kind.clone(), doomed.name.clone()),
            Step::Create(stamp) => (stamp.resource.kind.clone(), stamp.name().to_owned()),
            Step::Amend(amend) => ("amended".to_owned(), amend.target.name.clone()),
            Step::Mark(marks) => ("marked".to_owned(), marks.target.name.clone()),
            Step::Slurm(errand) => ("in Slurm".to_owned(), format!("{:?}", errand.deed)),
            Step::Finalizer { name, .. } => ("finalizer".to_owned(), (*name).to_owned()),
            Step::Chain(_) => ("chain in a chain".to_owned(), String::new()),
        };
        if !touched.insert((kind.clone(), name.clone())) && !matches!(step, Step::Mint(_)) {
            wrong.push(format!("{kind} {name} is written twice"));
        }
        let desired = match step {
            Step::Apply(desired) => Some(&**desired),
            Step::Mint(mint) => Some(&mint.secret),
            _ => None,
        };
        if let Some(desired) = desired {
            if desired.object.namespace() != namespace {
                wrong.push(format!("{kind} {name} is in another namespace"));
            }
            // Keys outlive whoever had them made: others run with them.
            let is_keys = matches!(step, Step::Mint(mint) if matches!(mint.recipe, Recipe::Keys { .. }));
            if !is_keys && !desired.object.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref()) {
                wrong.push(format!("{kind} {name} would not go with its owner"));
            }
        }
        if let Step::Delete(doomed) = step
            && (doomed.uid.is_empty() || doomed.resource_version.is_empty())
        {
            wrong.push(format!("{kind} {name} is deleted without saying which one"));
        }
    }
    if plan.conditions.iter().filter(|judgement| judgement.about == READY).count() != 1 {
        wrong.push("not exactly one judgement on Ready".to_owned());
    }
    if plan.conditions.iter().any(|judgement| judgement.reason.is_empty()) {
        wrong.push("a judgement without a reason".to_owned());
    }
    if matches!(plan.next, Next::After(delay) if delay.as_secs() < 1) {
        wrong.push("a hot loop".to_owned());
    }
    wrong
}
