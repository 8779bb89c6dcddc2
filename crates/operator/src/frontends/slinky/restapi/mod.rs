//! `RestApi`: slurmrestd for one Slurm cluster.

mod observe;
mod plan;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use slurm_operator_api::{RestApi, RestApiStatus, names};

pub use plan::Facts;

use crate::{
    machine::{Conditions, Failure, Kind, Need, Plan, Trigger, TriggerKind},
    sources::Sources,
};

impl Conditions for RestApiStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }

    fn observed_generation_mut(&mut self) -> &mut Option<i64> {
        &mut self.observed_generation
    }
}

const CHILD: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];
const WATCHED: &[&str] = &["get", "list", "watch"];

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

    fn status(&self) -> Option<&RestApiStatus> {
        self.status.as_ref()
    }

    async fn observe(&self, sources: &Sources) -> Result<Facts, Failure> {
        observe::observe(self, &sources.client).await
    }

    fn is_affected(&self, trigger: &Trigger) -> bool {
        let controller = &self.spec.controller_ref.name;
        match trigger.what {
            TriggerKind::Controller => trigger.same_namespace(self) && trigger.name == *controller,
            TriggerKind::ConfigMap => {
                trigger.same_namespace(self) && trigger.name == names::controller_config(controller)
            }
            // The Controller determines which Secret holds the key.
            TriggerKind::Secret => trigger.same_namespace(self),
            TriggerKind::Pod => {
                trigger.same_namespace(self) && trigger.name.starts_with(&names::rest_api(&self.name_any()))
            }
            TriggerKind::Service | TriggerKind::Deployment => trigger.is_owned_by(self),
            _ => false,
        }
    }

    fn plan(&self, facts: &Facts, _: Timestamp) -> Plan<RestApiStatus> {
        plan::plan(self, facts)
    }
}
