//! Types that several kinds use.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Key of a Secret in the same namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct SecretKeySelector {
    /// Name of the Secret.
    #[serde(default)]
    pub name: String,

    /// Key in the Secret.
    pub key: String,

    /// Whether the Secret or the key may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// Key of a `ConfigMap` in the same namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ConfigMapKeySelector {
    /// Name of the `ConfigMap`.
    #[serde(default)]
    pub name: String,

    /// Key in the `ConfigMap`.
    pub key: String,

    /// Whether the `ConfigMap` or the key may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// Reference to an object in the same namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LocalObjectReference {
    /// Name of the object.
    #[serde(default)]
    pub name: String,
}

/// Address of an external Slurm daemon.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalConfig {
    /// Hostname or IP address that pods can reach.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._:-]+$"))]
    pub host: String,

    /// Port of the daemon.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

/// Labels and annotations to add to an object that the operator creates.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Labels to add. Labels that the operator uses in selectors cannot be changed.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Annotations to add.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// Whether there are no labels or annotations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// Treats an empty text as not set: the API server fills in empty names.
pub(crate) fn non_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// A count. The schema excludes negative values.
pub(crate) fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// Reads a null list or map as empty: charts write such values.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Default for serde.
pub(crate) fn yes() -> bool {
    true
}

/// Default for serde.
pub(crate) fn one() -> i32 {
    1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_metadata_is_none() {
        let metadata: Metadata = serde_json::from_value(json!({"labels": null, "annotations": null})).unwrap();
        assert!(metadata.is_empty());
        assert_eq!(serde_json::to_value(metadata).unwrap(), json!({}));

        let given = json!({"labels": {"team": "physics"}});
        let metadata: Metadata = serde_json::from_value(given.clone()).unwrap();
        assert!(!metadata.is_empty());
        assert_eq!(serde_json::to_value(metadata).unwrap(), given);
    }

    #[test]
    fn references_need_no_name() {
        let reference: LocalObjectReference = serde_json::from_value(json!({})).unwrap();
        assert_eq!(non_empty(&reference.name), None);
        let key: ConfigMapKeySelector = serde_json::from_value(json!({"key": "jwks.json"})).unwrap();
        assert_eq!(non_empty(&key.name), None);
    }

    #[test]
    fn counts_are_never_negative() {
        assert_eq!([i32::MIN, -1, 0, 1, i32::MAX].map(count), [0, 0, 0, 1, 2_147_483_647]);
    }
}
