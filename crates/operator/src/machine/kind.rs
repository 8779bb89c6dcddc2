//! What a kind must implement.

use std::{fmt::Debug, future::Future};

use jiff::Timestamp;
use kube::{Resource, core::NamespaceResourceScope};
use serde::{Serialize, de::DeserializeOwned};

use super::{Conditions, Failure, Plan, Trigger};
use crate::sources::Sources;

/// An RBAC permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// Plural names.
    pub resources: &'static [&'static str],
    pub verbs: &'static [&'static str],
}

/// A custom resource that the operator reconciles.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// Everything that a plan depends on. A missing object is part of it.
    type Facts: Debug + Send + Sync;

    type Status: Conditions + Clone + Debug + Default + PartialEq + Serialize + Send + Sync;

    /// The name of the kind in metrics and field managers: short, lower case.
    const NAME: &'static str;

    /// The permissions it needs, beyond reading its objects and writing their status.
    const NEEDS: &'static [Need];

    /// The finalizers of this kind. An object that is being deleted is still reconciled while it has one.
    const FINALIZERS: &'static [&'static str] = &[];

    /// The status as last read from the API server.
    fn status(&self) -> Option<&Self::Status>;

    /// Observes without deciding. Fails only if the API server does not respond.
    fn observe(&self, sources: &Sources) -> impl Future<Output = Result<Self::Facts, Failure>> + Send;

    /// Whether a change elsewhere may change the plan for this object.
    fn is_affected(&self, trigger: &Trigger) -> bool;

    /// Plans. Pure: the same facts give the same plan.
    fn plan(&self, facts: &Self::Facts, now: Timestamp) -> Plan<Self::Status>;
}
