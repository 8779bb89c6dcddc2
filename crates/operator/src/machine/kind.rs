//! What the machine must know of a kind.

use std::{fmt::Debug, future::Future};

use jiff::Timestamp;
use kube::{Resource, core::NamespaceResourceScope};
use serde::{Serialize, de::DeserializeOwned};

use super::{Conditions, Failure, Plan, Trigger};
use crate::sources::Sources;

/// A permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The API group; empty for the core one.
    pub group: &'static str,
    /// Plural names.
    pub resources: &'static [&'static str],
    /// What to do with them.
    pub verbs: &'static [&'static str],
}

/// A custom resource that we reconcile.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// All facts that a decision needs. What is missing is a fact, too.
    type Facts: Debug + Send + Sync;

    /// What the object's status holds.
    type Status: Conditions + Clone + Debug + Default + PartialEq + Serialize + Send + Sync;

    /// The kind in metrics and field managers: short, lower case.
    const NAME: &'static str;

    /// What the operator must be allowed to do for it, beyond reading the objects and writing their status.
    const NEEDS: &'static [Need];

    /// Finalizers of ours. While an object that is being deleted has one, it is still reconciled.
    const FINALIZERS: &'static [&'static str] = &[];

    /// The status as the API server last told it.
    fn status(&self) -> Option<&Self::Status>;

    /// Gathers facts and decides nothing. Fails only when the API server does not answer.
    fn observe(&self, sources: &Sources) -> impl Future<Output = Result<Self::Facts, Failure>> + Send;

    /// Whether a change elsewhere may change the plan for this object.
    fn is_affected(&self, trigger: &Trigger) -> bool;

    /// Decides. Pure: the same facts give the same plan.
    fn plan(&self, facts: &Self::Facts, now: Timestamp) -> Plan<Self::Status>;
}
