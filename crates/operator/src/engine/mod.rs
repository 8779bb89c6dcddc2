//! Pure planning code shared by all API front ends: it works on plain models, never on custom resources.

pub mod config;
pub mod daemons;
pub mod json;
pub mod overlay;
pub mod podset;
