//! The custom resources of `slinky.slurm.net/v1beta1`: types, defaults and rules. No client, no clock.

#![allow(clippy::duplicated_attributes, reason = "two printer columns may well have one type")]

pub mod duration;
pub mod names;
mod schema;
pub mod shared;
pub mod token;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use token::{Token, TokenSpec, TokenStatus};

/// The definitions of all kinds of the group, as a cluster needs them.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    [Token::crd()].into_iter().map(schema::without_null).collect()
}
