//! `RestApi`: slurmrestd for one Slurm cluster.

mod observe;
mod plan;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Client, ResourceExt};
use slurm_operator_api::{Controller, RestApi, RestApiStatus, names};

pub use plan::Seen;

use crate::{
    kinds::controller,
    machine::{Conditions, Failure, Kind, Need, Plan},
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
    type Seen = Seen;
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

    async fn observe(&self, client: &Client) -> Result<Seen, Failure> {
        observe::observe(self, client).await
    }

    fn plan(&self, seen: &Seen, _: Timestamp) -> Plan<RestApiStatus> {
        plan::plan(self, seen)
    }
}

/// Whether a Controller concerns the `RestApi`.
pub fn refers_to_controller(rest_api: &RestApi, controller: &Controller) -> bool {
    rest_api.namespace() == controller.namespace() && rest_api.spec.controller_ref.name == controller.name_any()
}

/// Whether a `ConfigMap` of this name concerns the `RestApi`: the configuration of its cluster.
pub fn refers_to_config_map(rest_api: &RestApi, name: &str) -> bool {
    name == names::controller_config(&rest_api.spec.controller_ref.name)
}

/// Whether a Secret of this name concerns a `RestApi` of this Controller.
pub fn refers_to_secret(rest_api: &RestApi, controller: &Controller, name: &str) -> bool {
    refers_to_controller(rest_api, controller) && controller::refers_to_secret(controller, name)
}
