//! Triggers: which objects to reconcile after a change in the cluster.
//!
//! One watch per resource serves all kinds. A trigger says what changed; each kind decides which of its objects are
//! affected.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{Stream, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    core::DeserializeGuard,
    runtime::reflector::{ObjectRef, Store},
};
use tokio::sync::broadcast::{self, error::RecvError};

use super::Kind;

/// Triggers are batched. A batch is processed this long after its first trigger, even if more arrive: waiting for a
/// pause could take forever.
const BATCH_WINDOW: Duration = Duration::from_millis(50);

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TriggerKind {
    Secret,
    ConfigMap,
    Service,
    StatefulSet,
    Deployment,
    DisruptionBudget,
    /// A pod of a Slurm daemon.
    Pod,
    /// A claim of a worker.
    Claim,
    /// A Kubernetes node.
    Node,
    Controller,
    NodeSet,
    RestApi,
    Accounting,
    /// The nodes or jobs of the Slurm cluster of this Controller.
    Slurm,
    /// Whether that cluster is reachable, its version, or which slurmctld responds.
    SlurmHealth,
    /// Unknown: anything may have changed.
    Anything,
}

/// An owner of a changed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub kind: String,
    pub name: String,
    pub uid: String,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    pub what: TriggerKind,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    pub owners: Vec<Owner>,
}

impl Trigger {
    /// A change of the object with this metadata.
    pub fn of(what: TriggerKind, metadata: &ObjectMeta) -> Self {
        let owners = metadata.owner_references.iter().flatten();
        Self {
            what,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            owners: owners
                .map(|owner| Owner { kind: owner.kind.clone(), name: owner.name.clone(), uid: owner.uid.clone() })
                .collect(),
        }
    }

    /// Whether the change is in the namespace of an object.
    pub fn same_namespace(&self, object: &impl kube::ResourceExt) -> bool {
        object.meta().namespace.as_deref() == Some(&*self.namespace)
    }

    /// Whether an object owns what changed.
    pub fn is_owned_by(&self, object: &impl kube::ResourceExt) -> bool {
        let uid = object.meta().uid.as_deref();
        uid.is_some() && self.owners.iter().any(|owner| Some(&*owner.uid) == uid)
    }

    /// Whether an object of this kind and name, in the namespace of `object`, has changed.
    pub fn is(&self, what: TriggerKind, object: &impl kube::ResourceExt, name: &str) -> bool {
        self.what == what && self.name == name && self.same_namespace(object)
    }
}

/// The objects affected by each batch of triggers.
pub(super) fn affected<K: Kind>(
    triggers: broadcast::Receiver<Arc<Trigger>>,
    objects: Store<DeserializeGuard<K>>,
) -> impl Stream<Item = ObjectRef<DeserializeGuard<K>>> + Send {
    let batches = stream::unfold((triggers, objects), |(mut triggers, objects)| async move {
        let mut affected = HashSet::new();
        let mut take = |trigger: Result<Arc<Trigger>, RecvError>| match trigger {
            Ok(trigger) => affected.extend(of_trigger(&objects, |object| {
                trigger.what == TriggerKind::Anything || object.is_affected(&trigger)
            })),
            // Triggers were missed: any object may be affected.
            Err(_) => affected.extend(of_trigger(&objects, |_| true)),
        };
        let first = triggers.recv().await;
        if matches!(first, Err(RecvError::Closed)) {
            return None;
        }
        take(first);
        tokio::time::sleep(BATCH_WINDOW).await;
        loop {
            match triggers.try_recv() {
                Ok(trigger) => take(Ok(trigger)),
                Err(broadcast::error::TryRecvError::Lagged(missed)) => take(Err(RecvError::Lagged(missed))),
                Err(_) => break,
            }
        }
        Some((stream::iter(affected), (triggers, objects)))
    });
    futures::StreamExt::flatten(batches)
}

fn of_trigger<K: Kind>(
    objects: &Store<DeserializeGuard<K>>,
    is_affected: impl Fn(&K) -> bool,
) -> Vec<ObjectRef<DeserializeGuard<K>>> {
    let all = objects.state();
    let affected = all.iter().filter(|object| matches!(&object.0, Ok(object) if is_affected(object)));
    affected.map(|object| ObjectRef::from_obj(&**object)).collect()
}
