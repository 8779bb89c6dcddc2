//! The custom resources: types, defaults and validation rules. No client, no clock.

#![allow(clippy::duplicated_attributes, reason = "printer columns may have the same type")]

pub mod common;
pub mod slinky;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// Returns the CRDs of all groups.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    slinky::crds()
}
