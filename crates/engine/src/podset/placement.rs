//! Whether a worker fits a Kubernetes node.

use slurm_operator_api::common::vocabulary::Vocabulary;

use super::{
    facts::{KubeNode, Taint},
    model::{Match, Model, Placement, Term, Toleration},
};

/// Taints that per-node workers always tolerate, as with a `DaemonSet`.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/unschedulable", NO_SCHEDULE),
];

const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// Whether a worker may be created, or may stay, on a Kubernetes node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    /// A worker should be created there.
    pub(super) runs: bool,
    /// An existing worker may stay.
    pub(super) continues: bool,
}

/// Whether a worker fits a node.
pub(super) fn fit(model: &Model, node: &KubeNode) -> Fit {
    fits(model.vocabulary, &model.placement, model.naming.host_network, node)
}

/// Whether a worker with this placement fits a node.
pub(super) fn fits(vocabulary: &Vocabulary, placement: &Placement, host_network: bool, node: &KubeNode) -> Fit {
    let matches = !node.deleting && selected(placement, node);
    let bars = |effect: &str| {
        let mut taints = node.taints.iter().filter(|taint| taint.effect == effect);
        taints.any(|taint| !is_tolerated(vocabulary, placement, host_network, taint))
    };
    let continues = matches && !bars(NO_EXECUTE);
    Fit { runs: continues && !bars(NO_SCHEDULE), continues }
}

fn selected(placement: &Placement, node: &KubeNode) -> bool {
    let has = |(key, value): &(String, String)| node.labels.get(key) == Some(value);
    let matches = |terms: &Vec<Term>| terms.iter().any(|term| term_matches(term, node));
    placement.selector.iter().all(has) && placement.terms.as_ref().is_none_or(matches)
}

fn term_matches(term: &Term, node: &KubeNode) -> bool {
    let label = |demand: &Match| holds(demand, node.labels.get(&demand.key).map(String::as_str));
    let field = |demand: &Match| demand.key == "metadata.name" && holds(demand, Some(&node.name));
    let is_empty = term.labels.is_empty() && term.fields.is_empty();
    !is_empty && term.labels.iter().all(label) && term.fields.iter().all(field)
}

fn holds(demand: &Match, found: Option<&str>) -> bool {
    let is_among = |text: &str| demand.values.iter().any(|value| value == text);
    let number = |text: &str| text.parse::<i64>().ok();
    let limit = || demand.values.first().and_then(|value| number(value));
    let compare = |test: fn(i64, i64) -> bool| {
        found.and_then(number).zip(limit()).is_some_and(|(found, limit)| test(found, limit))
    };
    match demand.operator.as_str() {
        "In" => found.is_some_and(is_among),
        "NotIn" => !found.is_some_and(is_among),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => compare(|found, limit| found > limit),
        "Lt" => compare(|found, limit| found < limit),
        _ => false,
    }
}

fn is_tolerated(vocabulary: &Vocabulary, placement: &Placement, host_network: bool, taint: &Taint) -> bool {
    let pair = (taint.key.as_str(), taint.effect.as_str());
    let always = TOLERATED.contains(&pair)
        || (pair == (vocabulary.worker_taint, NO_EXECUTE) && taint.value.is_empty())
        || (host_network && pair == (NETWORK_UNAVAILABLE, NO_SCHEDULE));
    always || placement.tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let exists = toleration.operator == "Exists";
    // Without a key only `Exists` is allowed; it matches all keys.
    let key = if toleration.key.is_empty() { exists } else { toleration.key == taint.key };
    effect && key && (exists || toleration.value == taint.value)
}
