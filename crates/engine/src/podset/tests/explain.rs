//! Where workers are, and why, for people.

use super::*;

const HOLD: &str = "bad disk";
const CORDON: &str = "slurm-operator: Pod (slurm/gpu-0) was cordoned";

/// The texts of the first worker, and of its delay, in a set of two.
fn texts(model: &Model, facts: &Facts) -> (String, Option<String>) {
    let explanation = explain(model, facts, NOW);
    let first = &explanation.workers[0];
    assert_eq!(first.pod, "gpu-0");
    (first.why.text(NOW), first.outdated.map(Delay::text))
}

#[test]
fn every_place_has_its_reason() {
    let starting = |problem: Option<&str>| Worker { problem: problem.map(str::to_owned), ..unborn(0) };
    let running = |seconds| Worker {
        conditions: BTreeMap::new(),
        created: Some(ago(seconds)),
        slurmd: SlurmdState::Running { since: Some(ago(seconds)) },
        ..worker(0)
    };
    let cordoned = |cordon| Worker { cordon, ..worker(0) };
    for (worker, text, reason, expected) in [
        (worker(0), "IDLE", "", "in service"),
        (worker(0), "MIXED+PLANNED", "left over", "in service"),
        (worker(0), "IDLE+DRAIN", HOLD, "drained by an admin, who must resume it: bad disk"),
        (worker(0), "IDLE+DRAIN", "", "drained by an admin, who must resume it"),
        (worker(0), "MIXED+DRAIN", OURS, "returns to service"),
        (cordoned(Cordon::User), "MIXED+DRAIN", CORDON, &format!("drained because of a cordon: {CORDON}")),
        (cordoned(Cordon::Node), "IDLE+DRAIN", CORDON, &format!("drained because of a cordon: {CORDON}")),
        (worker(0), "DOWN", "Not responding", "down: Not responding"),
        (worker(0), "IDLE+NOT_RESPONDING", "", "slurmctld does not reach slurmd"),
        (
            worker(0),
            "IDLE+DRAIN+INVALID_REG",
            "Low RealMemory",
            "slurmd has registered with less than configured: Low RealMemory",
        ),
        (worker(0), "IDLE+MAINTENANCE", "", "no job starts there"),
        (worker(0), "", "", "slurmd is running, but slurmctld does not know it"),
        (running(10), "", "", "waits until slurmd has registered, at the latest until 08:00 UTC"),
        (running(90), "", "", "slurmd is running but has not registered: see its log"),
        (starting(None), "", "", "its pod is starting"),
        (starting(Some("no such image")), "", "", "its pod is not ready: no such image"),
        (Worker { terminating: true, ..worker(0) }, "DOWN", "", "its pod is being deleted"),
    ] {
        let facts = facts_of(vec![(worker, text, reason), (super::worker(1), "IDLE", "")]);
        assert_eq!(texts(&model(2), &facts), (expected.to_owned(), None), "{text} {reason}");
    }
    let mut blind = facts_of(idle(0..2));
    blind.slurm = SlurmObservation::NoClient { why: "no RestApi".into() };
    assert_eq!(texts(&model(2), &blind).0, "the state of Slurm is unknown");
    let mut pending = facts_of(idle(0..2));
    edit_snapshot(&mut pending, |snapshot| {
        snapshot.pending.insert("gpu-0".into(), Written::Other);
    });
    assert_eq!(texts(&model(2), &pending).0, "waiting for Slurm to confirm the last change");
}

#[test]
fn a_worker_that_leaves_says_why_and_what_it_waits_for() {
    let mut facts = facts_of(vec![(worker(0), "MIXED+DRAIN", OURS), (worker(1), "IDLE+DRAIN", OURS)]);
    // As one sees it who cannot read jobs: the deadline is that of the annotation.
    edit_snapshot(&mut facts, |snapshot| snapshot.jobs = Jobs::Unread);
    edit_worker(&mut facts, "gpu-0", |worker| worker.deadline = Some("2027-01-15T10:05:00Z".into()));
    let explanation = explain(&model(0), &facts, NOW);
    let texts: Vec<String> = explanation.workers.iter().map(|worker| worker.why.text(NOW)).collect();
    assert_eq!(
        texts,
        [
            "to be removed (scale-in): blocked by a job until 10:05 UTC",
            "to be removed (scale-in): waiting for the list of jobs"
        ]
    );
    let deadline: Timestamp = "2027-01-15T10:05:00Z".parse().unwrap();
    assert_eq!(explanation.workers[0].deadline, Deadline::At(deadline));
    assert_eq!((explanation.desired, explanation.missing), (0, 0));
    let set =
        Model { life: Life::Deleted, drain: DrainPolicy { on_delete: true, ..DrainPolicy::default() }, ..model(2) };
    assert!(explain(&set, &facts, NOW).workers[0].why.text(NOW).contains("(the set is being deleted)"));
}

#[test]
fn it_tells_what_the_plan_decides() {
    let old = |ordinal| Worker { revision: Some("old".into()), ..worker(ordinal) };
    let facts = facts_of(vec![(old(0), "IDLE", ""), (old(1), "IDLE", ""), (worker(2), "IDLE", "")]);
    let model = rolling(4, Budget::Number(2));
    let explanation = explain(&model, &facts, NOW);
    let of_plan: Vec<String> = plan(&model, &facts, NOW).blockers.into_iter().map(|(node, _)| node).collect();
    let leaving = explanation.workers.iter().filter(|worker| matches!(worker.why, Why::Leaving { .. }));
    let leaving: Vec<String> = leaving.filter_map(|worker| worker.slurm_node.clone()).collect();
    // One worker is missing, so that only one more may be out of service.
    assert_eq!((leaving, explanation.missing), (of_plan, 1));
    let delays: Vec<_> = explanation.workers.iter().map(|worker| worker.outdated).collect();
    assert_eq!(delays, [Some(Delay::Turn { max_unavailable: 2 }), None, None]);
}

#[test]
fn an_outdated_worker_says_why_it_stays() {
    let old = || {
        facts_of(vec![
            (Worker { revision: Some("old".into()), ..worker(0) }, "IDLE+DRAIN", HOLD),
            idle(1..2)[0].clone(),
        ])
    };
    let with = |update: Update| Model { update, ..model(2) };
    let start = NOW + SignedDuration::from_hours(2);
    let schedule = Schedule { start, minutes: 5, flags: Vec::new() };
    let problem = crate::daemons::progress::Problem::invalid("spec.slurmd.image: required");
    for (model, expected) in [
        (with(Update::OnDelete), "is replaced when its pod is deleted (OnDelete)"),
        (with(Update::Scheduled(schedule)), "is replaced in the reservation from 2027-01-15T10:00:00Z on"),
        (rolling(2, Budget::Number(0)), "is not replaced, as maxUnavailable is 0"),
        (rolling(2, Budget::Number(1)), "is not replaced while a user, an admin or a cordon keeps it out of service"),
        (Model { life: Life::Paused, ..model(2) }, "is not replaced while the set is paused"),
        (Model { blocked: Some(problem), ..model(2) }, "is not replaced while the set has a problem"),
    ] {
        assert_eq!(texts(&model, &old()).1.as_deref(), Some(expected));
    }
    let mut blind = old();
    blind.slurm = SlurmObservation::NoClient { why: "no RestApi".into() };
    let delay = texts(&rolling(2, Budget::Number(1)), &blind).1;
    assert_eq!(delay.as_deref(), Some("is not replaced while the state of Slurm is unknown"));
}

#[test]
fn states_come_back_from_the_conditions_of_a_pod() {
    for text in [
        "IDLE",
        "MIXED+DRAIN",
        "DOWN+NOT_RESPONDING+DRAIN",
        "ALLOCATED+COMPLETING",
        "IDLE+INVALID_REG+DRAIN",
        "UNKNOWN",
    ] {
        let conditions = conditions_of(text, HOLD);
        let (found, reason) = states_of(&conditions).unwrap();
        assert_eq!((found, reason), (states(text), HOLD), "{text}");
    }
    assert_eq!(states_of(&BTreeMap::new()), None, "it has never registered");
    let lost = conditions_of("UNKNOWN", "Slurm does not know this node");
    assert_eq!(states_of(&lost), None);
    let newer = BTreeMap::from([("SlurmNodeStateFromTheFuture".to_owned(), String::new())]);
    assert_eq!(states_of(&newer), None);
}
