//! `Token`: a Slurm JSON Web Token that is kept in a Secret and refreshed.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use serde::{Deserialize, Serialize};

use crate::{
    common::{
        duration::{self, DurationError},
        shared::{SecretKeySelector, non_empty, yes},
    },
    slinky::names,
};

/// Lifetime of a token if the spec sets none.
pub const DEFAULT_LIFETIME: SignedDuration = SignedDuration::from_mins(15);

/// User of a token if the spec sets none: a user without privileges.
pub const DEFAULT_USERNAME: &str = "nobody";

/// Secret key that holds the token, and the environment variable that Slurm commands read it from.
pub const DEFAULT_SECRET_KEY: &str = "SLURM_JWT";

/// Desired state of the Token.
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
    doc = "A JSON Web Token for a Slurm user, signed with the cluster's key and stored in a Secret.",
    printcolumn(name = "USER", type_ = "string", json_path = ".spec.username"),
    printcolumn(name = "READY", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "IAT", type_ = "date", json_path = ".status.issuedAt"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)")
        .message("jwtKeyRef is required (or jwtHs256KeyRef, its deprecated name)"),
    validation = Rule::new(
        "!((has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)) && (has(oldSelf.jwtKeyRef) || has(oldSelf.jwtHs256KeyRef))) \
         || ((has(self.jwtKeyRef) ? self.jwtKeyRef.name : self.jwtHs256KeyRef.name) \
         == (has(oldSelf.jwtKeyRef) ? oldSelf.jwtKeyRef.name : oldSelf.jwtHs256KeyRef.name) \
         && (has(self.jwtKeyRef) ? self.jwtKeyRef.key : self.jwtHs256KeyRef.key) \
         == (has(oldSelf.jwtKeyRef) ? oldSelf.jwtKeyRef.key : oldSelf.jwtHs256KeyRef.key))"
    )
    .message(
        "jwtKeyRef (or jwtHs256KeyRef, its deprecated name) is immutable: create another Token for the other key. To rotate \
         the key, change the content of the Secret"
    )
)]
pub struct TokenSpec {
    /// Key that signs the token. Must be the key that slurmctld verifies tokens with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_key_ref: Option<SecretKeySelector>,

    /// Deprecated: use jwtKeyRef, which takes precedence.
    #[serde(default, rename = "jwtHs256KeyRef", skip_serializing_if = "Option::is_none")]
    pub jwt_hs256_key_ref: Option<SecretKeySelector>,

    /// Slurm user that the token authenticates.
    pub username: String,

    /// Lifetime of the token, for example 90s, 15m or 1h30m. Defaults to 15m; at most 68 years.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = duration::PATTERN))]
    pub lifetime: Option<String>,

    /// Whether to replace the token before it expires. Defaults to true. If false, the Secret is created once and is
    /// immutable.
    #[serde(default = "yes")]
    pub refresh: bool,

    /// Where to write the token. Defaults to the key `SLURM_JWT` of a Secret named after this object and the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeySelector>,
}

/// Observed state of the Token.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TokenStatus {
    /// When the current token was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued_at: Option<Time>,

    /// When the current token expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,

    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the Token. Ready: the Secret holds a valid token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl TokenSpec {
    /// Key that signs the token. `None` only if the object bypassed schema validation.
    #[must_use]
    pub fn key_ref(&self) -> Option<&SecretKeySelector> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }

    /// User of the token, or the default.
    #[must_use]
    pub fn username(&self) -> &str {
        non_empty(&self.username).unwrap_or(DEFAULT_USERNAME)
    }

    /// Lifetime of the token. The range that Slurm supports is checked when the token is signed.
    pub fn lifetime(&self) -> Result<SignedDuration, DurationError> {
        self.lifetime.as_deref().map_or(Ok(DEFAULT_LIFETIME), duration::parse)
    }

    /// Key in the Secret that holds the token.
    #[must_use]
    pub fn secret_key(&self) -> &str {
        self.secret_ref.as_ref().and_then(|secret| non_empty(&secret.key)).unwrap_or(DEFAULT_SECRET_KEY)
    }
}

impl Token {
    /// Name of the Secret that holds the token.
    #[must_use]
    pub fn secret_name(&self) -> String {
        let asked = self.spec.secret_ref.as_ref().and_then(|secret| non_empty(&secret.name));
        asked.map_or_else(|| names::token_secret(&self.name_any(), self.spec.username()), str::to_owned)
    }
}

#[cfg(test)]
mod tests;
