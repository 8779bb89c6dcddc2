//! Rules that hold for every plan of every kind.
//!
//! Unit tests, the simulation and `slurm-operator plan` check them on each plan.

use std::collections::HashSet;

use kube::ResourceExt;
use slurm_operator_api::common::conditions::READY;
use thiserror::Error;

use crate::plan::{Next, Plan, Step};

/// A rule that a plan breaks. Texts name the object that it is about.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Violation {
    /// Two steps of a stage run at the same time, in any order.
    #[error("{0} is written twice")]
    WrittenTwice(String),
    /// A child lives next to the object that it is made for.
    #[error("{0} is in another namespace")]
    OtherNamespace(String),
    /// A child is deleted with its owner.
    #[error("{0} is not owned by the object")]
    NotOwned(String),
    /// Without these, an object that was changed or made anew since could be deleted (owned-only).
    #[error("{0} is deleted without UID and resourceVersion")]
    NoPreconditions(String),
    /// Chains are one level deep.
    #[error("a chain contains a chain, or drained workers")]
    NestedChain,
    /// Every object says whether it is ready.
    #[error("there are {0} Ready conditions instead of one")]
    NotOneReady(usize),
    /// The API server refuses conditions without a reason.
    #[error("the condition {0} has no reason")]
    NoReason(&'static str),
    /// A plan may not wake itself up more than once a second.
    #[error("the next pass is less than a second away")]
    HotLoop,
}

/// Returns the rules that a plan for this object breaks.
pub fn lint<S>(object: &impl ResourceExt, plan: &Plan<S>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut written = HashSet::new();
    for step in plan.stages.iter().flatten().flat_map(Step::parts) {
        let target = target(step);
        // A Secret with two generated entries is written by two steps.
        if !written.insert(target.clone()) && !matches!(step, Step::GenerateSecret(_)) {
            violations.push(Violation::WrittenTwice(target.clone()));
        }
        violations.extend(check(object, step, target));
    }
    let ready = plan.conditions.iter().filter(|new_condition| new_condition.type_ == READY).count();
    if ready != 1 {
        violations.push(Violation::NotOneReady(ready));
    }
    let without_reason = plan.conditions.iter().filter(|new_condition| new_condition.reason.is_empty());
    violations.extend(without_reason.map(|new_condition| Violation::NoReason(new_condition.type_)));
    if matches!(plan.next, Next::After(delay) if delay.as_secs() < 1) {
        violations.push(Violation::HotLoop);
    }
    violations
}

/// What a step writes.
fn target(step: &Step) -> String {
    match step {
        Step::Apply(desired) => format!("{} {}", desired.resource.kind, desired.object.name_any()),
        Step::GenerateSecret(generated) => format!("Secret {}", generated.secret.object.name_any()),
        Step::SetOwners(child, _) => format!("the owners of {} {}", child.resource.kind, child.name),
        Step::Delete(object, _) => format!("{} {}", object.resource.kind, object.name),
        Step::Create(object) => format!("{} {}", object.resource.kind, object.name()),
        Step::PatchMetadata(patch) => format!("the metadata of {}", patch.target.name),
        Step::PatchConditions(patch) => format!("the conditions of {}", patch.target.name),
        Step::GrowClaim(claim, _) => format!("the size of {}", claim.name),
        Step::Slurm(write) => format!("{:?} in Slurm", write.call),
        Step::Finalizer { name, .. } => format!("the finalizer {name}"),
        Step::Chain(_) => "a chain".to_owned(),
        Step::DeleteDrained(_) => "drained workers".to_owned(),
        Step::Register(register) => format!("the registration of {}", register.pod.name),
        Step::Reread(reread) => format!("the configuration in {}", reread.pod.name),
        Step::ReadKeys(keys) => format!("the keys in {}", keys.pod.name),
    }
}

fn check(object: &impl ResourceExt, step: &Step, target: String) -> Option<Violation> {
    let desired = match step {
        Step::Apply(desired) => &**desired,
        Step::GenerateSecret(generated) => &generated.secret,
        Step::Delete(child, _) => {
            let is_exact = !child.uid.is_empty() && !child.resource_version.is_empty();
            return (!is_exact).then_some(Violation::NoPreconditions(target));
        }
        Step::Chain(_) | Step::DeleteDrained(_) => return Some(Violation::NestedChain),
        _ => return None,
    };
    if desired.object.namespace() != object.namespace() {
        return Some(Violation::OtherNamespace(target));
    }
    let is_owned = desired.object.owner_references().iter().any(|owner| Some(&owner.uid) == object.uid().as_ref());
    // Keys have no owner: other daemons use them even if the Controller is deleted. A Secret that a user made for a token stays
    // the user's.
    let is_without_owner = matches!(step, Step::GenerateSecret(_)) && desired.object.owner_references().is_empty();
    (!is_owned && !is_without_owner).then_some(Violation::NotOwned(target))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
    use serde_json::json;

    use super::*;
    use crate::{
        conditions::{ConditionStatus, NewCondition},
        plan::{Desired, ObjectVersion},
    };

    /// The object that the plans are made for.
    fn owner() -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": "t", "namespace": "ns", "uid": "u"}})).unwrap()
    }

    fn service(namespace: &str, owner: &str) -> Step {
        let service: Service = serde_json::from_value(json!({"metadata": {
            "name": "s", "namespace": namespace,
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "t", "uid": owner}],
        }}))
        .unwrap();
        Step::Apply(Box::new(Desired::of(&service)))
    }

    fn linted(stages: Vec<Vec<Step>>) -> Vec<Violation> {
        let ready =
            NewCondition { type_: READY, status: ConditionStatus::True, reason: "AsExpected", message: String::new() };
        lint(&owner(), &Plan::<()> { stages, conditions: vec![ready], ..Plan::default() })
    }

    #[test]
    fn a_plan_that_keeps_all_rules_is_clean() {
        assert_eq!(linted(vec![vec![service("ns", "u")]]), []);
    }

    #[test]
    fn every_broken_rule_is_named() {
        let text = "Service s".to_owned();
        assert_eq!(linted(vec![vec![service("ns", "u"), service("ns", "u")]]), [Violation::WrittenTwice(text.clone())]);
        assert_eq!(linted(vec![vec![service("other", "u")]]), [Violation::OtherNamespace(text.clone())]);
        assert_eq!(linted(vec![vec![service("ns", "another")]]), [Violation::NotOwned(text)]);
        let secret = Step::Delete(Box::new(ObjectVersion::of::<Secret>(&Secret::default())), "no longer needed");
        assert!(matches!(&linted(vec![vec![secret]])[..], [Violation::NoPreconditions(_)]));
        assert_eq!(linted(vec![vec![Step::Chain(vec![Step::Chain(Vec::new())])]]), [Violation::NestedChain]);
        let unready = lint(&owner(), &Plan::<()> { next: Next::After(std::time::Duration::ZERO), ..Plan::default() });
        assert_eq!(unready, [Violation::NotOneReady(0), Violation::HotLoop]);
    }
}
