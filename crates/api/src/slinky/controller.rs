//! `Controller`: slurmctld, the control plane of a Slurm cluster.

mod keys;
mod metrics;
mod persistence;
mod rest_api;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    common::{
        shared::{
            ConfigMapKeySelector, ExternalConfig, LocalObjectReference, SecretKeySelector, count, non_empty,
            null_as_default, one,
        },
        storage::StateVolume,
        template::{Overlay, PodTemplate, ServiceTemplate},
    },
    slinky::names,
};

pub use keys::KeyAnnotations;
pub use metrics::{Endpoint, Metrics, ServiceMonitor};
pub use persistence::{DEFAULT_CAPACITY, Persistence, VolumeResources};
pub use rest_api::{CertificateAuthority, ExternalRestApi};

/// Desired state of the Controller.
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
    doc = "The control plane of a Slurm cluster: slurmctld with its configuration and state, or an external one.",
    validation = Rule::new("oldSelf.hasValue() || size(self.metadata.name) <= 41")
        .message("the name is too long: with more than 41 characters, the StatefulSet of slurmctld cannot create pods")
        .optional_old_self(true),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "VERSION", type_ = "string", json_path = ".status.slurmVersion", priority = 1),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.external || has(self.slurmKeyRef)")
        .message("slurmKeyRef is required unless external is true"),
    validation = Rule::new("self.external || has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)")
        .message("jwtKeyRef is required (or jwtHs256KeyRef, its deprecated name) unless external is true"),
    validation = Rule::new("!self.external || has(self.externalConfig)")
        .message("externalConfig is required when external is true: set the host and port of slurmctld"),
    validation = Rule::new(
        "!has(self.ha) || !self.ha.enabled || (has(self.persistence) && self.persistence.enabled \
         && has(self.persistence.existingClaim) && size(self.persistence.existingClaim) > 0)"
    )
    .message("ha.enabled needs persistence.enabled and persistence.existingClaim: all slurmctld pods share that claim"),
    // A running cluster depends on these. Rules on the fields themselves would be skipped when a field is added or removed.
    validation = Rule::new(
        "(has(self.clusterName) ? self.clusterName : '') == (has(oldSelf.clusterName) ? oldSelf.clusterName : '')"
    )
    .message("clusterName is immutable: the state of slurmctld belongs to the cluster of that name"),
    validation = Rule::new(
        "(has(self.persistence) ? self.persistence.enabled : true) \
         == (has(oldSelf.persistence) ? oldSelf.persistence.enabled : true)"
    )
    .message("persistence.enabled is immutable: slurmctld would lose its state, and with it all jobs"),
    validation = Rule::new(
        "(has(self.persistence) && has(self.persistence.existingClaim) ? self.persistence.existingClaim : '') \
         == (has(oldSelf.persistence) && has(oldSelf.persistence.existingClaim) ? oldSelf.persistence.existingClaim : '')"
    )
    .message("persistence.existingClaim is immutable: slurmctld would lose its state, and with it all jobs"),
    validation = Rule::new(
        "!has(oldSelf.slurmKeyRef) || (has(self.slurmKeyRef) && self.slurmKeyRef.name == oldSelf.slurmKeyRef.name \
         && self.slurmKeyRef.key == oldSelf.slurmKeyRef.key)"
    )
    .message("slurmKeyRef is immutable: workers that run use the key. To rotate it, change the content of the Secret"),
    validation = Rule::new(
        "!(has(oldSelf.jwtKeyRef) || has(oldSelf.jwtHs256KeyRef)) \
         || ((has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)) \
         && (has(self.jwtKeyRef) ? self.jwtKeyRef.name : self.jwtHs256KeyRef.name) \
         == (has(oldSelf.jwtKeyRef) ? oldSelf.jwtKeyRef.name : oldSelf.jwtHs256KeyRef.name) \
         && (has(self.jwtKeyRef) ? self.jwtKeyRef.key : self.jwtHs256KeyRef.key) \
         == (has(oldSelf.jwtKeyRef) ? oldSelf.jwtKeyRef.key : oldSelf.jwtHs256KeyRef.key))"
    )
    .message(
        "jwtKeyRef (or jwtHs256KeyRef, its deprecated name) is immutable: tokens are signed with the key. To rotate it, change \
         the content of the Secret"
    )
)]
pub struct ControllerSpec {
    /// Slurm's name of the cluster, at most 40 characters. Defaults to the namespace and name of this object, joined by
    /// `_`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,

    /// Key that Slurm daemons and commands authenticate each other with (auth/slurm). Required unless external is true.
    /// For an external cluster set the key of that cluster: workers and login nodes need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_key_ref: Option<SecretKeySelector>,

    /// Key that signs JSON Web Tokens (auth/jwt, HS256). Required unless external is true. For an external cluster set
    /// the key of that cluster: without it the operator cannot access Slurm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_key_ref: Option<SecretKeySelector>,

    /// Deprecated: use jwtKeyRef, which takes precedence.
    #[serde(default, rename = "jwtHs256KeyRef", skip_serializing_if = "Option::is_none")]
    pub jwt_hs256_key_ref: Option<SecretKeySelector>,

    /// Whether the operator creates the Secrets of slurmKeyRef and jwtKeyRef with random keys if they do not exist.
    /// Defaults to false. Existing Secrets are never changed, and the Secrets are kept when this object is deleted.
    #[serde(default)]
    pub generate_keys: bool,

    /// Annotations of the Secrets that generateKeys creates, for example for a tool that copies them to other namespaces. Existing
    /// Secrets are not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_annotations: Option<KeyAnnotations>,

    /// JSON Web Key Set to verify tokens signed by other issuers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_key_ref: Option<ConfigMapKeySelector>,

    /// Accounting that stores job and user records. No accounting if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting_ref: Option<LocalObjectReference>,

    /// Whether slurmctld runs outside the operator's control. The operator then starts no slurmctld and joins workers
    /// and login nodes to the external one. Defaults to false.
    #[serde(default)]
    pub external: bool,

    /// Address of the external slurmctld. Used if external is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_config: Option<ExternalConfig>,

    /// External slurmrestd that the operator uses to access Slurm. Defaults to a RestApi object of this Controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_rest_api: Option<ExternalRestApi>,

    /// High availability: backup slurmctld pods beside the active one. A single slurmctld if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ha: Option<HighAvailability>,

    /// Fields of the slurmctld container, merged over the operator's. The image is required.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub slurmctld: Overlay,

    /// Whether a container beside slurmctld makes it reread every changed configuration. Defaults to false: the operator does that if
    /// it is safe for running workers, and otherwise replaces the pod.
    #[serde(default)]
    pub inplace_reconfigure: bool,

    /// Fields of the container that makes slurmctld reread its configuration. Used only with inplaceReconfigure.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub reconfigure: Overlay,

    /// Fields of the container that prints slurmctld's log.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub logfile: Overlay,

    /// Additions to the slurmctld pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "PodTemplate::is_empty")]
    pub template: PodTemplate,

    /// Lines appended to slurm.conf. They override the operator's settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// `ConfigMaps` with files for /etc/slurm, for example gres.conf or topology.yaml. For slurm.conf use extraConf
    /// instead.
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

    /// Storage for slurmctld's state: jobs, nodes, reservations. A new claim if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<Persistence>,

    /// Additions to the slurmctld Service.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "ServiceTemplate::is_empty")]
    pub service: ServiceTemplate,

    /// Prometheus metrics of slurmctld. Disabled if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
}

/// Backup slurmctld pods that take over when the active one fails.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct HighAvailability {
    /// Whether to run backups. Defaults to false. Requires persistence.existingClaim with a claim that several pods can
    /// write to.
    #[serde(default)]
    pub enabled: bool,

    /// Number of backups beside the active slurmctld. Defaults to 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub backups: i32,
}

/// Observed state of the Controller.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ControllerStatus {
    /// Version of Slurm that is running, for example 25.11.2. Not set until Slurm has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_version: Option<String>,

    /// Version of Slurm's REST API that the operator uses, for example v0.0.44.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_version: Option<String>,

    /// Last ping result of each slurmctld, primary first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["host".into()]))]
    pub slurmctld: Vec<SlurmctldStatus>,

    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the Controller. Ready: slurmctld is scheduling jobs. `SlurmReachable`: the operator can reach
    /// Slurm's REST API.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Ping result of one slurmctld.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlurmctldStatus {
    /// Host of this slurmctld, as in slurm.conf.
    pub host: String,

    /// Whether this slurmctld responds.
    pub responding: bool,

    /// Whether this is the active slurmctld, the one that schedules jobs.
    pub active: bool,

    /// Time when responding last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

impl ControllerSpec {
    /// Key that signs tokens. `None` only for an external cluster, or if the object bypassed schema validation.
    #[must_use]
    pub fn jwt_key(&self) -> Option<&SecretKeySelector> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }

    /// Address of slurmctld if it is external.
    #[must_use]
    pub fn elsewhere(&self) -> Option<&ExternalConfig> {
        self.external_config.as_ref().filter(|_| self.external)
    }

    /// Name of the Accounting, if set.
    #[must_use]
    pub fn accounting(&self) -> Option<&str> {
        self.accounting_ref.as_ref().and_then(|reference| non_empty(&reference.name))
    }

    /// Number of slurmctld pods: the active one and its backups.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        let backups = self.ha.as_ref().filter(|ha| ha.enabled).map_or(0, |ha| count(ha.backups).max(1));
        backups.saturating_add(1)
    }

    /// Storage for slurmctld's state.
    #[must_use]
    pub fn state_volume(&self) -> StateVolume<'_> {
        self.persistence
            .as_ref()
            .map_or_else(|| StateVolume::Claim(Box::new(Persistence::default().claim())), Persistence::state_volume)
    }

    #[must_use]
    pub fn service_port(&self) -> i32 {
        self.service.port_or(names::port::SLURMCTLD)
    }

    #[must_use]
    pub fn metrics_enabled(&self) -> bool {
        self.metrics.as_ref().is_some_and(|metrics| metrics.enabled)
    }

    /// The `ServiceMonitor` to create, if enabled.
    #[must_use]
    pub fn service_monitor(&self) -> Option<&ServiceMonitor> {
        let metrics = self.metrics.as_ref().filter(|metrics| metrics.enabled)?;
        metrics.service_monitor.as_ref().filter(|monitor| monitor.enabled)
    }
}

impl Controller {
    /// Slurm's name of the cluster.
    #[must_use]
    pub fn cluster_name(&self) -> String {
        let asked = self.spec.cluster_name.as_deref().and_then(non_empty);
        let default = || names::cluster_name(&self.namespace().unwrap_or_default(), &self.name_any());
        asked.map_or_else(default, str::to_owned)
    }
}

#[cfg(test)]
mod tests;
