//! `LoginSet`: pods in which users log in.

use k8s_openapi::{api::apps::v1::DeploymentStrategy, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{
    common::{
        shared::{LocalObjectReference, SecretKeySelector, count, null_as_default, one},
        template::{Overlay, PodTemplate, ServiceTemplate},
    },
    slinky::names,
};

/// Desired state of the LoginSet.
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
    doc = "Login nodes of a Slurm cluster: pods with sshd and the Slurm commands.",
    validation = Rule::new(
        "oldSelf.hasValue() || (size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z][-a-z0-9]*$'))"
    )
    .message("the name is also that of a Service: at most 63 letters, digits and '-', and a letter first")
    .optional_old_self(true),
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
#[x_kube(
    validation = Rule::new("self.controllerRef.name == oldSelf.controllerRef.name")
        .message("controllerRef is immutable: create another LoginSet for the other Controller")
)]
pub struct LoginSetSpec {
    /// Controller of the Slurm cluster to log in to.
    pub controller_ref: LocalObjectReference,

    /// Number of login pods. Defaults to 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Fields of the login container, merged over the operator's. The image is required.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub login: Overlay,

    /// Fields of the init container that copies slurm.key for sackd. Its image is that of the login container by default.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub initconf: Overlay,

    /// Additions to the login pods. terminationGracePeriodSeconds limits how long open sessions keep a pod that is
    /// replaced; it defaults to a day.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "PodTemplate::is_empty")]
    pub template: PodTemplate,

    /// SSH public keys that may log in as root, one per line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_ssh_authorized_keys: Option<String>,

    /// Lines appended to `sshd_config`. They take precedence over the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_sshd_config: Option<String>,

    /// The sssd.conf that configures where users and groups come from.
    pub sssd_conf_ref: SecretKeySelector,

    /// Update strategy of the Deployment. By default a new pod is ready before an old one ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<DeploymentStrategy>,

    /// Additions to the Service.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "ServiceTemplate::is_empty")]
    pub service: ServiceTemplate,
}

/// Observed state of the LoginSet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LoginSetStatus {
    /// Number of pods.
    #[serde(default)]
    pub replicas: i32,

    /// Label selector of the pods.
    pub selector: String,

    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the LoginSet. Ready: sackd and sshd respond.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl LoginSetSpec {
    /// Number of login pods.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        count(self.replicas)
    }

    #[must_use]
    pub fn service_port(&self) -> i32 {
        self.service.port_or(names::port::SSH)
    }
}

#[cfg(test)]
mod tests;
