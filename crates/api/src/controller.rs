//! `Controller`: slurmctld, the head of a Slurm cluster.

mod metrics;
mod persistence;
mod rest_api;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use crate::shared::{
    ConfigMapKeySelector, ExternalConfig, LocalObjectReference, SecretKeySelector, count, non_empty, null_as_default,
    one,
};
use crate::template::{Overlay, PodTemplate, ServiceTemplate};

pub use metrics::{Endpoint, Metrics, ServiceMonitor};
pub use persistence::{DEFAULT_CAPACITY, Persistence, StateVolume, VolumeResources};
pub use rest_api::{CertificateAuthority, ExternalRestApi};

/// What the user asks for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "Controller",
    plural = "controllers",
    shortname = "slurmctld",
    namespaced,
    status = "ControllerStatus",
    derive = "PartialEq",
    doc = "The head of a Slurm cluster: slurmctld with its configuration and state, or one that runs somewhere else.",
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "VERSION", type_ = "string", json_path = ".status.slurmVersion", priority = 1),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.external || has(self.slurmKeyRef)")
        .message("slurmKeyRef is required, unless external is true"),
    validation = Rule::new("self.external || has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)")
        .message("jwtKeyRef is required (or jwtHs256KeyRef, its deprecated name), unless external is true"),
    validation = Rule::new("!self.external || has(self.externalConfig)")
        .message("externalConfig is required when external is true: say where slurmctld is"),
    validation = Rule::new(
        "!has(self.ha) || !self.ha.enabled || (has(self.persistence) && self.persistence.enabled \
         && has(self.persistence.existingClaim) && size(self.persistence.existingClaim) > 0)"
    )
    .message("ha.enabled needs persistence.enabled and persistence.existingClaim: all slurmctld share that claim")
)]
pub struct ControllerSpec {
    /// What Slurm calls the cluster, at most 40 characters. Namespace and name of this object, joined by `_`, if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,

    /// The key that Slurm's daemons and commands trust each other by (auth/slurm). Required, unless external is true; then it
    /// is the key of that cluster, and workers and login nodes need it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_key_ref: Option<SecretKeySelector>,

    /// The key that signs JSON web tokens (auth/jwt, HS256). Required, unless external is true; then it is the key of that
    /// cluster, and the operator sees nothing of Slurm without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_key_ref: Option<SecretKeySelector>,

    /// Deprecated: use jwtKeyRef, which wins over this one.
    #[serde(default, rename = "jwtHs256KeyRef", skip_serializing_if = "Option::is_none")]
    pub jwt_hs256_key_ref: Option<SecretKeySelector>,

    /// Whether the operator makes the Secrets of slurmKeyRef and jwtKeyRef, with random keys, if they do not exist; false if
    /// not set. It never changes a Secret that exists, and they stay when this object is deleted.
    #[serde(default)]
    pub generate_keys: bool,

    /// A JSON web key set, for tokens that others sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_key_ref: Option<ConfigMapKeySelector>,

    /// The Accounting that keeps the records of jobs and users. No accounting if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting_ref: Option<LocalObjectReference>,

    /// Whether slurmctld runs somewhere else. The operator then starts none, and joins workers and login nodes to that one.
    /// False if not set.
    #[serde(default)]
    pub external: bool,

    /// Where slurmctld is, if external is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_config: Option<ExternalConfig>,

    /// A slurmrestd that runs somewhere else, for the operator to talk to Slurm. A `RestApi` object of this Controller if not
    /// set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_rest_api: Option<ExternalRestApi>,

    /// More than one slurmctld, of which one is active. One slurmctld if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ha: Option<HighAvailability>,

    /// Fields of the slurmctld container, merged over the operator's. The image is needed.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub slurmctld: Overlay,

    /// Whether slurmctld rereads a changed configuration while it runs. Otherwise, and if not set, its pod is replaced.
    #[serde(default)]
    pub inplace_reconfigure: bool,

    /// Fields of the container that tells slurmctld to reread its configuration. Used only with inplaceReconfigure.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub reconfigure: Overlay,

    /// Fields of the container that prints slurmctld's log.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub logfile: Overlay,

    /// What the slurmctld pods have beyond what the operator gives them.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "PodTemplate::is_empty")]
    pub template: PodTemplate,

    /// Lines for the end of slurm.conf. They win over the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// `ConfigMaps` whose files go to /etc/slurm, for example gres.conf or topology.yaml. Not slurm.conf: use extraConf.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub config_file_refs: Vec<LocalObjectReference>,

    /// `ConfigMaps` with scripts that workers run before a job.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub prolog_script_refs: Vec<LocalObjectReference>,

    /// `ConfigMaps` with scripts that workers run after a job.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub epilog_script_refs: Vec<LocalObjectReference>,

    /// `ConfigMaps` with scripts that slurmctld runs before a job.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub prolog_slurmctld_script_refs: Vec<LocalObjectReference>,

    /// `ConfigMaps` with scripts that slurmctld runs after a job.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub epilog_slurmctld_script_refs: Vec<LocalObjectReference>,

    /// Where slurmctld keeps its state: jobs, nodes, reservations. A claim of its own if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<Persistence>,

    /// What the Service of slurmctld has beyond what the operator gives it.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "ServiceTemplate::is_empty")]
    pub service: ServiceTemplate,

    /// Metrics that slurmctld serves for Prometheus. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
}

/// Backups that take over when the active slurmctld fails.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct HighAvailability {
    /// Whether to run backups; false if not set. They need a claim that many pods can write: persistence.existingClaim.
    #[serde(default)]
    pub enabled: bool,

    /// How many backups to run beside the active slurmctld. 1 if not set.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub backups: i32,
}

/// What the operator saw and did.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ControllerStatus {
    /// The version of Slurm that runs, for example 25.11.2. Not set until Slurm told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_version: Option<String>,

    /// The version of Slurm's REST API that the operator speaks, for example v0.0.44.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_version: Option<String>,

    /// What Slurm last said about each slurmctld, the first one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["host".into()]))]
    pub slurmctld: Vec<SlurmctldStatus>,

    /// The generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Ready says whether slurmctld schedules jobs; `SlurmReachable` whether the operator sees into it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// The answer of one slurmctld to a ping.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlurmctldStatus {
    /// Its host, as slurm.conf names it.
    pub host: String,

    /// Whether it answers.
    pub responding: bool,

    /// Whether it is the one that schedules jobs.
    pub active: bool,

    /// Since when it does or does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

impl ControllerSpec {
    /// The key that signs tokens. `None` only for a cluster somewhere else, or past the rules of the schema.
    #[must_use]
    pub fn jwt_key(&self) -> Option<&SecretKeySelector> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }

    /// Where slurmctld is, if it runs somewhere else.
    #[must_use]
    pub fn elsewhere(&self) -> Option<&ExternalConfig> {
        self.external_config.as_ref().filter(|_| self.external)
    }

    /// The name of the Accounting, if there is to be one.
    #[must_use]
    pub fn accounting(&self) -> Option<&str> {
        self.accounting_ref.as_ref().and_then(|reference| non_empty(&reference.name))
    }

    /// How many slurmctld run: the active one and its backups.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        let backups = self.ha.as_ref().filter(|ha| ha.enabled).map_or(0, |ha| count(ha.backups).max(1));
        backups.saturating_add(1)
    }

    /// Where slurmctld keeps its state.
    #[must_use]
    pub fn state_volume(&self) -> StateVolume<'_> {
        self.persistence.as_ref().map_or_else(StateVolume::default, Persistence::state_volume)
    }

    /// The port of slurmctld's Service.
    #[must_use]
    pub fn service_port(&self) -> i32 {
        self.service.port_or(names::port::SLURMCTLD)
    }

    /// Whether slurmctld serves metrics.
    #[must_use]
    pub fn metrics_enabled(&self) -> bool {
        self.metrics.as_ref().is_some_and(|metrics| metrics.enabled)
    }

    /// The `ServiceMonitor` to make, if one is asked for.
    #[must_use]
    pub fn service_monitor(&self) -> Option<&ServiceMonitor> {
        let metrics = self.metrics.as_ref().filter(|metrics| metrics.enabled)?;
        metrics.service_monitor.as_ref().filter(|monitor| monitor.enabled)
    }
}

impl Controller {
    /// What Slurm calls the cluster.
    #[must_use]
    pub fn cluster_name(&self) -> String {
        let asked = self.spec.cluster_name.as_deref().and_then(non_empty);
        let default = || names::cluster_name(&self.namespace().unwrap_or_default(), &self.name_any());
        asked.map_or_else(default, str::to_owned)
    }
}

#[cfg(test)]
mod tests;
