//! Bugs that users of the Go operator have reported, and what this operator does in the same situation. See
//! docs/differences.md.

use super::{super::*, *};

/// Its issue 249: after a rolling update has deleted a pod, the replacement was never created, and the record stayed drained.
#[test]
fn issue_249_a_rolling_update_goes_on_after_the_old_pod_is_gone() {
    let per_node = Model { scaling: Scaling::PerNode, ..model(0) };
    let mut facts = facts_of(vec![(daemon("a"), "IDLE", ""), (daemon("b"), "IDLE", "")]);
    facts.workers.retain(|worker| worker.name != "gpu-b");
    let left = record("DOWN+DRAIN+NOT_RESPONDING", VOCABULARY.terminating_reason);
    edit_snapshot(&mut facts, |snapshot| drop(Arc::make_mut(&mut snapshot.nodes).insert("b".into(), left)));
    assert!(actions(&decide(&per_node, &facts)).iter().any(|action| action.starts_with("create gpu-b")));
    // Its successor is there, and the record still has the old state.
    let facts = facts_of(vec![
        (daemon("a"), "IDLE", ""),
        (daemon("b"), "DOWN+DRAIN+NOT_RESPONDING", VOCABULARY.terminating_reason),
    ]);
    assert_eq!(actions(&decide(&per_node, &facts)), ["resume b"]);
}

/// Its issue 79: a look-up that failed counted as drained, and the pod was deleted with its jobs.
#[test]
fn issue_79_a_look_up_that_fails_deletes_no_worker() {
    let is_deleted =
        |facts: &Facts| actions(&decide(&model(0), facts)).iter().any(|action| action.starts_with("delete"));
    let others = || (worker(1), "IDLE", "");
    assert!(!is_deleted(&facts_of(vec![(worker(0), "", ""), others()])), "Slurm does not list the node");
    for observation in [
        SlurmObservation::NoClient { why: "no RestApi".into() },
        SlurmObservation::Blind { since: ago(1), why: "refused".into() },
    ] {
        let facts = Facts { slurm: observation, ..facts_of(vec![(worker(0), "IDLE+DRAIN", OURS), others()]) };
        assert!(!is_deleted(&facts), "{:?}", facts.slurm);
    }
}

/// Its issue 239: while slurmctld restarted again and again, no worker was created for an hour.
#[test]
fn issue_239_workers_are_created_while_slurm_does_not_answer() {
    for observation in [
        SlurmObservation::NoClient { why: "not polled yet".into() },
        SlurmObservation::Blind { since: ago(3600), why: "slurmctld does not answer".into() },
    ] {
        let facts = Facts { slurm: observation, ..facts_of(Vec::new()) };
        assert_eq!(actions(&decide(&model(2), &facts)), ["create gpu-0", "create gpu-1"]);
    }
}

/// Issue 43 of slurm-bridge: jobs that ask for a node by name end when slurmctld restarts and does not know the node.
#[test]
fn bridge_43_the_record_of_a_node_that_a_job_asks_for_stays() {
    let mut facts = facts_of(idle(0..1));
    let left = record_of(&worker(1), "DOWN+NOT_RESPONDING", VOCABULARY.terminating_reason);
    edit_snapshot(&mut facts, |snapshot| drop(Arc::make_mut(&mut snapshot.nodes).insert("gpu-1".into(), left)));
    assert_eq!(actions(&decide(&model(1), &facts)), ["forget gpu-1"]);
    edit_snapshot(&mut facts, |snapshot| {
        let Jobs::Read(list) = &mut snapshot.jobs else { panic!() };
        Arc::make_mut(&mut list.jobs).named_nodes.insert("gpu-1".into());
    });
    assert_eq!(actions(&decide(&model(1), &facts)), nothing());
}

/// After a restart of slurmctld its list may lack nodes: new workers are created, and none is removed or drained.
#[test]
fn a_restart_of_slurmctld_followed_by_new_nodes() {
    let mut facts = facts_of(idle(0..4));
    edit_snapshot(&mut facts, |snapshot| {
        Arc::make_mut(&mut snapshot.nodes).retain(|name, _| name == "gpu-0");
        snapshot.ctld_started = Some(ago(10));
    });
    let is_new = |action: &String| action.starts_with("create") || action.starts_with("register");
    let planned = actions(&decide(&model(6), &facts));
    assert!(planned.contains(&"create gpu-5".to_owned()) && planned.iter().all(is_new), "{planned:?}");
    assert!(actions(&decide(&model(1), &facts)).iter().all(is_new));
}
