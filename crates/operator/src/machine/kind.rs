//! What a kind must implement.

use std::{fmt::Debug, future::Future};

use engine::plan::Plan;
use jiff::Timestamp;
use kube::{
    Api, Client, Resource,
    core::{DeserializeGuard, NamespaceResourceScope},
};
use serde::{Serialize, de::DeserializeOwned};
use slurm_operator_api::common::validation::FieldError;

use super::{Conditions, Findings, Reference, Referenced};
use crate::{failure::Failure, sources::Sources, trigger::Trigger};

/// An RBAC permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// Plural names.
    pub resources: &'static [&'static str],
    pub verbs: &'static [&'static str],
}

/// The verbs for children that are applied and deleted.
pub const CHILD: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];

/// The verbs for objects that are only read.
pub const WATCHED: &[&str] = &["get", "list", "watch"];

/// The verbs for objects of which all are read.
pub const LISTED: &[&str] = &["list", "watch"];

/// A resource that the operator reconciles.
pub trait Kind: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static {
    /// Everything that a plan depends on. A missing object is part of it.
    type Facts: Debug + Send + Sync;

    /// `()` if the operator does not write it.
    type Status: Conditions + Clone + Debug + Default + PartialEq + Serialize + Send + Sync;

    /// The name of the kind in metrics and field managers: short, lower case, and unique among all API groups.
    const NAME: &'static str;

    /// The permissions it needs, beyond reading its objects and writing their status.
    const NEEDS: &'static [Need];

    /// The finalizers of this kind. An object that is being deleted is still reconciled while it has one.
    const FINALIZERS: &'static [&'static str] = &[];

    /// Whether plans depend on the stores of worker pods and Kubernetes nodes, which must be filled first.
    const USES_STORES: bool = false;

    /// The objects in a namespace, or in the whole cluster.
    fn objects(client: Client, namespace: Option<&str>) -> Api<DeserializeGuard<Self>>;

    /// The status as last read from the API server.
    fn status(&self) -> Option<&Self::Status>;

    /// What is wrong with the spec, as far as the object alone shows.
    fn validate(&self) -> Vec<FieldError>;

    /// What admission needs to know for `admission`.
    fn references(&self) -> Vec<Reference> {
        Vec::new()
    }

    /// What admission says beyond `validate`: mistakes that the operator itself can live with.
    fn admission(&self, _referenced: &Referenced) -> Findings {
        Findings::default()
    }

    /// Observes without deciding. Fails only if the API server does not respond.
    fn observe(&self, sources: &Sources, now: Timestamp) -> impl Future<Output = Result<Self::Facts, Failure>> + Send;

    /// Whether a change elsewhere may change the plan for this object.
    fn is_affected(&self, trigger: &Trigger) -> bool;

    /// Plans. Pure: the same facts give the same plan.
    fn plan(&self, facts: &Self::Facts, now: Timestamp) -> Plan<Self::Status>;
}

/// The objects of a namespaced kind.
pub fn namespaced<K>(client: Client, namespace: Option<&str>) -> Api<DeserializeGuard<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    }
}
