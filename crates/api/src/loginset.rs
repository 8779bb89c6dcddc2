//! `LoginSet`: pods that users log in to.

use k8s_openapi::api::apps::v1::DeploymentStrategy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::names;
use crate::shared::{LocalObjectReference, SecretKeySelector, count, null_as_default, one};
use crate::template::{Overlay, PodTemplate, ServiceTemplate};

/// What the user asks for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "LoginSet",
    plural = "loginsets",
    shortname = "loginsets",
    shortname = "lss",
    shortname = "sackd",
    namespaced,
    status = "LoginSetStatus",
    derive = "PartialEq",
    doc = "Login nodes of a Slurm cluster: pods with sshd and Slurm's commands.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "REPLICAS", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct LoginSetSpec {
    /// The Controller of the Slurm cluster to log in to.
    pub controller_ref: LocalObjectReference,

    /// How many login nodes to run. 1 if not set.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Fields of the login container, merged over the operator's. The image is needed.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub login: Overlay,

    /// Fields of the container that prepares /etc/slurm before the login container starts.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub initconf: Overlay,

    /// What the pods have beyond what the operator gives them.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "PodTemplate::is_empty")]
    pub template: PodTemplate,

    /// Public keys, one per line, whose owners may log in as root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_ssh_authorized_keys: Option<String>,

    /// Lines for the end of sshd's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_sshd_config: Option<String>,

    /// The sssd.conf that says where users and groups come from.
    pub sssd_conf_ref: SecretKeySelector,

    /// How pods are replaced when something changes: that of a Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<DeploymentStrategy>,

    /// What the Service has beyond what the operator gives it.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "ServiceTemplate::is_empty")]
    pub service: ServiceTemplate,
}

/// What the operator saw and did.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LoginSetStatus {
    /// How many pods there are.
    #[serde(default)]
    pub replicas: i32,

    /// The labels of the pods, as a selector.
    pub selector: String,

    /// The generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Ready says whether users can log in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl LoginSetSpec {
    /// How many login nodes to run.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        count(self.replicas)
    }

    /// The port of the Service.
    #[must_use]
    pub fn service_port(&self) -> i32 {
        self.service.port_or(names::port::SSH)
    }
}

#[cfg(test)]
mod tests;
