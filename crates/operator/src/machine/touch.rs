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

/// Touches come in swarms. This long after the first of a swarm it is acted upon, whatever else comes: waiting for silence
/// could take forever.
const SWARM: Duration = Duration::from_millis(50);

/// What was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Touched {
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
pub struct Touch {
    /// Of what.
    pub what: Touched,
    /// Where; empty for what is in no namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who owns it.
    pub owners: Vec<Owner>,
}

impl Touch {
    /// Of an object with this metadata.
    pub fn of(what: Touched, metadata: &ObjectMeta) -> Self {
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
    pub fn is_near(&self, object: &impl kube::ResourceExt) -> bool {
        object.meta().namespace.as_deref() == Some(&*self.namespace)
    }

    /// Whether an object owns it.
    pub fn is_owned_by(&self, object: &impl kube::ResourceExt) -> bool {
        let uid = object.meta().uid.as_deref();
        uid.is_some() && self.owners.iter().any(|owner| Some(&*owner.uid) == uid)
    }

    /// Whether this is the thing of that kind and name next to an object.
    pub fn is(&self, what: Touched, object: &impl kube::ResourceExt, name: &str) -> bool {
        self.what == what && self.name == name && self.is_near(object)
    }
}

/// The objects that each swarm of touches concerns.
pub(super) fn concerned<K: Kind>(
    touches: broadcast::Receiver<Arc<Touch>>,
    objects: Store<DeserializeGuard<K>>,
) -> impl Stream<Item = ObjectRef<DeserializeGuard<K>>> + Send {
    let swarms = stream::unfold((touches, objects), |(mut touches, objects)| async move {
        let mut concerned = HashSet::new();
        let mut take = |touch: Result<Arc<Touch>, RecvError>| match touch {
            Ok(touch) => concerned
                .extend(of_touch(&objects, |object| touch.what == Touched::Anything || object.is_concerned(&touch))),
            // So many that some were missed: any object may be concerned.
            Err(_) => concerned.extend(of_touch(&objects, |_| true)),
        };
        let first = touches.recv().await;
        if matches!(first, Err(RecvError::Closed)) {
            return None;
        }
        take(first);
        tokio::time::sleep(SWARM).await;
        loop {
            match touches.try_recv() {
                Ok(touch) => take(Ok(touch)),
                Err(broadcast::error::TryRecvError::Lagged(missed)) => take(Err(RecvError::Lagged(missed))),
                Err(_) => break,
            }
        }
        Some((stream::iter(concerned), (touches, objects)))
    });
    futures::StreamExt::flatten(swarms)
}

fn of_touch<K: Kind>(
    objects: &Store<DeserializeGuard<K>>,
    is_concerned: impl Fn(&K) -> bool,
) -> Vec<ObjectRef<DeserializeGuard<K>>> {
    let all = objects.state();
    let concerned = all.iter().filter(|object| matches!(&object.0, Ok(object) if is_concerned(object)));
    concerned.map(|object| ObjectRef::from_obj(&**object)).collect()
}
