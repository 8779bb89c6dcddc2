//! Output: identities, metadata, Slurm nodes, reservations, timeouts, counts, conditions and events.

use slurm_operator_api::{
    common::conditions::{DEGRADED, PROGRESSING, READY, RESERVATION_CREATED},
    slinky::names::annotation,
};

use super::*;
use crate::conditions::ConditionStatus;

fn created(decision: &Decision) -> Vec<&Identity> {
    let new = decision
        .actions
        .iter()
        .filter_map(|action| if let WorkerAction::Create(new) = action { Some(&**new) } else { None });
    new.collect()
}

#[test]
fn numbered_workers_fill_the_gaps_at_once() {
    let naming = Naming { hostname_prefix: Some("big-".into()), host_network: false };
    let model = Model { naming, scaling: numbered(5, 3), ..model(0) };
    let named = |ordinal| Worker {
        name: format!("gpu-{ordinal}"),
        index: None,
        hostname: Some(format!("big-{ordinal}")),
        ..worker(ordinal)
    };
    let decision = decide(&model, &facts_of(vec![(named(1), "IDLE", ""), (named(3), "IDLE", "")]));
    let made: Vec<(&str, &str)> = created(&decision).iter().map(|new| (&*new.name, &*new.hostname)).collect();
    assert_eq!(made, [("gpu-000", "big-000"), ("gpu-002", "big-002"), ("gpu-004", "big-004")]);
    let labels = &created(&decision)[0].labels;
    let label = |key: &str| labels.iter().find(|(name, _)| name.ends_with(key)).map(|(_, value)| value.as_str());
    let found = ["pod-name", "pod-index", "pod-hostname", "scaling-mode"].map(label);
    assert_eq!(found, [Some("gpu-000"), Some("000"), Some("big-000"), Some("StatefulSet")]);
}

#[test]
fn pods_that_ended_are_replaced_but_not_in_a_hot_loop() {
    let ended = |phase, seconds| Worker {
        phase,
        created: Some(ago(seconds)),
        ready: None,
        slurmd: SlurmdState::Stopped,
        ..worker(1)
    };
    for phase in [Phase::Failed, Phase::Succeeded] {
        let old = facts_of(vec![(worker(0), "IDLE", ""), (ended(phase, 60), "MIXED", "")]);
        assert_eq!(actions(&decide(&model(2), &old)).last().unwrap(), "delete gpu-1");
        let young = facts_of(vec![(worker(0), "IDLE", ""), (ended(phase, 4), "", "")]);
        let decision = decide(&model(2), &young);
        assert_eq!((actions(&decision), decision.next), (nothing(), Some(NOW + SignedDuration::from_secs(6))));
    }
}

#[test]
fn one_worker_per_node_that_fits() {
    let per_node = Model { scaling: Scaling::PerNode, ..model(7) };
    let mut facts = facts_of(vec![(daemon("a"), "IDLE", ""), (daemon("b"), "IDLE", ""), (daemon("c"), "MIXED", "")]);
    assert_eq!(actions(&decide(&per_node, &facts)), nothing());
    facts.nodes.insert("d.example.com".into(), Arc::new(kube_node("d.example.com")));
    let decision = decide(&per_node, &facts);
    let new = created(&decision)[0];
    assert_eq!((&*new.name, &*new.hostname, new.node.as_deref()), ("gpu-d.example.com", "d", Some("d.example.com")));
    assert_eq!(decision.counts.desired, 4);
    facts.nodes.remove("d.example.com");
    edit_node(&mut facts, "c", |node| {
        node.taints = vec![Taint { key: "x".into(), effect: "NoExecute".into(), ..Taint::default() }];
    });
    let removing = "slurm-operator: NodeSet (slurm/gpu) is removing this worker";
    assert_eq!(
        actions(&decide(&per_node, &facts)),
        [format!("drain c: {removing}")],
        "it is drained before it is removed"
    );
    edit_node(&mut facts, "c", |node| node.taints.clear());
    facts.nodes.remove("c");
    assert_eq!(actions(&decide(&per_node, &facts)), [format!("drain c: {removing}")], "its slurmd still answers");
    edit_snapshot(&mut facts, |snapshot| {
        Arc::make_mut(&mut snapshot.nodes).get_mut("c").unwrap().states = states("DOWN+NOT_RESPONDING");
    });
    assert!(actions(&decide(&per_node, &facts)).contains(&"delete gpu-c".into()), "it does not");
    facts.nodes.clear();
    assert!(
        !actions(&decide(&per_node, &facts)).iter().any(|action| action.starts_with("delete")),
        "no nodes: the list has not been read yet"
    );
}

#[test]
fn of_two_on_a_node_the_older_one_stays() {
    let per_node = Model { scaling: Scaling::PerNode, ..model(0) };
    let younger = Worker { name: "gpu-x7k2p".into(), created: Some(ago(5)), ..daemon("a") };
    let facts = facts_of(vec![(daemon("a"), "", ""), (younger, "IDLE", "")]);
    let removing = "drain a: slurm-operator: NodeSet (slurm/gpu) is removing this worker";
    assert!(actions(&decide(&per_node, &facts)).contains(&removing.to_owned()));
    let model = Context::new(&per_node, &facts, NOW);
    let mut workers = worker_state::gather(&model);
    choose(&model, &mut workers, &mut DecisionBuilder::default());
    let drained = facts_of(vec![
        (daemon("a"), "IDLE+DRAIN", OURS),
        (Worker { name: "gpu-b".into(), ..daemon("a") }, "MIXED+DRAIN", OURS),
    ]);
    assert!(!actions(&decide(&per_node, &drained)).contains(&"undrain a".into()), "not while the other one has jobs");
    let fates: Vec<_> = workers.iter().map(|state| (&*state.worker.name, state.removal)).collect();
    assert_eq!(fates, [("gpu-a", None), ("gpu-x7k2p", Some(Cause::Duplicate))]);
}

#[test]
fn a_new_hostname_makes_a_new_worker() {
    let per_node = Model { scaling: Scaling::PerNode, ..model(0) };
    let mut facts = facts_of(vec![(daemon("a"), "IDLE+DRAIN", OURS)]);
    edit_node(&mut facts, "a", |node| drop(node.annotations.insert(annotation::HOSTNAME_OVERRIDE.into(), "z".into())));
    assert_eq!(actions(&decide(&per_node, &facts)), ["delete gpu-a"]);
}

#[test]
fn pod_names_fit_into_a_label() {
    let model = model(0);
    let long = "n".repeat(100);
    let name = identity::pod_name_on(&model, &long);
    assert_eq!(name.len(), 63);
    assert_ne!(name, identity::pod_name_on(&model, &"n".repeat(101)));
    assert_eq!(identity::pod_name_on(&model, "a.b"), "gpu-a.b");
}

#[test]
fn switching_the_mode_drains_the_workers_of_the_other() {
    let mut facts = facts_of(idle(0..2));
    let per_node = Model { scaling: Scaling::PerNode, ..model(2) };
    let removing = "slurm-operator: NodeSet (slurm/gpu) is removing this worker";
    let expected = [format!("drain gpu-0,gpu-1: {removing}"), "create gpu-node0".into(), "create gpu-node1".into()];
    assert_eq!(actions(&decide(&per_node, &facts)), expected);
    facts.workers = vec![Arc::new(daemon("node0"))];
    assert!(actions(&decide(&model(1), &facts)).contains(&"create gpu-0".into()));
}

#[test]
fn pins_follow_the_workers_and_bring_them_back() {
    let pinned = Model { pins_to_node: true, ..model(2) };
    let mut facts = facts_of(idle([0]));
    facts.recall.pinned = [(1, "node1".to_owned()), (2, "gone".to_owned())].into();
    facts.nodes.insert("node1".into(), Arc::new(KubeNode { unschedulable: true, ..kube_node("node1") }));
    let decision = decide(&pinned, &facts);
    assert_eq!(decision.pinned, [(0, "node0".to_owned()), (1, "node1".to_owned())].into());
    assert_eq!(created(&decision)[0].node.as_deref(), Some("node1"));
    assert_eq!(decide(&model(2), &facts).pinned, BTreeMap::new());
    edit_node(&mut facts, "node1", |node| {
        node.taints = vec![Taint { key: "x".into(), effect: "NoExecute".into(), ..Taint::default() }];
    });
    let decision = decide(&pinned, &facts);
    assert_eq!((decision.pinned.len(), created(&decision)[0].node.as_deref()), (1, None));
}

#[test]
fn a_pin_to_a_node_that_another_worker_has_is_void() {
    let pinned = Model { pins_to_node: true, ..model(2) };
    let mut facts = facts_of(idle([0]));
    facts.recall.pinned = [(0, "node0".to_owned()), (1, "node0".to_owned())].into();
    assert_eq!(created(&decide(&pinned, &facts))[0].node, None);
    let shared = Model { oversubscribes: true, ..pinned.clone() };
    assert_eq!(created(&decide(&shared, &facts))[0].node.as_deref(), Some("node0"), "the node accepts two workers");
    facts.workers.push(Arc::new(Worker { target: Some("node0".into()), ..unborn(1) }));
    assert_eq!(actions(&decide(&pinned, &facts)), ["delete gpu-1"], "it would wait forever");
    assert_eq!(actions(&decide(&shared, &facts)), Vec::<String>::new());
}

#[test]
fn workers_of_the_other_mode_that_do_not_show_yet_are_waited_for() {
    let mut facts = facts_of(idle([0]));
    facts.creating = ["gpu-1".to_owned()].into();
    assert_eq!(created(&decide(&model(3), &facts)).len(), 1);
    facts.creating = ["gpu-node1".to_owned()].into();
    assert_eq!(created(&decide(&model(3), &facts)).len(), 0, "it may be the Slurm node gpu-1");
    let per_node = Model { scaling: Scaling::PerNode, ..model(3) };
    facts.creating = ["gpu-1".to_owned()].into();
    assert_eq!(created(&decide(&per_node, &facts)).len(), 0);
}

#[test]
fn pods_show_the_state_of_slurm() {
    let mut pods = vec![worker(0), worker(1), worker(2)];
    pods[0].conditions = conditions_of("IDLE", "old");
    pods[1].protected = true;
    pods[2].conditions = conditions_of("DOWN+DRAIN+NOT_RESPONDING", "x");
    let mut facts = facts_of(Vec::new());
    let texts = ["MIXED+COMPLETING", "IDLE", "IDLE"];
    edit_snapshot(&mut facts, |snapshot| {
        snapshot.nodes =
            Arc::new(pods.iter().zip(texts).map(|(pod, text)| (pod.name.clone(), record_of(pod, text, ""))).collect());
    });
    facts.workers = pods.into_iter().map(Arc::new).collect();
    let expected = [
        "patch gpu-0 pod-protect=true safe-to-evict=false do-not-disrupt=true",
        "conditions gpu-0 +Completing +Mixed -Idle",
        "patch gpu-1 pod-protect=-",
        "conditions gpu-2 +Idle -Down -Drain -NotResponding",
    ];
    assert_eq!(actions(&decide(&model(3), &facts)), expected);
    let unprotected = Model { protects_workload: false, ..model(3) };
    assert!(!actions(&decide(&unprotected, &facts)).iter().any(|action| action.contains("pod-protect=true")));
    edit_worker(&mut facts, "gpu-0", |worker| worker.pending = true);
    assert_eq!(actions(&decide(&model(3), &facts)), expected[2..], "our last write is not visible yet");
}

#[test]
fn pods_to_be_deleted_are_not_patched() {
    let mut facts = facts_of(vec![(worker(0), "IDLE+DRAIN", "slurm-operator: NodeSet gpu scales in")]);
    edit_worker(&mut facts, "gpu-0", |worker| worker.conditions = conditions_of("IDLE", ""));
    assert_eq!(actions(&decide(&model(0), &facts)), ["delete gpu-0"]);
    let slow = Model { burst: 0, ..model(0) };
    assert_eq!(actions(&decide(&slow, &facts)), nothing(), "nor is a pod that waits for the burst limit");
}

#[test]
fn the_slurm_node_of_a_predecessor_is_not_shown_on_a_new_pod() {
    let facts = facts_of(vec![(unborn(0), "MIXED", "")]);
    assert_eq!(actions(&decide(&model(1), &facts)), nothing());
}

#[test]
fn slurm_nodes_get_the_pod_info_as_comment() {
    let mut facts = facts_of(idle([0]));
    let comment = |facts: &mut Facts, text: &str| {
        edit_snapshot(facts, |snapshot| {
            Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-0").unwrap().comment = text.into();
        });
    };
    let said = r#"{"namespace":"slurm","podName":"gpu-0","node":"node0","nodeSetName":"gpu","nodeSetUID":"set-uid"}"#;
    for (found, written) in [
        ("", true),
        (said, false),
        (
            r#"{"nodeSetUID": "set-uid", "namespace":"slurm","podName":"gpu-0","node":"node0","nodeSetName":"gpu"}"#,
            false,
        ),
        (&said.replace("node0", "node9"), true),
        ("ask Bob before use", false),
        (r#"{"owner": "Bob"}"#, false),
    ] {
        comment(&mut facts, found);
        let decision = decide(&model(1), &facts);
        let reported: Vec<&Description> = decision
            .actions
            .iter()
            .filter_map(|action| if let WorkerAction::Describe(what) = action { Some(&**what) } else { None })
            .collect();
        let expected = Description { node: "gpu-0".into(), comment: Some(said.into()), ..Description::default() };
        assert_eq!(reported, if written { vec![&expected] } else { vec![] }, "{found}");
    }
    comment(&mut facts, "");
    edit_worker(&mut facts, "gpu-0", |worker| worker.ready = None);
    assert_eq!(actions(&decide(&model(1), &facts)), nothing(), "only of a healthy worker");
}

#[test]
fn features_of_the_kubernetes_node_reach_slurm() {
    type Row = (Option<&'static str>, &'static [&'static str], Option<&'static [&'static str]>);
    let table: [Row; 6] = [
        (None, &["gpu"], None),
        (Some("b, a,,a"), &["gpu"], Some(&["gpu", "k8s/a", "k8s/b"])),
        (Some("a,b"), &["k8s/b", "gpu", "k8s/a"], None),
        (Some("x=1"), &["gpu", "k8s/a"], Some(&["gpu", "k8s/x=1"])),
        (None, &["gpu", "k8s/a"], Some(&["gpu"])),
        (Some(""), &["gpu"], None),
    ];
    for (annotation, found, expected) in table {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let mut facts = facts_of(idle([0]));
        edit_node(&mut facts, "node0", |node| {
            node.annotations.extend(annotation.map(|text| (annotation::FEATURES.to_owned(), text.to_owned())));
        });
        edit_snapshot(&mut facts, |snapshot| {
            let node = Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-0").unwrap();
            (node.features, node.active_features) = (owned(found), owned(found));
        });
        let decision = decide(&model(1), &facts);
        let reported = decision
            .actions
            .first()
            .map(|action| if let WorkerAction::Describe(what) = action { what.features.clone() } else { None });
        assert_eq!(reported.flatten().map(|(features, _)| features), expected.map(owned), "{annotation:?} {found:?}");
    }
}

#[test]
fn the_topology_of_the_kubernetes_node_is_copied_to_pod_and_slurm() {
    let table = [
        // on the Kubernetes node, on the pod, in Slurm; what happens
        (Some("default:r1"), None, "", vec!["patch gpu-0 spec=default:r1", "describe gpu-0"]),
        (Some("default:r1"), Some("default:r1"), "default:r1", vec![]),
        (Some("default:r1"), Some("default:r1"), "default:root:r1", vec![]),
        (Some("default:r2"), Some("default:r1"), "default:r1", vec!["patch gpu-0 spec=default:r2", "describe gpu-0"]),
        (None, Some("default:r1"), "default:r1", vec!["patch gpu-0 spec=-", "describe gpu-0"]),
        (None, None, "default:set-by-an-admin", vec![]),
        (None, Some(""), "", vec![]),
    ];
    for (on_node, on_pod, in_slurm, expected) in table {
        let mut facts = facts_of(idle([0]));
        edit_node(&mut facts, "node0", |node| {
            node.annotations.extend(on_node.map(|text: &str| (annotation::TOPOLOGY.to_owned(), text.to_owned())));
        });
        edit_worker(&mut facts, "gpu-0", |worker| worker.topology = on_pod.map(str::to_owned));
        edit_snapshot(&mut facts, |snapshot| {
            Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-0").unwrap().topology = in_slurm.into();
        });
        assert_eq!(actions(&decide(&model(1), &facts)), expected, "{on_node:?} {on_pod:?} {in_slurm}");
        edit_snapshot(&mut facts, |snapshot| snapshot.version = Some(SlurmVersion::new(24, 11)));
        let old = decide(&model(1), &facts);
        assert!(!actions(&old).contains(&"describe gpu-0".into()), "24.11 does not support the topology of nodes");
        let is_reported = old.conditions.iter().any(|new_condition| new_condition.reason == "SlurmTooOld");
        assert_eq!(is_reported, on_node.is_some_and(|text| !text.is_empty()), "reported if a node has the annotation");
    }
}

#[test]
fn slurm_nodes_of_removed_workers_are_deleted() {
    let down = "slurm-operator: Pod is terminating";
    let info = |uid: &str, set: &str| {
        let text = record_of(&worker(5), "DOWN", down).comment;
        text.replace("set-uid", uid).replace("\"gpu\"", &format!("\"{set}\""))
    };
    let table: Vec<(&str, &str, &str, String, bool)> = vec![
        ("gpu-5", "DOWN", down, info("set-uid", "gpu"), true),
        ("gpu-5", "DOWN+DRAIN", down, info("set-uid", "gpu"), true),
        ("gpu-5", "DOWN+NOT_RESPONDING", "Not responding", info("set-uid", "gpu"), true),
        ("gpu-5", "IDLE+DRAIN", OURS, info("set-uid", "gpu"), true),
        ("gpu-5", "DOWN", down, info("an-earlier-set", "gpu"), true),
        ("gpu-5", "DOWN", down, String::new(), true),
        // not provably ours
        ("gpu-5", "DOWN+NOT_RESPONDING", "Not responding", info("another-cluster", "gpu"), false),
        ("gpu-5", "DOWN", down, info("set-uid", "cpu"), false),
        ("gpu-5", "DOWN", down, "a note by Bob on the gpu".into(), false),
        ("gpu-5", "DOWN+NOT_RESPONDING", "Not responding", String::new(), false),
        ("cpu-5", "DOWN", down, String::new(), false),
        ("gpu-x-5", "DOWN", down, String::new(), false),
        // in use
        ("gpu-5", "DOWN+COMPLETING", down, info("set-uid", "gpu"), false),
        ("gpu-5", "IDLE", "", info("set-uid", "gpu"), false),
        ("gpu-5", "MIXED+DRAIN", OURS, info("set-uid", "gpu"), false),
        ("gpu-0", "DOWN", down, info("set-uid", "gpu"), false),
        // an admin's
        ("gpu-5", "IDLE+DRAIN", "bad disk", info("set-uid", "gpu"), false),
    ];
    for (name, text, reason, comment, expected) in table {
        let mut facts = facts_of(idle([0]));
        edit_snapshot(&mut facts, |snapshot| {
            let features = vec!["gpu".to_owned()];
            let node = SlurmNode { comment: comment.clone(), features, ..record(text, reason) };
            Arc::make_mut(&mut snapshot.nodes).insert(name.into(), node);
        });
        let about = |facts: &Facts| {
            actions(&decide(&model(1), facts)).into_iter().filter(|action| action.starts_with("forget")).count()
        };
        assert_eq!(about(&facts), usize::from(expected), "{name} {text} {reason} {comment}");
        edit_snapshot(&mut facts, |snapshot| drop(snapshot.pending.insert(name.to_owned(), Written::Other)));
        assert_eq!(about(&facts), 0, "not again before a later list");
        edit_snapshot(&mut facts, |snapshot| snapshot.pending.clear());
        facts.creating.insert("gpu-7".into());
        assert_eq!(about(&facts), 0, "not while a pod is being created");
    }
}

#[test]
fn slurm_nodes_are_deleted_before_their_worker_is_recreated() {
    let gone = worker(1);
    let mut facts = facts_of(idle([0]));
    let put = |facts: &mut Facts, node: SlurmNode| {
        edit_snapshot(facts, |snapshot| drop(Arc::make_mut(&mut snapshot.nodes).insert("gpu-1".into(), node)));
    };
    put(&mut facts, record_of(&gone, "DOWN+DRAIN", "slurm-operator: Pod is terminating"));
    assert_eq!(actions(&decide(&model(2), &facts)), ["create gpu-1 anew"]);
    let reservation = "maint".to_owned();
    put(&mut facts, SlurmNode { reservation, ..record_of(&gone, "DOWN", "slurm-operator: Pod is terminating") });
    assert_eq!(actions(&decide(&model(2), &facts)), ["create gpu-1"], "Slurm would refuse: it is resumed later");
}

#[test]
fn a_pruned_node_is_deleted_despite_a_drain_of_an_admin() {
    let per_node = Model { scaling: Scaling::PerNode, ..model(0) };
    let mut facts = facts_of(vec![(daemon("a"), "IDLE", "")]);
    let ghost = record_of(&daemon("b"), "DOWN+DRAIN+NOT_RESPONDING", "bad disk");
    edit_snapshot(&mut facts, |snapshot| drop(Arc::make_mut(&mut snapshot.nodes).insert("b".into(), ghost)));
    assert_eq!(actions(&decide(&per_node, &facts)), nothing());
    let prunes = Model { prunes_records: true, ..per_node };
    assert_eq!(actions(&decide(&prunes, &facts)), ["forget b"]);
}

#[test]
fn workers_on_the_host_network_are_named_after_their_node() {
    let naming = Naming { host_network: true, hostname_prefix: None };
    let model = Model { naming, ..model(2) };
    let host = |ordinal| Worker { host_network: true, ..worker(ordinal) };
    let mut facts = facts_of(vec![(host(0), "IDLE", "")]);
    edit_snapshot(&mut facts, |snapshot| {
        let ghost = record_of(&host(3), "DOWN", "slurm-operator: Pod is terminating");
        assert!(snapshot.nodes.contains_key("node0"));
        Arc::make_mut(&mut snapshot.nodes).insert("node3".into(), ghost);
    });
    assert_eq!(actions(&decide(&model, &facts)), ["create gpu-1"], "it may get that node: no Slurm node is deleted");
    facts.workers.push(Arc::new(Worker { host_network: true, ..unborn(1) }));
    assert_eq!(actions(&decide(&model, &facts)), nothing());
    let one = Model { scaling: numbered(1, 0), ..model };
    facts.workers.pop();
    assert_eq!(actions(&decide(&one, &facts)), ["forget node3"]);
}

#[test]
fn jobs_after_the_drain_timeout() {
    let job = |id, is_ending| Job { id, ends: None, is_ending };
    let timed = |on_timeout| Model {
        drain: DrainPolicy { timeout: Some(SignedDuration::from_mins(5)), on_timeout, on_delete: false },
        ..model(1)
    };
    let mut facts = facts_of(vec![(worker(0), "IDLE", ""), (worker(1), "MIXED+DRAIN", OURS)]);
    let jobs = || {
        HashMap::from([
            ("gpu-1".to_owned(), vec![job(8, false), job(9, true), job(7, false)]),
            ("gpu-0".to_owned(), vec![job(1, false)]),
        ])
    };
    edit_snapshot(&mut facts, |snapshot| snapshot.jobs = jobs_of(jobs()));
    let ending = |decision: &Decision| -> Vec<String> {
        actions(decision)
            .into_iter()
            .filter(|action| action.starts_with("kill") || action.starts_with("requeue"))
            .collect()
    };
    assert_eq!(ending(&decide(&timed(OnTimeout::Kill), &facts)), ["kill 7 on gpu-1", "kill 8 on gpu-1"]);
    assert_eq!(ending(&decide(&timed(OnTimeout::Requeue), &facts)), ["requeue 7 on gpu-1", "requeue 8 on gpu-1"]);
    let decision = decide(&timed(OnTimeout::Wait), &facts);
    assert_eq!(ending(&decision), nothing());
    assert_eq!(new_condition(&decision, DEGRADED).reason, "DrainTimeout");
    assert!(new_condition(&decision, PROGRESSING).message.contains("no time limit"));
    edit_snapshot(&mut facts, |snapshot| snapshot.version = Some(SlurmVersion::new(24, 11)));
    let decision = decide(&timed(OnTimeout::Requeue), &facts);
    assert_eq!((ending(&decision), new_condition(&decision, DEGRADED).reason), (nothing(), "SlurmTooOld"));
    edit_snapshot(&mut facts, |snapshot| {
        Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-1").unwrap().reason_since = Some(ago(299));
    });
    let decision = decide(&timed(OnTimeout::Kill), &facts);
    assert_eq!((ending(&decision), decision.next), (nothing(), Some(NOW + SignedDuration::from_secs(1))));
    for (ahead, end) in [(Some(60), 1), (Some(-600), 1), (None, 5)] {
        // The clocks of slurmctld and the operator differ: the drain began 299 s ago by slurmctld's clock.
        let ahead = ahead.map(SignedDuration::from_secs);
        edit_snapshot(&mut facts, |snapshot| {
            snapshot.clock_ahead = ahead;
            let since = Some(ago(299 - ahead.unwrap_or_default().as_secs()));
            Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-1").unwrap().reason_since = since;
        });
        let decision = decide(&timed(OnTimeout::Kill), &facts);
        assert_eq!(
            (ending(&decision), decision.next),
            (nothing(), Some(NOW + SignedDuration::from_secs(end))),
            "{ahead:?}"
        );
    }
    edit_snapshot(&mut facts, |snapshot| {
        let node = Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-1").unwrap();
        (node.reason, node.reason_since) = ("bad disk".into(), Some(ago(9999)));
        snapshot.clock_ahead = Some(SignedDuration::ZERO);
    });
    assert_eq!(ending(&decide(&timed(OnTimeout::Kill), &facts)), nothing(), "an admin's drain has no timeout");
}

#[test]
fn condition_messages() {
    let mut workers = idle(0..9);
    workers.extend((9..12).map(|ordinal| (worker(ordinal), "ALLOCATED+DRAIN", OURS)));
    let mut facts = facts_of(workers);
    edit_snapshot(&mut facts, |snapshot| {
        let ends = |minutes| Some(NOW + SignedDuration::from_mins(minutes));
        let job = |ordinal: u32, minutes| {
            (format!("gpu-{ordinal}"), vec![Job { id: ordinal, ends: ends(minutes), is_ending: false }])
        };
        snapshot.jobs = jobs_of([job(9, 10), job(10, 125), job(11, 60)]);
    });
    let decision = decide(&model(9), &facts);
    let progressing = new_condition(&decision, PROGRESSING);
    let expected = "waiting for 3 of 12 workers to drain: gpu-[9-11]; gpu-10: blocked by job 10 until 10:05 UTC; 3 pods being removed";
    assert_eq!(
        (progressing.status, progressing.reason, &*progressing.message),
        (ConditionStatus::True, "Draining", expected)
    );
    assert_eq!(new_condition(&decision, READY).message, "9 of 9 workers can run jobs");
    assert!(decision.needs_jobs);
}

#[test]
fn problems_say_what_to_do() {
    let problem = Some("ImagePullBackOff: no such image".to_owned());
    let facts = facts_of(vec![
        (worker(0), "IDLE", ""),
        (Worker { problem, ..unborn(1) }, "", ""),
        (worker(2), "DOWN", "bad disk"),
    ]);
    let decision = decide(&model(3), &facts);
    let degraded = new_condition(&decision, DEGRADED);
    assert_eq!(degraded.reason, "PodsNotReady");
    assert!(degraded.message.contains("gpu-1: ImagePullBackOff: no such image"), "{degraded:?}");
    assert!(degraded.message.contains("gpu-2 (bad disk)"), "{degraded:?}");
    assert_eq!(new_condition(&decision, READY).message, "1 of 3 workers can run jobs");
    let calm = decide(&model(1), &facts_of(idle([0])));
    let statuses = [READY, PROGRESSING, DEGRADED].map(|about| new_condition(&calm, about).status);
    assert_eq!(statuses, [ConditionStatus::True, ConditionStatus::False, ConditionStatus::False]);
}

#[test]
fn replica_counts() {
    let old = |ordinal| Worker { revision: Some("old".into()), ..worker(ordinal) };
    let min_ready = Model { min_ready: SignedDuration::from_secs(30), update: Update::OnDelete, ..model(6) };
    let workers = vec![
        (old(0), "IDLE+DRAIN", "bad disk"),
        (old(1), "MIXED", ""),
        (worker(2), "ALLOCATED", ""),
        (Worker { ready: Some(ago(10)), ..worker(3) }, "DOWN", "bad disk"),
        (unborn(4), "", ""),
        (Worker { terminating: true, ..worker(5) }, "IDLE", ""),
    ];
    let mut facts = facts_of(workers);
    facts.recall.current = Some("old".into());
    let decision = decide(&min_ready, &facts);
    let slurm = SlurmCounts { registered: 5, idle: 2, allocated: 2, down: 1, drain: 1 };
    let expected =
        Counts { desired: 6, replicas: 6, updated: 3, current: 2, ready: 4, available: 3, unavailable: 3, slurm };
    assert_eq!(decision.counts, expected);
    assert_eq!((decision.current.as_deref(), decision.next), (Some("old"), Some(NOW + SignedDuration::from_secs(20))));
    let done = decide(&model(1), &facts_of(idle([0])));
    assert_eq!(done.current.as_deref(), Some("new"));
}

#[test]
fn scheduled_updates_happen_in_their_reservation() {
    let schedule = |start: i64, flags: &[&str]| Model {
        update: Update::Scheduled(Schedule {
            start: ago(-start),
            minutes: 60,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        }),
        ..model(2)
    };
    let name = "SlurmOperatorMaint-gpu";
    let hold = |nodes: &str, start: i64, flags: &[&str]| Reservation {
        nodes: nodes.into(),
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        start: Some(ago(-start)),
        end: Some(ago(-start - 3600)),
    };
    let ours = &["MAINT", "IGNORE_JOBS", "SPEC_NODES"][..];
    let daily = &["MAINT", "IGNORE_JOBS", "DAILY"][..];
    let day = 86_400;
    let new = vec!["reserve gpu-0,gpu-1 MAINT,IGNORE_JOBS".to_owned()];
    let table: Vec<(Model, Option<Reservation>, Vec<String>)> = vec![
        (schedule(600, &[]), None, new.clone()),
        (schedule(-600, &[]), None, nothing()),
        (schedule(-600, &["FORCE_START"]), None, vec!["reserve gpu-0,gpu-1 MAINT,IGNORE_JOBS,FORCE_START".into()]),
        (schedule(-3600, &["FORCE_START"]), None, nothing()),
        (schedule(-600, &["DAILY"]), None, vec!["reserve gpu-0,gpu-1 MAINT,IGNORE_JOBS,DAILY".into()]),
        (schedule(600, &[]), Some(hold("gpu-[0-1]", 600, ours)), nothing()),
        (schedule(600, &[]), Some(hold("gpu-[0-2]", 600, ours)), new.clone()),
        (schedule(600, &[]), Some(hold("gpu-[0-1]", 900, ours)), new.clone()),
        (
            schedule(600, &["FLEX"]),
            Some(hold("gpu-[0-1]", 600, ours)),
            vec!["reserve gpu-0,gpu-1 MAINT,IGNORE_JOBS,FLEX".into()],
        ),
        (schedule(-600, &[]), Some(hold("gpu-[0-1]", -600, &[])), nothing()),
        (schedule(-600, &[]), Some(hold("gpu-0", -600, &[])), vec!["reserve gpu-0,gpu-1 ".into()]),
        (schedule(-600, &["DAILY"]), Some(hold("gpu-[0-1]", day - 600, daily)), nothing()),
        (
            schedule(-600, &["DAILY"]),
            Some(hold("gpu-[0-1]", day - 300, daily)),
            vec!["reserve gpu-0,gpu-1 MAINT,IGNORE_JOBS,DAILY".into()],
        ),
        (model(2), Some(hold("gpu-[0-1]", 600, ours)), vec![format!("unreserve {name}")]),
        (
            Model { life: Life::Deleted, ..schedule(600, &[]) },
            Some(hold("gpu-[0-1]", 600, ours)),
            vec![format!("unreserve {name}")],
        ),
    ];
    // NOW is a Friday.
    for (flag, days) in [("WEEKDAY", 3), ("WEEKEND", 1), ("DAILY", 1)] {
        let decision = decide(&schedule(-600, &[flag]), &facts_of(idle(0..2)));
        let start = decision.actions.iter().find_map(|action| match action {
            WorkerAction::Reserve(booking) => booking.time.map(|(start, _)| start),
            _ => None,
        });
        assert_eq!(start, Some(ago(600) + SignedDuration::from_hours(24 * days)), "{flag}");
    }
    for (model, found, expected) in table {
        let mut facts = facts_of(idle(0..2));
        edit_snapshot(&mut facts, |snapshot| {
            snapshot.reservations =
                Some(Arc::new(found.clone().map(|found| (name.to_owned(), found)).into_iter().collect()));
        });
        let decision = decide(&model, &facts);
        assert_eq!(actions(&decision), expected, "{:?} {found:?}", model.update);
        let needed = found.is_some() || !expected.is_empty();
        assert_eq!(decision.finalizers.reservation, Some(needed));
        facts.slurm = SlurmObservation::NoClient { why: String::new() };
        assert_eq!(decide(&model, &facts).finalizers.reservation, None);
    }
    let old = |ordinal| Worker { revision: Some("old".into()), ..worker(ordinal) };
    let mut facts =
        facts_of(vec![(old(0), "IDLE+MAINTENANCE", ""), (old(1), "IDLE+MAINTENANCE", ""), (old(2), "IDLE", "")]);
    edit_snapshot(&mut facts, |snapshot| {
        Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-0").unwrap().reservation = name.into();
        Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-1").unwrap().reservation = "of-somebody-else".into();
        snapshot.reservations = Some(Arc::new([(name.to_owned(), hold("gpu-[0-2]", -600, ours))].into()));
    });
    let three = Model { scaling: numbered(3, 0), ..schedule(-600, &[]) };
    let decision = decide(&three, &facts);
    assert_eq!(actions(&decision), [format!("drain gpu-0: {UPDATE}")]);
    assert_eq!(new_condition(&decision, RESERVATION_CREATED).status, ConditionStatus::True);
    edit_snapshot(&mut facts, |snapshot| snapshot.version = Some(SlurmVersion::new(24, 11)));
    assert_eq!(new_condition(&decide(&three, &facts), DEGRADED).reason, "SlurmTooOld");
}

#[test]
fn workers_that_are_replaced_or_just_written_to_stay_in_their_reservation() {
    let update = Update::Scheduled(Schedule { start: ago(600), minutes: 60, flags: Vec::new() });
    let model = Model { update, ..model(2) };
    let begun =
        Reservation { nodes: "gpu-[0-1]".into(), flags: Vec::new(), start: Some(ago(600)), end: Some(ago(-3000)) };
    for away in ["written to", "terminating", "absent", "no record"] {
        let mut facts = facts_of(idle(0..2));
        match away {
            "terminating" => Arc::make_mut(&mut facts.workers[1]).terminating = true,
            "absent" | "no record" => drop(facts.workers.remove(1)),
            _ => {}
        }
        edit_snapshot(&mut facts, |snapshot| {
            snapshot.reservations = Some(Arc::new([("SlurmOperatorMaint-gpu".to_owned(), begun.clone())].into()));
            match away {
                "written to" => drop(snapshot.pending.insert("gpu-1".into(), Written::Other)),
                "no record" => drop(Arc::make_mut(&mut snapshot.nodes).remove("gpu-1")),
                _ => {}
            }
        });
        let decision = decide(&model, &facts);
        let reserves = actions(&decision).into_iter().find(|action| action.starts_with("reserve"));
        let expected = (away == "no record").then(|| "reserve gpu-0 ".to_owned());
        assert_eq!(reserves, expected, "{away}");
    }
}

#[test]
fn worker_metrics() {
    let scaling_in = "slurm-operator: NodeSet (slurm/gpu) is scaling in";
    let mut facts = facts_of(vec![
        (worker(0), "IDLE", ""),
        (worker(1), "MIXED+DRAIN", scaling_in),
        (worker(2), "IDLE+DRAIN", scaling_in),
        (worker(3), "IDLE+DRAIN", "bad disk"),
    ]);
    edit_worker(&mut facts, "gpu-0", |worker| {
        worker.conditions.clear();
        worker.ready = Some(ago(3));
    });
    let worker_metrics = decide(&model(2), &facts).worker_metrics;
    assert_eq!(worker_metrics.draining_since, Some(ago(600)), "of the busy worker");
    assert_eq!(worker_metrics.drained, [("uid-2".to_owned(), SignedDuration::from_secs(600))]);
    assert_eq!(worker_metrics.registered, [("uid-0".to_owned(), SignedDuration::from_secs(3))]);
    edit_worker(&mut facts, "gpu-0", |worker| worker.ready = None);
    let early = decide(&model(2), &facts).worker_metrics.registered;
    assert_eq!(early, [("uid-0".to_owned(), SignedDuration::ZERO)], "registered before it was ready");
    let of = |state| worker_metrics.workers.iter().find(|(found, _)| *found == state).map(|(_, number)| *number);
    assert_eq!([of("desired"), of("there"), of("drain"), of("allocated")], [Some(2), Some(4), Some(3), Some(1)]);
    facts.slurm = SlurmObservation::NoClient { why: "no RestApi".into() };
    let worker_metrics = decide(&model(2), &facts).worker_metrics;
    assert!(worker_metrics.workers.iter().all(|(state, _)| *state != "idle"), "outdated Slurm counts are not exported");
    assert!(
        worker_metrics.drained.is_empty()
            && worker_metrics.registered.is_empty()
            && worker_metrics.draining_since.is_none()
    );
}
