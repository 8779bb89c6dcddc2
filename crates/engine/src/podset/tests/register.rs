//! Workers that slurmctld does not know.

use slurm_operator_api::common::conditions::{DEGRADED, READY};

use super::{super::*, *};
use crate::conditions::ConditionStatus;

/// Five workers; slurmctld knows those whose state is given.
fn facts(states: [&'static str; 5]) -> Facts {
    facts_of((0..5).zip(states).map(|(ordinal, state)| (worker(ordinal), state, "")).collect())
}

fn attempted(facts: &mut Facts, ordinal: u32, seconds: i64, result: AttemptResult) {
    facts.attempts.insert(format!("uid-{ordinal}"), Attempt { at: ago(seconds), result });
}

fn asks(decision: &Decision) -> Vec<String> {
    actions(decision).into_iter().filter(|action| action.starts_with("register")).collect()
}

#[test]
fn a_worker_that_slurmctld_has_lost_registers_again() {
    let decision = decide(&model(5), &facts(["", "IDLE", "IDLE", "MIXED", "IDLE"]));
    assert_eq!(asks(&decision), ["register gpu-0"]);
    let degraded = new_condition(&decision, DEGRADED);
    let expected = "slurmd is running, but slurmctld does not know the nodes: gpu-0 are asked to register again";
    assert_eq!((degraded.reason, &*degraded.message), ("UnknownToSlurm", expected));
}

#[test]
fn an_empty_list_is_not_trusted_and_yet_the_workers_register_again() {
    let decision = decide(&model(4), &facts(["", "", "", "", ""]));
    assert_eq!(asks(&decision).len(), 5, "also the one that is to be removed, which is not drained blindly");
    assert_eq!(actions(&decision).len(), 5);
    assert_eq!(new_condition(&decision, READY).status, ConditionStatus::Unknown);
    assert_eq!(new_condition(&decision, DEGRADED).reason, "UnknownToSlurm");
}

#[test]
fn they_are_not_asked_all_the_time() {
    let mut facts = facts(["", "", "IDLE", "IDLE", "IDLE"]);
    attempted(&mut facts, 0, 10, AttemptResult::HasSteps);
    attempted(&mut facts, 1, 20, AttemptResult::Failed("no shell".into()));
    let decision = decide(&model(5), &facts);
    assert_eq!(asks(&decision), nothing());
    assert_eq!(decision.next, Some(NOW + SignedDuration::from_secs(10)));
    let message = &new_condition(&decision, DEGRADED).message;
    assert!(
        message.contains("gpu-0 run jobs that slurmctld does not know, and register again when these"),
        "{message}"
    );
    assert!(message.contains("gpu-1 could not be asked to register again (no shell), which is repeated"), "{message}");
    attempted(&mut facts, 0, 30, AttemptResult::HasSteps);
    assert_eq!(asks(&decide(&model(5), &facts)), ["register gpu-0"]);
}

#[test]
fn a_slurmd_that_has_just_started_registers_by_itself() {
    let young = Worker { slurmd: SlurmdState::Running { since: Some(ago(20)) }, ..worker(0) };
    let mut facts = facts_of(vec![(young, "", ""), (worker(1), "IDLE", ""), (worker(2), "IDLE", "")]);
    // The attempt was made with the slurmd before it.
    attempted(&mut facts, 0, 25, AttemptResult::HasSteps);
    let decision = decide(&model(3), &facts);
    assert_eq!((asks(&decision), decision.next), (nothing(), Some(NOW + SignedDuration::from_secs(10))));
}

#[test]
fn a_worker_that_has_never_registered_is_asked_seldom() {
    let silent = Worker { conditions: BTreeMap::new(), ..worker(0) };
    let mut facts = facts_of(vec![(silent, "", ""), (worker(1), "IDLE", "")]);
    assert_eq!(asks(&decide(&model(2), &facts)), ["register gpu-0"]);
    attempted(&mut facts, 0, 50, AttemptResult::Asked);
    let decision = decide(&model(2), &facts);
    assert_eq!((asks(&decision), new_condition(&decision, DEGRADED).reason), (nothing(), "NotRegistered"));
}

#[test]
fn only_a_slurmd_that_runs_is_asked() {
    let mut unreachable = facts(["", "IDLE", "IDLE", "IDLE", "IDLE"]);
    edit_node(&mut unreachable, "node0", |node| node.ready = false);
    assert_eq!(asks(&decide(&model(5), &unreachable)), nothing());
    let stopped = Worker { slurmd: SlurmdState::Stopped, ready: None, ..worker(0) };
    let terminating = Worker { terminating: true, ..worker(1) };
    let facts =
        facts_of(vec![(stopped, "", ""), (terminating, "", ""), (worker(2), "IDLE", ""), (worker(3), "IDLE", "")]);
    assert_eq!(asks(&decide(&model(4), &facts)), nothing());
    let mut lost = self::facts(["", "IDLE", "IDLE", "IDLE", "IDLE"]);
    let paused = Model { life: Life::Paused, ..model(5) };
    assert_eq!(asks(&decide(&paused, &lost)), nothing());
    // An old list proves nothing.
    let SlurmObservation::Clear(snapshot) = &mut lost.slurm else { panic!() };
    Arc::make_mut(snapshot).read_at = ago(600);
    assert_eq!(asks(&decide(&model(5), &lost)), nothing());
}

#[test]
fn many_are_asked_a_few_at_a_time() {
    let facts = facts_of((0..100).map(|ordinal| (worker(ordinal), "", "")).collect());
    let decision = decide(&model(100), &facts);
    assert_eq!((asks(&decision).len(), decision.next), (32, Some(NOW + SignedDuration::from_secs(1))));
    // Those that have waited longest come first, however many others are due again.
    let mut facts = facts;
    for ordinal in 0..90 {
        attempted(&mut facts, ordinal, 300 - i64::from(ordinal), AttemptResult::HasSteps);
    }
    let asked = asks(&decide(&model(100), &facts));
    assert!(
        asked.contains(&"register gpu-0".to_owned()) && !asked.contains(&"register gpu-89".to_owned()),
        "{asked:?}"
    );
    let never: Vec<String> = (90..100).map(|ordinal| format!("register gpu-{ordinal}")).collect();
    assert!(never.iter().all(|node| asked.contains(node)), "{asked:?}");
}
