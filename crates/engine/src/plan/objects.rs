//! Objects in plans.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Resource, ResourceExt,
    core::{ApiResource, DynamicObject, NamespaceResourceScope},
};
use serde::Serialize;
use serde_json::Value;
use slurm::token::Key;

use crate::json::{merge, remove_nulls};

/// A child as it should be: only the fields that the operator manages.
#[derive(Clone, PartialEq)]
pub struct Desired {
    pub resource: ApiResource,
    /// The fields that the operator manages.
    pub object: DynamicObject,
    /// The fingerprint of the live object when this was planned. If our last apply of the same fields produced it,
    /// nothing needs to be written.
    pub seen: Option<Fingerprint>,
    /// Set if another operator has written the live object and this one has not yet.
    pub takeover: Option<Takeover>,
}

/// The fields of an object that its former operator has written, to be owned by this one. Otherwise apply would leave those that
/// are no longer wanted, and the API server may refuse both together, such as `maxUnavailable` and `minAvailable`.
#[derive(Clone, Debug, PartialEq)]
pub struct Takeover {
    pub target: ObjectVersion,
    /// Who owns which fields of the object.
    managed_fields: Vec<Value>,
}

/// The field manager of operators that were made with kubebuilder.
const FORMER_MANAGER: &str = "manager";

/// The field manager of a kind is this and its name.
pub const FIELD_MANAGER: &str = "slurm-operator/";

impl Takeover {
    /// What to take over of a live object. `wanted` is the object as it should be: if it does not have the owner of the live
    /// one, the live one belongs to some other program, which may also be called `manager`.
    fn of(live: &Value, wanted: &Desired) -> Option<Self> {
        let managed_fields = live.pointer("/metadata/managedFields")?.as_array()?;
        let is_taken = |entry: &Value| {
            entry["operation"] == "Apply"
                && entry["manager"].as_str().is_some_and(|name| name.starts_with(FIELD_MANAGER))
        };
        if managed_fields.iter().any(is_taken) || !managed_fields.iter().any(is_former) {
            return None;
        }
        let metadata: ObjectMeta = serde_json::from_value(live.get("metadata")?.clone()).ok()?;
        let owners = metadata.owner_references.as_deref().unwrap_or_default();
        let is_wanted =
            |owner: &OwnerReference| wanted.object.owner_references().iter().any(|own| own.uid == owner.uid);
        // Objects that several sets share have no controller.
        let is_ours = match owners.iter().find(|owner| owner.controller == Some(true)) {
            Some(controller) => is_wanted(controller),
            None => owners.iter().any(is_wanted),
        };
        if !is_ours {
            return None;
        }
        let target = ObjectVersion {
            resource: wanted.resource.clone(),
            namespace: metadata.namespace,
            name: metadata.name?,
            uid: metadata.uid?,
            resource_version: metadata.resource_version?,
        };
        Some(Self { target, managed_fields: managed_fields.clone() })
    }

    /// The owners of fields, with this field manager instead of the former one.
    pub fn managed_fields(&self, manager: &str) -> Vec<Value> {
        let taken = |entry: &Value| {
            let mut entry = entry.clone();
            if let (true, Some(fields)) = (is_former(&entry), entry.as_object_mut()) {
                fields.insert("manager".to_owned(), manager.into());
                fields.insert("operation".to_owned(), "Apply".into());
            }
            entry
        };
        self.managed_fields.iter().map(taken).collect()
    }
}

/// Whether a former operator owns these fields. The status has other writers.
fn is_former(entry: &Value) -> bool {
    entry["manager"] == FORMER_MANAGER && entry["operation"] == "Update" && entry["subresource"].as_str().is_none()
}

/// A fingerprint of an object, without the fields that change on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of an object as returned by the API server.
    pub fn of(object: &impl Serialize) -> Self {
        Self::of_live(serde_json::to_value(object).unwrap_or_default())
    }

    fn of_live(mut value: Value) -> Self {
        // API servers before 1.34 answer with `creationTimestamp: null` in templates, which our types do not have.
        remove_nulls(&mut value);
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
    /// Records the fingerprint of the live object, and what of it is to be taken over.
    #[must_use]
    pub fn seeing(mut self, live: Option<&impl Serialize>) -> Self {
        let live = live.map(|live| serde_json::to_value(live).unwrap_or_default());
        self.takeover = live.as_ref().and_then(|live| Takeover::of(live, &self));
        self.seen = live.map(Fingerprint::of_live);
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
        Self { resource, object: erased, seen: None, takeover: None }
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
    /// The field manager, if several objects write to the Secret.
    pub manager: Option<String>,
}

impl fmt::Debug for GeneratedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratedSecret")
            .field("secret", &self.secret)
            .field("entry", &self.entry)
            .field("content", &self.content)
            .field("manager", &self.manager)
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
    /// Host keys of sshd, one of each kind. The Secret is only created if it does not exist.
    HostKeys,
}

/// An object to change or delete exactly as it was observed: if it has changed since, the write fails with a
/// conflict.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectVersion {
    pub resource: ApiResource,
    /// `None` for a cluster-scoped object.
    pub namespace: Option<String>,
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
            namespace: object.namespace(),
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
    /// A name that must not be in use by an object of another owner, such as that of the Slurm node of a worker. Two passes that
    /// are planned at the same moment do not see each other's objects.
    pub exclusive: Option<String>,
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

impl MetadataPatch {
    /// A description for users, without the object.
    pub(super) fn title(&self) -> String {
        let keys = |changes: &BTreeMap<String, Option<String>>, is_set: bool| -> Vec<String> {
            changes.iter().filter(|(_, value)| value.is_some() == is_set).map(|(key, _)| key.clone()).collect()
        };
        let of = |is_set| [keys(&self.labels, is_set), keys(&self.annotations, is_set)].concat();
        changes(&of(true), &of(false))
    }
}

/// `set a, b and remove c`
fn changes(set: &[String], removed: &[String]) -> String {
    let part = |verb: &str, names: &[String]| (!names.is_empty()).then(|| format!("{verb} {}", names.join(", ")));
    [part("set", set), part("remove", removed)].into_iter().flatten().collect::<Vec<_>>().join(" and ")
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

impl PodConditionPatch {
    /// A description for users, without the object.
    pub(super) fn title(&self) -> String {
        let set: Vec<String> = self.set.iter().map(|(type_, _)| type_.clone()).collect();
        changes(&set, &self.remove)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{ByteString, api::core::v1::Secret};
    use serde_json::json;

    use super::*;
    use crate::plan::Step;

    #[test]
    fn a_field_that_is_null_is_absent() {
        let of = |template: Value| Fingerprint::of(&json!({"spec": {"template": template, "list": [{"a": null}]}}));
        assert_eq!(of(json!({"metadata": {"creationTimestamp": null}})), of(json!({"metadata": {}})));
        assert_ne!(of(json!({"metadata": {"name": "a"}})), of(json!({"metadata": {}})));
    }

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
                manager: None,
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
    fn the_fields_of_a_former_operator_are_taken_over_once() {
        let entry = |manager: &str, operation: &str, subresource: Option<&str>| {
            let mut entry = json!({"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {}}});
            if let Some(subresource) = subresource {
                entry["subresource"] = json!(subresource);
            }
            entry
        };
        let live = |owners: Value, entries: Vec<Value>| {
            json!({"metadata": {
                "name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                "ownerReferences": owners, "managedFields": entries,
            }})
        };
        let owner = |uid: &str, controller: bool| json!({"apiVersion": "v1", "kind": "NodeSet", "name": uid, "uid": uid, "controller": controller});
        let mut wanted = Desired::of(&Secret::default());
        wanted.object.metadata.owner_references = Some(vec![serde_json::from_value(owner("ours", false)).unwrap()]);
        let takeover = |live: Value| wanted.clone().seeing(Some(&live)).takeover;
        let theirs = || vec![entry("manager", "Update", None), entry("manager", "Update", Some("status"))];

        let found = takeover(live(json!([owner("other", false), owner("ours", false)]), theirs())).unwrap();
        assert_eq!((found.target.name.as_str(), found.target.resource_version.as_str()), ("a", "7"));
        assert_eq!(
            found.managed_fields("slurm-operator/nodeset"),
            [entry("slurm-operator/nodeset", "Apply", None), entry("manager", "Update", Some("status"))]
        );
        let ours = json!([owner("ours", true)]);
        assert!(takeover(live(ours.clone(), theirs())).is_some());
        for (why, live) in [
            ("it is another program's", live(json!([owner("other", true), owner("ours", false)]), theirs())),
            ("it has no owner", live(json!([]), theirs())),
            (
                "it is taken over",
                live(ours.clone(), [theirs(), vec![entry("slurm-operator/x", "Apply", None)]].concat()),
            ),
            ("only its status was written", live(ours.clone(), vec![entry("manager", "Update", Some("status"))])),
            ("a person has written it", live(ours, vec![entry("kubectl-edit", "Update", None)])),
        ] {
            assert_eq!(takeover(live), None, "{why}");
        }
    }

    #[test]
    fn an_object_is_its_template_merged_with_its_overrides() {
        let template =
            json!({"metadata": {"namespace": "ns", "labels": {"app": "slurmd"}}, "spec": {"a": [1], "b": 1}});
        let overrides = json!({"metadata": {"name": "w-0", "labels": {"index": "0"}}, "spec": {"a": [2]}});
        let object = FromTemplate {
            resource: ApiResource::erase::<Secret>(&()),
            template: Arc::new(template),
            overrides,
            exclusive: None,
        };
        assert_eq!((object.namespace(), object.name()), ("ns", "w-0"));
        let expected = json!({
            "metadata": {"namespace": "ns", "name": "w-0", "labels": {"app": "slurmd", "index": "0"}},
            "spec": {"a": [2], "b": 1},
        });
        assert_eq!(object.render(), expected);
    }
}
