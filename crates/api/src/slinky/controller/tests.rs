use serde_json::{Value, json};

use super::{Controller, ControllerStatus, Persistence};
use crate::{
    common::storage::StateVolume,
    slinky::testing::{fields, object, refused, round_trip, schema, validate, with, without},
};

fn minimal() -> Value {
    json!({"slurmKeyRef": {"name": "auth", "key": "slurm.key"}, "jwtKeyRef": {"name": "auth", "key": "jwt.key"}})
}

fn external() -> Value {
    json!({"external": true, "externalConfig": {"host": "head.example.com", "port": 6817}})
}

fn controller(spec: &Value) -> Controller {
    object(spec)
}

#[test]
fn keys_are_required_unless_slurmctld_is_external() {
    validate("Controller", &minimal()).unwrap();
    let old = with(without(minimal(), "jwtKeyRef"), "jwtHs256KeyRef", json!({"name": "auth", "key": "jwt_hs256.key"}));
    validate("Controller", &old).unwrap();
    validate("Controller", &external()).unwrap();

    refused("Controller", &without(minimal(), "slurmKeyRef"), "slurmKeyRef is required");
    refused("Controller", &without(minimal(), "jwtKeyRef"), "jwtKeyRef is required");
}

#[test]
fn external_needs_an_address() {
    refused("Controller", &without(external(), "externalConfig"), "externalConfig is required");
    // externalConfig is ignored while external is false.
    let both = with(minimal(), "externalConfig", json!({"host": "head.example.com", "port": 6817}));
    validate("Controller", &both).unwrap();
    assert_eq!(controller(&both).spec.elsewhere(), None);
    let place = controller(&external()).spec.elsewhere().map(|place| (place.host.clone(), place.port));
    assert_eq!(place, Some(("head.example.com".into(), 6817)));
}

#[test]
fn backups_need_a_claim_to_share() {
    let ha = |persistence: Value| {
        let spec = with(minimal(), "ha", json!({"enabled": true}));
        if persistence.is_null() { spec } else { with(spec, "persistence", persistence) }
    };
    validate("Controller", &ha(json!({"existingClaim": "state"}))).unwrap();
    validate("Controller", &with(minimal(), "ha", json!({}))).unwrap();
    validate("Controller", &with(minimal(), "ha", json!({"enabled": false, "backups": 2}))).unwrap();

    let words = "ha.enabled needs persistence.enabled and persistence.existingClaim";
    refused("Controller", &ha(Value::Null), words);
    refused("Controller", &ha(json!({})), words);
    refused("Controller", &ha(json!({"existingClaim": ""})), words);
    refused("Controller", &ha(json!({"enabled": false, "existingClaim": "state"})), words);
}

#[test]
fn a_ca_is_for_https_and_has_one_source() {
    let api = |value: Value| with(minimal(), "externalRestApi", value);
    let (secret, map) = (json!({"name": "tls", "key": "ca.crt"}), json!({"name": "bundle", "key": "ca.pem"}));
    validate("Controller", &api(json!({"url": "http://head:6820"}))).unwrap();
    validate("Controller", &api(json!({"url": "https://head:6820"}))).unwrap();
    validate("Controller", &api(json!({"url": "https://head:6820", "ca": {"secretKeyRef": secret}}))).unwrap();
    validate("Controller", &api(json!({"url": "https://head/slurm/", "ca": {"configMapKeyRef": map}}))).unwrap();

    let plain = json!({"url": "http://head:6820", "ca": {"secretKeyRef": secret}});
    refused("Controller", &api(plain), "ca is for https only");
    let words = "exactly one of configMapKeyRef and secretKeyRef";
    refused("Controller", &api(json!({"url": "https://head:6820", "ca": {}})), words);
    let both = json!({"url": "https://head:6820", "ca": {"secretKeyRef": secret, "configMapKeyRef": map}});
    refused("Controller", &api(both), words);
}

#[test]
fn the_new_key_reference_wins() {
    let name = |spec: Value| controller(&spec).spec.jwt_key().map(|key| key.name.clone());
    let old = json!({"name": "old", "key": "k"});
    assert_eq!(name(with(minimal(), "jwtHs256KeyRef", old.clone())).as_deref(), Some("auth"));
    assert_eq!(name(json!({ "jwtHs256KeyRef": old })).as_deref(), Some("old"));
    assert_eq!(name(external()), None);
}

#[test]
fn absent_fields_have_the_defaults_of_the_go_operator() {
    let controller = controller(&minimal());
    assert_eq!(controller.cluster_name(), "here_it");
    assert_eq!(controller.spec.replicas(), 1);
    assert_eq!(controller.spec.service_port(), 6817);
    assert_eq!(controller.spec.accounting(), None);
    assert!(!controller.spec.external && !controller.spec.inplace_reconfigure);
    assert!(!controller.spec.metrics_enabled());
    assert_eq!(controller.spec.service_monitor(), None);
    assert_eq!(controller.spec.state_volume(), Persistence::default().state_volume());
}

#[test]
fn present_fields_count() {
    let spec = |field: &str, value: Value| controller(&with(minimal(), field, value)).spec;
    assert_eq!(controller(&with(minimal(), "clusterName", json!("alps"))).cluster_name(), "alps");
    assert_eq!(controller(&with(minimal(), "clusterName", json!(""))).cluster_name(), "here_it");
    assert_eq!(spec("accountingRef", json!({"name": "records"})).accounting(), Some("records"));
    assert_eq!(spec("accountingRef", json!({})).accounting(), None);
    assert_eq!(spec("service", json!({"port": 16817})).service_port(), 16817);
    assert_eq!(spec("persistence", json!({"existingClaim": "state"})).state_volume(), StateVolume::Existing("state"));

    let replicas = [json!({}), json!({"backups": 3}), json!({"enabled": true}), json!({"enabled": true, "backups": 3})];
    assert_eq!(replicas.map(|ha| spec("ha", ha).replicas()), [1, 1, 2, 4]);

    let monitor = |value: Value| spec("metrics", value).service_monitor().is_some();
    assert!(monitor(json!({"enabled": true, "serviceMonitor": {"enabled": true}})));
    assert!(!monitor(json!({"enabled": true, "serviceMonitor": {}})));
    assert!(!monitor(json!({"enabled": true, "serviceMonitor": null})));
    assert!(!monitor(json!({"enabled": false, "serviceMonitor": {"enabled": true}})));
}

#[test]
fn null_lists_are_empty() {
    let lists = [
        "configFileRefs",
        "prologScriptRefs",
        "epilogScriptRefs",
        "prologSlurmctldScriptRefs",
        "epilogSlurmctldScriptRefs",
    ];
    let nulls = lists.into_iter().fold(minimal(), |spec, list| with(spec, list, Value::Null));
    assert_eq!(controller(&nulls), controller(&minimal()));
}

#[test]
fn a_full_manifest_survives() {
    let spec = json!({
        "clusterName": "alps",
        "slurmKeyRef": {"name": "alps-auth-slurm", "key": "slurm.key"},
        "jwtKeyRef": {"name": "alps-auth-jwt", "key": "jwt.key", "optional": false},
        "jwtHs256KeyRef": {"key": "jwt.key"},
        "jwksKeyRef": {"name": "identity", "key": "jwks.json"},
        "accountingRef": {"name": "records"},
        "externalRestApi": {"url": "https://rest.example.com/alps", "ca": {"secretKeyRef": {"name": "tls", "key": "ca.crt"}}},
        "ha": {"enabled": true},
        "slurmctld": {
            "image": "registry.example.com/slurmctld:25.11",
            "args": ["-vv"],
            "resources": {"requests": {"cpu": 1, "memory": "2Gi"}},
        },
        "inplaceReconfigure": true,
        "reconfigure": {"image": "registry.example.com/slurmctld:25.11"},
        "logfile": {"image": "registry.example.com/alpine:3"},
        "template": {
            "metadata": {"labels": {"team": "hpc"}, "annotations": {"note": "heads"}},
            "spec": {
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"key": "heads", "operator": "Exists"}],
                "hostUsers": false,
                "priority": 0,
            },
        },
        "extraConf": "SchedulerParameters=defer\nProctrackType=proctrack/cgroup",
        "configFileRefs": [{"name": "gres"}, {"name": "topology"}],
        "prologScriptRefs": [{"name": "health"}],
        "epilogScriptRefs": [{"name": "cleanup"}],
        "prologSlurmctldScriptRefs": [{}],
        "epilogSlurmctldScriptRefs": [{"name": "notify"}],
        "persistence": {
            "existingClaim": "alps-state",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "10Gi"}},
            "storageClassName": "shared",
        },
        "service": {"metadata": {"annotations": {"lb": "internal"}}, "spec": {"type": "NodePort"}, "port": 6817, "nodePort": 30617},
        "metrics": {
            "enabled": true,
            "serviceMonitor": {
                "enabled": true, "labels": {"release": "prometheus"}, "annotations": {"a": "b"}, "interval": "30s",
                "scrapeTimeout": "25s", "endpoints": [{"path": "/metrics/jobs", "interval": "1m"}],
            },
        },
    });
    round_trip::<Controller>(&spec);
    round_trip::<Controller>(&external());
    round_trip::<Controller>(&minimal());
}

#[test]
fn a_status_round_trips() {
    let status = json!({
        "slurmVersion": "25.11.2",
        "restVersion": "v0.0.44",
        "slurmctld": [
            {"host": "it-controller-0", "responding": false, "active": false, "since": "2026-03-01T22:00:00Z"},
            {"host": "it-controller-1", "responding": true, "active": true},
        ],
        "observedGeneration": 3,
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "AsExpected", "message": "", "observedGeneration": 3,
            "lastTransitionTime": "2026-03-01T22:00:00Z",
        }],
    });
    let read: ControllerStatus = serde_json::from_value(status.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), status);
    assert_eq!(serde_json::to_value(ControllerStatus::default()).unwrap(), json!({}));
}

#[test]
fn the_schema_has_all_fields() {
    let expected = [
        "accountingRef",
        "clusterName",
        "configFileRefs",
        "epilogScriptRefs",
        "epilogSlurmctldScriptRefs",
        "external",
        "externalConfig",
        "externalRestApi",
        "extraConf",
        "generateKeys",
        "ha",
        "inplaceReconfigure",
        "jwksKeyRef",
        "jwtHs256KeyRef",
        "jwtKeyRef",
        "keyAnnotations",
        "logfile",
        "metrics",
        "persistence",
        "prologScriptRefs",
        "prologSlurmctldScriptRefs",
        "reconfigure",
        "service",
        "slurmKeyRef",
        "slurmctld",
        "template",
    ];
    assert_eq!(fields("Controller", "spec"), expected);
    assert_eq!(
        fields("Controller", "status"),
        ["conditions", "observedGeneration", "restVersion", "slurmVersion", "slurmctld"]
    );

    let spec = &schema("Controller")["properties"]["spec"];
    assert_eq!(spec["required"], Value::Null);
    let spec = &spec["properties"];
    assert_eq!((&spec["external"]["default"], &spec["inplaceReconfigure"]["default"]), (&json!(false), &json!(false)));
    let ha = &spec["ha"]["properties"];
    assert_eq!((&ha["enabled"]["default"], &ha["backups"]["default"]), (&json!(false), &json!(1)));
    assert_eq!(ha["backups"]["minimum"], 1.0);
    assert_eq!(spec["externalConfig"]["required"], json!(["host", "port"]));
    assert_eq!(spec["persistence"]["properties"]["enabled"]["default"], true);
    assert_eq!(spec["metrics"]["properties"]["enabled"]["default"], false);
    let monitor = &spec["metrics"]["properties"]["serviceMonitor"]["properties"];
    assert_eq!(monitor["enabled"]["default"], false);
    assert_eq!(monitor["endpoints"]["items"]["required"], json!(["path"]));
    assert!(monitor["interval"]["pattern"].is_string() && monitor["scrapeTimeout"]["pattern"].is_string());

    for path in ["/slurmctld", "/reconfigure", "/logfile", "/template/properties/spec", "/service/properties/spec"] {
        let opaque = spec.pointer(path).unwrap();
        assert_eq!((&opaque["type"], &opaque["properties"]), (&json!("object"), &Value::Null), "{path}");
        assert_eq!(opaque["x-kubernetes-preserve-unknown-fields"], true, "{path}");
    }
}
