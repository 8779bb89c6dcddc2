//! A whole report of an API server with secrets in every place.

mod objects;
mod text;

use std::{collections::BTreeSet, io::Read, process::Command, sync::Arc};

use axum::{Json, Router, extract::Request, http::StatusCode, response::IntoResponse};
use flate2::read::GzDecoder;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use super::{archive, collect, plan_slurm, read::end_of};
use crate::{offline_plan, status::read::Reader};
use text::{JWT, KEY};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// Secrets that show by their place or their form. Each is in one place.
const PLANTED: [&str; 14] = [
    "in-slurmdbd-conf",
    "in sssd.conf",
    "in-extra-conf",
    "in-args-1",
    "in-args-2",
    "in-env-1",
    "in-last-applied",
    "in-annotation",
    "in-log-1",
    "in-log-2",
    "in-log-3",
    "in-event-1",
    "in-condition-1",
    "in-operator-log-1",
];

/// What only those can know who may read Secrets.
const IN_SECRETS: [&str; 2] = ["correct horse battery staple", "in-a-key-of-slurm-1"];

fn base64(text: &str) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text)
}

fn pod(name: &str, namespace: &str, program: &str, more: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": name, "resourceVersion": "1",
            "labels": {"app.kubernetes.io/name": program, "app.kubernetes.io/instance": "slurm", "app.kubernetes.io/part-of": "slurm-operator"},
        },
        "spec": {"containers": [{"name": program, "image": "image:26.05"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": program, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}],
        },
    });
    for (key, value) in more.as_object().unwrap() {
        pod["spec"]["containers"][0][key] = value.clone();
    }
    pod
}

fn objects() -> Vec<Value> {
    let last = |text: &str| json!({"kubectl.kubernetes.io/last-applied-configuration": format!("{{\"spec\":{{\"password\":\"{text}\"}}}}")});
    let controller = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": {"name": "slurm", "namespace": "ns", "uid": "c", "resourceVersion": "1", "generation": 1, "annotations": last("in-last-applied")},
        "spec": {
            "slurmKeyRef": {"name": "keys", "key": "slurm.key"}, "jwtKeyRef": {"name": "nowhere", "key": "jwt.key"},
            "slurmctld": {"image": "slurmctld:26.05"}, "extraConf": "MessageTimeout=30\nAccountingStoragePass=in-extra-conf\nPrologFlags=Contain",
        },
        "status": {"observedGeneration": 1, "conditions": [{
            "type": "Ready", "status": "False", "reason": "SlurmUnreachable", "lastTransitionTime": "2027-01-01T00:00:00Z",
            "message": "http://slurm:in-condition-1@rest:6820/ does not answer: connection refused",
        }]},
    });
    let files = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "slurm", "namespace": "ns", "uid": "m", "ownerReferences": [{"uid": "c"}]},
        "data": {
            "slurm.conf": "ClusterName=ns_slurm\nAuthAltParameters=jwt_key=/etc/slurm/jwt.key\n",
            "slurmdbd.conf": "StorageUser=slurm StoragePass=in-slurmdbd-conf\n", "sssd.conf": "ldap_default_authtok = in sssd.conf\n",
        },
    });
    let strangers = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "strangers", "namespace": "ns", "uid": "s"}, "data": {"a": "of a stranger"},
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "ns", "uid": "k"},
        "data": {"slurm.key": base64(IN_SECRETS[1]), "password": base64(IN_SECRETS[0])},
    });
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "ns"}, "type": "Warning", "reason": "Failed",
        "involvedObject": {"kind": "Controller", "namespace": "ns", "name": "slurm"}, "lastTimestamp": "2027-01-01T00:00:00Z",
        "message": "exec failed: --token in-event-1 is wrong",
    });
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"},
        "status": {"images": [{"names": ["a-long-list"]}], "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let slurmctld = pod(
        "slurm-controller-0",
        "ns",
        "slurmctld",
        &json!({
            "args": ["--token", "in-args-1", "--password=in-args-2", "-D"],
            "env": [{"name": "DB_PASSWORD", "value": "in-env-1"}, {"name": "TZ", "value": "UTC"}],
        }),
    );
    let mut slurmctld = slurmctld;
    slurmctld["metadata"]["annotations"] = json!({"example.com/secret": "in-annotation"});
    let operator = pod(
        "slurm-operator-0",
        "slurm-operator",
        "slurm-operator",
        &json!({"args": ["manager", "--health-addr=:9081"]}),
    );
    vec![controller, files, strangers, secret, event, node, slurmctld, operator]
}

fn log(path: &str) -> String {
    if path.contains("slurm-operator-0") {
        return "{\"kind\":\"nodeset\",\"message\":\"create Pod gpu-7\"}\n{\"message\":\"password=in-operator-log-1\"}\n".to_owned();
    }
    format!(
        "slurmctld: running\nAuthorization: Basic in-log-1\nSLURM_JWT={JWT}\nthe password is {}\npasswd=in-log-2\nhttps://u:in-log-3@h/\n{KEY}\n",
        IN_SECRETS[0]
    )
}

/// An API server that refuses some paths.
fn reader(refused: &'static [&'static str]) -> Reader {
    let objects = Arc::new(objects());
    let router = Router::new().fallback(move |request: Request| {
        let client = offline_plan::client(&objects);
        async move {
            let path = request.uri().path().to_owned();
            if refused.iter().any(|part| path.contains(part)) {
                let message = format!("{path} is forbidden");
                let status = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": message});
                return (StatusCode::FORBIDDEN, Json(status)).into_response();
            }
            if path.ends_with("/log") {
                return log(&path).into_response();
            }
            let wanted = axum::http::Request::get(request.uri().to_string()).body(Vec::new()).unwrap();
            match client.request::<Value>(wanted).await {
                Ok(value) => Json(value).into_response(),
                Err(kube::Error::Api(status)) => (StatusCode::NOT_FOUND, Json(json!(status))).into_response(),
                Err(error) => panic!("{error}"),
            }
        }
    });
    Reader { client: Client::new(router, "default"), namespace: Some("ns".into()), is_cached: false }
}

/// The files of a report, and all its bytes.
async fn report(refused: &'static [&'static str]) -> (Vec<u8>, std::collections::BTreeMap<String, String>) {
    let report = collect(&reader(refused), "slurm-operator", NOW).await.unwrap();
    let files = report.finish("ns", NOW);
    let packed = archive::pack("slurm-report", &files, NOW).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
    (bytes, files)
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn no_secret_is_in_the_archive() {
    let (bytes, files) = report(&["/portforward"]).await;
    let of_forms = [JWT, KEY, JWT.rsplit('.').next().unwrap()];
    for secret in PLANTED.iter().chain(&IN_SECRETS).chain(&of_forms) {
        assert!(!has(&bytes, secret), "{secret} is in the archive");
        assert!(!has(&bytes, &base64(secret)), "{secret} is in the archive in base64");
    }
    assert!(!has(&bytes, "of a stranger") && !has(&bytes, "a-long-list"));

    // What is needed to find a problem.
    let kept = [
        ("ns/controller.yaml", "MessageTimeout=30"),
        ("ns/controller.yaml", "PrologFlags=Contain"),
        ("ns/controller.yaml", "does not answer: connection refused"),
        ("ns/configmap.yaml", "AuthAltParameters=jwt_key=/etc/slurm/jwt.key"),
        ("ns/configmap.yaml", "StorageUser=slurm"),
        ("ns/pod.yaml", "slurm-controller-0"),
        ("ns/pod.yaml", "DB_PASSWORD"),
        ("ns/pod.yaml", "UTC"),
        ("ns/secret.yaml", "slurm.key: 19 bytes"),
        ("ns/secret.yaml", "something refers to it, and it does not exist"),
        ("ns/events.txt", "2027-01-01T00:00:00Z  Warning  Controller ns/slurm  Failed (1 times): exec failed"),
        ("ns/logs/slurm-controller-0/slurmctld.log", "slurmctld: running"),
        ("slurm-operator/logs/slurm-operator-0/slurm-operator.log", "create Pod gpu-7"),
        ("node.yaml", "node1"),
        ("status.txt", "Controller ns/slurm"),
        ("explain.txt", "Ready=False (SlurmUnreachable)"),
        ("not-read.txt", "/debug/vars of Pod slurm-operator/slurm-operator-0"),
        ("not-read.txt", "Slurm of Controller ns/slurm: the Secret nowhere has no entry jwt.key"),
        ("README.txt", "look through it before you"),
    ];
    for (path, part) in kept {
        let text = files.get(path).unwrap_or_else(|| panic!("no {path} in {:?}", files.keys()));
        assert!(text.contains(part), "{part} in {path}: {text}");
    }
}

#[tokio::test]
async fn a_viewer_gets_a_report_that_says_what_is_missing() {
    let (bytes, files) = report(&["/portforward", "/secrets/", "/api/v1/nodes", "/namespaces/slurm-operator/"]).await;
    for secret in PLANTED {
        assert!(!has(&bytes, secret), "{secret} is in the archive");
    }
    let unread = &files["not-read.txt"];
    for what in [
        "Secret ns/keys: /api/v1/namespaces/ns/secrets/keys is forbidden",
        "nodes: /api/v1/nodes is forbidden",
        "pods in slurm-operator: ",
        "the operator: no pod of it is known in the namespace slurm-operator",
        "Slurm of Controller ns/slurm: reading Secret ns/nowhere",
    ] {
        assert!(unread.contains(what), "{what} in {unread}");
    }
    assert_eq!(unread.matches("is forbidden").count(), unread.lines().count() - 1, "each once: {unread}");
    assert!(files.contains_key("ns/pod.yaml") && files.contains_key("status.txt"));
}

#[tokio::test]
async fn without_any_right_there_is_no_report() {
    let error = collect(&reader(&["/apis/slinky.slurm.net/"]), "slurm-operator", NOW).await.unwrap_err().to_string();
    assert!(error.contains("is forbidden"), "{error}");
}

#[test]
fn the_archive_is_one_folder_that_tar_can_read() {
    let files = [("README.txt", "about\n"), ("ns/logs/a-pod/slurmd.log", "text\n")];
    let files = files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect();
    let folder = std::env::temp_dir().join(format!("slurm-operator-report-{}", crate::random::id().unwrap()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("report.tar.gz");
    archive::save(&path, &archive::pack("slurm-report-ns", &files, NOW).unwrap()).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    let listed = Command::new("tar").args(["--list", "--gzip", "--file"]).arg(&path).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(mode & 0o777, 0o600);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let listed: BTreeSet<&str> = listed.lines().collect();
    assert_eq!(listed, BTreeSet::from(["slurm-report-ns/README.txt", "slurm-report-ns/ns/logs/a-pod/slurmd.log"]));
    let error = archive::save(std::path::Path::new("/nowhere/report.tar.gz"), &[]).unwrap_err();
    assert!(format!("{error:#}").starts_with("cannot write /nowhere/report.tar.gz: choose another file"), "{error:#}");
}

#[test]
fn a_log_keeps_its_end() {
    assert_eq!(end_of("one\ntwo\nthree\n", 8), "three\n");
    assert_eq!(end_of("one\n", 8), "one\n");
    assert_eq!(end_of("äöü", 3), "ü");
}

#[test]
fn slurm_is_shown_without_people() {
    use slurm::wire::{Job, Node};
    let node: Node = serde_json::from_value(json!({
        "name": "gpu-0", "state": ["IDLE", "DRAIN"], "reason": "bad disk", "reason_set_by_user": "root",
        "reason_changed_at": {"set": true, "infinite": false, "number": 1_800_000_000}, "cpus": 64, "version": "26.05.1",
    }))
    .unwrap();
    let job = |id: u32, state: &str, reason: &str| -> Job {
        serde_json::from_value(json!({
            "job_id": id, "name": "a-secret-project", "user_name": "alice", "account": "chem", "comment": "for bob", "job_state": [state],
            "state_reason": reason, "partition": "all", "nodes": "", "time_limit": {"set": true, "infinite": false, "number": 60},
        }))
        .unwrap()
    };
    let jobs = (0..2_500).map(|id| job(id, if id < 2_400 { "COMPLETED" } else { "PENDING" }, "Resources")).collect();
    let facts = plan_slurm::SlurmFacts { nodes: vec![node], jobs, ..plan_slurm::SlurmFacts::default() };
    let files = plan_slurm::files(&facts);
    let nodes = &files[1].1;
    assert!(nodes.contains("IDLE+DRAIN") && nodes.contains("bad disk [root since 2027-01-15T08:00:00Z]"), "{nodes}");
    let jobs = &files[2].1;
    assert!(jobs.contains("PENDING    Resources  100\n") && jobs.contains("60 min"), "{jobs}");
    assert!(jobs.lines().any(|line| line.starts_with("2499 ")), "those that wait come first");
    assert!(jobs.ends_with("… and 500 more\n"));
    for people in ["a-secret-project", "alice", "chem", "bob"] {
        assert!(!jobs.contains(people), "{people}");
    }
}
