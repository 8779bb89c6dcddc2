//! What every kind shares: a reconcile gathers facts, decides on a plan, and carries it out.
//!
//! Nothing in here knows a kind. [`Kind`] is what a kind must say, [`Plan`] is what it decides, [`Effects`] is the one way out
//! into the world, [`run`] drives it all.

mod conditions;
mod driver;
mod effects;
mod execute;
mod kind;
#[cfg(test)]
pub mod lint;
mod memory;
mod plan;
mod retry;
mod touch;

pub use conditions::{Conditions, Judgement, Verdict, settle};
pub use driver::{Machine, run};
pub use effects::{Effects, Failure, FailureSource, Live, call};
pub use execute::{Outcome, execute};
pub use kind::{Kind, Need};
pub use memory::{Brood, Lag, Memory, Shown};
pub use plan::{
    Amend, Desired, Doomed, Errand, Measures, Mint, Next, Note, Plan, PodMarks, Print, Recipe, SlurmDeed, Stamp, Step,
};
pub use retry::Backoff;
pub use touch::{Owner, Touch, Touched};
