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

/// Notes that slurmctld has reread the last change, after it was asked at this time, in seconds from now.
fn reread(facts: &mut Facts, asked: i64) {
    let annotations = facts.config_map.as_mut().unwrap().metadata.annotations.as_mut().unwrap();
    let changed = annotations[CHANGED].clone();
    annotations.insert("slinky.slurm.net/slurm-config-reread".into(), changed);
    annotations.insert("slinky.slurm.net/slurm-config-asked".into(), later(asked).to_string());
}

fn later(seconds: i64) -> Timestamp {
    NOW + SignedDuration::from_secs(seconds)
}

/// Workers whose slurmd started at these times, in seconds from now.
fn workers(started: &[Option<i64>]) -> Arc<Snapshot> {
    let node = |(number, started): (usize, &Option<i64>)| {
        let slurmd_started = started.map(later);
        let states = [NodeState::Idle].into_iter().collect();
        (format!("w-{number}"), SlurmNode { states, slurmd_started, ..SlurmNode::default() })
    };
    let nodes = Arc::new(started.iter().enumerate().map(node).collect());
    Arc::new(Snapshot { nodes, ..(*no_jobs()).clone() })
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
                    lab-controller-0, then set slinky.slurm.net/slurm-config-asked, slinky.slurm.net/slurm-config-reread of ConfigMap \
                    lab-config";
    assert_eq!(chain(&plan).as_deref(), Some(expected));
    assert_ne!(plan.next, Next::OnChange);
    let map = object(&plan, "ConfigMap", "lab-config");
    assert_eq!(map["metadata"]["annotations"][CHANGED], NOW.to_string(), "the change keeps its name");

    // A mistake that is refused does not stop it.
    let refused = planned(&extra("SchedulerParamters=defer"), &facts);
    assert_eq!(chain(&refused).as_deref(), Some(expected));

    reread(&mut facts, 0);
    for (snapshot, status, reason) in [
        (None, ConditionStatus::Unknown, "SlurmUnreachable"),
        (Some(workers(&[Some(1), Some(-100)])), ConditionStatus::False, "Rereading"),
        (Some(workers(&[Some(1), None])), ConditionStatus::False, "Rereading"),
        (Some(workers(&[Some(1), Some(2)])), ConditionStatus::True, "AsExpected"),
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

#[test]
fn of_two_changes_in_a_row_it_is_known_which_one_a_slurmd_has() {
    let (first, second) = (extra("SchedulerParameters=defer"), extra("SchedulerParameters=bf_continue"));
    let mut facts = after(&second, after(&first, after(&extra(""), base_facts())));
    // Both workers have just reread the first change.
    facts.snapshot = Some(workers(&[Some(-2), Some(-3)]));
    let plan = planned(&second, &facts);
    assert_eq!((in_effect(&plan).1, chain(&plan)), ("Rereading", None));
    for seconds in [4, 9, 10] {
        let plan = super::plan(&second, &facts, later(seconds));
        assert_eq!(chain(&plan).is_some(), seconds > 3, "after {seconds} s");
    }
    reread(&mut facts, 4);
    let plan = planned(&second, &facts);
    assert_eq!((in_effect(&plan).0, in_effect(&plan).1), (ConditionStatus::False, "Rereading"));
    // Workers that start all the time do not stop it.
    facts = after(&second, after(&first, after(&extra(""), base_facts())));
    facts.snapshot = Some(workers(&[Some(9)]));
    assert_eq!(chain(&super::plan(&second, &facts, later(9))), None);
    assert!(chain(&super::plan(&second, &facts, later(10))).is_some());
}

/// slurmctld may end before it has told every slurmd.
#[test]
fn a_slurmd_that_was_not_told_is_told_later() {
    let (old, new) = (extra(""), extra("SchedulerParameters=defer"));
    let mut facts = after(&new, after(&old, base_facts()));
    facts.snapshot = Some(workers(&[Some(-100)]));
    for (asked, now, is_asked) in [(0, 59, false), (0, 61, true), (61, 122, false), (61, 123, true), (130, 250, false)]
    {
        reread(&mut facts, asked);
        let plan = plan(&new, &facts, later(now));
        assert_eq!((in_effect(&plan).1, chain(&plan).is_some()), ("Rereading", is_asked), "{asked} {now}");
        if !is_asked {
            continue;
        }
        let Some(Step::Chain(steps)) = plan.stages.last().and_then(|stage| stage.first()) else { panic!("no chain") };
        let Some(Step::Reread(files)) = steps.get(1) else { panic!("no reread") };
        assert_eq!(files.change, format!("{NOW} {}", later(asked)), "slurmctld is asked once for each name");
    }
}

/// config-proven
#[test]
fn what_slurmd_reads_is_not_sent_to_workers_that_run() {
    let (old, risky) = (extra(""), extra("TaskPlugin=task/none"));
    let mut facts = after(&old, Facts { snapshot: Some(workers(&[Some(-100)])), ..base_facts() });
    let calm = template_hash(&planned(&old, &facts));
    let plan = planned(&risky, &facts);
    assert_ne!(template_hash(&plan), calm, "slurmctld restarts");
    facts = after(&risky, facts);
    facts.pods[0].metadata.creation_timestamp = Some(Time(later(10)));
    facts.snapshot = Some(workers(&[Some(3), Some(20)]));
    let plan = planned(&risky, &facts);
    assert_eq!((in_effect(&plan).1, chain(&plan)), ("WorkersNotTold", None));
    assert!(in_effect(&plan).2.ends_with(": w-0"), "w-0 started before slurmctld: {}", in_effect(&plan).2);

    // Neither is it with the next change, whatever that is, unless the risky part is taken back.
    let restarted = template_hash(&plan);
    let next = |object: &Controller, facts: &Facts| template_hash(&super::plan(object, facts, later(7)));
    let harmless = extra("TaskPlugin=task/none\nSchedulerParameters=defer");
    assert_eq!(next(&harmless, &facts), later(7).to_string(), "slurmctld restarts again");
    assert_eq!(next(&extra("SchedulerParameters=defer"), &facts), restarted, "it is reread");

    // Once all workers have started with it, it has proved itself.
    let all_have_it = |facts: &Facts| {
        let map = object(&planned(&risky, facts), "ConfigMap", "lab-config");
        let annotations = &map["metadata"]["annotations"];
        annotations["slinky.slurm.net/slurmd-has-hash"] == annotations["slinky.slurm.net/for-slurmd-hash"]
    };
    let all = workers(&[Some(15), Some(20)]);
    let mut with_silent = (*all).clone();
    let states = [NodeState::Allocated, NodeState::NotResponding].into_iter().collect();
    let silent = SlurmNode { states, slurmd_started: Some(later(-100)), ..SlurmNode::default() };
    Arc::make_mut(&mut with_silent.nodes).insert("w-2".to_owned(), silent);
    facts.snapshot = Some(Arc::new(with_silent));
    assert!(!all_have_it(&facts), "w-2 may be back soon, with what it had");
    facts.snapshot = Some(all);
    assert!(all_have_it(&facts));
    let created = facts.pods[0].metadata.creation_timestamp.clone();
    let mut facts = after(&risky, facts);
    facts.pods[0].metadata.creation_timestamp = created;
    assert_eq!(next(&harmless, &facts), restarted, "it is reread");
    assert_eq!(in_effect(&super::plan(&risky, &facts, later(30))).0, ConditionStatus::True);
    // Another pod of slurmctld does not tell which of them have it.
    facts.pods[0].metadata.creation_timestamp = Some(Time(later(25)));
    let plan = super::plan(&risky, &facts, later(30));
    assert_eq!((in_effect(&plan).1, chain(&plan).is_some()), ("Rereading", true));
    reread(&mut facts, 30);
    facts.snapshot = Some(workers(&[Some(31), Some(32)]));
    assert_eq!(in_effect(&super::plan(&risky, &facts, later(40))).0, ConditionStatus::True);
}

#[test]
fn only_lines_that_cannot_harm_slurmd_are_reread() {
    let facts = after(&extra(""), base_facts());
    let calm = template_hash(&planned(&extra(""), &facts));
    for (text, is_reread) in [
        ("SchedulerParameters=defer", true),
        ("schedulerparameters=bf_continue", true),
        ("# a comment", true),
        ("PartitionName=p Nodes=ALL QOS=q", true),
        ("NodeSet=s Feature=f", true),
        // slurmd acts on these words.
        ("SchedulerParameters=defer,Ignore_NUMA", false),
        ("SchedulerParameters=spec_cores_first", false),
        ("NodeName=n CPUs=1", false),
        ("GresTypes=gpu", false),
        ("SlurmdTimeout=60", false),
    ] {
        let plan = planned(&extra(text), &facts);
        assert_eq!(condition_of(&plan, "ConfigurationValid").0, ConditionStatus::True, "{text}: {:?}", plan.conditions);
        assert_eq!(template_hash(&plan) == calm, is_reread, "{text}");
    }
}

#[test]
fn files_that_slurmctld_does_not_send_are_reread() {
    let object_ = controller(&json!({"configFileRefs": [{"name": "files"}]}));
    let with = |file: &str, text: &str, facts: Facts| {
        let files = Files::from([(file.to_owned(), text.as_bytes().to_vec())]);
        Facts { config_maps: BTreeMap::from([("files".to_owned(), Some(files))]), ..facts }
    };
    for (file, is_reread) in [("job_submit.lua", true), ("cli_filter.lua", false), ("topology.conf", false)] {
        let facts = after(&object_, with(file, "-- one", base_facts()));
        let calm = template_hash(&planned(&object_, &facts));
        let plan = planned(&object_, &with(file, "-- two", facts));
        assert_eq!(template_hash(&plan) == calm, is_reread, "{file}");
        assert_eq!(in_effect(&plan).1, "NotWritten", "{file}");
    }
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
        assert_eq!(annotations.as_object().unwrap().len(), 2, "{annotations}");
    }
}
