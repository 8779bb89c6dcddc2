//! Keys that the operator generates.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::shared::null_as_default;

/// Annotations of generated Secrets. A Secret with both keys has both.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KeyAnnotations {
    /// Annotations of the Secret of slurmKeyRef.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub slurm_key: BTreeMap<String, String>,

    /// Annotations of the Secret of jwtKeyRef.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub jwt_key: BTreeMap<String, String>,
}
