//! `Token`: a JSON web token of Slurm, kept fresh in a Secret.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use serde::{Deserialize, Serialize};

use crate::duration::{self, DurationError};
use crate::names;
use crate::shared::{SecretKeySelector, non_empty, yes};

/// How long a token is good if its object does not say.
pub const DEFAULT_LIFETIME: SignedDuration = SignedDuration::from_mins(15);

/// Whom a token names if its object does not say: a user without rights.
pub const DEFAULT_USERNAME: &str = "nobody";

/// The key of the Secret that holds the token, and the variable that Slurm's commands read it from.
pub const DEFAULT_SECRET_KEY: &str = "SLURM_JWT";

/// What the user asks for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "Token",
    plural = "tokens",
    shortname = "tokens",
    shortname = "jwt",
    namespaced,
    status = "TokenStatus",
    derive = "PartialEq",
    doc = "A JSON web token for a Slurm user, signed with the cluster's key and kept in a Secret.",
    printcolumn(name = "USER", type_ = "string", json_path = ".spec.username"),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "IAT", type_ = "date", json_path = ".status.issuedAt"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)")
        .message("jwtKeyRef is required (or jwtHs256KeyRef, its deprecated name)")
)]
pub struct TokenSpec {
    /// The key that signs the token: the one that slurmctld verifies with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_key_ref: Option<SecretKeySelector>,

    /// Deprecated: use jwtKeyRef, which wins over this one.
    #[serde(default, rename = "jwtHs256KeyRef", skip_serializing_if = "Option::is_none")]
    pub jwt_hs256_key_ref: Option<SecretKeySelector>,

    /// The Slurm user that the bearer of the token acts as.
    pub username: String,

    /// How long a token is good, for example 90s, 15m or 1h30m. 15m if not set; at most 68 years.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = duration::PATTERN))]
    pub lifetime: Option<String>,

    /// Whether to replace the token before it expires; true if not set. Without it the Secret is made once and is immutable.
    #[serde(default = "yes")]
    pub refresh: bool,

    /// Where to write the token. By default the key `SLURM_JWT` of a Secret named after this object and the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeySelector>,
}

/// What the operator saw and did.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TokenStatus {
    /// When the current token was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_at: Option<Time>,

    /// When the current token expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,

    /// The generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Ready says whether the Secret holds a token that is good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl TokenSpec {
    /// The key that signs. `None` only if the object got past the rules of the schema.
    #[must_use]
    pub fn key_ref(&self) -> Option<&SecretKeySelector> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }

    /// The user that the token names.
    #[must_use]
    pub fn username(&self) -> &str {
        non_empty(&self.username).unwrap_or(DEFAULT_USERNAME)
    }

    /// How long a token is good. The range that Slurm can work with is left to whoever mints.
    pub fn lifetime(&self) -> Result<SignedDuration, DurationError> {
        self.lifetime.as_deref().map_or(Ok(DEFAULT_LIFETIME), duration::parse)
    }

    /// The key of the Secret that holds the token.
    #[must_use]
    pub fn secret_key(&self) -> &str {
        self.secret_ref.as_ref().and_then(|secret| non_empty(&secret.key)).unwrap_or(DEFAULT_SECRET_KEY)
    }
}

impl Token {
    /// The name of the Secret that holds the token.
    #[must_use]
    pub fn secret_name(&self) -> String {
        let asked = self.spec.secret_ref.as_ref().and_then(|secret| non_empty(&secret.name));
        asked.map_or_else(|| names::token_secret(&self.name_any(), self.spec.username()), str::to_owned)
    }
}

#[cfg(test)]
mod tests;
