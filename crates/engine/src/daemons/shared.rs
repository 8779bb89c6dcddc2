//! Helpers for the objects of all daemons.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Resource, ResourceExt,
    core::{ApiResource, DynamicObject, NamespaceResourceScope, ObjectMeta},
};
use serde_json::{Value, json};
use slurm::version::{Feature, SlurmVersion, supports};
use slurm_operator_api::common::{
    dns::service_host,
    port,
    shared::{Metadata, SecretKeySelector},
    template::{Overlay, PodTemplate, ServiceTemplate},
    vocabulary::Vocabulary,
};

use super::{keyring, progress::Problem};
use crate::{
    hash::hash,
    json::merge,
    overlay::{self, OverlayError},
    plan::Desired,
};

/// User and group `slurm` in all images.
pub const SLURM_ID: i64 = 401;

/// User and group `nobody`.
pub const NOBODY_ID: i64 = 65534;

/// The configuration directory.
pub const ETC: &str = "/etc/slurm";

/// The directory of log files.
pub const LOG_FOLDER: &str = "/var/log/slurm";

/// The annotation with the default container of kubectl commands.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Labels and annotations, sorted.
pub type StringMap = BTreeMap<String, String>;

/// A Slurm daemon and its label values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// The program, which is also the name of its main container.
    pub program: &'static str,
    /// The value of the component label.
    pub component: &'static str,
}

pub const SLURMCTLD: Daemon = Daemon { program: "slurmctld", component: "controller" };
pub const SLURMRESTD: Daemon = Daemon { program: "slurmrestd", component: "restapi" };
pub const SLURMDBD: Daemon = Daemon { program: "slurmdbd", component: "accounting" };
pub const SLURMD: Daemon = Daemon { program: "slurmd", component: "worker" };
/// sackd and sshd.
pub const LOGIN: Daemon = Daemon { program: "login", component: "login" };

impl Daemon {
    /// The labels that select its pods. `instance` is the name of the custom resource that it runs for.
    pub fn selector(self, vocabulary: &Vocabulary, instance: &str) -> StringMap {
        (vocabulary.name.selector)(self.program, instance)
    }

    /// The labels of all its objects.
    pub fn labels(self, vocabulary: &Vocabulary, instance: &str) -> StringMap {
        (vocabulary.name.labels)(self.program, self.component, instance)
    }
}

/// The object that owns the objects of a daemon.
#[derive(Clone, Debug)]
pub struct Parent {
    pub name: String,
    pub namespace: String,
    /// The owner reference for its children.
    pub owner: OwnerReference,
    /// Labels and annotations that its children inherit.
    pub metadata: Metadata,
    pub vocabulary: &'static Vocabulary,
}

impl PartialEq for Parent {
    fn eq(&self, other: &Self) -> bool {
        (&self.owner, &self.metadata) == (&other.owner, &other.metadata)
    }
}

impl Parent {
    /// Takes the parent's part from an object.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K, vocabulary: &'static Vocabulary) -> Self {
        let carried = |texts: &StringMap| -> StringMap {
            let inherited = texts.iter().filter(|(key, _)| !is_bookkeeping(key) && !is_of_group(key, vocabulary.group));
            inherited.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        Self {
            name: object.name_any(),
            namespace: object.namespace().unwrap_or_default(),
            owner: object.controller_owner_ref(&()).unwrap_or_default(),
            metadata: Metadata { labels: carried(object.labels()), annotations: carried(object.annotations()) },
            vocabulary,
        }
    }

    /// The labels that select the pods of a daemon.
    pub fn selector(&self, daemon: Daemon) -> StringMap {
        daemon.selector(self.vocabulary, &self.name)
    }

    /// Metadata of a child. If several set a key, the last one wins; our own labels win over all.
    pub fn metadata(&self, name: String, daemon: Daemon, over: &[&Metadata]) -> ObjectMeta {
        let (labels, annotations) = self.labels_and_annotations(daemon, over);
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(labels),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            owner_references: Some(vec![self.owner.clone()]),
            ..ObjectMeta::default()
        }
    }

    /// Labels and annotations of a child.
    pub fn labels_and_annotations(&self, daemon: Daemon, over: &[&Metadata]) -> (StringMap, StringMap) {
        let mut all = self.metadata.clone();
        for metadata in over {
            all.labels.extend(metadata.labels.clone());
            all.annotations.extend(metadata.annotations.clone());
        }
        all.labels.extend(daemon.labels(self.vocabulary, &self.name));
        (all.labels, all.annotations)
    }
}

/// Keys that other tools use to track an object. On a child they would claim its ownership, and in a pod template every chart
/// release would restart all pods.
fn is_bookkeeping(key: &str) -> bool {
    let prefix = key.split('/').next().unwrap_or_default();
    matches!(key, "app.kubernetes.io/version" | "app.kubernetes.io/managed-by")
        || matches!(
            prefix,
            "helm.sh" | "meta.helm.sh" | "kubectl.kubernetes.io" | "argocd.argoproj.io" | "kapp.k14s.io"
        )
        || ["toolkit.fluxcd.io", "cattle.io", "kyverno.io"].iter().any(|tool| prefix.ends_with(tool))
}

/// Keys by which users tell the operator what to do with this object: they mean nothing on its children.
fn is_of_group(key: &str, group: &str) -> bool {
    let prefix = key.split('/').next().unwrap_or_default();
    prefix.strip_suffix(group).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Builds a desired child from its metadata and its other fields.
pub fn desired<K>(metadata: ObjectMeta, fields: Value) -> Desired
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let resource = ApiResource::erase::<K>(&());
    let mut object = DynamicObject::new("", &resource).data(fields);
    object.metadata = metadata;
    Desired { resource, object, seen: None, takeover: None }
}

/// Like [`desired`], with a hash of the object as an annotation. The hash tells whether the live object is up to date,
/// regardless of defaults set by the API server.
pub fn marked<K>(vocabulary: &Vocabulary, metadata: ObjectMeta, fields: Value) -> Desired
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let mut desired = desired::<K>(metadata, fields);
    let text = serde_json::to_string(&desired.object).unwrap_or_default();
    let annotations = desired.object.metadata.annotations.get_or_insert_default();
    annotations.insert(vocabulary.annotation.applied_hash.to_owned(), hash([("", text.as_str())]));
    desired
}

/// Whether the desired object has been applied to the live one.
pub fn is_applied(vocabulary: &Vocabulary, live: &impl ResourceExt, desired: &Desired) -> bool {
    let applied_hash = |annotations: &StringMap| annotations.get(vocabulary.annotation.applied_hash).cloned();
    applied_hash(live.annotations()) == applied_hash(desired.object.annotations())
}

/// The workload as it is to be written. `former` is what it would be with the user's own Secret instead of the key ring: pods that
/// have that are not restarted for the ring alone.
pub fn unless_former(
    vocabulary: &Vocabulary,
    live: Option<&impl ResourceExt>,
    former: Option<Desired>,
    wanted: Desired,
) -> Desired {
    let is_live = |former: &Desired| live.is_some_and(|live| is_applied(vocabulary, live, former));
    former.filter(is_live).unwrap_or(wanted)
}

/// Builds a pod template: our spec with the user's overlay, and metadata. `hashes` become annotations; the daemon's container
/// is the default container for kubectl.
pub fn pod_template(
    parent: &Parent,
    daemon: Daemon,
    template: &PodTemplate,
    hashes: &StringMap,
    spec: Value,
) -> Result<Value, OverlayError> {
    let spec = overlay::pod_spec(spec, template.spec.fields(), "spec.template.spec")?;
    let (labels, mut annotations) = parent.labels_and_annotations(daemon, &[&template.metadata]);
    annotations.extend(hashes.clone());
    annotations.insert(DEFAULT_CONTAINER.to_owned(), daemon.program.to_owned());
    Ok(json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}))
}

/// The Service of a daemon: one port and the user's overlay. Fields that neither sets, such as the type, are not managed.
pub fn service(
    parent: &Parent,
    name: String,
    daemon: Daemon,
    usual_port: i32,
    template: &ServiceTemplate,
) -> Result<Desired, OverlayError> {
    let mut port = json!({
        "name": daemon.program, "port": template.port_or(usual_port), "protocol": "TCP", "targetPort": daemon.program,
    });
    if let (Some(node_port), Some(port)) = (template.node_port(), port.as_object_mut()) {
        port.insert("nodePort".to_owned(), node_port.into());
    }
    let spec = json!({"selector": parent.selector(daemon), "ports": [port]});
    let spec = overlay::service_spec(spec, template.spec.fields(), "spec.service.spec")?;
    let metadata = parent.metadata(name, daemon, &[&template.metadata]);
    Ok(desired::<k8s_openapi::api::core::v1::Service>(metadata, json!({ "spec": spec })))
}

/// How the daemons of a cluster authenticate to each other.
#[derive(Clone, Copy, Debug)]
pub enum Auth<'a> {
    /// With the key of auth/slurm in this Secret of the user's: the cluster is external, or the key is too short for a ring.
    SlurmKey(&'a SecretKeySelector),
    /// With the keys in the Secret of a key ring.
    KeyRing {
        secret: &'a str,
        /// The ring that the daemon must start with, if a new ring restarts it.
        hash: Option<&'a str>,
    },
}

impl Auth<'_> {
    /// The files that it needs in /etc/slurm, as a source of a projected volume.
    pub fn files(self) -> Value {
        match self {
            Self::SlurmKey(key) => secret_file(&key.name, &key.key, keyring::KEY),
            Self::KeyRing { secret, hash } => {
                let mut items = vec![json!({"key": keyring::JWKS, "path": keyring::JWKS})];
                items.push(json!({"key": keyring::KEY, "path": keyring::KEY}));
                // The kubelet does not start a pod with an older version of the Secret, which does not have this entry.
                items.extend(hash.map(|hash| json!({"key": keyring::marker(hash), "path": "ring"})));
                json!({"secret": {"name": secret, "items": items}})
            }
        }
    }

    /// Annotations of the pods, by which those with a key ring are found.
    pub fn annotations(self, vocabulary: &Vocabulary) -> StringMap {
        let Self::KeyRing { secret, hash } = self else { return StringMap::new() };
        let annotation = &vocabulary.annotation;
        let read = hash.map(|hash| (annotation.key_ring_read.to_owned(), hash.to_owned()));
        std::iter::once((annotation.key_ring.to_owned(), secret.to_owned())).chain(read).collect()
    }
}

/// A probe of a daemon: by HTTP, or by the port alone if its Slurm version has no such endpoints.
pub fn probe(daemon: Daemon, version: Option<SlurmVersion>, path: &str, period: u32, failures: u32) -> Value {
    let mut probe = json!({"periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5});
    let handler = if supports(version, Feature::HealthEndpoints) {
        json!({"httpGet": {"path": path, "port": daemon.program}})
    } else {
        json!({"tcpSocket": {"port": daemon.program}})
    };
    merge(&mut probe, &handler);
    probe
}

/// The volume for /etc/slurm. The mode matters: auth/slurm rejects a key that others can read.
pub fn etc_volume(mode: i32, sources: &[Value]) -> Value {
    json!({"name": "slurm-etc", "projected": {"defaultMode": mode, "sources": sources}})
}

/// The mount of that volume.
pub fn etc_mount() -> Value {
    json!({"name": "slurm-etc", "mountPath": ETC, "readOnly": true})
}

/// One key of a Secret as a file in a projected volume.
pub fn secret_file(secret: &str, entry: &str, file: &str) -> Value {
    json!({"secret": {"name": secret, "items": [{"key": entry, "path": file}]}})
}

/// One key of a `ConfigMap` as a file in a projected volume.
pub fn config_map_file(config_map: &str, entry: &str, file: &str) -> Value {
    json!({"configMap": {"name": config_map, "items": [{"key": entry, "path": file}]}})
}

/// All keys of a `ConfigMap` as files in a projected volume.
pub fn config_map_files(config_map: &str) -> Value {
    json!({"configMap": {"name": config_map}})
}

/// A volume in memory.
pub fn memory_volume(name: &str) -> Value {
    json!({"name": name, "emptyDir": {"medium": "Memory"}})
}

/// The volume for log files. It contains only named pipes.
pub fn log_volume() -> Value {
    memory_volume("slurm-logfile")
}

/// The mount of that volume, for the daemon's container and the log sidecar.
pub fn log_mount() -> Value {
    json!({"name": "slurm-logfile", "mountPath": LOG_FOLDER})
}

/// Creates a named pipe in place of the log file, and prints what the daemon writes to it. The pipe is kept open for reading
/// and writing, so that it never reaches end of file, and the daemon can open and close it without blocking or failing.
const LOG_SCRIPT: &str = r#"trap 'exit 0' TERM
[ -p "$SOCKET" ] || { rm -f "$SOCKET"; mkfifo -m 666 "$SOCKET"; }
exec 3<>"$SOCKET"
cat <&3 &
wait $!
"#;

/// The log sidecar. `image` is the daemon's image by default; it needs sh, mkfifo, cat and test.
pub fn log_sidecar(daemon: Daemon, image: &str, user: &Overlay, path: &str) -> Result<Value, OverlayError> {
    let pipe = format!("{LOG_FOLDER}/{}.log", daemon.program);
    let base = json!({
        "name": "logfile",
        "image": image,
        "command": ["sh", "-c", LOG_SCRIPT],
        "env": [{"name": "SOCKET", "value": pipe}],
        "restartPolicy": "Always",
        // The daemon must not start before the pipe exists: it would create a regular file instead.
        "startupProbe": {"exec": {"command": ["test", "-p", pipe]}, "periodSeconds": 1, "failureThreshold": 60},
        "volumeMounts": [log_mount()],
    });
    overlay::container(base, user.fields(), path)
}

/// A container security context without root.
pub fn not_root(id: i64) -> Value {
    json!({"runAsNonRoot": true, "runAsUser": id, "runAsGroup": id})
}

/// The same for a pod, with `fsGroup` so that the group can read its volumes.
pub fn pod_not_root(id: i64) -> Value {
    let seccomp = json!({"type": "RuntimeDefault"});
    json!({"runAsNonRoot": true, "runAsUser": id, "runAsGroup": id, "fsGroup": id, "seccompProfile": seccomp})
}

/// Our containers in pods that do not run as root.
const NOT_ROOT: &[&str] = &["failback", "initconf", "logfile", "reconfigure", "slurmctld", "slurmdbd", "slurmrestd"];

/// Adds to a pod template what Pod Security "restricted" asks of containers. The user's own containers, and those of ours to which
/// the user has given more rights, are left alone: the API server would refuse the combination.
pub fn restricted(mut template: Value) -> Value {
    for list in ["/spec/initContainers", "/spec/containers"] {
        let containers = template.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            let is_ours = container.get("name").and_then(Value::as_str).is_some_and(|name| NOT_ROOT.contains(&name));
            let context = container.get("securityContext").cloned().unwrap_or_else(|| json!({}));
            let has = |path: &str, value: &Value| context.pointer(path) == Some(value);
            let has_more = has("/privileged", &json!(true))
                || has("/runAsUser", &json!(0))
                || has("/runAsNonRoot", &json!(false))
                || context.pointer("/capabilities/add").is_some();
            if is_ours && !has_more {
                let mut wanted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
                merge(&mut wanted, &context);
                container.insert("securityContext".to_owned(), wanted);
            }
        }
    }
    template
}

/// The value of `--conf-server` for slurmd and sackd. With backups it lists all pods, because only Slurm's own clients can
/// find the active slurmctld.
pub fn config_server(
    vocabulary: &Vocabulary,
    cluster: &str,
    namespace: &str,
    service_port: i32,
    replicas: u32,
) -> String {
    if replicas <= 1 {
        return format!("{}:{service_port}", service_host(&(vocabulary.name.slurmctld)(cluster), namespace));
    }
    let address =
        |ordinal| format!("{}:{}", slurmctld_address(vocabulary, cluster, namespace, ordinal), port::SLURMCTLD);
    (0..replicas).map(address).collect::<Vec<_>>().join(",")
}

/// The address of the slurmctld with this ordinal, ready or not.
pub fn slurmctld_address(vocabulary: &Vocabulary, cluster: &str, namespace: &str, ordinal: u32) -> String {
    let service = service_host(&(vocabulary.name.slurmctld_internal)(cluster), namespace);
    format!("{}.{service}", (vocabulary.name.slurmctld_pod)(cluster, ordinal))
}

/// Returns a problem if an object of that name exists and the parent does not control it: it is left alone.
pub fn taken<K: Resource<DynamicType = ()>>(live: Option<&K>, parent: &Parent) -> Result<(), Problem> {
    match live.filter(|live| !is_owned(*live, parent)) {
        None => Ok(()),
        Some(live) => {
            let (kind, name) = (K::kind(&()), live.name_any());
            let message = format!(
                "a {kind} {name} exists and does not belong to this object: delete or rename it, or rename this object"
            );
            Err(Problem::new("NameTaken", message))
        }
    }
}

/// Whether the parent controls an object.
pub fn is_owned(live: &impl ResourceExt, parent: &Parent) -> bool {
    live.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == parent.owner.uid)
}
