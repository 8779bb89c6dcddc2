//! Partial pods and Services that users write and the operator merges over its own.
//!
//! The schema does not validate them: it would be a hundred times larger, and it would reject fields that are newer
//! than the CRD. Errors show when the merged object is created.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::common::shared::{Metadata, null_as_default};

/// Some fields of a Kubernetes object, exactly as in the manifest.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(transparent)]
pub struct Overlay(Map<String, Value>);

impl Overlay {
    #[must_use]
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Whether there are no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a field if it is a non-empty string, for example the image of a container or the hostname of a pod.
    #[must_use]
    pub fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field)?.as_str().filter(|text| !text.is_empty())
    }

    /// Deserializes the fields. Fields that the type does not know are lost, so the result must not be merged.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.0)
    }
}

impl From<Map<String, Value>> for Overlay {
    fn from(fields: Map<String, Value>) -> Self {
        Self(fields)
    }
}

impl JsonSchema for Overlay {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Overlay".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
    }
}

/// Additions to the pods of a daemon.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct PodTemplate {
    /// Labels and annotations of the pods.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,

    /// Fields of the pod spec, merged over the operator's. Containers, init containers and volumes are added to the
    /// operator's.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub spec: Overlay,
}

impl PodTemplate {
    /// Whether it adds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.metadata.is_empty() && self.spec.is_empty()
    }

    /// Hostname of the pods; for workers, the prefix of their hostnames.
    #[must_use]
    pub fn hostname(&self) -> Option<&str> {
        self.spec.text("hostname")
    }
}

/// Additions to the Service of a daemon.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTemplate {
    /// Labels and annotations of the Service.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,

    /// Fields of the Service spec, merged over the operator's, for example type: `LoadBalancer`. externalIPs are
    /// ignored.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Overlay::is_empty")]
    pub spec: Overlay,

    /// Port of the Service. Defaults to Slurm's usual port of the daemon, also if 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<i32>,

    /// Port on every Kubernetes node, for Services of type `NodePort` or `LoadBalancer`. Chosen by Kubernetes if not
    /// set or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub node_port: Option<i32>,
}

impl ServiceTemplate {
    /// Whether it adds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Port of the Service, or the daemon's `usual` port.
    #[must_use]
    pub fn port_or(&self, usual: i32) -> i32 {
        self.port.filter(|port| *port != 0).unwrap_or(usual)
    }

    /// Port on every Kubernetes node, if set.
    #[must_use]
    pub fn node_port(&self) -> Option<i32> {
        self.node_port.filter(|port| *port != 0)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Container;
    use serde_json::json;

    use super::*;

    #[test]
    fn overlays_keep_what_they_do_not_know() {
        let container = json!({
            "image": "registry.example.com/slurmd:25.11",
            "fromTheFuture": {"depth": [1, 2.5, null, true, "x", {}]},
            "resources": {"limits": {"cpu": 4, "nvidia.com/gpu": "8"}},
            "stdin": false,
        });
        let overlay: Overlay = serde_json::from_value(container.clone()).unwrap();
        assert_eq!(serde_json::to_value(&overlay).unwrap(), container);
        assert_eq!(overlay.fields().len(), 4);
        assert_eq!(overlay.text("image"), Some("registry.example.com/slurmd:25.11"));
        assert_eq!((overlay.text("stdin"), overlay.text("command")), (None, None));
    }

    #[test]
    fn overlays_can_be_looked_into() {
        let overlay: Overlay = serde_json::from_value(json!({"name": "slurmd", "args": ["-vv"], "new": 1})).unwrap();
        let container: Container = overlay.read().unwrap();
        assert_eq!((container.name.as_str(), container.args), ("slurmd", Some(vec!["-vv".into()])));

        let wrong: Overlay = serde_json::from_value(json!({"args": "-vv"})).unwrap();
        wrong.read::<Container>().unwrap_err();
        serde_json::from_value::<Overlay>(json!(["no", "object"])).unwrap_err();
    }

    #[test]
    fn templates_that_add_nothing_are_empty() {
        let template: PodTemplate = serde_json::from_value(json!({"metadata": {}, "spec": {}})).unwrap();
        assert!(template.is_empty());
        assert_eq!(template.hostname(), None);
        let template: PodTemplate = serde_json::from_value(json!({"metadata": null, "spec": null})).unwrap();
        assert!(template.is_empty());

        let template: PodTemplate = serde_json::from_value(json!({"spec": {"hostname": "gpu-"}})).unwrap();
        assert!(!template.is_empty());
        assert_eq!(template.hostname(), Some("gpu-"));
    }

    #[test]
    fn port_zero_is_no_port() {
        let ports = |service: Value| {
            let service: ServiceTemplate = serde_json::from_value(service).unwrap();
            (service.port_or(6817), service.node_port())
        };
        assert_eq!(ports(json!({})), (6817, None));
        assert_eq!(ports(json!({"port": 0, "nodePort": 0})), (6817, None));
        assert_eq!(ports(json!({"port": 16817, "nodePort": 30817})), (16817, Some(30817)));
    }
}
