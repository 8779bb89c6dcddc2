//! Generic resources of workers and of their Slurm nodes.

use super::*;
use crate::conditions::ConditionStatus;

/// Workers that hold two GPUs each, and what Slurm has of them: state, reason and generic resources.
fn found(nodes: &[(&str, &str, &str)]) -> (ConditionStatus, String) {
    let held = HeldGres { counts: [("gpu".to_owned(), 2)].into(), advice: "do this".into() };
    let count = u32::try_from(nodes.len()).unwrap();
    let model = Model { gres: Some(held), ..model(count) };
    let workers = (0..count).zip(nodes).map(|(ordinal, (state, reason, _))| (worker(ordinal), *state, *reason));
    let mut facts = facts_of(workers.collect());
    edit_snapshot(&mut facts, |snapshot| {
        for (ordinal, (_, _, gres)) in nodes.iter().enumerate() {
            let node = Arc::make_mut(&mut snapshot.nodes).get_mut(&format!("gpu-{ordinal}")).unwrap();
            node.gres = (*gres).into();
        }
    });
    let decision = decide(&model, &facts);
    let condition = new_condition(&decision, "GresMismatch");
    let degraded = new_condition(&decision, "Degraded");
    let is_mismatch = condition.status == ConditionStatus::True;
    assert_eq!(degraded.message.contains(&condition.message), is_mismatch, "{degraded:?}");
    (condition.status, condition.message.clone())
}

#[test]
fn what_slurm_has_is_compared_with_what_workers_hold() {
    let good = ("IDLE", "", "gpu:h100:2(S:0-1),fpga:1");
    assert_eq!(found(&[good, ("IDLE", "", "gpu:2")]).0, ConditionStatus::False);
    let (status, message) = found(&[good, ("IDLE", "", ""), ("IDLE", "", "gpu:8")]);
    assert_eq!(status, ConditionStatus::True);
    assert_eq!(message, "the workers gpu-[1-2] hold gpu:2, but Slurm has none: do this");
    let lower = "gres/gpu count reported lower than configured (0 < 2)";
    let (status, message) = found(&[good, ("IDLE+DRAIN+INVALID_REG", lower, "gpu:2")]);
    assert_eq!(status, ConditionStatus::True);
    assert!(message.starts_with(&format!("Slurm refuses gpu-1 ({lower})")), "{message}");
    let bound = "gres/gpu GRES autodetected core affinity 0 on node gpu-0 doesn't match socket boundaries";
    let (_, message) = found(&[("IDLE+DRAIN+INVALID_REG", bound, "gpu:1")]);
    assert!(message.contains(bound) && !message.contains("do this"), "{message}");
    assert_eq!(found(&[("IDLE+DRAIN+INVALID_REG", "Low RealMemory", "gpu:2")]).0, ConditionStatus::False);
}

#[test]
fn an_older_worker_may_hold_something_else() {
    let held = HeldGres { counts: [("gpu".to_owned(), 2)].into(), advice: String::new() };
    let model = Model { gres: Some(held), update: Update::OnDelete, ..model(1) };
    let mut facts = facts_of(idle([0]));
    assert_eq!(new_condition(&decide(&model, &facts), "GresMismatch").status, ConditionStatus::True);
    edit_worker(&mut facts, "gpu-0", |worker| worker.revision = Some("old".into()));
    assert_eq!(new_condition(&decide(&model, &facts), "GresMismatch").status, ConditionStatus::False);
    facts.slurm = SlurmObservation::NoClient { why: "not polled yet".into() };
    assert_eq!(new_condition(&decide(&model, &facts), "GresMismatch").status, ConditionStatus::Unknown);
}

#[test]
fn without_generic_resources_there_is_no_condition() {
    let decision = decide(&model(1), &facts_of(idle([0])));
    assert!(decision.conditions.iter().all(|condition| condition.type_ != "GresMismatch"));
}

#[test]
fn a_worker_that_slurmctld_refuses_is_replaced_with_its_record() {
    let lower = "gres/gpu count reported lower than configured (0 < 2)";
    let mut facts = facts_of(vec![(worker(0), "IDLE+DRAIN+INVALID_REG", lower)]);
    edit_worker(&mut facts, "gpu-0", |worker| worker.revision = Some("old".into()));
    let replaced = actions(&decide(&rolling(1, Budget::Number(1)), &facts));
    assert!(replaced.contains(&"delete gpu-0".to_owned()), "{replaced:?}");
    // What an admin has drained stays.
    let mut facts = facts_of(vec![(worker(0), "IDLE+DRAIN", "broken fan")]);
    edit_worker(&mut facts, "gpu-0", |worker| worker.revision = Some("old".into()));
    let kept = actions(&decide(&rolling(1, Budget::Number(1)), &facts));
    assert!(!kept.contains(&"delete gpu-0".to_owned()), "{kept:?}");

    let left = |reason: &str| {
        let mut facts = Facts::default();
        let nodes = [("gpu-0".to_owned(), record_of(&worker(0), "DOWN+DRAIN", reason))];
        facts.slurm = SlurmObservation::Clear(Arc::new(snapshot(nodes.into())));
        actions(&decide(&model(1), &facts))
    };
    assert_eq!(left(lower), ["create gpu-0 anew"]);
    assert_eq!(left("broken fan"), ["create gpu-0"]);
}
