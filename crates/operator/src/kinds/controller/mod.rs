//! Controller: slurmctld with its configuration, or one that runs somewhere else.

mod model;
mod observe;
mod plan;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Client, ResourceExt};
use slurm_operator_api::{Accounting, Controller, ControllerStatus, NodeSet};

pub use model::config_server;
pub use plan::{Ping, Seen, SlurmSeen};

use crate::machine::{Conditions, Failure, Kind, Need, Plan};

impl Conditions for ControllerStatus {
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

impl Kind for Controller {
    type Seen = Seen;
    type Status = ControllerStatus;
    const NAME: &'static str = "controller";
    const NEEDS: &'static [Need] = &[
        Need { group: "", resources: &["configmaps", "services"], verbs: CHILD },
        Need { group: "apps", resources: &["statefulsets"], verbs: CHILD },
        Need { group: "", resources: &["secrets"], verbs: &["create", "get", "list", "watch"] },
        Need { group: "", resources: &["pods"], verbs: WATCHED },
        Need { group: "", resources: &["persistentvolumeclaims"], verbs: &["get"] },
        Need { group: "slinky.slurm.net", resources: &["accountings", "nodesets"], verbs: WATCHED },
    ];

    fn status(&self) -> Option<&ControllerStatus> {
        self.status.as_ref()
    }

    async fn observe(&self, client: &Client) -> Result<Seen, Failure> {
        // Many reads at once make a large future.
        Box::pin(observe::observe(self, client)).await
    }

    fn plan(&self, seen: &Seen, now: Timestamp) -> Plan<ControllerStatus> {
        plan::plan(self, seen, now)
    }
}

/// Whether a Secret of this name concerns the Controller.
pub fn refers_to_secret(controller: &Controller, name: &str) -> bool {
    let spec = &controller.spec;
    [spec.slurm_key_ref.as_ref(), spec.jwt_key()].into_iter().flatten().any(|reference| reference.name == name)
}

/// Whether a `ConfigMap` of this name concerns the Controller: one that it refers to, or its own.
pub fn refers_to_config_map(controller: &Controller, name: &str) -> bool {
    name == slurm_operator_api::names::controller_config(&controller.name_any())
        || model::config_maps(&controller.spec).iter().any(|other| other == name)
        || controller.spec.jwks_key_ref.as_ref().is_some_and(|reference| reference.name == name)
}

/// Whether an Accounting concerns the Controller.
pub fn refers_to_accounting(controller: &Controller, accounting: &Accounting) -> bool {
    controller.namespace() == accounting.namespace()
        && controller.spec.accounting() == Some(accounting.name_any().as_str())
}

/// Whether a `NodeSet` concerns the Controller.
pub fn refers_to_node_set(controller: &Controller, node_set: &NodeSet) -> bool {
    controller.namespace() == node_set.namespace() && controller.name_any() == node_set.spec.controller_ref.name
}

/// What of a `NodeSet` the configuration tells: as long as it stays the same, the Controller need not look again.
pub fn node_set_line(node_set: &NodeSet) -> crate::engine::config::NodeSetLine {
    model::node_set_line(node_set)
}
