//! One watch per resource, for all kinds.
//!
//! Of most resources only metadata is watched, and none of it is kept: who needs an object reads it then. Workers' pods and
//! Kubernetes nodes are many and needed whole at once, so what plans read of them is kept in stores.

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
    machine::{Memory, Touch, Touched},
    sources::Sources,
    stores::{SlimNode, SlimPod, Store},
};

/// Watches everything in these namespaces, until it is dropped.
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
    // What a workload does shows in its status, so every change counts there. Of the others' own kinds only what the user
    // wrote does: a status that wakes its neighbour, whose status wakes the first, would be a loop.
    futures::join!(
        watch.any::<Secret>(Touched::Secret),
        watch.any::<ConfigMap>(Touched::ConfigMap),
        watch.any::<Service>(Touched::Service),
        watch.any::<StatefulSet>(Touched::StatefulSet),
        watch.any::<Deployment>(Touched::Deployment),
        watch.any::<PodDisruptionBudget>(Touched::DisruptionBudget),
        watch.any::<PersistentVolumeClaim>(Touched::Claim),
        watch.specs::<Controller>(Touched::Controller),
        watch.specs::<NodeSet>(Touched::NodeSet),
        watch.specs::<RestApi>(Touched::RestApi),
        watch.specs::<Accounting>(Touched::Accounting),
        watch.pods(readiness),
    );
}

/// What can be watched.
trait Watched:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
}

/// A place to watch.
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

    /// Every change.
    async fn any<K: Watched>(&self, what: Touched) {
        self.metadata::<K>(what, |_| true).await;
    }

    /// Changes of what the user wrote, and deletions.
    async fn specs<K: Watched>(&self, what: Touched) {
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

    async fn metadata<K: Watched>(&self, what: Touched, mut counts: impl FnMut(&ObjectMeta) -> bool) {
        let tell = |touch| drop(self.sources.touches.send(Arc::new(touch)));
        let mut events =
            pin!(watcher::watcher(self.api::<PartialObjectMeta<K>>(), watcher::Config::default()).default_backoff());
        let mut listed = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    if counts(object.meta()) {
                        tell(Touch::of(what, object.meta()));
                    }
                }
                Ok(Event::Delete(object)) => {
                    self.forget(&K::kind(&()), what, object.meta());
                    tell(Touch::of(what, object.meta()));
                }
                Ok(Event::Init) => {}
                Ok(Event::InitDone) => {
                    // The watch was lost for a while. What was deleted meanwhile, nobody tells.
                    if listed {
                        anything(self.sources);
                    }
                    listed = true;
                }
                Err(error) => tracing::warn!(%error, ?what, "a watch failed"),
            }
        }
    }

    /// Nothing of what is gone needs to be remembered.
    fn forget(&self, kind: &str, what: Touched, metadata: &ObjectMeta) {
        let uid = metadata.uid.as_deref().unwrap_or_default();
        self.sources.memory.forget(uid);
        self.sources.memory.unapplied(&Memory::key(kind, metadata));
        if what == Touched::NodeSet {
            self.sources.slurm.metrics().gone(uid);
        }
    }

    /// Pods of Slurm daemons. Workers are kept.
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
                let _ = self.sources.touches.send(Arc::new(Touch::of(Touched::Pod, pod.meta())));
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
            let _ = sources.touches.send(Arc::new(Touch::of(Touched::Node, node.meta())));
        },
        || anything(sources),
    )
    .await;
}

/// Nobody knows what changed.
fn anything(sources: &Sources) {
    let _ = sources.touches.send(Arc::new(Touch::of(Touched::Anything, &ObjectMeta::default())));
}

/// Feeds a store, and tells of each change that it kept.
async fn keep<K, S: Store<K>>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    store: &S,
    scope: Option<&str>,
    name: &str,
    readiness: &Readiness,
    tell: impl Fn(&K),
    again: impl Fn(),
) {
    let name = scope.map_or_else(|| name.to_owned(), |scope| format!("{name} of {scope}"));
    readiness.expect(&name);
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let done = matches!(event, Event::InitDone);
                store.take(scope, event, &tell);
                if done {
                    readiness.met(&name);
                    // What was deleted while the watch was lost, the list does not tell.
                    again();
                }
            }
            Err(error) => {
                readiness.troubled(&name, &error.to_string());
                tracing::warn!(%error, resource = name, "a watch failed");
            }
        }
    }
}
