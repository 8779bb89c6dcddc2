//! slurmdbd: a Service, a Secret with its configuration, and the `StatefulSet`.

use k8s_openapi::{
    ByteString,
    api::{apps::v1::StatefulSet, core::v1::Secret},
};
use serde_json::{Value, json};
use slurm::version::{Feature, SlurmVersion, supports};
use slurm_operator_api::common::{
    port,
    shared::{ConfigMapKeySelector, SecretKeySelector},
    template::{Overlay, PodTemplate, ServiceTemplate},
};

use super::shared::{
    Auth, ETC, Parent, SLURM_ID, SLURMDBD, StringMap, config_map_file, desired, etc_mount, etc_volume, marked,
    memory_volume, not_root, pod_not_root, pod_template, restricted, secret_file, service,
};
use crate::{
    config::TLS_FOLDER,
    overlay::{self, OverlayError},
    plan::Desired,
};

/// The entry of the Secret with the configuration.
const CONF: &str = "slurmdbd.conf";

/// Where an init container finds the files that it copies.
const STAGING: &str = "/mnt/slurm";

/// The mode of the files in /etc/slurm. The kubelet adds the permission to read for the group.
const MODE: i32 = 0o600;

/// The settings of slurmdbd.
#[derive(Clone, Debug)]
pub struct Slurmdbd<'a> {
    pub parent: Parent,
    pub image: &'a str,
    /// The user's overlay of the container.
    pub container: &'a Overlay,
    /// The user's overlay of the pod.
    pub template: &'a PodTemplate,
    pub auth: Auth<'a>,
    pub jwt_key: &'a SecretKeySelector,
    pub jwks: Option<&'a ConfigMapKeySelector>,
    /// Where the certificate authority of the database is.
    pub ca: Option<KeySource<'a>>,
    /// The Secret with a certificate for the database.
    pub client_certificate: Option<&'a str>,
    /// Hashes of the files that the pods mount.
    pub hashes: StringMap,
}

/// A key of a `ConfigMap` or a Secret.
#[derive(Clone, Copy, Debug)]
pub enum KeySource<'a> {
    ConfigMap(&'a ConfigMapKeySelector),
    Secret(&'a SecretKeySelector),
}

/// The Service of slurmdbd.
pub fn main_service(parent: &Parent, template: &ServiceTemplate) -> Result<Desired, OverlayError> {
    service(parent, (parent.vocabulary.name.slurmdbd)(&parent.name), SLURMDBD, port::SLURMDBD, template)
}

/// The Secret with slurmdbd.conf, which has the password of the database.
pub fn config_secret(parent: &Parent, conf: &str) -> Desired {
    let metadata = parent.metadata((parent.vocabulary.name.slurmdbd)(&parent.name), SLURMDBD, &[]);
    let data = json!({CONF: ByteString(conf.as_bytes().to_vec())});
    desired::<Secret>(metadata, json!({"type": "Opaque", "data": data}))
}

/// The hostname of slurmdbd's pod.
pub fn host(parent: &Parent) -> String {
    format!("{}-0", (parent.vocabulary.name.slurmdbd)(&parent.name))
}

/// The `StatefulSet` of slurmdbd.
pub fn stateful_set(slurmdbd: &Slurmdbd) -> Result<Desired, OverlayError> {
    let parent = &slurmdbd.parent;
    let name = (parent.vocabulary.name.slurmdbd)(&parent.name);
    let template = restricted(pod_template(parent, SLURMDBD, slurmdbd.template, &slurmdbd.hashes, pod(slurmdbd)?)?);
    let spec = json!({
        "replicas": 1,
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": 0,
        "serviceName": name,
        "selector": {"matchLabels": parent.selector(SLURMDBD)},
        "template": template,
    });
    let metadata = parent.metadata(name, SLURMDBD, &[&slurmdbd.template.metadata]);
    Ok(marked::<StatefulSet>(parent.vocabulary, metadata, json!({ "spec": spec })))
}

fn pod(slurmdbd: &Slurmdbd) -> Result<Value, OverlayError> {
    let mut volumes = vec![memory_volume("run")];
    let mut copying = Vec::new();
    let files = etc_volume(MODE, &sources(slurmdbd));
    if supports(SlurmVersion::from_image(slurmdbd.image), Feature::GroupReadableSlurmdbdConf) {
        volumes.push(files);
    } else {
        let mut staged = files;
        if let Some(name) = staged.get_mut("name") {
            *name = json!("slurm-config");
        }
        volumes.extend([staged, memory_volume("slurm-etc")]);
        copying.push(initconf(slurmdbd.image));
    }
    volumes.extend(tls_volume(slurmdbd));
    Ok(json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "securityContext": pod_not_root(SLURM_ID),
        "initContainers": copying,
        "containers": [container(slurmdbd)?],
        "volumes": volumes,
    }))
}

/// The files of /etc/slurm.
fn sources(slurmdbd: &Slurmdbd) -> Vec<Value> {
    let parent = &slurmdbd.parent;
    let mut sources = vec![
        secret_file(&(parent.vocabulary.name.slurmdbd)(&parent.name), CONF, CONF),
        slurmdbd.auth.files(),
        secret_file(&slurmdbd.jwt_key.name, &slurmdbd.jwt_key.key, "jwt.key"),
    ];
    sources.extend(slurmdbd.jwks.map(|jwks| config_map_file(&jwks.name, &jwks.key, "jwks.json")));
    sources
}

/// Copies the files of /etc/slurm. slurmdbd before 25.11 refuses a slurmdbd.conf that its group may read, and in a projected
/// volume it always may: the file belongs to root.
fn initconf(image: &str) -> Value {
    let script = format!("umask 077; cp -L {STAGING}/* {ETC}/ && chmod 600 {ETC}/*");
    json!({
        "name": "initconf",
        "image": image,
        "command": ["sh", "-c", script],
        "securityContext": not_root(SLURM_ID),
        "volumeMounts": [
            {"name": "slurm-config", "mountPath": STAGING, "readOnly": true},
            {"name": "slurm-etc", "mountPath": ETC},
        ],
    })
}

/// The certificates for the database. Not in /etc/slurm, which may be a copy: new certificates must reach a running slurmdbd.
fn tls_volume(slurmdbd: &Slurmdbd) -> Option<Value> {
    let mut sources: Vec<Value> = Vec::new();
    sources.extend(slurmdbd.ca.map(|ca| match ca {
        KeySource::ConfigMap(reference) => config_map_file(&reference.name, &reference.key, "ca.crt"),
        KeySource::Secret(reference) => secret_file(&reference.name, &reference.key, "ca.crt"),
    }));
    if let Some(secret) = slurmdbd.client_certificate {
        sources.extend(["tls.crt", "tls.key"].map(|entry| secret_file(secret, entry, entry)));
    }
    let volume = json!({"name": "storage-tls", "projected": {"defaultMode": MODE, "sources": sources}});
    (!sources.is_empty()).then_some(volume)
}

fn container(slurmdbd: &Slurmdbd) -> Result<Value, OverlayError> {
    let mut mounts = vec![etc_mount(), json!({"name": "run", "mountPath": "/run"})];
    if slurmdbd.ca.is_some() || slurmdbd.client_certificate.is_some() {
        mounts.push(json!({"name": "storage-tls", "mountPath": TLS_FOLDER, "readOnly": true}));
    }
    let base = json!({
        "name": "slurmdbd",
        "ports": [{"name": "slurmdbd", "containerPort": port::SLURMDBD, "protocol": "TCP"}],
        // slurmdbd has no health endpoints in any version. It opens its port when it has its database, and before that
        // tries to connect for as long as it takes.
        "readinessProbe": {
            "tcpSocket": {"port": "slurmdbd"}, "periodSeconds": 5, "failureThreshold": 3, "timeoutSeconds": 5,
        },
        // Its last words are then in the status of the pod.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": not_root(SLURM_ID),
        "volumeMounts": mounts,
    });
    overlay::container(base, slurmdbd.container.fields(), "spec.slurmdbd")
}

/// Why slurmdbd has no database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseProblem {
    /// The words of the database client.
    pub text: String,
    /// Whether the database answers and refuses slurmdbd, which only a person can change.
    pub is_refused: bool,
}

/// How a failed connection begins in the log of slurmdbd.
const FAILED: &str = "mysql_real_connect failed: ";

/// What slurmdbd logs beside it.
const BESIDE: &[&str] = &["The database must be up when starting", "Connection failed to ", "unable to re-connect to "];

/// Errors of the database itself that end without help: too many connections, shutting down.
const PASSING: &[u32] = &[1040, 1053];

/// A problem with certificates. Other errors from 2000 on are those of the network.
const TLS: u32 = 2026;

/// The longest text that is taken from a log.
const MAX_TEXT: usize = 300;

/// Why slurmdbd has no database, if the last lines of its log say that it tries to connect.
pub fn database_problem(log: &str) -> Option<DatabaseProblem> {
    let is_beside = |line: &&str| BESIDE.iter().any(|beside| line.contains(beside));
    let mut lines = log.lines().rev().map(str::trim).filter(|line| !line.is_empty() && !is_beside(line));
    let (_, error) = lines.next()?.split_once(FAILED)?;
    let number = error.split_whitespace().next().and_then(|number| number.parse::<u32>().ok()).unwrap_or_default();
    let is_refused = number == TLS || ((1000..2000).contains(&number) && !PASSING.contains(&number));
    Some(DatabaseProblem { text: error.chars().take(MAX_TEXT).collect(), is_refused })
}
