//! The reconcile loop that all kinds share: observe, plan, execute.
//!
//! Nothing in this module depends on a kind. [`Kind`] is what a kind implements, [`Plan`] is what it returns,
//! [`Effects`] performs all writes, and [`run`] drives the loop.

mod backoff;
mod conditions;
mod driver;
mod effects;
mod execute;
mod kind;
mod lint;
mod plan;
mod trigger;
mod write_cache;

pub use backoff::Backoff;
pub use conditions::{ConditionStatus, Conditions, NewCondition, merge_conditions};
pub use driver::{Machine, run};
pub use effects::{Effects, Failure, FailureSource, KubeEffects, call};
pub use execute::{Outcome, execute};
pub use kind::{Kind, Need};
pub use lint::{Violation, lint};
pub use plan::{
    Desired, Event, Fingerprint, FromTemplate, GeneratedSecret, MetadataPatch, Next, ObjectVersion, Plan,
    PodConditionPatch, SecretContent, SlurmCall, SlurmWrite, Step, WorkerMetrics,
};
pub use trigger::{Owner, Trigger, TriggerKind};
pub use write_cache::{ChildrenOf, StoreEntry, Unconfirmed, WriteCache};
