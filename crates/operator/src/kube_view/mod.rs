//! What the operator reads from Kubernetes: watches, the stores that they fill, and reads on demand.

pub mod read;
pub mod stores;
pub mod watches;
