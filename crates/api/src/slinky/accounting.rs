//! `Accounting`: slurmdbd, which stores job and user records.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    common::{
        shared::{
            ConfigMapKeySelector, ExternalConfig, LocalObjectReference, SecretKeySelector, non_empty, null_as_default,
        },
        template::{Overlay, PodTemplate, ServiceTemplate},
    },
    slinky::{controller::CertificateAuthority, names},
};

/// Database port if the spec sets none.
pub const DEFAULT_STORAGE_PORT: i32 = 3306;

/// Database name if the spec sets none.
pub const DEFAULT_DATABASE: &str = "slurm_acct_db";

/// Desired state of the Accounting.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "Accounting",
    plural = "accountings",
    shortname = "slurmdbd",
    namespaced,
    status = "AccountingStatus",
    derive = "PartialEq",
    doc = "Accounting for Slurm clusters: a slurmdbd with its database, or a reference to an external slurmdbd.",
    validation = Rule::new("oldSelf.hasValue() || size(self.metadata.name) <= 41")
        .message("the name is too long: with more than 41 characters, the StatefulSet of slurmdbd cannot create pods")
        .optional_old_self(true),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.external || has(self.slurmKeyRef)")
        .message("slurmKeyRef is required unless external is true"),
    validation = Rule::new("self.external || has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)")
        .message("jwtKeyRef is required (or jwtHs256KeyRef, its deprecated name) unless external is true"),
    validation = Rule::new("!self.external || has(self.externalConfig)")
        .message("externalConfig is required when external is true: set the host and port of slurmdbd"),
    // As for the Controllers that use it.
    validation = Rule::new(
        "!(has(oldSelf.jwtKeyRef) || has(oldSelf.jwtHs256KeyRef)) \
         || ((has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)) \
         && (has(self.jwtKeyRef) ? self.jwtKeyRef.name : self.jwtHs256KeyRef.name) \
         == (has(oldSelf.jwtKeyRef) ? oldSelf.jwtKeyRef.name : oldSelf.jwtHs256KeyRef.name) \
         && (has(self.jwtKeyRef) ? self.jwtKeyRef.key : self.jwtHs256KeyRef.key) \
         == (has(oldSelf.jwtKeyRef) ? oldSelf.jwtKeyRef.key : oldSelf.jwtHs256KeyRef.key))"
    )
    .message(
        "jwtKeyRef (or jwtHs256KeyRef, its deprecated name) is immutable: tokens are signed with the key. To rotate it, change \
         the content of the Secret"
    )
)]
pub struct AccountingSpec {
    /// Key that Slurm daemons authenticate each other with (auth/slurm). Must be the same as the Controllers' key.
    /// Required unless external is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_key_ref: Option<SecretKeySelector>,

    /// Key that signs JSON Web Tokens (auth/jwt, HS256). Must be the same as the Controllers' key. Required unless
    /// external is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_key_ref: Option<SecretKeySelector>,

    /// Deprecated: use jwtKeyRef, which takes precedence.
    #[serde(default, rename = "jwtHs256KeyRef", skip_serializing_if = "Option::is_none")]
    pub jwt_hs256_key_ref: Option<SecretKeySelector>,

    /// JSON Web Key Set to verify tokens signed by other issuers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_key_ref: Option<ConfigMapKeySelector>,

    /// Whether slurmdbd runs outside the operator's control. The operator then starts no slurmdbd and points
    /// Controllers to the external one. Defaults to false.
    #[serde(default)]
    pub external: bool,

    /// Address of the external slurmdbd. Used if external is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_config: Option<ExternalConfig>,

    /// Fields of the slurmdbd container, merged over the operator's. The image is required.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub slurmdbd: Overlay,

    /// Additions to the slurmdbd pod.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "PodTemplate::is_empty")]
    pub template: PodTemplate,

    /// Database connection. slurmdbd does not start without a database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_config: Option<StorageConfig>,

    /// Lines appended to slurmdbd.conf. They override the operator's settings; lists that both
    /// set, such as `StorageParameters`, are merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// Additions to the Service.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "ServiceTemplate::is_empty")]
    pub service: ServiceTemplate,
}

/// Connection to a `MySQL`-compatible database.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StorageConfig {
    /// Hostname or IP address of the database server.
    pub host: String,

    /// Port of the database server. Defaults to 3306.
    #[serde(default = "default_storage_port")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: i32,

    /// Database name. Defaults to `slurm_acct_db`. slurmdbd creates the tables, and the database as well if its user
    /// has the permission.
    #[serde(default = "default_database")]
    pub database: String,

    /// Database user. Defaults to the user that slurmdbd runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,

    /// Password of the database user. slurmdbd is restarted when it changes.
    pub password_key_ref: SecretKeySelector,

    /// TLS to the database. Without it, the database client of the slurmdbd image decides whether to use TLS, and
    /// mostly cannot verify the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<StorageTls>,
}

/// TLS to the database. Changed certificates are used for new connections, without a restart.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.ca) || has(self.clientCertificateRef)")
        .message("at least one of ca and clientCertificateRef is required")
)]
pub struct StorageTls {
    /// CA certificates that sign the certificate of the database server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<CertificateAuthority>,

    /// Secret of type kubernetes.io/tls with the certificate and key that slurmdbd authenticates with, if the database
    /// asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate_ref: Option<LocalObjectReference>,
}

/// Observed state of the Accounting.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AccountingStatus {
    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the Accounting. Ready: slurmdbd is responding and has its database.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl AccountingSpec {
    /// Key that signs tokens. `None` only for an external slurmdbd, or if the object bypassed schema validation.
    #[must_use]
    pub fn jwt_key(&self) -> Option<&SecretKeySelector> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }

    /// Address of slurmdbd if it is external.
    #[must_use]
    pub fn elsewhere(&self) -> Option<&ExternalConfig> {
        self.external_config.as_ref().filter(|_| self.external)
    }

    #[must_use]
    pub fn service_port(&self) -> i32 {
        self.service.port_or(names::port::SLURMDBD)
    }
}

impl StorageConfig {
    /// Database port, or the default.
    #[must_use]
    pub fn port(&self) -> i32 {
        if self.port == 0 { DEFAULT_STORAGE_PORT } else { self.port }
    }

    /// Database name, or the default.
    #[must_use]
    pub fn database(&self) -> &str {
        non_empty(&self.database).unwrap_or(DEFAULT_DATABASE)
    }

    /// Database user, if set.
    #[must_use]
    pub fn username(&self) -> Option<&str> {
        self.username.as_deref().and_then(non_empty)
    }
}

fn default_storage_port() -> i32 {
    DEFAULT_STORAGE_PORT
}

fn default_database() -> String {
    DEFAULT_DATABASE.into()
}

#[cfg(test)]
mod tests;
