//! The kinds of `slinky.slurm.net`, one directory each.

pub mod controller;
pub mod endpoint;
pub mod loginset;
pub mod nodeset;
pub mod restapi;
pub mod token;

use engine::plan::ClusterKey;
use slurm_operator_api::slinky::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token, names};

use super::KindVisitor;

pub(super) fn visit(visitor: &mut impl KindVisitor) {
    visitor.kind::<Controller>();
    visitor.kind::<RestApi>();
    visitor.kind::<NodeSet>();
    visitor.kind::<LoginSet>();
    visitor.kind::<Token>();
    visitor.referenced::<Controller>();
    visitor.referenced::<NodeSet>();
    visitor.referenced::<RestApi>();
    visitor.referenced::<Accounting>();
}

/// The Slurm cluster of a Controller.
pub fn cluster_key(namespace: &str, controller: &str) -> ClusterKey {
    ClusterKey { group: names::GROUP, namespace: namespace.to_owned(), name: controller.to_owned() }
}
