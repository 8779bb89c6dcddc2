//! What a reconcile decided to do: plain data, without any secret that could be printed.

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

/// Everything that one pass will do.
#[derive(Debug, Default)]
pub struct Plan<S> {
    /// Steps of one stage do not depend on each other and run at the same time. A stage runs only if all steps before it
    /// succeeded.
    pub stages: Vec<Vec<Step>>,
    /// The next status, without its conditions.
    pub status: S,
    /// All conditions: one that is no longer judged disappears.
    pub conditions: Vec<NewCondition>,
    /// What a human wants to see in the events.
    pub events: Vec<Event>,
    /// What to count of workers.
    pub worker_metrics: Option<Box<WorkerMetrics>>,
    /// When to look again.
    pub next: Next,
}

/// What is counted of a set of workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerMetrics {
    /// How many workers are in each state. One may be in several.
    pub workers: Vec<(&'static str, u32)>,
    /// Since when the oldest drain goes on after which a worker is to be removed.
    pub draining_since: Option<Timestamp>,
    /// Workers that are drained and about to go, and how long that took.
    pub drained: Vec<(String, SignedDuration)>,
    /// Workers that Slurm knows and that do not show it yet, and how long that took since they were ready.
    pub registered: Vec<(String, SignedDuration)>,
}

/// One write.
#[derive(Debug)]
pub enum Step {
    /// Make a child be like this.
    Apply(Box<Desired>),
    /// Make a Secret whose content takes chance or a signature.
    GenerateSecret(Box<GeneratedSecret>),
    /// Give a child these owners, and no others.
    SetOwners(Box<ObjectVersion>, Vec<OwnerReference>),
    /// Remove a child.
    Delete(Box<ObjectVersion>),
    /// Make an object that is not there yet. One of that name is left as it is.
    Create(Box<FromTemplate>),
    /// Change labels and annotations of an object.
    PatchMetadata(Box<MetadataPatch>),
    /// Change conditions of a pod.
    PatchConditions(Box<PodConditionPatch>),
    /// Change something in Slurm.
    Slurm(Box<SlurmWrite>),
    /// Hold on to the reconciled object when it is deleted, or let it go.
    Finalizer {
        /// The finalizer.
        name: &'static str,
        /// Whether it should be there.
        wanted: bool,
    },
    /// One after the other, and none after one that failed.
    Chain(Vec<Step>),
}

impl Step {
    /// What it is, in metrics.
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

    /// This step, or those that it is made of.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Chain(steps) => steps,
            step => std::slice::from_ref(step),
        }
    }

    /// What it does, for a human.
    pub fn title(&self) -> String {
        match self {
            Self::Apply(desired) => format!("apply {} {}", desired.resource.kind, desired.object.name_any()),
            Self::GenerateSecret(generated) => {
                format!("make the content of Secret {}", generated.secret.object.name_any())
            }
            Self::SetOwners(child, _) => format!("set the owners of {} {}", child.resource.kind, child.name),
            Self::Delete(object) => format!("delete {} {}", object.resource.kind, object.name),
            Self::Create(object) => format!("create {} {}", object.resource.kind, object.name()),
            Self::PatchMetadata(patch) => {
                format!("label or annotate {} {}", patch.target.resource.kind, patch.target.name)
            }
            Self::PatchConditions(patch) => format!("set conditions of pod {}", patch.target.name),
            Self::Slurm(write) => format!("in Slurm: {:?}", write.call),
            Self::Finalizer { name, wanted: true } => format!("hold on to the object ({name})"),
            Self::Finalizer { name, wanted: false } => format!("let the object go ({name})"),
            Self::Chain(steps) => steps.iter().map(Self::title).collect::<Vec<_>>().join(", then "),
        }
    }
}

/// When to look again, if nothing wakes us before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// Not before something changes.
    #[default]
    OnChange,
    /// After this time.
    After(Duration),
}

impl Next {
    /// At a point in time; at once is a second from now, so that no mistake becomes a hot loop.
    pub fn at(when: Timestamp, now: Timestamp) -> Self {
        let wait = when.duration_since(now).max(SignedDuration::from_secs(1));
        Self::After(wait.try_into().unwrap_or(Duration::from_secs(1)))
    }
}

/// An event on the reconciled object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether a human should act.
    pub is_warning: bool,
    /// `CamelCase`, from a fixed set.
    pub reason: &'static str,
    /// A sentence.
    pub text: String,
}

/// A child as it should be: only what we have an opinion on.
#[derive(Clone, PartialEq)]
pub struct Desired {
    /// What it is.
    pub resource: ApiResource,
    /// The fields that we own.
    pub object: DynamicObject,
    /// What was there when this was decided. If it is still what our last apply of the same left behind, there is nothing to
    /// do.
    pub seen: Option<Fingerprint>,
}

/// A fingerprint of an object: of everything but what changes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Of an object as the API server tells it.
    pub fn of(object: &impl Serialize) -> Self {
        let mut value = serde_json::to_value(object).unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.remove("status");
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                for volatile in ["managedFields", "resourceVersion", "generation"] {
                    metadata.remove(volatile);
                }
                // A Deployment's progress.
                if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
                    annotations.remove("deployment.kubernetes.io/revision");
                }
            }
        }
        Self::of_value(&value)
    }

    /// Of plain data. Maps are sorted, so that equal data has equal text.
    pub fn of_value(value: &Value) -> Self {
        let mut hasher = DefaultHasher::new();
        value.to_string().hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl Desired {
    /// Remembers what is there now.
    #[must_use]
    pub fn seeing(mut self, live: Option<&impl Serialize>) -> Self {
        self.seen = live.map(Fingerprint::of);
        self
    }

    /// Of what we want; not of what is there.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.object)
    }

    /// Forgets the type of an object, so that a plan is one list.
    pub fn of<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
    {
        let resource = ApiResource::erase::<K>(&());
        let mut erased = DynamicObject::new("", &resource);
        erased.metadata = object.meta().clone();
        // API types are maps of strings to plain data: they always become JSON.
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

/// A Secret whose content is made while the plan is carried out.
#[derive(Clone)]
pub struct GeneratedSecret {
    /// The Secret without its content.
    pub secret: Desired,
    /// The key of its content, if the content does not name its own.
    pub entry: String,
    /// What to put there.
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

/// How to make the content of a Secret.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "the GeneratedSecret around it is boxed")]
pub enum SecretContent {
    /// A token of Slurm's auth/jwt.
    Token {
        /// What signs it.
        key: Key,
        /// Whom it names.
        user: String,
        /// From when on it is good.
        issued_at: Timestamp,
        /// For how long.
        lifetime: SignedDuration,
    },
    /// Random keys. The Secret is made only if there is none of that name: a key that somebody uses is never replaced.
    Keys {
        /// What they are called in the Secret.
        entries: Vec<String>,
    },
}

/// An object to change or remove, exactly as it was seen: if it has changed since, nothing happens.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectVersion {
    /// What it is.
    pub resource: ApiResource,
    /// Where it is.
    pub namespace: String,
    /// What it is called.
    pub name: String,
    /// Which one of that name.
    pub uid: String,
    /// In which state.
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

/// An object that is made from a template which it shares with its like: ten thousand of them cost little more than one.
#[derive(Clone)]
pub struct FromTemplate {
    /// What it is.
    pub resource: ApiResource,
    /// Everything that it shares, as JSON: fields that are newer than we are survive.
    pub template: Arc<Value>,
    /// What is its own, merged over the template: maps are merged, anything else is replaced.
    pub overrides: Value,
}

impl FromTemplate {
    /// The whole object.
    pub fn render(&self) -> Value {
        let mut whole = Value::clone(&self.template);
        merge(&mut whole, &self.overrides);
        whole
    }

    /// A text of the part that is its own.
    fn overridden(&self, pointer: &str) -> &str {
        self.overrides.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// What it will be called.
    pub fn name(&self) -> &str {
        self.overridden("/metadata/name")
    }

    /// Where it will be.
    pub fn namespace(&self) -> &str {
        self.template.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default()
    }
}

impl fmt::Debug for FromTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(&self.resource.kind).field("overrides", &self.overrides).finish_non_exhaustive()
    }
}

fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

/// Labels and annotations to set, or to remove. All others stay.
#[derive(Clone, Debug, PartialEq)]
pub struct MetadataPatch {
    /// Which object.
    pub target: ObjectVersion,
    /// Labels.
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations.
    pub annotations: BTreeMap<String, Option<String>>,
}

/// Conditions of a pod to set, or to remove. All others stay.
#[derive(Clone, Debug, PartialEq)]
pub struct PodConditionPatch {
    /// Which pod.
    pub target: ObjectVersion,
    /// Types with their messages: these hold.
    pub set: Vec<(String, String)>,
    /// Types that no longer hold.
    pub remove: Vec<String>,
    /// Since when.
    pub since: Timestamp,
}

/// A write in Slurm.
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmWrite {
    /// The Controller of the Slurm cluster.
    pub cluster: String,
    /// What to do there.
    pub call: SlurmCall,
}

/// What to do in Slurm.
#[derive(Clone, Debug, PartialEq)]
pub enum SlurmCall {
    /// Change nodes.
    Update {
        /// Which.
        nodes: Vec<String>,
        /// What about them.
        change: Box<NodeUpdate>,
    },
    /// Remove the record of a node.
    Forget {
        /// Which.
        node: String,
    },
    /// Put a job back into the queue.
    Requeue {
        /// Which.
        job: JobId,
    },
    /// End a job.
    Cancel {
        /// Which.
        job: JobId,
    },
    /// Make a reservation, or change it.
    Reserve(Box<ReservationSpec>),
    /// Remove a reservation.
    Unreserve {
        /// Which.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{ByteString, api::core::v1::Secret};
    use serde_json::json;

    #[test]
    fn a_plan_shows_no_secret() {
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
    fn a_fingerprint_ignores_what_changes_by_itself() {
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
    fn an_object_is_its_template_with_its_overrides() {
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
    fn a_time_that_has_passed_is_not_a_hot_loop() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(Next::at(now, now), Next::After(Duration::from_secs(1)));
        assert_eq!(Next::at(now - SignedDuration::from_hours(1), now), Next::After(Duration::from_secs(1)));
        assert_eq!(Next::at(now + SignedDuration::from_mins(5), now), Next::After(Duration::from_mins(5)));
    }
}
