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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[derive(Default)]
    struct Names {
        names: Vec<&'static str>,
        resources: Vec<String>,
    }

    impl KindVisitor for Names {
        fn kind<K: Kind>(&mut self) {
            self.names.push(K::NAME);
            self.resources.push(format!("{}.{}", K::plural(&()), K::group(&())));
        }
    }

    #[test]
    fn every_kind_has_a_name_of_its_own_and_a_definition() {
        let mut names = Names::default();
        visit(&mut names);
        assert_eq!(names.names.iter().collect::<HashSet<_>>().len(), names.names.len(), "{:?}", names.names);
        let crds: HashSet<String> =
            slurm_operator_api::crds().into_iter().filter_map(|crd| crd.metadata.name).collect();
        assert!(names.resources.iter().all(|name| crds.contains(name)), "{:?}", names.resources);
    }

    #[test]
    fn one_watch_finds_the_pods_of_all_groups() {
        let groups: HashSet<&str> = vocabularies().iter().map(|vocabulary| vocabulary.group).collect();
        let labels: HashSet<&str> = vocabularies().iter().map(|vocabulary| vocabulary.pod_label.0).collect();
        assert_eq!((groups.len(), labels.len()), (vocabularies().len(), 1));
    }
}
