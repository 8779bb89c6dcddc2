//! The only way out into the world. Real here, simulated in tests.

use std::{future::Future, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions},
    core::ApiResource,
    runtime::events::{Event, EventType, Recorder},
};
use serde_json::{Value, json};
use slurm::token::{Claims, mint};
use thiserror::Error;

use super::{Desired, Doomed, Mint, Note, Recipe};

/// No call to the API server may hold a reconcile for longer.
const CALL: Duration = Duration::from_secs(10);

/// A write or a read that did not work.
#[derive(Debug, Error)]
#[error("{action} {object}")]
pub struct Failure {
    /// What was tried: `applying`, `deleting`, …
    pub action: &'static str,
    /// On what: `Secret slurm/token`.
    pub object: String,
    /// What came back.
    #[source]
    pub source: FailureSource,
}

/// What came back instead of success.
#[derive(Debug, Error)]
pub enum FailureSource {
    /// The API server said no, or nothing.
    #[error(transparent)]
    Kube(Box<kube::Error>),
    /// Nothing came back in time.
    #[error("no answer within {} s", CALL.as_secs())]
    Timeout,
}

impl Failure {
    /// What reaches metrics and reasons: one word of a fixed set.
    pub fn class(&self) -> &'static str {
        match &self.source {
            FailureSource::Timeout => "Timeout",
            FailureSource::Kube(error) => match &**error {
                kube::Error::Api(status) if status.is_conflict() => "Conflict",
                kube::Error::Api(status) if status.is_forbidden() => "Forbidden",
                kube::Error::Api(status) if status.is_invalid() => "Invalid",
                kube::Error::Api(status) if status.is_not_found() => "NotFound",
                kube::Error::Api(_) => "Refused",
                _ => "Unreachable",
            },
        }
    }

    /// The whole chain in one line.
    pub fn text(&self) -> String {
        format!("{self}: {}", self.source)
    }
}

/// Makes a call to the API server that ends, and says what it was if it fails.
pub async fn call<T>(
    action: &'static str,
    object: impl FnOnce() -> String,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failure> {
    let source = match tokio::time::timeout(CALL, call).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => FailureSource::Kube(Box::new(error)),
        Err(_) => FailureSource::Timeout,
    };
    Err(Failure { action, object: object(), source })
}

/// Every write that a plan can ask for.
pub trait Effects: Send + Sync {
    /// Makes a child be like this, in the name of a field manager.
    fn apply(&self, manager: &str, desired: &Desired) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Makes the content of a Secret, and the Secret.
    fn mint(&self, manager: &str, mint: &Mint) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Replaces the owners of an object.
    fn adopt(&self, child: &Doomed, owner: &OwnerReference) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Removes an object, if it is still the one that was seen.
    fn delete(&self, doomed: &Doomed) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Writes a whole status.
    fn status(
        &self,
        manager: &str,
        resource: &ApiResource,
        object: &ObjectReference,
        status: Value,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Tells a human. Never fails: losing an event must not fail a reconcile.
    fn note(&self, object: &ObjectReference, note: &Note) -> impl Future<Output = ()> + Send;
}

/// The real world.
#[derive(Clone)]
pub struct Live {
    client: Client,
    recorder: Recorder,
}

impl Live {
    /// Writes with this client, and events with this recorder (one for all, since it aggregates repeats).
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Self { client, recorder }
    }

    fn api(&self, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }

    /// Makes an object unless there is one of that name.
    async fn create(&self, manager: &str, desired: &Desired) -> Result<(), Failure> {
        let (name, namespace) = (desired.object.name_any(), desired.object.namespace().unwrap_or_default());
        let api = self.api(&namespace, &desired.resource);
        let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
        let made = async {
            match api.create(&params, &desired.object).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                answer => answer.map(drop),
            }
        };
        call("creating", || title(&desired.resource, &namespace, &name), made).await
    }
}

fn title(resource: &ApiResource, namespace: &str, name: &str) -> String {
    format!("{} {namespace}/{name}", resource.kind)
}

impl Effects for Live {
    async fn apply(&self, manager: &str, desired: &Desired) -> Result<(), Failure> {
        let (name, namespace) = (desired.object.name_any(), desired.object.namespace().unwrap_or_default());
        let api = self.api(&namespace, &desired.resource);
        let params = PatchParams::apply(manager).force();
        let patch = Patch::Apply(&desired.object);
        call("applying", || title(&desired.resource, &namespace, &name), api.patch(&name, &params, &patch)).await?;
        Ok(())
    }

    async fn mint(&self, manager: &str, mint: &Mint) -> Result<(), Failure> {
        let mut secret = mint.secret.clone();
        if let Value::Object(fields) = &mut secret.object.data {
            fields.insert("data".to_owned(), make(mint));
        }
        match &mint.recipe {
            Recipe::Token { .. } => self.apply(manager, &secret).await,
            Recipe::Keys { .. } => self.create(manager, &secret).await,
        }
    }

    async fn adopt(&self, child: &Doomed, owner: &OwnerReference) -> Result<(), Failure> {
        let api = self.api(&child.namespace, &child.resource);
        // Pinned to what we saw: two writers cannot lose each other's entry.
        let patch = Patch::Merge(json!({"metadata": {
            "uid": child.uid,
            "resourceVersion": child.resource_version,
            "ownerReferences": [owner],
        }}));
        let title = || title(&child.resource, &child.namespace, &child.name);
        call("adopting", title, api.patch(&child.name, &PatchParams::default(), &patch)).await?;
        Ok(())
    }

    async fn delete(&self, doomed: &Doomed) -> Result<(), Failure> {
        let api = self.api(&doomed.namespace, &doomed.resource);
        let preconditions =
            Preconditions { uid: Some(doomed.uid.clone()), resource_version: Some(doomed.resource_version.clone()) };
        let params = DeleteParams::background().preconditions(preconditions);
        let title = || title(&doomed.resource, &doomed.namespace, &doomed.name);
        let gone = async {
            match api.delete(&doomed.name, &params).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                answer => answer.map(drop),
            }
        };
        call("deleting", title, gone).await
    }

    async fn status(
        &self,
        manager: &str,
        resource: &ApiResource,
        object: &ObjectReference,
        status: Value,
    ) -> Result<(), Failure> {
        let (name, namespace) = (object.name.clone().unwrap_or_default(), object.namespace.clone().unwrap_or_default());
        let api = self.api(&namespace, resource);
        let body = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            // An object of that name which was made since is not ours to describe.
            "metadata": {"uid": object.uid},
            "status": status,
        });
        let params = PatchParams::apply(manager).force();
        let title = || title(resource, &namespace, &name);
        call("writing the status of", title, api.patch_status(&name, &params, &Patch::Apply(&body))).await?;
        Ok(())
    }

    async fn note(&self, object: &ObjectReference, note: &Note) {
        let event = Event {
            type_: if note.is_warning { EventType::Warning } else { EventType::Normal },
            reason: note.reason.to_owned(),
            note: Some(note.text.clone()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        let publish = self.recorder.publish(&event, object);
        if let Err(failure) = call("telling", || note.reason.to_owned(), publish).await {
            tracing::debug!(error = failure.text(), "an event was lost");
        }
    }
}

/// The content of a Secret. Chance enters here and nowhere else.
fn make(wanted: &Mint) -> Value {
    match &wanted.recipe {
        Recipe::Token { key, user, issued_at, lifetime } => {
            let id = uuid::Uuid::new_v4().to_string();
            let token = mint(key, &Claims::new(&id, user, *issued_at, *lifetime));
            json!({ wanted.entry.as_str(): STANDARD.encode(token.expose()) })
        }
        Recipe::Keys { entries } => {
            entries.iter().map(|entry| (entry.clone(), Value::from(STANDARD.encode(random_key())))).collect()
        }
    }
}

/// A key of printable characters: eight times 122 bits from the system.
fn random_key() -> String {
    STANDARD.encode([(); 8].map(|()| uuid::Uuid::new_v4().into_bytes()).concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Secret;

    #[test]
    fn keys_are_long_printable_and_never_the_same() {
        let recipe = Recipe::Keys { entries: vec!["slurm.key".into(), "jwt.key".into()] };
        let mint = Mint { secret: Desired::of(&Secret::default()), entry: String::new(), recipe };
        let (one, other) = (make(&mint), make(&mint));
        let key = |made: &Value, entry: &str| STANDARD.decode(made[entry].as_str().unwrap()).unwrap();
        assert_eq!(one.as_object().unwrap().len(), 2);
        assert!(key(&one, "jwt.key").len() > 128 && key(&one, "jwt.key").is_ascii());
        slurm::token::Key::new(&key(&one, "jwt.key")).unwrap();
        let keys = [&one, &other].map(|made| [key(made, "slurm.key"), key(made, "jwt.key")]).concat();
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), 4);
    }
}
