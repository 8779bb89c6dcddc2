//! A slurmrestd that the operator does not run.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::shared::{ConfigMapKeySelector, SecretKeySelector};

/// A slurmrestd that runs somewhere else.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(
    validation = Rule::new("!has(self.ca) || self.url.startsWith('https://')")
        .message("ca is for https only: change url, or remove ca")
)]
pub struct ExternalRestApi {
    /// Where it is, for example `https://slurm.example.com:6820`. A path is allowed: Slurm's own paths follow it.
    #[schemars(regex(pattern = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"))]
    pub url: String,

    /// Who signs its certificate. The authorities that the operator's image trusts if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<CertificateAuthority>,
}

/// Certificates of authorities in PEM form, in a `ConfigMap` or a Secret.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.configMapKeyRef) != has(self.secretKeyRef)")
        .message("exactly one of configMapKeyRef and secretKeyRef is needed")
)]
pub struct CertificateAuthority {
    /// The key of a `ConfigMap` that holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<ConfigMapKeySelector>,

    /// The key of a Secret that holds them, for example ca.crt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeySelector>,
}
