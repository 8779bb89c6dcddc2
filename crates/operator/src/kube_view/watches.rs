//! One watch per resource, shared by all kinds.
//!
//! Most resources are watched by metadata only and not cached: whoever needs an object reads it on demand. Worker
//! pods and Kubernetes nodes are numerous and needed all at once, so the fields used for planning are kept in stores.

use std::{collections::HashMap, fmt::Debug, pin::pin, sync::Arc};

use futures::{Stream, StreamExt, future::join_all};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Resource,
    api::{ObjectMeta, PartialObjectMeta},
    core::NamespaceResourceScope,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use slurm_operator_api::{Accounting, Controller, NodeSet, RestApi, names};

use crate::{
    health::Readiness,
    kube_view::stores::{SlimNode, SlimPod, Store},
    machine::{Trigger, TriggerKind, WriteCache},
    sources::Sources,
};

/// Watches all resources in these scopes until dropped.
pub async fn watch(sources: Sources, scopes: &[Option<String>], readiness: Readiness) {
    for scope in scopes {
        sources.workers.0.expect(scope.as_deref());
    }
    sources.nodes.0.expect(None);
    let in_each = scopes.iter().map(|scope| in_scope(&sources, scope.as_deref(), &readiness));
    futures::join!(join_all(in_each), nodes(&sources, &readiness));
}

async fn in_scope(sources: &Sources, scope: Option<&str>, readiness: &Readiness) {
    let watch = Watch { sources, scope };
    // For workloads every change counts, because their state is in the status. For custom resources only spec and
    // metadata count: reacting to each other's status would loop.
    futures::join!(
        watch.any::<Secret>(TriggerKind::Secret),
        watch.any::<ConfigMap>(TriggerKind::ConfigMap),
        watch.any::<Service>(TriggerKind::Service),
        watch.any::<StatefulSet>(TriggerKind::StatefulSet),
        watch.any::<Deployment>(TriggerKind::Deployment),
        watch.any::<PodDisruptionBudget>(TriggerKind::DisruptionBudget),
        watch.any::<PersistentVolumeClaim>(TriggerKind::Claim),
        watch.specs::<Controller>(TriggerKind::Controller),
        watch.specs::<NodeSet>(TriggerKind::NodeSet),
        watch.specs::<RestApi>(TriggerKind::RestApi),
        watch.specs::<Accounting>(TriggerKind::Accounting),
        watch.pods(readiness),
    );
}

trait Watched:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
}

/// The watches of one scope.
struct Watch<'a> {
    sources: &'a Sources,
    scope: Option<&'a str>,
}

impl Watch<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let client = self.sources.client.clone();
        self.scope.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace))
    }

    /// Triggers on every change.
    async fn any<K: Watched>(&self, what: TriggerKind) {
        self.metadata::<K>(what, |_| true).await;
    }

    /// Triggers on changes of spec, labels and annotations, and on deletions.
    async fn specs<K: Watched>(&self, what: TriggerKind) {
        let mut known = HashMap::new();
        self.metadata::<K>(what, |metadata| {
            let key = (metadata.namespace.clone(), metadata.name.clone());
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

    async fn metadata<K: Watched>(&self, what: TriggerKind, mut counts: impl FnMut(&ObjectMeta) -> bool) {
        let send = |trigger| drop(self.sources.triggers.send(Arc::new(trigger)));
        let mut events =
            pin!(watcher::watcher(self.api::<PartialObjectMeta<K>>(), watcher::Config::default()).default_backoff());
        let mut listed = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    if counts(object.meta()) {
                        send(Trigger::of(what, object.meta()));
                    }
                }
                Ok(Event::Delete(object)) => {
                    self.forget::<K>(what, object.meta());
                    send(Trigger::of(what, object.meta()));
                }
                Ok(Event::Init) => {}
                Ok(Event::InitDone) => {
                    // After a relist, deletions that happened in the gap are never reported.
                    if listed {
                        anything(self.sources);
                    }
                    listed = true;
                }
                Err(error) => tracing::warn!(%error, ?what, "watch failed"),
            }
        }
    }

    /// Drops what is cached about a deleted object.
    fn forget<K: Watched>(&self, what: TriggerKind, metadata: &ObjectMeta) {
        let uid = metadata.uid.as_deref().unwrap_or_default();
        self.sources.write_cache.forget(uid);
        let key = WriteCache::key(&K::group(&()), &K::kind(&()), metadata);
        self.sources.write_cache.unapplied(&key);
        if what == TriggerKind::NodeSet {
            self.sources.slurm.metrics().gone(uid);
        }
    }

    /// Watches the pods of Slurm daemons and keeps the worker pods.
    async fn pods(&self, readiness: &Readiness) {
        let labels = format!("{} in (slurmctld,slurmrestd,slurmdbd,slurmd,login)", names::label::NAME);
        let config = watcher::Config::default().labels(&labels);
        let pods = watcher::watcher(self.api::<SlimPod>(), config).default_backoff();
        keep(
            pods,
            &*self.sources.workers.0,
            self.scope,
            "pods",
            readiness,
            |pod| {
                let _ = self.sources.triggers.send(Arc::new(Trigger::of(TriggerKind::Pod, pod.meta())));
            },
            || anything(self.sources),
        )
        .await;
    }
}

async fn nodes(sources: &Sources, readiness: &Readiness) {
    let all: Api<SlimNode> = Api::all(sources.client.clone());
    let nodes = watcher::watcher(all, watcher::Config::default()).default_backoff();
    keep(
        nodes,
        &*sources.nodes.0,
        None,
        "nodes",
        readiness,
        |node| {
            let _ = sources.triggers.send(Arc::new(Trigger::of(TriggerKind::Node, node.meta())));
        },
        || anything(sources),
    )
    .await;
}

/// Triggers everything: what changed is unknown.
fn anything(sources: &Sources) {
    let _ = sources.triggers.send(Arc::new(Trigger::of(TriggerKind::Anything, &ObjectMeta::default())));
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
