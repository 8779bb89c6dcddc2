//! slurmrestd: a Service and a Deployment.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};
use slurm_operator_api::common::{
    port,
    template::{Overlay, PodTemplate, ServiceTemplate},
};

use super::shared::{
    Auth, NOBODY_ID, Parent, SLURMRESTD, StringMap, config_map_file, config_map_files, etc_mount, etc_volume, marked,
    not_root, pod_not_root, pod_template, restricted, service,
};
use crate::{
    overlay::{self, Fields, OverlayError},
    plan::Desired,
};

/// The settings of slurmrestd.
#[derive(Clone, Debug)]
pub struct Slurmrestd<'a> {
    pub parent: Parent,
    pub replicas: u32,
    /// The user's overlay of the container.
    pub container: &'a Overlay,
    /// The user's overlay of the pod.
    pub template: &'a PodTemplate,
    /// Whether the cluster has accounting.
    pub accounting: bool,
    /// The `ConfigMap` with slurm.conf.
    pub config_map: String,
    /// `ConfigMaps` with files that slurm.conf includes.
    pub included: &'a BTreeSet<String>,
    pub auth: Auth<'a>,
    /// Hashes of the files that the pods mount.
    pub hashes: StringMap,
}

/// The Service of slurmrestd.
pub fn main_service(parent: &Parent, template: &ServiceTemplate) -> Result<Desired, OverlayError> {
    service(parent, (parent.vocabulary.name.slurmrestd)(&parent.name), SLURMRESTD, port::SLURMRESTD, template)
}

/// The Deployment of slurmrestd.
pub fn deployment(slurmrestd: &Slurmrestd) -> Result<Desired, OverlayError> {
    let parent = &slurmrestd.parent;
    let template =
        restricted(pod_template(parent, SLURMRESTD, slurmrestd.template, &slurmrestd.hashes, pod(slurmrestd)?)?);
    // A new pod is ready before an old one ends. If each pod needs a host of its own, there may be no host for a new one.
    let max_unavailable = u8::from(slurmrestd.replicas > 1 && needs_own_host(&template));
    let spec = json!({
        "replicas": slurmrestd.replicas,
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": parent.selector(SLURMRESTD)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": max_unavailable},
        },
        "template": template,
    });
    let name = (parent.vocabulary.name.slurmrestd)(&parent.name);
    let metadata = parent.metadata(name, SLURMRESTD, &[&slurmrestd.template.metadata]);
    Ok(marked::<Deployment>(parent.vocabulary, metadata, json!({ "spec": spec })))
}

/// Whether two of these pods may be unable to share a host.
fn needs_own_host(template: &Value) -> bool {
    let required = "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    let has_terms = template.pointer(required).and_then(Value::as_array).is_some_and(|terms| !terms.is_empty());
    let on_host = template.pointer("/spec/hostNetwork").and_then(Value::as_bool) == Some(true);
    let containers = template.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    let mut ports = containers.filter_map(|container| container["ports"].as_array()).flatten();
    has_terms || on_host || ports.any(|port| port["hostPort"].as_u64().is_some_and(|port| port > 0))
}

/// How many seconds new connections may still arrive after the pod was asked to end: until every node has removed it from the
/// Service.
const PAUSE: u32 = 5;

/// How many seconds requests may still run after that. Both together must be less than the grace period, 30 s by default.
const PATIENCE: u32 = 15;

/// slurmrestd ends at once on SIGTERM, with the requests that it is working on. So it is stopped when no client has a connection
/// to it any more (state 01, or 08 if the client has sent all that it will). Clients that keep idle connections open are not
/// waited for longer than this.
fn pre_stop() -> String {
    format!(
        r"sleep {PAUSE}
left={PATIENCE}
while [ $left -gt 0 ] && cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ':{port:04X} [0-9A-F:]* 0[18] '; do
  left=$((left - 1))
  sleep 1
done
",
        port = port::SLURMRESTD
    )
}

fn pod(slurmrestd: &Slurmrestd) -> Result<Value, OverlayError> {
    let apart = json!({
        "weight": 100,
        "podAffinityTerm": {
            "labelSelector": {"matchLabels": slurmrestd.parent.selector(SLURMRESTD)},
            "topologyKey": "kubernetes.io/hostname",
        },
    });
    let mut sources =
        vec![config_map_file(&slurmrestd.config_map, "slurm.conf", "slurm.conf"), slurmrestd.auth.files()];
    sources.extend(slurmrestd.included.iter().map(|name| config_map_files(name)));
    Ok(json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}},
        // slurmrestd refuses to run as root or SlurmUser.
        "securityContext": pod_not_root(NOBODY_ID),
        "containers": [container(slurmrestd)?],
        "volumes": [etc_volume(0o600, &sources)],
    }))
}

/// The arguments are ours, the user's, and the address, which slurmrestd expects last.
fn container(slurmrestd: &Slurmrestd) -> Result<Value, OverlayError> {
    let port = port::SLURMRESTD;
    // slurmrestd has no health endpoints in any version.
    let probe = |period: u32, failures: u32| {
        json!({
            "tcpSocket": {"port": "slurmrestd"},
            "periodSeconds": period,
            "failureThreshold": failures,
            "timeoutSeconds": 5,
        })
    };
    // Without accounting some releases crash when they load the slurmdbd plugin.
    let args: &[&str] = if slurmrestd.accounting { &[] } else { &["-s", "openapi/slurmctld"] };
    let base = json!({
        "name": "slurmrestd",
        "args": args,
        "env": [
            {"name": "SLURM_JWT", "value": "daemon"},
            {"name": "SLURMRESTD_SECURITY", "value": "disable_unshare_files,disable_unshare_sysv"},
        ],
        "ports": [{"name": "slurmrestd", "containerPort": port, "protocol": "TCP"}],
        "startupProbe": probe(2, 60),
        "livenessProbe": probe(10, 6),
        "readinessProbe": probe(5, 3),
        "securityContext": not_root(NOBODY_ID),
        "lifecycle": {"preStop": {"exec": {"command": ["/usr/bin/sh", "-c", pre_stop()]}}},
        "volumeMounts": [etc_mount()],
    });
    let merged = overlay::container(base, slurmrestd.container.fields(), "spec.slurmrestd")?;
    // All addresses: of IPv6 too, if slurm.conf has CommunicationParameters=EnableIPv6. Without a host, slurmrestd from 25.11 on would
    // listen twice on the same port, and end.
    let address = Fields::from_iter([("args".to_owned(), json!([format!("[::]:{port}")]))]);
    overlay::container(merged, &address, "spec.slurmrestd")
}
