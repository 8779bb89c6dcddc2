//! The RBAC rules of the operator, derived from the needs of its kinds.

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::{
    frontends::{self, KindVisitor},
    machine::{Kind, Need},
};

/// Needs of the process itself.
const OWN: &[Need] = &[
    Need { group: "events.k8s.io", resources: &["events"], verbs: &["create", "patch"] },
    Need { group: "coordination.k8s.io", resources: &["leases"], verbs: &["create", "get", "update"] },
];

/// All rules, in a fixed order.
pub fn rules() -> Vec<PolicyRule> {
    let mut rules = Rules(OWN.iter().map(rule).collect());
    frontends::visit(&mut rules);
    rules.0
}

struct Rules(Vec<PolicyRule>);

impl KindVisitor for Rules {
    fn kind<K: Kind>(&mut self) {
        self.0.extend(of_kind::<K>());
    }
}

/// Rules to read the objects of a kind, write their status, set owner references to them, and what the kind itself
/// needs.
fn of_kind<K: Kind>() -> Vec<PolicyRule> {
    let (group, plural) = (K::group(&()).into_owned(), K::plural(&()).into_owned());
    let own = |suffix: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.clone()]),
        resources: Some(vec![format!("{plural}{suffix}")]),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    };
    let own = [own("", &["get", "list", "watch"]), own("/status", &["patch"]), own("/finalizers", &["update"])];
    own.into_iter().chain(K::NEEDS.iter().map(rule)).collect()
}

fn rule(need: &Need) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![need.group.to_owned()]),
        resources: Some(need.resources.iter().map(ToString::to_string).collect()),
        verbs: need.verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_contain_no_wildcards() {
        for rule in rules() {
            let all = [rule.api_groups.unwrap_or_default(), rule.resources.unwrap_or_default(), rule.verbs].concat();
            assert!(!all.contains(&"*".to_owned()), "{all:?}");
        }
    }

    #[test]
    fn every_kind_may_read_itself_and_write_its_status() {
        let rules = rules();
        let allows = |resource: &str, verb: &str| {
            rules.iter().any(|rule| {
                rule.resources.as_ref().is_some_and(|all| all.contains(&resource.to_owned()))
                    && rule.verbs.contains(&verb.to_owned())
            })
        };
        assert!(allows("tokens", "watch") && allows("tokens/status", "patch") && allows("secrets", "delete"));
    }
}
