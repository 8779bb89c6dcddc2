//! slurmd: the pod template of a set of workers, and the Service and the `PodDisruptionBudget` that all sets of a cluster
//! share.

use std::fmt::Write as _;

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::core::ObjectMeta;
use serde_json::{Value, json};
use slurm::{
    conf::{NodeConf, shell_word},
    version::{Feature, SlurmVersion, supports},
};
use slurm_operator_api::common::{
    dns::service_host_full,
    port,
    shared::SecretKeySelector,
    template::{Overlay, PodTemplate},
    vocabulary::{TRUE, Vocabulary},
};

use super::{
    shared::{
        Auth, Parent, SLURMD, StringMap, desired, etc_mount, etc_volume, log_mount, log_sidecar, log_volume,
        pod_template, probe,
    },
    sshd::sshd_config,
};
use crate::{
    json::merge,
    overlay::{self, OverlayError},
    plan::Desired,
    podset::{Mode, Registration},
    quantity::milli,
};

/// The settings of slurmd.
#[derive(Clone, Debug)]
pub struct Slurmd<'a> {
    pub parent: Parent,
    /// The name of the cluster's object.
    pub cluster: &'a str,
    pub config: ConfigSource,
    pub registration: Registration,
    pub image: &'a str,
    /// The user's overlay of the main container.
    pub container: &'a Overlay,
    /// The user's overlay of the log sidecar.
    pub logfile: &'a Overlay,
    /// The user's overlay of the pod.
    pub template: &'a PodTemplate,
    /// The parameters of the Slurm node.
    pub conf: NodeConf,
    pub port: u16,
    pub auth: Auth<'a>,
    /// sssd.conf; set if ssh access is enabled.
    pub ssh: Option<&'a SecretKeySelector>,
    /// Whether two workers may share a Kubernetes node.
    pub oversubscribes: bool,
    pub mode: Mode,
    /// The DNS domain of the Kubernetes cluster, `cluster.local` by default.
    pub domain: &'a str,
    /// Hashes of the files that the pods mount.
    pub hashes: StringMap,
    pub revision: &'a str,
}

/// Where slurmd gets its configuration from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// From slurmctld: the value of `--conf-server`.
    Server(String),
}

/// The template that all pods of a set share.
pub fn template(slurmd: &Slurmd) -> Result<Value, OverlayError> {
    let parent = &slurmd.parent;
    let label = &parent.vocabulary.label;
    let mut pod = pod_template(parent, SLURMD, slurmd.template, &slurmd.hashes, pod(slurmd)?)?;
    let ours = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": parent.namespace,
            "ownerReferences": [parent.owner],
            "labels": {
                label.cluster: slurmd.cluster,
                label.scaling_mode: slurmd.mode.as_str(),
                label.revision: slurmd.revision,
            },
        },
    });
    merge(&mut pod, &ours);
    // The scheduler chooses the node, and the operator sets the hostname.
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("nodeName");
        spec.remove("hostname");
    }
    name_node(slurmd, &mut pod)?;
    Ok(pod)
}

/// The environment variable with the name of the Slurm node.
const NODE_NAME: &str = "SLURM_NODE_NAME";

/// Passes the node name to slurmd as the last argument. With the host network slurmd would use the name of the Kubernetes
/// node, and the operator would conclude that the worker never registered.
fn name_node(slurmd: &Slurmd, pod: &mut Value) -> Result<(), OverlayError> {
    let in_template = slurmd.template.spec.fields().get("containers").and_then(Value::as_array).into_iter().flatten();
    let in_template = in_template.filter(|container| container["name"] == SLURMD.program);
    let in_template =
        in_template.filter_map(|container| container.as_object().map(|f| (f, "spec.template.spec.containers")));
    for (fields, path) in std::iter::once((slurmd.container.fields(), "spec.slurmd")).chain(in_template) {
        check_container(fields, path)?;
    }
    let is_numbered_on_host =
        slurmd.mode == Mode::Numbered && pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) == Some(true);
    let field = if is_numbered_on_host {
        "spec.nodeName".to_owned()
    } else {
        format!("metadata.labels['{}']", slurmd.parent.vocabulary.label.pod_hostname)
    };
    let containers = pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut).into_iter().flatten();
    for container in containers.filter(|container| container["name"] == SLURMD.program) {
        let Some(container) = container.as_object_mut() else { continue };
        let name = [json!("-N"), json!(format!("$({NODE_NAME})"))];
        append(container, "args", name);
        append(container, "env", [json!({"name": NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": field}}})]);
    }
    Ok(())
}

fn append<const N: usize>(container: &mut overlay::Fields, list: &str, values: [Value; N]) {
    if let Some(items) = container.entry(list).or_insert_with(|| json!([])).as_array_mut() {
        items.extend(values);
    }
}

/// Rejects overlays that set the node name: the operator identifies workers by the names that it assigns.
fn check_container(fields: &overlay::Fields, path: &str) -> Result<(), OverlayError> {
    let items = |list: &str| fields.get(list).and_then(Value::as_array).into_iter().flatten();
    if items("args").filter_map(Value::as_str).any(names_node) {
        let must =
            "not contain -N or -Z: the operator sets the node name; to choose it, set spec.template.spec.hostname";
        return Err(OverlayError { path: format!("{path}.args"), must });
    }
    if items("env").any(|variable| variable["name"] == NODE_NAME) {
        return Err(OverlayError {
            path: format!("{path}.env"),
            must: "not set SLURM_NODE_NAME, which is reserved for the operator",
        });
    }
    Ok(())
}

/// Whether an argument contains -N or -Z, also in a group of short options.
fn names_node(argument: &str) -> bool {
    let options = argument.strip_prefix('-').filter(|options| !options.starts_with('-')).unwrap_or_default();
    // These options take a value: the rest of the argument.
    let own = options.split(['B', 'd', 'f', 'F', 'I', 'L', 'n']).next().unwrap_or_default();
    own.contains(['N', 'Z'])
}

fn pod(slurmd: &Slurmd) -> Result<Value, OverlayError> {
    let vocabulary = slurmd.parent.vocabulary;
    let service = (vocabulary.name.worker_service)(slurmd.cluster);
    let search = service_host_full(&service, &slurmd.parent.namespace, slurmd.domain);
    let mut volumes = vec![etc_volume(0o600, &[slurmd.auth.files()]), log_volume()];
    if let Some(sssd) = slurmd.ssh {
        let config = (vocabulary.name.ssh_config)(&slurmd.parent.name);
        let items = json!([{"key": sssd.key, "path": "sssd.conf"}]);
        volumes.push(json!({"name": "ssh-config", "configMap": {"name": config, "defaultMode": 0o600}}));
        volumes.push(
            json!({"name": "sssd-conf", "secret": {"secretName": sssd.name, "defaultMode": 0o600, "items": items}}),
        );
    }
    let mut pod = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "subdomain": service,
        "dnsConfig": {"searches": [search]},
        "initContainers": [log_sidecar(SLURMD, slurmd.image, slurmd.logfile, "spec.logfile")?],
        "containers": [main_container(slurmd)?],
        "tolerations": tolerations(vocabulary, slurmd.mode),
        "volumes": volumes,
    });
    if !slurmd.oversubscribes {
        let (worker, value) = vocabulary.worker_label;
        let apart = json!({
            "labelSelector": {"matchExpressions": [{"key": worker, "operator": "In", "values": [value]}]},
            "topologyKey": "kubernetes.io/hostname",
        });
        let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}});
        merge(&mut pod, &json!({ "affinity": affinity }));
    }
    Ok(pod)
}

/// Taints that workers tolerate. A node whose kubelet does not respond may still complete its jobs, but Kubernetes would
/// evict the worker after five minutes, regardless of any disruption budget.
fn tolerations(vocabulary: &Vocabulary, mode: Mode) -> Vec<Value> {
    let exists = |key: &str, effect: &str| json!({"key": key, "operator": "Exists", "effect": effect});
    let mut tolerations = vec![
        json!({"key": vocabulary.worker_taint, "operator": "Equal", "effect": "NoExecute"}),
        exists("node.kubernetes.io/not-ready", "NoExecute"),
        exists("node.kubernetes.io/unreachable", "NoExecute"),
    ];
    if mode == Mode::PerNode {
        // As Kubernetes does for DaemonSets.
        for pressure in ["disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"] {
            tolerations.push(exists(&format!("node.kubernetes.io/{pressure}"), "NoSchedule"));
        }
    }
    tolerations
}

fn main_container(slurmd: &Slurmd) -> Result<Value, OverlayError> {
    let vocabulary = slurmd.parent.vocabulary;
    let version = SlurmVersion::from_image(slurmd.image);
    let mut conf = shell_word(&slurmd.conf.to_string());
    if supports(version, Feature::NodeTopology) && slurmd.conf.get("Topology").is_none() {
        // The entrypoint of the image evaluates its arguments in a shell; an empty variable must add nothing.
        let variable = vocabulary.topology_variable;
        let _ = write!(conf, r#""${{{variable}:+ Topology=${variable}}}""#);
    }
    let mut ports = vec![json!({"name": "slurmd", "containerPort": slurmd.port, "protocol": "TCP"})];
    let mut mounts = vec![etc_mount(), log_mount()];
    if slurmd.ssh.is_some() {
        ports.push(json!({"name": "ssh", "containerPort": port::SSH, "protocol": "TCP"}));
        for (volume, folder, file) in
            [("ssh-config", "/etc/ssh", "sshd_config"), ("sssd-conf", "/etc/sssd", "sssd.conf")]
        {
            mounts.push(json!({
                "name": volume, "mountPath": format!("{folder}/{file}"), "subPath": file, "readOnly": true,
            }));
        }
    }
    let probe = |path: &str, period, failures| probe(SLURMD, version, path, period, failures);
    let limit = |resource: &str, divisor: &str| {
        let reference = json!({"containerName": SLURMD.program, "resource": resource, "divisor": divisor});
        json!({ "resourceFieldRef": reference })
    };
    let variable = |name: &str, resource: &str, divisor: &str| {
        if limit_of(slurmd.container.fields(), resource).is_some() {
            return json!({"name": name, "valueFrom": limit(&format!("limits.{resource}"), divisor)});
        }
        // Without a limit of the container, the downward API returns the capacity of the whole node.
        let of_pod = limit_of(slurmd.template.spec.fields(), resource).and_then(|text| in_units(&text, divisor));
        json!({"name": name, "value": of_pod.unwrap_or(0).to_string()})
    };
    let topology = format!("metadata.annotations['{}']", vocabulary.annotation.topology);
    let ConfigSource::Server(config_server) = &slurmd.config;
    let Registration::Dynamic = slurmd.registration;
    let base = json!({
        "name": SLURMD.program,
        "args": ["-Z", "--conf-server", plain_word(config_server), "--conf", conf],
        "env": [
            {"name": vocabulary.topology_variable, "valueFrom": {"fieldRef": {"fieldPath": topology}}},
            variable("POD_CPUS", "cpu", "1"),
            variable("POD_MEMORY", "memory", "1Mi"),
        ],
        "ports": ports,
        "startupProbe": probe("/livez", 2, 60),
        // A container restart ends its jobs, so wait as long as slurmctld waits before it sets the node down (SlurmdTimeout).
        "livenessProbe": probe("/livez", 10, 30),
        "readinessProbe": probe("/readyz", 5, 6),
        "securityContext": {
            "privileged": true,
            "capabilities": {"add": ["BPF", "NET_ADMIN", "SYS_ADMIN", "SYS_NICE"]},
        },
        "lifecycle": {"preStop": {"exec": {"command": ["/usr/bin/sh", "-c", pre_stop(vocabulary)]}}},
        "volumeMounts": mounts,
    });
    overlay::container(base, slurmd.container.fields(), "spec.slurmd")
}

/// Sets the Slurm node down at once, so that slurmctld does not wait for a response. A reason that someone else set is kept.
/// An unreachable slurmctld must not delay the pod for long.
fn pre_stop(vocabulary: &Vocabulary) -> String {
    let Vocabulary { reason_prefix, terminating_reason, .. } = vocabulary;
    format!(
        r#"name=$SLURM_NODE_NAME
reason=$(timeout 5 scontrol show node "$name" | sed -n 's/^ *Reason=\(.*\) \[.*@.*\]$/\1/p')
case $reason in '' | '{reason_prefix}'*) reason='{terminating_reason}' ;; esac
timeout 10 scontrol update nodename="$name" state=down reason="$reason" || true
"#
    )
}

/// The limit of a container or a pod.
fn limit_of(fields: &overlay::Fields, resource: &str) -> Option<String> {
    match fields.get("resources")?.pointer(&format!("/limits/{resource}"))? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A quantity in units of another one, rounded up as the downward API does.
fn in_units(text: &str, divisor: &str) -> Option<u128> {
    Some(milli(text)?.div_ceil(milli(divisor)?))
}

/// Quotes a word that is not plain: the slurmd images evaluate their arguments in a shell.
fn plain_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:,-[]".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { shell_word(text) }
}

/// The headless Service that gives workers DNS names, ready or not. All sets of a cluster share it; it is deleted with the
/// last one.
pub fn worker_service(vocabulary: &Vocabulary, namespace: &str, cluster: &str, owners: Vec<OwnerReference>) -> Desired {
    let (worker, value) = vocabulary.worker_label;
    let spec = json!({
        "clusterIP": "None",
        "publishNotReadyAddresses": true,
        "selector": {worker: value, vocabulary.label.cluster: cluster},
        "ports": [{"name": "slurmd", "port": port::SLURMD, "protocol": "TCP", "targetPort": "slurmd"}],
    });
    desired::<Service>(
        shared_metadata(vocabulary, namespace, cluster, (vocabulary.name.worker_service)(cluster), owners),
        json!({ "spec": spec }),
    )
}

/// Protects workers with jobs from eviction. All sets of a cluster share it.
///
/// `minAvailable` is higher than any number of workers. `maxUnavailable: 0` is computed from the scale of the set, and would
/// allow the eviction of busy workers during a scale-in.
pub fn worker_disruption_budget(
    vocabulary: &Vocabulary,
    namespace: &str,
    cluster: &str,
    owners: Vec<OwnerReference>,
) -> Desired {
    let spec = json!({
        "minAvailable": i32::MAX,
        "selector": {"matchLabels": {vocabulary.label.pod_protect: TRUE, vocabulary.label.cluster: cluster}},
    });
    let name = (vocabulary.name.worker_disruption_budget)(cluster);
    desired::<PodDisruptionBudget>(
        shared_metadata(vocabulary, namespace, cluster, name, owners),
        json!({ "spec": spec }),
    )
}

fn shared_metadata(
    vocabulary: &Vocabulary,
    namespace: &str,
    cluster: &str,
    name: String,
    owners: Vec<OwnerReference>,
) -> ObjectMeta {
    let labels = (vocabulary.name.shared_labels)(SLURMD.program, SLURMD.component, cluster);
    ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels),
        owner_references: Some(owners),
        ..ObjectMeta::default()
    }
}

/// The `ConfigMap` with `sshd_config` for workers.
pub fn ssh_config(parent: &Parent, extra: Option<&str>) -> Desired {
    let ours = ["UsePAM yes", "Subsystem sftp internal-sftp", "AuthenticationMethods publickey password"];
    let text = sshd_config(&ours, extra);
    let metadata = parent.metadata((parent.vocabulary.name.ssh_config)(&parent.name), SLURMD, &[]);
    desired::<ConfigMap>(metadata, json!({"data": {"sshd_config": text}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address of slurmctld may come from a user, and the images evaluate the arguments of slurmd.
    #[test]
    fn words_that_mean_something_to_a_shell_are_quoted() {
        for plain in ["slurm-controller.slurm:6817", "[fd00::1]:6817,ctl_2:6817"] {
            assert_eq!(plain_word(plain), plain);
        }
        for (text, quoted) in [("$(id):6817", "'$(id):6817'"), ("a;b", "'a;b'"), ("a b", "'a b'"), ("`id`", "'`id`'")] {
            assert_eq!(plain_word(text), quoted);
        }
    }
}
