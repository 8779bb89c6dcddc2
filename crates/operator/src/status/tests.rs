//! The tree of a cluster in which something is going on, as a viewer of the namespace sees it.

use std::sync::Arc;

use axum::{Json, Router, extract::Request, http::StatusCode, response::IntoResponse};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::{Value, json};

use super::{
    Format, Output, View,
    model::{Attention, Branch, Event, Facts, Health, Object, Pod, Tree, Unread, kube_node},
    plan_tree::{Scope, tree},
    read::Reader,
    render::{self, Size},
};
use crate::{frontends::vocabularies, offline_plan};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn at(text: &str) -> String {
    format!("2027-01-15T{text}Z")
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": at("07:30:00"), "observedGeneration": 1,
    })
}

pub(crate) fn object(kind: &str, name: &str, spec: &Value, status: &Value) -> Value {
    let mut status = status.clone();
    status["observedGeneration"] = json!(1);
    let metadata = json!({
        "name": name, "namespace": "ns", "uid": format!("{kind}-{name}"), "generation": 1, "resourceVersion": "1",
        "managedFields": [
            {"manager": "kubectl", "time": at("07:00:00")},
            {"manager": "slurm-operator", "subresource": "status", "time": at("07:59:59")},
        ],
    });
    json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "metadata": metadata, "spec": spec, "status": status})
}

pub(crate) fn controller(conditions: &[Value]) -> Value {
    let reachable = condition("SlurmReachable", "True", "AsExpected", "Slurm is reachable");
    let ready = condition("Ready", "True", "AsExpected", "slurmctld is ready");
    let mut all = vec![ready, reachable];
    all.retain(|one| !conditions.iter().any(|other| other["type"] == one["type"]));
    all.extend(conditions.iter().cloned());
    let spec = json!({"slurmKeyRef": {"name": "k", "key": "slurm.key"}, "slurmctld": {"image": "slurmctld:26.05"}});
    object("Controller", "slurm", &spec, &json!({"conditions": all, "slurmVersion": "26.05.1"}))
}

pub(crate) fn node_set(replicas: u32, conditions: &[Value]) -> Value {
    let mut all = vec![condition("Ready", "False", "PodsNotReady", "2 of 4 workers can run jobs")];
    all.extend(conditions.iter().cloned());
    let spec = json!({
        "controllerRef": {"name": "slurm"}, "replicas": replicas, "slurmd": {"image": "slurmd:26.05"},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
    });
    object(
        "NodeSet",
        "gpu",
        &spec,
        &json!({"conditions": all, "nodeSetHash": "new", "selector": "", "desired": replicas}),
    )
}

/// A worker pod with these states in Slurm.
pub(crate) fn worker(number: u32, states: &[&str], reason: &str, more: &Value) -> Value {
    let name = format!("gpu-{number}");
    let mut conditions = vec![json!({"type": "Ready", "status": "True", "lastTransitionTime": at("07:10:00")})];
    conditions.extend(states.iter().map(|state| {
        let type_ = format!("SlurmNodeState{state}");
        json!({"type": type_, "status": "True", "message": reason, "lastTransitionTime": at("07:50:00")})
    }));
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "creationTimestamp": at("07:00:00"), "resourceVersion": "1",
            "labels": {
                "app.kubernetes.io/name": "slurmd", "app.kubernetes.io/instance": "gpu",
                "nodeset.slinky.slurm.net/scaling-mode": "StatefulSet", "nodeset.slinky.slurm.net/pod-index": number.to_string(),
                "controller.kubernetes.io/hash": "new",
            },
            "annotations": {},
            "ownerReferences": [{
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "gpu", "uid": "NodeSet-gpu", "controller": true,
            }],
        },
        "spec": {"nodeName": format!("node{number}"), "hostname": name, "containers": []},
        "status": {
            "phase": "Running", "conditions": conditions,
            "containerStatuses": [{
                "name": "slurmd", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": at("07:05:00")}},
            }],
        },
    });
    merge(&mut pod, more);
    pod
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn slurmctld() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "slurm-controller-0", "namespace": "ns", "labels": {
            "app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "slurm",
            "controller.slinky.slurm.net/active": "true",
        }},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

const UPDATE: &str = "slurm-operator: NodeSet (ns/gpu) is being updated";

/// A rolling update of four workers: one is new, one drains, two wait. An admin has drained one of these.
pub(crate) fn updating() -> Vec<Value> {
    let old = json!({"metadata": {"labels": {"controller.kubernetes.io/hash": "old"}}});
    let mut busy = old.clone();
    busy["metadata"]["annotations"] = json!({"nodeset.slinky.slurm.net/pod-deadline": at("08:10:00")});
    let waits = "waiting for 1 of 4 workers to drain: gpu-1; gpu-1: blocked by job 17 until 08:10 UTC";
    vec![
        controller(&[]),
        node_set(4, &[condition("Progressing", "True", "Draining", waits)]),
        slurmctld(),
        worker(0, &["Idle"], "", &json!({})),
        worker(1, &["Mixed", "Drain"], UPDATE, &busy),
        worker(2, &["Idle"], "", &old),
        worker(3, &["Idle", "Drain"], "bad disk", &old),
    ]
}

pub(crate) fn facts(values: &[Value]) -> Facts {
    let mut facts = Facts::default();
    for value in values {
        match value["kind"].as_str().unwrap() {
            "Pod" => facts.pods.push(Pod::new(value, vocabularies(), NOW).unwrap()),
            "Event" => facts.events.push(Event::new(value).unwrap()),
            "Node" => {
                let node = kube_node(value, vocabularies()).unwrap();
                drop(facts.nodes.insert(node.name.clone(), Arc::new(node)));
            }
            kind => facts.objects.push(Object::new(kind, value.clone())),
        }
    }
    facts
}

fn scope() -> Scope {
    Scope { namespace: Some("ns".into()), events: 5 }
}

fn tree_of(values: &[Value]) -> Tree {
    tree(&facts(values), &scope(), NOW)
}

fn text_of(tree: &Tree) -> String {
    render::print(&render::lines(tree, NOW), false, None)
}

fn reasons(tree: &Tree) -> Vec<(Health, &str)> {
    tree.attention.iter().map(|found| (found.health, found.reason.as_str())).collect()
}

#[test]
fn a_rolling_update_with_jobs() {
    let text = text_of(&tree_of(&updating()));
    let expected = "\
Needs attention
  ▲ NodeSet gpu  Drained: drained by an admin, who must resume gpu-3: bad disk

● Controller ns/slurm  slurmctld is ready, Slurm 26.05.1
├─ ● slurmctld slurm-controller-0  ready, in charge
└─ ▲ NodeSet gpu  2 of 4 workers can run jobs
   │  rolling update █████░░░░░░░░░░░░░░░ 1 of 4
   │  drained ░░░░░░░░░░░░░░░░░░░░ 0 of 1
   │  waiting for 1 of 4 workers to drain: gpu-1; gpu-1: blocked by job 17 until 08:10 UTC
   ├─ ◐ gpu-1  mixed+drain  to be removed (it is outdated): blocked by a job until 08:10 UTC  ██████████░░░░░░░░░░ 50% of the time
   ├─ ▲ gpu-3  idle+drain   drained by an admin, who must resume it: bad disk; outdated: is not replaced while a user, an admin or a \
                    cordon keeps it out of service
   ├─ ● gpu-0  idle         in service
   └─ ● gpu-2  idle         in service; outdated: waits for its turn, as at most 1 may be out of service
";
    assert_eq!(text, expected);
}

#[test]
fn it_is_an_object_for_programs() {
    let tree: Value = serde_json::to_value(tree_of(&updating())).unwrap();
    assert_eq!(tree["attention"][0]["health"], "warning");
    let set = &tree["clusters"][0]["children"][1];
    assert_eq!((set["kind"].as_str(), set["name"].as_str()), (Some("NodeSet"), Some("gpu")));
    assert_eq!(set["progress"][0], json!({"what": "rolling update", "done": 1, "all": 4}));
    let line = json!({
        "nodes": ["gpu-1"], "state": "mixed+drain", "health": "busy",
        "why": "to be removed (it is outdated): blocked by a job until 08:10 UTC",
        "jobsEnd": at("08:10:00"), "drainedSince": at("07:50:00"),
    });
    assert_eq!(set["workers"][0], line);
}

#[test]
fn colours_are_only_for_terminals_and_nothing_of_a_user_controls_one() {
    let mut values = updating();
    values[6]["status"]["conditions"][1]["message"] = json!("\u{1b}]0;title\u{7}\u{1b}[2Jbad\ndisk");
    values[6]["status"]["conditions"][2]["message"] = json!("\u{1b}]0;title\u{7}\u{1b}[2Jbad\ndisk");
    let lines = render::lines(&tree_of(&values), NOW);
    let plain = render::print(&lines, false, None);
    assert!(!plain.contains('\u{1b}') && plain.contains("]0;title  [2Jbad disk"), "{plain}");
    let coloured = render::print(&lines, true, None);
    for escape in coloured.split('\u{1b}').skip(1) {
        let is_ours = ["[0m", "[1m", "[2m", "[31m", "[32m", "[33m", "[36m"].iter().any(|code| escape.starts_with(code));
        assert!(is_ours, "{escape}");
    }
    // Without its colours it is the same.
    let stripped: String = coloured.split('\u{1b}').enumerate().fold(String::new(), |text, (number, part)| {
        text + if number == 0 { part } else { part.split_once('m').unwrap().1 }
    });
    assert_eq!(stripped, plain);
}

#[test]
fn what_does_not_fit_on_a_terminal_is_counted() {
    let lines = render::lines(&tree_of(&updating()), NOW);
    let text = render::print(&lines, true, Some(Size { width: 20, height: 6 }));
    let plain: Vec<String> = text.lines().map(render::clean).collect();
    assert_eq!(plain.len(), 5);
    assert!(plain[4].contains(&format!("… {} more lines", lines.len() - 4)), "{plain:?}");
    let small = render::print(&lines, false, Some(Size { width: 20, height: 6 }));
    assert!(small.lines().all(|line| line.chars().count() <= 20), "{small}");
}

#[test]
fn many_workers_in_one_situation_share_a_line() {
    let mut values = vec![controller(&[]), node_set(300, &[])];
    let busy = json!({"metadata": {"annotations": {"nodeset.slinky.slurm.net/pod-deadline": at("09:00:00")}}});
    values.extend((0..200).map(|number| worker(number, &["Idle"], "", &json!({}))));
    values.extend((200..240).map(|number| worker(number, &["Allocated"], "", &busy)));
    let text = text_of(&tree_of(&values));
    assert!(text.contains("gpu-[0-199]    idle       200 workers in service\n"), "{text}");
    assert!(text.contains("gpu-[200-239]  allocated  40 workers in service, jobs until 09:00:00 UTC\n"), "{text}");
    assert!(text.contains("in service ████████████████░░░░ 240 of 300\n"), "{text}");
}

#[test]
fn of_many_that_leave_the_first_have_a_line_each() {
    let reason = "slurm-operator: NodeSet (ns/gpu) is scaling in";
    let leaves = |number: u32| {
        let end = format!("2027-01-15T09:{:02}:00Z", number % 60);
        let more = json!({"metadata": {"annotations": {"nodeset.slinky.slurm.net/pod-deadline": end}}});
        worker(number, &["Mixed", "Drain"], reason, &more)
    };
    let mut values = vec![controller(&[]), node_set(0, &[])];
    values.extend((0..50).map(leaves));
    let tree = tree_of(&values);
    let lines = &tree.clusters[0].children[0].workers;
    assert_eq!(lines.len(), 21);
    assert_eq!((lines[0].nodes[0].as_str(), lines[20].nodes.len()), ("gpu-49", 30));
    assert_eq!(lines[20].why, "to be removed (scale-in): waits like those above");
}

#[test]
fn it_works_without_the_operator_and_says_so() {
    let mut values = updating();
    values[1]["metadata"]["generation"] = json!(2);
    assert_eq!(reasons(&tree_of(&values)), [(Health::Warning, "Drained"), (Health::Warning, "NotObserved")]);
    // A change takes a while.
    values[1]["metadata"]["managedFields"][0]["time"] = json!(at("07:59:50"));
    assert_eq!(reasons(&tree_of(&values)), [(Health::Warning, "Drained")]);
    assert!(text_of(&tree_of(&values)).contains("the operator has not acted on the last change"));

    let mut new = node_set(1, &[]);
    new["status"] = Value::Null;
    let tree = tree_of(&[controller(&[]), new]);
    assert_eq!(reasons(&tree), [(Health::Warning, "NotObserved")]);
    assert_eq!(tree.clusters[0].children[0].summary, "not seen by the operator yet");
}

#[test]
fn the_worst_comes_first() {
    let degraded = condition("Degraded", "True", "PodsNotReady", "gpu-3: unschedulable: no GPU is left");
    let insecure = condition("Insecure", "True", "PlainHttp", "spec.externalRestApi.url: …");
    let unreachable = condition("SlurmReachable", "False", "SlurmUnreachable", "slurmrestd does not answer");
    let refused = condition("ConfigurationValid", "False", "RefusedBySlurm", "slurm.conf: line 7");
    let reread = condition("ConfigurationInEffect", "False", "WorkersNotTold", "2 of 4 have it");
    let values = [controller(&[insecure, unreachable.clone(), refused, reread]), node_set(4, &[degraded])];
    let tree = tree_of(&values);
    let expected = [
        (Health::Bad, "RefusedBySlurm"),
        (Health::Bad, "SlurmUnreachable"),
        (Health::Bad, "PodsNotReady"),
        (Health::Warning, "PlainHttp"),
    ];
    assert_eq!(reasons(&tree), expected);
    let notes = &tree.clusters[0].notes;
    assert!(
        notes.contains(&"ConfigurationInEffect: 2 of 4 have it".to_owned()),
        "it needs nobody, and is shown: {notes:?}"
    );
    // slurmrestd has just been started.
    let mut starting = values;
    for one in starting[0]["status"]["conditions"].as_array_mut().unwrap() {
        one["lastTransitionTime"] = json!(at("07:59:30"));
    }
    assert!(!reasons(&tree_of(&starting)).contains(&(Health::Bad, "SlurmUnreachable")));
}

#[test]
fn while_slurm_is_unreachable_the_last_known_states_are_shown() {
    let unreachable = condition("SlurmReachable", "False", "SlurmUnreachable", "slurmrestd does not answer");
    let mut values = updating();
    values[0] = controller(&[unreachable]);
    let text = text_of(&tree_of(&values));
    assert!(text.contains("gpu-1  mixed+drain  the state of Slurm is unknown; outdated"), "{text}");
}

#[test]
fn what_belongs_to_no_cluster_is_shown() {
    let login = object(
        "LoginSet",
        "people",
        &json!({"controllerRef": {"name": "gone"}}),
        &json!({"conditions": [condition("Ready", "False", "ReferenceMissing", "the Controller gone does not exist")]}),
    );
    let token = |name: &str, status: &str| {
        object("Token", name, &json!({}), &json!({"conditions": [condition("Ready", status, "AsExpected", "")]}))
    };
    let accounting = object(
        "Accounting",
        "records",
        &json!({}),
        &json!({"conditions": [condition("Ready", "True", "AsExpected", "")]}),
    );
    let values = [login.clone(), token("a", "True"), token("b", "True"), token("c", "False"), accounting];
    let tree = tree_of(&values);
    let found: Vec<(&str, &str, &str)> =
        tree.clusters.iter().map(|one| (one.kind.as_str(), one.name.as_str(), one.summary.as_str())).collect();
    let expected = [
        ("Controller", "gone", "does not exist"),
        ("Accounting", "records", "ready"),
        ("Token", "c", "not ready"),
        ("Tokens", "", "2 ready"),
    ];
    assert_eq!(found, expected);
    // If it may not be read, it may exist.
    let mut facts = facts(&[login]);
    facts.unread.push(Unread { what: "controllers".into(), why: "forbidden".into() });
    assert_eq!(tree_of_facts(&facts).clusters[0].summary, "could not be read");
}

fn tree_of_facts(facts: &Facts) -> Tree {
    tree(facts, &scope(), NOW)
}

#[test]
fn a_paused_set_and_one_that_cannot_be_decoded() {
    let mut paused = updating();
    paused[1]["metadata"]["annotations"] = json!({"nodeset.slinky.slurm.net/paused": "true"});
    assert!(reasons(&tree_of(&paused)).contains(&(Health::Warning, "Paused")));
    let mut wrong = updating();
    wrong[1]["spec"]["replicas"] = json!("many");
    let tree = tree_of(&wrong);
    let set = &tree.clusters[0].children[1];
    assert!(
        set.workers.is_empty() && set.notes.iter().any(|note| note.contains("cannot be decoded")),
        "{:?}",
        set.notes
    );
}

#[test]
fn daemons_show_the_pods_that_are_not_ready() {
    let rest = object(
        "RestApi",
        "rest",
        &json!({"controllerRef": {"name": "slurm"}}),
        &json!({"conditions": [condition("Ready", "False", "PodsNotReady", "1 of 2 slurmrestd pods are ready")]}),
    );
    let pod = |name: &str, ready: &str| {
        let mut pod = slurmctld();
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["labels"] =
            json!({"app.kubernetes.io/name": "slurmrestd", "app.kubernetes.io/instance": "rest"});
        pod["status"]["conditions"][0]["status"] = json!(ready);
        pod["status"]["containerStatuses"] = json!([{
            "name": "slurmrestd", "image": "", "imageID": "", "ready": false, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        }]);
        pod
    };
    let text = text_of(&tree_of(&[controller(&[]), rest, pod("rest-a", "True"), pod("rest-b", "False")]));
    assert!(
        text.contains("└─ ◐ RestApi rest  1 of 2 slurmrestd pods are ready\n   └─ ◐ slurmrestd rest-b  pod rest-b"),
        "{text}"
    );
    assert!(text.contains("restarted 3 times") && !text.contains("rest-a"), "{text}");
}

#[test]
fn the_last_events_are_those_of_ours() {
    let event = |name: &str, kind: &str, type_: &str, time: &str, more: &Value| {
        let mut event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "ns"},
            "involvedObject": {"kind": kind, "namespace": "ns", "name": name}, "type": type_, "reason": "Reason",
            "message": format!("about {name}"), "eventTime": at(time),
        });
        merge(&mut event, more);
        event
    };
    let again = json!({"series": {"count": 4, "lastObservedTime": at("07:59:00.000000")}});
    let mut values = updating();
    values.extend([
        event("gpu", "NodeSet", "Normal", "07:00:00.000000", &again),
        event("gpu-1", "Pod", "Warning", "07:58:00.000000", &json!({})),
        event("gpu-2", "Pod", "Normal", "07:58:00.000000", &json!({})),
        event("other", "Pod", "Warning", "07:58:00.000000", &json!({})),
        event("other", "Deployment", "Warning", "07:58:00.000000", &json!({})),
    ]);
    let text = text_of(&tree_of(&values));
    let expected = "
Last events
  07:58:00 UTC  Pod gpu-1  Reason: about gpu-1
  07:59:00 UTC  NodeSet gpu  Reason: about gpu (4 times)
";
    assert!(text.ends_with(expected), "{text}");
    let few = tree(&facts(&values), &Scope { namespace: None, events: 1 }, NOW);
    assert_eq!(few.events.len(), 1);
    assert!(text_of(&few).ends_with("NodeSet ns/gpu  Reason: about gpu (4 times)\n"));
}

/// An API server that refuses some paths.
fn server(objects: Vec<Value>, refused: &'static [&'static str]) -> Client {
    let objects = Arc::new(objects);
    let router = Router::new().fallback(move |request: Request| {
        let client = offline_plan::client(&objects);
        async move {
            let path = request.uri().path().to_owned();
            if refused.iter().any(|part| path.ends_with(part)) {
                let message = format!("{path} is forbidden");
                let status = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": message});
                return (StatusCode::FORBIDDEN, Json(status)).into_response();
            }
            let wanted = axum::http::Request::get(request.uri().to_string()).body(Vec::new()).unwrap();
            Json(client.request::<Value>(wanted).await.unwrap()).into_response()
        }
    });
    Client::new(router, "default")
}

fn reader(objects: Vec<Value>, refused: &'static [&'static str]) -> Reader {
    Reader { client: server(objects, refused), namespace: Some("ns".into()), is_cached: false }
}

#[tokio::test]
async fn a_missing_right_is_a_line() {
    let found = reader(updating(), &["/nodes", "/events"]).read(NOW).await.unwrap();
    let tree = tree(&found, &scope(), NOW);
    let unread: Vec<&str> = tree.unread.iter().map(|unread| unread.what.as_str()).collect();
    assert_eq!(unread, ["events", "nodes"]);
    let text = text_of(&tree);
    assert!(text.contains("gpu-1  mixed+drain  to be removed"), "{text}");
    assert!(
        text.ends_with(
            "Not read\n  events: /api/v1/namespaces/ns/events is forbidden\n  nodes: /api/v1/nodes is forbidden\n"
        ),
        "{text}"
    );

    let none: &[&str] = &["controllers", "restapis", "accountings", "nodesets", "loginsets", "tokens"];
    let error = reader(updating(), none).read(NOW).await.unwrap_err().to_string();
    assert!(error.contains("controllers in ns") && error.contains("is forbidden"), "{error}");
}

#[tokio::test]
async fn nothing_is_read_that_a_viewer_may_not_read() {
    let (sender, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let router = Router::new().fallback(move |request: Request| {
        sender.send((request.method().to_string(), request.uri().path().to_owned())).unwrap();
        async { Json(json!({"kind": "List", "metadata": {}, "items": []})) }
    });
    let client = Client::new(router, "default");
    Reader { client, namespace: Some("ns".into()), is_cached: true }.read(NOW).await.unwrap();
    asked.close();
    while let Some((method, path)) = asked.recv().await {
        let of_us = path.starts_with("/apis/slinky.slurm.net/v1beta1/namespaces/ns/");
        let others = ["/api/v1/namespaces/ns/pods", "/api/v1/namespaces/ns/events", "/api/v1/nodes"];
        assert!(method == "GET" && (of_us || others.contains(&path.as_str())), "{method} {path}");
    }
}

fn output(is_terminal: bool) -> Output {
    Output { size: None, is_terminal, colours: false }
}

#[test]
fn watching_writes_only_what_has_changed() {
    let next = |view: &mut View, values: &[Value], format: Format, seconds: i64, is_terminal: bool| {
        let now = NOW + SignedDuration::from_secs(seconds);
        view.next(tree(&facts(values), &scope(), now), format, now, &output(is_terminal)).unwrap()
    };
    let mut changed = updating();
    changed[1]["status"]["conditions"][1]["message"] = json!("waiting for 1 of 4 workers to drain: gpu-2");

    let mut log = View::default();
    assert!(next(&mut log, &updating(), Format::Text, 0, false).unwrap().starts_with("--- 2027-01-15 08:00:00 UTC\n"));
    assert_eq!(next(&mut log, &updating(), Format::Text, 60, false), None, "only the time has changed");
    assert!(next(&mut log, &changed, Format::Text, 61, false).unwrap().contains("to drain: gpu-2"));

    let mut screen = View::default();
    assert!(next(&mut screen, &updating(), Format::Text, 0, true).unwrap().starts_with("\u{1b}[H"));
    assert_eq!(next(&mut screen, &updating(), Format::Text, 1, true), None);
    let moved = next(&mut screen, &updating(), Format::Text, 300, true).unwrap();
    assert!(moved.contains("75% of the time"), "bars move: {moved}");

    let mut lines = View::default();
    let line = next(&mut lines, &updating(), Format::Json, 0, true).unwrap();
    assert_eq!(line.matches('\n').count(), 1);
    assert_eq!(next(&mut lines, &updating(), Format::Json, 60, true), None);
}

#[test]
fn an_empty_namespace_is_no_error() {
    let tree = tree_of(&[]);
    assert_eq!(text_of(&tree), "no Slurm cluster in the namespace ns\n");
    assert_eq!(tree.attention, Vec::<Attention>::new());
    assert_eq!(tree.clusters, Vec::<Branch>::new());
}

#[test]
fn bars_are_full_only_at_the_end() {
    assert_eq!(render::bar(0, 0), "░".repeat(20));
    assert_eq!(render::bar(0, 7), "░".repeat(20));
    assert_eq!(render::bar(9_999, 10_000), format!("{}░", "█".repeat(19)));
    assert_eq!(render::bar(7, 7), "█".repeat(20));
    assert_eq!(render::bar(9, 7), "█".repeat(20));
}
