//! The custom resources: types, defaults and validation rules. No client, no clock.

#![allow(clippy::duplicated_attributes, reason = "printer columns may have the same type")]

pub mod common;
pub mod nebius;
pub mod slinky;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// Returns the CRDs of the group whose kinds the operator runs. Those of `nebius` are not among them: nothing acts on them yet.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    slinky::crds()
}
