//! Kubernetes events.

use super::*;

fn events(decision: &Decision) -> Vec<String> {
    decision.events.iter().map(|event| format!("{}: {}", event.reason, event.text)).collect()
}

#[test]
fn one_event_for_many_workers() {
    let mut facts = facts_of((0..40).map(|ordinal| (worker(ordinal), "IDLE", "")).collect());
    assert_eq!(events(&decide(&model(45), &facts)), ["ScalingUp: creating 5 workers: gpu-[40-44]"]);
    assert_eq!(events(&decide(&model(10), &facts)), [format!("ScalingDown: draining gpu-[10-39]: {OURS}")]);
    assert_eq!(events(&decide(&model(40), &facts)), nothing());
    edit_node(&mut facts, "node3", |node| node.unschedulable = true);
    assert!(events(&decide(&model(40), &facts))[0].starts_with("NodeCordon: draining gpu-3: "));
}

#[test]
fn the_event_of_a_drain_names_the_job_that_ends_last() {
    let mut facts = facts_of(vec![(worker(0), "ALLOCATED", ""), (worker(1), "ALLOCATED", "")]);
    let job = |id, minutes| Job { id, ends: Some(NOW + SignedDuration::from_mins(minutes)), is_ending: false };
    edit_snapshot(&mut facts, |snapshot| {
        let jobs = [("gpu-0".to_owned(), vec![job(16, 5)]), ("gpu-1".to_owned(), vec![job(17, 9), job(18, 2)])];
        snapshot.jobs = jobs_of(jobs);
    });
    let expected = format!("ScalingDown: draining gpu-[0-1]: {OURS}; gpu-1: blocked by job 17 until 08:09 UTC");
    assert_eq!(events(&decide(&model(0), &facts)), [expected]);
}
