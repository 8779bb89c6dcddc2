//! One or more tests for each invariant, with its name.

use slurm_operator_api::common::conditions::{DEGRADED, PROGRESSING, READY};

use super::*;
use crate::{conditions::ConditionStatus, daemons::progress::Problem};

fn blind(facts: &mut Facts) {
    facts.slurm = SlurmObservation::Blind { since: ago(60), why: "connection refused".into() };
}

#[test]
fn no_job_lost_state_with_a_pending_write_is_not_trusted() {
    let mut facts = facts_of(vec![(worker(0), "IDLE", ""), (worker(1), "IDLE+DRAIN", OURS)]);
    assert_eq!(actions(&decide(&model(1), &facts)), ["delete gpu-1"]);
    edit_snapshot(&mut facts, |snapshot| drop(snapshot.pending.insert("gpu-1".into(), Written::Other)));
    assert_eq!(actions(&decide(&model(1), &facts)), nothing());
    edit_snapshot(&mut facts, |snapshot| snapshot.pending.clear());
    edit_worker(&mut facts, "gpu-1", |worker| worker.pending = true);
    assert_eq!(
        actions(&decide(&model(1), &facts)),
        nothing(),
        "nor is a pod deleted at a resourceVersion that we have not seen"
    );
}

#[test]
fn no_job_lost_deletes_carry_what_was_seen() {
    let facts = facts_of(vec![(worker(0), "IDLE", ""), (worker(1), "IDLE+DRAIN", OURS)]);
    let [WorkerAction::Delete(removal)] = &decide(&model(1), &facts).actions[..] else { panic!() };
    assert_eq!((&*removal.uid, &*removal.resource_version, removal.why), ("uid-1", "7", Cause::ScaleIn));
}

#[test]
fn blind_means_wait() {
    let mut workers = idle(0..4);
    workers.push((worker(4), "IDLE+DRAIN", OURS));
    workers.push((Worker { slurmd: SlurmdState::Stopped, ready: None, ..worker(5) }, "MIXED", ""));
    let mut facts = facts_of(workers);
    edit_worker(&mut facts, "gpu-5", |worker| worker.conditions = conditions_of("MIXED", ""));
    blind(&mut facts);
    for model in [
        model(0),
        model(6),
        Model { revision: "newer".into(), ..model(6) },
        Model { scaling: Scaling::PerNode, ..model(0) },
    ] {
        let decision = decide(&model, &facts);
        let harmless = |action: &String| action.starts_with("create");
        assert!(actions(&decision).iter().all(harmless), "{:?}", actions(&decision));
    }
    let decision = decide(&model(4), &facts);
    let progressing = new_condition(&decision, PROGRESSING);
    assert!(progressing.message.contains("connection refused"), "{progressing:?}");
}

#[test]
fn blind_means_wait_not_for_kubernetes() {
    let mut facts = facts_of(idle(0..2));
    blind(&mut facts);
    let decision = decide(&model(4), &facts);
    assert_eq!(actions(&decision), ["create gpu-2", "create gpu-3"]);
    assert_eq!(decision.counts.ready, 2);
}

#[test]
fn blind_means_wait_with_protection_conditions_and_numbers() {
    let mut facts = facts_of(vec![(worker(0), "MIXED", "")]);
    facts.recall.slurm = SlurmCounts { registered: 1, allocated: 1, ..SlurmCounts::default() };
    blind(&mut facts);
    let decision = decide(&model(1), &facts);
    assert_eq!(actions(&decision), nothing());
    assert_eq!(decision.counts.slurm, facts.recall.slurm);
    assert_eq!(new_condition(&decision, READY).status, ConditionStatus::Unknown);
}

#[test]
fn blind_means_wait_when_slurmctld_has_lost_its_state() {
    let old = |ordinal| Worker { revision: Some("old".into()), ..worker(ordinal) };
    let mut facts = facts_of((0..4).map(|ordinal| (old(ordinal), "IDLE", "")).collect());
    facts.recall.slurm.registered = 4;
    edit_snapshot(&mut facts, |snapshot| Arc::make_mut(&mut snapshot.nodes).clear());
    let asked: Vec<String> = (0..4).map(|ordinal| format!("register gpu-{ordinal}")).collect();
    assert_eq!(actions(&decide(&model(2), &facts)), asked, "an empty list: nothing else");
    edit_snapshot(&mut facts, |snapshot| {
        drop(Arc::make_mut(&mut snapshot.nodes).insert("other".into(), record("IDLE", "")));
    });
    let decision = decide(&model(2), &facts);
    let deletes = actions(&decision).into_iter().filter(|action| action.starts_with("delete")).count();
    assert_eq!(deletes, 0, "a list without them, long after the start");
    let degraded = new_condition(&decision, DEGRADED);
    assert!(degraded.message.contains("gpu-[0-3] are asked to register again"), "{degraded:?}");
    assert!(
        actions(&decision).contains(&"conditions gpu-0 +Unknown -Idle".into()),
        "pods keep the record of their registration"
    );
}

#[test]
fn never_stuck_a_bad_image_from_the_start_is_repaired() {
    let bad = |ordinal| Worker { revision: Some("old".into()), node: Some("n".into()), ..unborn(ordinal) };
    let mut facts = facts_of(vec![(bad(0), "", ""), (bad(1), "", ""), (bad(2), "", "")]);
    for observation in [
        SlurmObservation::NoClient { why: "no RestApi".into() },
        SlurmObservation::Blind { since: ago(60), why: String::new() },
        facts.slurm.clone(),
    ] {
        facts.slurm = observation;
        assert_eq!(actions(&decide(&model(3), &facts)), ["delete gpu-0", "delete gpu-1", "delete gpu-2"]);
    }
}

#[test]
fn never_stuck_a_deleted_set_yields() {
    let deleted = |on_delete| Model {
        life: Life::Deleted,
        drain: DrainPolicy { on_delete, ..DrainPolicy::default() },
        ..model(2)
    };
    let mut facts = facts_of(vec![(worker(0), "MIXED", ""), (worker(1), "IDLE", "")]);
    let decision = decide(&deleted(false), &facts);
    assert_eq!((actions(&decision), decision.finalizers.drain), (nothing(), false));
    let decision = decide(&deleted(true), &facts);
    let drain = "drain gpu-0,gpu-1: slurm-operator: NodeSet (slurm/gpu) is removing this worker";
    assert_eq!((actions(&decision), decision.finalizers.drain), (vec![drain.to_owned()], true));
    blind(&mut facts);
    assert_eq!((actions(&decide(&deleted(true), &facts)), decision.finalizers.drain), (nothing(), true));
    facts.yields = true;
    let decision = decide(&deleted(true), &facts);
    assert_eq!((actions(&decision), decision.finalizers.drain), (nothing(), false));
    facts.yields = false;
    facts.workers.clear();
    assert!(!decide(&deleted(true), &facts).finalizers.drain);
    let active = Model { life: Life::Active, ..deleted(true) };
    assert!(decide(&active, &facts).finalizers.drain, "the finalizer is added before it is needed");
}

#[test]
fn foreign_drain_kept() {
    for text in ["IDLE+DRAIN", "MIXED+DRAIN", "DOWN", "DOWN+DRAIN"] {
        for cordoned in [false, true] {
            let mut facts = facts_of(vec![(worker(0), text, "bad disk"), (worker(1), "IDLE", "")]);
            edit_node(&mut facts, "node0", |node| node.unschedulable = cordoned);
            edit_worker(&mut facts, "gpu-0", |worker| {
                worker.cordon = if cordoned { Cordon::Node } else { Cordon::None }
            });
            for model in [model(2), Model { revision: "newer".into(), ..model(2) }] {
                let about =
                    actions(&decide(&model, &facts)).into_iter().filter(|action| action.contains("gpu-0")).count();
                assert_eq!(about, 0, "{text}");
            }
        }
    }
}

#[test]
fn foreign_drain_kept_in_the_record_of_a_worker_that_comes_back() {
    let mut facts = facts_of(idle([0]));
    let gone = worker(1);
    edit_snapshot(&mut facts, |snapshot| {
        Arc::make_mut(&mut snapshot.nodes)
            .insert("gpu-1".into(), record_of(&gone, "DOWN+DRAIN+NOT_RESPONDING", "bad disk"));
    });
    assert_eq!(actions(&decide(&model(2), &facts)), ["create gpu-1"], "the Slurm node is kept");
    assert_eq!(actions(&decide(&model(1), &facts)), nothing(), "also without it");
}

#[test]
fn user_intent_kept() {
    let mut facts =
        facts_of(vec![(Worker { revision: Some("old".into()), ..worker(0) }, "IDLE", ""), (worker(1), "IDLE", "")]);
    edit_worker(&mut facts, "gpu-0", |worker| worker.cordon = Cordon::User);
    assert_eq!(actions(&decide(&model(2), &facts)), ["drain gpu-0: slurm-operator: Pod (slurm/gpu-0) was cordoned"]);
    edit_snapshot(&mut facts, |snapshot| {
        let node = Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-0").unwrap();
        (node.states, node.reason) = (states("IDLE+DRAIN"), "slurm-operator: Pod (slurm/gpu-0) was cordoned".into());
    });
    let decision = decide(&model(2), &facts);
    assert_eq!(actions(&decision), ["conditions gpu-0 +Drain +Idle"], "neither lifted nor replaced by the update");
    assert!(new_condition(&decision, PROGRESSING).message.contains("skipped"));
    // Many programs have the same field manager as the Go operator.
    edit_worker(&mut facts, "gpu-0", |worker| worker.cordon = Cordon::Operator);
    assert_eq!(actions(&decide(&model(2), &facts)), ["conditions gpu-0 +Drain +Idle"]);
    edit_snapshot(&mut facts, |snapshot| {
        let node = Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-0").unwrap();
        node.reason = "slurm-operator: Pod (slurm/gpu-0) is pending termination for scale-in".into();
    });
    let found = actions(&decide(&model(2), &facts));
    let expected = ["patch gpu-0 pod-cordon=-", "conditions gpu-0 +Drain +Idle", "undrain gpu-0"];
    assert_eq!(found, expected, "what is left of a scale-in of the Go operator is no wish of a user");
}

/// What the former operator wrote because the Kubernetes node was cordoned is this operator's from then on. Later, the same
/// field manager is some other program.
#[test]
fn user_intent_kept_a_cordon_of_the_former_operator_is_taken_over_once() {
    let by_node = "slurm-operator: Node (node0) was cordoned, Pod (slurm/gpu-0) must be cordoned";
    let by_pod = "slurm-operator: Pod (slurm/gpu-0) was cordoned";
    let (taken, mark) = ("patch gpu-0 pod-cordon=- taken-over=true", "patch gpu-0 taken-over=true");
    let is_kept = "a program that is also called manager has set it";
    for (why, is_of_former, reason, unschedulable, expected) in [
        ("the node is cordoned", true, by_node, true, vec![taken]),
        ("its reason is the node's", true, "slurm-operator: a fan is broken", true, vec![taken]),
        ("the node was uncordoned meanwhile", true, by_node, false, vec![taken]),
        (is_kept, true, by_pod, false, vec![mark]),
        ("it was set before the node was cordoned", true, by_pod, true, vec![mark]),
        ("not seen for the first time", false, by_node, true, vec![]),
        (is_kept, false, by_pod, false, vec![]),
    ] {
        let mut facts = facts_of(vec![(worker(0), "IDLE+DRAIN", reason), (worker(1), "IDLE", "")]);
        edit_node(&mut facts, "node0", |node| node.unschedulable = unschedulable);
        edit_worker(&mut facts, "gpu-0", |worker| {
            (worker.cordon, worker.is_of_former) = (Cordon::Operator, is_of_former);
            worker.conditions = conditions_of("IDLE+DRAIN", reason);
        });
        assert_eq!(actions(&decide(&model(2), &facts)), expected, "{why}");
        facts.slurm = SlurmObservation::Blind { since: NOW, why: "away".into() };
        assert_eq!(actions(&decide(&model(2), &facts)), nothing(), "{why}: decided when Slurm answers");
    }
}

/// Its workers have random names where there is one on each Kubernetes node.
#[test]
fn no_job_lost_workers_of_the_former_operator_stay() {
    let former = Worker { is_of_former: true, ..worker(0) };
    let facts = facts_of(vec![(former, "MIXED", "")]);
    let found = actions(&decide(&model(1), &facts));
    assert!(
        found.len() == 1 && found[0].starts_with("patch gpu-0") && found[0].contains("taken-over=true"),
        "{found:?}"
    );
    let per_node = Model { scaling: Scaling::PerNode, ..model(0) };
    let random = Worker { name: "gpu-x7k2p".into(), is_of_former: true, ..daemon("node0") };
    let facts = facts_of(vec![(random, "MIXED", "")]);
    let found = actions(&decide(&per_node, &facts));
    assert!(found.len() == 1 && found[0].starts_with("patch gpu-x7k2p"), "{found:?}");
}

#[test]
fn autoscalers_are_asked_to_leave_busy_workers_alone_unless_a_user_decides() {
    let mut facts = facts_of(vec![(worker(0), "ALLOCATED", ""), (worker(1), "IDLE", "")]);
    edit_worker(&mut facts, "gpu-0", |worker| {
        (worker.protected, worker.autoscalers) = (false, [SetBy::Unset, SetBy::Other]);
    });
    edit_worker(&mut facts, "gpu-1", |worker| {
        (worker.protected, worker.autoscalers) = (true, [SetBy::Operator, SetBy::Other]);
    });
    let expected = ["patch gpu-0 pod-protect=true safe-to-evict=false", "patch gpu-1 pod-protect=- safe-to-evict=-"];
    assert_eq!(actions(&decide(&model(2), &facts)), expected, "in one write with the label");
}

#[test]
fn a_worker_stays_protected_while_a_suspended_job_is_on_it() {
    let mut facts = facts_of(vec![(worker(0), "IDLE", "")]);
    let protected = |worker: &mut Worker| (worker.protected, worker.autoscalers) = (true, [SetBy::Operator; 2]);
    edit_worker(&mut facts, "gpu-0", protected);
    edit_snapshot(&mut facts, |snapshot| snapshot.jobs = Jobs::Unread);
    let decision = decide(&model(1), &facts);
    assert_eq!((actions(&decision), decision.needs_jobs), (nothing(), true), "it may have a suspended job");
    let job = Job { id: 17, ends: None, is_ending: false };
    edit_snapshot(&mut facts, |snapshot| snapshot.jobs = jobs_of([("gpu-0".to_owned(), vec![job])]));
    assert_eq!(actions(&decide(&model(1), &facts)), ["patch gpu-0 pod-deadline=9999-01-01T00:00:00Z"]);
    edit_snapshot(&mut facts, |snapshot| snapshot.jobs = jobs_of([]));
    assert_eq!(actions(&decide(&model(1), &facts)), ["patch gpu-0 pod-protect=- safe-to-evict=- do-not-disrupt=-"]);
}

#[test]
fn a_protect_label_that_is_missing_while_a_job_is_suspended_is_set() {
    let mut facts = facts_of(vec![(worker(0), "IDLE", "")]);
    let job = Job { id: 17, ends: None, is_ending: false };
    let suspended = || jobs_of([("gpu-0".to_owned(), vec![job])]);
    edit_snapshot(&mut facts, |snapshot| snapshot.jobs = suspended());
    let shown = actions(&decide(&model(1), &facts)).join("; ");
    assert!(shown.contains("pod-protect=true"), "the operator was down when the job started: {shown}");
    edit_worker(&mut facts, "gpu-0", |worker| worker.autoscalers = [SetBy::Operator; 2]);
    edit_snapshot(&mut facts, |snapshot| snapshot.jobs = Jobs::Unread);
    let decision = decide(&model(1), &facts);
    assert_eq!(
        (actions(&decision), decision.needs_jobs),
        (nothing(), true),
        "somebody removed the label: the jobs decide"
    );
    edit_snapshot(&mut facts, |snapshot| snapshot.jobs = suspended());
    let shown = actions(&decide(&model(1), &facts)).join("; ");
    assert!(shown.contains("pod-protect=true") && !shown.contains("=-"), "{shown}");
}

#[test]
fn a_rebooted_worker_returns_to_service_unless_the_user_decides_that() {
    let rebooted = "Node unexpectedly rebooted";
    let facts = |text| facts_of(vec![(worker(0), text, rebooted)]);
    assert_eq!(actions(&decide(&model(1), &facts("DOWN"))), ["resume gpu-0"]);
    assert_eq!(actions(&decide(&model(1), &facts("DOWN+NOT_RESPONDING"))), nothing());
    assert_eq!(actions(&decide(&model(1), &facts("DOWN+DRAIN"))), nothing(), "an admin has drained it");
    let by_user = Model { resumes_rebooted: false, ..model(1) };
    assert_eq!(actions(&decide(&by_user, &facts("DOWN"))), nothing());
    let other = facts_of(vec![(worker(0), "DOWN", "Node unexpectedly rebooted twice")]);
    assert_eq!(actions(&decide(&model(1), &other)), nothing(), "only slurmctld's own words");
}

#[test]
fn a_record_that_a_job_names_is_kept() {
    let mut facts = facts_of(idle(0..1));
    let gone = worker(1);
    edit_snapshot(&mut facts, |snapshot| {
        let record = record_of(&gone, "DOWN", VOCABULARY.terminating_reason);
        Arc::make_mut(&mut snapshot.nodes).insert("gpu-1".into(), record);
    });
    assert_eq!(actions(&decide(&model(1), &facts)), ["forget gpu-1"]);
    assert_eq!(actions(&decide(&model(2), &facts)), ["create gpu-1 anew"]);
    let named = |facts: &mut Facts, jobs| edit_snapshot(facts, |snapshot| snapshot.jobs = jobs);
    let index = JobIndex { named_nodes: ["gpu-1".to_owned()].into(), ..JobIndex::default() };
    let list = JobList { jobs: Arc::new(index), ..JobList::default() };
    named(&mut facts, Jobs::Read(list));
    assert_eq!(actions(&decide(&model(1), &facts)), nothing(), "slurmctld would end the job at its next start");
    assert_eq!(actions(&decide(&model(2), &facts)), ["create gpu-1"]);
    named(&mut facts, Jobs::Unread);
    let decision = decide(&model(1), &facts);
    assert_eq!((actions(&decision), decision.needs_jobs), (nothing(), true));
}

#[test]
fn a_scale_in_that_is_taken_back_leaves_no_drain() {
    let mut facts =
        facts_of(vec![(worker(0), "IDLE", ""), (worker(1), "MIXED+DRAIN", OURS), (worker(2), "IDLE+DRAIN", OURS)]);
    assert_eq!(actions(&decide(&model(1), &facts)), ["delete gpu-2"], "the busy worker is not deleted yet");
    assert_eq!(actions(&decide(&model(3), &facts)), ["undrain gpu-1,gpu-2"]);
    edit_node(&mut facts, "node1", |node| node.unschedulable = true);
    let by_node = "drain gpu-1: slurm-operator: Node (node1) was cordoned, Pod (slurm/gpu-1) must be cordoned";
    assert_eq!(actions(&decide(&model(3), &facts)), ["patch gpu-1 pod-cordon=true", by_node, "undrain gpu-2"]);
}

#[test]
fn a_half_drained_worker_is_not_swapped() {
    let mut workers = idle(0..3);
    workers[1] = (worker(1), "MIXED+DRAIN", OURS);
    assert_eq!(actions(&decide(&model(2), &facts_of(workers))), nothing());
}

#[test]
fn unique_node() {
    let terminating = |ordinal| Worker { terminating: true, ..worker(ordinal) };
    let facts = facts_of(vec![(worker(0), "IDLE", ""), (terminating(1), "IDLE+DRAIN", OURS)]);
    assert_eq!(actions(&decide(&model(2), &facts)), nothing(), "the old pod is still there");
    assert_eq!(actions(&decide(&model(3), &facts)), ["create gpu-2"]);
    let mut facts = facts_of(idle([0]));
    facts.creating.insert("gpu-1".into());
    assert_eq!(actions(&decide(&model(2), &facts)), nothing(), "created but not visible yet");
    assert_eq!(actions(&decide(&model(3), &facts)), ["create gpu-2"]);
    let stranger = Worker { hostname: Some("gpu-1".into()), ..daemon("n1") };
    let facts = facts_of(vec![(worker(0), "IDLE", ""), (stranger, "IDLE+DRAIN", OURS)]);
    let planned = actions(&decide(&model(2), &facts));
    assert_eq!(planned, ["delete gpu-n1"], "a worker of the other mode has the hostname");
}

#[test]
fn unique_node_where_two_nodes_would_share_a_name() {
    let per_node = Model { scaling: Scaling::PerNode, ..model(0) };
    let mut facts = facts_of(Vec::new());
    for name in ["a.x", "a.y", "b", "Bad_Name"] {
        facts.nodes.insert(name.into(), Arc::new(kube_node(name)));
    }
    let decision = decide(&per_node, &facts);
    assert_eq!(actions(&decision), ["create gpu-a.x", "create gpu-b"]);
    assert!(new_condition(&decision, DEGRADED).message.contains("Bad_Name"));
    facts.nodes.remove("Bad_Name");
    let decision = decide(&per_node, &facts);
    assert_eq!(new_condition(&decision, DEGRADED).reason, "HostnameTaken");
    edit_node(&mut facts, "a.y", |node| {
        let key = slurm_operator_api::slinky::names::annotation::HOSTNAME_OVERRIDE;
        node.annotations.insert(key.into(), "c".into());
    });
    let decision = decide(&per_node, &facts);
    assert_eq!(actions(&decision), ["create gpu-a.x", "create gpu-a.y", "create gpu-b"]);
    let WorkerAction::Create(identity) = &decision.actions[1] else { panic!() };
    assert_eq!((&*identity.hostname, identity.node.as_deref()), ("c", Some("a.y")));
}

#[test]
fn claims_kept() {
    let retention = |with_set, with_scale| Retention { with_set, with_scale };
    let table: Vec<(Retention, &[&str], Vec<&str>)> = vec![
        (retention(false, false), &[], vec![]),
        (retention(false, false), &["somebody"], vec![]),
        (retention(false, false), &["set-uid"], vec!["own data-gpu-0 set=false drop=set-uid"]),
        (retention(false, false), &["uid-0"], vec!["own data-gpu-0 set=false drop=uid-0"]),
        (retention(false, true), &["uid-0"], vec!["own data-gpu-0 set=false drop=uid-0"]),
        (retention(true, false), &[], vec!["own data-gpu-0 set=true drop="]),
        (retention(true, false), &["set-uid"], vec![]),
        (retention(true, true), &["set-uid", "uid-0"], vec!["own data-gpu-0 set=true drop=uid-0"]),
    ];
    for (retention, found, expected) in table {
        for cordoned in [false, true] {
            let mut facts = facts_of(idle([0]));
            facts.claims.insert("data-gpu-0".into(), claim(found));
            edit_node(&mut facts, "node0", |node| node.unschedulable = cordoned);
            let model = Model { claims: vec!["data".into()], retention, ..model(1) };
            let owned: Vec<String> =
                actions(&decide(&model, &facts)).into_iter().filter(|action| action.starts_with("own")).collect();
            assert_eq!(owned, expected, "{retention:?} {found:?}, cordoned: {cordoned}");
        }
    }
}

#[test]
fn claims_kept_or_not_on_scale_in() {
    for (with_scale, expected) in [(false, vec![]), (true, vec!["data-gpu-1".to_owned()])] {
        let retention = Retention { with_set: false, with_scale };
        let mut facts = facts_of(vec![(worker(0), "IDLE", ""), (worker(1), "IDLE+DRAIN", OURS)]);
        for ordinal in 0..2 {
            facts.claims.insert(format!("data-gpu-{ordinal}"), claim(&[]));
        }
        let base = Model { claims: vec!["data".into()], retention, ..model(1) };
        let [WorkerAction::Delete(removal)] = &decide(&base, &facts).actions[..] else { panic!() };
        assert_eq!(removal.claims, expected);
        edit_worker(&mut facts, "gpu-1", |worker| worker.revision = Some("old".into()));
        edit_snapshot(&mut facts, |snapshot| {
            Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-1").unwrap().reason = UPDATE.into();
        });
        let update = Model { scaling: numbered(2, 0), ..base };
        let decision = decide(&update, &facts);
        let Some(WorkerAction::Delete(removal)) = decision.actions.last() else { panic!("{decision:?}") };
        assert_eq!(removal.claims, Vec::<String>::new(), "an update keeps them");
    }
}

#[test]
fn claims_are_created_first_and_never_while_being_deleted() {
    let model = Model { claims: vec!["data".into(), "tmp".into()], ..model(2) };
    let mut facts = facts_of(Vec::new());
    facts.claims.insert("data-gpu-0".into(), claim(&[]));
    facts.claims.insert("tmp-gpu-1".into(), Claim { deleting: true, ..claim(&[]) });
    let decision = decide(&model, &facts);
    let [WorkerAction::Create(identity)] = &decision.actions[..] else { panic!("{decision:?}") };
    let uses: Vec<(&str, &str, bool)> = identity.claims.iter().map(|u| (&*u.volume, &*u.claim, u.is_missing)).collect();
    assert_eq!(uses, [("data", "data-gpu-0", false), ("tmp", "tmp-gpu-0", true)]);
    assert!(new_condition(&decision, DEGRADED).message.contains("tmp-gpu-1"));
}

#[test]
fn paused_only_updates_status_and_metadata() {
    let mut workers = idle([1, 2]);
    workers.push((Worker { revision: Some("old".into()), ..worker(0) }, "IDLE+DRAIN", OURS));
    let mut facts = facts_of(workers);
    edit_worker(&mut facts, "gpu-1", |worker| worker.protected = true);
    for replicas in [0, 2, 5] {
        let decision = decide(&Model { life: Life::Paused, ..model(replicas) }, &facts);
        assert_eq!(actions(&decision), ["patch gpu-1 pod-protect=-"]);
        assert_eq!(new_condition(&decision, PROGRESSING).reason, "Paused");
        assert_eq!(decision.counts.slurm.registered, 3);
    }
}

#[test]
fn ten_thousand_workers_stable_and_scaling_in() {
    let facts = facts_of(idle(0..10_000));
    let decision = decide(&model(10_000), &facts);
    assert_eq!(actions(&decision), nothing());
    assert_eq!(decision.counts.slurm, SlurmCounts { registered: 10_000, idle: 10_000, ..SlurmCounts::default() });
    assert_eq!((new_condition(&decision, READY).status, decision.next), (ConditionStatus::True, None));
    let decision = decide(&model(1), &facts);
    let [WorkerAction::Drain { nodes, .. }] = &decision.actions[..] else { panic!() };
    assert_eq!(nodes.len(), 9_999, "one call drains them all");
    assert_eq!(actions(&decide(&model(11_000), &facts)).len(), DEFAULT_BURST);
}

/// A set with an invalid spec.
fn blocked(model: Model) -> Model {
    Model { blocked: Some(Problem::invalid("spec.extraConf is wrong")), ..model }
}

#[test]
fn no_job_lost_a_blocked_set_protects_cordons_and_counts() {
    let mut facts = facts_of(vec![(worker(0), "ALLOCATED", ""), (worker(1), "IDLE", "")]);
    edit_worker(&mut facts, "gpu-0", |worker| worker.protected = false);
    edit_node(&mut facts, "node1", |node| node.unschedulable = true);
    let decision = decide(&blocked(model(3)), &facts);
    let reason = "slurm-operator: Node (node1) was cordoned, Pod (slurm/gpu-1) must be cordoned";
    let patches = ["patch gpu-0 pod-protect=true".to_owned(), "patch gpu-1 pod-cordon=true".to_owned()];
    assert_eq!(actions(&decision), [patches.as_slice(), &[format!("drain gpu-1: {reason}")]].concat());
    assert_eq!((decision.counts.replicas, decision.counts.slurm.allocated), (2, 1));
    assert_eq!(new_condition(&decision, "Ready").reason, "InvalidSpec", "the third worker cannot be created");
    assert_eq!(new_condition(&decision, "Degraded").message, "spec.extraConf is wrong");
    assert_eq!(new_condition(&decision, "Progressing").status, ConditionStatus::False);

    let decision = decide(&blocked(model(2)), &facts);
    assert_eq!(new_condition(&decision, "Ready").status, ConditionStatus::True, "existing workers can run jobs");
    assert_eq!(new_condition(&decision, "Degraded").status, ConditionStatus::True);
}

#[test]
fn never_stuck_a_blocked_set_scales_in_and_is_deleted() {
    let workers = vec![(worker(0), "ALLOCATED", ""), (worker(1), "IDLE+DRAIN", OURS)];
    assert_eq!(actions(&decide(&blocked(model(1)), &facts_of(workers.clone()))), ["delete gpu-1"]);
    let drains = DrainPolicy { on_delete: true, ..DrainPolicy::default() };
    let going = |workers| Model { life: Life::Deleted, drain: drains, ..blocked(model(workers)) };
    let decision = decide(&going(2), &facts_of(workers));
    assert_eq!(
        actions(&decision),
        ["drain gpu-0: slurm-operator: NodeSet (slurm/gpu) is removing this worker", "delete gpu-1"]
    );
    assert!(!decide(&going(2), &facts_of(Vec::new())).finalizers.drain);
}

#[test]
fn a_blocked_set_replaces_nothing() {
    let old = Worker { revision: Some("old".into()), ..worker(0) };
    let mut other = facts_of(vec![(old, "IDLE", ""), (daemon("a"), "IDLE", "")]);
    other.nodes.insert("a".into(), Arc::new(kube_node("a")));
    assert_eq!(actions(&decide(&blocked(model(1)), &other)), nothing());
    let mut renamed = facts_of(vec![(daemon("a"), "IDLE", "")]);
    edit_node(&mut renamed, "a", |node| {
        node.annotations.insert("nodeset.slinky.slurm.net/hostname-override".into(), "b".into());
    });
    let per_node = || Model { scaling: Scaling::PerNode, ..model(0) };
    assert_eq!(actions(&decide(&blocked(per_node()), &renamed)), nothing());
    assert_ne!(actions(&decide(&per_node(), &renamed)), nothing());
}

#[test]
fn budget_zero_replaces_nothing_and_reverts_started_drains() {
    let old = |ordinal| Worker { revision: Some("old".into()), ..worker(ordinal) };
    let broken = Worker { ready: None, slurmd: SlurmdState::Stopped, conditions: BTreeMap::new(), ..old(2) };
    let workers = vec![(old(0), "IDLE", ""), (old(1), "IDLE+DRAIN", UPDATE), (broken, "", "")];
    for budget in [Budget::Number(0), Budget::Percent(0)] {
        assert_eq!(actions(&decide(&rolling(3, budget), &facts_of(workers.clone()))), ["undrain gpu-1"]);
    }
}

#[test]
fn workers_without_the_key_ring_are_replaced_only_while_the_key_changes() {
    let with_ring = Worker { has_key_ring: true, ..worker(1) };
    let facts = facts_of(vec![(worker(0), "IDLE", ""), (with_ring, "IDLE", "")]);
    assert_eq!(actions(&decide(&model(2), &facts)), nothing());
    let changing = Model { needs_key_ring: true, ..model(2) };
    let drain = "drain gpu-0: slurm-operator: NodeSet (slurm/gpu) is being updated";
    assert_eq!(actions(&decide(&changing, &facts)), [drain]);
}
