//! Tests that apply to all kinds.

use serde_json::{Value, json};

use crate::slinky::{
    crds, names,
    testing::{crd, schema, version},
};

const KINDS: [&str; 6] = ["Accounting", "Controller", "LoginSet", "NodeSet", "RestApi", "Token"];

#[test]
fn all_kinds_have_the_names_of_the_go_operator() {
    let kinds: Vec<String> = crds().into_iter().map(|crd| crd.spec.names.kind).collect();
    assert_eq!(kinds, KINDS);
    let table: [(&str, &str, &[&str]); 6] = [
        ("Accounting", "accountings", &["slurmdbd"]),
        ("Controller", "controllers", &["slurmctld"]),
        ("LoginSet", "loginsets", &["loginsets", "lss", "sackd"]),
        ("NodeSet", "nodesets", &["nodesets", "nss", "slurmd"]),
        ("RestApi", "restapis", &["slurmrestd"]),
        ("Token", "tokens", &["tokens", "jwt"]),
    ];
    for (kind, plural, short_names) in table {
        let crd = crd(kind);
        assert_eq!(crd.metadata.name, Some(format!("{plural}.slinky.slurm.net")));
        assert_eq!((crd.spec.group.as_str(), crd.spec.scope.as_str()), (names::GROUP, "Namespaced"));
        assert_eq!(crd.spec.names.plural, plural);
        assert_eq!(crd.spec.names.singular, Some(kind.to_lowercase()));
        assert_eq!(crd.spec.names.short_names.unwrap_or_default(), short_names);
        let version = version(kind);
        assert_eq!(
            (&version["name"], &version["served"], &version["storage"]),
            (&json!("v1beta1"), &json!(true), &json!(true))
        );
        assert!(version["subresources"]["status"].is_object());
    }
}

#[test]
fn kubectl_get_shows_the_columns() {
    let ready = ".status.conditions[?(@.type==\"Ready\")].status";
    let row = |name: &str, type_: &str, path: &str| json!({"name": name, "type": type_, "jsonPath": path});
    let wide =
        |name: &str, type_: &str, path: &str| json!({"name": name, "type": type_, "jsonPath": path, "priority": 1});
    let age = || row("AGE", "date", ".metadata.creationTimestamp");
    let table = [
        ("Accounting", json!([row("READY", "string", ready), age()])),
        (
            "Controller",
            json!([row("READY", "string", ready), wide("VERSION", "string", ".status.slurmVersion"), age()]),
        ),
        ("LoginSet", json!([row("REPLICAS", "integer", ".status.replicas"), row("READY", "string", ready), age()])),
        (
            "NodeSet",
            json!([
                row("DESIRED", "integer", ".status.desired"),
                row("REPLICAS", "integer", ".status.replicas"),
                row("UPDATED", "integer", ".status.updatedReplicas"),
                row("READY", "integer", ".status.readyReplicas"),
                row("STATUS", "string", ready),
                wide("IDLE", "integer", ".status.slurmIdle"),
                wide("ALLOCATED", "integer", ".status.slurmAllocated"),
                wide("DOWN", "integer", ".status.slurmDown"),
                wide("DRAIN", "integer", ".status.slurmDrain"),
                age(),
            ]),
        ),
        ("RestApi", json!([row("READY", "string", ready), age()])),
    ];
    for (kind, columns) in table {
        assert_eq!(version(kind)["additionalPrinterColumns"], columns, "{kind}");
    }
}

#[test]
fn only_workers_and_login_nodes_scale() {
    let scale = json!({
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    });
    for kind in KINDS {
        let expected = if ["LoginSet", "NodeSet"].contains(&kind) { scale.clone() } else { Value::Null };
        assert_eq!(version(kind)["subresources"]["scale"], expected, "{kind}");
    }
}

#[test]
fn every_status_has_conditions_and_a_generation() {
    for kind in KINDS {
        let status = &schema(kind)["properties"]["status"]["properties"];
        assert_eq!(status["conditions"]["x-kubernetes-list-type"], "map", "{kind}");
        assert_eq!(status["conditions"]["x-kubernetes-list-map-keys"], json!(["type"]), "{kind}");
        assert_eq!(status["observedGeneration"]["format"], "int64", "{kind}");
    }
}

#[test]
fn the_definitions_are_small() {
    // A pod's schema alone is ten times as large.
    let size = serde_json::to_string(&crds()).unwrap().len();
    assert!(size < 80_000, "{size}");
}

#[test]
fn kubectl_explain_knows_every_field() {
    for kind in KINDS {
        walk(&schema(kind), kind, &mut |schema, path| {
            let text = schema["description"].as_str().unwrap_or_default();
            assert!(!text.is_empty() && !text.contains('\n'), "{path}: {text}");
            // kubectl prints Markdown for rustdoc unchanged.
            assert!(!text.contains(['<', '>']) && !text.contains("]("), "{path}: {text}");
        });
    }
}

#[test]
fn the_api_server_knows_every_format() {
    for kind in KINDS {
        walk(&schema(kind), kind, &mut |schema, path| {
            let format = schema["format"].as_str();
            assert!([None, Some("int32"), Some("int64"), Some("date-time")].contains(&format), "{path}: {format:?}");
        });
    }
}

#[test]
fn null_stands_for_an_empty_list_or_map_only() {
    for kind in KINDS {
        walk(&schema(kind), kind, &mut |schema, path| {
            let list = schema["type"] == "array" && schema["x-kubernetes-list-type"] != "map";
            let map = schema.get("additionalProperties").is_some();
            let expected = list || map || path == "Controller.spec.metrics.serviceMonitor";
            assert_eq!(schema["nullable"] == true, expected, "{path}");
        });
    }
}

/// Every field below a schema, with its path.
fn walk(schema: &Value, path: &str, visit: &mut impl FnMut(&Value, &str)) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        visit(field, &path);
        walk(field, &path, visit);
        walk(&field["items"], &format!("{path}[]"), visit);
        walk(&field["additionalProperties"], &format!("{path}{{}}"), visit);
    }
}
