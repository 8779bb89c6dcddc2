//! slurmctld: two Services, the configuration, and the `StatefulSet`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, PersistentVolumeClaimSpec, Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm::version::SlurmVersion;
use slurm_operator_api::common::{
    port,
    shared::{ConfigMapKeySelector, Metadata, SecretKeySelector},
    storage::StateVolume,
    template::{Overlay, PodTemplate, ServiceTemplate},
    vocabulary::{TRUE, Vocabulary},
};

use super::{
    failback,
    shared::{
        Auth, Parent, SLURM_ID, SLURMCTLD, StringMap, config_map_file, config_map_files, desired, etc_mount,
        etc_volume, log_mount, log_sidecar, log_volume, marked, memory_volume, not_root, pod_not_root, pod_template,
        probe, restricted, secret_file, service,
    },
};
use crate::{
    config::{Files, state_folder},
    overlay::{self, Fields, OverlayError},
    plan::{Desired, MetadataPatch, ObjectVersion, Step},
};

/// The settings of slurmctld.
#[derive(Clone, Debug)]
pub struct Slurmctld<'a> {
    pub parent: Parent,
    /// The cluster name in Slurm.
    pub cluster: String,
    /// The active slurmctld and its backups.
    pub replicas: u32,
    pub image: &'a str,
    /// The user's overlay of the main container.
    pub container: &'a Overlay,
    /// The user's overlay of the reconfigure sidecar; `None` without the sidecar.
    pub reconfigure: Option<&'a Overlay>,
    /// The user's overlay of the log sidecar.
    pub logfile: &'a Overlay,
    /// The user's overlay of the pod.
    pub template: &'a PodTemplate,
    /// The volume of `StateSaveLocation`.
    pub state: StateVolume<'a>,
    pub auth: Auth<'a>,
    pub jwt_key: &'a SecretKeySelector,
    pub jwks: Option<&'a ConfigMapKeySelector>,
    /// The user's `ConfigMaps` with additional files for /etc/slurm, of which copies are mounted.
    pub config_maps: BTreeSet<String>,
    /// Hashes of the files that the pods mount.
    pub hashes: StringMap,
}

/// The Service of slurmctld.
///
/// Without backups it does not depend on a label that the operator has to set: a new pod must be reachable while the
/// operator is down. With backups it selects the pod that the operator has labelled as active (see [`label_active`]), for clients
/// outside of the cluster. Daemons and clients inside know every slurmctld and do not use it (see `config_server`).
pub fn main_service(parent: &Parent, template: &ServiceTemplate, replicas: u32) -> Result<Desired, OverlayError> {
    let name = (parent.vocabulary.name.slurmctld)(&parent.name);
    let mut service = service(parent, name, SLURMCTLD, port::SLURMCTLD, template)?;
    if let (true, Some(Value::Object(selector))) = (replicas > 1, service.object.data.pointer_mut("/spec/selector")) {
        selector.insert(parent.vocabulary.label.active.to_owned(), TRUE.into());
    }
    Ok(service)
}

/// Labels the active slurmctld pod, and removes the label from all others. `active` is its name, if Slurm has told it; until then
/// the label stays where it is, or goes to the first pod.
pub fn label_active(vocabulary: &Vocabulary, pods: &[Pod], active: Option<&str>) -> Vec<Step> {
    let key = vocabulary.label.active;
    let has_label = |pod: &Pod| pod.labels().get(key).is_some_and(|value| value == TRUE);
    let known = active.filter(|active| pods.iter().any(|pod| pod.name_any() == *active));
    let active = match known {
        Some(active) => Some(active.to_owned()),
        None if pods.iter().any(has_label) => return Vec::new(),
        None => pods.iter().map(ResourceExt::name_any).min(),
    };
    let patch = |pod: &Pod| {
        let wanted = (Some(pod.name_any()) == active).then(|| TRUE.to_owned());
        Step::PatchMetadata(Box::new(MetadataPatch {
            target: ObjectVersion::of::<Pod>(pod),
            labels: BTreeMap::from([(key.to_owned(), wanted)]),
            annotations: BTreeMap::new(),
        }))
    };
    pods.iter().filter(|pod| has_label(pod) != (Some(pod.name_any()) == active)).map(patch).collect()
}

/// The headless Service that gives each slurmctld pod a DNS name, ready or not.
pub fn internal_service(parent: &Parent) -> Desired {
    let name = (parent.vocabulary.name.slurmctld_internal)(&parent.name);
    let port = json!({
        "name": "slurmctld", "port": port::SLURMCTLD, "protocol": "TCP", "targetPort": "slurmctld",
    });
    let spec = json!({
        "clusterIP": "None",
        "publishNotReadyAddresses": true,
        "selector": parent.selector(SLURMCTLD),
        "ports": [port],
    });
    desired::<Service>(parent.metadata(name, SLURMCTLD, &[]), json!({ "spec": spec }))
}

/// The `ConfigMap` with the generated files. `annotations` describe them.
pub fn config_map(parent: &Parent, files: &StringMap, annotations: &StringMap) -> Desired {
    let over = Metadata { annotations: annotations.clone(), ..Metadata::default() };
    let metadata = parent.metadata((parent.vocabulary.name.config)(&parent.name), SLURMCTLD, &[&over]);
    desired::<ConfigMap>(metadata, json!({ "data": files }))
}

/// A copy of the files of a user's `ConfigMap`. Pods mount the copy, because the kubelet would bring a change of the original
/// to running daemons at once.
pub fn config_copy(parent: &Parent, config_map: &str, files: &Files) -> Desired {
    let metadata = parent.metadata((parent.vocabulary.name.config_copy)(&parent.name, config_map), SLURMCTLD, &[]);
    desired::<ConfigMap>(metadata, file_fields(files))
}

/// The fields of a `ConfigMap` with these files.
pub(super) fn file_fields(files: &Files) -> Value {
    let mut fields = Fields::new();
    for (name, content) in files {
        let (field, value) = match std::str::from_utf8(content) {
            Ok(text) => ("data", json!(text)),
            Err(_) => ("binaryData", json!(ByteString(content.clone()))),
        };
        let entries = fields.entry(field).or_insert_with(|| json!({}));
        if let Some(entries) = entries.as_object_mut() {
            entries.insert(name.clone(), value);
        }
    }
    Value::Object(fields)
}

/// The `StatefulSet` of slurmctld.
pub fn stateful_set(slurmctld: &Slurmctld) -> Result<Desired, OverlayError> {
    let parent = &slurmctld.parent;
    let template = restricted(pod_template(parent, SLURMCTLD, slurmctld.template, &slurmctld.hashes, pod(slurmctld)?)?);
    let selector = LabelSelector { match_labels: Some(parent.selector(SLURMCTLD)), ..LabelSelector::default() };
    let mut spec = json!({
        "replicas": slurmctld.replicas,
        "revisionHistoryLimit": 0,
        "serviceName": (parent.vocabulary.name.slurmctld_internal)(&parent.name),
        "selector": selector,
        "template": template,
    });
    if let (StateVolume::Claim(claim), Some(spec)) = (&slurmctld.state, spec.as_object_mut()) {
        spec.insert("volumeClaimTemplates".to_owned(), json!([claim_template(claim)]));
    }
    let metadata =
        parent.metadata((parent.vocabulary.name.slurmctld)(&parent.name), SLURMCTLD, &[&slurmctld.template.metadata]);
    Ok(marked::<StatefulSet>(parent.vocabulary, metadata, json!({ "spec": spec })))
}

fn claim_template(claim: &PersistentVolumeClaimSpec) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "statesave"}, "spec": claim})
}

fn pod(slurmctld: &Slurmctld) -> Result<Value, OverlayError> {
    let mut inits = Vec::new();
    if slurmctld.replicas > 1 {
        inits.push(failback::container(slurmctld.image, &slurmctld.cluster));
    }
    if let Some(user) = slurmctld.reconfigure {
        inits.push(reconfigure(slurmctld.image, user)?);
    }
    inits.push(log_sidecar(SLURMCTLD, slurmctld.image, slurmctld.logfile, "spec.logfile")?);
    let mut volumes =
        vec![etc(slurmctld), log_volume(), memory_volume("run"), json!({"name": "slurm-authsocket", "emptyDir": {}})];
    match &slurmctld.state {
        StateVolume::Scratch => volumes.push(json!({"name": "statesave", "emptyDir": {}})),
        StateVolume::Existing(claim) => {
            volumes.push(json!({"name": "statesave", "persistentVolumeClaim": {"claimName": claim}}));
        }
        StateVolume::Claim(_) => {}
    }
    // Two slurmctld on one node would fail together.
    let apart = json!({
        "labelSelector": {"matchLabels": slurmctld.parent.selector(SLURMCTLD)},
        "topologyKey": "kubernetes.io/hostname",
    });
    Ok(json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "securityContext": pod_not_root(SLURM_ID),
        "initContainers": inits,
        "containers": [main_container(slurmctld)?],
        "volumes": volumes,
    }))
}

/// The volume for /etc/slurm. The mode lets the group of slurmctld read keys and run scripts, and denies access to others.
fn etc(slurmctld: &Slurmctld) -> Value {
    let (parent, jwt_key) = (&slurmctld.parent, slurmctld.jwt_key);
    let mut sources = vec![
        config_map_files(&(parent.vocabulary.name.config)(&parent.name)),
        slurmctld.auth.files(),
        secret_file(&jwt_key.name, &jwt_key.key, "jwt.key"),
    ];
    let copy = |name: &String| config_map_files(&(parent.vocabulary.name.config_copy)(&parent.name, name));
    sources.extend(slurmctld.config_maps.iter().map(copy));
    sources.extend(slurmctld.jwks.map(|jwks| config_map_file(&jwks.name, &jwks.key, "jwks.json")));
    etc_volume(0o610, &sources)
}

fn main_container(slurmctld: &Slurmctld) -> Result<Value, OverlayError> {
    let [startup, liveness, readiness] = probes(SlurmVersion::from_image(slurmctld.image), slurmctld.replicas);
    let base = json!({
        "name": "slurmctld",
        "ports": [{"name": "slurmctld", "containerPort": port::SLURMCTLD, "protocol": "TCP"}],
        "startupProbe": startup,
        "livenessProbe": liveness,
        "readinessProbe": readiness,
        "securityContext": not_root(SLURM_ID),
        "volumeMounts": [
            etc_mount(),
            {"name": "run", "mountPath": "/run"},
            {"name": "statesave", "mountPath": state_folder(&slurmctld.cluster)},
            {"name": "slurm-authsocket", "mountPath": "/run/slurmctld"},
            log_mount(),
        ],
    });
    overlay::container(base, slurmctld.container.fields(), "spec.slurmctld")
}

/// Startup, liveness and readiness.
///
/// The version comes only from the image tag: the version that Slurm reports is known later, would restart a pod that has
/// just started, and is wrong after a downgrade. The thresholds give slurmctld time to load a large state, and keep it in
/// the Service while it is busy for less than a minute.
fn probes(version: Option<SlurmVersion>, replicas: u32) -> [Value; 3] {
    let probe = |path: &str, period, failures| probe(SLURMCTLD, version, path, period, failures);
    // A standby never reports ready, and the StatefulSet controller would wait for it.
    let ready = if replicas > 1 { "/livez" } else { "/readyz" };
    [probe("/livez", 2, 150), probe("/livez", 10, 6), probe(ready, 5, 12)]
}

/// Runs `scontrol reconfigure` when a configuration file has changed. Skips the kubelet's own directories, which start with
/// two dots.
const RECONFIGURE_SCRIPT: &str = r#"trap 'exit 0' TERM
pause() { sleep "$1" & wait $!; }
sum() { find -L /etc/slurm -type f ! -path '*/..*' -exec sha256sum {} + | sort | sha256sum; }
old=$(sum)
while :; do
  pause 5
  new=$(sum)
  [ "$new" = "$old" ] && continue
  until scontrol reconfigure; do pause 2; done
  echo "slurmctld has reread its configuration"
  old=$new
done
"#;

/// The reconfigure sidecar. It needs the auth socket of slurmctld, and sh, find, sha256sum and scontrol in the image.
fn reconfigure(image: &str, user: &Overlay) -> Result<Value, OverlayError> {
    let base = json!({
        "name": "reconfigure",
        "image": image,
        "command": ["sh", "-c", RECONFIGURE_SCRIPT],
        "restartPolicy": "Always",
        "volumeMounts": [etc_mount(), {"name": "slurm-authsocket", "mountPath": "/run/slurmctld", "readOnly": true}],
    });
    overlay::container(base, user.fields(), "spec.reconfigure")
}
