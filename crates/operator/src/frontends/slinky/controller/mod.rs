//! Controller: slurmctld with its configuration, or an external slurmctld.

mod change;
mod model;
mod observe;
mod plan;
mod plan_accounting;
mod plan_conditions;
mod plan_files;
mod plan_keys;
mod plan_reread;
mod plan_trial;
#[cfg(test)]
mod tests;
mod validate;

use engine::plan::Plan;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, ResourceExt, core::DeserializeGuard};
use slurm_operator_api::{
    common::validation::FieldError,
    slinky::{Accounting, Controller, ControllerStatus, NodeSet, names},
};

pub use model::config_server;
pub use plan::Facts;
pub use plan_accounting::uses_slurmdbd;

use crate::{
    failure::Failure,
    machine::{CHILD, Conditions, Findings, Kind, LISTED, Need, Reference, Referenced, WATCHED, namespaced},
    sources::Sources,
    trigger::{Trigger, TriggerKind},
};

impl Conditions for ControllerStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn set_conditions(&mut self, conditions: Vec<Condition>, generation: Option<i64>) {
        (self.conditions, self.observed_generation) = (conditions, generation);
    }
}

impl Kind for Controller {
    type Facts = Facts;
    type Status = ControllerStatus;
    const NAME: &'static str = "controller";
    const NEEDS: &'static [Need] = &[
        Need { group: "", resources: &["configmaps", "services"], verbs: CHILD },
        Need { group: "apps", resources: &["statefulsets"], verbs: CHILD },
        Need { group: "", resources: &["secrets"], verbs: &["create", "get", "list", "patch", "watch"] },
        Need { group: "", resources: &["pods"], verbs: &["create", "delete", "get", "list", "patch", "watch"] },
        // To make slurmctld reread its configuration, and slurmd and sackd their keys. Which verb is needed depends on the version of Kubernetes.
        Need { group: "", resources: &["pods/exec"], verbs: &["create", "get"] },
        Need { group: "", resources: &["persistentvolumeclaims"], verbs: &["get", "patch"] },
        Need { group: "slinky.slurm.net", resources: &["accountings"], verbs: WATCHED },
        Need { group: "slinky.slurm.net", resources: &["nodesets"], verbs: LISTED },
        // Not watched: the kind may not be installed.
        Need {
            group: "monitoring.coreos.com",
            resources: &["servicemonitors"],
            verbs: &["create", "delete", "list", "patch"],
        },
    ];

    fn objects(client: Client, namespace: Option<&str>) -> Api<DeserializeGuard<Self>> {
        namespaced(client, namespace)
    }

    fn status(&self) -> Option<&ControllerStatus> {
        self.status.as_ref()
    }

    fn validate(&self) -> Vec<FieldError> {
        validate::validate(self)
    }

    fn references(&self) -> Vec<Reference> {
        validate::references(self)
    }

    fn admission(&self, referenced: &Referenced) -> Findings {
        validate::admission(self, referenced)
    }

    async fn observe(&self, sources: &Sources, now: Timestamp) -> Result<Facts, Failure> {
        Box::pin(observe::observe(self, sources, now)).await
    }

    fn is_affected(&self, trigger: &Trigger) -> bool {
        match trigger.what {
            TriggerKind::Secret => trigger.same_namespace(self) && refers_to_secret(self, &trigger.name),
            TriggerKind::ConfigMap => trigger.same_namespace(self) && refers_to_config_map(self, &trigger.name),
            kind if kind == TriggerKind::of::<Accounting>() => {
                trigger.same_namespace(self) && self.spec.accounting() == Some(&*trigger.name)
            }
            // The Controller of a deleted `NodeSet` is unknown.
            kind if kind == TriggerKind::of::<NodeSet>() => trigger.same_namespace(self),
            TriggerKind::SlurmHealth(names::GROUP) => trigger.same_namespace(self) && trigger.name == self.name_any(),
            TriggerKind::StatefulSet
                if self.spec.accounting().is_some_and(|name| trigger.name == names::accounting(name)) =>
            {
                trigger.same_namespace(self)
            }
            // By name, also if it belongs to another object: the name may become free.
            TriggerKind::Pod | TriggerKind::Service | TriggerKind::StatefulSet => {
                trigger.same_namespace(self) && trigger.name.starts_with(&names::controller(&self.name_any()))
            }
            _ => false,
        }
    }

    fn plan(&self, facts: &Facts, now: Timestamp) -> Plan<ControllerStatus> {
        plan::plan(self, facts, now)
    }
}

/// Whether the Controller refers to a Secret of this name.
fn refers_to_secret(controller: &Controller, name: &str) -> bool {
    let spec = &controller.spec;
    let ring = spec.slurm_key_ref.as_ref().map(names::key_ring);
    let mut keys = [spec.slurm_key_ref.as_ref(), spec.jwt_key()].into_iter().flatten();
    keys.any(|reference| reference.name == name) || ring.is_some_and(|ring| ring == name)
}

/// Whether a `ConfigMap` of this name affects the Controller: it refers to it or owns it.
fn refers_to_config_map(controller: &Controller, name: &str) -> bool {
    let own = controller.name_any();
    name == names::controller_config(&own)
        || name.starts_with(&names::controller_config_copy(&own, ""))
        || model::config_maps(&controller.spec).iter().any(|other| other == name)
        || controller.spec.jwks_key_ref.as_ref().is_some_and(|reference| reference.name == name)
}
