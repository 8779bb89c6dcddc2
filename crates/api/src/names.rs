//! Every well-known name: keys that users and other programs rely on, and the names of the objects that we create.
//!
//! They are those of the Go operator, so that existing manifests, selectors and dashboards keep their meaning.

/// The API group of the custom resources.
pub const GROUP: &str = "slinky.slurm.net";

/// The only version of the group.
pub const VERSION: &str = "v1beta1";

/// Starts every reason that we write to a Slurm node. Any other reason belongs to an admin and stays.
pub const REASON_PREFIX: &str = "slurm-operator: ";

/// Starts every Slurm feature that comes from Kubernetes. Other features are not ours.
pub const FEATURE_PREFIX: &str = "k8s/";

/// The value of labels and annotations that are switches.
pub const TRUE: &str = "true";

/// Annotations.
pub mod annotation {
    /// On a worker pod, by users: drain its Slurm node.
    pub const POD_CORDON: &str = "nodeset.slinky.slurm.net/pod-cordon";
    /// On a worker pod, by users: an integer; pods with lower ones are deleted first.
    pub const POD_DELETION_COST: &str = "nodeset.slinky.slurm.net/pod-deletion-cost";
    /// On a worker pod, by us: the latest end of its running jobs.
    pub const POD_DEADLINE: &str = "nodeset.slinky.slurm.net/pod-deadline";
    /// On a Kubernetes node, by users: why its workers are drained.
    pub const NODE_CORDON_REASON: &str = "nodeset.slinky.slurm.net/node-cordon-reason";
    /// On a Kubernetes node, by users, and copied to its worker pods: the place in Slurm's topology.
    pub const TOPOLOGY: &str = "topology.slinky.slurm.net/spec";
    /// On a Kubernetes node, by users: Slurm features of its workers, separated by commas.
    pub const FEATURES: &str = "features.slinky.slurm.net/spec";
    /// On a Kubernetes node, by users: the hostname of its worker where there is one per node.
    pub const HOSTNAME_OVERRIDE: &str = "nodeset.slinky.slurm.net/hostname-override";
    /// On a `NodeSet`: while it is `true`, no worker is made, drained or removed.
    pub const PAUSED: &str = "nodeset.slinky.slurm.net/paused";
    /// On pod templates: the container that kubectl means.
    pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

    /// On pod templates: hashes of what the pods read, so that they restart when it changes.
    pub mod hash {
        /// Slurm's own key.
        pub const SLURM_KEY: &str = "slinky.slurm.net/slurm-key-hash";
        /// The key that signs tokens.
        pub const JWT_KEY: &str = "slinky.slurm.net/jwt-key-hash";
        /// slurm.conf and its companions.
        pub const SLURM_CONFIG: &str = "slinky.slurm.net/slurm-config-hash";
        /// slurmdbd.conf
        pub const SLURMDBD_CONF: &str = "slinky.slurm.net/slurmdbd-conf-hash";
        /// `sshd_config`
        pub const SSHD_CONF: &str = "slinky.slurm.net/sshd-conf-hash";
        /// sssd.conf
        pub const SSSD_CONF: &str = "slinky.slurm.net/sssd-conf-hash";
        /// The host keys of sshd.
        pub const SSH_HOST_KEYS: &str = "slinky.slurm.net/ssh-host-keys-hash";
        /// On workloads, by us: all that we last applied to it.
        pub const APPLIED: &str = "slinky.slurm.net/applied-hash";
    }
}

/// Labels.
pub mod label {
    /// On the one slurmctld pod that is active.
    pub const ACTIVE: &str = "controller.slinky.slurm.net/active";
    /// On worker pods: the name of their Controller.
    pub const CLUSTER: &str = "slinky.slurm.net/cluster";
    /// On worker pods: their own name.
    pub const POD_NAME: &str = "nodeset.slinky.slurm.net/pod-name";
    /// On numbered worker pods: the padded ordinal.
    pub const POD_INDEX: &str = "nodeset.slinky.slurm.net/pod-index";
    /// On worker pods: their Slurm node name.
    pub const POD_HOSTNAME: &str = "nodeset.slinky.slurm.net/pod-hostname";
    /// On worker pods that run jobs: selected by the disruption budget.
    pub const POD_PROTECT: &str = "nodeset.slinky.slurm.net/pod-protect";
    /// On worker pods: how their `NodeSet` scales.
    pub const SCALING_MODE: &str = "nodeset.slinky.slurm.net/scaling-mode";
    /// On worker pods: the revision they were made from.
    pub const REVISION: &str = "controller.kubernetes.io/hash";
    /// On the Secret of a Token, by us: the Token. Finds what it held under another name before.
    pub const TOKEN: &str = "slinky.slurm.net/token";
    /// The program.
    pub const NAME: &str = "app.kubernetes.io/name";
    /// The custom resource.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// The role of the program.
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// Who made an object that has no owner.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
}

/// Finalizers.
pub mod finalizer {
    /// On a `NodeSet` while Slurm holds its maintenance reservation.
    pub const RESERVATION: &str = "nodeset.slinky.slurm.net/reservation";
    /// On a `NodeSet` whose workers are to be drained before it goes.
    pub const DRAIN: &str = "nodeset.slinky.slurm.net/drain";
}

/// Taints.
pub mod taint {
    /// Keeps everything but workers from a node. Effect `NoExecute`, no value.
    pub const WORKER: &str = "nodeset.slinky.slurm.net/worker";
}

/// The ports that Slurm's daemons listen on.
pub mod port {
    /// slurmctld
    pub const SLURMCTLD: i32 = 6817;
    /// slurmd
    pub const SLURMD: i32 = 6818;
    /// slurmdbd
    pub const SLURMDBD: i32 = 6819;
    /// slurmrestd
    pub const SLURMRESTD: i32 = 6820;
    /// sshd
    pub const SSH: i32 = 22;
}

/// `StatefulSet`, Service and `ServiceMonitor` of a Controller.
#[must_use]
pub fn controller(controller: &str) -> String {
    format!("{controller}-controller")
}

/// Headless Service of a Controller.
#[must_use]
pub fn controller_internal(controller: &str) -> String {
    format!("{controller}-controller-internal")
}

/// Pod `ordinal` of a Controller.
#[must_use]
pub fn controller_pod(controller: &str, ordinal: u32) -> String {
    format!("{controller}-controller-{ordinal}")
}

/// `ConfigMap` of a Controller.
#[must_use]
pub fn controller_config(controller: &str) -> String {
    format!("{controller}-config")
}

/// Claim of a Controller for slurmctld's state.
#[must_use]
pub fn controller_claim(controller: &str) -> String {
    format!("statesave-{controller}-controller-0")
}

/// What Slurm calls the cluster if the Controller does not say.
#[must_use]
pub fn cluster_name(namespace: &str, controller: &str) -> String {
    format!("{namespace}_{controller}")
}

/// The ordinal of a worker with at least `padding` digits.
#[must_use]
pub fn worker_ordinal(ordinal: u32, padding: u8) -> String {
    format!("{ordinal:0width$}", width = usize::from(padding))
}

/// Numbered worker pod of a `NodeSet`.
#[must_use]
pub fn worker_pod(node_set: &str, ordinal: u32, padding: u8) -> String {
    format!("{node_set}-{}", worker_ordinal(ordinal, padding))
}

/// Beginning of the pod names of a `NodeSet` that has one worker per Kubernetes node.
#[must_use]
pub fn worker_pod_prefix(node_set: &str) -> String {
    format!("{node_set}-")
}

/// Hostname of a numbered worker whose template sets one.
#[must_use]
pub fn worker_hostname(template_hostname: &str, ordinal: u32, padding: u8) -> String {
    format!("{template_hostname}{}", worker_ordinal(ordinal, padding))
}

/// Hostname of the worker on a Kubernetes node where there is one per node.
#[must_use]
pub fn worker_hostname_on(kubernetes_node: &str) -> &str {
    kubernetes_node.split_once('.').map_or(kubernetes_node, |(host, _)| host)
}

/// Claim of a worker; `worker` is its padded ordinal, or its hostname where there is one per node.
#[must_use]
pub fn worker_claim(claim: &str, node_set: &str, worker: &str) -> String {
    format!("{claim}-{node_set}-{worker}")
}

/// Headless Service that all workers of a Controller share.
#[must_use]
pub fn worker_service(controller: &str) -> String {
    format!("slurm-workers-{controller}")
}

/// `PodDisruptionBudget` that all workers of a Controller share.
#[must_use]
pub fn worker_disruption_budget(controller: &str) -> String {
    format!("slurm-workers-pdb-{controller}")
}

/// `ControllerRevision` of a `NodeSet`.
#[must_use]
pub fn revision(node_set: &str, hash: &str) -> String {
    format!("{node_set}-{hash}")
}

/// Slurm reservation for the scheduled update of a `NodeSet`.
#[must_use]
pub fn reservation(node_set: &str) -> String {
    format!("SlurmOperatorMaint-{node_set}")
}

/// `ConfigMap` with the sshd configuration of a `NodeSet` or a `LoginSet`.
#[must_use]
pub fn ssh_config(owner: &str) -> String {
    format!("{owner}-ssh-config")
}

/// Deployment and Service of a `LoginSet`.
#[must_use]
pub fn login(login_set: &str) -> String {
    login_set.to_owned()
}

/// Secret with the ssh host keys of a `LoginSet`.
#[must_use]
pub fn ssh_host_keys(login_set: &str) -> String {
    format!("{login_set}-ssh-host-keys")
}

/// `StatefulSet`, Service and Secret of an Accounting.
#[must_use]
pub fn accounting(accounting: &str) -> String {
    format!("{accounting}-accounting")
}

/// Deployment and Service of a `RestApi`.
#[must_use]
pub fn rest_api(rest_api: &str) -> String {
    format!("{rest_api}-restapi")
}

/// Secret of a Token that does not name one.
#[must_use]
pub fn token_secret(token: &str, username: &str) -> String {
    format!("{token}-jwt-{username}")
}

/// Host of a Service, as seen from within the cluster.
#[must_use]
pub fn service_host(service: &str, namespace: &str) -> String {
    format!("{service}.{namespace}")
}

/// Host of a Service with nothing left to the search list of the resolver.
#[must_use]
pub fn service_host_full(service: &str, namespace: &str, cluster_domain: &str) -> String {
    format!("{service}.{namespace}.svc.{cluster_domain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names_are_those_of_the_go_operator() {
        let table = [
            (controller("c"), "c-controller"),
            (controller_internal("c"), "c-controller-internal"),
            (controller_pod("c", 1), "c-controller-1"),
            (controller_config("c"), "c-config"),
            (controller_claim("c"), "statesave-c-controller-0"),
            (cluster_name("ns", "c"), "ns_c"),
            (worker_pod("n", 7, 0), "n-7"),
            (worker_pod("n", 7, 3), "n-007"),
            (worker_pod("n", 1234, 3), "n-1234"),
            (worker_pod_prefix("n"), "n-"),
            (worker_hostname("gpu-", 7, 2), "gpu-07"),
            (worker_hostname_on("host.example.com").to_owned(), "host"),
            (worker_hostname_on("host").to_owned(), "host"),
            (worker_claim("data", "n", &worker_ordinal(7, 3)), "data-n-007"),
            (worker_claim("data", "n", "host"), "data-n-host"),
            (worker_service("c"), "slurm-workers-c"),
            (worker_disruption_budget("c"), "slurm-workers-pdb-c"),
            (revision("n", "5f6d"), "n-5f6d"),
            (reservation("n"), "SlurmOperatorMaint-n"),
            (ssh_config("n"), "n-ssh-config"),
            (login("l"), "l"),
            (ssh_config("l"), "l-ssh-config"),
            (ssh_host_keys("l"), "l-ssh-host-keys"),
            (accounting("a"), "a-accounting"),
            (rest_api("r"), "r-restapi"),
            (token_secret("t", "alice"), "t-jwt-alice"),
            (service_host("s", "ns"), "s.ns"),
            (service_host_full("s", "ns", "cluster.local"), "s.ns.svc.cluster.local"),
        ];
        for (name, expected) in table {
            assert_eq!(name, expected);
        }
    }
}
