//! `RestApi`: slurmrestd for one Slurm cluster.

mod observe;
mod plan;
#[cfg(test)]
mod tests;
mod validate;

use engine::plan::Plan;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, ResourceExt, core::DeserializeGuard};
use slurm_operator_api::{
    common::validation::FieldError,
    slinky::{Controller, RestApi, RestApiStatus, names},
};

pub use plan::Facts;

use super::external_ips;
use crate::{
    failure::Failure,
    machine::{CHILD, Conditions, Findings, Kind, Need, Referenced, WATCHED, namespaced},
    sources::Sources,
    trigger::{Trigger, TriggerKind},
};

impl Conditions for RestApiStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn set_conditions(&mut self, conditions: Vec<Condition>, generation: Option<i64>) {
        (self.conditions, self.observed_generation) = (conditions, generation);
    }
}

impl Kind for RestApi {
    type Facts = Facts;
    type Status = RestApiStatus;
    const NAME: &'static str = "restapi";
    const NEEDS: &'static [Need] = &[
        Need { group: "apps", resources: &["deployments"], verbs: CHILD },
        Need { group: "", resources: &["services"], verbs: CHILD },
        Need { group: "", resources: &["configmaps", "pods", "secrets"], verbs: WATCHED },
        Need { group: "slinky.slurm.net", resources: &["controllers"], verbs: WATCHED },
    ];

    fn objects(client: Client, namespace: Option<&str>) -> Api<DeserializeGuard<Self>> {
        namespaced(client, namespace)
    }

    fn status(&self) -> Option<&RestApiStatus> {
        self.status.as_ref()
    }

    fn validate(&self) -> Vec<FieldError> {
        validate::validate(self)
    }

    fn admission(&self, _: &Referenced) -> Findings {
        Findings { warnings: external_ips(&self.spec.service).into_iter().collect(), ..Findings::default() }
    }

    async fn observe(&self, sources: &Sources, now: Timestamp) -> Result<Facts, Failure> {
        observe::observe(self, &sources.kube.client, now).await
    }

    fn is_affected(&self, trigger: &Trigger) -> bool {
        let controller = &self.spec.controller_ref.name;
        match trigger.what {
            kind if kind == TriggerKind::of::<Controller>() => {
                trigger.same_namespace(self) && trigger.name == *controller
            }
            TriggerKind::ConfigMap => {
                let is_of_controller = trigger.name == names::controller_config(controller)
                    || trigger.name.starts_with(&names::controller_config_copy(controller, ""));
                trigger.same_namespace(self) && is_of_controller
            }
            // The Controller determines which Secret holds the key.
            TriggerKind::Secret => trigger.same_namespace(self),
            // By name, also if it belongs to another object: the name may become free.
            TriggerKind::Pod | TriggerKind::Service | TriggerKind::Deployment => {
                trigger.same_namespace(self) && trigger.name.starts_with(&names::rest_api(&self.name_any()))
            }
            _ => false,
        }
    }

    fn plan(&self, facts: &Facts, _: Timestamp) -> Plan<RestApiStatus> {
        plan::plan(self, facts)
    }
}
