//! The words of this group, for the engine.

use super::names::{self, annotation, finalizer, label, taint};
use crate::common::vocabulary::{AnnotationKeys, Finalizers, LabelKeys, Labels, Names, Vocabulary};

/// The words of `slinky.slurm.net`.
pub static VOCABULARY: Vocabulary = Vocabulary {
    group: names::GROUP,
    set_kind: "NodeSet",
    reason_prefix: names::REASON_PREFIX,
    terminating_reason: names::TERMINATING_REASON,
    feature_prefix: names::FEATURE_PREFIX,
    slurm_user: "slurm",
    topology_variable: "SLINKY_TOPOLOGY",
    worker_taint: taint::WORKER,
    worker_label: (label::NAME, "slurmd"),
    pod_label: (label::NAME, &["slurmctld", "slurmrestd", "slurmdbd", "slurmd", "login", "slurm-trial"]),
    label: LabelKeys {
        active: label::ACTIVE,
        cluster: label::CLUSTER,
        instance: label::INSTANCE,
        pod_name: label::POD_NAME,
        pod_index: label::POD_INDEX,
        pod_hostname: label::POD_HOSTNAME,
        pod_protect: label::POD_PROTECT,
        scaling_mode: label::SCALING_MODE,
        revision: label::REVISION,
    },
    annotation: AnnotationKeys {
        pod_cordon: annotation::POD_CORDON,
        taken_over: annotation::TAKEN_OVER,
        pod_deletion_cost: annotation::POD_DELETION_COST,
        pod_deadline: annotation::POD_DEADLINE,
        node_cordon_reason: annotation::NODE_CORDON_REASON,
        topology: annotation::TOPOLOGY,
        features: annotation::FEATURES,
        hostname_override: annotation::HOSTNAME_OVERRIDE,
        paused: annotation::PAUSED,
        applied_hash: annotation::hash::APPLIED,
        key_ring: annotation::KEY_RING,
        key_ring_read: annotation::KEY_RING_READ,
        key_ring_asked: annotation::KEY_RING_ASKED,
        key_rings: annotation::KEY_RINGS,
        key_rotation: annotation::KEY_ROTATION,
    },
    finalizer: Finalizers { reservation: finalizer::RESERVATION, drain: finalizer::DRAIN },
    name: Names {
        selector,
        labels,
        shared_labels,
        slurmctld: names::controller,
        slurmctld_internal: names::controller_internal,
        slurmctld_pod: names::controller_pod,
        config: names::controller_config,
        config_copy: names::controller_config_copy,
        slurmrestd: names::rest_api,
        slurmdbd: names::accounting,
        worker_service: names::worker_service,
        worker_disruption_budget: names::worker_disruption_budget,
        reservation: names::reservation,
        ssh_config: names::ssh_config,
        login: names::login,
        ssh_host_keys: names::ssh_host_keys,
    },
};

fn selector(program: &str, instance: &str) -> Labels {
    [(label::NAME, program), (label::INSTANCE, instance)].map(|(key, value)| (key.into(), value.into())).into()
}

fn labels(program: &str, component: &str, instance: &str) -> Labels {
    let mut labels = selector(program, instance);
    labels.insert(label::COMPONENT.to_owned(), component.to_owned());
    labels
}

fn shared_labels(program: &str, component: &str, cluster: &str) -> Labels {
    [(label::NAME, program), (label::COMPONENT, component), (label::CLUSTER, cluster)]
        .map(|(key, value)| (key.into(), value.into()))
        .into()
}

#[cfg(test)]
mod tests {
    use super::VOCABULARY;

    #[test]
    fn the_reason_of_a_terminating_pod_is_one_of_the_operator() {
        assert!(VOCABULARY.terminating_reason.starts_with(VOCABULARY.reason_prefix));
    }
}
