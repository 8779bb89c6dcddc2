//! Objects: their secrets go, and what is needed to find a problem stays.

use serde_json::{Value, json};

use super::{
    super::{
        plan_parts::{Log, Name, events, logs, parts, references},
        plan_redact::Redactor,
    },
    text::KEY,
};

fn redacted(object: &Value) -> Value {
    Redactor::default().object(object)
}

#[test]
fn of_a_secret_there_are_names_and_sizes() {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": "slurm-auth", "namespace": "ns", "labels": {"slinky.slurm.net/token": "alice"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{\"data\":{\"slurm.key\":\"aHVudGVyMg==\"}}"},
        },
        "data": {"slurm.key": "aHVudGVyMg==", "empty": ""}, "stringData": {"more": "hunter22"},
    });
    let expected = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": "slurm-auth", "namespace": "ns", "labels": {"slinky.slurm.net/token": "alice"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "<removed: 37 bytes>"},
        },
        "entries": {"slurm.key": "7 bytes", "empty": "0 bytes", "more": "8 bytes"},
    });
    assert_eq!(redacted(&secret), expected);
}

#[test]
fn a_pod_keeps_everything_but_its_secrets() {
    let pod = |env: Value, args: Value, password: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "annotations": {"example.com/api-token": password, "note": "kept"}},
            "spec": {
                "automountServiceAccountToken": false,
                "imagePullSecrets": [{"name": "registry"}],
                "containers": [{
                    "name": "slurmd", "image": "slurmd:26.05", "args": args, "env": env,
                    "ports": [{"name": "token", "containerPort": 6818}],
                }],
                "volumes": [
                    {"name": "jwt-key", "secret": {"secretName": "slurm-auth", "items": [{"key": "jwt.key", "path": "jwt.key"}]}},
                    {"name": "api", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]}},
                ],
            },
            "status": {"conditions": [{"type": "Ready", "status": "False", "message": "token: expired"}]},
        })
    };
    let random = "AbCd01EfGh23IjKl45Mn";
    let planted = pod(
        json!([
            {"name": "DB_PASSWORD", "value": "hunter2"}, {"name": "SLURM_JWT", "value": "daemon"}, {"name": "LICENSE", "value": random},
            {"name": "URL", "value": "redis://:hunter2@cache/0"}, {"name": "POD_IP", "value": "10.0.0.1"},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
        ]),
        json!([
            "-N",
            "gpu-0",
            "--token",
            "hunter2",
            "--verbose",
            "--api-key=hunter2",
            "--token-file",
            "/run/token/jwt"
        ]),
        "hunter2",
    );
    let expected = pod(
        json!([
            {"name": "DB_PASSWORD", "value": "<removed>"}, {"name": "SLURM_JWT", "value": "daemon"}, {"name": "LICENSE", "value": "<removed>"},
            {"name": "URL", "value": "redis://:<removed>@cache/0"}, {"name": "POD_IP", "value": "10.0.0.1"},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
        ]),
        json!([
            "-N",
            "gpu-0",
            "--token",
            "<removed>",
            "--verbose",
            "--api-key=<removed>",
            "--token-file",
            "/run/token/jwt"
        ]),
        "<removed>",
    );
    assert_eq!(redacted(&planted), expected);
}

#[test]
fn files_keep_what_is_no_secret() {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slurm", "namespace": "ns"},
        "data": {"slurmdbd.conf": "DbdHost=a\nStoragePass=hunter2\n", "munge.key": "hunter2", "gres.conf": "AutoDetect=nvml\n"},
        "binaryData": {"blob": KEY},
    });
    let redacted = redacted(&map);
    assert_eq!(redacted["data"]["slurmdbd.conf"], "DbdHost=a\nStoragePass=<removed>\n");
    assert_eq!(redacted["data"]["munge.key"], "<removed: 7 bytes>");
    assert_eq!(redacted["data"]["gres.conf"], "AutoDetect=nvml\n");
    assert_eq!(redacted["binaryData"]["blob"], "<removed: 44 bytes in base64>");
}

#[test]
fn writers_stay_and_their_fields_go() {
    let object = json!({"kind": "Pod", "metadata": {"managedFields": [
        {"manager": "slurm-operator/nodeset", "operation": "Apply", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {}}},
    ]}});
    let left = json!([{"manager": "slurm-operator/nodeset", "operation": "Apply", "time": "2026-01-01T00:00:00Z"}]);
    assert_eq!(redacted(&object)["metadata"]["managedFields"], left);
}

#[test]
fn numbers_stand_for_hashes_of_secrets() {
    let (old, new) = ("a".repeat(64), "b".repeat(64));
    let pod = |hash: &str| json!({"kind": "Pod", "metadata": {"annotations": {"slinky.slurm.net/jwt-key-hash": hash, "slinky.slurm.net/slurm-config-hash": "c"}}});
    let ring = json!({"kind": "Secret", "metadata": {"name": "ring", "annotations": {"slinky.slurm.net/key-rings": format!("{old},{new}")}}});
    let mut redactor = Redactor::default();
    for object in [&pod(&old), &ring] {
        redactor.learn_hashes(object);
    }
    assert_eq!(redactor.object(&ring)["metadata"]["annotations"]["slinky.slurm.net/key-rings"], "<hash 1>,<hash 2>");
    let pod = redactor.object(&pod(&new));
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({"slinky.slurm.net/jwt-key-hash": "<hash 2>", "slinky.slurm.net/slurm-config-hash": "c"})
    );
}

fn owned(kind: &str, name: &str, owner: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"name": name, "namespace": "ns", "uid": format!("{kind}-{name}"), "ownerReferences": [{"uid": owner}]},
    })
}

fn controller() -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": {"name": "slurm", "namespace": "ns", "uid": "c"},
        "spec": {"slurmKeyRef": {"name": "keys", "key": "slurm.key"}, "configFileRefs": [{"name": "files"}], "accountingRef": {"name": "records"}},
    })
}

#[test]
fn what_belongs_to_our_objects_is_found_and_nothing_else() {
    let mut pod = owned("Pod", "login-1", "ReplicaSet-login");
    pod["spec"] = json!({"volumes": [
        {"secret": {"secretName": "ring"}}, {"persistentVolumeClaim": {"claimName": "home"}},
        {"projected": {"sources": [{"secret": {"name": "more"}}]}},
    ], "imagePullSecrets": [{"name": "registry"}]});
    let all = vec![
        controller(),
        owned("Deployment", "login", "c"),
        owned("ReplicaSet", "login", "Deployment-login"),
        pod,
        owned("ConfigMap", "files", "somebody"),
        owned("ConfigMap", "others", "somebody"),
        owned("PersistentVolumeClaim", "home", "somebody"),
        owned("Pod", "stranger", "somebody"),
    ];
    let parts = parts(all);
    let names: Vec<&str> = parts.iter().map(|part| part["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["files", "slurm", "login", "home", "login-1", "login"]);
    let secrets = references(parts.iter()).into_iter().filter(|name| name.kind == "Secret");
    let secrets: Vec<String> = secrets.map(|Name { name, .. }| name).collect();
    assert_eq!(secrets, ["files", "keys", "more", "ring"], "pull secrets are never read");
}

#[test]
fn events_of_pods_that_are_gone_stay() {
    let event = |kind: &str, name: &str, time: &str| json!({"involvedObject": {"kind": kind, "namespace": "ns", "name": name}, "lastTimestamp": time});
    let all = vec![
        event("Pod", "gpu-3", "2026-01-01T00:00:02Z"),
        event("NodeSet", "gpu", "2026-01-01T00:00:01Z"),
        event("Pod", "gpux-1", "2026-01-01T00:00:00Z"),
        event("Deployment", "gpu-web", "2026-01-01T00:00:00Z"),
    ];
    let found = events(all, &[owned("NodeSet", "gpu", "c")]);
    let names: Vec<&Value> = found.iter().map(|event| &event["involvedObject"]["name"]).collect();
    assert_eq!(names, ["gpu", "gpu-3"]);
}

#[test]
fn logs_are_those_of_daemons_and_of_workers_that_are_not_well() {
    let pod = |name: &str, program: &str, restarts: u64, states: &[&str]| {
        let mut conditions = vec![json!({"type": "Ready", "status": "True"})];
        conditions.extend(states.iter().map(|state| json!({"type": state, "status": "True"})));
        let mut status = json!({"name": program, "restartCount": restarts, "state": {"running": {}}});
        if restarts > 0 {
            status["lastState"] = json!({"terminated": {"exitCode": 1}});
        }
        json!({
            "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "labels": {"app.kubernetes.io/name": program}},
            "status": {"conditions": conditions, "containerStatuses": [status]},
        })
    };
    let mut all: Vec<Value> = (0..30).map(|number| pod(&format!("gpu-{number:02}"), "slurmd", 0, &[])).collect();
    all.push(pod("gpu-90", "slurmd", 2, &[]));
    all.push(pod("gpu-91", "slurmd", 0, &["SlurmNodeStateDrain"]));
    all.push(pod("slurm-controller-0", "slurmctld", 0, &[]));
    let mut waits = pod("gpu-92", "slurmd", 0, &["SlurmNodeStateDown"]);
    waits["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "ImagePullBackOff"}});
    all.push(waits);
    let (found, left) = logs(&all);
    assert_eq!(left, 13);
    let log = |pod: &str, container: &str, is_previous: bool| Log {
        namespace: "ns".into(),
        pod: pod.into(),
        container: container.into(),
        is_previous,
    };
    let first = [
        log("slurm-controller-0", "slurmctld", false),
        log("gpu-90", "slurmd", false),
        log("gpu-90", "slurmd", true),
        log("gpu-91", "slurmd", false),
        log("gpu-00", "slurmd", false),
    ];
    assert_eq!(found[..5], first);
    assert_eq!(found.len(), 1 + 3 + 17, "one of 20 has none yet, and one has two");
}
