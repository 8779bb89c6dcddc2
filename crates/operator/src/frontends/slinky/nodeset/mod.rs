//! `NodeSet`: the workers, which run slurmd.

mod model;
mod observe;
pub mod plan;
mod plan_revision;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use slurm::wire::ReservationSpec;
use slurm_operator_api::{NodeSet, NodeSetStatus, names::finalizer};

pub use observe::{wants_jobs, workers};

use crate::{
    engine::podset::Booking,
    machine::{Conditions, Failure, Kind, Need, Plan, Trigger, TriggerKind},
    sources::Sources,
};

impl Conditions for NodeSetStatus {
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

impl Kind for NodeSet {
    type Facts = plan::Facts;
    type Status = NodeSetStatus;
    const NAME: &'static str = "nodeset";
    const FINALIZERS: &'static [&'static str] = &[finalizer::RESERVATION, finalizer::DRAIN];
    const NEEDS: &'static [Need] = &[
        Need { group: "", resources: &["pods"], verbs: &["create", "delete", "get", "list", "patch", "watch"] },
        Need { group: "", resources: &["pods/status"], verbs: &["patch"] },
        Need { group: "", resources: &["nodes"], verbs: &["get", "list", "watch"] },
        Need { group: "", resources: &["namespaces"], verbs: &["get"] },
        Need { group: "", resources: &["secrets"], verbs: &["get", "list", "watch"] },
        Need { group: "", resources: &["services", "configmaps"], verbs: &["create", "get", "list", "patch", "watch"] },
        Need { group: "", resources: &["persistentvolumeclaims"], verbs: &["create", "get", "list", "patch", "watch"] },
        Need {
            group: "apps",
            resources: &["controllerrevisions"],
            verbs: &["create", "delete", "get", "list", "patch"],
        },
        Need {
            group: "policy",
            resources: &["poddisruptionbudgets"],
            verbs: &["create", "get", "list", "patch", "watch"],
        },
        // To add and remove finalizers.
        Need { group: "slinky.slurm.net", resources: &["nodesets"], verbs: &["patch"] },
    ];

    fn status(&self) -> Option<&NodeSetStatus> {
        self.status.as_ref()
    }

    async fn observe(&self, sources: &Sources) -> Result<plan::Facts, Failure> {
        Box::pin(observe::observe(self, sources)).await
    }

    fn is_affected(&self, trigger: &Trigger) -> bool {
        let cluster = &self.spec.controller_ref.name;
        match trigger.what {
            TriggerKind::Pod
            | TriggerKind::Claim
            | TriggerKind::Service
            | TriggerKind::DisruptionBudget
            | TriggerKind::ConfigMap => trigger.is_owned_by(self),
            // Cordons, labels, taints: the plan decides which of them matter.
            TriggerKind::Node | TriggerKind::Anything => true,
            TriggerKind::Controller | TriggerKind::Slurm | TriggerKind::SlurmHealth => {
                trigger.same_namespace(self) && trigger.name == *cluster
            }
            // The owners of the shared objects change with every set.
            TriggerKind::NodeSet | TriggerKind::Secret => trigger.same_namespace(self),
            TriggerKind::StatefulSet | TriggerKind::Deployment | TriggerKind::RestApi | TriggerKind::Accounting => {
                false
            }
        }
    }

    fn plan(&self, facts: &plan::Facts, now: Timestamp) -> Plan<NodeSetStatus> {
        plan::plan(self, facts, now)
    }
}

/// The reservation of a scheduled update, in the form that Slurm expects.
fn reservation(booking: &Booking) -> ReservationSpec {
    let mut spec = ReservationSpec::new(&booking.name).nodes(booking.nodes.iter().cloned()).users(["slurm"]);
    if let Some((start, minutes)) = booking.time {
        spec = spec.start(start).duration(minutes.into());
    }
    spec.flags(booking.flags.iter().cloned())
}
