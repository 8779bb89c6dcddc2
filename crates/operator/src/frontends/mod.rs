//! API groups, one directory each: they translate custom resources into the engine's models, and its decisions into status.

pub mod slinky;
