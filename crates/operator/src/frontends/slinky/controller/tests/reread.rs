//! A changed configuration is reread, if every slurmd has what it needs of it.

use k8s_openapi::api::core::v1::ConfigMap;
use slurm::states::NodeState;

use super::{changes::settled, *};

const CHANGED: &str = "slinky.slurm.net/slurm-config-changed";

fn extra(text: &str) -> Controller {
    controller(&json!({ "extraConf": text }))
}

/// The cluster after what was planned was carried out. It has one pod, which is ready.
fn after(object: &Controller, facts: Facts) -> Facts {
    let mut pod = pod("new", &json!({"conditions": [{"type": "Ready", "status": "True"}]}));
    pod.metadata.creation_timestamp = Some(Time(NOW - SignedDuration::from_hours(1)));
    pod.labels_mut().insert("controller.slinky.slurm.net/active".into(), "true".into());
    Facts { pods: vec![pod], ..settled(object, facts) }
}

fn in_effect(plan: &Plan<ControllerStatus>) -> (ConditionStatus, &'static str, &str) {
    condition_of(plan, "ConfigurationInEffect")
}

fn template_hash(plan: &Plan<ControllerStatus>) -> Value {
    stateful_set(plan)["spec"]["template"]["metadata"]["annotations"]["slinky.slurm.net/slurm-config-hash"].clone()
}

/// The chain that makes slurmctld reread its files.
fn chain(plan: &Plan<ControllerStatus>) -> Option<String> {
    let steps = plan.stages.last()?;
    steps.iter().find(|step| matches!(step, Step::Chain(_))).map(Step::title)
}

/// Notes that slurmctld has reread the last change.
fn reread(facts: &mut Facts) {
    let annotations = facts.config_map.as_mut().unwrap().metadata.annotations.as_mut().unwrap();
    let changed = annotations[CHANGED].clone();
    annotations.insert("slinky.slurm.net/slurm-config-reread".into(), changed);
}

/// Workers whose slurmd started at these times, in seconds from now.
fn workers(started: &[Option<i64>]) -> Option<Arc<Snapshot>> {
    let node = |(number, started): (usize, &Option<i64>)| {
        let slurmd_started = started.map(|seconds| NOW + SignedDuration::from_secs(seconds));
        let states = [NodeState::Idle].into_iter().collect();
        (format!("w-{number}"), SlurmNode { states, slurmd_started, ..SlurmNode::default() })
    };
    let nodes = Arc::new(started.iter().enumerate().map(node).collect());
    Some(Arc::new(Snapshot { nodes, ctld_started: Some(NOW + SignedDuration::from_secs(10)), ..(*no_jobs()).clone() }))
}

#[test]
fn a_change_of_what_only_slurmctld_reads_is_reread() {
    let (old, new) = (extra(""), extra("SchedulerParameters=defer\nPartitionName=all Nodes=ALL"));
    let facts = after(&old, base_facts());
    let calm = planned(&old, &facts);
    assert_eq!((in_effect(&calm).0, chain(&calm)), (ConditionStatus::True, None));

    let plan = planned(&new, &facts);
    assert_eq!(template_hash(&plan), template_hash(&calm), "slurmctld does not restart");
    assert_eq!((in_effect(&plan).1, chain(&plan)), ("NotWritten", None), "first it is written");
    let mut facts = after(&new, facts);
    let plan = planned(&new, &facts);
    assert_eq!((in_effect(&plan).0, in_effect(&plan).1), (ConditionStatus::False, "Rereading"));
    let expected = "set slinky.slurm.net/slurm-config-sync of Pod lab-controller-0, then reread the configuration in Pod \
                    lab-controller-0, then set slinky.slurm.net/slurm-config-reread of ConfigMap lab-config";
    assert_eq!(chain(&plan).as_deref(), Some(expected));
    assert_ne!(plan.next, Next::OnChange);
    let map = object(&plan, "ConfigMap", "lab-config");
    assert_eq!(map["metadata"]["annotations"][CHANGED], NOW.to_string(), "the change keeps its name");

    // A mistake that is refused does not stop it.
    let refused = planned(&extra("SchedulerParamters=defer"), &facts);
    assert_eq!(chain(&refused).as_deref(), Some(expected));

    reread(&mut facts);
    for (snapshot, status, reason) in [
        (None, ConditionStatus::Unknown, "SlurmUnreachable"),
        (workers(&[Some(1), Some(-100)]), ConditionStatus::False, "Rereading"),
        (workers(&[Some(1), None]), ConditionStatus::False, "Rereading"),
        (workers(&[Some(1), Some(2)]), ConditionStatus::True, "AsExpected"),
    ] {
        facts.snapshot = snapshot;
        let plan = planned(&new, &facts);
        assert_eq!((in_effect(&plan).0, in_effect(&plan).1, chain(&plan)), (status, reason, None));
        assert_eq!(plan.next == Next::OnChange, status == ConditionStatus::True);
        assert!(reason != "Rereading" || in_effect(&plan).2.contains("w-1"), "{}", in_effect(&plan).2);
    }
    // Back to what it was is a change, too.
    let plan = planned(&old, &facts);
    assert_eq!((in_effect(&plan).1, template_hash(&plan)), ("NotWritten", template_hash(&calm)));
}

/// config-proven
#[test]
fn what_slurmd_reads_is_not_sent_to_workers_that_run() {
    let (old, risky) = (extra(""), extra("TaskPlugin=task/none"));
    let mut facts = after(&old, Facts { snapshot: workers(&[Some(-100)]), ..base_facts() });
    let calm = template_hash(&planned(&old, &facts));
    let plan = planned(&risky, &facts);
    assert_ne!(template_hash(&plan), calm, "slurmctld restarts");
    facts = after(&risky, facts);
    facts.snapshot = workers(&[Some(3), Some(20)]);
    let plan = planned(&risky, &facts);
    assert_eq!((in_effect(&plan).1, chain(&plan)), ("WorkersNotTold", None));
    assert!(in_effect(&plan).2.ends_with(": w-0"), "w-0 started before slurmctld: {}", in_effect(&plan).2);

    // Neither is it with the next change, whatever that is, unless the risky part is taken back.
    let restarted = template_hash(&plan);
    let later = NOW + SignedDuration::from_secs(7);
    let next = |object: &Controller, facts: &Facts| template_hash(&super::plan(object, facts, later));
    let harmless = extra("TaskPlugin=task/none\nSchedulerParameters=defer");
    assert_eq!(next(&harmless, &facts), later.to_string(), "slurmctld restarts again");
    assert_eq!(next(&extra("SchedulerParameters=defer"), &facts), restarted, "it is reread");

    // Once all workers have started with it, it has proved itself.
    facts.snapshot = workers(&[Some(15), Some(20)]);
    let facts = after(&risky, facts);
    assert_eq!(in_effect(&planned(&risky, &facts)).0, ConditionStatus::True);
    assert_eq!(next(&harmless, &facts), restarted, "it is reread");
}

#[test]
fn an_upgrade_restarts_nothing_and_trusts_no_slurmd() {
    let object_ = extra("");
    let mut facts = after(&object_, base_facts());
    let before = template_hash(&planned(&object_, &facts));
    let config_map: &mut ConfigMap = facts.config_map.as_mut().unwrap();
    config_map.metadata.annotations = None;
    let plan = planned(&object_, &facts);
    assert_eq!((template_hash(&plan), chain(&plan)), (before.clone(), None));
    let facts = after(&object_, facts);
    assert_ne!(template_hash(&planned(&extra("SchedulerParameters=defer"), &facts)), before);
}

#[test]
fn a_slurmctld_that_cannot_start_gets_the_next_change_at_once() {
    let (bad, good) = (extra("SchedulerParameters=bad"), extra("SchedulerParameters=defer"));
    let mut facts = after(&good, after(&bad, base_facts()));
    facts.stateful_set.as_mut().unwrap().status.as_mut().unwrap().ready_replicas = Some(0);
    let status = |restarts: i32| {
        json!({"containerStatuses": [{
            "name": "slurmctld", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "ready": false, "restartCount": restarts, "image": "", "imageID": "",
        }]})
    };
    let deletes = |facts: &Facts| {
        let plan = planned(&good, facts);
        assert_eq!((in_effect(&plan).1, chain(&plan)), ("PodsNotReady", None));
        names(&plan).concat().contains(&"delete Pod lab-controller-0".to_owned())
    };
    for (restarts, created, deleted) in [(3, -60, true), (0, -60, false), (3, 60, false)] {
        facts.pods = vec![pod("new", &status(restarts))];
        facts.pods[0].labels_mut().insert("controller.slinky.slurm.net/active".into(), "true".into());
        facts.pods[0].metadata.creation_timestamp = Some(Time(NOW + SignedDuration::from_secs(created)));
        assert_eq!(deletes(&facts), deleted, "{restarts} {created}");
    }
}

#[test]
fn with_backups_or_a_sidecar_it_is_as_it_was() {
    for spec in
        [json!({"inplaceReconfigure": true}), json!({"ha": {"enabled": true}, "persistence": {"existingClaim": "s"}})]
    {
        let object_ = controller(&spec);
        let claim = || Some(ha::claim("s", "ReadWriteMany"));
        let facts = settled(&object_, Facts { claim: claim(), ..base_facts() });
        let plan = planned(&object_, &facts);
        assert!(!plan.conditions.iter().any(|condition| condition.type_ == "ConfigurationInEffect"));
        let annotations = object(&plan, "ConfigMap", "lab-config")["metadata"]["annotations"].clone();
        assert_eq!(annotations.as_object().unwrap().len(), 1, "{annotations}");
    }
}
