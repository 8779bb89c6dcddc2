use serde_json::{Value, json};

use super::RestApi;
use crate::slinky::testing::{fields, object, round_trip, schema, with};

fn minimal() -> Value {
    json!({"controllerRef": {"name": "alps"}})
}

#[test]
fn absent_fields_have_the_defaults_of_the_go_operator() {
    let spec = object::<RestApi>(&minimal()).spec;
    assert_eq!((spec.replicas(), spec.service_port()), (1, 6820));
}

#[test]
fn present_fields_count() {
    let spec = object::<RestApi>(&with(with(minimal(), "replicas", json!(3)), "service", json!({"port": 80}))).spec;
    assert_eq!((spec.replicas(), spec.service_port()), (3, 80));
}

#[test]
fn a_full_manifest_survives() {
    let spec = json!({
        "controllerRef": {"name": "alps"},
        "replicas": 2,
        "slurmrestd": {"image": "registry.example.com/slurmrestd:25.11", "env": [{"name": "SLURMRESTD_DEBUG", "value": "5"}]},
        "template": {"spec": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}]}},
        "service": {"spec": {"type": "ClusterIP"}, "port": 6820, "nodePort": 0},
    });
    round_trip::<RestApi>(&spec);
    round_trip::<RestApi>(&minimal());
}

#[test]
fn the_schema_has_all_fields() {
    assert_eq!(fields("RestApi", "spec"), ["controllerRef", "replicas", "service", "slurmrestd", "template"]);
    assert_eq!(fields("RestApi", "status"), ["conditions", "observedGeneration"]);
    let spec = &schema("RestApi")["properties"]["spec"];
    assert_eq!(spec["required"], json!(["controllerRef"]));
    assert_eq!(spec["properties"]["replicas"]["default"], 1);
    assert_eq!(spec["properties"]["slurmrestd"]["x-kubernetes-preserve-unknown-fields"], true);
}
