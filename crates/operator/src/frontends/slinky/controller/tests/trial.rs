//! A configuration is tried before it reaches a running cluster.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use slurm::{states::NodeState, version::SlurmVersion};

use super::{
    super::plan_trial::SlurmdTemplate,
    changes::{one_job, settled},
    *,
};

const TRIED: &str = "slinky.slurm.net/tried-hash";

fn with_gres() -> Controller {
    controller(&json!({"configFileRefs": [{"name": "files"}], "extraConf": "GresTypes=gpu"}))
}

/// A cluster that runs with this gres.conf, with a worker of this release and a job.
fn cluster(version: SlurmVersion) -> Facts {
    let mut facts = wanting(base_facts(), "Name=gpu File=/dev/nvidia0\n");
    let slurmd = json!({"container": {"image": "slurmd:24.11"}, "template": {}});
    facts.slurmd = vec![SlurmdTemplate {
        container: serde_json::from_value(slurmd["container"].clone()).unwrap(),
        template: serde_json::from_value(slurmd["template"].clone()).unwrap(),
    }];
    let tried = object(&planned(&with_gres(), &facts), "ConfigMap", "lab-config");
    let mut facts = settled(&with_gres(), facts);
    let annotations = facts.config_map.as_mut().unwrap().metadata.annotations.as_mut().unwrap();
    annotations.insert(TRIED.into(), tried["metadata"]["annotations"][TRIED].as_str().unwrap().into());
    let states = [NodeState::Allocated].into_iter().collect();
    let node = SlurmNode { states, version: Some(version), ..SlurmNode::default() };
    let nodes = Arc::new([("w-0".to_owned(), node)].into());
    facts.snapshot = Some(Arc::new(Snapshot { nodes, ..(*one_job("p", "f")).clone() }));
    facts
}

fn wanting(facts: Facts, gres: &str) -> Facts {
    let files: Files = [("gres.conf".to_owned(), gres.into())].into();
    Facts { config_maps: [("files".to_owned(), Some(files))].into(), ..facts }
}

const V24: SlurmVersion = SlurmVersion::new(24, 11);

/// The pod of the trial that a plan starts.
fn started(plan: &Plan<ControllerStatus>) -> Pod {
    let mut pods = plan.stages.iter().flatten().filter_map(|step| match step {
        Step::Apply(desired) if desired.resource.kind == "Pod" => Some(serde_json::to_value(&desired.object).unwrap()),
        _ => None,
    });
    let mut pod: Pod = serde_json::from_value(pods.next_back().unwrap_or_else(|| panic!("{:?}", names(plan)))).unwrap();
    pod.metadata.uid = Some("trial".into());
    pod.metadata.resource_version = Some("1".into());
    pod
}

/// The cluster when a container of the trial has ended.
fn ended(facts: Facts, container: &str, code: i32, message: &str, minutes_ago: i64) -> Facts {
    let mut pod = started(&planned(&with_gres(), &facts));
    let finished = NOW - SignedDuration::from_mins(minutes_ago);
    pod.status = Some(
        serde_json::from_value(json!({"phase": "Running", "containerStatuses": [{
            "name": container, "image": "i:1", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "message": message, "finishedAt": finished.to_string()}},
        }]}))
        .unwrap(),
    );
    let name = pod.name_any();
    let map = json!({"metadata": {"name": name, "uid": "m", "resourceVersion": "1"}});
    Facts { trial_pods: vec![pod], trial_config_maps: vec![serde_json::from_value(map).unwrap()], ..facts }
}

fn valid(plan: &Plan<ControllerStatus>) -> (ConditionStatus, &'static str, &str) {
    condition_of(plan, "ConfigurationValid")
}

/// Kinds of what is written, without Services.
fn written(plan: &Plan<ControllerStatus>) -> Vec<String> {
    let all = names(plan).concat().into_iter().filter(|name| !name.starts_with("Service "));
    all.map(|name| name.split("-trial-").next().unwrap().to_owned()).collect()
}

const ALL_WRITTEN: [&str; 3] = ["ConfigMap lab-copy-of-files", "ConfigMap lab-config", "StatefulSet lab-controller"];

#[test]
fn what_is_in_use_is_not_tried() {
    let plan = planned(&with_gres(), &cluster(V24));
    assert_eq!((valid(&plan).0, valid(&plan).1), (ConditionStatus::True, "AsExpected"));
    assert_eq!(written(&plan), ALL_WRITTEN);
}

#[test]
fn a_new_cluster_has_nothing_to_lose() {
    let plan = planned(&with_gres(), &wanting(base_facts(), "Name=gpu Count=1\n"));
    assert_eq!(written(&plan), ALL_WRITTEN);
}

#[test]
fn a_change_is_tried_before_it_is_written() {
    let facts = wanting(cluster(V24), "Name=gpu Count=1\n");
    let plan = planned(&with_gres(), &facts);
    assert_eq!(written(&plan), ["ConfigMap lab-controller", "Pod lab-controller"]);
    let (status, reason, message) = valid(&plan);
    assert_eq!((status, reason), (ConditionStatus::Unknown, "Trying"));
    assert!(message.contains("lab-controller-trial-"), "{message}");
    assert_eq!(condition_of(&plan, "Degraded").0, ConditionStatus::False, "waiting helps");
    assert_eq!(condition_of(&plan, "Ready").0, ConditionStatus::True);
    // Its pod runs.
    let pod = started(&plan);
    let plan = planned(&with_gres(), &Facts { trial_pods: vec![pod], ..facts });
    assert!(written(&plan).is_empty(), "{:?}", names(&plan));
    assert_eq!((valid(&plan).1, plan.next), ("Trying", Next::After(Duration::from_secs(5))));
}

#[test]
fn what_slurm_has_read_is_written_while_jobs_run_and_sent_to_slurmd() {
    let facts = ended(wanting(cluster(V24), "Name=gpu Count=1\n"), "slurmctld", 0, "24.11.5\n", 0);
    let plan = planned(&with_gres(), &facts);
    assert_eq!(written(&plan), ALL_WRITTEN);
    assert_eq!(valid(&plan).0, ConditionStatus::True);
    let before = stateful_set(&planned(&with_gres(), &cluster(V24)));
    assert_eq!(stateful_set(&plan)["spec"], before["spec"], "slurmctld does not restart");
    // It is in use: the trial is removed.
    let map: ConfigMap = serde_json::from_value(object(&plan, "ConfigMap", "lab-config")).unwrap();
    let after = planned(&with_gres(), &Facts { config_map: Some(map), ..facts });
    assert_eq!(
        written(&after)[2..],
        ["delete ConfigMap lab-controller", "delete Pod lab-controller", "StatefulSet lab-controller"]
    );
}

#[test]
fn a_slurmd_of_a_release_that_was_not_tried_is_not_told() {
    let old = SlurmVersion::new(23, 11);
    let facts = ended(wanting(cluster(old), "Name=gpu Count=1\n"), "slurmctld", 0, "24.11.5\n", 0);
    let plan = planned(&with_gres(), &facts);
    assert_eq!(condition_of(&plan, "Degraded").1, "JobsWouldBeLost");
    assert!(written(&plan).is_empty(), "{:?}", names(&plan));
}

#[test]
fn what_slurm_refuses_is_not_written() {
    let words = "error: spank: Failed to load plugin x.so\nerror: slurmd initialization failed\n";
    let facts = |minutes| ended(wanting(cluster(V24), "Name=gpu Count=1\n"), "slurmd-0", 1, words, minutes);
    let plan = planned(&with_gres(), &facts(0));
    let (status, reason, message) = valid(&plan);
    assert_eq!((status, reason), (ConditionStatus::False, "RefusedBySlurm"));
    assert!(message.contains("slurmd of i:1") && message.contains("Failed to load plugin x.so"), "{message}");
    assert!(message.ends_with("The last good configuration is kept"), "{message}");
    assert_eq!(condition_of(&plan, "Degraded").1, "InvalidSpec");
    assert!(written(&plan).is_empty(), "{:?}", names(&plan));
    assert!(plan.events.iter().any(|event| event.text.contains("x.so")));
    // No loop: only after a while.
    assert!(written(&planned(&with_gres(), &facts(9))).is_empty());
    let again = written(&planned(&with_gres(), &facts(11)));
    assert_eq!(again, ["delete ConfigMap lab-controller", "delete Pod lab-controller"]);
    // With consent, or when it is corrected.
    let mut consent = with_gres();
    consent.annotations_mut().insert("controller.slinky.slurm.net/allow-job-loss".into(), "true".into());
    assert!(written(&planned(&consent, &facts(0))).contains(&"ConfigMap lab-config".to_owned()));
    let back = wanting(facts(0), "Name=gpu File=/dev/nvidia0\n");
    assert!(written(&planned(&with_gres(), &back)).contains(&"delete Pod lab-controller".to_owned()));
    let another = written(&planned(&with_gres(), &wanting(facts(0), "Name=gpu Count=2\n")));
    assert_eq!(
        another,
        [
            "ConfigMap lab-controller",
            "Pod lab-controller",
            "delete ConfigMap lab-controller",
            "delete Pod lab-controller"
        ]
    );
}

#[test]
fn what_cannot_be_tried_waits_for_jobs_or_consent() {
    let words = "fatal: can't stat gres.conf file /dev/nvidia1: No such file or directory\n";
    let mut facts = ended(wanting(cluster(V24), "Name=gpu File=/dev/nvidia1\n"), "slurmd-0", 1, words, 0);
    let plan = planned(&with_gres(), &facts);
    let (status, reason, message) = valid(&plan);
    assert_eq!((status, reason), (ConditionStatus::Unknown, "NotTried"));
    assert!(message.contains("/dev/nvidia1"), "{message}");
    let (_, reason, message) = condition_of(&plan, "Degraded");
    assert_eq!(reason, "JobsWouldBeLost");
    assert!(message.contains("/dev/nvidia1") && message.contains("allow-job-loss"), "{message}");
    assert!(written(&plan).is_empty(), "{:?}", names(&plan));
    facts.snapshot = Some(no_jobs());
    assert!(written(&planned(&with_gres(), &facts)).contains(&"ConfigMap lab-config".to_owned()));
}
