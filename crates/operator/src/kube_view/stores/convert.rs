//! Converts reduced API objects to the engine's types.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use slurm_operator_api::{
    conditions::POD_PREFIX,
    names::{TRUE, annotation, label},
};

use super::{Reduce, SlimContainer, SlimNode, SlimPod};
use crate::engine::podset::{Cordon, KubeNode, Mode, NodeCondition, Phase, SlurmdState, Taint, Worker};

/// The container that runs slurmd.
const SLURMD: &str = "slurmd";

/// Field managers of the Go operator.
const GO_OPERATOR: &[&str] = &["manager", "slurm-operator"];

/// Annotations of Kubernetes nodes that are used for planning.
const NODE_ANNOTATIONS: &[&str] =
    &[annotation::NODE_CORDON_REASON, annotation::TOPOLOGY, annotation::FEATURES, annotation::HOSTNAME_OVERRIDE];

impl Reduce for SlimPod {
    type Kept = Worker;

    /// Only workers are kept; pods of other daemons are read on demand.
    fn group(&self) -> Option<String> {
        let is_worker = self.labels().get(label::NAME).is_some_and(|name| name == SLURMD);
        let owner = self.owner_references().iter().find(|owner| owner.controller == Some(true));
        owner.filter(|_| is_worker).map(|owner| owner.uid.clone())
    }

    fn reduce(&self) -> Worker {
        let (labels, annotations) = (self.labels(), self.annotations());
        let ready = self.status.conditions.iter().find(|found| found.type_ == "Ready" && found.status == "True");
        let since = |time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| time.map(|time| time.0);
        Worker {
            name: self.name_any(),
            uid: self.uid().unwrap_or_default(),
            resource_version: self.resource_version().unwrap_or_default(),
            node: self.spec.node_name.clone().filter(|node| !node.is_empty()),
            target: self.spec.affinity.as_ref().and_then(target),
            hostname: self.spec.hostname.clone(),
            host_network: self.spec.host_network,
            phase: phase(self.status.phase.as_deref()),
            ready: ready.map(|ready| since(ready.last_transition_time.as_ref()).unwrap_or(Timestamp::UNIX_EPOCH)),
            created: since(self.meta().creation_timestamp.as_ref()),
            terminating: self.meta().deletion_timestamp.is_some(),
            pending: false,
            slurmd: slurmd(&self.status.container_statuses),
            problem: self.problem(),
            mode: labels.get(label::SCALING_MODE).and_then(|mode| Mode::of_label(mode)),
            index: labels.get(label::POD_INDEX).cloned(),
            revision: labels.get(label::REVISION).cloned(),
            protected: labels.get(label::POD_PROTECT).is_some_and(|value| value == TRUE),
            cordon: self.cordon(),
            deletion_cost: annotations.get(annotation::POD_DELETION_COST).cloned(),
            deadline: annotations.get(annotation::POD_DEADLINE).cloned(),
            topology: annotations.get(annotation::TOPOLOGY).cloned(),
            conditions: self.slurm_conditions(),
        }
    }

    fn differs(old: &Worker, new: &mut Worker) -> bool {
        // A change of the resourceVersion alone does not matter for planning, but deletes need the newest one.
        let version = std::mem::replace(&mut new.resource_version, old.resource_version.clone());
        let differs = *old != *new;
        new.resource_version = version;
        differs
    }
}

impl SlimPod {
    fn slurm_conditions(&self) -> BTreeMap<String, String> {
        let ours =
            self.status.conditions.iter().filter(|found| found.type_.starts_with(POD_PREFIX) && found.status == "True");
        ours.map(|found| (found.type_.clone(), found.message.clone().unwrap_or_default())).collect()
    }

    /// Who set the annotation that drains a worker.
    fn cordon(&self) -> Cordon {
        if self.annotations().get(annotation::POD_CORDON).is_none_or(|value| value != TRUE) {
            return Cordon::None;
        }
        let field = format!("f:{}", annotation::POD_CORDON);
        let wrote =
            self.metadata.writers.iter().filter(|writer| writer.fields.metadata.annotations.contains_key(&field));
        let mut writers = wrote.filter_map(|writer| writer.manager.as_deref()).peekable();
        if writers.peek().is_some() && writers.all(|writer| GO_OPERATOR.contains(&writer)) {
            return Cordon::Operator;
        }
        Cordon::User
    }

    /// Why the pod does not run, as reported by the scheduler or the kubelet.
    fn problem(&self) -> Option<String> {
        let status = &self.status;
        if phase(status.phase.as_deref()) == Phase::Failed {
            let why = [status.reason.as_deref(), status.message.as_deref()].into_iter().flatten().collect::<Vec<_>>();
            return Some(if why.is_empty() { "the pod failed".to_owned() } else { why.join(": ") });
        }
        let unscheduled =
            status.conditions.iter().find(|found| found.type_ == "PodScheduled" && found.status == "False");
        if let Some(found) = unscheduled {
            return Some(format!("unschedulable: {}", found.message.clone().unwrap_or_default()));
        }
        status.init_container_statuses.iter().chain(&status.container_statuses).find_map(waiting)
    }
}

/// Why a container is waiting, unless it is just starting.
fn waiting(container: &SlimContainer) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason =
        waiting.reason.as_deref().filter(|reason| !matches!(*reason, "ContainerCreating" | "PodInitializing"))?;
    let message = waiting.message.as_deref().unwrap_or_default();
    Some(format!("{reason} in container {}: {message}", container.name))
}

fn phase(text: Option<&str>) -> Phase {
    match text {
        Some("Running") => Phase::Running,
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        Some("Unknown") => Phase::Unknown,
        _ => Phase::Pending,
    }
}

fn slurmd(containers: &[SlimContainer]) -> SlurmdState {
    let Some(container) = containers.iter().find(|container| container.name == SLURMD) else {
        return SlurmdState::Stopped;
    };
    match &container.state {
        Some(state) if state.running.is_some() => {
            let since = state.running.as_ref().and_then(|running| running.started_at.as_ref());
            SlurmdState::Running { since: since.map(|time| time.0) }
        }
        Some(state) if state.waiting.is_some() || state.terminated.is_some() => SlurmdState::Stopped,
        _ => SlurmdState::Unknown,
    }
}

/// The Kubernetes node that an affinity refers to.
fn target(affinity: &Value) -> Option<String> {
    let terms = affinity
        .pointer("/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms")
        .and_then(Value::as_array)?;
    let fields = terms.iter().filter_map(|term| term.get("matchFields")?.as_array()).flatten();
    let mut named = fields.filter(|field| field.get("key").and_then(Value::as_str) == Some("metadata.name"));
    named.find_map(|field| field.pointer("/values/0")?.as_str()).map(str::to_owned)
}

impl Reduce for SlimNode {
    type Kept = KubeNode;

    fn group(&self) -> Option<String> {
        Some(String::new())
    }

    fn reduce(&self) -> KubeNode {
        let conditions = self.status.conditions.iter().filter(|found| found.status == "True");
        let known = |key: &&str| Some(((*key).to_owned(), self.annotations().get(*key)?.clone()));
        KubeNode {
            name: self.name_any(),
            labels: self.labels().clone(),
            annotations: NODE_ANNOTATIONS.iter().filter_map(known).collect(),
            taints: self
                .spec
                .taints
                .iter()
                .map(|taint| Taint {
                    key: taint.key.clone(),
                    value: taint.value.clone().unwrap_or_default(),
                    effect: taint.effect.clone(),
                })
                .collect(),
            unschedulable: self.spec.unschedulable,
            ready: conditions.clone().any(|found| found.type_ == "Ready"),
            deleting: self.meta().deletion_timestamp.is_some(),
            conditions: conditions
                .map(|found| NodeCondition {
                    type_: found.type_.clone(),
                    reason: found.reason.clone().unwrap_or_default(),
                    message: found.message.clone().unwrap_or_default(),
                })
                .collect(),
        }
    }

    /// Heartbeats are not differences: times are not kept.
    fn differs(old: &KubeNode, new: &mut KubeNode) -> bool {
        *old != *new
    }
}
