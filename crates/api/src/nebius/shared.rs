//! Types that several kinds of this group use.
//!
//! Parts of pods are [`Overlay`]s: objects that the schema does not look into, so that fields of newer Kubernetes versions
//! survive, and the definitions stay small.

use std::{borrow::Cow, collections::BTreeMap};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::common::{
    shared::{LocalObjectReference, null_as_default},
    template::Overlay,
};

/// Schema pattern of a quantity that is a text.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Schema pattern of a duration of Prometheus, for example 1h30m.
pub const PROMETHEUS_DURATION: &str =
    r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$";

/// Resources of a container: they are its requests and, except for the CPU, also its limits.
pub type Resources = BTreeMap<String, Quantity>;

/// A whole number or a text, as it was written.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum IntOrText {
    Int(i64),
    Text(String),
}

impl JsonSchema for IntOrText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "IntOrText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true})
    }
}

/// A quantity of Kubernetes, as it was written: 4 or 64Gi.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(transparent)]
pub struct Quantity(pub IntOrText);

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self(IntOrText::Text(text.into()))
    }
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true, "pattern": QUANTITY})
    }
}

/// When an image is pulled.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullPolicy {
    /// Before each start.
    Always,
    /// Never: it must be on the Kubernetes node.
    Never,
    /// If it is not on the Kubernetes node.
    #[default]
    IfNotPresent,
}

/// Which parts of /proc a container sees.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcMount {
    /// Some parts are masked or read-only.
    Default,
    /// All.
    Unmasked,
}

/// Version of Linux control groups.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    V1,
    V2,
}

/// A container of a Slurm daemon.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeContainer {
    /// Image of the container.
    pub image: String,

    /// When the image is pulled. Defaults to `IfNotPresent`.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,

    /// Secrets for the registry of the image.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// Program to run instead of that of the image.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,

    /// Arguments of the program.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,

    /// Additional environment variables.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub custom_env: Vec<Overlay>,

    /// Port of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,

    /// Requests of the container and, except for the CPU, its limits.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: Resources,

    /// Liveness probe, instead of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Overlay>,

    /// Readiness probe, instead of the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Overlay>,

    /// Content of limits.conf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_limits_config: Option<String>,

    /// `AppArmor` profile. Defaults to unconfined.
    #[serde(default = "unconfined")]
    pub app_armor_profile: String,

    /// Which parts of /proc the container sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proc_mount: Option<ProcMount>,
}

/// Where the pods of a daemon run, and what they run first.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Name of the entry of k8sNodeFilters that says on which Kubernetes nodes the pods may run.
    pub k8s_node_filter_name: String,

    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,

    /// Containers that run before those of the operator.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub custom_init_containers: Vec<Overlay>,
}

/// SSSD, where users and groups come from.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Sssd {
    /// Container that runs SSSD. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd: Option<NodeContainer>,

    #[serde(flatten)]
    pub options: SssdOptions,
}

/// Options of SSSD.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SssdOptions {
    /// How much SSSD logs. Defaults to 0.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub sssd_debug_level: i32,

    /// Name of the Secret with sssd.conf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sssd_conf_secret_ref_name: Option<String>,

    /// Name of the `ConfigMap` with the CA certificates of the LDAP server.
    #[serde(default, rename = "sssdLdapCAConfigMapRefName", skip_serializing_if = "Option::is_none")]
    pub sssd_ldap_ca_config_map_ref_name: Option<String>,
}

/// A volume of a SlurmCluster. Exactly one of the fields must be set.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeVolume {
    /// Name of the entry of volumeSources to mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_source_name: Option<String>,

    /// Claim to create for each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_template_spec: Option<Overlay>,
}

/// A volume of a SlurmCluster, and where it is mounted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeVolumeMount {
    /// Name of the volume in the pod.
    pub name: String,

    /// Path of the mount.
    pub mount_path: String,

    /// Path within the volume. Defaults to its root.
    #[serde(default)]
    pub sub_path: String,

    /// Whether it is mounted read-only. Defaults to false.
    #[serde(default)]
    pub read_only: bool,

    #[serde(flatten)]
    pub volume: NodeVolume,
}

/// An image by its parts.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Name of the image, with its registry.
    pub repository: String,

    /// Tag of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,

    /// When the image is pulled. Defaults to `IfNotPresent`.
    #[serde(default)]
    pub pull_policy: PullPolicy,
}

/// A volume with its name: exactly one more field says what it is, as in a pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct NamedVolume {
    /// Name of the volume.
    pub name: String,

    #[serde(flatten)]
    pub source: Map<String, Value>,
}

/// Default for serde.
pub(super) fn unconfined() -> String {
    "unconfined".into()
}

/// Default for serde.
pub(super) fn shared_memory() -> Quantity {
    "64Gi".into()
}
