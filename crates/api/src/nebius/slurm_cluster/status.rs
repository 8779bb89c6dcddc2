//! What the operator says about a SlurmCluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Observed state of the SlurmCluster.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlurmClusterStatus {
    /// Phase of the SlurmCluster: Pending, Reconciling, Not available or Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// Number of ready workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_workers: Option<i32>,

    /// Number of ready login nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_login: Option<i32>,

    /// Number of ready pods that write configuration into the jail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_s_config_controller: Option<i32>,

    /// Conditions of the SlurmCluster, one for each of its parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
