//! `NodeConfigurator`: what runs on Kubernetes nodes to keep them fit for jobs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::shared::Image;
use crate::common::{
    shared::{null_as_default, yes},
    template::Overlay,
};

/// Desired state of the NodeConfigurator.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "slurm.nebius.ai",
    version = "v1alpha1",
    kind = "NodeConfigurator",
    plural = "nodeconfigurators",
    namespaced,
    status = "NodeConfiguratorStatus",
    derive = "PartialEq",
    doc = "A DaemonSet that reboots Kubernetes nodes when that is asked for, or runs a container of your own on them.",
    printcolumn(name = "Rebooter Enabled", type_ = "boolean", json_path = ".spec.rebooter.enabled"),
    printcolumn(name = "NodeConfigurator Enabled", type_ = "boolean", json_path = ".spec.customContainer.enabled"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeConfiguratorSpec {
    /// The container that drains and reboots Kubernetes nodes. Runs if not set. If it is enabled, customContainer is
    /// ignored.
    #[serde(default)]
    pub rebooter: Rebooter,

    /// A container of your own. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_container: Option<NodeDaemon>,

    /// Containers that run first.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Overlay>,

    /// Whether the pods use the network of their Kubernetes node. Defaults to true.
    #[serde(default = "yes")]
    pub host_network: bool,

    /// Whether the pods use the IPC namespace of their Kubernetes node. Defaults to false.
    #[serde(default, rename = "hostIPC")]
    pub host_ipc: bool,

    /// Whether the containers of a pod see each other's processes. Defaults to false.
    #[serde(default)]
    pub share_process_namespace: bool,
}

/// A container that runs on Kubernetes nodes, and the pods it is in.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeDaemon {
    /// Whether it runs.
    pub enabled: bool,

    /// Name of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// Image of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,

    /// Program to run instead of that of the image.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,

    /// Environment variables.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<Overlay>,

    /// Requests and limits of the container, as in a pod.
    #[serde(default)]
    pub resources: Overlay,

    /// Liveness probe of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Overlay>,

    /// Readiness probe of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Overlay>,

    /// Labels of the Kubernetes nodes to run on.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Affinity of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Overlay>,

    /// Tolerations of the pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Overlay>,

    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,

    /// Service account of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,

    /// Whether the pods use the user namespace of their Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,
}

/// The container that drains and reboots Kubernetes nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rebooter {
    #[serde(flatten)]
    pub daemon: NodeDaemon,

    /// How pods leave a Kubernetes node before it reboots. Only evict: they are evicted.
    #[serde(default)]
    pub eviction_method: EvictionMethod,

    /// How much the rebooter logs. Defaults to info.
    #[serde(default)]
    pub log_level: LogLevel,

    /// Format of the rebooter's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_format: Option<String>,
}

/// How pods leave a Kubernetes node before it reboots.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum EvictionMethod {
    /// They are evicted, which respects disruption budgets.
    #[default]
    Evict,
}

/// How much is logged.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Debug,
    #[default]
    Info,
    Warn,
    Error,
}

/// Observed state of the NodeConfigurator.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeConfiguratorStatus {
    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// State of the last update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_status: Option<String>,

    /// Why the last update is in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// Conditions of the NodeConfigurator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl Default for Rebooter {
    /// What runs if the spec says nothing.
    fn default() -> Self {
        let daemon = NodeDaemon {
            enabled: true,
            name: None,
            image: None,
            command: Vec::new(),
            env: Vec::new(),
            resources: Overlay::default(),
            liveness_probe: None,
            readiness_probe: None,
            node_selector: BTreeMap::new(),
            affinity: None,
            tolerations: Vec::new(),
            priority_class_name: None,
            service_account_name: None,
            host_users: None,
        };
        Self { daemon, eviction_method: EvictionMethod::Evict, log_level: LogLevel::Info, log_format: None }
    }
}
