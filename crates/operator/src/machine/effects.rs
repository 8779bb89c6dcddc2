//! All writes to the cluster. The simulation replaces them.

use std::{
    collections::{BTreeMap, HashSet},
    future::Future,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use engine::plan::{
    ClusterKey, Desired, Event, Fingerprint, FromTemplate, GeneratedSecret, MetadataPatch, ObjectVersion,
    PodConditionPatch, ReadKeys, RegisterWorker, RereadFiles, SecretContent, ServiceState, SlurmWrite, Takeover,
};
use engine::podset::AttemptResult;
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::OwnerReference},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions},
    core::{ApiResource, PartialObjectMeta, Request},
    runtime::events::{Event as KubeEvent, EventType, Recorder},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};
use slurm::token::{Claims, mint};
use slurm_operator_api::common::vocabulary::REVISION;

use super::{conditions::seconds, read_keys, register, reread};
use crate::{
    failure::{Failure, FailureSource, call},
    host_keys,
    kube_view::MANAGER,
    random::{self, NoRandomness},
    slurm_view::Views,
};

/// Every write that a plan can contain.
pub trait Effects: Send + Sync {
    /// Applies a child with this field manager; returns the fingerprint of the result.
    fn apply(&self, manager: &str, desired: &Desired) -> impl Future<Output = Result<Fingerprint, Failure>> + Send;
    /// Generates the content of a Secret and writes the Secret.
    fn generate_secret(
        &self,
        manager: &str,
        generated: &GeneratedSecret,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Replaces the owners of an object.
    fn set_owners(
        &self,
        child: &ObjectVersion,
        owners: &[OwnerReference],
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Deletes an object, if it is unchanged since it was observed.
    fn delete(&self, object: &ObjectVersion) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Creates an object; returns its resourceVersion. An existing object of the same name and owner counts as
    /// created.
    fn create(&self, object: &FromTemplate) -> impl Future<Output = Result<Option<String>, Failure>> + Send;
    /// Patches labels and annotations; returns the new resourceVersion.
    fn patch_metadata(&self, patch: &MetadataPatch) -> impl Future<Output = Result<String, Failure>> + Send;
    /// Patches the conditions of a pod; returns the new resourceVersion.
    fn patch_conditions(&self, patch: &PodConditionPatch) -> impl Future<Output = Result<String, Failure>> + Send;
    /// Requests a larger volume for a claim.
    fn grow_claim(&self, claim: &ObjectVersion, size: &Quantity) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Reads these Slurm nodes once more, and returns those that are still drained as the plan saw them, without jobs.
    fn still_drained(
        &self,
        cluster: &ClusterKey,
        nodes: BTreeMap<&str, &ServiceState>,
    ) -> impl Future<Output = Result<HashSet<String>, Failure>> + Send;
    /// Writes to a Slurm cluster.
    fn slurm(&self, write: &SlurmWrite) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Asks the slurmd of a worker to register again. Never fails: the result is a fact for the next plan.
    fn register(&self, worker: &RegisterWorker) -> impl Future<Output = AttemptResult> + Send;
    /// Makes slurmctld reread its files. Returns false if they are not in its pod yet.
    fn reread(&self, reread: &RereadFiles) -> impl Future<Output = Result<bool, Failure>> + Send;
    /// Makes slurmd or sackd read a key ring, and notes it in the annotations of its pod. Returns false if the kubelet has not
    /// brought the files yet.
    fn read_keys(&self, keys: &ReadKeys) -> impl Future<Output = Result<bool, Failure>> + Send;
    /// Adds a finalizer to an object, even if the object has changed since it was observed: what it protects is created
    /// next.
    fn add_finalizer(&self, object: &ObjectVersion, name: &str) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Removes a finalizer by leaving only the others, if the object is unchanged since it was observed.
    fn keep_finalizers(
        &self,
        object: &ObjectVersion,
        others: &[String],
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Applies the whole status.
    fn status(
        &self,
        manager: &str,
        resource: &ApiResource,
        object: &ObjectReference,
        status: Value,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Publishes an event. Never fails: losing an event must not fail a reconcile.
    fn publish(&self, object: &ObjectReference, event: &Event) -> impl Future<Output = ()> + Send;
}

/// Effects on the real cluster.
#[derive(Clone)]
pub struct KubeEffects {
    client: Client,
    recorder: Recorder,
    slurm: Views,
}

impl KubeEffects {
    /// Uses this client, these views for Slurm, and one shared recorder, because it aggregates repeated events.
    pub fn new(client: Client, recorder: Recorder, slurm: Views) -> Self {
        Self { client, recorder, slurm }
    }

    /// The resourceVersion of the existing object, if it has the owner that this one would have.
    async fn same(&self, object: &FromTemplate, whole: &Value) -> Result<Option<String>, Failure> {
        let api = self.api(Some(object.namespace()), &object.resource);
        let title = || title(&object.resource, Some(object.namespace()), object.name());
        let there = call("reading", title, api.get_metadata_opt(object.name())).await?;
        let mut wanted = whole.pointer("/metadata/ownerReferences").and_then(Value::as_array).into_iter().flatten();
        let wanted = wanted.find(|owner| owner["controller"] == true).and_then(|owner| owner["uid"].as_str());
        // If it was deleted in the meantime, the next reconcile notices.
        let Some(there) = there else { return Ok(None) };
        let owner = there.owner_references().iter().find(|owner| owner.controller == Some(true));
        // A claim that somebody else made for a worker is used as it is.
        let is_claim = object.resource.kind == "PersistentVolumeClaim";
        if is_claim {
            return Ok(there.resource_version());
        }
        if owner.map(|owner| owner.uid.as_str()) == wanted {
            return self.restore_labels(object, whole, &there).await.map(Some);
        }
        Err(Failure { action: "creating", object: title(), source: FailureSource::Taken })
    }

    /// Restores labels of our object that somebody removed: it is found by them.
    async fn restore_labels(
        &self,
        object: &FromTemplate,
        whole: &Value,
        there: &PartialObjectMeta<DynamicObject>,
    ) -> Result<String, Failure> {
        let wanted = whole.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
        let lost: serde_json::Map<String, Value> = wanted
            // Which revision it was made from is not known any more.
            .filter(|(key, _)| !there.labels().contains_key(*key) && *key != REVISION)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if lost.is_empty() {
            return Ok(there.resource_version().unwrap_or_default());
        }
        let target = ObjectVersion {
            resource: object.resource.clone(),
            namespace: Some(object.namespace().to_owned()),
            name: object.name().to_owned(),
            uid: there.uid().unwrap_or_default(),
            resource_version: String::new(),
        };
        let patch = Patch::Strategic(json!({"metadata": {"uid": target.uid, "labels": lost}}));
        self.patch("restoring the labels of", &target, None, patch).await
    }

    /// Patches an object or one of its subresources; returns the new resourceVersion.
    async fn patch(
        &self,
        action: &'static str,
        target: &ObjectVersion,
        subresource: Option<&str>,
        patch: Patch<Value>,
    ) -> Result<String, Failure> {
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let patched = async {
            let place = path(&target.resource, target.namespace.as_deref());
            let request = match subresource {
                Some(subresource) => place.patch_subresource(subresource, &target.name, &params, &patch),
                None => place.patch(&target.name, &params, &patch),
            };
            self.client.request::<Receipt>(request.map_err(kube::Error::BuildRequest)?).await
        };
        let title = || title(&target.resource, target.namespace.as_deref(), &target.name);
        Ok(call(action, title, patched).await?.metadata.resource_version)
    }

    fn api(&self, namespace: Option<&str>, resource: &ApiResource) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }

    /// Makes the fields of a former operator ours, if the object is unchanged since it was observed.
    async fn take_over(&self, manager: &str, takeover: &Takeover) -> Result<(), Failure> {
        let target = &takeover.target;
        let patch = Patch::Merge(json!({"metadata": {
            "uid": target.uid,
            "resourceVersion": target.resource_version,
            "managedFields": takeover.managed_fields(manager),
        }}));
        self.patch("taking over", target, None, patch).await.map(drop)
    }

    /// Creates an object unless one of this name exists.
    async fn create_anew(&self, manager: &str, desired: &Desired) -> Result<(), Failure> {
        let (name, namespace) = (desired.object.name_any(), desired.object.namespace());
        let api = self.api(namespace.as_deref(), &desired.resource);
        let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
        let made = async {
            match api.create(&params, &desired.object).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                answer => answer.map(drop),
            }
        };
        call("creating", || title(&desired.resource, namespace.as_deref(), &name), made).await
    }
}

/// The part of a response that is read: there may be ten thousand responses, each with a whole object.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Receipt {
    metadata: ReceiptMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReceiptMeta {
    resource_version: String,
}

fn path(resource: &ApiResource, namespace: Option<&str>) -> Request {
    Request::new(DynamicObject::url_path(resource, namespace))
}

fn title(resource: &ApiResource, namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{} {namespace}/{name}", resource.kind),
        None => format!("{} {name}", resource.kind),
    }
}

impl Effects for KubeEffects {
    async fn apply(&self, manager: &str, desired: &Desired) -> Result<Fingerprint, Failure> {
        let (name, namespace) = (desired.object.name_any(), desired.object.namespace());
        let api = self.api(namespace.as_deref(), &desired.resource);
        if let Some(takeover) = &desired.takeover {
            self.take_over(manager, takeover).await?;
        }
        let params = PatchParams::apply(manager).force();
        let patch = Patch::Apply(&desired.object);
        let title = || title(&desired.resource, namespace.as_deref(), &name);
        let left = call("applying", title, api.patch(&name, &params, &patch)).await?;
        Ok(Fingerprint::of(&left))
    }

    async fn generate_secret(&self, manager: &str, generated: &GeneratedSecret) -> Result<(), Failure> {
        let mut secret = generated.secret.clone();
        let wanted = generated.clone();
        // Not in the only thread of the runtime: host keys take a while.
        let content = tokio::task::spawn_blocking(move || generate(&wanted)).await;
        let content = content.unwrap_or(Err(NoRandomness)).map_err(|error| Failure {
            action: "generating",
            object: format!("Secret {}", secret.object.name_any()),
            source: FailureSource::NoRandomness(error),
        })?;
        if let Value::Object(fields) = &mut secret.object.data {
            fields.insert("data".to_owned(), content);
        }
        match &generated.content {
            SecretContent::Token { .. } => self.apply(manager, &secret).await.map(drop),
            SecretContent::Keys { .. } | SecretContent::HostKeys => self.create_anew(manager, &secret).await,
        }
    }

    async fn set_owners(&self, child: &ObjectVersion, owners: &[OwnerReference]) -> Result<(), Failure> {
        // Conditional on the observed version, so that concurrent writers do not overwrite each other's owners.
        let patch = Patch::Merge(json!({"metadata": {
            "uid": child.uid,
            "resourceVersion": child.resource_version,
            "ownerReferences": owners,
        }}));
        self.patch("updating the owners of", child, None, patch).await.map(drop)
    }

    async fn delete(&self, object: &ObjectVersion) -> Result<(), Failure> {
        let preconditions =
            Preconditions { uid: Some(object.uid.clone()), resource_version: Some(object.resource_version.clone()) };
        let params = DeleteParams::background().preconditions(preconditions);
        let title = || title(&object.resource, object.namespace.as_deref(), &object.name);
        let gone = async {
            let request = path(&object.resource, object.namespace.as_deref()).delete(&object.name, &params);
            match self.client.request::<IgnoredAny>(request.map_err(kube::Error::BuildRequest)?).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                answer => answer.map(drop),
            }
        };
        call("deleting", title, gone).await
    }

    async fn create(&self, object: &FromTemplate) -> Result<Option<String>, Failure> {
        let title = || title(&object.resource, Some(object.namespace()), object.name());
        let whole = object.render();
        let made = async {
            let body = serde_json::to_vec(&whole).map_err(kube::Error::SerdeError)?;
            let request = path(&object.resource, Some(object.namespace())).create(&PostParams::default(), body);
            self.client.request::<Receipt>(request.map_err(kube::Error::BuildRequest)?).await
        };
        match call("creating", title, made).await {
            Ok(new) => Ok(Some(new.metadata.resource_version)),
            Err(failure) if failure.is_already_there() => self.same(object, &whole).await,
            Err(failure) => Err(failure),
        }
    }

    async fn patch_metadata(&self, patch: &MetadataPatch) -> Result<String, Failure> {
        let target = &patch.target;
        // Maps are merged by key and null removes a key, so keys of other writers are not touched.
        let mut metadata = json!({"uid": target.uid});
        for (field, changes) in [("labels", &patch.labels), ("annotations", &patch.annotations)] {
            if let (false, Some(metadata)) = (changes.is_empty(), metadata.as_object_mut()) {
                metadata.insert(field.to_owned(), json!(changes));
            }
        }
        self.patch("updating the metadata of", target, None, Patch::Strategic(json!({"metadata": metadata}))).await
    }

    async fn patch_conditions(&self, patch: &PodConditionPatch) -> Result<String, Failure> {
        let target = &patch.target;
        let since = seconds(patch.since);
        let set = patch.set.iter().map(|(type_, message)| {
            json!({"type": type_, "status": "True", "message": message, "lastTransitionTime": since})
        });
        let removed = patch.remove.iter().map(|type_| json!({"type": type_, "$patch": "delete"}));
        // Merged by type, so conditions of other writers are kept.
        let conditions: Vec<Value> = set.chain(removed).collect();
        let patch = Patch::Strategic(json!({"metadata": {"uid": target.uid}, "status": {"conditions": conditions}}));
        self.patch("updating the conditions of", target, Some("status"), patch).await
    }

    async fn grow_claim(&self, claim: &ObjectVersion, size: &Quantity) -> Result<(), Failure> {
        let patch = json!({
            "metadata": {"uid": claim.uid, "resourceVersion": claim.resource_version},
            "spec": {"resources": {"requests": {"storage": size}}},
        });
        self.patch("growing", claim, None, Patch::Merge(patch)).await.map(drop)
    }

    async fn still_drained(
        &self,
        cluster: &ClusterKey,
        nodes: BTreeMap<&str, &ServiceState>,
    ) -> Result<HashSet<String>, Failure> {
        self.slurm.still_drained(cluster, &nodes).await
    }

    async fn slurm(&self, write: &SlurmWrite) -> Result<(), Failure> {
        self.slurm.run(write).await
    }

    async fn register(&self, worker: &RegisterWorker) -> AttemptResult {
        register::register(&self.client, worker).await
    }

    async fn reread(&self, files: &RereadFiles) -> Result<bool, Failure> {
        reread::reread(&self.client, files).await
    }

    async fn read_keys(&self, keys: &ReadKeys) -> Result<bool, Failure> {
        let note = async |(key, value): (&str, &str)| {
            let patch = Patch::Merge(json!({"metadata": {"uid": keys.pod.uid, "annotations": {key: value}}}));
            self.patch("updating the metadata of", &keys.pod, None, patch).await
        };
        note((keys.asked.0, &keys.asked.1)).await?;
        let result = read_keys::read_keys(&self.client, keys).await;
        match &result {
            Ok(true) => drop(note((keys.read, &keys.hash)).await?),
            Ok(false) => {}
            // Shown in the condition.
            Err(failure) => drop(note((keys.asked.0, &format!("{} {}", keys.asked.1, failure.source))).await?),
        }
        result
    }

    async fn add_finalizer(&self, object: &ObjectVersion, name: &str) -> Result<(), Failure> {
        let api = self.api(object.namespace.as_deref(), &object.resource);
        let body = json!({
            "apiVersion": object.resource.api_version,
            "kind": object.resource.kind,
            "metadata": {"uid": object.uid, "finalizers": [name]},
        });
        // Finalizers are a set, so those of others stay. A manager for each finalizer, as an apply removes what its manager
        // applied before and now leaves out.
        let params = PatchParams::apply(name).force();
        let title = || title(&object.resource, object.namespace.as_deref(), &object.name);
        call("adding a finalizer to", title, api.patch(&object.name, &params, &Patch::Apply(&body))).await?;
        Ok(())
    }

    async fn keep_finalizers(&self, object: &ObjectVersion, others: &[String]) -> Result<(), Failure> {
        let patch = Patch::Merge(json!({"metadata": {
            "uid": object.uid,
            "resourceVersion": object.resource_version,
            "finalizers": others,
        }}));
        self.patch("removing a finalizer from", object, None, patch).await.map(drop)
    }

    async fn status(
        &self,
        manager: &str,
        resource: &ApiResource,
        object: &ObjectReference,
        status: Value,
    ) -> Result<(), Failure> {
        let (name, namespace) = (object.name.clone().unwrap_or_default(), object.namespace.as_deref());
        let api = self.api(namespace, resource);
        let body = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            // Do not write the status of a new object of the same name.
            "metadata": {"uid": object.uid},
            "status": status,
        });
        let params = PatchParams::apply(manager).force();
        let title = || title(resource, namespace, &name);
        call("writing the status of", title, api.patch_status(&name, &params, &Patch::Apply(&body))).await?;
        Ok(())
    }

    async fn publish(&self, object: &ObjectReference, event: &Event) {
        let kube_event = KubeEvent {
            type_: if event.is_warning { EventType::Warning } else { EventType::Normal },
            reason: event.reason.to_owned(),
            note: Some(event.text.clone()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        let publish = self.recorder.publish(&kube_event, object);
        if let Err(failure) = call("publishing the event", || event.reason.to_owned(), publish).await {
            tracing::debug!(error = failure.text(), "failed to publish an event");
        }
    }
}

/// The content of a Secret. The only place that uses randomness.
fn generate(wanted: &GeneratedSecret) -> Result<Value, NoRandomness> {
    Ok(match &wanted.content {
        SecretContent::Token { key, user, issued_at, lifetime } => {
            let token = mint(key, &Claims::new(&random::id()?, user, *issued_at, *lifetime));
            json!({ wanted.entry.as_str(): STANDARD.encode(token.expose()) })
        }
        SecretContent::Keys { entries } => {
            let mut keys = serde_json::Map::new();
            for entry in entries {
                keys.insert(entry.clone(), Value::from(STANDARD.encode(random_key()?)));
            }
            keys.into()
        }
        SecretContent::HostKeys => {
            let files = host_keys::generate()?.into_iter();
            files.map(|(name, text)| (name, Value::from(STANDARD.encode(text)))).collect()
        }
    })
}

/// A key of printable characters.
fn random_key() -> Result<String, NoRandomness> {
    Ok(STANDARD.encode(random::bytes::<128>()?))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Pod, Secret};

    use super::*;

    #[test]
    fn objects_may_be_cluster_scoped() {
        let (pod, node) = (ApiResource::erase::<Pod>(&()), ApiResource::erase::<Node>(&()));
        assert_eq!(DynamicObject::url_path(&pod, Some("ns")), "/api/v1/namespaces/ns/pods");
        assert_eq!(path(&node, None).url_path, "/api/v1/nodes");
        assert_eq!([title(&pod, Some("ns"), "a"), title(&node, None, "b")], ["Pod ns/a", "Node b"]);
    }

    #[test]
    fn keys_are_long_printable_and_never_the_same() {
        let content = SecretContent::Keys { entries: vec!["slurm.key".into(), "jwt.key".into()] };
        let generated =
            GeneratedSecret { secret: Desired::of(&Secret::default()), entry: String::new(), content, manager: None };
        let (one, other) = (generate(&generated).unwrap(), generate(&generated).unwrap());
        let key = |made: &Value, entry: &str| STANDARD.decode(made[entry].as_str().unwrap()).unwrap();
        assert_eq!(one.as_object().unwrap().len(), 2);
        assert!(key(&one, "jwt.key").len() > 128 && key(&one, "jwt.key").is_ascii());
        slurm::token::Key::new(&key(&one, "jwt.key")).unwrap();
        let keys = [&one, &other].map(|made| [key(made, "slurm.key"), key(made, "jwt.key")]).concat();
        let distinct: HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), 4);
    }
}
