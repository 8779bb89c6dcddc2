//! `Accounting`: slurmdbd, the records of jobs and users.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use crate::shared::{ConfigMapKeySelector, ExternalConfig, SecretKeySelector, non_empty, null_as_default};
use crate::template::{Overlay, PodTemplate, ServiceTemplate};

/// The port of the database if the object does not say.
pub const DEFAULT_STORAGE_PORT: i32 = 3306;

/// The name of the database if the object does not say.
pub const DEFAULT_DATABASE: &str = "slurm_acct_db";

/// What the user asks for.
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
    doc = "The accounting of Slurm clusters: slurmdbd in front of a database, or one that runs somewhere else.",
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.external || has(self.slurmKeyRef)")
        .message("slurmKeyRef is required, unless external is true"),
    validation = Rule::new("self.external || has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)")
        .message("jwtKeyRef is required (or jwtHs256KeyRef, its deprecated name), unless external is true"),
    validation = Rule::new("!self.external || has(self.externalConfig)")
        .message("externalConfig is required when external is true: say where slurmdbd is")
)]
pub struct AccountingSpec {
    /// The key that Slurm's daemons trust each other by (auth/slurm): that of the Controllers. Required, unless external is
    /// true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_key_ref: Option<SecretKeySelector>,

    /// The key that signs JSON web tokens (auth/jwt, HS256): that of the Controllers. Required, unless external is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_key_ref: Option<SecretKeySelector>,

    /// Deprecated: use jwtKeyRef, which wins over this one.
    #[serde(default, rename = "jwtHs256KeyRef", skip_serializing_if = "Option::is_none")]
    pub jwt_hs256_key_ref: Option<SecretKeySelector>,

    /// A JSON web key set, for tokens that others sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_key_ref: Option<ConfigMapKeySelector>,

    /// Whether slurmdbd runs somewhere else. The operator then starts none, and points Controllers to that one. False if not
    /// set.
    #[serde(default)]
    pub external: bool,

    /// Where slurmdbd is, if external is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_config: Option<ExternalConfig>,

    /// Fields of the slurmdbd container, merged over the operator's. The image is needed.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub slurmdbd: Overlay,

    /// What the pod has beyond what the operator gives it.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "PodTemplate::is_empty")]
    pub template: PodTemplate,

    /// The database. slurmdbd does not start without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_config: Option<StorageConfig>,

    /// Lines for the end of slurmdbd.conf. They win over the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// What the Service has beyond what the operator gives it.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "ServiceTemplate::is_empty")]
    pub service: ServiceTemplate,
}

/// A database that speaks the protocol of `MySQL`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StorageConfig {
    /// Name or address of its host.
    pub host: String,

    /// Port that it listens on. 3306 if not set.
    #[serde(default = "default_storage_port")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: i32,

    /// Name of the database in it; `slurm_acct_db` if not set. slurmdbd makes the tables, and the database too if the user may.
    #[serde(default = "default_database")]
    pub database: String,

    /// The user to log in as. The one that slurmdbd runs as if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,

    /// The password of that user.
    pub password_key_ref: SecretKeySelector,
}

/// What the operator saw and did.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AccountingStatus {
    /// The generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Ready says whether slurmdbd answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl AccountingSpec {
    /// The key that signs tokens. `None` only for a slurmdbd somewhere else, or past the rules of the schema.
    #[must_use]
    pub fn jwt_key(&self) -> Option<&SecretKeySelector> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }

    /// Where slurmdbd is, if it runs somewhere else.
    #[must_use]
    pub fn elsewhere(&self) -> Option<&ExternalConfig> {
        self.external_config.as_ref().filter(|_| self.external)
    }

    /// The port of the Service.
    #[must_use]
    pub fn service_port(&self) -> i32 {
        self.service.port_or(names::port::SLURMDBD)
    }
}

impl StorageConfig {
    /// The port of the database.
    #[must_use]
    pub fn port(&self) -> i32 {
        if self.port == 0 { DEFAULT_STORAGE_PORT } else { self.port }
    }

    /// The name of the database.
    #[must_use]
    pub fn database(&self) -> &str {
        non_empty(&self.database).unwrap_or(DEFAULT_DATABASE)
    }

    /// The user to log in as, if the object says.
    #[must_use]
    pub fn username(&self) -> Option<&str> {
        self.username.as_deref().and_then(non_empty)
    }
}

/// serde wants a function.
fn default_storage_port() -> i32 {
    DEFAULT_STORAGE_PORT
}

/// serde wants a function.
fn default_database() -> String {
    DEFAULT_DATABASE.into()
}

#[cfg(test)]
mod tests;
