use serde_json::{Value, json};

use super::Accounting;
use crate::slinky::testing::{fields, object, refused, round_trip, schema, validate, with, without};

fn minimal() -> Value {
    json!({
        "slurmKeyRef": {"name": "auth", "key": "slurm.key"},
        "jwtKeyRef": {"name": "auth", "key": "jwt.key"},
        "storageConfig": {"host": "mariadb", "passwordKeyRef": {"name": "mariadb", "key": "password"}},
    })
}

fn external() -> Value {
    json!({"external": true, "externalConfig": {"host": "records.example.com", "port": 6819}})
}

#[test]
fn keys_are_required_unless_slurmdbd_is_external() {
    validate("Accounting", &minimal()).unwrap();
    let old = with(without(minimal(), "jwtKeyRef"), "jwtHs256KeyRef", json!({"name": "auth", "key": "jwt_hs256.key"}));
    validate("Accounting", &old).unwrap();
    validate("Accounting", &external()).unwrap();

    refused("Accounting", &without(minimal(), "slurmKeyRef"), "slurmKeyRef is required");
    refused("Accounting", &without(minimal(), "jwtKeyRef"), "jwtKeyRef is required");
}

#[test]
fn external_needs_an_address() {
    refused("Accounting", &without(external(), "externalConfig"), "externalConfig is required");
    let place = |spec: Value| object::<Accounting>(&spec).spec.elsewhere().map(|place| place.port);
    assert_eq!(place(external()), Some(6819));
    assert_eq!(place(with(external(), "external", json!(false))), None);
}

#[test]
fn the_new_key_reference_wins() {
    let name = |spec: Value| object::<Accounting>(&spec).spec.jwt_key().map(|key| key.name.clone());
    let old = json!({"name": "old", "key": "k"});
    assert_eq!(name(with(minimal(), "jwtHs256KeyRef", old.clone())).as_deref(), Some("auth"));
    assert_eq!(name(json!({ "jwtHs256KeyRef": old })).as_deref(), Some("old"));
    assert_eq!(name(external()), None);
}

#[test]
fn absent_fields_have_the_defaults_of_the_go_operator() {
    let spec = object::<Accounting>(&minimal()).spec;
    assert_eq!((spec.external, spec.service_port()), (false, 6819));
    let storage = spec.storage_config.unwrap();
    assert_eq!((storage.port(), storage.database(), storage.username()), (3306, "slurm_acct_db", None));
}

#[test]
fn present_fields_count() {
    let storage = |more: Value| {
        let mut storage = minimal()["storageConfig"].take();
        storage.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object::<Accounting>(&with(minimal(), "storageConfig", storage)).spec.storage_config.unwrap()
    };
    let given = storage(json!({"port": 13306, "database": "records", "username": "slurm"}));
    assert_eq!((given.port(), given.database(), given.username()), (13306, "records", Some("slurm")));
    let zero = storage(json!({"port": 0, "database": "", "username": ""}));
    assert_eq!((zero.port(), zero.database(), zero.username()), (3306, "slurm_acct_db", None));
}

#[test]
fn tls_needs_a_certificate() {
    let tls = |tls: Value| {
        let mut spec = minimal();
        spec["storageConfig"]["tls"] = tls;
        spec
    };
    let ca = json!({"configMapKeyRef": {"name": "ca", "key": "ca.crt"}});
    validate("Accounting", &tls(json!({"ca": ca}))).unwrap();
    validate("Accounting", &tls(json!({"clientCertificateRef": {"name": "client"}}))).unwrap();
    refused("Accounting", &tls(json!({})), "at least one of ca and clientCertificateRef");
}

#[test]
fn a_full_manifest_survives() {
    let spec = json!({
        "slurmKeyRef": {"name": "alps-auth-slurm", "key": "slurm.key"},
        "jwtKeyRef": {"name": "alps-auth-jwt", "key": "jwt.key"},
        "jwtHs256KeyRef": {"name": "old", "key": "jwt.key"},
        "jwksKeyRef": {"name": "identity", "key": "jwks.json", "optional": true},
        "slurmdbd": {"image": "registry.example.com/slurmdbd:25.11", "args": ["-vv"]},
        "template": {"metadata": {"annotations": {"note": "records"}}, "spec": {"priorityClassName": "high"}},
        "storageConfig": {
            "host": "mariadb.db", "port": 3307, "database": "alps", "username": "slurm",
            "passwordKeyRef": {"name": "mariadb", "key": "password"},
            "tls": {
                "ca": {"secretKeyRef": {"name": "mariadb-ca", "key": "ca.crt"}},
                "clientCertificateRef": {"name": "mariadb-client"},
            },
        },
        "extraConf": "PurgeJobAfter=12months",
        "service": {"spec": {"type": "LoadBalancer"}, "port": 6819},
    });
    round_trip::<Accounting>(&spec);
    round_trip::<Accounting>(&minimal());
    round_trip::<Accounting>(&external());
}

#[test]
fn the_schema_has_all_fields() {
    let expected = [
        "external",
        "externalConfig",
        "extraConf",
        "jwksKeyRef",
        "jwtHs256KeyRef",
        "jwtKeyRef",
        "service",
        "slurmKeyRef",
        "slurmdbd",
        "storageConfig",
        "template",
    ];
    assert_eq!(fields("Accounting", "spec"), expected);
    assert_eq!(fields("Accounting", "status"), ["conditions", "observedGeneration"]);
    let spec = &schema("Accounting")["properties"]["spec"]["properties"];
    let storage = &spec["storageConfig"];
    assert_eq!(storage["required"], json!(["host", "passwordKeyRef"]));
    assert_eq!(storage["properties"]["port"]["default"], 3306);
    assert_eq!(storage["properties"]["database"]["default"], "slurm_acct_db");
    assert_eq!(spec["external"]["default"], false);
}
