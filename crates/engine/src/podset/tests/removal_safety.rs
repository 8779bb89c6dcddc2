//! Why workers that are to be removed wait, with its text.

use super::*;

/// The blockers of a set that is scaled to zero.
fn blockers(facts: &Facts) -> Vec<(String, String)> {
    let decision = decide(&model(0), facts);
    decision.blockers.iter().map(|(node, blocker)| (node.clone(), blocker.text(NOW))).collect()
}

#[test]
fn every_blocker_has_its_reason() {
    let starting = || Worker { conditions: BTreeMap::new(), created: Some(ago(10)), ..worker(0) };
    let starting = || Worker { slurmd: SlurmdState::Running { since: Some(ago(10)) }, ..starting() };
    for (worker, text, expected) in [
        (worker(0), "IDLE", Some("not drained yet")),
        (worker(0), "ALLOCATED+DRAIN", Some("blocked by running jobs")),
        (worker(0), "", Some("unknown to slurmctld, although slurmd is running")),
        (starting(), "", Some("may still register until 08:00 UTC")),
        (worker(0), "IDLE+DRAIN", None),
        (Worker { phase: Phase::Failed, ..worker(0) }, "ALLOCATED", None),
        (Worker { slurmd: SlurmdState::Stopped, ..worker(0) }, "ALLOCATED", None),
    ] {
        // A second worker keeps the list of nodes from being empty, which is never trusted.
        let other = (super::worker(9), "IDLE+DRAIN", OURS);
        let facts = facts_of(vec![(worker, text, OURS), other]);
        let found = blockers(&facts).into_iter().find(|(node, _)| node == "gpu-0").map(|(_, text)| text);
        assert_eq!(found.as_deref(), expected, "{text}");
    }
    let mut blind = facts_of(idle(0..1));
    blind.slurm = SlurmObservation::NoClient { why: "no RestApi".into() };
    assert_eq!(blockers(&blind), [("gpu-0".to_owned(), "the state of Slurm is unknown".to_owned())]);
    let mut pending = facts_of(idle(0..1));
    edit_snapshot(&mut pending, |snapshot| {
        snapshot.pending.insert("gpu-0".into(), Written::Drain { reason: OURS.into() });
    });
    assert_eq!(blockers(&pending)[0].1, "waiting for Slurm to confirm the last change");
}

#[test]
fn a_drained_worker_is_removed_only_if_the_jobs_read_after_the_drain_have_none_there() {
    let facts = || facts_of(vec![(worker(0), "IDLE+DRAIN", OURS)]);
    assert_eq!(actions(&decide(&model(0), &facts())), ["delete gpu-0"]);

    let mut unread = facts();
    edit_snapshot(&mut unread, |snapshot| snapshot.jobs = Jobs::Unread);
    let decision = decide(&model(0), &unread);
    assert_eq!((actions(&decision), decision.needs_jobs), (nothing(), true));
    assert_eq!(blockers(&unread)[0].1, "waiting for the list of jobs");

    // A suspended job has given up its CPUs, so that the node looks idle.
    let mut suspended = facts();
    let job = Job { id: 17, ends: None, is_ending: false };
    edit_snapshot(&mut suspended, |snapshot| snapshot.jobs = jobs_of([("gpu-0".to_owned(), vec![job])]));
    assert_eq!(blockers(&suspended)[0].1, "blocked by job 17, which has no time limit");

    // Read before the node was drained: a job may have started since.
    let mut older = facts();
    let SlurmObservation::Clear(snapshot) = &mut older.slurm else { panic!() };
    let before = HashMap::from([("gpu-0".to_owned(), record("IDLE", ""))]);
    Arc::make_mut(snapshot).jobs = Jobs::Read(JobList { nodes: Arc::new(before), ..JobList::default() });
    assert_eq!(blockers(&older)[0].1, "waiting for the list of jobs");

    // Drained by us, resumed and drained again since the jobs were read.
    let mut again = facts();
    let SlurmObservation::Clear(snapshot) = &mut again.slurm else { panic!() };
    let mut then = (*snapshot.nodes).clone();
    then.get_mut("gpu-0").unwrap().reason_since = Some(ago(900));
    Arc::make_mut(snapshot).jobs = Jobs::Read(JobList { nodes: Arc::new(then), ..JobList::default() });
    assert_eq!(blockers(&again)[0].1, "waiting for the list of jobs");
}

#[test]
fn a_worker_whose_slurmd_the_kubelet_has_not_reported_yet_is_not_removed_with_its_first_job() {
    let young = |seconds| Worker { created: Some(ago(seconds)), conditions: BTreeMap::new(), ..unborn(0) };
    let young = |seconds| Worker { node: Some("node0".into()), ..young(seconds) };
    let facts = |seconds, text| facts_of(vec![(young(seconds), text, ""), (worker(9), "IDLE", "")]);
    assert_eq!(blockers(&facts(5, "ALLOCATED"))[0], ("gpu-0".to_owned(), "blocked by running jobs".to_owned()));
    for (seconds, text) in [(5, "IDLE"), (5, "ALLOCATED+NOT_RESPONDING"), (61, "ALLOCATED")] {
        let actions = actions(&decide(&model(1), &facts(seconds, text)));
        assert!(actions.contains(&"delete gpu-0".to_owned()), "{seconds} {text}: {actions:?}");
    }
    // Nor is it broken, and free to be replaced beyond the budget of an update.
    let old = |worker: Worker| Worker { revision: Some("old".into()), ..worker };
    let facts = facts_of(vec![(old(young(5)), "ALLOCATED", ""), (old(worker(1)), "IDLE+DRAIN", UPDATE)]);
    let drains = |action: &String| action.starts_with("drain gpu-0");
    assert!(!actions(&decide(&rolling(2, Budget::Number(1)), &facts)).iter().any(drains));
}

#[test]
fn a_worker_that_may_have_registered_under_another_name_is_not_removed() {
    let silent = || Worker { conditions: BTreeMap::new(), ..worker(0) };
    let facts = |state: &str, features: &[&str]| {
        let mut facts = facts_of(vec![(silent(), "", ""), (worker(1), "IDLE", "")]);
        let features = features.iter().map(|feature| (*feature).to_owned()).collect();
        let stray = SlurmNode { features, ..record(state, "") };
        edit_snapshot(&mut facts, |snapshot| {
            drop(Arc::make_mut(&mut snapshot.nodes).insert("strange-0".into(), stray));
        });
        facts
    };
    let is_deleted = |facts: &Facts| actions(&decide(&model(0), facts)).contains(&"delete gpu-0".to_owned());
    assert!(!is_deleted(&facts("MIXED", &["gpu"])));
    assert!(
        blockers(&facts("IDLE", &["gpu"]))[0].1.starts_with("a Slurm node with the feature of this set has no pod")
    );
    let idle = [
        ("DOWN", &["gpu"][..]),
        ("IDLE+NOT_RESPONDING", &["gpu"]),
        ("IDLE+POWERED_DOWN", &["gpu"]),
        ("MIXED", &["cpu"]),
    ];
    for (state, features) in idle {
        assert!(is_deleted(&facts(state, features)), "{state} {features:?}");
    }
}

#[test]
fn a_job_that_blocks_is_named_with_its_end() {
    let mut facts = facts_of(vec![(worker(0), "ALLOCATED+DRAIN", OURS)]);
    let mut with = |jobs: Vec<Job>| {
        edit_snapshot(&mut facts, |snapshot| {
            snapshot.jobs = jobs_of([("gpu-0".to_owned(), jobs)]);
        });
        blockers(&facts).remove(0).1
    };
    let job = |id, minutes: Option<i64>| Job {
        id,
        ends: minutes.map(|minutes| NOW + SignedDuration::from_mins(minutes)),
        is_ending: false,
    };
    assert_eq!(with(vec![job(17, Some(5)), job(18, Some(3))]), "blocked by job 17 until 08:05 UTC");
    assert_eq!(with(vec![job(17, Some(60 * 48))]), "blocked by job 17 until 2027-01-17 08:00 UTC");
    assert_eq!(with(vec![job(17, Some(5)), job(18, None)]), "blocked by job 18, which has no time limit");
}
