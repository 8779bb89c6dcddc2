//! Plans of an Accounting.

#![expect(clippy::large_stack_arrays, reason = "facts have whole objects, and tables of them are read best in place")]

use engine::{
    conditions::ConditionStatus,
    daemons::{
        keys::{KeyState, SecretText},
        slurmdbd::DatabaseProblem,
    },
    lint::lint,
    plan::{Next, Plan, Step},
};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_operator_api::slinky::{Accounting, AccountingStatus};

use super::plan::{Facts, Password, plan};
use crate::{
    frontends::slinky::keys::{Ring, ring_of},
    machine::Kind,
    trigger::{Trigger, TriggerKind},
};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// The steps for a slurmdbd without problems.
const ALL: [&str; 3] = ["Secret acct-accounting", "Service acct-accounting", "StatefulSet acct-accounting"];

fn accounting(spec: &Value) -> Accounting {
    let mut full = json!({
        "slurmKeyRef": {"name": "keys", "key": "slurm.key"},
        "jwtKeyRef": {"name": "keys", "key": "jwt.key"},
        "slurmdbd": {"image": "slurmdbd:26.05"},
        "storageConfig": {
            "host": "mariadb", "username": "slurm", "passwordKeyRef": {"name": "mariadb", "key": "password"},
        },
    });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Accounting",
        "metadata": {"name": "acct", "namespace": "slurm", "uid": "u", "generation": 1},
        "spec": full,
    }))
    .unwrap()
}

fn good(hash: &str) -> KeyState {
    KeyState::Good { hash: hash.into(), weakness: None }
}

fn password(text: &str) -> Password {
    Password::Good { text: SecretText(text.into()), hash: format!("hash of {}", text.len()) }
}

fn base_facts() -> Facts {
    Facts {
        slurm_key: good("s"),
        ring: Ring::NotUsed,
        jwt_key: good("j"),
        password: password("hunter2"),
        jwks: None,
        has_ca: false,
        has_client_certificate: false,
        service: None,
        config: None,
        seen: None,
        stateful_set: None,
        pods: Vec::new(),
        database: None,
    }
}

/// Plans, and lints the plan.
fn planned(accounting: &Accounting, facts: &Facts) -> Plan<AccountingStatus> {
    let made = plan(accounting, facts, NOW);
    assert_eq!(lint(accounting, &made), []);
    let shown = format!("{made:?} {facts:?}");
    assert_eq!(format!("{:?}", plan(accounting, facts, NOW)), format!("{made:?}"), "the same facts, the same plan");
    assert!(!shown.contains("hunter2") && !shown.contains("aHVudGVyM"), "{shown}");
    made
}

fn objects(plan: &Plan<AccountingStatus>) -> Vec<(String, Value)> {
    let object = |step: &Step| match step {
        Step::Apply(desired) => {
            let title = format!("{} {}", desired.resource.kind, desired.object.name_any());
            (title, serde_json::to_value(&desired.object).unwrap())
        }
        Step::Delete(object, _) => (format!("delete {} {}", object.resource.kind, object.name), Value::Null),
        other => panic!("{other:?}"),
    };
    plan.stages.iter().flatten().map(object).collect()
}

fn titles(plan: &Plan<AccountingStatus>) -> Vec<String> {
    objects(plan).into_iter().map(|(title, _)| title).collect()
}

fn object(plan: &Plan<AccountingStatus>, title: &str) -> Value {
    let found = objects(plan).into_iter().find(|(found, _)| found == title);
    found.unwrap_or_else(|| panic!("no {title} in {:?}", titles(plan))).1
}

fn stateful_set(accounting: &Accounting, facts: &Facts) -> Value {
    object(&planned(accounting, facts), "StatefulSet acct-accounting")
}

fn volume(set: &Value, name: &str) -> Option<Value> {
    let volumes = set["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    volumes.iter().find(|volume| volume["name"] == name).cloned()
}

fn conf(plan: &Plan<AccountingStatus>) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let secret = object(plan, "Secret acct-accounting");
    let text = STANDARD.decode(secret["data"]["slurmdbd.conf"].as_str().unwrap()).unwrap();
    String::from_utf8(text).unwrap()
}

fn condition_of<'a>(plan: &'a Plan<AccountingStatus>, type_: &str) -> (ConditionStatus, &'static str, &'a str) {
    let new_condition = plan.conditions.iter().find(|new_condition| new_condition.type_ == type_).unwrap();
    (new_condition.status, new_condition.reason, &new_condition.message)
}

/// The facts after these objects were applied and slurmdbd is ready, or not.
fn live(accounting: &Accounting, is_ready: bool) -> Facts {
    let plan = planned(accounting, &base_facts());
    let mut found = objects(&plan).into_iter().map(|(_, mut object)| {
        object["metadata"]["uid"] = json!("child");
        object["metadata"]["resourceVersion"] = json!("7");
        object["metadata"]["generation"] = json!(1);
        object
    });
    let config = found.next().and_then(|mut object| {
        object.as_object_mut().unwrap().remove("data");
        serde_json::from_value(object).ok()
    });
    let service = found.next().and_then(|object| serde_json::from_value(object).ok());
    let set = found.next().and_then(|mut object| {
        let ready = i32::from(is_ready);
        object["status"] =
            json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": ready});
        serde_json::from_value(object).ok()
    });
    assert!(set.is_some());
    Facts { service, config, stateful_set: set, ..base_facts() }
}

#[test]
fn slurmdbd_runs_with_its_configuration_and_keys() {
    let set = stateful_set(&accounting(&json!({})), &base_facts());
    let spec = &set["spec"];
    assert_eq!(
        (&spec["replicas"], &spec["podManagementPolicy"], &spec["serviceName"]),
        (&json!(1), &json!("Parallel"), &json!("acct-accounting"))
    );
    let pod = &spec["template"]["spec"];
    assert_eq!(
        pod["securityContext"],
        json!({
            "runAsNonRoot": true, "runAsUser": 401, "runAsGroup": 401, "fsGroup": 401,
            "seccompProfile": {"type": "RuntimeDefault"},
        })
    );
    assert_eq!(pod["automountServiceAccountToken"], false);
    let sources = json!([
        {"secret": {"name": "acct-accounting", "items": [{"key": "slurmdbd.conf", "path": "slurmdbd.conf"}]}},
        {"secret": {"name": "keys", "items": [{"key": "slurm.key", "path": "slurm.key"}]}},
        {"secret": {"name": "keys", "items": [{"key": "jwt.key", "path": "jwt.key"}]}},
    ]);
    assert_eq!(volume(&set, "slurm-etc").unwrap()["projected"], json!({"defaultMode": 0o600, "sources": sources}));
    let container = &pod["containers"][0];
    assert_eq!(container["readinessProbe"]["tcpSocket"]["port"], "slurmdbd");
    assert_eq!((&container["livenessProbe"], &container["startupProbe"]), (&Value::Null, &Value::Null));
    assert_eq!(set["metadata"]["labels"]["app.kubernetes.io/component"], "accounting");
    let labels = json!({"app.kubernetes.io/name": "slurmdbd", "app.kubernetes.io/instance": "acct"});
    assert_eq!(spec["selector"]["matchLabels"], labels);
}

#[test]
fn older_releases_get_files_that_only_slurmdbd_can_read() {
    for (image, is_copied) in [
        ("slurmdbd:24.11", true),
        ("slurmdbd:25.05-ubuntu24.04", true),
        ("slurmdbd:latest", true),
        ("slurmdbd:25.11", false),
        ("slurmdbd:26.05", false),
    ] {
        let set = stateful_set(&accounting(&json!({"slurmdbd": {"image": image}})), &base_facts());
        let init = &set["spec"]["template"]["spec"]["initContainers"];
        assert_eq!(init[0]["image"] == image, is_copied, "{image}");
        assert_eq!(volume(&set, "slurm-etc").unwrap()["emptyDir"]["medium"] == "Memory", is_copied, "{image}");
        assert_eq!(volume(&set, "slurm-config").is_some(), is_copied, "{image}");
    }
}

#[test]
fn the_password_is_in_the_secret_and_nowhere_else() {
    let object = accounting(&json!({"extraConf": "PurgeJobAfter=12months"}));
    let plan = planned(&object, &base_facts());
    assert_eq!(titles(&plan), ALL);
    let text = conf(&plan);
    for line in [
        "DbdHost=acct-accounting-0",
        "StorageHost=mariadb",
        "StoragePort=3306",
        "StorageUser=slurm",
        "StorageLoc=slurm_acct_db",
        "StoragePass=hunter2",
        "PurgeJobAfter=12months",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
    let set = stateful_set(&object, &base_facts()).to_string();
    assert!(!set.contains("hunter2"), "{set}");
}

#[test]
fn it_rolls_when_the_password_a_key_or_the_configuration_changes() {
    let template = |spec: Value, facts: Facts| stateful_set(&accounting(&spec), &facts)["spec"]["template"].clone();
    let first = template(json!({}), base_facts());
    assert_eq!(first, template(json!({}), base_facts()));
    for (what, facts) in [
        ("password", Facts { password: password("another one"), ..base_facts() }),
        ("slurm key", Facts { slurm_key: good("t"), ..base_facts() }),
        ("jwt key", Facts { jwt_key: good("k"), ..base_facts() }),
    ] {
        assert_ne!(first, template(json!({}), facts), "{what}");
    }
    assert_ne!(first, template(json!({"extraConf": "CommitDelay=1"}), base_facts()));
}

#[test]
fn ready_means_that_slurmdbd_answers_and_has_its_database() {
    let object = accounting(&json!({}));
    let plan = planned(&object, &live(&object, true));
    assert_eq!((condition_of(&plan, "Ready").0, plan.next), (ConditionStatus::True, Next::OnChange));
    let reachable = condition_of(&plan, "DatabaseReachable");
    assert_eq!(
        (reachable.0, reachable.2),
        (ConditionStatus::True, "slurmdbd is connected to its database at mariadb:3306")
    );

    let starting = planned(&object, &live(&object, false));
    assert_eq!(condition_of(&starting, "Ready").1, "PodsNotReady");
    assert_eq!(condition_of(&starting, "DatabaseReachable").0, ConditionStatus::Unknown);

    let problem = |text: &str, is_refused| Some(DatabaseProblem { text: text.into(), is_refused });
    for is_ready in [false, true] {
        let facts = Facts { database: problem("2002 Can't connect (111)", false), ..live(&object, is_ready) };
        let plan = planned(&object, &facts);
        for type_ in ["Ready", "DatabaseReachable"] {
            let (status, reason, message) = condition_of(&plan, type_);
            assert_eq!((status, reason), (ConditionStatus::False, "DatabaseUnreachable"), "{type_}");
            assert!(message.contains("at mariadb:3306: 2002 Can't connect (111)"), "{message}");
        }
        assert_eq!(condition_of(&plan, "Degraded").0, ConditionStatus::False, "it heals by itself");

        let facts = Facts { database: problem("1045 Access denied for user 'slurm'", true), ..live(&object, is_ready) };
        let plan = planned(&object, &facts);
        for type_ in ["Ready", "DatabaseReachable", "Degraded"] {
            let (status, reason, message) = condition_of(&plan, type_);
            assert_eq!((status == ConditionStatus::True, reason), (type_ == "Degraded", "DatabaseRefused"), "{type_}");
            assert!(message.contains("Access denied for user 'slurm'. Correct spec.storageConfig"), "{message}");
        }
    }
}

#[test]
fn what_is_missing_is_reported_and_a_running_slurmdbd_is_left_alone() {
    let mut without_host = accounting(&json!({}));
    without_host.spec.storage_config.as_mut().unwrap().host = String::new();
    let tls = |tls: Value| {
        accounting(&json!({"storageConfig": {
            "host": "mariadb", "passwordKeyRef": {"name": "mariadb", "key": "password"}, "tls": tls,
        }}))
    };
    let secret_ca = json!({"ca": {"secretKeyRef": {"name": "ca", "key": "ca.crt"}}});
    let map_ca = json!({"ca": {"configMapKeyRef": {"name": "ca", "key": "ca.crt"}}});
    let none = |state| Facts { password: Password::None(state), ..base_facts() };
    for (object, facts, expected, hint) in [
        (accounting(&json!({"slurmdbd": {}})), base_facts(), "InvalidSpec", "spec.slurmdbd.image"),
        (accounting(&json!({"storageConfig": null})), base_facts(), "InvalidSpec", "spec.storageConfig"),
        (without_host, base_facts(), "InvalidSpec", "spec.storageConfig.host"),
        (accounting(&json!({"extraConf": "prose"})), base_facts(), "InvalidSpec", "spec.extraConf: line 1"),
        (accounting(&json!({"extraConf": "dbdport=1"})), base_facts(), "InvalidSpec", "set spec.service.port"),
        (
            accounting(&json!({"extraConf": "DebugLevel=info\nPurgeJobsAfter=1months"})),
            base_facts(),
            "InvalidSpec",
            "line 2: PurgeJobsAfter is not known to Slurm 26.05; did you mean PurgeJobAfter?",
        ),
        (
            accounting(&json!({})),
            Facts { slurm_key: KeyState::NoSecret, ..base_facts() },
            "ReferenceMissing",
            "the Secret keys with Slurm's key does not exist",
        ),
        (
            accounting(&json!({})),
            Facts { jwt_key: KeyState::NoEntry, ..base_facts() },
            "ReferenceMissing",
            "no entry jwt.key",
        ),
        (accounting(&json!({})), none(KeyState::NoSecret), "ReferenceMissing", "the Secret mariadb with the password"),
        (accounting(&json!({})), none(KeyState::NoEntry), "ReferenceMissing", "no entry password"),
        (accounting(&json!({})), Facts { password: password("a\nb"), ..base_facts() }, "InvalidSpec", "StoragePass"),
        (
            accounting(&json!({"jwksKeyRef": {"name": "j", "key": "k"}})),
            base_facts(),
            "ReferenceMissing",
            "the ConfigMap j has no k",
        ),
        (tls(secret_ca), base_facts(), "ReferenceMissing", "the Secret ca has no ca.crt"),
        (tls(map_ca), base_facts(), "ReferenceMissing", "the ConfigMap ca has no ca.crt"),
        (
            tls(json!({"clientCertificateRef": {"name": "client"}})),
            base_facts(),
            "ReferenceMissing",
            "the Secret client has no tls.crt and tls.key",
        ),
    ] {
        let plan = planned(&object, &facts);
        assert_eq!(titles(&plan), ["Service acct-accounting"], "{hint}");
        let (ready, reason, message) = condition_of(&plan, "Ready");
        assert_eq!((ready, reason), (ConditionStatus::False, expected), "{message}");
        assert!(message.contains(hint), "{message}");
        assert_eq!(condition_of(&plan, "Degraded").1, expected);

        let running = live(&accounting(&json!({})), true);
        let facts =
            Facts { service: running.service, config: running.config, stateful_set: running.stateful_set, ..facts };
        let plan = planned(&object, &facts);
        assert_eq!(titles(&plan), ["Service acct-accounting"], "{hint}");
        assert_eq!(condition_of(&plan, "Ready").0, ConditionStatus::True, "{hint}");
        assert_eq!(condition_of(&plan, "Degraded").1, expected, "{hint}");
    }
}

#[test]
fn certificates_for_the_database_are_mounted() {
    let object = accounting(&json!({"storageConfig": {
        "host": "mariadb", "passwordKeyRef": {"name": "mariadb", "key": "password"},
        "tls": {"ca": {"secretKeyRef": {"name": "ca", "key": "bundle.pem"}}, "clientCertificateRef": {"name": "client"}},
    }}));
    let facts = Facts { has_ca: true, has_client_certificate: true, ..base_facts() };
    let plan = planned(&object, &facts);
    let parameters = "StorageParameters=SSL_CA=/etc/storage-tls/ca.crt,SSL_CERT=/etc/storage-tls/tls.crt,\
                      SSL_KEY=/etc/storage-tls/tls.key";
    assert!(conf(&plan).lines().any(|line| line == parameters), "{}", conf(&plan));
    assert!(!conf(&plan).contains("StorageUser"), "the user that slurmdbd runs as");
    let set = stateful_set(&object, &facts);
    let sources = json!([
        {"secret": {"name": "ca", "items": [{"key": "bundle.pem", "path": "ca.crt"}]}},
        {"secret": {"name": "client", "items": [{"key": "tls.crt", "path": "tls.crt"}]}},
        {"secret": {"name": "client", "items": [{"key": "tls.key", "path": "tls.key"}]}},
    ]);
    assert_eq!(volume(&set, "storage-tls").unwrap()["projected"]["sources"], sources);
    let mounts = set["spec"]["template"]["spec"]["containers"][0]["volumeMounts"].as_array().unwrap().clone();
    assert!(mounts.iter().any(|mount| mount["mountPath"] == "/etc/storage-tls"), "{mounts:?}");
    assert_eq!(volume(&stateful_set(&accounting(&json!({})), &base_facts()), "storage-tls"), None);
}

#[test]
fn an_external_slurmdbd_needs_nothing_here() {
    let object = accounting(&json!({"external": true, "externalConfig": {"host": "db.example.com", "port": 6819}}));
    let plan = planned(&object, &base_facts());
    assert_eq!(titles(&plan).len(), 0);
    let ready = condition_of(&plan, "Ready");
    assert_eq!((ready.0, ready.2), (ConditionStatus::True, "slurmdbd is external, at db.example.com:6819"));

    let before = live(&accounting(&json!({})), true);
    let expected =
        ["delete StatefulSet acct-accounting", "delete Service acct-accounting", "delete Secret acct-accounting"];
    assert_eq!(titles(&planned(&object, &before)), expected);

    let without = accounting(&json!({"external": true}));
    assert_eq!(condition_of(&planned(&without, &base_facts()), "Ready").1, "InvalidSpec");
    assert!(titles(&planned(&without, &before)).is_empty(), "a running slurmdbd is left alone");
}

#[test]
fn objects_of_other_owners_are_not_changed() {
    let object = accounting(&json!({}));
    let foreign = |change: fn(&mut Facts)| {
        let mut facts = live(&object, true);
        change(&mut facts);
        facts
    };
    for facts in [
        foreign(|facts| facts.service.as_mut().unwrap().metadata.owner_references = None),
        foreign(|facts| facts.config.as_mut().unwrap().metadata.owner_references = None),
        foreign(|facts| facts.stateful_set.as_mut().unwrap().metadata.owner_references = None),
    ] {
        let plan = planned(&object, &facts);
        assert!(plan.stages.is_empty(), "{:?}", titles(&plan));
        assert_eq!(condition_of(&plan, "Degraded").1, "NameTaken");
    }
}

#[test]
fn it_is_affected_by_what_it_refers_to() {
    let object = accounting(&json!({
        "jwksKeyRef": {"name": "jwks", "key": "k"},
        "storageConfig": {
            "host": "mariadb", "passwordKeyRef": {"name": "mariadb", "key": "password"},
            "tls": {"ca": {"configMapKeyRef": {"name": "ca", "key": "ca.crt"}}, "clientCertificateRef": {"name": "client"}},
        },
    }));
    for (what, namespace, name, affected) in [
        (TriggerKind::Secret, "slurm", "keys", true),
        (TriggerKind::Secret, "slurm", "mariadb", true),
        (TriggerKind::Secret, "slurm", "client", true),
        (TriggerKind::Secret, "slurm", "acct-accounting", true),
        (TriggerKind::Secret, "slurm", "other", false),
        (TriggerKind::Secret, "other", "mariadb", false),
        (TriggerKind::ConfigMap, "slurm", "jwks", true),
        (TriggerKind::ConfigMap, "slurm", "ca", true),
        (TriggerKind::ConfigMap, "slurm", "other", false),
        (TriggerKind::StatefulSet, "slurm", "acct-accounting", true),
        (TriggerKind::Pod, "slurm", "acct-accounting-0", true),
        (TriggerKind::Pod, "slurm", "slurm-controller-0", false),
        (TriggerKind::SlurmHealth("slinky.slurm.net"), "slurm", "lab", true),
    ] {
        let trigger = Trigger { what, namespace: namespace.into(), name: name.into(), owners: Vec::new() };
        assert_eq!(object.is_affected(&trigger), affected, "{what:?} {namespace}/{name}");
    }
}

#[test]
fn slurmdbd_restarts_with_each_ring_and_not_when_the_users_key_vanishes() {
    let object = accounting(&json!({}));
    let set = |slurm_key, ring| stateful_set(&object, &Facts { slurm_key, ring, ..base_facts() });
    let first = set(good("s"), ring_of("a"));
    assert_ne!(set(good("s"), ring_of("b")), first);
    assert_eq!(set(KeyState::NoSecret, ring_of("a")), first);
    let plan = planned(&object, &Facts { ring: Ring::Missing("keys-ring".into()), ..base_facts() });
    assert_eq!(titles(&plan), ["Service acct-accounting"]);
    // That of an earlier release stays as it is, until the user's key changes.
    let running = live(&object, true);
    let old = stateful_set(&object, &running);
    assert_eq!(stateful_set(&object, &Facts { ring: ring_of("a"), ..running }), old);
    let changed = Facts { ring: ring_of("a"), slurm_key: good("t"), ..live(&object, true) };
    assert_eq!(stateful_set(&object, &changed)["spec"], first["spec"]);
}
