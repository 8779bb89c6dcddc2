//! `JailedConfig`: files that the operator writes into the shared root.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::shared::null_as_default;

/// Desired state of the JailedConfig.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "slurm.nebius.ai",
    version = "v1alpha1",
    kind = "JailedConfig",
    plural = "jailedconfigs",
    namespaced,
    status = "JailedConfigStatus",
    derive = "PartialEq",
    doc = "Keys of a ConfigMap as files in the root file system that jobs share (the jail).",
    printcolumn(
        name = "Files Written",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='FilesWritten')].reason"
    ),
    printcolumn(
        name = "Reconfiguration Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='UpdateActionsCompleted')].reason"
    ),
    printcolumn(name = "Jailed Path", type_ = "string", json_path = ".spec.items[0].path"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct JailedConfigSpec {
    /// `ConfigMap` with the content of the files.
    pub config_map: ConfigMapReference,

    /// Which keys become files, and where.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub items: Vec<Item>,

    /// Mode of files whose item has none, as a number: 420 is 0644.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<i32>,

    /// What happens after files have changed. Nothing if empty.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub update_actions: Vec<UpdateAction>,
}

/// A `ConfigMap` in the same namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ConfigMapReference {
    /// Name of the `ConfigMap`.
    pub name: String,
}

/// A key that becomes a file.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Key in the `ConfigMap`.
    pub key: String,

    /// Absolute path of the file in the jail.
    pub path: String,

    /// Mode of the file, as a number: 493 is 0755.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<i32>,
}

/// What happens after files have changed.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateAction {
    /// slurmctld and every slurmd read their configuration again.
    Reconfigure,
}

/// Observed state of the JailedConfig.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct JailedConfigStatus {
    /// Conditions of the JailedConfig. `FilesWritten`: the files are in the jail. `UpdateActionsCompleted`: what follows
    /// a change has been done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
