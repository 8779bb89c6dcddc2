//! Pods without an owner, and pods without labels.

use slurm_operator_api::common::conditions::DEGRADED;

use super::{super::*, *};

#[test]
fn orphans_with_our_name_and_a_known_revision_are_adopted_and_not_created_again() {
    let orphan = |ordinal, revision: &str| Arc::new(Worker { revision: Some(revision.into()), ..worker(ordinal) });
    let strange = Arc::new(Worker { name: "gpu-x".into(), ..worker(7) });
    let terminating = Arc::new(Worker { terminating: true, ..worker(3) });
    let mut facts = facts_of(idle(0..1));
    facts.orphans = vec![orphan(1, "new"), orphan(2, "old"), terminating, strange, orphan(5, "of-somebody")];
    let decision = decide(&model(4), &facts);
    // The name of a pod that is not adopted is not used either.
    assert_eq!(actions(&decision), ["adopt gpu-1"]);
    let degraded = new_condition(&decision, DEGRADED);
    assert!(
        degraded.message.contains("the Slurm node names gpu-2 are those of the pod gpu-2, which has no owner"),
        "{degraded:?}"
    );
    facts.known_revisions = ["old".to_owned()].into();
    assert_eq!(actions(&decide(&model(5), &facts)), ["adopt gpu-1", "adopt gpu-2", "create gpu-4"]);
    // Its record, and with it the drain, is kept.
    let drained = record_of(&worker(1), "IDLE+DRAIN", OURS);
    edit_snapshot(&mut facts, |snapshot| drop(Arc::make_mut(&mut snapshot.nodes).insert("gpu-1".into(), drained)));
    // One that is not wanted is adopted too: it is drained before it goes.
    assert_eq!(actions(&decide(&model(1), &facts)), ["adopt gpu-1", "adopt gpu-2"]);
    let paused = Model { life: Life::Paused, ..model(4) };
    assert_eq!(actions(&decide(&paused, &facts)), ["adopt gpu-1", "adopt gpu-2"]);
    assert_eq!(actions(&decide(&Model { life: Life::Deleted, ..model(1) }, &facts)), nothing());
}

#[test]
fn lost_labels_are_restored() {
    let label = &VOCABULARY.label;
    let missing_labels = vec![label.instance, label.pod_name, label.pod_hostname, label.scaling_mode, label.pod_index];
    let bare = Worker { missing_labels, mode: None, index: None, ..worker(0) };
    let decision = decide(&model(2), &facts_of(vec![(bare, "IDLE", ""), (worker(1), "IDLE", "")]));
    let [WorkerAction::Patch { labels, .. }] = &decision.actions[..] else { panic!("{decision:?}") };
    let text = |key: &str| labels[key].as_deref();
    assert_eq!(
        [text(label.instance), text(label.pod_name), text(label.pod_index)],
        [Some("gpu"), Some("gpu-0"), Some("0")]
    );
    assert_eq!([text(label.pod_hostname), text(label.scaling_mode)], [Some("gpu-0"), Some(Mode::Numbered.as_str())]);
}

#[test]
fn an_update_waits_for_orphans_which_may_be_draining_for_it() {
    let old = |ordinal| Worker { revision: Some("old".into()), ..worker(ordinal) };
    let model = Model { update: Update::Rolling { max_unavailable: Budget::Number(1) }, ..model(2) };
    let mut facts = facts_of(vec![(old(1), "IDLE", ""), (old(2), "IDLE", "")]);
    facts.known_revisions = ["old".to_owned()].into();
    let drains = |facts: &Facts| {
        actions(&decide(&model, facts)).into_iter().filter(|action| action.starts_with("drain")).count()
    };
    assert_eq!(drains(&facts), 1);
    facts.orphans = vec![Arc::new(old(0))];
    assert_eq!(drains(&facts), 0);
}
