//! Changes of a running cluster: what it depends on is kept, and jobs are not lost.

use std::time::Duration;

use engine::{config::NodeSetLine, podset::PodInfo};
use k8s_openapi::api::core::v1::ConfigMap;
use slurm::states::NodeState;
use slurm_operator_api::slinky::VOCABULARY;

use super::*;

/// An answer of Slurm with one job in this partition, on a node with this feature.
pub(super) fn one_job(partition: &str, feature: &str) -> Arc<Snapshot> {
    let jobs = JobIndex { by_partition: [(partition.to_owned(), 1)].into(), ..JobIndex::default() };
    let node = SlurmNode { features: vec![feature.to_owned()], ..SlurmNode::default() };
    Arc::new(Snapshot {
        nodes: Arc::new([("w-0".to_owned(), node)].into()),
        jobs: Jobs::Read(JobList { jobs: Arc::new(jobs), ..JobList::default() }),
        ..(*no_jobs()).clone()
    })
}

fn line(name: &str, partition: Option<&str>) -> NodeSetLine {
    let partition = partition.map(str::to_owned);
    NodeSetLine { origin: format!("NodeSet {name}"), name: name.to_owned(), partition }
}

/// A cluster that runs what was planned for this object and these facts.
pub(super) fn settled(object: &Controller, facts: Facts) -> Facts {
    let plan = planned(object, &facts);
    let mut config_map = super::object(&plan, "ConfigMap", "lab-config");
    config_map["metadata"]["uid"] = json!("config");
    // As in an earlier release, which tried nothing: see tests/trial.rs.
    config_map["metadata"]["annotations"].as_object_mut().unwrap().remove("slinky.slurm.net/tried-hash");
    let live = running(&plan);
    let copies = plan.stages.iter().flatten().filter_map(|step| match step {
        Step::Apply(desired) if desired.object.name_any().starts_with("lab-copy-of-") => {
            Some(serde_json::from_value(serde_json::to_value(&desired.object).unwrap()).unwrap())
        }
        _ => None,
    });
    let config_copies = if facts.config_copies.is_empty() { copies.collect() } else { facts.config_copies };
    Facts {
        config_copies,
        config_map: Some(serde_json::from_value(config_map).unwrap()),
        stateful_set: Some(serde_json::from_value(live).unwrap()),
        ..facts
    }
}

fn restarts(plan: &Plan<ControllerStatus>) -> bool {
    plan.stages
        .iter()
        .flatten()
        .any(|step| matches!(step, Step::Apply(desired) if desired.resource.kind == "StatefulSet"))
}

#[test]
fn a_partition_stays_while_jobs_use_it() {
    let object = controller(&json!({}));
    let mut facts = base_facts();
    facts.node_sets = vec![line("gpu", Some("MaxTime=60"))];
    let mut facts = settled(&object, facts);
    // template.spec.hostname is changed from gpu- to a100-.
    facts.node_sets = vec![line("a100", Some("MaxTime=60"))];
    for (snapshot, stays, is_told) in [
        (None, true, true),
        (Some(one_job("gpu", "a100")), true, true),
        (Some(one_job("a100", "gpu")), true, true),
        (Some(one_job("a100", "a100")), false, false),
    ] {
        facts.snapshot = snapshot;
        let plan = planned(&object, &facts);
        let conf = slurm_conf(&plan);
        assert!(conf.contains("PartitionName=a100 Nodes=a100 MaxTime=60"), "{conf}");
        assert_eq!(conf.contains("PartitionName=gpu Nodes=gpu MaxTime=60"), stays, "{conf}");
        assert_eq!(conf.contains("NodeSet=gpu Feature=gpu"), stays, "{conf}");
        assert_eq!(
            condition_of(&plan, "Degraded").1 == "PartitionInUse",
            is_told,
            "{:?}",
            condition_of(&plan, "Degraded")
        );
        assert!(plan.needs.as_ref().is_some_and(|needs| needs.jobs), "it must be known when the jobs have ended");
        assert_ne!(plan.next, Next::OnChange);
    }
}

#[test]
fn a_node_set_that_cannot_be_written_harms_no_other() {
    let object = controller(&json!({}));
    let mut facts = base_facts();
    facts.node_sets = vec![line("a", Some("")), line("b", Some("MaxTime=1 day")), line("A", None)];
    let plan = planned(&object, &facts);
    let conf = slurm_conf(&plan);
    assert!(conf.contains("PartitionName=a Nodes=a") && !conf.contains("NodeSet=b"), "{conf}");
    let (status, reason, message) = condition_of(&plan, "Degraded");
    assert_eq!((status, reason), (ConditionStatus::True, "NodeSetInvalid"));
    assert!(
        message.contains("NodeSet b, spec.partition.config") && message.contains("NodeSet a and NodeSet A"),
        "{message}"
    );

    // A running set whose partition becomes invalid keeps the one that it had.
    facts.node_sets = vec![line("b", Some("MaxTime=1"))];
    let mut facts = settled(&object, facts);
    facts.node_sets = vec![line("b", Some("MaxTime=1 day"))];
    facts.snapshot = Some(one_job("b", "b"));
    assert!(slurm_conf(&planned(&object, &facts)).contains("PartitionName=b Nodes=b MaxTime=1\n"));
}

#[test]
fn a_restart_without_persistence_waits_for_jobs_or_consent() {
    let scratch = |extra: &str| controller(&json!({"persistence": {"enabled": false}, "extraConf": extra}));
    let calm = planned(&scratch("MaxJobCount=7"), &settled(&scratch(""), base_facts()));
    assert_eq!(condition_of(&calm, "Degraded").1, "AsExpected", "it is reread");
    let facts = |snapshot| Facts { snapshot, ..settled(&scratch(""), base_facts()) };
    assert!(restarts(&planned(&scratch(""), &facts(None))), "an apply that changes nothing");
    let changed = scratch("TaskPlugin=task/none");
    for (snapshot, text) in [(None, "not known"), (Some(one_job("p", "f")), "there are jobs")] {
        let plan = planned(&changed, &facts(snapshot));
        let (status, reason, message) = condition_of(&plan, "Degraded");
        assert_eq!((restarts(&plan), status, reason), (false, ConditionStatus::True, "JobsWouldBeLost"));
        assert!(message.contains(text) && message.contains("controller.slinky.slurm.net/allow-job-loss"), "{message}");
        assert!(!names(&plan).concat().contains(&"ConfigMap lab-config".to_owned()), "files and pods change together");
        assert!(plan.needs.is_some_and(|needs| needs.jobs) && plan.next != Next::OnChange);
    }
    assert!(restarts(&planned(&changed, &facts(Some(no_jobs())))));
    // It only restarts: its state is still there.
    let mut down = facts(None);
    down.stateful_set.as_mut().unwrap().status.as_mut().unwrap().ready_replicas = Some(0);
    assert!(restarts(&planned(&changed, &down)), "it has never worked");
    let mut known = changed.clone();
    known.status = Some(ControllerStatus { slurm_version: Some("26.05.3".into()), ..ControllerStatus::default() });
    assert!(!restarts(&planned(&known, &down)));
    let mut consented = changed.clone();
    let annotations = [("controller.slinky.slurm.net/allow-job-loss".to_owned(), "true".to_owned())];
    consented.metadata.annotations = Some(annotations.into());
    let plan = planned(&consented, &facts(None));
    assert!(restarts(&plan));
    let template = &stateful_set(&plan)["spec"]["template"]["metadata"];
    assert!(!template.to_string().contains("allow-job-loss"), "removing it must not restart slurmctld again");
    let persistent = |extra: &str| controller(&json!({"extraConf": extra}));
    assert!(restarts(&planned(&persistent("MaxJobCount=7"), &settled(&persistent(""), base_facts()))));
}

#[test]
fn files_of_slurmd_wait_for_jobs_or_consent() {
    for in_place in [false, true] {
        let object = controller(&json!({"configFileRefs": [{"name": "files"}], "inplaceReconfigure": in_place}));
        let files = |name: &str, text: &str| Some([(name.to_owned(), text.as_bytes().to_vec())].into());
        let with = |facts: Facts, files| Facts { config_maps: [("files".to_owned(), files)].into(), ..facts };
        let facts = settled(&object, with(base_facts(), files("gres.conf", "AutoDetect=off")));
        let changed = with(facts, files("gres.conf", "AutoDetect=nvml"));
        let mut waiting = Facts { snapshot: Some(one_job("p", "f")), ..changed };
        let written = |facts: &Facts| -> Vec<String> {
            let plan = planned(&object, facts);
            assert_eq!(condition_of(&plan, "Degraded").1, "JobsWouldBeLost");
            names(&plan).concat().into_iter().filter(|name| name.starts_with("ConfigMap")).collect()
        };
        assert_eq!(written(&waiting), [""; 0], "pods mount the copy, which stays");
        waiting.config_copies.clear();
        assert_eq!(written(&waiting), [""; 0], "it was deleted, and a new one would reach slurmctld");
        waiting.stateful_set.as_mut().unwrap().spec.as_mut().unwrap().template.spec.as_mut().unwrap().volumes = None;
        assert_eq!(written(&waiting), ["ConfigMap lab-copy-of-files"], "a new one, which is not mounted yet");
    }
}

/// What workers with these limits need.
fn demand(limits: &Value, image: &str) -> Demand {
    let set = json!({
        "metadata": {"name": "gpu"},
        "spec": {"controllerRef": {"name": "lab"}, "slurmd": {"image": image, "resources": {"limits": limits}}},
    });
    gres_demand([&serde_json::from_value(set).unwrap()])
}

#[test]
fn gpus_of_workers_are_in_the_configuration() {
    let facts = |limits: Value, image: &str| Facts { gres: demand(&limits, image), ..base_facts() };
    let files = |object: &Controller, facts: &Facts| {
        let plan = planned(object, facts);
        let map = super::object(&plan, "ConfigMap", "lab-config");
        let types = slurm_conf(&plan).lines().find(|line| line.starts_with("GresTypes")).map(str::to_owned);
        let annotation = &stateful_set(&plan)["spec"]["template"]["metadata"]["annotations"];
        let annotation = annotation["slinky.slurm.net/gres-types"].as_str().map(str::to_owned);
        (types, map["data"]["gres.conf"].as_str().map(str::to_owned), annotation)
    };
    let text = |text: &str| Some(text.to_owned());
    let (plain, gpu) = (controller(&json!({})), json!({"nvidia.com/gpu": 2}));
    assert_eq!(
        files(&plain, &facts(gpu.clone(), "slurmd:24.11")),
        (text("GresTypes=gpu"), text("AutoDetect=nvidia\n"), text("gpu"))
    );
    assert_eq!(files(&plain, &facts(gpu.clone(), "slurmd:26.05")).1, text("AutoDetect=full\n"));

    // Without GPUs nothing changes.
    let without = facts(json!({"cpu": 8}), "slurmd:24.11");
    assert_eq!(
        format!("{:?}", planned(&plain, &without).stages),
        format!("{:?}", planned(&plain, &base_facts()).stages)
    );

    // The user's lines and files win.
    let types = controller(&json!({"extraConf": "GresTypes=gpu,fpga"}));
    let (found, _, annotation) = files(&types, &facts(gpu.clone(), "slurmd:24.11"));
    assert_eq!((found, annotation), (text("GresTypes=gpu,fpga"), None));
    let own = controller(&json!({"configFileRefs": [{"name": "files"}]}));
    let gres_conf = Some([("gres.conf".to_owned(), b"AutoDetect=nvml".to_vec())].into());
    let with = Facts { config_maps: [("files".to_owned(), gres_conf)].into(), ..facts(gpu, "slurmd:24.11") };
    assert_eq!(files(&own, &with), (text("GresTypes=gpu"), None, text("gpu")));

    // slurmd before 26.05 cannot detect both.
    let both = facts(json!({"amd.com/gpu": 1, "nvidia.com/gpu": 1}), "slurmd:25.11");
    let made = planned(&plain, &both);
    let (_, reason, message) = condition_of(&made, "Degraded");
    assert!(reason == "GpusNotDetected" && message.contains("AutoDetect=rsmi"), "{reason}: {message}");
}

#[test]
fn gpus_of_new_workers_wait_for_jobs_or_consent() {
    for in_place in [false, true] {
        let object = controller(&json!({"inplaceReconfigure": in_place}));
        let gres = demand(&json!({"nvidia.com/gpu": 1}), "slurmd:24.11");
        let facts = Facts { gres, snapshot: Some(one_job("p", "f")), ..settled(&object, base_facts()) };
        let plan = planned(&object, &facts);
        assert_eq!((restarts(&plan), condition_of(&plan, "Degraded").1), (false, "JobsWouldBeLost"));
        let plan = planned(&object, &Facts { snapshot: Some(no_jobs()), ..facts });
        assert!(restarts(&plan) && slurm_conf(&plan).contains("GresTypes=gpu"));
    }
    // A slurmctld that has never worked has no jobs.
    let object = controller(&json!({}));
    let mut facts = settled(&object, base_facts());
    facts.gres = demand(&json!({"nvidia.com/gpu": 1}), "slurmd:24.11");
    facts.stateful_set.as_mut().unwrap().status = None;
    assert!(restarts(&planned(&object, &facts)));
}

#[test]
fn the_state_of_slurmctld_is_never_swapped() {
    let object = |claim: &str| controller(&json!({"persistence": {"existingClaim": claim}}));
    let facts = || Facts { snapshot: Some(no_jobs()), ..settled(&object("a"), base_facts()) };
    for other in [object("b"), controller(&json!({"persistence": {"enabled": false}}))] {
        let plan = planned(&other, &facts());
        let set = stateful_set(&plan);
        assert_eq!(volume(&set, "statesave").unwrap()["persistentVolumeClaim"]["claimName"], "a");
        assert_eq!(condition_of(&plan, "Degraded").1, "ClaimKept");
    }
    let named = controller(&json!({"persistence": {"existingClaim": "a"}, "clusterName": "other"}));
    let plan = planned(&named, &facts());
    assert_eq!((restarts(&plan), condition_of(&plan, "Degraded").1), (false, "ImmutableField"));
    assert!(condition_of(&plan, "Degraded").2.contains("slurm_lab"), "{:?}", condition_of(&plan, "Degraded"));

    // Backups would each get a claim of their own.
    let single = controller(&json!({}));
    let facts = Facts { snapshot: Some(no_jobs()), ..settled(&single, base_facts()) };
    let pair = controller(&json!({"ha": {"enabled": true}, "persistence": {"existingClaim": "shared"}}));
    let plan = planned(&pair, &Facts { claim: Some(ha::claim("shared", "ReadWriteMany")), ..facts });
    assert_eq!((restarts(&plan), condition_of(&plan, "Degraded").1), (false, "ClaimKept"));
}

#[test]
fn objects_that_exist_and_are_not_ours_are_not_taken_over() {
    let object = controller(&json!({}));
    let mut facts = base_facts();
    let map = json!({"metadata": {"name": "lab-config", "namespace": "slurm", "uid": "x"}, "data": {"precious": "1"}});
    facts.config_map = Some(serde_json::from_value(map).unwrap());
    let plan = planned(&object, &facts);
    assert!(plan.stages.is_empty());
    let (_, reason, message) = condition_of(&plan, "Degraded");
    assert!(reason == "NameTaken" && message.contains("ConfigMap lab-config"), "{message}");
}

#[test]
fn records_of_sets_that_are_gone_are_deleted() {
    let object = controller(&json!({}));
    let mut facts = settled(&object, base_facts());
    facts.node_set_uids = ["here".to_owned()].into();
    let record = |namespace: &str, set: &str, state: NodeState, reason: &str| {
        let info = PodInfo { namespace: namespace.into(), node_set_uid: set.into(), ..PodInfo::default() };
        let states = [state].into_iter().collect();
        SlurmNode { comment: info.text(), states, reason: reason.to_owned(), ..SlurmNode::default() }
    };
    let ended = VOCABULARY.terminating_reason;
    let down = NodeState::Down;
    let mut snapshot = (*no_jobs()).clone();
    let nodes = [
        ("gone-0", record("slurm", "gone", down, ended)),
        ("gone-1", record("slurm", "gone", NodeState::Idle, "")),
        ("gone-2", record("slurm", "gone", down, "bad disk")),
        ("here-0", record("slurm", "here", down, ended)),
        ("else-0", record("elsewhere", "gone", down, ended)),
        ("user-0", SlurmNode { states: [down].into_iter().collect(), reason: ended.into(), ..SlurmNode::default() }),
    ];
    snapshot.nodes = Arc::new(nodes.map(|(name, node)| (name.to_owned(), node)).into());
    facts.snapshot = Some(Arc::new(snapshot));
    let plan = planned(&object, &facts);
    assert_eq!(forgotten(&plan), ["delete the node gone-0 in Slurm"]);
    assert_ne!(plan.next, Next::OnChange, "gone-1 has not ended yet");
    let external =
        controller(&json!({"external": true, "externalConfig": {"host": "head.example.com", "port": 16817}}));
    let plan = planned(
        &external,
        &Facts { snapshot: facts.snapshot.clone(), node_set_uids: facts.node_set_uids, ..base_facts() },
    );
    assert_eq!(forgotten(&plan), ["delete the node gone-0 in Slurm"], "slurmctld is external");
}

#[test]
fn records_of_lost_machines_are_deleted_after_a_day() {
    let object = controller(&json!({}));
    let silent = |pod: &str, hours: i64| {
        let info = PodInfo {
            namespace: "slurm".into(),
            pod_name: pod.into(),
            node_set_uid: "gone".into(),
            ..PodInfo::default()
        };
        let node = SlurmNode {
            comment: info.text(),
            states: [NodeState::Down, NodeState::NotResponding].into_iter().collect(),
            reason: "Not responding".to_owned(),
            reason_since: Some(NOW - SignedDuration::from_hours(hours)),
            ..SlurmNode::default()
        };
        (pod.to_owned(), node)
    };
    let mut snapshot = (*no_jobs()).clone();
    snapshot.nodes = Arc::new([silent("lost", 25), silent("young", 23), silent("there", 25)].into());
    let facts = |snapshot: Snapshot| Facts {
        snapshot: Some(Arc::new(snapshot)),
        silent_pods: ["there".to_owned()].into(),
        ..settled(&object, base_facts())
    };
    let plan = planned(&object, &facts(snapshot.clone()));
    assert_eq!(forgotten(&plan), ["delete the node lost in Slurm"]);
    Arc::make_mut(&mut snapshot.nodes).remove("lost");
    let plan = planned(&object, &facts(snapshot.clone()));
    assert_eq!(plan.next, Next::After(Duration::from_hours(1)), "young is given up in an hour");
    // slurmctld's clock is two hours ahead, or unknown.
    for ahead in [Some(SignedDuration::from_hours(2)), None] {
        let plan = planned(&object, &facts(Snapshot { clock_ahead: ahead, ..snapshot.clone() }));
        let expected: &[&str] = if ahead.is_some() { &["delete the node young in Slurm"] } else { &[] };
        assert_eq!(forgotten(&plan), expected);
    }
    let external =
        controller(&json!({"external": true, "externalConfig": {"host": "head.example.com", "port": 16817}}));
    let plan = planned(&external, &Facts { snapshot: Some(Arc::new(snapshot)), ..base_facts() });
    assert_eq!(forgotten(&plan), Vec::<String>::new(), "it may be a worker of another Kubernetes cluster");
}

/// The records that are deleted.
fn forgotten(plan: &Plan<ControllerStatus>) -> Vec<String> {
    plan.stages.iter().flatten().filter(|step| step.name() == "slurm").map(Step::title).collect()
}

#[test]
fn copies_of_user_files_are_exact_and_removed_when_no_pod_needs_them() {
    let with = |spec: Value, live: &[(&str, &str)]| {
        let object = controller(&spec);
        let files: Files = [("a.conf".to_owned(), b"A=1".to_vec()), ("b.bin".to_owned(), vec![0xff, 0])].into();
        let copy = |(name, owner): &(&str, &str)| -> ConfigMap {
            let owner =
                json!({"apiVersion": "v1", "kind": "Controller", "name": "lab", "uid": owner, "controller": true});
            let metadata = json!({"name": name, "namespace": "slurm", "uid": name, "resourceVersion": "7", "ownerReferences": [owner]});
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        let config_copies = live.iter().map(copy).collect();
        let facts = Facts { config_maps: [("files".to_owned(), Some(files))].into(), config_copies, ..base_facts() };
        (object, facts)
    };
    let refers = json!({"configFileRefs": [{"name": "files"}]});
    let (referring, facts) = with(refers.clone(), &[]);
    let copy = object(&planned(&referring, &facts), "ConfigMap", "lab-copy-of-files");
    assert_eq!((&copy["data"], &copy["binaryData"]), (&json!({"a.conf": "A=1"}), &json!({"b.bin": "/wA="})));

    let uid = referring.metadata.uid.clone().unwrap();
    let (plain, facts) = with(json!({}), &[("lab-copy-of-files", uid.as_str())]);
    let deletes = |plan: &Plan<ControllerStatus>| {
        let titles = plan.stages.iter().flatten().map(Step::titled);
        titles.filter(|title| title.what == "delete ConfigMap" && title.object == "lab-copy-of-files").count()
    };
    assert_eq!(deletes(&planned(&plain, &facts)), 0, "slurmctld still mounts it");
    assert_eq!(deletes(&planned(&plain, &settled(&plain, facts))), 1);

    let (referring, facts) = with(refers, &[("lab-copy-of-files", "of-somebody-else")]);
    assert_eq!(condition_of(&planned(&referring, &facts), "Degraded").1, "NameTaken");
}

#[test]
fn a_set_with_the_name_of_a_node_does_not_stop_slurmctld() {
    let object = controller(&json!({}));
    let names = BTreeMap::from([("NodeSet w".to_owned(), ("w-".to_owned(), 2))]);
    let clash = vec![line("w", None), line("w-1", None)];
    // A new cluster, and one that runs with the first set alone.
    let new = Facts { node_sets: clash.clone(), node_names: names.clone(), ..base_facts() };
    let first = settled(&object, Facts { node_sets: vec![line("w", None)], node_names: names.clone(), ..base_facts() });
    let running = Facts { node_sets: clash, snapshot: Some(no_jobs()), ..first };
    for facts in [&new, &running] {
        let plan = planned(&object, facts);
        assert!(!slurm_conf(&plan).contains("NodeSet=w-1"), "{}", slurm_conf(&plan));
        let (_, reason, message) = condition_of(&plan, "Degraded");
        assert!(reason == "NodeSetInvalid" && message.contains("a node of NodeSet w,"), "{reason} {message}");
    }
    // A node that no set has any more.
    let node = [("w-7".to_owned(), SlurmNode::default())].into();
    let snapshot = Arc::new(Snapshot { nodes: Arc::new(node), ..(*no_jobs()).clone() });
    let with_w7 =
        |snapshot| Facts { node_sets: vec![line("w", None), line("w-7", None)], snapshot, ..clone_of(&running) };
    for snapshot in [Some(snapshot), None] {
        let conf = slurm_conf(&planned(&object, &with_w7(snapshot)));
        assert!(!conf.contains("NodeSet=w-7"), "{conf}");
    }
    let conf = slurm_conf(&planned(&object, &with_w7(Some(no_jobs()))));
    assert!(conf.contains("NodeSet=w-7"), "there is no such node: {conf}");
}

/// Facts with the same live objects.
fn clone_of(facts: &Facts) -> Facts {
    Facts {
        node_names: facts.node_names.clone(),
        config_map: facts.config_map.clone(),
        stateful_set: facts.stateful_set.clone(),
        config_copies: facts.config_copies.clone(),
        ..base_facts()
    }
}

#[test]
fn the_key_of_a_running_cluster_is_not_swapped() {
    let other = json!({"name": "other", "key": "slurm.key"});
    for (field, hash_of) in [("slurmKeyRef", 0), ("jwtKeyRef", 1)] {
        let changed = controller(&json!({ field: other }));
        // The same key in another Secret.
        let facts =
            Facts { slurm_key: good("s"), jwt_key: good("j"), ..settled(&controller(&json!({})), base_facts()) };
        assert!(restarts(&planned(&changed, &facts)), "{field}");
        let (slurm_key, jwt_key) = if hash_of == 0 { (good("x"), good("j")) } else { (good("s"), good("x")) };
        let facts = Facts { slurm_key, jwt_key, ..facts };
        let plan = planned(&changed, &facts);
        let (status, reason, message) = condition_of(&plan, "Degraded");
        assert_eq!((restarts(&plan), status, reason), (false, ConditionStatus::True, "ImmutableField"));
        assert!(message.contains(&format!("spec.{field}")) && message.contains("Secret keys"), "{message}");
        // A key that is rotated in its Secret.
        assert!(restarts(&planned(&controller(&json!({})), &facts)), "{field}");
        // A slurmctld that has never worked.
        let mut new = facts;
        new.stateful_set.as_mut().unwrap().status = None;
        assert!(restarts(&planned(&changed, &new)), "{field}");
    }
}

#[test]
fn with_consent_lines_go_even_if_slurm_does_not_answer() {
    let object = controller(&json!({}));
    let facts = settled(&object, Facts { node_sets: vec![line("w", None), line("old", None)], ..base_facts() });
    let facts = Facts { node_sets: vec![line("w", None)], snapshot: None, ..facts };
    let plan = planned(&object, &facts);
    assert!(slurm_conf(&plan).contains("NodeSet=old"));
    let (_, reason, message) = condition_of(&plan, "Degraded");
    assert!(reason == "PartitionInUse" && message.contains("allow-job-loss"), "{reason} {message}");
    let mut consenting = object;
    consenting.annotations_mut().insert("controller.slinky.slurm.net/allow-job-loss".into(), "true".into());
    assert!(!slurm_conf(&planned(&consenting, &facts)).contains("NodeSet=old"));
}

#[test]
fn a_name_that_is_too_long_is_reported() {
    let named = |length: usize| {
        let mut object = controller(&json!({}));
        object.metadata.name = Some("n".repeat(length));
        plan(&object, &base_facts(), NOW)
    };
    assert!(!condition_of(&named(41), "Degraded").2.contains("name"));
    let long = named(42);
    let (status, reason, message) = condition_of(&long, "Degraded");
    assert_eq!((status, reason), (ConditionStatus::True, "InvalidSpec"));
    assert!(message.contains("41 characters"), "{message}");
}
