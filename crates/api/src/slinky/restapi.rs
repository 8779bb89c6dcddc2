//! `RestApi`: slurmrestd, Slurm's REST API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{
    common::{
        shared::{LocalObjectReference, count, null_as_default, one},
        template::{Overlay, PodTemplate, ServiceTemplate},
    },
    slinky::names,
};

/// Desired state of the RestApi.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "RestApi",
    plural = "restapis",
    shortname = "slurmrestd",
    namespaced,
    status = "RestApiStatus",
    derive = "PartialEq",
    doc = "Slurm's REST API: slurmrestd for one Slurm cluster. The operator uses it to access Slurm.",
    validation = Rule::new(
        "oldSelf.hasValue() || (size(self.metadata.name) <= 55 && self.metadata.name.matches('^[a-z][-a-z0-9]*$'))"
    )
    .message("the name is part of the name of a Service: at most 55 letters, digits and '-', and a letter first")
    .optional_old_self(true),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.controllerRef.name == oldSelf.controllerRef.name")
        .message("controllerRef is immutable: create another RestApi for the other Controller")
)]
pub struct RestApiSpec {
    /// Controller of the Slurm cluster to serve.
    pub controller_ref: LocalObjectReference,

    /// Number of slurmrestd pods. Defaults to 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Fields of the slurmrestd container, merged over the operator's. The image is required.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub slurmrestd: Overlay,

    /// Additions to the slurmrestd pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "PodTemplate::is_empty")]
    pub template: PodTemplate,

    /// Additions to the Service.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "ServiceTemplate::is_empty")]
    pub service: ServiceTemplate,
}

/// Observed state of the RestApi.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RestApiStatus {
    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the RestApi. Ready: slurmrestd is responding.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl RestApiSpec {
    /// Number of slurmrestd pods.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        count(self.replicas)
    }

    #[must_use]
    pub fn service_port(&self) -> i32 {
        self.service.port_or(names::port::SLURMRESTD)
    }
}

#[cfg(test)]
mod tests;
