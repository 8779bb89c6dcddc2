//! Triggers: which objects to reconcile after a change in the cluster.
//!
//! One watch per resource serves all kinds. A trigger says what changed; each kind decides which of its objects are
//! affected.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{CustomResourceExt, ResourceExt};
use tokio::sync::broadcast;

/// Capacity of the trigger channel; a receiver that lags further reconciles everything.
const CAPACITY: usize = 4096;

/// The channel that announces changes to all kinds.
pub type Triggers = broadcast::Sender<Arc<Trigger>>;

/// A new channel.
pub fn channel() -> Triggers {
    broadcast::channel(CAPACITY).0
}

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
    /// A custom resource, by the name of its definition, for example `nodesets.slinky.slurm.net`.
    Custom(&'static str),
    /// The nodes or jobs of the Slurm cluster that a custom resource of this API group describes.
    Slurm(&'static str),
    /// Whether that cluster is reachable, its version, or which slurmctld responds.
    SlurmHealth(&'static str),
    /// Unknown: anything may have changed.
    Anything,
}

impl TriggerKind {
    /// A custom resource of this kind.
    pub fn of<K: CustomResourceExt>() -> Self {
        Self::Custom(K::crd_name())
    }
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
    pub fn same_namespace(&self, object: &impl ResourceExt) -> bool {
        object.meta().namespace.as_deref() == Some(&*self.namespace)
    }

    /// Whether an object owns what changed.
    pub fn is_owned_by(&self, object: &impl ResourceExt) -> bool {
        let uid = object.meta().uid.as_deref();
        uid.is_some() && self.owners.iter().any(|owner| Some(&*owner.uid) == uid)
    }

    /// Whether an object of this kind and name, in the namespace of `object`, has changed.
    pub fn is(&self, what: TriggerKind, object: &impl ResourceExt, name: &str) -> bool {
        self.what == what && self.name == name && self.same_namespace(object)
    }
}
