use std::{cell::RefCell, sync::Arc};

use engine::podset::{Cordon, Phase, SlurmdState, Worker};
use kube::{ResourceExt, runtime::watcher::Event};
use serde_json::{Value, json};
use slurm_operator_api::{common::vocabulary::Vocabulary, slinky::VOCABULARY};

use super::{Nodes, SlimNode, SlimPod, Store, Vocabularies, Workers};

static ALL: [&Vocabulary; 1] = [&VOCABULARY];
const VOCABULARIES: Vocabularies = &ALL;

fn pod(name: &str, owner: &str, more: Value) -> SlimPod {
    let mut whole = json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("{name}-uid"), "resourceVersion": "7",
            "labels": {"app.kubernetes.io/name": "slurmd", "nodeset.slinky.slurm.net/scaling-mode": "DaemonSet"},
            "ownerReferences": [{
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "x", "uid": owner,
                "controller": true,
            }],
        },
    });
    merge(&mut whole, more);
    serde_json::from_value(whole).unwrap()
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn names(workers: &[Arc<Worker>]) -> Vec<&str> {
    workers.iter().map(|worker| worker.name.as_str()).collect()
}

/// Feeds a store and collects the names of the changes that it reports.
fn take(workers: &Workers, scope: Option<&str>, events: Vec<Event<SlimPod>>) -> Vec<String> {
    let reported = RefCell::new(Vec::new());
    for event in events {
        workers.0.take(scope, event, &|pod: &SlimPod| reported.borrow_mut().push(pod.name_any()));
    }
    reported.into_inner()
}

#[test]
fn a_relist_drops_missing_objects() {
    let workers = Workers::new(VOCABULARIES);
    let list = |names: &[&str]| {
        let shown = names.iter().map(|name| Event::InitApply(pod(name, "set", json!({}))));
        [Event::Init].into_iter().chain(shown).chain([Event::InitDone]).collect::<Vec<_>>()
    };
    assert_eq!(take(&workers, None, list(&["a", "b"])), ["a", "b"]);
    assert_eq!(names(&workers.of("set")), ["a", "b"]);
    assert!(take(&workers, None, list(&["b"])).is_empty(), "b has not changed");
    assert_eq!(names(&workers.of("set")), ["b"]);
    // The list of one namespace does not affect another one.
    take(&workers, Some("other"), vec![Event::Init, Event::InitDone]);
    assert_eq!(names(&workers.of("set")), ["b"]);
    assert_eq!(take(&workers, None, vec![Event::Delete(pod("b", "set", json!({})))]), ["b"]);
    assert!(workers.of("set").is_empty());
}

#[test]
fn only_workers_are_kept_indexed_by_owner() {
    let workers = Workers::new(VOCABULARIES);
    let other = pod("c", "ctld", json!({"metadata": {"labels": {"app.kubernetes.io/name": "slurmctld"}}}));
    let events =
        vec![Event::Apply(pod("a", "one", json!({}))), Event::Apply(pod("b", "two", json!({}))), Event::Apply(other)];
    assert_eq!(take(&workers, None, events), ["a", "b", "c"], "all changes are reported");
    assert_eq!((names(&workers.of("one")), names(&workers.of("two"))), (vec!["a"], vec!["b"]));
    assert!(workers.of("ctld").is_empty());
    take(&workers, None, vec![Event::Apply(pod("a", "two", json!({})))]);
    assert_eq!((workers.of("one").len(), workers.of("two").len()), (0, 2), "it has another owner now");
}

#[test]
fn workers_without_an_owner_are_found_by_their_labels() {
    let workers = Workers::new(VOCABULARIES);
    let instance = |name: &str| json!({"app.kubernetes.io/instance": name});
    let orphan = |name: &str, more: Value| {
        let mut orphan = pod(name, "set", more);
        orphan.metadata.kept.owner_references = None;
        Event::Apply(orphan)
    };
    let of = |set: &str| workers.orphans("ns", &VOCABULARY, set);
    take(&workers, None, vec![orphan("a", json!({"metadata": {"labels": instance("gpu")}}))]);
    take(&workers, None, vec![orphan("b", json!({}))]);
    assert_eq!((names(&of("gpu")), of("x").len()), (vec!["a"], 0), "b says nowhere whose it was");
    assert!(workers.of("set").is_empty());
    // It is adopted.
    take(&workers, None, vec![Event::Apply(pod("a", "set", json!({"metadata": {"labels": instance("gpu")}})))]);
    assert_eq!((names(&workers.of("set")), of("gpu").len()), (vec!["a"], 0));
    // What belongs to somebody else is left alone.
    let mut foreign = pod("c", "set", json!({"metadata": {"labels": instance("gpu")}}));
    foreign.metadata.kept.owner_references.as_mut().unwrap()[0].controller = None;
    take(&workers, None, vec![Event::Apply(foreign)]);
    assert!(of("gpu").is_empty());
}

#[test]
fn labels_that_were_removed_are_noticed() {
    let label = &VOCABULARY.label;
    let found = worker(json!({"metadata": {"labels": {label.instance: "x", label.pod_name: "a"}}}));
    assert_eq!(found.missing_labels, [label.pod_hostname], "a worker per node has no index");
}

#[test]
fn a_worker_that_leaves_the_watch_without_being_deleted_is_noticed() {
    let workers = Workers::new(VOCABULARIES);
    let uid = json!({"metadata": {"uid": "u"}});
    let gone = |more: Value| vec![Event::Apply(pod("a", "set", uid.clone())), Event::Delete(pod("a", "set", more))];
    take(&workers, None, gone(json!({"metadata": {"uid": "u", "deletionTimestamp": "2026-11-16T00:00:00Z"}})));
    assert_eq!(workers.lost("set"), []);
    take(&workers, None, gone(uid.clone()));
    assert_eq!(workers.lost("set"), [("a".to_owned(), "u".to_owned())]);
    workers.forget_lost("set");
    assert_eq!(workers.lost("set"), []);
}

#[test]
fn only_relevant_changes_are_reported_but_the_newest_version_is_kept() {
    let workers = Workers::new(VOCABULARIES);
    let version = |version: &str, ready: &str| {
        let conditions = json!([
            {"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-16T00:00:00Z"},
            {"type": "Seen", "status": "True", "lastProbeTime": format!("2026-11-16T00:00:{version}Z")},
        ]);
        let more =
            json!({"metadata": {"resourceVersion": version}, "status": {"phase": "Running", "conditions": conditions}});
        Event::Apply(pod("a", "set", more))
    };
    assert_eq!(take(&workers, None, vec![version("10", "False")]).len(), 1);
    assert_eq!(take(&workers, None, vec![version("11", "False")]).len(), 0);
    assert_eq!(workers.of("set")[0].resource_version, "11", "a delete needs the newest version");
    assert_eq!(take(&workers, None, vec![version("12", "True")]).len(), 1);
}

fn worker(more: Value) -> Worker {
    let workers = Workers::new(VOCABULARIES);
    take(&workers, None, vec![Event::Apply(pod("a", "set", more))]);
    Worker::clone(&workers.of("set")[0])
}

#[test]
fn a_pod_becomes_facts() {
    let found = worker(json!({
        "spec": {"nodeName": "n1", "hostname": "gpu-1", "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
            ]},
        }}},
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-16T00:00:00Z"},
                {"type": "SlurmNodeStateIdle", "status": "True", "message": "why"},
                {"type": "SlurmNodeStateDrain", "status": "False"},
            ],
            "containerStatuses": [{"name": "slurmd", "state": {"running": {"startedAt": "2026-11-16T00:00:00Z"}}}],
        },
    }));
    assert_eq!((found.node.as_deref(), found.target.as_deref()), (Some("n1"), Some("n1")));
    assert_eq!((found.phase, found.ready.is_some()), (Phase::Running, true));
    assert!(matches!(found.slurmd, SlurmdState::Running { since: Some(_) }));
    assert_eq!(found.conditions, [("SlurmNodeStateIdle".to_owned(), "why".to_owned())].into());
    assert_eq!(found.problem, None);
}

#[test]
fn pod_problems_come_from_scheduler_and_kubelet() {
    let waiting = |reason: &str| {
        json!({"status": {"containerStatuses": [
            {"name": "slurmd", "state": {"waiting": {"reason": reason, "message": "no such image"}}},
        ]}})
    };
    let found = worker(waiting("ImagePullBackOff"));
    assert_eq!(found.problem.unwrap(), "ImagePullBackOff in container slurmd: no such image");
    assert_eq!(found.slurmd, SlurmdState::Stopped);
    assert_eq!(worker(waiting("ContainerCreating")).problem, None, "it is just starting");
    let unscheduled =
        json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "taints"}]}});
    assert_eq!(worker(unscheduled).problem.unwrap(), "unschedulable: taints");
    assert_eq!(worker(json!({"status": {"phase": "Failed", "reason": "Evicted"}})).problem.unwrap(), "Evicted");
}

#[test]
fn a_cordon_is_the_users_unless_an_operator_wrote_it() {
    let cordoned = |value: &str, managers: &[&str]| {
        let fields = json!({"f:metadata": {"f:annotations": {"f:nodeset.slinky.slurm.net/pod-cordon": {}}}});
        let managed: Vec<_> = managers.iter().map(|manager| json!({"manager": manager, "fieldsV1": fields})).collect();
        worker(json!({"metadata": {
            "annotations": {"nodeset.slinky.slurm.net/pod-cordon": value}, "managedFields": managed,
        }}))
        .cordon
    };
    assert_eq!(cordoned("true", &["kubectl-annotate"]), Cordon::User);
    assert_eq!(cordoned("true", &[]), Cordon::User);
    assert_eq!(cordoned("true", &["manager"]), Cordon::Operator);
    assert_eq!(cordoned("true", &["manager", "kubectl-annotate"]), Cordon::User);
    assert_eq!(cordoned("true", &["slurm-operator/patch"]), Cordon::Node);
    assert_eq!(cordoned("true", &["slurm-operator/patch", "kubectl-annotate"]), Cordon::User);
    assert_eq!(cordoned("false", &["kubectl-annotate"]), Cordon::None);
}

#[test]
fn a_worker_of_the_go_operator_is_taken_over_once() {
    let of_former = |creator: &str, mark: Option<&str>| {
        let fields = json!({"f:spec": {"f:hostname": {}}});
        let annotations: serde_json::Map<_, _> = mark.into_iter().map(|key| (key.to_owned(), json!("true"))).collect();
        let managed = json!([
            {"manager": creator, "operation": "Update", "fieldsV1": fields},
            {"manager": "manager", "operation": "Update", "fieldsV1": {"f:metadata": {"f:annotations": {"f:a": {}}}}},
            {"manager": "kubelet", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
        ]);
        worker(json!({"metadata": {"annotations": annotations, "managedFields": managed}})).is_of_former
    };
    assert!(of_former("manager", None));
    assert!(!of_former("manager", Some("nodeset.slinky.slurm.net/taken-over")));
    assert!(!of_former("slurm-operator/create", None), "another program of this name has only annotated it");
}

#[test]
fn a_node_becomes_facts_and_heartbeats_are_not_changes() {
    let nodes = Nodes::new(VOCABULARIES);
    let node = |heartbeat: &str, unschedulable: bool| -> SlimNode {
        serde_json::from_value(json!({
            "metadata": {
                "name": "n1", "labels": {"zone": "a"},
                "annotations": {"topology.slinky.slurm.net/spec": "s1", "somebody/else": heartbeat},
            },
            "spec": {"unschedulable": unschedulable, "taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat},
                {"type": "DiskPressure", "status": "False"},
            ]},
        }))
        .unwrap()
    };
    let reported = RefCell::new(0);
    for (heartbeat, unschedulable) in
        [("2026-11-16T00:00:00Z", false), ("2026-11-16T00:00:10Z", false), ("2026-11-16T00:00:20Z", true)]
    {
        nodes.0.take(None, Event::Apply(node(heartbeat, unschedulable)), &|_: &SlimNode| *reported.borrow_mut() += 1);
    }
    assert_eq!(reported.into_inner(), 2, "the initial list and the cordon");
    let all = nodes.all();
    let found = &all["n1"];
    assert!(found.ready && found.unschedulable && found.taints.len() == 1);
    assert_eq!(found.annotations.len(), 1, "only those used for planning");
}

#[test]
fn the_newest_version_includes_deletes() {
    let workers = Workers::new(VOCABULARIES);
    let at = |version: &str| pod("a", "set", json!({"metadata": {"resourceVersion": version}}));
    assert_eq!(workers.newest("ns"), 0);
    take(&workers, None, vec![Event::Apply(at("8")), Event::Delete(at("12")), Event::Apply(at("9"))]);
    assert_eq!(workers.newest("ns"), 12);
    take(&workers, Some("ns"), vec![Event::Apply(at("10"))]);
    assert_eq!((workers.newest("ns"), workers.newest("other")), (10, 12), "each watch on its own");
}

#[test]
fn slurmd_does_not_run_for_longer_than_we_have_seen_it() {
    let workers = Workers::new(VOCABULARIES);
    let state = |state: Value| {
        let status = json!({"status": {"containerStatuses": [{"name": "slurmd", "state": state}]}});
        vec![Event::Apply(pod("a", "set", status))]
    };
    let running = || state(json!({"running": {"startedAt": "2020-01-01T00:00:00Z"}}));
    let since = || match workers.of("set")[0].slurmd {
        SlurmdState::Running { since } => since.unwrap(),
        other => panic!("{other:?}"),
    };
    take(&workers, None, running());
    assert_eq!(since().as_second(), 1_577_836_800, "it ran before we looked");
    take(&workers, None, state(json!({"waiting": {"reason": "CrashLoopBackOff"}})));
    let start = jiff::Timestamp::now();
    take(&workers, None, running());
    let seen = since();
    assert!(seen >= start, "the kubelet's clock is behind: {seen}");
    assert_eq!(take(&workers, None, running()), Vec::<String>::new(), "nothing has changed");
    assert_eq!(since(), seen);
}
