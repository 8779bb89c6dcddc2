//! API groups, one directory each: they translate custom resources into the engine's models, and its decisions into
//! status.
//!
//! This is the one list of kinds: the manager, RBAC rules, watches and `slurm-operator plan` are made from it.

pub mod slinky;

use kube::CustomResourceExt;
use slurm_operator_api::common::vocabulary::Vocabulary;

use crate::{
    kube_view::{stores::Vocabularies, watches::Watched},
    machine::Kind,
    slurm_view::Clusters,
};

/// Called for each kind.
pub trait KindVisitor {
    /// A kind that the operator reconciles.
    fn kind<K: Kind>(&mut self);

    /// A kind that others refer to: a change of its spec may affect them.
    fn referenced<K: Watched + CustomResourceExt>(&mut self) {}
}

/// Visits the kinds of all API groups, always in the same order.
pub fn visit(visitor: &mut impl KindVisitor) {
    slinky::visit(visitor);
}

/// The words of all API groups.
pub fn vocabularies() -> Vocabularies {
    static ALL: [&Vocabulary; 1] = [&slurm_operator_api::slinky::VOCABULARY];
    &ALL
}

/// The Slurm clusters of all API groups.
pub fn clusters() -> &'static [&'static dyn Clusters] {
    &[&slinky::endpoint::Controllers]
}
