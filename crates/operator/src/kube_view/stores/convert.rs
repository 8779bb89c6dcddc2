//! Converts reduced API objects to the engine's types.

use std::collections::BTreeMap;

use engine::podset::{Cordon, KubeNode, Mode, NodeCondition, Phase, SetBy, SlurmdState, Taint, Worker};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{Resource, ResourceExt};
use serde_json::Value;
use slurm_operator_api::common::{
    conditions::POD_PREFIX,
    vocabulary::{AUTOSCALERS, TRUE, Vocabulary},
};

use super::{Reduce, SlimContainer, SlimNode, SlimPod, Vocabularies};
use crate::kube_view::{GO_OPERATOR, MANAGER};

/// The container that runs slurmd.
const SLURMD: &str = "slurmd";

/// The words of the API group of a pod's controller.
fn vocabulary_of(owner: &OwnerReference, vocabularies: Vocabularies) -> Option<&'static Vocabulary> {
    let group = owner.api_version.split('/').next().unwrap_or_default();
    vocabularies.iter().find(|vocabulary| vocabulary.group == group).copied()
}

impl Reduce for SlimPod {
    type Kept = Worker;

    /// Only workers are kept; pods of other daemons are read on demand.
    fn group(&self, vocabularies: Vocabularies) -> Option<String> {
        let vocabulary = self.vocabulary(vocabularies).filter(|vocabulary| self.is_worker(vocabulary))?;
        if let Some(owner) = self.controller() {
            return Some(owner.uid.clone());
        }
        let instance = self.labels().get(vocabulary.label.instance)?;
        Some(orphans_of(&self.namespace().unwrap_or_default(), vocabulary, instance))
    }

    fn reduce(&self, vocabularies: Vocabularies) -> Worker {
        let Some(vocabulary) = self.vocabulary(vocabularies) else { return Worker::default() };
        let (label, annotation) = (&vocabulary.label, &vocabulary.annotation);
        let (labels, annotations) = (self.labels(), self.annotations());
        let ready = self.status.conditions.iter().find(|found| found.type_ == "Ready" && found.status == "True");
        let since = |time: Option<&Time>| time.map(|time| time.0);
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
            mode: labels.get(label.scaling_mode).and_then(|mode| Mode::of_label(mode)).or_else(|| self.mode_of_name()),
            index: labels.get(label.pod_index).cloned(),
            revision: labels.get(label.revision).cloned(),
            has_key_ring: annotations.contains_key(annotation.key_ring),
            cluster: labels.get(label.cluster).cloned(),
            missing_labels: self.missing_labels(vocabulary),
            protected: labels.get(label.pod_protect).is_some_and(|value| value == TRUE),
            cordon: self.cordon(annotation.pod_cordon),
            is_of_former: self.is_created_by(GO_OPERATOR) && !annotations.contains_key(annotation.taken_over),
            autoscalers: AUTOSCALERS.map(|(key, _)| self.set_by(key)),
            deletion_cost: annotations.get(annotation.pod_deletion_cost).cloned(),
            deadline: annotations.get(annotation.pod_deadline).cloned(),
            topology: annotations.get(annotation.topology).cloned(),
            conditions: self.slurm_conditions(),
        }
    }

    fn lost(&self) -> Option<String> {
        self.uid().filter(|_| self.meta().deletion_timestamp.is_none())
    }

    fn differs(old: &Worker, new: &mut Worker) -> bool {
        by_our_clock(old, new);
        // A change of the resourceVersion alone does not matter for planning, but deletes need the newest one.
        let version = std::mem::replace(&mut new.resource_version, old.resource_version.clone());
        let differs = *old != *new;
        new.resource_version = version;
        differs
    }
}

/// The kubelet's clock may be behind ours: a slurmd has not run for longer than we have seen it run.
fn by_our_clock(old: &Worker, new: &mut Worker) {
    let SlurmdState::Running { since: Some(since) } = &mut new.slurmd else { return };
    let seen = match old.slurmd {
        SlurmdState::Running { since: Some(seen) } if old.uid == new.uid => seen,
        _ => Timestamp::now(),
    };
    *since = seen.max(*since);
}

/// The group of pods without an owner that have the labels of a set. No UID has a slash.
pub(super) fn orphans_of(namespace: &str, vocabulary: &Vocabulary, set: &str) -> String {
    format!("{namespace}/{}/{set}", vocabulary.group)
}

impl SlimPod {
    /// The words of the API group of its controller, or of the one whose workers have its labels.
    fn vocabulary(&self, vocabularies: Vocabularies) -> Option<&'static Vocabulary> {
        match self.controller() {
            Some(owner) => vocabulary_of(owner, vocabularies),
            None if !self.owner_references().is_empty() => None,
            None => vocabularies.iter().copied().find(|vocabulary| self.is_worker(vocabulary)),
        }
    }

    fn is_worker(&self, vocabulary: &Vocabulary) -> bool {
        let (label, value) = vocabulary.worker_label;
        self.labels().get(label).is_some_and(|found| found == value)
    }

    /// The scaling mode of a worker that has lost its label.
    fn mode_of_name(&self) -> Option<Mode> {
        let name = self.name_any();
        let rest = name.strip_prefix(&self.controller()?.name)?.strip_prefix('-')?;
        let is_number = rest.bytes().all(|byte| byte.is_ascii_digit());
        Some(if is_number { Mode::Numbered } else { Mode::PerNode })
    }

    /// Labels that every worker has and that this one has lost.
    fn missing_labels(&self, vocabulary: &Vocabulary) -> Vec<&'static str> {
        let label = &vocabulary.label;
        let is_per_node =
            self.labels().get(label.scaling_mode).and_then(|mode| Mode::of_label(mode)) == Some(Mode::PerNode);
        let of_all = [label.instance, label.pod_name, label.pod_hostname, label.scaling_mode];
        let index = Some(label.pod_index).filter(|_| !is_per_node);
        of_all.into_iter().chain(index).filter(|key| !self.labels().contains_key(*key)).collect()
    }

    fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references().iter().find(|owner| owner.controller == Some(true))
    }

    fn slurm_conditions(&self) -> BTreeMap<String, String> {
        let ours =
            self.status.conditions.iter().filter(|found| found.type_.starts_with(POD_PREFIX) && found.status == "True");
        ours.map(|found| (found.type_.clone(), found.message.clone().unwrap_or_default())).collect()
    }

    /// Who set the annotation that drains a worker.
    fn cordon(&self, key: &str) -> Cordon {
        if self.annotations().get(key).is_none_or(|value| value != TRUE) {
            return Cordon::None;
        }
        if self.is_written_only_by(key, &[MANAGER]) {
            Cordon::Node
        } else if self.is_written_only_by(key, GO_OPERATOR) {
            Cordon::Operator
        } else {
            Cordon::User
        }
    }

    /// Who set an annotation.
    fn set_by(&self, key: &str) -> SetBy {
        if !self.annotations().contains_key(key) {
            SetBy::Unset
        } else if self.is_written_only_by(key, &[MANAGER]) {
            SetBy::Operator
        } else {
            SetBy::Other
        }
    }

    /// Whether all field managers of an annotation are among these.
    fn is_written_only_by(&self, key: &str, managers: &[&str]) -> bool {
        let field = format!("f:{key}");
        let wrote =
            self.metadata.writers.iter().filter(|writer| writer.fields.metadata.annotations.contains_key(&field));
        let mut writers = wrote.filter_map(|writer| writer.manager.as_deref()).peekable();
        writers.peek().is_some() && writers.all(|writer| managers.contains(&writer))
    }

    /// Whether one of these field managers has created it.
    fn is_created_by(&self, managers: &[&str]) -> bool {
        let creators = self.metadata.writers.iter().filter(|writer| writer.fields.spec.is_some());
        creators.filter_map(|writer| writer.manager.as_deref()).any(|writer| managers.contains(&writer))
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

    fn group(&self, _: Vocabularies) -> Option<String> {
        Some(String::new())
    }

    fn reduce(&self, vocabularies: Vocabularies) -> KubeNode {
        let conditions = self.status.conditions.iter().filter(|found| found.status == "True");
        let used = vocabularies.iter().flat_map(|vocabulary| vocabulary.annotation.of_nodes());
        let known = |key: &'static str| Some((key.to_owned(), self.annotations().get(key)?.clone()));
        KubeNode {
            name: self.name_any(),
            labels: self.labels().clone(),
            annotations: used.filter_map(known).collect(),
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
