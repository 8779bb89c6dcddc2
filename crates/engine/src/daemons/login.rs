//! Login nodes, which run sackd and sshd: a Service, a Deployment, and the files of sshd.

use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentStrategy},
    core::v1::{ConfigMap, Secret},
};
use serde_json::{Value, json};
use slurm_operator_api::common::{
    dns::service_host_full,
    port,
    shared::SecretKeySelector,
    template::{Overlay, PodTemplate, ServiceTemplate},
};

use super::{
    shared::{
        Auth, ETC, LOGIN, Parent, SLURM_ID, StringMap, desired, etc_mount, marked, memory_volume, pod_template, service,
    },
    sshd::sshd_config,
};
use crate::{
    hash::hash_of_files,
    overlay::{self, OverlayError},
    plan::{Desired, GeneratedSecret, SecretContent},
};

/// The private host keys of sshd. Each public key has the same name and `.pub`.
pub const HOST_KEYS: [&str; 3] = ["ssh_host_ecdsa_key", "ssh_host_ed25519_key", "ssh_host_rsa_key"];

/// How long open sessions may keep a pod that is to end, if the user does not say. One that is open a day later is mostly
/// forgotten.
const DEFAULT_GRACE_SECONDS: i64 = 24 * 60 * 60;

/// The options of sackd.
const SACKD_OPTIONS: &str = "SACKD_OPTIONS";

/// Copies slurm.key, which sackd reads as user `slurm`. A group of the volumes (`fsGroup`) would do, but sshd refuses host
/// keys that a group can read. In the directory of sackd's socket nobody else may create one.
const INIT_SCRIPT: &str = r#"set -e
umask 077
cp /mnt/slurm/* /mnt/etc/slurm/
chown "$SLURM_ID:$SLURM_ID" /mnt/etc/slurm/* /mnt/run/slurm
chmod 755 /mnt/run/slurm
"#;

/// The directory of the copies is writable while sackd runs, so that new keys can be copied. Others than root must not create files
/// there: commands would read them.
const PROTECT_SCRIPT: &str = "chmod 755 /mnt/etc/slurm\n";

/// The settings of login nodes.
#[derive(Clone, Debug)]
pub struct Login<'a> {
    pub parent: Parent,
    /// The name of the cluster's object.
    pub cluster: &'a str,
    /// Where sackd gets the configuration from: the value of `--conf-server`.
    pub config_server: &'a str,
    pub replicas: u32,
    pub strategy: Option<&'a DeploymentStrategy>,
    pub image: &'a str,
    /// The user's overlay of the main container.
    pub container: &'a Overlay,
    /// The user's overlay of the init container.
    pub init_container: &'a Overlay,
    /// The user's overlay of the pod.
    pub template: &'a PodTemplate,
    pub auth: Auth<'a>,
    pub sssd: &'a SecretKeySelector,
    /// The DNS domain of the Kubernetes cluster, `cluster.local` by default.
    pub domain: &'a str,
    /// Hashes of the files that the pods mount.
    pub hashes: StringMap,
}

/// The Service of login nodes.
pub fn main_service(parent: &Parent, template: &ServiceTemplate) -> Result<Desired, OverlayError> {
    service(parent, (parent.vocabulary.name.login)(&parent.name), LOGIN, port::SSH, template)
}

/// The `ConfigMap` with `sshd_config` and the keys that may log in as root, and a hash of both.
pub fn ssh_config(parent: &Parent, extra: Option<&str>, root_keys: Option<&str>) -> (Desired, String) {
    // Only these: the image may make keys of further types at each start, and clients would find other ones in each pod.
    let host_keys = HOST_KEYS.map(|key| format!("HostKey /etc/ssh/{key}"));
    let others = ["UsePAM yes", "X11Forwarding yes", "Subsystem sftp internal-sftp"];
    let ours: Vec<&str> = host_keys.iter().map(String::as_str).chain(others).collect();
    let root_keys = root_keys.unwrap_or_default().trim_end();
    let files = [
        ("authorized_keys", format!("# Keys of spec.rootSshAuthorizedKeys\n{root_keys}\n")),
        ("sshd_config", sshd_config(&ours, extra)),
    ];
    let hash = hash_of_files(files.iter().map(|(name, text)| (*name, text.as_bytes())));
    let metadata = parent.metadata((parent.vocabulary.name.ssh_config)(&parent.name), LOGIN, &[]);
    (
        desired::<ConfigMap>(
            metadata,
            json!({"data": StringMap::from(files.map(|(name, text)| (name.to_owned(), text)))}),
        ),
        hash,
    )
}

/// The Secret with new host keys.
pub fn host_keys(parent: &Parent) -> GeneratedSecret {
    let metadata = parent.metadata((parent.vocabulary.name.ssh_host_keys)(&parent.name), LOGIN, &[]);
    GeneratedSecret {
        secret: desired::<Secret>(metadata, json!({"type": "Opaque", "immutable": true})),
        entry: String::new(),
        content: SecretContent::HostKeys,
        manager: None,
    }
}

/// The Deployment of login nodes.
pub fn deployment(login: &Login) -> Result<Desired, OverlayError> {
    let parent = &login.parent;
    let mut template = pod_template(parent, LOGIN, login.template, &login.hashes, pod(login)?)?;
    add_config_server(login.config_server, &mut template)?;
    // Nobody has to wait for a login node while others are replaced.
    let careful = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    let strategy = login.strategy.filter(|strategy| **strategy != DeploymentStrategy::default());
    let spec = json!({
        "replicas": login.replicas,
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": parent.selector(LOGIN)},
        "strategy": strategy.map_or(careful, |strategy| json!(strategy)),
        "template": template,
    });
    let name = (parent.vocabulary.name.login)(&parent.name);
    let metadata = parent.metadata(name, LOGIN, &[&login.template.metadata]);
    Ok(marked::<Deployment>(parent.vocabulary, metadata, json!({ "spec": spec })))
}

fn pod(login: &Login) -> Result<Value, OverlayError> {
    let parent = &login.parent;
    let name = &parent.vocabulary.name;
    let workers = service_host_full(&(name.worker_service)(login.cluster), &parent.namespace, login.domain);
    let host_keys = HOST_KEYS.iter().flat_map(|key| {
        let public = format!("{key}.pub");
        [json!({"key": key, "path": key, "mode": 0o600}), json!({"key": public, "path": public, "mode": 0o644})]
    });
    let host_keys: Vec<Value> = host_keys.collect();
    let sssd = json!([{"key": login.sssd.key, "path": "sssd.conf"}]);
    Ok(json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": DEFAULT_GRACE_SECONDS,
        // Workers have short names in Slurm.
        "dnsConfig": {"searches": [workers]},
        "initContainers": [init_container(login)?],
        "containers": [container(login)?],
        "volumes": [
            memory_volume("slurm-etc"),
            memory_volume("sackd-dir"),
            {"name": "slurm-config", "projected": {"defaultMode": 0o600, "sources": [login.auth.files()]}},
            {"name": "ssh-host-keys", "secret": {
                "secretName": (name.ssh_host_keys)(&parent.name), "defaultMode": 0o600, "items": host_keys,
            }},
            {"name": "ssh-config", "configMap": {"name": (name.ssh_config)(&parent.name), "defaultMode": 0o600}},
            {"name": "sssd-conf", "secret": {"secretName": login.sssd.name, "defaultMode": 0o600, "items": sssd}},
        ],
    }))
}

fn init_container(login: &Login) -> Result<Value, OverlayError> {
    let script = match login.auth {
        Auth::SlurmKey(_) => INIT_SCRIPT.to_owned(),
        Auth::KeyRing { .. } => format!("{INIT_SCRIPT}{PROTECT_SCRIPT}"),
    };
    let base = json!({
        "name": "initconf",
        "image": login.image,
        "command": ["sh", "-c", script],
        "env": [{"name": "SLURM_ID", "value": SLURM_ID.to_string()}],
        "volumeMounts": [
            staged_keys(),
            {"name": "slurm-etc", "mountPath": "/mnt/etc/slurm"},
            {"name": "sackd-dir", "mountPath": "/mnt/run/slurm"},
        ],
    });
    overlay::container(base, login.init_container.fields(), "spec.initconf")
}

/// Where the kubelet brings the keys.
pub const STAGED_KEYS: &str = "/mnt/slurm";

fn staged_keys() -> Value {
    json!({"name": "slurm-config", "mountPath": STAGED_KEYS, "readOnly": true})
}

fn container(login: &Login) -> Result<Value, OverlayError> {
    let port = sshd_port(login.container);
    let file = |volume: &str, folder: &str, file: &str| json!({"name": volume, "mountPath": format!("{folder}/{file}"), "subPath": file, "readOnly": true});
    let host_keys = HOST_KEYS.iter().flat_map(|key| {
        [file("ssh-host-keys", "/etc/ssh", key), file("ssh-host-keys", "/etc/ssh", &format!("{key}.pub"))]
    });
    // The copies of the keys are replaced while sackd runs.
    let mut mounts = match login.auth {
        Auth::SlurmKey(_) => vec![etc_mount()],
        Auth::KeyRing { .. } => vec![json!({"name": "slurm-etc", "mountPath": ETC}), staged_keys()],
    };
    mounts.extend([
        json!({"name": "sackd-dir", "mountPath": "/run/slurm"}),
        file("ssh-config", "/etc/ssh", "sshd_config"),
        file("ssh-config", "/root/.ssh", "authorized_keys"),
        file("sssd-conf", "/etc/sssd", "sssd.conf"),
    ]);
    mounts.extend(host_keys);
    let probe = |period: u32, failures: u32| {
        let command = json!(["bash", "-c", is_ready(port)]);
        json!({
            "exec": {"command": command}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5,
        })
    };
    let base = json!({
        "name": LOGIN.program,
        "ports": [{"name": LOGIN.program, "containerPort": port, "protocol": "TCP"}],
        // An hour, for sackd waits for slurmctld.
        "startupProbe": probe(2, 1800),
        // Seldom, because sshd logs each one. If it ends, so does the container.
        "readinessProbe": probe(15, 2),
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", pre_stop(port)]}}},
        "volumeMounts": mounts,
    });
    overlay::container(base, login.container.fields(), "spec.login")
}

/// The port of sshd: the one that the user names `login`, or the usual one.
fn sshd_port(container: &Overlay) -> u16 {
    let ports = container.fields().get("ports").and_then(Value::as_array).into_iter().flatten();
    let mut named = ports.filter(|port| port["name"] == LOGIN.program);
    let chosen = named.find_map(|port| port["containerPort"].as_u64()).and_then(|port| u16::try_from(port).ok());
    chosen.unwrap_or_else(|| u16::try_from(port::SSH).unwrap_or_default())
}

/// Checks that sackd listens, which it does once it has the configuration, and that sshd answers. Whether slurmctld is up
/// does not matter: people may still log in and edit files. The file of the socket alone would outlive sackd.
fn is_ready(port: u16) -> String {
    format!(
        "socket=/run/slurm/sack.socket\n\
         [[ -S $socket ]] && grep -q \" $socket$\" /proc/net/unix || {{ echo 'sackd does not listen'; exit 1; }}\n\
         exec 3<>/dev/tcp/localhost/{port} || {{ echo 'sshd does not listen'; exit 1; }}\n\
         read -r -t 4 <&3 || {{ echo 'sshd does not answer'; exit 1; }}\n"
    )
}

/// Waits until no connection to sshd is open (state 01). New ones arrive until all nodes know that the pod ends, so the wait
/// begins with a pause. It ends at the latest after the grace period of the pod.
fn pre_stop(port: u16) -> String {
    format!(
        "sleep 3\n\
         open='^ *[0-9]+: [0-9A-F]+:{port:04X} [0-9A-F]+:[0-9A-F]+ 01 '\n\
         while cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -Eq \"$open\"; do\n  \
         sleep 1\ndone\n"
    )
}

/// Adds the address of slurmctld to the options of sackd, also if the user sets other options.
fn add_config_server(config_server: &str, pod: &mut Value) -> Result<(), OverlayError> {
    let ours = format!("--conf-server {config_server}");
    let containers = pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut).into_iter().flatten();
    for container in containers.filter(|container| container["name"] == LOGIN.program) {
        let Some(env) = container.as_object_mut().map(|fields| fields.entry("env").or_insert_with(|| json!([]))) else {
            continue;
        };
        let Some(env) = env.as_array_mut() else { continue };
        let Some(variable) = env.iter_mut().find(|variable| variable["name"] == SACKD_OPTIONS) else {
            env.push(json!({"name": SACKD_OPTIONS, "value": ours}));
            continue;
        };
        if variable.get("valueFrom").is_some() {
            let must = "give SACKD_OPTIONS a value and no valueFrom: the operator adds --conf-server to it";
            return Err(OverlayError { path: "spec.login.env".to_owned(), must });
        }
        let users = variable["value"].as_str().unwrap_or_default();
        if !users.contains("--conf-server") {
            *variable = json!({"name": SACKD_OPTIONS, "value": format!("{ours} {users}").trim_end()});
        }
    }
    Ok(())
}
