//! Rules that hold for every plan of every kind. Tests check them on each plan.

use std::collections::HashSet;

use kube::ResourceExt;
use slurm_operator_api::conditions::READY;

use super::{Kind, Next, Plan, SecretContent, Step};

/// Returns the rules that a plan violates.
pub fn lint<K: Kind>(object: &K, plan: &Plan<K::Status>) -> Vec<String> {
    let mut wrong = Vec::new();
    let uid = object.uid();
    let namespace = object.namespace();
    let mut touched = HashSet::new();
    for step in plan.stages.iter().flatten().flat_map(Step::parts) {
        let (kind, name) = match step {
            Step::Apply(desired) => (desired.resource.kind.clone(), desired.object.name_any()),
            Step::GenerateSecret(generated) => {
                (generated.secret.resource.kind.clone(), generated.secret.object.name_any())
            }
            Step::SetOwners(child, _) => (format!("owners of {}", child.resource.kind), child.name.clone()),
            Step::Delete(object) => (object.resource.kind.clone(), object.name.clone()),
            Step::Create(object) => (object.resource.kind.clone(), object.name().to_owned()),
            Step::PatchMetadata(patch) => ("metadata of".to_owned(), patch.target.name.clone()),
            Step::PatchConditions(patch) => ("conditions of".to_owned(), patch.target.name.clone()),
            Step::Slurm(write) => ("in Slurm".to_owned(), format!("{:?}", write.call)),
            Step::Finalizer { name, .. } => ("finalizer".to_owned(), (*name).to_owned()),
            Step::Chain(_) => ("chain in a chain".to_owned(), String::new()),
        };
        if !touched.insert((kind.clone(), name.clone())) && !matches!(step, Step::GenerateSecret(_)) {
            wrong.push(format!("{kind} {name} is written twice"));
        }
        let desired = match step {
            Step::Apply(desired) => Some(&**desired),
            Step::GenerateSecret(generated) => Some(&generated.secret),
            _ => None,
        };
        if let Some(desired) = desired {
            if desired.object.namespace() != namespace {
                wrong.push(format!("{kind} {name} is in another namespace"));
            }
            // Keys have no owner: other daemons use them even if the Controller is deleted.
            let is_keys = matches!(step, Step::GenerateSecret(generated) if matches!(generated.content, SecretContent::Keys { .. }));
            if !is_keys && !desired.object.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref()) {
                wrong.push(format!("{kind} {name} is not owned by the object"));
            }
        }
        if let Step::Delete(object) = step
            && (object.uid.is_empty() || object.resource_version.is_empty())
        {
            wrong.push(format!("{kind} {name} is deleted without UID and resourceVersion"));
        }
    }
    if plan.conditions.iter().filter(|new_condition| new_condition.type_ == READY).count() != 1 {
        wrong.push("there must be exactly one Ready condition".to_owned());
    }
    if plan.conditions.iter().any(|new_condition| new_condition.reason.is_empty()) {
        wrong.push("a condition without a reason".to_owned());
    }
    if matches!(plan.next, Next::After(delay) if delay.as_secs() < 1) {
        wrong.push("a hot loop".to_owned());
    }
    wrong
}
