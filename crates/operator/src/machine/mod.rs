//! What every kind shares: a reconcile gathers facts, decides on a plan, and carries it out.
//!
//! Nothing in here knows a kind. [`Kind`] is what a kind must say, [`Plan`] is what it decides, [`Effects`] is the one way out
//! into the world, [`run`] drives it all.

mod backoff;
mod conditions;
mod driver;
mod effects;
mod execute;
mod kind;
#[cfg(test)]
pub mod lint;
mod plan;
mod trigger;
mod write_cache;

pub use backoff::Backoff;
pub use conditions::{ConditionStatus, Conditions, NewCondition, merge_conditions};
pub use driver::{Machine, run};
pub use effects::{Effects, Failure, FailureSource, KubeEffects, call};
pub use execute::{Outcome, execute};
pub use kind::{Kind, Need};
pub use plan::{
    Desired, Event, Fingerprint, FromTemplate, GeneratedSecret, MetadataPatch, Next, ObjectVersion, Plan,
    PodConditionPatch, SecretContent, SlurmCall, SlurmWrite, Step, WorkerMetrics,
};
pub use trigger::{Owner, Trigger, TriggerKind};
pub use write_cache::{ChildrenOf, StoreEntry, Unconfirmed, WriteCache};
