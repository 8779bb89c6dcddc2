//! `RestApi`: slurmrestd, Slurm's REST API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::names;
use crate::shared::{LocalObjectReference, count, null_as_default, one};
use crate::template::{Overlay, PodTemplate, ServiceTemplate};

/// What the user asks for.
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
    doc = "Slurm's REST API: slurmrestd for one Slurm cluster. The operator itself talks to Slurm through it.",
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct RestApiSpec {
    /// The Controller of the Slurm cluster that it serves.
    pub controller_ref: LocalObjectReference,

    /// How many slurmrestd to run. 1 if not set.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Fields of the slurmrestd container, merged over the operator's. The image is needed.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub slurmrestd: Overlay,

    /// What the pods have beyond what the operator gives them.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "PodTemplate::is_empty")]
    pub template: PodTemplate,

    /// What the Service has beyond what the operator gives it.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "ServiceTemplate::is_empty")]
    pub service: ServiceTemplate,
}

/// What the operator saw and did.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RestApiStatus {
    /// The generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Ready says whether slurmrestd answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl RestApiSpec {
    /// How many slurmrestd to run.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        count(self.replicas)
    }

    /// The port of the Service.
    #[must_use]
    pub fn service_port(&self) -> i32 {
        self.service.port_or(names::port::SLURMRESTD)
    }
}

#[cfg(test)]
mod tests;
