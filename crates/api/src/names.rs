//! All well-known names: keys that users and other programs rely on, and the names of the objects that the operator
//! creates.
//!
//! They are the same as in the Go operator, so that existing manifests, selectors and dashboards keep working.

/// The API group of the custom resources.
pub const GROUP: &str = "slinky.slurm.net";

/// The only version of the group.
pub const VERSION: &str = "v1beta1";

/// Prefix of every reason that the operator sets on a Slurm node. Other reasons belong to an admin and are kept.
pub const REASON_PREFIX: &str = "slurm-operator: ";

/// Prefix of the Slurm features that come from Kubernetes. Other features are not managed by the operator.
pub const FEATURE_PREFIX: &str = "k8s/";

/// Value of boolean labels and annotations.
pub const TRUE: &str = "true";

/// Annotations. "By users" and "by the operator" say which side sets them.
pub mod annotation {
    /// On a worker pod, by users: drain its Slurm node.
    pub const POD_CORDON: &str = "nodeset.slinky.slurm.net/pod-cordon";
    /// On a worker pod, by users: an integer; pods with lower costs are deleted first.
    pub const POD_DELETION_COST: &str = "nodeset.slinky.slurm.net/pod-deletion-cost";
    /// On a worker pod, by the operator: the latest end time of its running jobs.
    pub const POD_DEADLINE: &str = "nodeset.slinky.slurm.net/pod-deadline";
    /// On a Kubernetes node, by users: why its workers are drained.
    pub const NODE_CORDON_REASON: &str = "nodeset.slinky.slurm.net/node-cordon-reason";
    /// On a Kubernetes node, by users, and copied to its worker pods: location in Slurm's topology.
    pub const TOPOLOGY: &str = "topology.slinky.slurm.net/spec";
    /// On a Kubernetes node, by users: Slurm features of its workers, comma-separated.
    pub const FEATURES: &str = "features.slinky.slurm.net/spec";
    /// On a Kubernetes node, by users: hostname of its worker in scaling mode `DaemonSet`.
    pub const HOSTNAME_OVERRIDE: &str = "nodeset.slinky.slurm.net/hostname-override";
    /// On a NodeSet, by users: while it is `true`, no worker is created, drained or removed.
    pub const PAUSED: &str = "nodeset.slinky.slurm.net/paused";
    /// On pod templates: the default container of kubectl commands.
    pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

    /// On pod templates: hashes of the files that the pods read, so that the pods restart when these change.
    pub mod hash {
        /// The auth/slurm key.
        pub const SLURM_KEY: &str = "slinky.slurm.net/slurm-key-hash";
        /// The key that signs tokens.
        pub const JWT_KEY: &str = "slinky.slurm.net/jwt-key-hash";
        /// slurm.conf and the other configuration files.
        pub const SLURM_CONFIG: &str = "slinky.slurm.net/slurm-config-hash";
        /// slurmdbd.conf
        pub const SLURMDBD_CONF: &str = "slinky.slurm.net/slurmdbd-conf-hash";
        /// `sshd_config`
        pub const SSHD_CONF: &str = "slinky.slurm.net/sshd-conf-hash";
        /// sssd.conf
        pub const SSSD_CONF: &str = "slinky.slurm.net/sssd-conf-hash";
        /// The host keys of sshd.
        pub const SSH_HOST_KEYS: &str = "slinky.slurm.net/ssh-host-keys-hash";
        /// On workloads, by the operator: the whole object as last applied.
        pub const APPLIED: &str = "slinky.slurm.net/applied-hash";
    }
}

/// Labels.
pub mod label {
    /// On the active slurmctld pod.
    pub const ACTIVE: &str = "controller.slinky.slurm.net/active";
    /// On worker pods: the name of their Controller.
    pub const CLUSTER: &str = "slinky.slurm.net/cluster";
    /// On worker pods: the name of the pod.
    pub const POD_NAME: &str = "nodeset.slinky.slurm.net/pod-name";
    /// On worker pods with ordinals: the padded ordinal.
    pub const POD_INDEX: &str = "nodeset.slinky.slurm.net/pod-index";
    /// On worker pods: their Slurm node name.
    pub const POD_HOSTNAME: &str = "nodeset.slinky.slurm.net/pod-hostname";
    /// On worker pods with running jobs: selected by the disruption budget.
    pub const POD_PROTECT: &str = "nodeset.slinky.slurm.net/pod-protect";
    /// On worker pods: scaling mode of their NodeSet.
    pub const SCALING_MODE: &str = "nodeset.slinky.slurm.net/scaling-mode";
    /// On worker pods: the revision that they were created from.
    pub const REVISION: &str = "controller.kubernetes.io/hash";
    /// On the Secret of a Token, by the operator: name of the Token. Finds Secrets that the Token wrote under an
    /// earlier name.
    pub const TOKEN: &str = "slinky.slurm.net/token";
    /// The program.
    pub const NAME: &str = "app.kubernetes.io/name";
    /// The custom resource.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// The role of the program.
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// The creator of an object without an owner.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
}

/// Finalizers.
pub mod finalizer {
    /// On a NodeSet while Slurm holds its maintenance reservation.
    pub const RESERVATION: &str = "nodeset.slinky.slurm.net/reservation";
    /// On a NodeSet whose workers must be drained before it is deleted.
    pub const DRAIN: &str = "nodeset.slinky.slurm.net/drain";
}

/// Taints.
pub mod taint {
    /// Keeps all pods except workers off a node. Effect `NoExecute`, no value.
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

/// Slurm's name of the cluster if the Controller sets none.
#[must_use]
pub fn cluster_name(namespace: &str, controller: &str) -> String {
    format!("{namespace}_{controller}")
}

/// The ordinal of a worker with at least `padding` digits.
#[must_use]
pub fn worker_ordinal(ordinal: u32, padding: u8) -> String {
    format!("{ordinal:0width$}", width = usize::from(padding))
}

/// Worker pod with an ordinal.
#[must_use]
pub fn worker_pod(node_set: &str, ordinal: u32, padding: u8) -> String {
    format!("{node_set}-{}", worker_ordinal(ordinal, padding))
}

/// Pod name prefix of a NodeSet in scaling mode `DaemonSet`.
#[must_use]
pub fn worker_pod_prefix(node_set: &str) -> String {
    format!("{node_set}-")
}

/// Hostname of a worker with an ordinal whose template sets a hostname.
#[must_use]
pub fn worker_hostname(template_hostname: &str, ordinal: u32, padding: u8) -> String {
    format!("{template_hostname}{}", worker_ordinal(ordinal, padding))
}

/// Hostname of the worker on a Kubernetes node in scaling mode `DaemonSet`.
#[must_use]
pub fn worker_hostname_on(kubernetes_node: &str) -> &str {
    kubernetes_node.split_once('.').map_or(kubernetes_node, |(host, _)| host)
}

/// Claim of a worker; `worker` is its padded ordinal, or its hostname in scaling mode `DaemonSet`.
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

/// `ControllerRevision` of a NodeSet.
#[must_use]
pub fn revision(node_set: &str, hash: &str) -> String {
    format!("{node_set}-{hash}")
}

/// Slurm reservation for the scheduled update of a NodeSet.
#[must_use]
pub fn reservation(node_set: &str) -> String {
    format!("SlurmOperatorMaint-{node_set}")
}

/// `ConfigMap` with the sshd configuration of a NodeSet or a LoginSet.
#[must_use]
pub fn ssh_config(owner: &str) -> String {
    format!("{owner}-ssh-config")
}

/// Deployment and Service of a LoginSet.
#[must_use]
pub fn login(login_set: &str) -> String {
    login_set.to_owned()
}

/// Secret with the ssh host keys of a LoginSet.
#[must_use]
pub fn ssh_host_keys(login_set: &str) -> String {
    format!("{login_set}-ssh-host-keys")
}

/// `StatefulSet`, Service and Secret of an Accounting.
#[must_use]
pub fn accounting(accounting: &str) -> String {
    format!("{accounting}-accounting")
}

/// Deployment and Service of a RestApi.
#[must_use]
pub fn rest_api(rest_api: &str) -> String {
    format!("{rest_api}-restapi")
}

/// Secret of a Token that does not name one.
#[must_use]
pub fn token_secret(token: &str, username: &str) -> String {
    format!("{token}-jwt-{username}")
}

/// Host of a Service, as resolved within the cluster.
#[must_use]
pub fn service_host(service: &str, namespace: &str) -> String {
    format!("{service}.{namespace}")
}

/// Fully qualified host of a Service, independent of the resolver's search list.
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
