//! Helpers for the tests of all kinds.

use std::{fmt::Debug, sync::LazyLock};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Resource,
    core::cel::{Validator, apply_defaults},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::slinky::crds;

/// Cached because deriving the CRDs is slow.
static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(crds);

pub fn crd(kind: &str) -> CustomResourceDefinition {
    CRDS.iter().find(|crd| crd.spec.names.kind == kind).cloned().unwrap()
}

/// The only version of a CRD.
pub fn version(kind: &str) -> Value {
    let versions = crd(kind).spec.versions;
    assert_eq!(versions.len(), 1);
    serde_json::to_value(&versions[0]).unwrap()
}

pub fn schema(kind: &str) -> Value {
    version(kind)["schema"]["openAPIV3Schema"].take()
}

/// Field names of the spec or the status.
pub fn fields(kind: &str, part: &str) -> Vec<String> {
    schema(kind)["properties"][part]["properties"].as_object().unwrap().keys().cloned().collect()
}

/// Validates a spec after its defaults are filled in.
pub fn validate(kind: &str, spec: &Value) -> Result<(), String> {
    let mut schema = schema(kind);
    // Rules about the whole object are tested with a real API server: this evaluator has no optional values.
    schema.as_object_mut().unwrap().remove("x-kubernetes-validations");
    Validator::new().validate(&schema, &json!({ "spec": spec }), None).map_err(|error| error.to_string())
}

/// Asserts that validation fails with exactly one error that contains `words`.
#[track_caller]
pub fn refused(kind: &str, spec: &Value, words: &str) {
    let error = validate(kind, spec).unwrap_err();
    assert!(error.contains(words), "{error}");
    assert!(error.starts_with("1 validation error"), "{error}");
}

pub fn manifest(kind: &str, spec: &Value) -> Value {
    let metadata = json!({"name": "it", "namespace": "here"});
    json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "metadata": metadata, "spec": spec})
}

pub fn object<K>(spec: &Value) -> K
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    serde_json::from_value(manifest(&K::kind(&()), spec)).unwrap()
}

/// Asserts that the type keeps the whole manifest and fills in the same defaults as the API server.
#[track_caller]
pub fn round_trip<K>(spec: &Value) -> K
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + Debug,
{
    let kind = K::kind(&());
    validate(&kind, spec).unwrap();
    let object: K = object(spec);
    let expected = apply_defaults(&schema(&kind), &manifest(&kind, spec));
    assert_eq!(serde_json::to_value(&object).unwrap(), expected);
    object
}

/// Returns the spec with this field added or replaced.
pub fn with(mut spec: Value, field: &str, value: Value) -> Value {
    spec[field] = value;
    spec
}

/// Returns the spec without this field.
pub fn without(mut spec: Value, field: &str) -> Value {
    assert!(spec.as_object_mut().unwrap().remove(field).is_some(), "{field}");
    spec
}
