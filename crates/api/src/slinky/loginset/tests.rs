use serde_json::{Value, json};

use super::{LoginSet, LoginSetStatus};
use crate::slinky::testing::{fields, object, round_trip, schema, with};

fn minimal() -> Value {
    json!({"controllerRef": {"name": "alps"}, "sssdConfRef": {"name": "sssd", "key": "sssd.conf"}})
}

#[test]
fn absent_fields_have_the_defaults_of_the_go_operator() {
    let spec = object::<LoginSet>(&minimal()).spec;
    assert_eq!((spec.replicas(), spec.service_port(), spec.strategy), (1, 22, None));
}

#[test]
fn present_fields_count() {
    let spec = object::<LoginSet>(&with(with(minimal(), "replicas", json!(0)), "service", json!({"port": 2222}))).spec;
    assert_eq!((spec.replicas(), spec.service_port()), (0, 2222));
}

#[test]
fn a_full_manifest_survives() {
    let spec = json!({
        "controllerRef": {"name": "alps"},
        "replicas": 2,
        "login": {"image": "registry.example.com/login:25.11", "securityContext": {"privileged": false}},
        "initconf": {"image": "registry.example.com/alpine:3"},
        "template": {"metadata": {"labels": {"team": "hpc"}}, "spec": {"volumes": [{"name": "home", "nfs": {"server": "s", "path": "/"}}]}},
        "rootSshAuthorizedKeys": "ssh-ed25519 AAAA admin\n",
        "extraSshdConfig": "AllowGroups hpc",
        "sssdConfRef": {"name": "sssd", "key": "sssd.conf"},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 0}},
        "service": {"metadata": {"labels": {"dns": "login"}}, "spec": {"type": "LoadBalancer"}, "port": 22},
    });
    round_trip::<LoginSet>(&spec);
    round_trip::<LoginSet>(&minimal());
}

#[test]
fn a_status_has_what_scaling_needs() {
    let status: LoginSetStatus = serde_json::from_value(json!({"selector": "a=b"})).unwrap();
    assert_eq!(serde_json::to_value(status).unwrap(), json!({"replicas": 0, "selector": "a=b"}));
}

#[test]
fn the_schema_has_all_fields() {
    let expected = [
        "controllerRef",
        "extraSshdConfig",
        "initconf",
        "login",
        "replicas",
        "rootSshAuthorizedKeys",
        "service",
        "sssdConfRef",
        "strategy",
        "template",
    ];
    assert_eq!(fields("LoginSet", "spec"), expected);
    assert_eq!(fields("LoginSet", "status"), ["conditions", "observedGeneration", "replicas", "selector"]);

    let schema = schema("LoginSet");
    assert_eq!(schema["properties"]["status"]["required"], json!(["selector"]));
    let spec = &schema["properties"]["spec"];
    assert_eq!(spec["required"], json!(["controllerRef", "sssdConfRef"]));
    assert_eq!(spec["properties"]["replicas"]["default"], 1);
    let rolling = &spec["properties"]["strategy"]["properties"]["rollingUpdate"]["properties"];
    for field in ["maxSurge", "maxUnavailable"] {
        assert_eq!(rolling[field]["x-kubernetes-int-or-string"], true, "{field}");
    }
    for field in ["login", "initconf"] {
        assert_eq!(spec["properties"][field]["x-kubernetes-preserve-unknown-fields"], true, "{field}");
    }
}
