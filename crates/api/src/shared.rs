//! Types that several kinds use.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

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

/// One key of a `ConfigMap` in the namespace of the object that refers to it.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ConfigMapKeySelector {
    /// Name of the `ConfigMap`.
    #[serde(default)]
    pub name: String,

    /// Key within the `ConfigMap`.
    pub key: String,

    /// Whether the `ConfigMap` or its key may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// An object in the namespace of the object that refers to it.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LocalObjectReference {
    /// Name of the object.
    #[serde(default)]
    pub name: String,
}

/// A Slurm daemon that runs somewhere else.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalConfig {
    /// Name or address of its host, as pods reach it.
    pub host: String,

    /// Port that it listens on.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

/// Labels and annotations that are added to an object of the operator.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Labels to add. Those that the operator selects by cannot be changed.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Annotations to add.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// Whether it adds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// A text that says something. The API server fills in empty names.
pub(crate) fn non_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// A count that a schema keeps from being negative.
pub(crate) fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// A null list or map is an empty one: charts write such.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// serde wants functions for defaults.
pub(crate) fn yes() -> bool {
    true
}

/// serde wants functions for defaults.
pub(crate) fn one() -> i32 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
