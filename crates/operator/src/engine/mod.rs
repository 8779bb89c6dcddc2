//! What all API front ends share: decisions over plain models, never over a custom resource. Pure.

pub mod podset;
