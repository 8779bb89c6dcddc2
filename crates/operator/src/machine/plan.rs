//! The plan of a reconcile: plain data that never prints a secret.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Resource, ResourceExt,
    api::DynamicObject,
    core::{ApiResource, NamespaceResourceScope},
};
use serde::Serialize;
use serde_json::Value;
use slurm::{
    token::Key,
    wire::{JobId, NodeUpdate, ReservationSpec},
};

use super::NewCondition;
use crate::engine::json::merge;

/// Everything that one reconcile will do.
#[derive(Debug, Default)]
pub struct Plan<S> {
    /// The steps of a stage are independent and run concurrently. A stage runs only if all previous steps succeeded.
    pub stages: Vec<Vec<Step>>,
    /// The new status, without conditions.
    pub status: S,
    /// All conditions; one that is not listed is removed.
    pub conditions: Vec<NewCondition>,
    /// Events to publish.
    pub events: Vec<Event>,
    /// Metrics of workers, for a `NodeSet`.
    pub worker_metrics: Option<Box<WorkerMetrics>>,
    /// What keeps the plan from doing more now, for people who ask.
    pub waiting: Vec<String>,
    /// When to reconcile again.
    pub next: Next,
}

/// Metrics of a `NodeSet`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerMetrics {
    /// The number of workers in each state; a worker may be in several.
    pub workers: Vec<(&'static str, u32)>,
    /// Start of the oldest drain that precedes a removal.
    pub draining_since: Option<Timestamp>,
    /// Workers that are drained and about to be removed, and how long the drain took.
    pub drained: Vec<(String, SignedDuration)>,
    /// Newly registered workers, and the time from pod readiness to registration.
    pub registered: Vec<(String, SignedDuration)>,
}

/// One write.
#[derive(Debug)]
pub enum Step {
    /// Apply a child object.
    Apply(Box<Desired>),
    /// Create a Secret with random or signed content.
    GenerateSecret(Box<GeneratedSecret>),
    /// Replace the owners of a child.
    SetOwners(Box<ObjectVersion>, Vec<OwnerReference>),
    /// Delete a child.
    Delete(Box<ObjectVersion>),
    /// Create an object. An existing one of the same name is left unchanged.
    Create(Box<FromTemplate>),
    /// Patch labels and annotations of an object.
    PatchMetadata(Box<MetadataPatch>),
    /// Patch conditions of a pod.
    PatchConditions(Box<PodConditionPatch>),
    /// Write to Slurm.
    Slurm(Box<SlurmWrite>),
    /// Add or remove a finalizer of the reconciled object.
    Finalizer {
        name: &'static str,
        /// Whether the finalizer should be present.
        wanted: bool,
    },
    /// Run in order; stop at the first failure.
    Chain(Vec<Step>),
}

impl Step {
    /// The name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Apply(_) => "apply",
            Self::GenerateSecret(_) => "mint",
            Self::SetOwners(..) => "own",
            Self::Delete(_) => "delete",
            Self::Create(_) => "create",
            Self::PatchMetadata(_) => "amend",
            Self::PatchConditions(_) => "mark",
            Self::Slurm(_) => "slurm",
            Self::Finalizer { .. } => "finalizer",
            Self::Chain(_) => "chain",
        }
    }

    /// The steps of a chain, or the step itself.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Chain(steps) => steps,
            step => std::slice::from_ref(step),
        }
    }

    /// A description for users.
    pub fn title(&self) -> String {
        match self {
            Self::Apply(desired) => format!("apply {} {}", desired.resource.kind, desired.object.name_any()),
            Self::GenerateSecret(generated) => {
                format!("generate the content of Secret {}", generated.secret.object.name_any())
            }
            Self::SetOwners(child, _) => format!("set the owners of {} {}", child.resource.kind, child.name),
            Self::Delete(object) => format!("delete {} {}", object.resource.kind, object.name),
            Self::Create(object) => format!("create {} {}", object.resource.kind, object.name()),
            Self::PatchMetadata(patch) => {
                format!("label or annotate {} {}", patch.target.resource.kind, patch.target.name)
            }
            Self::PatchConditions(patch) => format!("set conditions of pod {}", patch.target.name),
            Self::Slurm(write) => format!("write to Slurm: {:?}", write.call),
            Self::Finalizer { name, wanted: true } => format!("add the finalizer {name}"),
            Self::Finalizer { name, wanted: false } => format!("remove the finalizer {name}"),
            Self::Chain(steps) => steps.iter().map(Self::title).collect::<Vec<_>>().join(", then "),
        }
    }
}

/// When to reconcile again if nothing triggers it earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// Only when something changes.
    #[default]
    OnChange,
    /// After this delay.
    After(Duration),
}

impl Next {
    /// At a point in time, but at least a second from now, so that a mistake cannot cause a hot loop.
    pub fn at(when: Timestamp, now: Timestamp) -> Self {
        let wait = when.duration_since(now).max(SignedDuration::from_secs(1));
        Self::After(wait.try_into().unwrap_or(Duration::from_secs(1)))
    }
}

/// An event on the reconciled object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether a user should act.
    pub is_warning: bool,
    /// `CamelCase`, from a fixed set.
    pub reason: &'static str,
    /// The message.
    pub text: String,
}

/// A child as it should be: only the fields that the operator manages.
#[derive(Clone, PartialEq)]
pub struct Desired {
    pub resource: ApiResource,
    /// The fields that the operator manages.
    pub object: DynamicObject,
    /// The fingerprint of the live object when this was planned. If our last apply of the same fields produced it,
    /// nothing needs to be written.
    pub seen: Option<Fingerprint>,
}

/// A fingerprint of an object, without the fields that change on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of an object as returned by the API server.
    pub fn of(object: &impl Serialize) -> Self {
        let mut value = serde_json::to_value(object).unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.remove("status");
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                for volatile in ["managedFields", "resourceVersion", "generation"] {
                    metadata.remove(volatile);
                }
                // Updated by the Deployment controller.
                if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
                    annotations.remove("deployment.kubernetes.io/revision");
                }
            }
        }
        Self::of_value(&value)
    }

    /// The fingerprint of plain data. Maps are sorted, so equal data has equal text.
    pub fn of_value(value: &Value) -> Self {
        let mut hasher = DefaultHasher::new();
        value.to_string().hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl Desired {
    /// Records the fingerprint of the live object.
    #[must_use]
    pub fn seeing(mut self, live: Option<&impl Serialize>) -> Self {
        self.seen = live.map(Fingerprint::of);
        self
    }

    /// The fingerprint of the desired fields, not of the live object.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.object)
    }

    /// Erases the type of an object, so that a plan is one list.
    pub fn of<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
    {
        let resource = ApiResource::erase::<K>(&());
        let mut erased = DynamicObject::new("", &resource);
        erased.metadata = object.meta().clone();
        // Serialising an API type to JSON cannot fail.
        if let Ok(Value::Object(mut fields)) = serde_json::to_value(object) {
            for known in ["apiVersion", "kind", "metadata"] {
                fields.remove(known);
            }
            erased.data = fields.into();
        }
        Self { resource, object: erased, seen: None }
    }
}

impl fmt::Debug for Desired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(&self.resource.kind);
        shown.field("name", &self.object.name_any());
        if self.resource.kind != "Secret" {
            shown.field("data", &self.object.data);
        }
        shown.finish_non_exhaustive()
    }
}

/// A Secret whose content is generated when the plan is executed.
#[derive(Clone)]
pub struct GeneratedSecret {
    /// The Secret without its content.
    pub secret: Desired,
    /// The key of its content, if the content does not name its own.
    pub entry: String,
    pub content: SecretContent,
}

impl fmt::Debug for GeneratedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratedSecret")
            .field("secret", &self.secret)
            .field("entry", &self.entry)
            .field("content", &self.content)
            .finish()
    }
}

/// How to generate the content of a Secret.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "the GeneratedSecret around it is boxed")]
pub enum SecretContent {
    /// A token for Slurm's auth/jwt.
    Token { key: Key, user: String, issued_at: Timestamp, lifetime: SignedDuration },
    /// Random keys. The Secret is only created if it does not exist: a key in use is never replaced.
    Keys {
        /// The keys of the entries in the Secret.
        entries: Vec<String>,
    },
}

/// An object to change or delete exactly as it was observed: if it has changed since, the write fails with a
/// conflict.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectVersion {
    pub resource: ApiResource,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

impl ObjectVersion {
    /// The object with this metadata.
    pub fn of<K>(object: &impl ResourceExt) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        Self {
            resource: ApiResource::erase::<K>(&()),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            resource_version: object.resource_version().unwrap_or_default(),
        }
    }
}

/// An object created from a shared template: ten thousand of them cost little more memory than one.
#[derive(Clone)]
pub struct FromTemplate {
    pub resource: ApiResource,
    /// The shared fields, as JSON, so that fields unknown to this version are kept.
    pub template: Arc<Value>,
    /// The object's own fields, merged over the template: maps are merged, anything else is replaced.
    pub overrides: Value,
}

impl FromTemplate {
    /// The complete object.
    pub fn render(&self) -> Value {
        let mut whole = Value::clone(&self.template);
        merge(&mut whole, &self.overrides);
        whole
    }

    /// A string of the overrides.
    fn overridden(&self, pointer: &str) -> &str {
        self.overrides.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// The name of the new object.
    pub fn name(&self) -> &str {
        self.overridden("/metadata/name")
    }

    /// The namespace of the new object.
    pub fn namespace(&self) -> &str {
        self.template.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default()
    }
}

impl fmt::Debug for FromTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(&self.resource.kind).field("overrides", &self.overrides).finish_non_exhaustive()
    }
}

/// Labels and annotations to set or remove. Others are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct MetadataPatch {
    pub target: ObjectVersion,
    /// `None` removes a label.
    pub labels: BTreeMap<String, Option<String>>,
    /// `None` removes an annotation.
    pub annotations: BTreeMap<String, Option<String>>,
}

/// Conditions of a pod to set or remove. Others are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct PodConditionPatch {
    pub target: ObjectVersion,
    /// Types and messages of conditions to set to True.
    pub set: Vec<(String, String)>,
    /// Types of conditions to remove.
    pub remove: Vec<String>,
    pub since: Timestamp,
}

/// A write to Slurm.
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmWrite {
    /// The name of the Controller.
    pub cluster: String,
    pub call: SlurmCall,
}

/// A call to Slurm.
#[derive(Clone, Debug, PartialEq)]
pub enum SlurmCall {
    /// Update nodes.
    Update { nodes: Vec<String>, change: Box<NodeUpdate> },
    /// Delete a node record.
    Forget { node: String },
    /// Requeue a job.
    Requeue { job: JobId },
    /// Cancel a job.
    Cancel { job: JobId },
    /// Create or update a reservation.
    Reserve(Box<ReservationSpec>),
    /// Delete a reservation.
    Unreserve { name: String },
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{ByteString, api::core::v1::Secret};
    use serde_json::json;

    #[test]
    fn a_plan_prints_no_secret() {
        let secret = Secret {
            data: Some([("key".to_owned(), ByteString(b"hunter2hunter2".to_vec()))].into()),
            ..Secret::default()
        };
        let key = Key::new(b"0123456789abcdef0123456789abcdef").unwrap();
        let content = SecretContent::Token {
            key,
            user: "alice".into(),
            issued_at: Timestamp::UNIX_EPOCH,
            lifetime: SignedDuration::from_mins(15),
        };
        let steps = [
            Step::Apply(Box::new(Desired::of(&secret))),
            Step::GenerateSecret(Box::new(GeneratedSecret {
                secret: Desired::of(&secret),
                entry: "SLURM_JWT".into(),
                content,
            })),
        ];
        let shown = format!("{steps:?}");
        assert!(!shown.contains("aHVudGVyM") && !shown.contains("hunter2") && !shown.contains("0123456789"), "{shown}");
        assert!(shown.contains("alice"), "{shown}");
    }

    #[test]
    fn a_fingerprint_ignores_volatile_fields() {
        let fingerprint = |object: Value| Fingerprint::of(&object);
        let base = json!({"metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {"replicas": 1}});
        let mut later = base.clone();
        later["metadata"]["resourceVersion"] = json!("12");
        later["metadata"]["managedFields"] = json!([{}]);
        later["status"] = json!({"ready": 1});
        assert_eq!(fingerprint(base.clone()), fingerprint(later.clone()));
        later["metadata"]["labels"]["x"] = json!("2");
        assert_ne!(fingerprint(base.clone()), fingerprint(later));
        let mut edited = base.clone();
        edited["spec"]["replicas"] = json!(2);
        assert_ne!(fingerprint(base), fingerprint(edited));
    }

    #[test]
    fn an_object_is_its_template_merged_with_its_overrides() {
        let template =
            json!({"metadata": {"namespace": "ns", "labels": {"app": "slurmd"}}, "spec": {"a": [1], "b": 1}});
        let overrides = json!({"metadata": {"name": "w-0", "labels": {"index": "0"}}, "spec": {"a": [2]}});
        let object =
            FromTemplate { resource: ApiResource::erase::<Secret>(&()), template: Arc::new(template), overrides };
        assert_eq!((object.namespace(), object.name()), ("ns", "w-0"));
        let expected = json!({
            "metadata": {"namespace": "ns", "name": "w-0", "labels": {"app": "slurmd", "index": "0"}},
            "spec": {"a": [2], "b": 1},
        });
        assert_eq!(object.render(), expected);
    }

    #[test]
    fn a_time_in_the_past_causes_no_hot_loop() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(Next::at(now, now), Next::After(Duration::from_secs(1)));
        assert_eq!(Next::at(now - SignedDuration::from_hours(1), now), Next::After(Duration::from_secs(1)));
        assert_eq!(Next::at(now + SignedDuration::from_mins(5), now), Next::After(Duration::from_mins(5)));
    }
}
