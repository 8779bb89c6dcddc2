//! `NodeSetPowerState`: which workers of a NodeSet with ephemeral nodes run.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::shared::null_as_default;

/// Desired state of the NodeSetPowerState.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "slurm.nebius.ai",
    version = "v1alpha1",
    kind = "NodeSetPowerState",
    plural = "nodesetpowerstates",
    namespaced,
    status = "NodeSetPowerStateStatus",
    derive = "PartialEq",
    doc = "Which workers of a NodeSet with ephemeral nodes run. Slurm's power saving changes it.",
    printcolumn(name = "NodeSet", type_ = "string", json_path = ".spec.nodeSetRef"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.activeCount"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetPowerStateSpec {
    /// Name of the NodeSet.
    #[schemars(length(min = 1))]
    pub node_set_ref: String,

    /// Ordinals of the workers that run.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub active_nodes: Vec<i32>,
}

/// Observed state of the NodeSetPowerState.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetPowerStateStatus {
    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Number of workers that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_count: Option<i32>,

    /// State of each worker, by ordinal.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_states: BTreeMap<String, NodeState>,

    /// Conditions of the NodeSetPowerState. Ready: exactly the active workers run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// State of a worker.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// Phase of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PodPhase>,

    /// Name of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,

    /// State of the Slurm node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_state: Option<String>,

    /// When the phase last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,

    /// Why the worker is in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Phase of a pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// It is not running yet.
    Pending,
    /// It is running.
    Running,
    /// It has ended without an error.
    Succeeded,
    /// It has ended with an error.
    Failed,
    /// Its Kubernetes node does not answer.
    Unknown,
}
