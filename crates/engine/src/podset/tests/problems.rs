//! What keeps workers from running jobs, and how the conditions report it.

use slurm_operator_api::common::conditions::{DEGRADED, READY};

use super::*;
use crate::conditions::ConditionStatus;

#[test]
fn a_claim_that_is_lost_with_its_pod_is_not_used_again() {
    let model = Model { claims: vec!["data".into()], ..model(1) };
    let mut facts = facts_of(Vec::new());
    let mut lost = claim(&["uid-of-a-pod-that-is-gone"]);
    lost.owners[0].kind = "Pod".into();
    facts.claims = [("data-gpu-0".to_owned(), lost)].into();
    let decision = decide(&model, &facts);
    assert_eq!(actions(&decision), nothing(), "the garbage collector is about to delete it");
    assert!(new_condition(&decision, DEGRADED).message.contains("data-gpu-0"));
    facts.claims.clear();
    assert_eq!(actions(&decide(&model, &facts)), ["create gpu-0"]);
    // The pod was made before the claim was gone, and waits for it.
    facts = facts_of(vec![(unborn(0), "", "")]);
    assert_eq!(actions(&decide(&model, &facts)), ["create claim data-gpu-0"]);
    edit_worker(&mut facts, "gpu-0", |worker| worker.node = Some("node0".into()));
    assert_eq!(actions(&decide(&model, &facts)), nothing(), "once it is scheduled, its claim cannot go");
}

#[test]
fn a_claim_of_an_earlier_set_of_the_same_name_is_not_used() {
    let mut facts = facts_of(Vec::new());
    let mut old = claim(&["uid-of-the-earlier-set"]);
    (old.owners[0].kind, old.owners[0].name) = ("NodeSet".into(), "gpu".into());
    facts.claims = [("data-gpu-0".to_owned(), old)].into();
    let kept = vec!["own data-gpu-0 set=false drop=uid-of-the-earlier-set".to_owned()];
    for (with_set, expected) in [(false, kept), (true, nothing())] {
        let retention = Retention { with_set, ..Retention::default() };
        let model = Model { claims: vec!["data".into()], retention, ..model(1) };
        let decision = decide(&model, &facts);
        assert_eq!(actions(&decision), expected, "the garbage collector is about to delete it");
        assert!(new_condition(&decision, DEGRADED).message.contains("data-gpu-0"));
        assert!(decision.next.is_some());
    }
}

#[test]
fn ready_means_that_workers_can_run_jobs() {
    for (text, reason, expected) in [
        ("IDLE", "", "2 of 2 workers can run jobs"),
        ("MIXED", "", "2 of 2 workers can run jobs"),
        ("IDLE+DRAIN", "bad disk", "1 of 2 workers can run jobs; drained: gpu-0"),
        ("IDLE+NOT_RESPONDING", "", "1 of 2 workers can run jobs"),
        ("IDLE+INVALID_REG", "", "1 of 2 workers can run jobs"),
    ] {
        let facts = facts_of(vec![(worker(0), text, reason), (worker(1), "IDLE", "")]);
        let decision = decide(&model(2), &facts);
        assert_eq!(new_condition(&decision, READY).message, expected, "{text}");
    }
}

#[test]
fn a_lost_node_does_not_make_a_set_with_one_worker_per_node_ready() {
    let per_node = Model { scaling: Scaling::PerNode, ..model(0) };
    let mut facts = facts_of(vec![(daemon("a"), "IDLE", ""), (daemon("b"), "IDLE+NOT_RESPONDING", "")]);
    edit_node(&mut facts, "b", |node| {
        (node.ready, node.taints) = (
            false,
            vec![Taint { key: "node.kubernetes.io/not-ready".into(), effect: "NoSchedule".into(), ..Taint::default() }],
        );
    });
    let decision = decide(&per_node, &facts);
    assert_eq!((decision.counts.desired, actions(&decision)), (2, nothing()));
    assert_eq!(new_condition(&decision, READY).message, "1 of 2 workers can run jobs");
}

#[test]
fn a_worker_that_never_registers_is_reported() {
    let silent = |seconds| Worker {
        conditions: BTreeMap::new(),
        slurmd: SlurmdState::Running { since: Some(ago(seconds)) },
        ..worker(0)
    };
    let facts = |seconds| facts_of(vec![(silent(seconds), "", ""), (worker(1), "IDLE", "")]);
    let decision = decide(&model(2), &facts(50));
    assert_eq!(new_condition(&decision, DEGRADED).status, ConditionStatus::False);
    assert_eq!(decision.next, Some(NOW + SignedDuration::from_secs(10)), "it is looked at again");
    let decision = decide(&model(2), &facts(61));
    assert_eq!(new_condition(&decision, DEGRADED).reason, "NotRegistered");
    assert!(new_condition(&decision, DEGRADED).message.contains("gpu-0"));
}

#[test]
fn a_worker_that_is_not_scheduled_yet_is_reported_after_a_while() {
    let facts = |seconds| {
        let problem = Some("unschedulable: waiting for first consumer".to_owned());
        facts_of(vec![(Worker { problem, created: Some(ago(seconds)), ..unborn(0) }, "", "")])
    };
    let decision = decide(&model(1), &facts(5));
    assert_eq!(new_condition(&decision, DEGRADED).status, ConditionStatus::False);
    assert_eq!(decision.next, Some(NOW + SignedDuration::from_secs(25)));
    let decision = decide(&model(1), &facts(31));
    assert!(new_condition(&decision, DEGRADED).message.contains("gpu-0: unschedulable"));
}

#[test]
fn unique_node_holds_across_the_sets_of_a_cluster() {
    let other = |name: &str, workers: Vec<Worker>, reserved: Option<(&str, u32)>| OtherSet {
        name: name.to_owned(),
        slurm_name: name.to_owned(),
        workers: workers.into_iter().map(Arc::new).collect(),
        reserved: reserved.map(|(prefix, count)| Reserved::Numbered { prefix: prefix.to_owned(), count }),
        is_creating: false,
    };
    let mut facts = facts_of(Vec::new());
    facts.others = vec![
        other("first", vec![worker(0)], None),
        other("older", Vec::new(), Some(("gpu-", 2))),
        other("gpu-2", Vec::new(), None),
    ];
    let decision = decide(&model(4), &facts);
    assert_eq!(actions(&decision), ["create gpu-3"]);
    let degraded = new_condition(&decision, DEGRADED);
    let expected = "the Slurm node names gpu-0 are those of the NodeSet first; the Slurm node names gpu-1 are those of the \
                    NodeSet older; the Slurm node names gpu-2 are those of the Slurm NodeSet gpu-2; every node of a Slurm \
                    cluster needs its own name: change spec.template.spec.hostname, or scale in";
    assert_eq!((degraded.reason, &*degraded.message), ("HostnameTaken", expected));
    assert!(decision.next.is_some(), "we are not triggered by the workers of others");
    // A worker that runs is never judged.
    let mut running = facts_of(idle(0..1));
    running.others = facts.others;
    assert_eq!(new_condition(&decide(&model(1), &running), DEGRADED).status, ConditionStatus::False);
}

#[test]
fn a_set_with_the_name_of_a_node_creates_no_worker() {
    let other = OtherSet {
        name: "first".into(),
        reserved: Some(Reserved::Numbered { prefix: "g".into(), count: 3 }),
        ..OtherSet::default()
    };
    let set = Model { slurm_name: "g2".into(), ..model(1) };
    let mut facts = facts_of(Vec::new());
    facts.others = vec![other.clone()];
    let decision = decide(&set, &facts);
    assert_eq!(actions(&decision), nothing());
    let degraded = new_condition(&decision, DEGRADED);
    assert_eq!(degraded.reason, "HostnameTaken");
    assert!(degraded.message.contains("g2 are those of the NodeSet first"), "{}", degraded.message);
    assert!(decision.next.is_some());
    // A record that is left over.
    facts.others.clear();
    assert_eq!(actions(&decide(&set, &facts)), ["create gpu-0"]);
    let left = Worker { hostname: Some("g2".into()), ..worker(9) };
    let mut facts = facts_of(vec![(left, "DOWN", "")]);
    facts.workers.clear();
    assert_eq!(actions(&decide(&set, &facts)), ["forget g2"], "its own record goes first");
    // Workers that run are replaced whatever others do.
    let mut running = facts_of(idle([0]));
    running.others = vec![other];
    assert_eq!(actions(&decide(&Model { slurm_name: "g2".into(), ..model(2) }, &running)), ["create gpu-1"]);
}

#[test]
fn the_record_of_a_worker_of_another_set_is_not_deleted() {
    let mut facts = facts_of(vec![(worker(7), "IDLE+DRAIN", "slurm-operator: NodeSet (ns/other) is scaling in")]);
    let theirs = std::mem::take(&mut facts.workers);
    assert_eq!(actions(&decide(&model(0), &facts)), ["forget gpu-7"], "its comment is ours");
    facts.others = vec![OtherSet { name: "other".into(), workers: theirs, ..OtherSet::default() }];
    let decision = decide(&model(0), &facts);
    assert_eq!(actions(&decision), nothing());
    assert!(decision.next.is_some(), "we are not triggered when that worker is gone");
    // Its pod is not in the store yet.
    facts.others = vec![OtherSet { name: "other".into(), is_creating: true, ..OtherSet::default() }];
    let decision = decide(&model(0), &facts);
    assert_eq!(actions(&decision), nothing());
    assert!(decision.next.is_some());
}

/// A set that was created before ours and runs on these Kubernetes nodes.
fn older_per_node(selector: &[(&str, &str)]) -> OtherSet {
    let selector = selector.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    OtherSet {
        name: "older".into(),
        slurm_name: "older".into(),
        reserved: Some(Reserved::PerNode(Placement { selector, ..Placement::default() })),
        ..OtherSet::default()
    }
}

#[test]
fn unique_node_holds_for_an_older_set_with_one_worker_per_node() {
    let mut facts = facts_of(Vec::new());
    facts.nodes = ["a", "b"].map(|name| (name.to_owned(), Arc::new(kube_node(name)))).into();
    edit_node(&mut facts, "a", |node| drop(node.labels.insert("pool".into(), "x".into())));
    facts.others = vec![older_per_node(&[("pool", "x")])];
    let per_node = Model { scaling: Scaling::PerNode, ..model(0) };
    let decision = decide(&per_node, &facts);
    assert_eq!(actions(&decision), ["create gpu-b"], "its workers may not be visible yet");
    let degraded = new_condition(&decision, DEGRADED);
    assert_eq!(degraded.reason, "HostnameTaken");
    assert!(degraded.message.starts_with("the Slurm node names a are those of the NodeSet older"), "{degraded:?}");
    assert!(degraded.message.ends_with("spec.template.spec.nodeSelector"), "{degraded:?}");
    // A numbered set whose worker would have the name of a Kubernetes node.
    facts.nodes.insert("gpu-0".into(), Arc::new(kube_node("gpu-0")));
    facts.others = vec![older_per_node(&[])];
    assert_eq!(actions(&decide(&model(2), &facts)), ["create gpu-1"]);
}

#[test]
fn unique_node_holds_on_the_host_network() {
    let naming = || Naming { host_network: true, ..Naming::default() };
    let numbered = |oversubscribes| Model { naming: naming(), oversubscribes, ..model(1) };
    let mut facts = facts_of(Vec::new());
    facts.nodes = ["a", "b"].map(|name| (name.to_owned(), Arc::new(kube_node(name)))).into();
    assert_eq!(actions(&decide(&numbered(true), &facts)), ["create gpu-0"]);
    facts.others = vec![OtherSet { workers: vec![Arc::new(daemon("a"))], reserved: None, ..older_per_node(&[]) }];
    assert_eq!(actions(&decide(&numbered(false), &facts)), ["create gpu-0"], "the scheduler keeps it off the node a");
    let decision = decide(&numbered(true), &facts);
    assert_eq!(actions(&decision), nothing());
    assert!(
        new_condition(&decision, DEGRADED).message.contains("the Slurm node names a are those of the NodeSet older")
    );
}

#[test]
fn the_comment_of_a_living_worker_of_another_set_is_left_alone() {
    let mut facts = facts_of(idle(0..1));
    let rival = Worker { name: "older-0".into(), hostname: Some("gpu-0".into()), ..worker(7) };
    let info = PodInfo {
        namespace: "slurm".into(),
        pod_name: "older-0".into(),
        node_set_name: "older".into(),
        node_set_uid: "older-uid".into(),
        ..PodInfo::default()
    };
    edit_snapshot(&mut facts, |snapshot| {
        Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-0").unwrap().comment = info.text();
    });
    assert_eq!(actions(&decide(&model(1), &facts)), ["describe gpu-0"], "nobody else is there");
    facts.others = vec![OtherSet { workers: vec![Arc::new(rival)], reserved: None, ..older_per_node(&[]) }];
    let decision = decide(&model(1), &facts);
    assert_eq!(actions(&decision), nothing());
    assert_eq!(new_condition(&decision, DEGRADED).reason, "HostnameTaken");
    assert!(decision.next.is_some());
}
