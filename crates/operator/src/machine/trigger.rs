//! Something in the cluster changed: who wants to know?
//!
//! One watch per resource serves all kinds. It tells what was touched and keeps nothing of it; each kind says which of its
//! objects that concerns.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{Stream, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    core::DeserializeGuard,
    runtime::reflector::{ObjectRef, Store},
};
use tokio::sync::broadcast::{self, error::RecvError};

use super::Kind;

/// Triggers come in batches. This long after the first of a batch it is acted upon, whatever else comes: waiting for silence
/// could take forever.
const BATCH_WINDOW: Duration = Duration::from_millis(50);

/// What was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TriggerKind {
    /// A Secret.
    Secret,
    /// A `ConfigMap`.
    ConfigMap,
    /// A Service.
    Service,
    /// A `StatefulSet`.
    StatefulSet,
    /// A Deployment.
    Deployment,
    /// A `PodDisruptionBudget`.
    DisruptionBudget,
    /// A pod of a Slurm daemon.
    Pod,
    /// A claim of a worker.
    Claim,
    /// A Kubernetes node.
    Node,
    /// A Controller.
    Controller,
    /// A `NodeSet`.
    NodeSet,
    /// A `RestApi`.
    RestApi,
    /// An Accounting.
    Accounting,
    /// What the Slurm cluster of the Controller of that name says of its nodes and jobs.
    Slurm,
    /// Whether that cluster answers, and who does.
    SlurmHealth,
    /// Nobody knows what.
    Anything,
}

/// An owner of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Which one of that name.
    pub uid: String,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Of what.
    pub what: TriggerKind,
    /// Where; empty for what is in no namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who owns it.
    pub owners: Vec<Owner>,
}

impl Trigger {
    /// Of an object with this metadata.
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

    /// Whether this is in the namespace of an object.
    pub fn same_namespace(&self, object: &impl kube::ResourceExt) -> bool {
        object.meta().namespace.as_deref() == Some(&*self.namespace)
    }

    /// Whether an object owns it.
    pub fn is_owned_by(&self, object: &impl kube::ResourceExt) -> bool {
        let uid = object.meta().uid.as_deref();
        uid.is_some() && self.owners.iter().any(|owner| Some(&*owner.uid) == uid)
    }

    /// Whether this is the thing of that kind and name next to an object.
    pub fn is(&self, what: TriggerKind, object: &impl kube::ResourceExt, name: &str) -> bool {
        self.what == what && self.name == name && self.same_namespace(object)
    }
}

/// The objects that each batch of triggers concerns.
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
            // So many that some were missed: any object may be concerned.
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
