//! Stores of pods and Kubernetes nodes, reduced to the fields used for planning.
//!
//! Other fields are not even decoded: ten thousand complete pods would take a hundred megabytes.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex},
};

use engine::podset::{KubeNode, Worker};
use k8s_openapi::{
    api::core::v1::{ContainerState, NodeCondition, PodCondition, Taint},
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::{
    Resource, ResourceExt,
    api::ObjectMeta,
    core::{ClusterResourceScope, NamespaceResourceScope},
    runtime::watcher::Event,
};
use serde::{Deserialize, de::IgnoredAny};
use slurm_operator_api::common::vocabulary::Vocabulary;
use tokio::sync::watch;

use crate::lock::lock;

mod convert;

/// A pod, reduced to the fields used for planning.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimPod {
    metadata: SlimMeta,
    #[serde(default)]
    spec: SlimPodSpec,
    #[serde(default)]
    status: SlimPodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimPodSpec {
    node_name: Option<String>,
    hostname: Option<String>,
    #[serde(default)]
    host_network: bool,
    affinity: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimPodStatus {
    phase: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    #[serde(default)]
    conditions: Vec<PodCondition>,
    #[serde(default)]
    container_statuses: Vec<SlimContainer>,
    #[serde(default)]
    init_container_statuses: Vec<SlimContainer>,
}

#[derive(Clone, Debug, Deserialize)]
struct SlimContainer {
    name: String,
    state: Option<ContainerState>,
}

/// Metadata, reduced to the fields used for planning.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "WireMeta")]
struct SlimMeta {
    kept: ObjectMeta,
    writers: Vec<Writer>,
}

/// Wire form of `SlimMeta`. managedFields are half of a pod's JSON; only the owners of annotations are kept.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    managed_fields: Vec<Writer>,
}

impl From<WireMeta> for SlimMeta {
    fn from(wire: WireMeta) -> Self {
        let kept = ObjectMeta {
            name: wire.name,
            namespace: wire.namespace,
            uid: wire.uid,
            resource_version: wire.resource_version,
            creation_timestamp: wire.creation_timestamp,
            deletion_timestamp: wire.deletion_timestamp,
            labels: wire.labels,
            annotations: wire.annotations,
            owner_references: wire.owner_references,
            ..ObjectMeta::default()
        };
        Self { kept, writers: wire.managed_fields }
    }
}

/// A field manager, the annotations it owns, and whether it owns fields of the spec.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Writer {
    manager: Option<String>,
    #[serde(default, rename = "fieldsV1")]
    fields: WrittenFields,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenFields {
    #[serde(rename = "f:metadata")]
    metadata: WrittenMeta,
    /// Whoever has created the object wrote its spec.
    #[serde(rename = "f:spec")]
    spec: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenMeta {
    #[serde(rename = "f:annotations")]
    #[expect(clippy::zero_sized_map_values, reason = "on the wire it is a map, whose values say nothing")]
    annotations: HashMap<String, IgnoredAny>,
}

/// A Kubernetes node, reduced to the fields used for planning.
#[derive(Clone, Debug, Deserialize)]
pub struct SlimNode {
    metadata: SlimMeta,
    #[serde(default)]
    spec: SlimNodeSpec,
    #[serde(default)]
    status: SlimNodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct SlimNodeSpec {
    #[serde(default)]
    unschedulable: bool,
    #[serde(default)]
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct SlimNodeStatus {
    #[serde(default)]
    conditions: Vec<NodeCondition>,
}

/// The same URLs as for the full types.
fn core_url_path(plural: &str, namespace: Option<&str>) -> String {
    namespace
        .map_or_else(|| format!("/api/v1/{plural}"), |namespace| format!("/api/v1/namespaces/{namespace}/{plural}"))
}

impl Resource for SlimPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn url_path((): &(), namespace: Option<&str>) -> String {
        core_url_path("pods", namespace)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata.kept
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata.kept
    }
}

impl Resource for SlimNode {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Node".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "nodes".into()
    }

    fn url_path((): &(), namespace: Option<&str>) -> String {
        core_url_path("nodes", namespace)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata.kept
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata.kept
    }
}

/// Consumes the events of a watch.
pub trait Store<K> {
    /// Processes one event of the watch of a scope. `on_change` is called for each object whose planning-relevant
    /// fields changed.
    fn take(&self, scope: Option<&str>, event: Event<K>, on_change: &dyn Fn(&K));
}

/// The words of all API groups, by which workers and their properties are recognised.
pub type Vocabularies = &'static [&'static Vocabulary];

/// All worker pods. Clones share them.
#[derive(Clone)]
pub struct Workers(pub(crate) Arc<Kept<SlimPod, Worker>>);

/// All Kubernetes nodes. Clones share them.
#[derive(Clone)]
pub struct Nodes(pub(crate) Arc<Kept<SlimNode, KubeNode>>);

impl Workers {
    /// An empty store.
    pub fn new(vocabularies: Vocabularies) -> Self {
        Self(Arc::new(Kept::new(vocabularies)))
    }

    /// The pods that an object owns, sorted by name.
    pub fn of(&self, owner: &str) -> Vec<Arc<Worker>> {
        lock(&self.0.inner).groups.get(owner).map(|group| group.values().cloned().collect()).unwrap_or_default()
    }

    /// The pods without an owner that have the labels of this set.
    pub fn orphans(&self, namespace: &str, vocabulary: &Vocabulary, set: &str) -> Vec<Arc<Worker>> {
        self.of(&convert::orphans_of(namespace, vocabulary, set))
    }

    /// The pods of a Slurm cluster that belong to none of these sets, by UID and name: their set is gone, and they still run or end.
    pub fn left<'a>(
        &self,
        namespace: &str,
        vocabulary: &Vocabulary,
        cluster: &str,
        sets: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Vec<Arc<Worker>> {
        let groups_of = |(uid, set): (&str, &str)| [uid.to_owned(), convert::orphans_of(namespace, vocabulary, set)];
        let known: HashSet<String> = sets.into_iter().flat_map(groups_of).collect();
        let kept = lock(&self.0.inner);
        let groups = kept.groups.iter().filter(|(group, _)| !known.contains(*group));
        let pods = groups.flat_map(|(_, members)| members).filter(|((place, _), _)| place == namespace);
        pods.map(|(_, worker)| worker).filter(|worker| worker.cluster.as_deref() == Some(cluster)).cloned().collect()
    }

    /// Whether this pod exists.
    pub fn has(&self, namespace: &str, name: &str) -> bool {
        lock(&self.0.inner).places.contains_key(&(namespace.to_owned(), name.to_owned()))
    }

    /// Names and UIDs of pods of an owner that left the watch although nobody deleted them.
    pub fn lost(&self, owner: &str) -> Vec<(String, String)> {
        let kept = lock(&self.0.inner);
        let of_owner = kept.lost.get(owner).into_iter().flatten();
        of_owner.map(|((_, name), uid)| (name.clone(), uid.clone())).collect()
    }

    /// Forgets what [`Self::lost`] returned.
    pub fn forget_lost(&self, owner: &str) {
        lock(&self.0.inner).lost.remove(owner);
    }

    /// The newest resourceVersion processed, of any pod in this namespace.
    pub fn newest(&self, namespace: &str) -> u64 {
        let kept = lock(&self.0.inner);
        let of = |scope: Option<String>| kept.newest.get(&scope).copied();
        of(Some(namespace.to_owned())).or_else(|| of(None)).unwrap_or_default()
    }

    /// Waits until the initial list is complete.
    pub async fn ready(&self) {
        self.0.ready().await;
    }
}

impl Nodes {
    /// An empty store.
    pub fn new(vocabularies: Vocabularies) -> Self {
        Self(Arc::new(Kept::new(vocabularies)))
    }

    /// All nodes by name.
    pub fn all(&self) -> BTreeMap<String, Arc<KubeNode>> {
        let kept = lock(&self.0.inner);
        let all = kept.groups.get("");
        all.map(|all| all.iter().map(|((_, name), node)| (name.clone(), Arc::clone(node))).collect())
            .unwrap_or_default()
    }

    /// Waits until the initial list is complete.
    pub async fn ready(&self) {
        self.0.ready().await;
    }
}

impl Store<SlimPod> for Workers {
    fn take(&self, scope: Option<&str>, event: Event<SlimPod>, on_change: &dyn Fn(&SlimPod)) {
        self.0.take(scope, event, on_change);
    }
}

impl Store<SlimNode> for Nodes {
    fn take(&self, scope: Option<&str>, event: Event<SlimNode>, on_change: &dyn Fn(&SlimNode)) {
        self.0.take(scope, event, on_change);
    }
}

type Key = (String, String);

/// Reduced objects by group and name.
pub struct Kept<K, V> {
    vocabularies: Vocabularies,
    inner: Mutex<Inner<V>>,
    /// Whether all scopes have been listed once.
    complete: watch::Sender<bool>,
    kind: std::marker::PhantomData<fn() -> K>,
}

struct Inner<V> {
    groups: HashMap<String, BTreeMap<Key, Arc<V>>>,
    places: HashMap<Key, String>,
    /// UIDs of objects that left the watch although nobody deleted them, by group and name.
    lost: HashMap<String, BTreeMap<Key, String>>,
    /// Names seen by the list in progress, by scope.
    listing: HashMap<Option<String>, HashSet<Key>>,
    /// Scopes whose initial list is not complete.
    incomplete: HashSet<Option<String>>,
    /// The newest resourceVersion processed, by scope.
    newest: HashMap<Option<String>, u64>,
}

impl<K, V> Kept<K, V> {
    fn new(vocabularies: Vocabularies) -> Self {
        Self {
            vocabularies,
            inner: Mutex::new(Inner {
                groups: HashMap::new(),
                places: HashMap::new(),
                lost: HashMap::new(),
                listing: HashMap::new(),
                incomplete: HashSet::new(),
                newest: HashMap::new(),
            }),
            complete: watch::Sender::new(false),
            kind: std::marker::PhantomData,
        }
    }
}

/// How an object is reduced and grouped.
pub(crate) trait Reduce {
    type Kept: PartialEq;
    /// The key to index by, mostly the UID of the owner; `None` if the object is not kept.
    fn group(&self, vocabularies: Vocabularies) -> Option<String>;
    fn reduce(&self, vocabularies: Vocabularies) -> Self::Kept;
    /// The UID of an object that left the watch, unless it was deleted. A pod that is deleted is terminating first.
    fn lost(&self) -> Option<String> {
        None
    }
    /// Whether the change matters for planning.
    fn differs(old: &Self::Kept, new: &mut Self::Kept) -> bool;
}

impl<K, V> Kept<K, V> {
    /// Adds a scope that must be listed before the store is ready.
    pub(crate) fn expect(&self, scope: Option<&str>) {
        lock(&self.inner).incomplete.insert(scope.map(str::to_owned));
    }

    async fn ready(&self) {
        let _ = self.complete.subscribe().wait_for(|complete| *complete).await;
    }
}

impl<V> Inner<V> {
    fn remove(&mut self, key: &Key) {
        if let Some(group) = self.places.remove(key)
            && let Some(members) = self.groups.get_mut(&group)
        {
            members.remove(key);
            if members.is_empty() {
                self.groups.remove(&group);
            }
        }
    }
}

fn key(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

impl<K: Reduce<Kept = V> + ResourceExt, V> Store<K> for Kept<K, V> {
    fn take(&self, scope: Option<&str>, event: Event<K>, on_change: &dyn Fn(&K)) {
        let mut inner = lock(&self.inner);
        let owned = scope.map(str::to_owned);
        if let Event::Apply(object) | Event::Delete(object) = &event
            && let Ok(version) = object.meta().resource_version.as_deref().unwrap_or_default().parse::<u64>()
        {
            let newest = inner.newest.entry(owned.clone()).or_default();
            *newest = version.max(*newest);
        }
        match event {
            Event::Init => drop(inner.listing.insert(owned, HashSet::new())),
            Event::InitApply(object) | Event::Apply(object) => {
                let key = key(&object);
                if let Some(listing) = inner.listing.get_mut(&owned) {
                    listing.insert(key.clone());
                }
                let Some(group) = object.group(self.vocabularies) else {
                    inner.remove(&key);
                    drop(inner);
                    on_change(&object);
                    return;
                };
                let mut new = object.reduce(self.vocabularies);
                let old = inner.groups.get(&group).and_then(|members| members.get(&key));
                let changed = old.is_none_or(|old| K::differs(old, &mut new));
                if inner.places.get(&key).is_some_and(|place| *place != group) {
                    inner.remove(&key);
                }
                inner.places.insert(key.clone(), group.clone());
                inner.groups.entry(group).or_default().insert(key, Arc::new(new));
                drop(inner);
                if changed {
                    on_change(&object);
                }
            }
            Event::Delete(object) => {
                let key = key(&object);
                if let (Some(group), Some(uid)) = (inner.places.get(&key).cloned(), object.lost()) {
                    inner.lost.entry(group).or_default().insert(key.clone(), uid);
                }
                inner.remove(&key);
                drop(inner);
                on_change(&object);
            }
            Event::InitDone => {
                // Objects that were not in the list are deleted.
                let listed = inner.listing.remove(&owned).unwrap_or_default();
                let here = |key: &Key| scope.is_none_or(|scope| key.0 == scope);
                let gone: Vec<_> =
                    inner.places.keys().filter(|key| here(key) && !listed.contains(*key)).cloned().collect();
                for key in gone {
                    inner.remove(&key);
                }
                inner.incomplete.remove(&owned);
                if inner.incomplete.is_empty() {
                    self.complete.send_replace(true);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
