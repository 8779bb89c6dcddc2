//! What the Go operator makes of the custom resources.

use anyhow::Result;
use kube::{ResourceExt, api::DynamicObject};
use serde_json::{Value, json};
use slurm_operator_api::slinky::names::{annotation, label};

use crate::{
    Scene,
    managed::{CLUSTER, ManagedSlurm, NODE_SET, resources},
    slurm_image,
};

/// How it ends a worker.
const PRE_STOP: &str = "scontrol update nodename=$(hostname) state=down reason='slurm-operator: Pod is terminating';";

/// What it sends to the log of the pod.
const LOGFILE: &str = r#"mkdir -p "$(dirname "$SOCKET")"; [ -p "$SOCKET" ] || mkfifo -m 777 "$SOCKET"
trap "exit 0" TERM
while true; do cat "$SOCKET" || true; sleep 1; done"#;

/// As from a user who runs on cgroup v1, as some test machines do; its own has `cgroup/v2`.
const CGROUP_CONF: &str = "CgroupPlugin=autodetect\nIgnoreSystemd=yes\n";

/// The custom resources, which own its objects.
pub struct Owners {
    controller: DynamicObject,
    rest_api: DynamicObject,
    pub node_set: DynamicObject,
    namespace: String,
}

impl Owners {
    pub async fn read(scene: &Scene) -> Result<Self> {
        Ok(Self {
            controller: resources(scene, "Controller").get(CLUSTER).await?,
            rest_api: resources(scene, "RestApi").get(CLUSTER).await?,
            node_set: resources(scene, "NodeSet").get(NODE_SET).await?,
            namespace: scene.namespace.name().to_owned(),
        })
    }
}

/// One of the workers that it makes.
#[derive(Clone, Copy)]
pub enum Worker {
    Numbered(u8),
    /// In a set with one worker on each matching Kubernetes node.
    On(&'static str),
}

/// The hashes of all entries of a Secret, or a `ConfigMap`.
pub struct Hashes {
    slurm_key: String,
    jwt_key: String,
    config: String,
}

impl Hashes {
    /// The Secrets have one entry each.
    pub async fn compute(cluster: &ManagedSlurm<'_>, owners: &Owners) -> Result<Self> {
        let sum = async |what: &str| -> Result<String> {
            let sum = cluster.run(&format!("{what} | sha256sum")).await?;
            Ok(sum.split_whitespace().next().unwrap_or_default().to_owned())
        };
        let files = config_map(owners)["data"].clone();
        let text = |file: &str| files[file].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            slurm_key: sum("cat /etc/slurm/slurm.key").await?,
            jwt_key: sum("cat /etc/slurm/jwt.key").await?,
            config: sum(&format!("printf %s '{}{}'", text("cgroup.conf"), text("slurm.conf"))).await?,
        })
    }
}

fn owner(object: &DynamicObject) -> Value {
    let kind = object.types.clone().unwrap_or_default();
    json!([{
        "apiVersion": kind.api_version, "kind": kind.kind, "name": object.name_any(), "uid": object.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }])
}

/// The Service and the budget of the workers belong to all sets, so that none of them is the controller.
fn shared_owner(object: &DynamicObject) -> Value {
    let mut owner = owner(object);
    owner[0].as_object_mut().map(|fields| fields.remove("controller"));
    owner
}

fn selector(program: &str, instance: &str) -> Value {
    json!({label::NAME: program, label::INSTANCE: instance})
}

fn labels(program: &str, component: &str, instance: &str) -> Value {
    let mut labels = selector(program, instance);
    labels[label::COMPONENT] = json!(component);
    labels
}

pub fn config_map(owners: &Owners) -> Value {
    let conf = owners.controller.data["spec"]["extraConf"].as_str().unwrap_or_default();
    let namespace = &owners.namespace;
    let slurm_conf = format!(
        "#
### GENERAL ###
ClusterName={namespace}_slurm
SlurmUser=slurm
SlurmctldHost=slurm-controller-0(slurm-controller-0.slurm-controller-internal.{namespace})
SlurmctldPort=6817
SlurmctldAddr=slurm-controller.{namespace}
StateSaveLocation=/var/spool/slurmctld/{namespace}_slurm
SlurmdUser=root
SlurmdPort=6818
SlurmdSpoolDir=/var/spool/slurmd
MaxNodeCount=1024
#
### LOGGING ###
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmSchedLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
#
### PLUGINS & PARAMETERS ###
AuthType=auth/slurm
CredType=cred/slurm
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/etc/slurm/jwt.key
AuthInfo=use_client_ids
SlurmctldParameters=enable_configless,reconfig_on_restart
#
### ACCOUNTING ###
AccountingStorageType=accounting_storage/none
#
### NODESET & PARTITION ###
NodeSet=workers Feature=workers
#
### EXTRA CONFIG ###
{conf}
"
    );
    json!({
        "kind": "ConfigMap",
        "metadata": {
            "name": "slurm-config", "labels": labels("slurmctld", "controller", CLUSTER),
            "ownerReferences": owner(&owners.controller),
        },
        "data": {"slurm.conf": slurm_conf, "cgroup.conf": CGROUP_CONF},
    })
}

fn service(name: &str, labels: &Value, owner: &Value, selector: &Value, port: u16) -> Value {
    let target = selector[label::NAME].clone();
    json!({
        "kind": "Service",
        "metadata": {"name": name, "labels": labels, "ownerReferences": owner},
        "spec": {
            "selector": selector,
            "ports": [{"name": target, "protocol": "TCP", "port": port, "targetPort": target}],
        },
    })
}

fn headless(mut service: Value) -> Value {
    service["spec"]["clusterIP"] = json!("None");
    service["spec"]["publishNotReadyAddresses"] = json!(true);
    service
}

/// It selects the slurmctld that has the label, also if there is only one.
pub fn main_service(owners: &Owners) -> Value {
    let labels = labels("slurmctld", "controller", CLUSTER);
    let mut selector = selector("slurmctld", CLUSTER);
    selector[label::ACTIVE] = json!("true");
    service("slurm-controller", &labels, &owner(&owners.controller), &selector, 6817)
}

pub fn internal_service(owners: &Owners) -> Value {
    let labels = labels("slurmctld", "controller", CLUSTER);
    let selector = selector("slurmctld", CLUSTER);
    headless(service("slurm-controller-internal", &labels, &owner(&owners.controller), &selector, 6817))
}

pub fn rest_service(owners: &Owners) -> Value {
    let labels = labels("slurmrestd", "restapi", CLUSTER);
    service("slurm-restapi", &labels, &owner(&owners.rest_api), &selector("slurmrestd", CLUSTER), 6820)
}

pub fn worker_service(owners: &Owners) -> Value {
    let selector = json!({label::NAME: "slurmd", label::CLUSTER: CLUSTER});
    headless(service("slurm-workers-slurm", &json!({}), &shared_owner(&owners.node_set), &selector, 6818))
}

pub fn budget(owners: &Owners) -> Value {
    let selector = json!({label::POD_PROTECT: "true", label::CLUSTER: CLUSTER});
    json!({
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "slurm-workers-pdb-slurm", "ownerReferences": shared_owner(&owners.node_set)},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": selector}},
    })
}

/// The log of a daemon, as a sidecar.
fn logfile(program: &str) -> Result<Value> {
    Ok(json!({
        "name": "logfile", "image": slurm_image(program)?, "imagePullPolicy": "Never", "restartPolicy": "Always",
        "command": ["sh", "-c", LOGFILE],
        "env": [{"name": "SOCKET", "value": format!("/var/log/slurm/{program}.log")}],
        "volumeMounts": [log_mount()],
    }))
}

fn etc_mount() -> Value {
    json!({"name": "slurm-etc", "mountPath": "/etc/slurm", "readOnly": true})
}

fn log_mount() -> Value {
    json!({"name": "slurm-logfile", "mountPath": "/var/log/slurm"})
}

fn log_volume() -> Value {
    json!({"name": "slurm-logfile", "emptyDir": {"medium": "Memory"}})
}

/// A key of the user's Secret, as a file.
fn key(secret: &str, file: &str) -> Value {
    json!({"secret": {"name": secret, "items": [{"key": file, "path": file}]}})
}

fn http(path: &str, program: &str) -> Value {
    json!({"httpGet": {"path": path, "port": program}, "failureThreshold": 6, "periodSeconds": 10})
}

fn ready(program: &str) -> Value {
    json!({"httpGet": {"path": "/readyz", "port": program}})
}

fn user(id: u32) -> Value {
    json!({"runAsNonRoot": true, "runAsUser": id, "runAsGroup": id})
}

pub fn slurmctld(owners: &Owners, hashes: &Hashes) -> Result<Value> {
    let state = format!("/var/spool/slurmctld/{}_slurm", owners.namespace);
    let spec = &owners.controller.data["spec"];
    let mut pod_user = user(401);
    pod_user["fsGroup"] = json!(401);
    let apart = json!({"labelSelector": {"matchLabels": selector("slurmctld", CLUSTER)}, "topologyKey": "kubernetes.io/hostname"});
    let container = with(
        &spec["slurmctld"],
        json!({
            "name": "slurmctld",
            "ports": [{"name": "slurmctld", "containerPort": 6817, "protocol": "TCP"}],
            "startupProbe": http("/livez", "slurmctld"), "livenessProbe": http("/livez", "slurmctld"),
            "readinessProbe": ready("slurmctld"),
            "securityContext": user(401),
            "volumeMounts": [
                etc_mount(), {"name": "run", "mountPath": "/run"}, {"name": "statesave", "mountPath": state},
                {"name": "slurm-authsocket", "mountPath": "/run/slurmctld"}, log_mount(),
            ],
        }),
    );
    let mut pod = json!({
        "automountServiceAccountToken": false,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "securityContext": pod_user,
        "initContainers": [logfile("slurmctld")?],
        "containers": [container],
        "volumes": [
            {"name": "slurm-etc", "projected": {"defaultMode": 0o610, "sources": [
                {"configMap": {"name": "slurm-config"}},
                key("slurm-auth-slurm", "slurm.key"), key("slurm-auth-jwt", "jwt.key"),
            ]}},
            log_volume(), {"name": "run", "emptyDir": {"medium": "Memory"}}, {"name": "slurm-authsocket", "emptyDir": {}},
        ],
    });
    merge(&mut pod, &spec["template"]["spec"]);
    let claim = &spec["persistence"];
    let resources = claim.get("resources").cloned().unwrap_or_else(|| json!({"requests": {"storage": "4Gi"}}));
    let annotations = json!({
        "kubectl.kubernetes.io/default-container": "slurmctld",
        annotation::hash::SLURM_KEY: hashes.slurm_key, annotation::hash::JWT_KEY: hashes.jwt_key,
        annotation::hash::SLURM_CONFIG: hashes.config,
    });
    Ok(json!({
        "kind": "StatefulSet",
        "metadata": {
            "name": "slurm-controller", "labels": labels("slurmctld", "controller", CLUSTER),
            "ownerReferences": owner(&owners.controller),
        },
        "spec": {
            "replicas": 1, "revisionHistoryLimit": 0, "serviceName": "slurm-controller-internal",
            "selector": {"matchLabels": selector("slurmctld", CLUSTER)},
            "template": {
                "metadata": {"labels": labels("slurmctld", "controller", CLUSTER), "annotations": annotations},
                "spec": pod,
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "statesave"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources},
            }],
        },
    }))
}

pub fn slurmrestd(owners: &Owners) -> Value {
    let spec = &owners.rest_api.data["spec"];
    let mut pod_user = user(65534);
    pod_user["fsGroup"] = json!(65534);
    let port = json!({"tcpSocket": {"port": 6820}});
    let probe = with(&json!({"failureThreshold": 6, "periodSeconds": 10}), port.clone());
    let container = with(
        &spec["slurmrestd"],
        json!({
            "name": "slurmrestd",
            "args": ["-s", "openapi/slurmctld", "0.0.0.0:6820"],
            "env": [
                {"name": "SLURM_JWT", "value": "daemon"},
                {"name": "SLURMRESTD_SECURITY", "value": "disable_unshare_files,disable_unshare_sysv"},
            ],
            "ports": [{"name": "slurmrestd", "containerPort": 6820, "protocol": "TCP"}],
            "startupProbe": probe, "livenessProbe": probe, "readinessProbe": port,
            "securityContext": user(65534),
            "volumeMounts": [etc_mount()],
        }),
    );
    let mut pod = json!({
        "automountServiceAccountToken": false,
        "securityContext": pod_user,
        "containers": [container],
        "volumes": [{"name": "slurm-etc", "projected": {"defaultMode": 0o600, "sources": [
            {"configMap": {"name": "slurm-config", "items": [{"key": "slurm.conf", "path": "slurm.conf"}]}},
            key("slurm-auth-slurm", "slurm.key"),
        ]}}],
    });
    merge(&mut pod, &spec["template"]["spec"]);
    json!({
        "kind": "Deployment",
        "metadata": {
            "name": "slurm-restapi", "labels": labels("slurmrestd", "restapi", CLUSTER),
            "ownerReferences": owner(&owners.rest_api),
        },
        "spec": {
            "replicas": 1, "revisionHistoryLimit": 0, "selector": {"matchLabels": selector("slurmrestd", CLUSTER)},
            "template": {
                "metadata": {
                    "labels": labels("slurmrestd", "restapi", CLUSTER),
                    "annotations": {"kubectl.kubernetes.io/default-container": "slurmrestd"},
                },
                "spec": pod,
            },
        },
    })
}

pub fn worker(owners: &Owners, worker: Worker, hash: &str) -> Result<Value> {
    let namespace = &owners.namespace;
    let spec = &owners.node_set.data["spec"];
    // A worker of a Kubernetes node gets a name of the API server's.
    let (name, mode, hostname) = match worker {
        Worker::Numbered(ordinal) => {
            let name = format!("{NODE_SET}-{ordinal}");
            (json!({"name": name}), "StatefulSet", name)
        }
        Worker::On(host) => (json!({"generateName": format!("{NODE_SET}-")}), "DaemonSet", host.to_owned()),
    };
    let mut labels = labels("slurmd", "worker", NODE_SET);
    merge(
        &mut labels,
        &json!({label::CLUSTER: CLUSTER, label::REVISION: hash, label::SCALING_MODE: mode, label::POD_HOSTNAME: hostname}),
    );
    let apart = json!({
        "labelSelector": {"matchExpressions": [{"key": label::NAME, "operator": "In", "values": ["slurmd"]}]},
        "topologyKey": "kubernetes.io/hostname",
    });
    let mut affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}});
    match worker {
        Worker::Numbered(ordinal) => {
            merge(&mut labels, &json!({label::POD_NAME: hostname, label::POD_INDEX: ordinal.to_string()}));
        }
        Worker::On(host) => {
            let field = json!({"key": "metadata.name", "operator": "In", "values": [host]});
            let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
            affinity["nodeAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
        }
    }
    let mut pod = json!({
        "automountServiceAccountToken": false, "enableServiceLinks": false,
        "affinity": affinity,
        "subdomain": "slurm-workers-slurm",
        "dnsConfig": {"searches": [format!("slurm-workers-slurm.{namespace}.svc.cluster.local")]},
        "tolerations": [{"key": "nodeset.slinky.slurm.net/worker", "operator": "Equal", "effect": "NoExecute"}],
        "initContainers": [logfile("slurmd")?],
        "containers": [slurmd(namespace, &spec["slurmd"])],
        "volumes": [
            {"name": "slurm-etc", "projected": {"defaultMode": 0o600, "sources": [key("slurm-auth-slurm", "slurm.key")]}},
            log_volume(),
        ],
    });
    merge(&mut pod, &spec["template"]["spec"]);
    pod["hostname"] = json!(hostname);
    let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let annotations = json!({
        "kubectl.kubernetes.io/default-container": "slurmd",
        annotation::hash::SSHD_CONF: nothing, annotation::hash::SSSD_CONF: nothing,
    });
    let metadata = json!({"labels": labels, "annotations": annotations, "ownerReferences": owner(&owners.node_set)});
    Ok(json!({"kind": "Pod", "metadata": with(&name, metadata), "spec": pod}))
}

/// The container of a worker. The limits are whole CPUs, and bytes.
fn slurmd(namespace: &str, spec: &Value) -> Value {
    let topology = format!("metadata.annotations['{}']", annotation::TOPOLOGY);
    let limit = |resource: &str| spec["resources"]["limits"][resource].as_u64().unwrap_or_default();
    let container = json!({
        "name": "slurmd",
        "args": [
            "-Z", "--conf-server", format!("slurm-controller.{namespace}:6817"),
            "--conf", r#"'Features=workers Topology='"$SLINKY_TOPOLOGY"''"#,
        ],
        "env": [
            {"name": "SLINKY_TOPOLOGY", "valueFrom": {"fieldRef": {"fieldPath": topology}}},
            {"name": "POD_CPUS", "value": limit("cpu").to_string()},
            {"name": "POD_MEMORY", "value": (limit("memory") >> 20).to_string()},
        ],
        "ports": [{"name": "slurmd", "containerPort": 6818, "protocol": "TCP"}],
        "startupProbe": http("/livez", "slurmd"), "livenessProbe": http("/livez", "slurmd"),
        "readinessProbe": ready("slurmd"),
        "securityContext": {
            "privileged": true, "capabilities": {"add": ["BPF", "NET_ADMIN", "SYS_ADMIN", "SYS_NICE"]},
        },
        "lifecycle": {"preStop": {"exec": {"command": ["/usr/bin/sh", "-c", PRE_STOP]}}},
        "volumeMounts": [etc_mount(), log_mount()],
    });
    with(spec, container)
}

/// The revision of the workers, and its hash. Its content are Go structs, which have fields that are not set, and write quantities in
/// their own way.
pub fn revision(owners: &Owners) -> Result<(Value, String)> {
    let spec = &owners.node_set.data["spec"];
    let replaced = |field: &str, base: Value| {
        let mut part = base;
        merge(&mut part, &spec[field]);
        part["$patch"] = json!("replace");
        part
    };
    let container = || json!({"name": "", "resources": {}});
    let mut template = replaced("template", json!({"metadata": {}, "spec": {}}));
    template["spec"]["containers"] = Value::Null;
    let mut slurmd = replaced("slurmd", container());
    for amounts in slurmd["resources"].as_object_mut().into_iter().flat_map(|kinds| kinds.values_mut()) {
        for amount in amounts.as_object_mut().into_iter().flat_map(|amounts| amounts.values_mut()) {
            *amount = json!(canonical(amount));
        }
    }
    let data = json!({"spec": {
        "template": template, "slurmd": slurmd, "logfile": replaced("logfile", container()),
        "ssh": replaced("ssh", json!({"enabled": false})), "ordinalPadding": 0, "oversubscribeNode": false,
    }});
    let hash = hash_of(&serde_json::to_string(&data)?);
    let revision = json!({
        "kind": "ControllerRevision",
        "metadata": {
            "name": format!("{NODE_SET}-{hash}"), "labels": {label::REVISION: hash},
            "ownerReferences": owner(&owners.node_set),
        },
        "revision": 1,
        "data": data,
    });
    Ok((revision, hash))
}

/// A quantity as Kubernetes writes it: `100m` for 0.1.
fn canonical(amount: &Value) -> String {
    match (amount.as_u64(), amount.as_f64()) {
        (Some(whole), _) => whole.to_string(),
        (None, Some(part)) => format!("{}m", part * 1000.0),
        (None, None) => amount.as_str().unwrap_or_default().to_owned(),
    }
}

/// The hash of a revision: FNV-1 of its data and the number of collisions, in the letters that Kubernetes uses in names.
fn hash_of(data: &str) -> String {
    let sum =
        data.bytes().chain(*b"0").fold(0x811c_9dc5_u32, |sum, byte| sum.wrapping_mul(0x0100_0193) ^ u32::from(byte));
    let letters = b"bcdfghjklmnpqrstvwxz2456789";
    let letter = |byte: u8| char::from(letters[usize::from(byte) % letters.len()]);
    sum.to_string().bytes().map(letter).collect()
}

/// An object with these fields, too.
fn with(fields: &Value, mut object: Value) -> Value {
    merge(&mut object, fields);
    object
}

/// Merges objects; other values are replaced.
fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (base, over) => *base = over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::{canonical, hash_of};

    #[test]
    fn hashes_as_kubernetes_does() {
        // FNV-1 of "0" is 84696367.
        assert_eq!(hash_of(""), "d8bfb7bc");
    }

    #[test]
    fn writes_quantities_as_kubernetes_does() {
        let written = |amount: serde_json::Value| canonical(&amount);
        assert_eq!(written(serde_json::json!(0.1)), "100m");
        assert_eq!(written(serde_json::json!(2)), "2");
        assert_eq!(written(serde_json::json!("64Mi")), "64Mi");
    }
}
