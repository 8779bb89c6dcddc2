//! All well-known names: keys that users and other programs rely on, and the names of the objects that the operator
//! creates.
//!
//! They are the same as in the Go operator, so that existing manifests, selectors and dashboards keep working.

use std::fmt::Write;

use crate::common::shared::SecretKeySelector;

pub use crate::common::{
    dns::{service_host, service_host_full},
    port,
    vocabulary::TRUE,
};

/// The API group of the custom resources.
pub const GROUP: &str = "slinky.slurm.net";

/// The only version of the group.
pub const VERSION: &str = "v1beta1";

/// Prefix of every reason that the operator sets on a Slurm node. Other reasons belong to an admin and are kept.
pub const REASON_PREFIX: &str = "slurm-operator: ";

/// The reason that the preStop hook of a worker sets on its Slurm node.
pub const TERMINATING_REASON: &str = "slurm-operator: Pod is terminating";

/// Prefix of the Slurm features that come from Kubernetes. Other features are not managed by the operator.
pub const FEATURE_PREFIX: &str = "k8s/";

/// Annotations. "By users" and "by the operator" say which side sets them.
pub mod annotation {
    /// On a worker pod, by users: drain its Slurm node. Also by the operator, while the Kubernetes node is cordoned.
    pub const POD_CORDON: &str = "nodeset.slinky.slurm.net/pod-cordon";
    /// On a worker pod of the Go operator, by this one: what the Go operator had written to it was taken over.
    pub const TAKEN_OVER: &str = "nodeset.slinky.slurm.net/taken-over";
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
    /// On a Controller, by users: while it is `true`, changes are made even if jobs are lost.
    pub const ALLOW_JOB_LOSS: &str = "controller.slinky.slurm.net/allow-job-loss";
    /// On a NodeSet, by users: while it is `true`, no worker is created, drained or removed.
    pub const PAUSED: &str = "nodeset.slinky.slurm.net/paused";

    /// On the revisions of a NodeSet, by the operator: its claim templates, which cannot be changed.
    pub const CLAIM_TEMPLATES: &str = "nodeset.slinky.slurm.net/volume-claim-templates";

    /// On slurmctld's pod template, by the operator: `GresTypes` that follow from the `NodeSets`.
    pub const GRES_TYPES: &str = "slinky.slurm.net/gres-types";

    /// On the `ConfigMap` of a Controller, by the operator: when the configuration of the running cluster was changed.
    pub const CONFIG_CHANGED: &str = "slinky.slurm.net/slurm-config-changed";
    /// On the `ConfigMap` of a Controller, by the operator: the change that slurmctld has reread.
    pub const CONFIG_REREAD: &str = "slinky.slurm.net/slurm-config-reread";
    /// On the `ConfigMap` of a Controller, by the operator: when slurmctld was asked to reread it.
    pub const CONFIG_ASKED: &str = "slinky.slurm.net/slurm-config-asked";
    /// On the `ConfigMap` of a Controller, by the operator: the configuration or the change that slurmctld was last started with.
    pub const CONFIG_STARTED: &str = "slinky.slurm.net/slurm-config-started";
    /// On a slurmctld pod, by the operator: when the kubelet was asked to bring new files to it. The kubelet looks at once at
    /// a pod that has changed.
    pub const CONFIG_SYNC: &str = "slinky.slurm.net/slurm-config-sync";

    /// On pods, by the operator: the Secret that the daemon reads Slurm's keys from.
    pub const KEY_RING: &str = "slinky.slurm.net/key-ring";
    /// On pods, by the operator: the hash of the keys that the daemon has read.
    pub const KEY_RING_READ: &str = "slinky.slurm.net/key-ring-read";
    /// On pods, by the operator: when the kubelet was last asked to bring new keys.
    pub const KEY_RING_ASKED: &str = "slinky.slurm.net/key-ring-asked";
    /// On the Secret of a key ring, by the operator: the hashes of its keys, the newest last.
    pub const KEY_RINGS: &str = "slinky.slurm.net/key-rings";
    /// On the Secret of a key ring, by the operator: where the change of the key is.
    pub const KEY_ROTATION: &str = "slinky.slurm.net/key-rotation";

    /// On pod templates: hashes of the files that the pods read, so that the pods restart when these change.
    pub mod hash {
        /// The auth/slurm key.
        pub const SLURM_KEY: &str = "slinky.slurm.net/slurm-key-hash";
        /// The key that signs tokens.
        pub const JWT_KEY: &str = "slinky.slurm.net/jwt-key-hash";
        /// slurm.conf and the other configuration files.
        pub const SLURM_CONFIG: &str = "slinky.slurm.net/slurm-config-hash";
        /// On the `ConfigMap` of a Controller: files that only slurmd reads.
        pub const SLURMD_FILES: &str = "slinky.slurm.net/slurmd-files-hash";
        /// On the `ConfigMap` of a Controller: the files, as they are in /etc/slurm.
        pub const ETC: &str = "slinky.slurm.net/etc-hash";
        /// On the `ConfigMap` of a Controller: the part that slurmd acts on.
        pub const FOR_SLURMD: &str = "slinky.slurm.net/for-slurmd-hash";
        /// On the `ConfigMap` of a Controller: the part that slurmd acts on, as every slurmd is known to have it.
        pub const SLURMD_HAS: &str = "slinky.slurm.net/slurmd-has-hash";
        /// On the `ConfigMap` of a Controller: its files and the image of slurmctld. Others are tried before they are used.
        pub const TRIED: &str = "slinky.slurm.net/tried-hash";
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
    pub const REVISION: &str = crate::common::vocabulary::REVISION;
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

/// `ConfigMap` of a Controller with a copy of the files of a user's `ConfigMap`.
#[must_use]
pub fn controller_config_copy(controller: &str, config_map: &str) -> String {
    format!("{controller}-copy-of-{config_map}")
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

/// Secret from which daemons read the key that a user has in this entry of a Secret.
#[must_use]
pub fn key_ring(reference: &SecretKeySelector) -> String {
    let SecretKeySelector { name, key, .. } = reference;
    if key == "slurm.key" {
        return format!("{name}-ring");
    }
    // An entry may have characters that a name must not have.
    key.bytes().fold(format!("{name}-ring-"), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
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
            (controller_config_copy("c", "files"), "c-copy-of-files"),
            (controller_claim("c"), "statesave-c-controller-0"),
            (cluster_name("ns", "c"), "ns_c"),
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
