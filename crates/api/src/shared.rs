//! Types that several kinds use.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One key of a Secret in the namespace of the object that refers to it.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct SecretKeySelector {
    /// Name of the Secret.
    #[serde(default)]
    pub name: String,

    /// Key within the Secret.
    pub key: String,

    /// Whether the Secret or its key may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}
