//! One watch per resource, shared by all kinds.
//!
//! Most resources are watched by metadata only and not cached: whoever needs an object reads it on demand. Worker
//! pods and Kubernetes nodes are numerous and needed all at once, so the fields used for planning are kept in stores.

use std::{collections::HashMap, fmt::Debug, pin::pin, sync::Arc};

use futures::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, join_all},
};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, CustomResourceExt, Resource,
    api::{ObjectMeta, PartialObjectMeta},
    core::NamespaceResourceScope,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;

use super::{
    KubeView,
    own_writes::AppliedCache,
    stores::{SlimNode, SlimPod, Store},
};
use crate::{
    health::{Readiness, Waiting},
    metrics::Metrics,
    trigger::{Trigger, TriggerKind, Triggers},
};

/// Watches a kind of custom resources in one scope.
pub type CustomWatch = for<'a> fn(&'a Watch<'a>) -> BoxFuture<'a, ()>;

/// The watch of a kind that others refer to. Only spec and metadata count: reacting to each other's status would loop.
pub fn custom<'a, K: Watched + CustomResourceExt>(watch: &'a Watch<'a>) -> BoxFuture<'a, ()> {
    watch.specs::<K>(TriggerKind::of::<K>()).boxed()
}

/// Watches all resources in these scopes until dropped, with these custom resources.
pub async fn watch(
    view: KubeView,
    triggers: Triggers,
    metrics: Metrics,
    waiting: Waiting,
    scopes: &[Option<String>],
    custom: &[CustomWatch],
    readiness: Readiness,
) {
    for scope in scopes {
        view.workers.0.expect(scope.as_deref());
    }
    view.nodes.0.expect(None);
    let watch = |scope| Watch { view: &view, triggers: &triggers, metrics: &metrics, waiting: &waiting, scope };
    let in_each = scopes.iter().map(|scope| in_scope(watch(scope.as_deref()), custom, &readiness));
    let whole = watch(None);
    futures::join!(join_all(in_each), whole.nodes(&readiness));
}

async fn in_scope(watch: Watch<'_>, custom: &[CustomWatch], readiness: &Readiness) {
    // For workloads every change counts, because their state is in the status.
    futures::join!(
        watch.any::<Secret>(TriggerKind::Secret),
        watch.any::<ConfigMap>(TriggerKind::ConfigMap),
        watch.any::<Service>(TriggerKind::Service),
        watch.any::<StatefulSet>(TriggerKind::StatefulSet),
        watch.any::<Deployment>(TriggerKind::Deployment),
        watch.any::<PodDisruptionBudget>(TriggerKind::DisruptionBudget),
        watch.any::<PersistentVolumeClaim>(TriggerKind::Claim),
        join_all(custom.iter().map(|start| start(&watch))),
        watch.pods(readiness),
    );
}

/// A resource that can be watched.
pub trait Watched:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
}

/// The watches of one scope.
pub struct Watch<'a> {
    view: &'a KubeView,
    triggers: &'a Triggers,
    metrics: &'a Metrics,
    waiting: &'a Waiting,
    scope: Option<&'a str>,
}

impl Watch<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let client = self.view.client.clone();
        self.scope.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace))
    }

    /// Triggers on every change.
    async fn any<K: Watched>(&self, what: TriggerKind) {
        self.metadata::<K>(what, |_, _| true).await;
    }

    /// Triggers on changes of spec, labels and annotations, and on deletions.
    async fn specs<K: Watched>(&self, what: TriggerKind) {
        let mut known = HashMap::new();
        self.metadata::<K>(what, |metadata, is_deleted| {
            let key = (metadata.namespace.clone(), metadata.name.clone());
            if is_deleted {
                known.remove(&key);
                return true;
            }
            let written = (
                metadata.uid.clone(),
                metadata.generation,
                metadata.labels.clone(),
                metadata.annotations.clone(),
                metadata.deletion_timestamp.is_some(),
            );
            known.insert(key, written.clone()) != Some(written)
        })
        .await;
    }

    async fn metadata<K: Watched>(&self, what: TriggerKind, mut counts: impl FnMut(&ObjectMeta, bool) -> bool) {
        let mut events =
            pin!(watcher::watcher(self.api::<PartialObjectMeta<K>>(), watcher::Config::default()).default_backoff());
        let mut listed = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    if counts(object.meta(), false) {
                        self.send(what, object.meta());
                    }
                }
                Ok(Event::Delete(object)) => {
                    counts(object.meta(), true);
                    self.forget::<K>(object.meta());
                    if matches!(what, TriggerKind::Custom(_)) {
                        let uid = object.meta().uid.as_deref().unwrap_or_default();
                        self.metrics.gone(uid);
                        self.waiting.forget(uid);
                    }
                    self.send(what, object.meta());
                }
                Ok(Event::Init) => {}
                Ok(Event::InitDone) => {
                    // After a relist, deletions that happened in the gap are never reported.
                    if listed {
                        self.anything();
                    }
                    listed = true;
                }
                Err(error) => tracing::warn!(%error, ?what, "watch failed"),
            }
        }
    }

    /// Drops what is cached about a deleted object.
    fn forget<K: Watched>(&self, metadata: &ObjectMeta) {
        let uid = metadata.uid.as_deref().unwrap_or_default();
        self.view.own_writes.forget(uid);
        let key = AppliedCache::key(&K::group(&()), &K::kind(&()), metadata);
        self.view.own_writes.applied.remove(&key);
    }

    /// Watches the pods of Slurm daemons and keeps the worker pods.
    async fn pods(&self, readiness: &Readiness) {
        // All API groups use the same label.
        let (label, _) = self.view.vocabularies.first().map_or(("", &[][..]), |vocabulary| vocabulary.pod_label);
        let values = self.view.vocabularies.iter().flat_map(|vocabulary| vocabulary.pod_label.1);
        let labels = format!("{label} in ({})", values.copied().collect::<Vec<_>>().join(","));
        let config = watcher::Config::default().labels(&labels);
        let pods = watcher::watcher(self.api::<SlimPod>(), config).default_backoff();
        keep(
            pods,
            &*self.view.workers.0,
            self.scope,
            "pods",
            readiness,
            |pod| self.send(TriggerKind::Pod, pod.meta()),
            || self.anything(),
        )
        .await;
    }

    /// Watches all Kubernetes nodes and keeps them.
    async fn nodes(&self, readiness: &Readiness) {
        let all: Api<SlimNode> = Api::all(self.view.client.clone());
        let nodes = watcher::watcher(all, watcher::Config::default()).default_backoff();
        keep(
            nodes,
            &*self.view.nodes.0,
            None,
            "nodes",
            readiness,
            |node| self.send(TriggerKind::Node, node.meta()),
            || self.anything(),
        )
        .await;
    }

    fn send(&self, what: TriggerKind, metadata: &ObjectMeta) {
        // Having no receiver is not an error.
        let _ = self.triggers.send(Arc::new(Trigger::of(what, metadata)));
    }

    /// Triggers everything: what changed is unknown.
    fn anything(&self) {
        self.send(TriggerKind::Anything, &ObjectMeta::default());
    }
}

/// Feeds a store from a watch, and calls `on_change` for each change that the store kept.
async fn keep<K, S: Store<K>>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    store: &S,
    scope: Option<&str>,
    name: &str,
    readiness: &Readiness,
    on_change: impl Fn(&K),
    again: impl Fn(),
) {
    let name = scope.map_or_else(|| name.to_owned(), |scope| format!("{name} in {scope}"));
    readiness.expect(&name);
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let done = matches!(event, Event::InitDone);
                store.take(scope, event, &on_change);
                if done {
                    readiness.met(&name);
                    // After a relist, deletions that happened in the gap are never reported.
                    again();
                }
            }
            Err(error) => {
                readiness.failing(&name, &error.to_string());
                tracing::warn!(%error, resource = name, "watch failed");
            }
        }
    }
}
