use jiff::SignedDuration;
use kube::{CustomResourceExt, Resource, core::cel::Validator};
use serde_json::{Value, json};

use super::Token;
use crate::slinky::{names, testing};

fn token(spec: &Value) -> Token {
    let object = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token", "metadata": {"name": "t"}, "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

fn minimal() -> Value {
    json!({"jwtKeyRef": {"name": "jwt", "key": "jwt.key"}, "username": "alice"})
}

fn with(field: &str, value: Value) -> Value {
    let mut spec = minimal();
    spec[field] = value;
    spec
}

fn version() -> Value {
    testing::version("Token")
}

fn schema() -> Value {
    testing::schema("Token")
}

#[test]
fn a_key_reference_is_required() {
    let key = json!({"name": "jwt", "key": "jwt.key"});
    let validate = |spec: Value| Validator::new().validate(&schema(), &json!({ "spec": spec }), None);

    validate(json!({"username": "alice", "jwtKeyRef": key})).unwrap();
    validate(json!({"username": "alice", "jwtHs256KeyRef": key})).unwrap();
    validate(json!({"username": "alice", "jwtKeyRef": key, "jwtHs256KeyRef": key})).unwrap();
    let error = validate(json!({"username": "alice"})).unwrap_err().to_string();
    assert!(error.contains("jwtKeyRef") && error.contains("jwtHs256KeyRef"), "{error}");
}

#[test]
fn the_rules_hold_for_typed_objects() {
    kube::core::cel::validate_cel(&token(&minimal())).unwrap();
    kube::core::cel::validate_cel(&token(&json!({"username": "alice"}))).unwrap_err();
}

#[test]
fn the_new_key_reference_wins() {
    let (new, old) = (json!({"name": "new", "key": "k"}), json!({"name": "old", "key": "k"}));
    let name = |spec: Value| token(&spec).spec.key_ref().map(|key| key.name.clone());

    assert_eq!(name(json!({"username": "", "jwtKeyRef": new, "jwtHs256KeyRef": old})).as_deref(), Some("new"));
    assert_eq!(name(json!({"username": "", "jwtHs256KeyRef": old})).as_deref(), Some("old"));
    assert_eq!(name(json!({"username": ""})), None);
}

#[test]
fn absent_fields_have_the_defaults_of_the_go_operator() {
    let token = token(&minimal());
    assert!(token.spec.refresh);
    assert_eq!(token.spec.username(), "alice");
    assert_eq!(token.spec.lifetime(), Ok(SignedDuration::from_mins(15)));
    assert_eq!(token.secret_name(), "t-jwt-alice");
    assert_eq!(token.spec.secret_key(), "SLURM_JWT");
}

#[test]
fn present_fields_count() {
    assert!(!token(&with("refresh", json!(false))).spec.refresh);
    assert_eq!(token(&with("lifetime", json!("1h30m"))).spec.lifetime(), Ok(SignedDuration::from_mins(90)));
    assert_eq!(token(&with("username", json!(""))).spec.username(), "nobody");
    assert_eq!(token(&with("username", json!(""))).secret_name(), "t-jwt-nobody");

    let named = token(&with("secretRef", json!({"name": "mine", "key": "TOKEN"})));
    assert_eq!((named.secret_name().as_str(), named.spec.secret_key()), ("mine", "TOKEN"));
    // The schema defaults the name to the empty string.
    let keyed = token(&with("secretRef", json!({"key": "TOKEN"})));
    assert_eq!((keyed.secret_name().as_str(), keyed.spec.secret_key()), ("t-jwt-alice", "TOKEN"));
}

#[test]
fn a_bad_lifetime_does_not_fail_the_object() {
    // One invalid object must not make a whole list unreadable.
    let error = token(&with("lifetime", json!("soon"))).spec.lifetime().unwrap_err();
    assert!(error.to_string().contains("`soon` is not a duration"), "{error}");
}

#[test]
fn unset_fields_stay_off_the_wire() {
    let mut expected = minimal();
    expected["refresh"] = json!(true);
    assert_eq!(serde_json::to_value(token(&minimal()).spec).unwrap(), expected);
}

#[test]
fn the_definition_has_its_names_and_columns() {
    assert_eq!((Token::group(&()), Token::version(&())), (names::GROUP.into(), names::VERSION.into()));
    let crd = testing::crd("Token");
    assert_eq!(crd.metadata.name.as_deref(), Some(Token::crd_name()));
    assert_eq!(crd.spec.scope, "Namespaced");
    assert_eq!(crd.spec.names.short_names, Some(vec!["tokens".into(), "jwt".into()]));

    let version = version();
    assert_eq!(version["subresources"], json!({"status": {}}));
    let columns = json!([
        {"name": "USER", "type": "string", "jsonPath": ".spec.username"},
        {"name": "READY", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
        {"name": "IAT", "type": "date", "jsonPath": ".status.issuedAt"},
        {"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
    assert_eq!(version["additionalPrinterColumns"], columns);
}

#[test]
fn the_schema_has_defaults_and_merge_keys() {
    let schema = schema();
    assert!(schema["description"].as_str().unwrap().starts_with("A JSON Web Token"));
    let spec = &schema["properties"]["spec"];
    assert_eq!(spec["required"], json!(["username"]));
    let fields: Vec<&String> = spec["properties"].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["jwtHs256KeyRef", "jwtKeyRef", "lifetime", "refresh", "secretRef", "username"]);
    assert_eq!(spec["properties"]["refresh"]["default"], true);
    assert_eq!(spec["properties"]["lifetime"]["type"], "string");

    for field in ["jwtHs256KeyRef", "jwtKeyRef", "secretRef"] {
        let reference = &spec["properties"][field];
        assert_eq!(reference["required"], json!(["key"]), "{field}");
        assert_eq!(reference["properties"]["name"]["default"], "", "{field}");
        assert_eq!(reference["x-kubernetes-map-type"], "atomic", "{field}");
    }

    let status = &schema["properties"]["status"]["properties"];
    let fields: Vec<&String> = status.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["conditions", "expiresAt", "issuedAt", "observedGeneration"]);
    assert_eq!(status["issuedAt"]["format"], "date-time");
    assert_eq!(status["conditions"]["x-kubernetes-list-type"], "map");
    assert_eq!(status["conditions"]["x-kubernetes-list-map-keys"], json!(["type"]));
}

#[test]
fn null_means_not_set() {
    assert!(!schema().to_string().contains("nullable"));
}
