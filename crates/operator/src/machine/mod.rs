//! The reconcile loop that all kinds share: observe, plan, execute.
//!
//! Nothing in this module depends on a kind. [`Kind`] is what a kind implements, [`engine::plan::Plan`] is what it
//! returns, [`Effects`] performs all writes, and [`run`] drives the loop.

mod admission;
mod affected;
mod backoff;
mod conditions;
mod driver;
mod effects;
mod execute;
mod kind;
mod read_keys;
mod register;
mod reread;
mod script;
mod slots;

pub use admission::{Findings, Reference, Referenced};
pub use backoff::Backoff;
pub use conditions::{Conditions, merge_conditions, seconds};
pub use driver::{Machine, run};
pub use effects::{Effects, KubeEffects};
pub use execute::{Outcome, execute};
pub use kind::{CHILD, Kind, LISTED, Need, WATCHED, namespaced};
