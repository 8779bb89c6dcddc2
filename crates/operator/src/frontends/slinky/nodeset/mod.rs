//! `NodeSet`: the workers, which run slurmd.

mod model;
mod observe;
pub mod plan;
mod plan_revision;
#[cfg(test)]
mod tests;
mod validate;

use engine::plan::Plan;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, ResourceExt, core::DeserializeGuard};
use slurm_operator_api::{
    common::validation::FieldError,
    slinky::{
        Controller, NodeSet, NodeSetStatus,
        names::{self, finalizer},
    },
};

pub use model::lifecycle_of_viewer;
pub use observe::{others, recall, shared_owners, workers};

use crate::{
    failure::Failure,
    machine::{CHILD, Conditions, Findings, Kind, LISTED, Need, Referenced, WATCHED, namespaced},
    sources::Sources,
    trigger::{Trigger, TriggerKind},
};

impl Conditions for NodeSetStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn set_conditions(&mut self, conditions: Vec<Condition>, generation: Option<i64>) {
        (self.conditions, self.observed_generation) = (conditions, generation);
    }
}

impl Kind for NodeSet {
    type Facts = plan::Facts;
    type Status = NodeSetStatus;
    const NAME: &'static str = "nodeset";
    const USES_STORES: bool = true;
    const FINALIZERS: &'static [&'static str] = &[finalizer::RESERVATION, finalizer::DRAIN];
    const NEEDS: &'static [Need] = &[
        Need { group: "", resources: &["pods"], verbs: CHILD },
        Need { group: "", resources: &["pods/status"], verbs: &["patch"] },
        // To make slurmd register again. Which verb is needed depends on the version of Kubernetes.
        Need { group: "", resources: &["pods/exec"], verbs: &["create", "get"] },
        Need { group: "", resources: &["nodes"], verbs: LISTED },
        Need { group: "", resources: &["namespaces"], verbs: &["get"] },
        Need { group: "", resources: &["secrets"], verbs: WATCHED },
        Need { group: "", resources: &["services"], verbs: CHILD },
        Need { group: "", resources: &["configmaps"], verbs: &["create", "get", "list", "patch", "watch"] },
        Need { group: "", resources: &["persistentvolumeclaims"], verbs: &["create", "get", "list", "patch", "watch"] },
        Need { group: "apps", resources: &["controllerrevisions"], verbs: &["create", "delete", "list", "patch"] },
        // To see whether slurmctld knows the generic resources of workers.
        Need { group: "apps", resources: &["statefulsets"], verbs: &["get"] },
        Need { group: "policy", resources: &["poddisruptionbudgets"], verbs: CHILD },
        // To say if drain.onDelete does not hold for foreground deletion.
        Need {
            group: "admissionregistration.k8s.io",
            resources: &["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
            verbs: &["list"],
        },
        // To add and remove finalizers.
        Need { group: "slinky.slurm.net", resources: &["nodesets"], verbs: &["patch"] },
    ];

    fn objects(client: Client, namespace: Option<&str>) -> Api<DeserializeGuard<Self>> {
        namespaced(client, namespace)
    }

    fn status(&self) -> Option<&NodeSetStatus> {
        self.status.as_ref()
    }

    fn validate(&self) -> Vec<FieldError> {
        validate::validate(self)
    }

    fn admission(&self, _: &Referenced) -> Findings {
        validate::admission(self)
    }

    async fn observe(&self, sources: &Sources, now: Timestamp) -> Result<plan::Facts, Failure> {
        Box::pin(observe::observe(self, sources, now)).await
    }

    fn is_affected(&self, trigger: &Trigger) -> bool {
        let cluster = &self.spec.controller_ref.name;
        match trigger.what {
            // One without an owner may be one to adopt.
            TriggerKind::Pod if trigger.owners.is_empty() => trigger.same_namespace(self),
            TriggerKind::Pod | TriggerKind::Claim => trigger.is_owned_by(self),
            // By name, also if it belongs to another object: the name may become free.
            TriggerKind::Service => trigger.is(trigger.what, self, &names::worker_service(cluster)),
            TriggerKind::DisruptionBudget => trigger.is(trigger.what, self, &names::worker_disruption_budget(cluster)),
            TriggerKind::ConfigMap => trigger.is(trigger.what, self, &names::ssh_config(&self.name_any())),
            // Cordons, labels, taints: the plan decides which of them matter.
            TriggerKind::Node | TriggerKind::Anything => true,
            TriggerKind::Slurm(group) | TriggerKind::SlurmHealth(group) => {
                group == names::GROUP && trigger.same_namespace(self) && trigger.name == *cluster
            }
            kind if kind == TriggerKind::of::<Controller>() => trigger.same_namespace(self) && trigger.name == *cluster,
            TriggerKind::Secret => trigger.same_namespace(self),
            // The owners of the shared objects change with every set.
            kind if kind == TriggerKind::of::<NodeSet>() => trigger.same_namespace(self),
            // Workers with generic resources wait for slurmctld to know them.
            TriggerKind::StatefulSet => {
                trigger.same_namespace(self)
                    && trigger.name == names::controller(cluster)
                    && !model::held(self).is_empty()
            }
            TriggerKind::Custom(_) | TriggerKind::Deployment => false,
        }
    }

    fn plan(&self, facts: &plan::Facts, now: Timestamp) -> Plan<NodeSetStatus> {
        plan::plan(self, facts, now)
    }
}
