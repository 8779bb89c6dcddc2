//! The RBAC rules of the operator, derived from the needs of its kinds.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Serialize;

use crate::{
    frontends::{self, KindVisitor},
    machine::{Kind, LISTED, Need},
};

/// Needs of the process itself, in the namespaces that it watches. Its Lease is in its own namespace; the chart has a Role for
/// that.
const OWN: &[Need] = &[Need { group: "events.k8s.io", resources: &["events"], verbs: &["create", "patch"] }];

/// Resources that are not in a namespace.
const CLUSTER_WIDE: &[&str] = &["nodes", "validatingadmissionpolicies", "validatingadmissionpolicybindings"];

/// All rules.
#[derive(Debug, Serialize)]
pub struct Rules {
    /// For objects that are not in a namespace.
    pub cluster: Vec<PolicyRule>,
    /// For the namespaces that the operator watches, or for all.
    pub namespaced: Vec<PolicyRule>,
}

/// All rules, in a fixed order.
pub fn rules() -> Rules {
    let mut verbs = Verbs(BTreeMap::new());
    for need in OWN {
        verbs.add(need);
    }
    frontends::visit(&mut verbs);
    let (cluster, namespaced) =
        verbs.0.into_iter().partition(|((_, resource), _)| CLUSTER_WIDE.contains(&resource.as_str()));
    Rules { cluster: merged(cluster), namespaced: merged(namespaced) }
}

type Granted = BTreeMap<(String, String), BTreeSet<String>>;

/// The verbs for each group and resource.
struct Verbs(Granted);

impl Verbs {
    fn add(&mut self, need: &Need) {
        for resource in need.resources {
            self.grant(need.group, resource, need.verbs);
        }
    }

    fn grant(&mut self, group: &str, resource: &str, verbs: &[&str]) {
        let known = self.0.entry((group.to_owned(), resource.to_owned())).or_default();
        known.extend(verbs.iter().map(ToString::to_string));
    }
}

impl KindVisitor for Verbs {
    /// To read the objects of a kind, write their status, set owner references to them, and what the kind itself needs.
    fn kind<K: Kind>(&mut self) {
        let (group, plural) = (K::group(&()), K::plural(&()));
        self.grant(&group, &plural, LISTED);
        self.grant(&group, &format!("{plural}/status"), &["patch"]);
        self.grant(&group, &format!("{plural}/finalizers"), &["update"]);
        for need in K::NEEDS {
            self.add(need);
        }
    }
}

/// One rule for all resources of a group with the same verbs.
fn merged(granted: Granted) -> Vec<PolicyRule> {
    let mut rules = BTreeMap::<(String, BTreeSet<String>), Vec<String>>::new();
    for ((group, resource), verbs) in granted {
        rules.entry((group, verbs)).or_default().push(resource);
    }
    let rule = |((group, verbs), resources): ((String, BTreeSet<String>), Vec<String>)| PolicyRule {
        api_groups: Some(vec![group]),
        resources: Some(resources),
        verbs: verbs.into_iter().collect(),
        ..PolicyRule::default()
    };
    rules.into_iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(rule: &PolicyRule) -> Vec<(String, String, String)> {
        let (groups, resources) = (rule.api_groups.iter().flatten(), rule.resources.iter().flatten());
        let pairs = groups.flat_map(|group| resources.clone().map(move |resource| (group, resource)));
        pairs
            .flat_map(|(group, resource)| {
                rule.verbs.iter().map(move |verb| (group.clone(), resource.clone(), verb.clone()))
            })
            .collect()
    }

    #[test]
    fn each_permission_is_granted_once_and_without_wildcards() {
        let rules = rules();
        let granted: Vec<_> = rules.cluster.iter().chain(&rules.namespaced).flat_map(all).collect();
        let mut once = granted.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), granted.len());
        assert!(granted.iter().all(|(group, resource, verb)| ![group, resource, verb].contains(&&"*".to_owned())));
        assert!(granted.iter().all(|(_, resource, _)| resource != "leases"), "only in the namespace of the operator");
    }

    #[test]
    fn only_what_has_no_namespace_is_granted_cluster_wide() {
        let granted: Vec<_> = rules().cluster.iter().flat_map(all).collect();
        assert!(granted.iter().all(|(_, _, verb)| ["get", "list", "watch"].contains(&verb.as_str())), "{granted:?}");
        let resources: BTreeSet<_> = granted.iter().map(|(_, resource, _)| resource.as_str()).collect();
        assert_eq!(resources, CLUSTER_WIDE.iter().copied().collect());
    }

    #[test]
    fn every_kind_may_read_itself_and_write_its_status() {
        let granted: Vec<_> = rules().namespaced.iter().flat_map(all).collect();
        let allows =
            |resource: &str, verb: &str| granted.iter().any(|(_, found, with)| found == resource && with == verb);
        assert!(allows("tokens", "watch") && allows("tokens/status", "patch") && allows("secrets", "delete"));
    }
}
