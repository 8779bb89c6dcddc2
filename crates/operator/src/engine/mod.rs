//! What every API front end shares: decisions and objects over plain models, never over a custom resource. Pure.

pub mod config;
pub mod daemons;
pub mod overlay;
pub mod podset;
