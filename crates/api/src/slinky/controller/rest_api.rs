//! An external slurmrestd.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::common::shared::{ConfigMapKeySelector, SecretKeySelector};

/// An external slurmrestd.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(
    validation = Rule::new("!has(self.ca) || self.url.startsWith('https://')")
        .message("ca is for https only: use an https url or remove ca")
)]
pub struct ExternalRestApi {
    /// URL of slurmrestd, for example `https://slurm.example.com:6820`. May include a path, which is put before Slurm's
    /// own paths.
    #[schemars(regex(pattern = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"))]
    pub url: String,

    /// CA certificates that sign slurmrestd's certificate. Defaults to the CAs that the operator's image trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<CertificateAuthority>,
}

impl ExternalRestApi {
    /// Whether requests to it are not encrypted.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.url.starts_with("https://")
    }
}

/// CA certificates in PEM format, in a `ConfigMap` or a Secret.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.configMapKeyRef) != has(self.secretKeyRef)")
        .message("exactly one of configMapKeyRef and secretKeyRef is required")
)]
pub struct CertificateAuthority {
    /// Key of a `ConfigMap` that holds the certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<ConfigMapKeySelector>,

    /// Key of a Secret that holds the certificates, for example ca.crt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeySelector>,
}
