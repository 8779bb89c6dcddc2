//! Storage for slurmctld's state.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference, VolumeResourceRequirements,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use crate::common::{
    shared::{non_empty, null_as_default, yes},
    storage::StateVolume,
};

/// Size of the claim if the spec sets none.
pub const DEFAULT_CAPACITY: &str = "4Gi";

/// Access mode of the claim if the spec sets none.
const DEFAULT_ACCESS_MODE: &str = "ReadWriteOnce";

/// Storage for slurmctld's state. Except for enabled and existingClaim, the fields describe the claim to create.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Persistence {
    /// Whether the state outlives the pod. Defaults to true. If false, a restart of slurmctld loses all jobs.
    #[serde(default = "yes")]
    pub enabled: bool,

    /// Name of an existing claim to use instead of a new one. Required for high availability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_claim: Option<String>,

    /// Access modes of the volume. Defaults to `ReadWriteOnce`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub access_modes: Vec<String>,

    /// Claim or snapshot to populate the volume from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub data_source: Option<TypedLocalObjectReference>,

    /// Object of any kind to populate the volume from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_source_ref: Option<TypedObjectReference>,

    /// Size of the volume. Defaults to 4Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<VolumeResources>,

    /// Label selector for the volumes to choose from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub selector: Option<LabelSelector>,

    /// Storage class. The cluster's default if not set; no storage class if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,

    /// Volume attributes class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_attributes_class_name: Option<String>,

    /// Volume mode, Filesystem or Block. slurmctld needs Filesystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,

    /// Name of the persistent volume to bind to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
}

impl Default for Persistence {
    /// The defaults of the schema.
    fn default() -> Self {
        Self {
            enabled: true,
            existing_claim: None,
            access_modes: Vec::new(),
            data_source: None,
            data_source_ref: None,
            resources: None,
            selector: None,
            storage_class_name: None,
            volume_attributes_class_name: None,
            volume_mode: None,
            volume_name: None,
        }
    }
}

/// Size of a volume.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct VolumeResources {
    /// Minimum size, for example storage: 4Gi.
    #[serde(default, deserialize_with = "quantities", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities_schema")]
    pub requests: BTreeMap<String, Quantity>,

    /// Maximum size.
    #[serde(default, deserialize_with = "quantities", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities_schema")]
    pub limits: BTreeMap<String, Quantity>,
}

impl Persistence {
    /// Returns the storage for slurmctld's state.
    #[must_use]
    pub fn state_volume(&self) -> StateVolume<'_> {
        match self.existing_claim.as_deref().and_then(non_empty) {
            _ if !self.enabled => StateVolume::Scratch,
            Some(name) => StateVolume::Existing(name),
            None => StateVolume::Claim(Box::new(self.claim())),
        }
    }

    /// The claim to create. Kubernetes rejects a claim without an access mode or a size.
    pub(super) fn claim(&self) -> PersistentVolumeClaimSpec {
        let resources = self.resources.clone().unwrap_or_default();
        let mut requests = resources.requests;
        requests.entry("storage".into()).or_insert_with(|| Quantity(DEFAULT_CAPACITY.into()));
        let modes = &self.access_modes;
        PersistentVolumeClaimSpec {
            access_modes: Some(if modes.is_empty() { vec![DEFAULT_ACCESS_MODE.into()] } else { modes.clone() }),
            data_source: self.data_source.clone(),
            data_source_ref: self.data_source_ref.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(requests),
                limits: Some(resources.limits).filter(|limits| !limits.is_empty()),
            }),
            selector: self.selector.clone(),
            storage_class_name: self.storage_class_name.clone(),
            volume_attributes_class_name: self.volume_attributes_class_name.clone(),
            volume_mode: self.volume_mode.clone(),
            volume_name: self.volume_name.clone(),
        }
    }
}

/// Accepts quantities that are written as plain numbers.
fn quantities<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Quantity>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Amount {
        Number(i64),
        Text(String),
    }
    let quantity = |amount| match amount {
        Amount::Number(number) => Quantity(number.to_string()),
        Amount::Text(text) => Quantity(text),
    };
    let amounts = Option::<BTreeMap<String, Amount>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(amounts.into_iter().map(|(name, amount)| (name, quantity(amount))).collect())
}

fn quantities_schema(_: &mut SchemaGenerator) -> Schema {
    let number = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))";
    let pattern = format!(r"^(\+|-)?{number}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{number}))?$");
    json_schema!({
        "type": "object",
        "additionalProperties": {"pattern": pattern, "x-kubernetes-int-or-string": true},
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn persistence(value: Value) -> Persistence {
        serde_json::from_value(value).unwrap()
    }

    fn claim(value: Value) -> Value {
        match persistence(value).state_volume() {
            StateVolume::Claim(claim) => serde_json::to_value(claim).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn state_lives_in_a_claim_by_default() {
        let expected = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Gi"}}});
        assert_eq!(claim(json!({})), expected);
        assert_eq!(claim(json!({"accessModes": null, "existingClaim": "", "resources": {"requests": null}})), expected);
        assert_eq!(persistence(json!({})), Persistence::default());
    }

    #[test]
    fn state_lives_where_the_user_wants_it() {
        let volume = |value| persistence(value);
        assert_eq!(volume(json!({"existingClaim": "state"})).state_volume(), StateVolume::Existing("state"));
        let off = volume(json!({"enabled": false, "existingClaim": "state"}));
        assert_eq!(off.state_volume(), StateVolume::Scratch);
    }

    #[test]
    fn a_claim_has_what_the_user_wrote() {
        let fields = json!({
            "accessModes": ["ReadWriteMany"],
            "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"},
            "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "old", "namespace": "elsewhere"},
            "resources": {"requests": {"storage": "10Gi"}, "limits": {"storage": "20Gi"}},
            "selector": {"matchLabels": {"disk": "fast"}},
            "storageClassName": "",
            "volumeAttributesClassName": "gold",
            "volumeMode": "Filesystem",
            "volumeName": "pv-7",
        });
        assert_eq!(claim(fields.clone()), fields);
        let mut written = fields.clone();
        written["enabled"] = json!(true);
        assert_eq!(serde_json::to_value(persistence(fields)).unwrap(), written);
    }

    #[test]
    fn a_plain_number_is_a_quantity() {
        let claim = claim(json!({"resources": {"requests": {"storage": 4_294_967_296_i64}}}));
        assert_eq!(claim["resources"]["requests"]["storage"], "4294967296");
    }
}
