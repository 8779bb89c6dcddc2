//! The words of an API group: names that users, other programs and running clusters rely on.
//!
//! The engine plans for any group; it gets these words as data.

use std::collections::BTreeMap;

/// Value of boolean labels and annotations.
pub const TRUE: &str = "true";

/// Annotations, with their values, that ask the Cluster Autoscaler and Karpenter to leave a pod alone.
pub const AUTOSCALERS: [(&str, &str); 2] =
    [("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), ("karpenter.sh/do-not-disrupt", "true")];

/// Labels, by key.
pub type Labels = BTreeMap<String, String>;

/// The words of one API group.
#[derive(Debug)]
pub struct Vocabulary {
    pub group: &'static str,
    /// The kind of a set of workers, as in drain reasons.
    pub set_kind: &'static str,
    /// Prefix of every reason that the operator sets on a Slurm node. Other reasons belong to an admin and are kept.
    pub reason_prefix: &'static str,
    /// The reason that the preStop hook of a worker sets on its Slurm node. It starts with the prefix.
    pub terminating_reason: &'static str,
    /// Prefix of the Slurm features that come from Kubernetes. Other features are not managed by the operator.
    pub feature_prefix: &'static str,
    /// The Slurm user that the operator acts as.
    pub slurm_user: &'static str,
    /// The environment variable of slurmd with the location in Slurm's topology.
    pub topology_variable: &'static str,
    /// Keeps all pods except workers off a node. Effect `NoExecute`, no value.
    pub worker_taint: &'static str,
    /// The label and the value that all worker pods have, and no other pods.
    pub worker_label: (&'static str, &'static str),
    /// The label and the values by which the pods of all daemons are watched.
    pub pod_label: (&'static str, &'static [&'static str]),
    pub label: LabelKeys,
    pub annotation: AnnotationKeys,
    pub finalizer: Finalizers,
    pub name: Names,
}

/// The label of worker pods with the revision that they were created from, in all API groups.
pub const REVISION: &str = "controller.kubernetes.io/hash";

/// Keys of labels.
#[derive(Debug)]
pub struct LabelKeys {
    /// On the slurmctld pod that is in charge.
    pub active: &'static str,
    /// On all pods: the name of the custom resource that they run for.
    pub instance: &'static str,
    /// On worker pods: the name of their cluster.
    pub cluster: &'static str,
    /// On worker pods: the name of the pod.
    pub pod_name: &'static str,
    /// On worker pods with ordinals: the padded ordinal.
    pub pod_index: &'static str,
    /// On worker pods: their Slurm node name.
    pub pod_hostname: &'static str,
    /// On worker pods with running jobs: selected by the disruption budget.
    pub pod_protect: &'static str,
    /// On worker pods: the scaling mode of their set.
    pub scaling_mode: &'static str,
    /// On worker pods: the revision that they were created from.
    pub revision: &'static str,
}

/// Keys of annotations.
#[derive(Debug)]
pub struct AnnotationKeys {
    /// On a worker pod, by users: drain its Slurm node. Also by the operator, while the Kubernetes node is cordoned.
    pub pod_cordon: &'static str,
    /// On a worker pod of the former operator, by this one: what the former operator had written to it was taken over.
    pub taken_over: &'static str,
    /// On a worker pod, by users: an integer; pods with lower costs are deleted first.
    pub pod_deletion_cost: &'static str,
    /// On a worker pod, by the operator: the latest end time of its running jobs.
    pub pod_deadline: &'static str,
    /// On a Kubernetes node, by users: why its workers are drained.
    pub node_cordon_reason: &'static str,
    /// On a Kubernetes node, by users, and copied to its worker pods: location in Slurm's topology.
    pub topology: &'static str,
    /// On a Kubernetes node, by users: Slurm features of its workers, comma-separated.
    pub features: &'static str,
    /// On a Kubernetes node, by users: hostname of its worker, if there is one worker on each node.
    pub hostname_override: &'static str,
    /// On a set of workers, by users: while it is `true`, no worker is created, drained or removed.
    pub paused: &'static str,
    /// On workloads, by the operator: a hash of the whole object as last applied.
    pub applied_hash: &'static str,
    /// On pods, by the operator: the Secret that the daemon reads its keys from.
    pub key_ring: &'static str,
    /// On pods, by the operator: the hash of the keys that the daemon has read.
    pub key_ring_read: &'static str,
    /// On pods, by the operator: when the kubelet was last asked to bring new keys. It does so when the pod changes.
    pub key_ring_asked: &'static str,
    /// On the Secret of a key ring, by the operator: the hashes of its keys, the newest last.
    pub key_rings: &'static str,
    /// On the Secret of a key ring, by the operator: where the change of the key is.
    pub key_rotation: &'static str,
}

impl AnnotationKeys {
    /// The annotations of Kubernetes nodes that are used for planning.
    #[must_use]
    pub fn of_nodes(&self) -> [&'static str; 4] {
        [self.node_cordon_reason, self.topology, self.features, self.hostname_override]
    }
}

/// Finalizers of a set of workers.
#[derive(Debug)]
pub struct Finalizers {
    /// While Slurm holds its maintenance reservation.
    pub reservation: &'static str,
    /// While its workers must be drained before it is deleted.
    pub drain: &'static str,
}

/// Names of objects, from the name of the custom resource that they are made for.
#[derive(Debug)]
pub struct Names {
    /// The labels that select the pods of a daemon: program, and name of the custom resource.
    pub selector: fn(&str, &str) -> Labels,
    /// The labels of all objects of a daemon: program, component, and name of the custom resource.
    pub labels: fn(&str, &str, &str) -> Labels,
    /// The labels of objects that all workers of a cluster share: program, component, and name of the cluster.
    pub shared_labels: fn(&str, &str, &str) -> Labels,
    /// `StatefulSet` and Service of slurmctld.
    pub slurmctld: fn(&str) -> String,
    /// Headless Service of slurmctld.
    pub slurmctld_internal: fn(&str) -> String,
    /// Pod of slurmctld, by ordinal.
    pub slurmctld_pod: fn(&str, u32) -> String,
    /// `ConfigMap` with the configuration of a cluster.
    pub config: fn(&str) -> String,
    /// `ConfigMap` with a copy of the files of a user's `ConfigMap`: cluster, and name of the user's.
    pub config_copy: fn(&str, &str) -> String,
    /// Deployment and Service of slurmrestd.
    pub slurmrestd: fn(&str) -> String,
    /// `StatefulSet`, Service and Secret of slurmdbd.
    pub slurmdbd: fn(&str) -> String,
    /// Headless Service that all workers of a cluster share.
    pub worker_service: fn(&str) -> String,
    /// `PodDisruptionBudget` that all workers of a cluster share.
    pub worker_disruption_budget: fn(&str) -> String,
    /// Slurm reservation for the scheduled update of a set of workers.
    pub reservation: fn(&str) -> String,
    /// `ConfigMap` with the sshd configuration.
    pub ssh_config: fn(&str) -> String,
    /// Deployment and Service of login nodes.
    pub login: fn(&str) -> String,
    /// Secret with the host keys of login nodes.
    pub ssh_host_keys: fn(&str) -> String,
}
