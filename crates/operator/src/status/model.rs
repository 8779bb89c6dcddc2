//! What `slurm-operator status` reads, and the tree that it shows.

use std::{collections::BTreeMap, sync::Arc};

use engine::{
    daemons::pods::pod_problem,
    podset::{Deadline, KubeNode, Worker},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event as CoreEvent, Pod as CorePod},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::ResourceExt;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use slurm_operator_api::slinky::names::{TRUE, label};

use crate::kube_view::stores::{Reduce, SlimNode, SlimPod, Vocabularies};

/// Everything that was read.
#[derive(Debug, Default)]
pub struct Facts {
    /// Our custom resources, of all kinds.
    pub objects: Vec<Object>,
    /// The pods of all daemons.
    pub pods: Vec<Pod>,
    /// The Kubernetes nodes, as far as they may be read.
    pub nodes: BTreeMap<String, Arc<KubeNode>>,
    pub events: Vec<Event>,
    /// What could not be read.
    pub unread: Vec<Unread>,
}

/// A kind that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// The plural of the kind.
    pub what: String,
    pub why: String,
}

/// A custom resource. It is not decoded, so that an invalid field does not hide the rest.
#[derive(Clone, Debug)]
pub struct Object {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// When somebody changed more than its status.
    pub changed: Option<Timestamp>,
    pub value: Value,
}

impl Object {
    pub fn new(kind: &str, mut value: Value) -> Self {
        let changed = changed(&value);
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let of = |key: &str| value.pointer(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { kind: kind.to_owned(), namespace: of("/metadata/namespace"), name: of("/metadata/name"), changed, value }
    }

    /// A text at a path, empty if there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    pub fn number(&self, pointer: &str) -> Option<u64> {
        self.value.pointer(pointer).and_then(Value::as_u64)
    }

    pub fn conditions(&self) -> Vec<Condition> {
        let found = self.value.pointer("/status/conditions").cloned().unwrap_or_default();
        serde_json::from_value(found).unwrap_or_default()
    }

    /// Whether the operator has not acted on the last change of the spec.
    pub fn is_behind(&self) -> bool {
        let generation = self.number("/metadata/generation").unwrap_or_default();
        self.number("/status/observedGeneration").unwrap_or_default() < generation
    }

    pub fn is_deleted(&self) -> bool {
        self.value.pointer("/metadata/deletionTimestamp").is_some()
    }

    /// Kind, namespace and name.
    pub fn title(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}

fn changed(value: &Value) -> Option<Timestamp> {
    let writers = value.pointer("/metadata/managedFields").and_then(Value::as_array)?;
    let of_object = writers.iter().filter(|writer| writer.get("subresource").is_none());
    of_object.filter_map(|writer| writer.get("time")?.as_str()?.parse().ok()).max()
}

/// A pod of a daemon.
#[derive(Clone, Debug)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    /// What runs in it, such as `slurmctld`.
    pub program: String,
    /// The custom resource that it runs for.
    pub instance: String,
    pub is_ready: bool,
    /// Whether it is the slurmctld in charge.
    pub is_active: bool,
    /// Why it is not ready.
    pub problem: Option<String>,
    /// How often its containers were restarted.
    pub restarts: i32,
    pub worker: Option<WorkerPod>,
}

/// What is only known of workers.
#[derive(Clone, Debug)]
pub struct WorkerPod {
    /// The UID of its set.
    pub set: String,
    pub worker: Arc<Worker>,
    /// When its drain was reported.
    pub drained_since: Option<Timestamp>,
}

impl Pod {
    pub fn new(value: &Value, vocabularies: Vocabularies, now: Timestamp) -> Option<Self> {
        let pod = CorePod::deserialize(value).ok()?;
        let of = |key: &str| pod.labels().get(key).cloned().unwrap_or_default();
        let slim = SlimPod::deserialize(value).ok();
        let worker = slim.and_then(|slim| {
            let set = slim.group(vocabularies)?;
            let worker = Arc::new(slim.reduce(vocabularies));
            Some(WorkerPod { set, worker, drained_since: drained_since(&pod) })
        });
        let problem = pod_problem(&pod, now).map(|problem| problem.text);
        let status = pod.status.clone().unwrap_or_default();
        Some(Self {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            program: of(label::NAME),
            instance: of(label::INSTANCE),
            is_ready: problem.is_none(),
            is_active: of(label::ACTIVE) == TRUE,
            problem,
            restarts: status.container_statuses.iter().flatten().map(|container| container.restart_count).sum(),
            worker,
        })
    }
}

fn drained_since(pod: &CorePod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let drain = conditions.iter().find(|found| found.type_ == "SlurmNodeStateDrain" && found.status == "True")?;
    drain.last_transition_time.as_ref().map(|time| time.0)
}

/// A Kubernetes node.
pub fn kube_node(value: &Value, vocabularies: Vocabularies) -> Option<KubeNode> {
    Some(SlimNode::deserialize(value).ok()?.reduce(vocabularies))
}

/// An event about an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    pub time: Option<Timestamp>,
    pub is_warning: bool,
    /// Kind, namespace and name of the object.
    pub object: String,
    pub reason: String,
    pub message: String,
    /// How often it happened.
    pub count: i32,
    #[serde(skip)]
    pub kind: String,
    #[serde(skip)]
    pub name: String,
}

impl Event {
    pub fn new(value: &Value) -> Option<Self> {
        let event = CoreEvent::deserialize(value).ok()?;
        let about = event.involved_object;
        let of = |text: Option<String>| text.unwrap_or_default();
        let (kind, name) = (of(about.kind), of(about.name));
        let series = event.series.as_ref();
        let times = [
            series.and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0),
            event.last_timestamp.as_ref().map(|time| time.0),
            event.event_time.as_ref().map(|time| time.0),
            event.metadata.creation_timestamp.as_ref().map(|time| time.0),
        ];
        Some(Self {
            time: times.into_iter().flatten().max(),
            is_warning: event.type_.as_deref() == Some("Warning"),
            object: format!("{kind} {}/{name}", of(about.namespace)),
            reason: of(event.reason),
            message: of(event.message),
            count: series.and_then(|series| series.count).or(event.count).unwrap_or(1).max(1),
            kind,
            name,
        })
    }
}

/// What `status` shows. Times are absolute, so that it changes only when something has happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tree {
    /// The namespace; absent for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What a human must look at, the worst first.
    pub attention: Vec<Attention>,
    /// One per Slurm cluster, then what belongs to none.
    pub clusters: Vec<Branch>,
    pub events: Vec<Event>,
    pub unread: Vec<Unread>,
}

/// Something that a human must look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Attention {
    pub health: Health,
    /// Kind, namespace and name.
    pub object: String,
    pub reason: String,
    pub message: String,
}

/// How something is. The worst is the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// It does not work, or cannot be changed, and waiting does not help.
    Bad,
    /// It works, and somebody should look at it.
    Warning,
    /// The operator is at work, or waits.
    Busy,
    /// Nothing is known.
    #[default]
    Unknown,
    Good,
}

/// A cluster, a daemon or a set, and what belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Branch {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub health: Health,
    pub summary: String,
    /// What it waits for, and other findings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<Progress>,
    /// Workers in the same situation share a line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<Workers>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Branch>,
}

impl Branch {
    pub fn new(kind: &str, namespace: &str, name: &str, health: Health, summary: impl Into<String>) -> Self {
        let (kind, namespace, name) = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        Self { kind, namespace, name, health, summary: summary.into(), ..Self::default() }
    }
}

/// How far something is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Such as `rolling update`.
    pub what: String,
    pub done: u32,
    pub all: u32,
}

/// Workers in the same situation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Workers {
    /// Slurm node names, or pod names if they have none.
    pub nodes: Vec<String>,
    /// The state in Slurm, as by `sinfo`, or `-`.
    pub state: String,
    pub health: Health,
    /// Why they are where they are.
    pub why: String,
    /// When their last job ends.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "end")]
    pub jobs_end: Option<Deadline>,
    /// When the drain began that precedes their removal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drained_since: Option<Timestamp>,
}

#[expect(clippy::ref_option, reason = "serde calls it like this")]
fn end<S: Serializer>(deadline: &Option<Deadline>, serializer: S) -> Result<S::Ok, S::Error> {
    match deadline {
        Some(Deadline::At(end)) => end.serialize(serializer),
        Some(Deadline::Never) => "never".serialize(serializer),
        Some(Deadline::Now) | None => serializer.serialize_none(),
    }
}
