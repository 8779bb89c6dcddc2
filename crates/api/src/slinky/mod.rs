//! The custom resources of `slinky.slurm.net/v1beta1`.

pub mod accounting;
pub mod controller;
pub mod loginset;
pub mod names;
pub mod nodeset;
pub mod restapi;
pub mod token;
mod vocabulary;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::common::schema;

pub use accounting::{Accounting, AccountingSpec, AccountingStatus};
pub use controller::{Controller, ControllerSpec, ControllerStatus};
pub use loginset::{LoginSet, LoginSetSpec, LoginSetStatus};
pub use nodeset::{NodeSet, NodeSetSpec, NodeSetStatus};
pub use restapi::{RestApi, RestApiSpec, RestApiStatus};
pub use token::{Token, TokenSpec, TokenStatus};
pub use vocabulary::VOCABULARY;

/// Returns the CRDs of this group.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    let derived = [Accounting::crd(), Controller::crd(), LoginSet::crd(), NodeSet::crd(), RestApi::crd(), Token::crd()];
    let crds = derived.into_iter().map(schema::without_null).map(schema::with_flowing_text);
    crds.map(|crd| schema::with_null_at(crd, &["spec", "metrics", "serviceMonitor"])).collect()
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
