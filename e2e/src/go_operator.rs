//! A cluster as the Go operator (1.3.0-rc1) leaves it: its objects, from what it makes of the custom resources.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use slurm_operator_api::slinky::names::{self, annotation, label};
use testkit::wait_for;

use crate::{
    Scene,
    managed::{CLUSTER, ManagedSlurm, NODE_SET, SLURMCTLD, STARTED, resources, slurm_node},
    operator::is_ready,
    slurm_image,
};

/// Its field manager, which is that of every program made with kubebuilder.
const MANAGER: &str = "manager";

/// How it ends a worker.
const PRE_STOP: &str = "scontrol update nodename=$(hostname) state=down reason='slurm-operator: Pod is terminating';";

/// What it sends to the log of the pod.
const LOGFILE: &str = r#"mkdir -p "$(dirname "$SOCKET")"; [ -p "$SOCKET" ] || mkfifo -m 777 "$SOCKET"
trap "exit 0" TERM
while true; do cat "$SOCKET" || true; sleep 1; done"#;

/// As from a user who runs on cgroup v1, as some test machines do; its own has `cgroup/v2`.
const CGROUP_CONF: &str = "CgroupPlugin=autodetect\nIgnoreSystemd=yes\n";

/// The kinds of its objects, each with the names of those that it makes of the cluster. It has no key ring.
const OBJECTS: &[(&str, &str, &[&str])] = &[
    ("v1", "ConfigMap", &["slurm-config"]),
    ("v1", "Service", &["slurm-controller", "slurm-controller-internal", "slurm-restapi", "slurm-workers-slurm"]),
    ("v1", "Secret", &["slurm-auth-slurm-ring"]),
    ("apps/v1", "StatefulSet", &["slurm-controller"]),
    ("apps/v1", "Deployment", &["slurm-restapi"]),
    ("policy/v1", "PodDisruptionBudget", &["slurm-workers-pdb-slurm"]),
];

/// Replaces everything that this operator has made of the custom resources by what the Go operator makes of them, with two workers. No
/// operator may run, nor jobs.
pub async fn rewrite(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let owners = Owners::read(scene).await?;
    let hashes = Hashes::compute(cluster, &owners).await?;
    let of_set = ListParams::default().labels(&format!("{}={NODE_SET}", label::INSTANCE));
    for pod in cluster.workers().await? {
        scene.pods().delete(&pod.name_any(), &DeleteParams::default()).await?;
    }
    for revision in api(scene, "apps/v1", "ControllerRevision").list(&of_set).await? {
        remove(scene, "apps/v1", "ControllerRevision", &revision.name_any()).await?;
    }
    for (version, kind, names) in OBJECTS {
        for name in *names {
            remove(scene, version, kind, name).await?;
        }
    }
    wait_for("the pods to be gone", STARTED, async || {
        let (workers, slurmctld) = (cluster.workers().await?, scene.pods().get_opt(SLURMCTLD).await?);
        ensure!(workers.is_empty() && slurmctld.is_none(), "{} workers are left", workers.len());
        Ok(())
    })
    .await?;

    for object in [config_map(&owners), main_service(&owners), internal_service(&owners), rest_service(&owners)] {
        create(scene, "v1", &object).await?;
    }
    create(scene, "v1", &worker_service(&owners)).await?;
    create(scene, "apps/v1", &slurmctld(&owners, &hashes)?).await?;
    create(scene, "apps/v1", &slurmrestd(&owners)?).await?;
    create(scene, "policy/v1", &budget(&owners)).await?;
    let (revision, hash) = revision(&owners)?;
    create(scene, "apps/v1", &revision).await?;
    for ordinal in 0..2 {
        create(scene, "v1", &worker(&owners, ordinal, &hash)?).await?;
    }

    wait_for("slurmctld of the Go operator", STARTED, async || {
        let pod = scene.pods().get(SLURMCTLD).await?;
        ensure!(is_ready(&pod), "it is not ready");
        Ok(())
    })
    .await?;
    let active = json!({"metadata": {"labels": {label::ACTIVE: "true"}}});
    scene.pods().patch(SLURMCTLD, &as_manager(), &Patch::Merge(active)).await?;
    wait_for("the workers of the Go operator", STARTED, async || {
        let pods = cluster.workers().await?;
        ensure!(pods.len() == 2 && pods.iter().all(is_ready), "they are not ready");
        // It sends IDLE with the comment for a new pod.
        let nodes = cluster.nodes().await?;
        for (node, _) in nodes.iter().filter(|(_, state)| state.starts_with("down")) {
            cluster.run(&format!("scontrol update nodename={node} state=resume")).await?;
        }
        ensure!(nodes.len() == 2 && nodes.values().all(|state| state == "idle"), "{nodes:?}");
        Ok(())
    })
    .await?;
    for pod in cluster.workers().await? {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let comment = json!({
            "namespace": scene.namespace.name(), "podName": pod.name_any(), "node": node,
            "nodeSetName": NODE_SET, "nodeSetUID": owners.node_set.uid(),
        });
        cluster.run(&format!("scontrol update nodename={} comment='{comment}'", slurm_node(&pod))).await?;
    }
    Ok(())
}

/// What it does with a worker whose Kubernetes node is cordoned.
pub async fn cordon(scene: &Scene, cluster: &ManagedSlurm<'_>, node: &str) -> Result<()> {
    let pod = cluster.worker(node).await?;
    let host = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let name = format!("{}/{}", scene.namespace.name(), pod.name_any());
    let shown = json!({"metadata": {"annotations": {annotation::POD_CORDON: "true"}}});
    scene.pods().patch(&pod.name_any(), &as_manager(), &Patch::Merge(shown)).await?;
    let reason = format!("{}Node ({host}) was cordoned, Pod ({name}) must be cordoned", names::REASON_PREFIX);
    cluster.run(&format!("scontrol update nodename={node} state=drain reason='{reason}'")).await.map(drop)
}

/// The custom resources, which own its objects.
struct Owners {
    controller: DynamicObject,
    rest_api: DynamicObject,
    node_set: DynamicObject,
    namespace: String,
}

impl Owners {
    async fn read(scene: &Scene) -> Result<Self> {
        Ok(Self {
            controller: resources(scene, "Controller").get(CLUSTER).await?,
            rest_api: resources(scene, "RestApi").get(CLUSTER).await?,
            node_set: resources(scene, "NodeSet").get(NODE_SET).await?,
            namespace: scene.namespace.name().to_owned(),
        })
    }
}

/// The hashes of all entries of a Secret, or a `ConfigMap`.
struct Hashes {
    slurm_key: String,
    jwt_key: String,
    config: String,
}

impl Hashes {
    /// The Secrets have one entry each.
    async fn compute(cluster: &ManagedSlurm<'_>, owners: &Owners) -> Result<Self> {
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

fn config_map(owners: &Owners) -> Value {
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
fn main_service(owners: &Owners) -> Value {
    let labels = labels("slurmctld", "controller", CLUSTER);
    let mut selector = selector("slurmctld", CLUSTER);
    selector[label::ACTIVE] = json!("true");
    service("slurm-controller", &labels, &owner(&owners.controller), &selector, 6817)
}

fn internal_service(owners: &Owners) -> Value {
    let labels = labels("slurmctld", "controller", CLUSTER);
    let selector = selector("slurmctld", CLUSTER);
    headless(service("slurm-controller-internal", &labels, &owner(&owners.controller), &selector, 6817))
}

fn rest_service(owners: &Owners) -> Value {
    let labels = labels("slurmrestd", "restapi", CLUSTER);
    service("slurm-restapi", &labels, &owner(&owners.rest_api), &selector("slurmrestd", CLUSTER), 6820)
}

fn worker_service(owners: &Owners) -> Value {
    let selector = json!({label::NAME: "slurmd", label::CLUSTER: CLUSTER});
    headless(service("slurm-workers-slurm", &json!({}), &shared_owner(&owners.node_set), &selector, 6818))
}

fn budget(owners: &Owners) -> Value {
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

fn slurmctld(owners: &Owners, hashes: &Hashes) -> Result<Value> {
    let state = format!("/var/spool/slurmctld/{}_slurm", owners.namespace);
    let spec = &owners.controller.data["spec"];
    let mut pod_user = user(401);
    pod_user["fsGroup"] = json!(401);
    let apart = json!({"labelSelector": {"matchLabels": selector("slurmctld", CLUSTER)}, "topologyKey": "kubernetes.io/hostname"});
    let mut pod = json!({
        "automountServiceAccountToken": false,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "securityContext": pod_user,
        "initContainers": [logfile("slurmctld")?],
        "containers": [{
            "name": "slurmctld", "image": slurm_image("slurmctld")?, "imagePullPolicy": "Never",
            "ports": [{"name": "slurmctld", "containerPort": 6817, "protocol": "TCP"}],
            "startupProbe": http("/livez", "slurmctld"), "livenessProbe": http("/livez", "slurmctld"),
            "readinessProbe": ready("slurmctld"),
            "securityContext": user(401),
            "volumeMounts": [
                etc_mount(), {"name": "run", "mountPath": "/run"}, {"name": "statesave", "mountPath": state},
                {"name": "slurm-authsocket", "mountPath": "/run/slurmctld"}, log_mount(),
            ],
        }],
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

fn slurmrestd(owners: &Owners) -> Result<Value> {
    let spec = &owners.rest_api.data["spec"];
    let mut pod_user = user(65534);
    pod_user["fsGroup"] = json!(65534);
    let port = json!({"tcpSocket": {"port": 6820}});
    let mut probe = port.clone();
    merge(&mut probe, &json!({"failureThreshold": 6, "periodSeconds": 10}));
    let mut pod = json!({
        "automountServiceAccountToken": false,
        "securityContext": pod_user,
        "containers": [{
            "name": "slurmrestd", "image": slurm_image("slurmrestd")?, "imagePullPolicy": "Never",
            "args": ["-s", "openapi/slurmctld", "0.0.0.0:6820"],
            "env": [
                {"name": "SLURM_JWT", "value": "daemon"},
                {"name": "SLURMRESTD_SECURITY", "value": "disable_unshare_files,disable_unshare_sysv"},
            ],
            "ports": [{"name": "slurmrestd", "containerPort": 6820, "protocol": "TCP"}],
            "startupProbe": probe, "livenessProbe": probe, "readinessProbe": port,
            "securityContext": user(65534),
            "volumeMounts": [etc_mount()],
        }],
        "volumes": [{"name": "slurm-etc", "projected": {"defaultMode": 0o600, "sources": [
            {"configMap": {"name": "slurm-config", "items": [{"key": "slurm.conf", "path": "slurm.conf"}]}},
            key("slurm-auth-slurm", "slurm.key"),
        ]}}],
    });
    merge(&mut pod, &spec["template"]["spec"]);
    Ok(json!({
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
    }))
}

fn worker(owners: &Owners, ordinal: u8, hash: &str) -> Result<Value> {
    let (namespace, name) = (&owners.namespace, format!("{NODE_SET}-{ordinal}"));
    let mut labels = labels("slurmd", "worker", NODE_SET);
    merge(
        &mut labels,
        &json!({
            label::CLUSTER: CLUSTER, label::REVISION: hash, label::SCALING_MODE: "StatefulSet", label::POD_NAME: name,
            label::POD_INDEX: ordinal.to_string(), label::POD_HOSTNAME: name,
        }),
    );
    let topology = format!("metadata.annotations['{}']", annotation::TOPOLOGY);
    let apart = json!({
        "labelSelector": {"matchExpressions": [{"key": label::NAME, "operator": "In", "values": ["slurmd"]}]},
        "topologyKey": "kubernetes.io/hostname",
    });
    let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let mut pod = json!({
        "automountServiceAccountToken": false, "enableServiceLinks": false,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "subdomain": "slurm-workers-slurm",
        "dnsConfig": {"searches": [format!("slurm-workers-slurm.{namespace}.svc.cluster.local")]},
        "tolerations": [{"key": "nodeset.slinky.slurm.net/worker", "operator": "Equal", "effect": "NoExecute"}],
        "initContainers": [logfile("slurmd")?],
        "containers": [{
            "name": "slurmd", "image": slurm_image("slurmd")?, "imagePullPolicy": "Never",
            "args": [
                "-Z", "--conf-server", format!("slurm-controller.{namespace}:6817"),
                "--conf", r#"'Features=workers Topology='"$SLINKY_TOPOLOGY"''"#,
            ],
            "env": [
                {"name": "SLINKY_TOPOLOGY", "valueFrom": {"fieldRef": {"fieldPath": topology}}},
                {"name": "POD_CPUS", "value": "0"}, {"name": "POD_MEMORY", "value": "0"},
            ],
            "ports": [{"name": "slurmd", "containerPort": 6818, "protocol": "TCP"}],
            "startupProbe": http("/livez", "slurmd"), "livenessProbe": http("/livez", "slurmd"),
            "readinessProbe": ready("slurmd"),
            "securityContext": {
                "privileged": true, "capabilities": {"add": ["BPF", "NET_ADMIN", "SYS_ADMIN", "SYS_NICE"]},
            },
            "lifecycle": {"preStop": {"exec": {"command": ["/usr/bin/sh", "-c", PRE_STOP]}}},
            "volumeMounts": [etc_mount(), log_mount()],
        }],
        "volumes": [
            {"name": "slurm-etc", "projected": {"defaultMode": 0o600, "sources": [key("slurm-auth-slurm", "slurm.key")]}},
            log_volume(),
        ],
    });
    merge(&mut pod, &owners.node_set.data["spec"]["template"]["spec"]);
    pod["hostname"] = json!(name);
    let annotations = json!({
        "kubectl.kubernetes.io/default-container": "slurmd",
        annotation::hash::SSHD_CONF: nothing, annotation::hash::SSSD_CONF: nothing,
    });
    Ok(json!({
        "kind": "Pod",
        "metadata": {
            "name": name, "labels": labels, "annotations": annotations, "ownerReferences": owner(&owners.node_set),
        },
        "spec": pod,
    }))
}

/// The revision of the workers, and its hash. Its content are Go structs, which have fields that are not set.
fn revision(owners: &Owners) -> Result<(Value, String)> {
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
    let data = json!({"spec": {
        "template": template, "slurmd": replaced("slurmd", container()), "logfile": replaced("logfile", container()),
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

/// The hash of a revision: FNV-1 of its data and the number of collisions, in the letters that Kubernetes uses in names.
fn hash_of(data: &str) -> String {
    let sum =
        data.bytes().chain(*b"0").fold(0x811c_9dc5_u32, |sum, byte| sum.wrapping_mul(0x0100_0193) ^ u32::from(byte));
    let letters = b"bcdfghjklmnpqrstvwxz2456789";
    let letter = |byte: u8| char::from(letters[usize::from(byte) % letters.len()]);
    sum.to_string().bytes().map(letter).collect()
}

fn as_manager() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
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

fn resource(version: &str, kind: &str) -> ApiResource {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn api(scene: &Scene, version: &str, kind: &str) -> Api<DynamicObject> {
    scene.namespace.dynamic_api(&resource(version, kind))
}

/// Deletes an object without what it owns.
async fn remove(scene: &Scene, version: &str, kind: &str, name: &str) -> Result<()> {
    let objects = api(scene, version, kind);
    // slurmctld and slurmrestd go first; the claim with the state stays.
    let policy = if ["StatefulSet", "Deployment"].contains(&kind) {
        PropagationPolicy::Foreground
    } else {
        PropagationPolicy::Background
    };
    let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
    objects.delete(name, &params).await.with_context(|| format!("cannot delete the {kind} {name}"))?;
    wait_for(&format!("the {kind} {name} to be gone"), STARTED, async || {
        ensure!(objects.get_opt(name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
}

async fn create(scene: &Scene, version: &str, object: &Value) -> Result<()> {
    let kind = object["kind"].as_str().context("an object without a kind")?;
    let mut object = object.clone();
    object["apiVersion"] = json!(version);
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let object: DynamicObject = serde_json::from_value(object)?;
    let created = api(scene, version, kind).create(&params, &object).await;
    created.with_context(|| format!("cannot create the {kind} {}", object.name_any()))?;
    Ok(())
}

/// Everything that it has written apart from workers, with the names of those who have written to it.
pub async fn writers(scene: &Scene) -> Result<BTreeMap<String, Vec<String>>> {
    let mut found = BTreeMap::new();
    for (version, kind, names) in OBJECTS.iter().filter(|(_, kind, _)| *kind != "Secret") {
        for name in *names {
            let object = api(scene, version, kind).get(name).await?;
            let writers = object.metadata.managed_fields.unwrap_or_default().into_iter();
            let writers = writers.filter(|writer| writer.subresource.is_none()).filter_map(|writer| writer.manager);
            found.insert(format!("{kind} {name}"), writers.collect());
        }
    }
    Ok(found)
}

/// The spec of an object.
pub async fn spec(scene: &Scene, version: &str, kind: &str, name: &str) -> Result<Value> {
    Ok(api(scene, version, kind).get(name).await?.data["spec"].clone())
}

#[cfg(test)]
mod tests {
    use super::hash_of;

    #[test]
    fn hashes_as_kubernetes_does() {
        // FNV-1 of "0" is 84696367.
        assert_eq!(hash_of(""), "d8bfb7bc");
    }
}
