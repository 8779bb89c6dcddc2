//! What is refused before it reaches slurmctld.

use slurm::states::NodeState;

use super::{changes::settled, *};

fn condition(plan: &Plan<ControllerStatus>) -> (ConditionStatus, &'static str, &str) {
    condition_of(plan, "ConfigurationValid")
}

fn extra(text: &str) -> Controller {
    controller(&json!({ "extraConf": text }))
}

fn line(name: &str, partition: Option<&str>) -> NodeSetLine {
    NodeSetLine { origin: format!("NodeSet {name}"), name: name.into(), partition: partition.map(str::to_owned) }
}

fn with_file(facts: Facts, name: &str, text: &str) -> Facts {
    let files: Files = [(name.to_owned(), text.into())].into();
    Facts { config_maps: [("files".to_owned(), Some(files))].into(), ..facts }
}

#[test]
fn a_mistyped_key_is_refused_and_the_running_cluster_stays_as_it_is() {
    let mut facts = base_facts();
    facts.node_sets = vec![line("gpu", Some("MaxTime=60"))];
    let facts = settled(&extra("ReturnToService=1"), facts);
    assert_eq!(
        condition(&planned(&extra("ReturnToService=1"), &facts)),
        (ConditionStatus::True, "AsExpected", "Slurm can read the configuration")
    );

    let plan = planned(&extra("ReturnToService=1\nSchedulerParamters=defer"), &facts);
    let expected =
        "spec.extraConf: line 2: SchedulerParamters is not known to Slurm 24.11; did you mean SchedulerParameters?";
    let (status, reason, message) = condition(&plan);
    assert_eq!((status, reason), (ConditionStatus::False, "InvalidConfiguration"));
    assert_eq!(message, format!("{expected}. The last good configuration is kept"));
    assert_eq!(names(&plan), [SERVICES], "neither files nor slurmctld change");
    assert_eq!(condition_of(&plan, "Degraded"), (ConditionStatus::True, "InvalidSpec", expected));
    assert_eq!(condition_of(&plan, "Ready").0, ConditionStatus::True, "what runs is ready");
    assert!(plan.events.iter().any(|event| event.is_warning && event.text == expected));

    let plan = planned(&extra("ReturnToService=1\nSchedulerParameters=defer"), &facts);
    assert_eq!(condition(&plan).0, ConditionStatus::True);
    assert!(slurm_conf(&plan).contains("SchedulerParameters=defer"));
}

#[test]
fn files_and_scripts_are_checked() {
    let object = controller(&json!({
        "configFileRefs": [{"name": "files"}], "extraConf": "Prolog=/etc/slurm/prolog.sh",
    }));
    let plan = planned(&object, &with_file(base_facts(), "gres.conf", "Name=gpu Flie=/dev/x"));
    let (status, _, message) = condition(&plan);
    assert_eq!(status, ConditionStatus::False);
    assert!(message.contains("gres.conf in the ConfigMap files: line 1: Flie is not known"), "{message}");
    assert!(
        message.contains("; spec.extraConf: line 1: Prolog is /etc/slurm/prolog.sh, but"),
        "all at once: {message}"
    );
    assert_eq!(names(&plan), [SERVICES], "a cluster does not start with it");

    let object = controller(&json!({"prologScriptRefs": [{"name": "files"}]}));
    let plan = planned(&object, &with_file(base_facts(), "prolog", "true"));
    assert!(condition(&plan).2.contains("prolog in the ConfigMap files: it does not begin with #!"), "{plan:?}");

    let plan = planned(&extra("Prolog=/opt/site/prolog\nMailProg=/bin/mail"), &base_facts());
    let unchecked = "not checked, because not in /etc/slurm: Prolog=/opt/site/prolog; MailProg=/bin/mail";
    assert_eq!(condition(&plan), (ConditionStatus::True, "AsExpected", unchecked));

    let missing = controller(&json!({"configFileRefs": [{"name": "files"}]}));
    let facts = Facts { config_maps: [("files".to_owned(), None)].into(), ..base_facts() };
    assert_eq!(condition(&planned(&missing, &facts)).0, ConditionStatus::Unknown);
}

#[test]
fn without_a_known_version_there_are_only_warnings() {
    for image in ["slurmctld:latest", "slurmctld:29.05"] {
        let mut object = controller(&json!({"slurmctld": {"image": image}, "extraConf": "SchedulerParamters=defer"}));
        let plan = planned(&object, &base_facts());
        let (status, reason, message) = condition(&plan);
        assert_eq!((status, reason), (ConditionStatus::True, "Warnings"));
        assert!(message.contains("did you mean SchedulerParameters?"), "{message}");
        assert!(slurm_conf(&plan).contains("SchedulerParamters=defer"));
        assert!(plan.events.iter().any(|event| event.text.contains("SchedulerParamters")), "{:?}", plan.events);

        object.status = Some(ControllerStatus { slurm_version: Some("26.05.3".into()), ..ControllerStatus::default() });
        let is_valid = condition(&planned(&object, &base_facts())).0;
        assert_eq!(is_valid == ConditionStatus::False, image.ends_with("latest"), "Slurm reports its version");
    }
}

#[test]
fn a_refused_node_set_keeps_its_partition_as_it_was() {
    let object = controller(&json!({}));
    let mut facts = base_facts();
    facts.node_sets = vec![line("a", Some("Default=YES MaxTime=60")), line("b", Some(""))];
    let mut facts = settled(&object, facts);
    let before = slurm_conf(&planned(&object, &facts));
    facts.snapshot = Some(no_jobs());
    facts.node_sets = vec![line("a", Some("Default=YES MaxTiem=90")), line("b", Some("")), line("c", Some("Stat=UP"))];
    let plan = planned(&object, &facts);
    assert_eq!(slurm_conf(&plan), before, "new jobs still find their default partition");
    let (status, reason, message) = condition(&plan);
    assert_eq!((status, reason), (ConditionStatus::False, "NodeSetInvalid"));
    assert!(
        message
            .contains("NodeSet a, spec.partition.config: MaxTiem is not known to Slurm 24.11; did you mean MaxTime?"),
        "{message}"
    );
    assert!(message.contains("NodeSet c, spec.partition.config: Stat is not known"), "{message}");
    assert_eq!(condition_of(&plan, "Degraded").1, "NodeSetInvalid");
}

#[test]
fn a_partition_is_defined_by_one_of_extra_conf_and_node_sets() {
    let users = extra("PartitionName=gpu Nodes=ALL");
    let mut facts = base_facts();
    facts.node_sets = vec![line("gpu", Some("MaxTime=60")), line("other", Some(""))];

    // The user's was first.
    let plan = planned(&users, &facts);
    let conf = slurm_conf(&plan);
    assert!(conf.contains("NodeSet=gpu Feature=gpu\n") && conf.contains("PartitionName=other Nodes=other"), "{conf}");
    assert!(conf.contains("PartitionName=gpu Nodes=ALL") && !conf.contains("PartitionName=gpu Nodes=gpu"), "{conf}");
    let (status, reason, message) = condition(&plan);
    assert_eq!((status, reason), (ConditionStatus::False, "NodeSetInvalid"));
    assert!(message.contains("set spec.partition.enabled to false in NodeSet gpu"), "{message}");

    // The NodeSet's was first.
    let facts = settled(&extra(""), facts);
    let plan = planned(&users, &facts);
    assert_eq!(names(&plan), [SERVICES]);
    let (status, reason, message) = condition(&plan);
    assert_eq!((status, reason), (ConditionStatus::False, "InvalidConfiguration"));
    assert!(
        message.contains("spec.extraConf: line 1: the partition gpu is defined already by NodeSet gpu"),
        "{message}"
    );
}

#[test]
fn qos_of_partitions_are_those_of_slurmdbd() {
    let with = |text: &str| controller(&json!({"extraConf": text, "accountingRef": {"name": "a"}}));
    let good = with("PartitionName=p Nodes=ALL QOS=Fast");
    let answers = |qos: Option<&[&str]>| {
        let qos = qos.map(|names| Arc::new(names.iter().map(|name| (*name).to_owned()).collect()));
        Some(SlurmFacts { qos, ..slurm(Ok(())) })
    };
    let mut facts = base_facts();
    facts.accounting = AccountingFacts::Here { service_port: 6819, answers: true };
    facts.node_sets = vec![line("gpu", Some("AllowQos=fast"))];
    let mut facts = Facts { slurm: answers(Some(&["normal", "fast"])), ..settled(&good, facts) };
    let plan = planned(&good, &facts);
    let before = slurm_conf(&plan);
    assert_eq!(condition(&plan), (ConditionStatus::True, "AsExpected", "Slurm can read the configuration"));

    let plan = planned(&with("PartitionName=p Nodes=ALL QOS=fats"), &facts);
    let (status, reason, message) = condition(&plan);
    assert_eq!((status, reason), (ConditionStatus::False, "InvalidConfiguration"));
    let expected = "spec.extraConf: line 1: QOS: the QOS fats is not known to slurmdbd; did you mean fast?";
    assert_eq!(message, format!("{expected}. The last good configuration is kept"));
    assert_eq!(names(&plan), [SERVICES]);

    facts.node_sets = vec![line("gpu", Some("AllowQos=fats"))];
    let plan = planned(&good, &facts);
    assert_eq!(slurm_conf(&plan), before, "a wrong NodeSet harms nobody");
    let (status, reason, message) = condition(&plan);
    assert_eq!((status, reason), (ConditionStatus::False, "NodeSetInvalid"));
    assert!(message.contains("NodeSet gpu, spec.partition.config: AllowQos: the QOS fats is not"), "{message}");

    // slurmdbd does not answer.
    facts.node_sets = vec![line("gpu", Some("AllowQos=fast"))];
    facts.slurm = answers(None);
    let not_tried = "not tried, because of what they need: AllowQos of partition gpu; QOS of partition p";
    let plan = planned(&good, &facts);
    let (status, _, message) = condition(&plan);
    assert_eq!(status, ConditionStatus::True);
    assert!(message.contains(not_tried), "{message}");
    // Without an Accounting, Slurm says so itself.
    facts.slurm = answers(Some(&[]));
    assert_eq!(condition(&planned(&extra("PartitionName=p Nodes=ALL QOS=fats"), &facts)).0, ConditionStatus::True);
}

#[test]
fn slurmd_may_be_older_than_slurmctld() {
    let object =
        controller(&json!({"slurmctld": {"image": "slurmctld:26.05"}, "extraConf": "MetricsType=metrics/openmetrics"}));
    let with = |versions: &[&str]| {
        let slurmd_versions = versions.iter().map(|version| version.parse().unwrap()).collect();
        planned(&object, &Facts { slurmd_versions, ..base_facts() })
    };
    let running = |state: NodeState| {
        let version = Some("25.05.3".parse().unwrap());
        let states = [state].into_iter().collect();
        let nodes = HashMap::from([("w-0".to_owned(), SlurmNode { states, version, ..SlurmNode::default() })]);
        let snapshot = Snapshot { nodes: Arc::new(nodes), ..(*no_jobs()).clone() };
        planned(&object, &Facts { snapshot: Some(Arc::new(snapshot)), ..base_facts() })
    };
    assert_eq!(condition(&running(NodeState::Idle)).0, ConditionStatus::False, "a worker that is not updated yet");
    assert_eq!(condition(&running(NodeState::Down)).0, ConditionStatus::True);
    assert_eq!(condition(&with(&["26.05", "25.11", "22.04"])).0, ConditionStatus::True);
    let plan = with(&["26.05", "25.05.3"]);
    let (status, _, message) = condition(&plan);
    assert_eq!(status, ConditionStatus::False);
    assert!(message.contains("MetricsType is not known to Slurm 25.05; it came with 25.11"), "{message}");
}

#[test]
fn many_mistakes_make_a_short_message() {
    let lines: Vec<String> = (0..40).map(|n| format!("Wrong{n}=1")).collect();
    let plan = planned(&extra(&lines.join("\n")), &base_facts());
    let message = condition(&plan).2;
    assert!(
        message.contains("line 5: Wrong4 ") && !message.contains("Wrong5") && message.contains("and 35 more"),
        "{message}"
    );
}

#[test]
fn an_external_slurmctld_has_its_own_configuration() {
    let object = controller(&json!({
        "external": true, "externalConfig": {"host": "head", "port": 6817}, "extraConf": "Wrong=1",
    }));
    let plan = planned(&object, &base_facts());
    assert!(plan.conditions.iter().all(|found| found.type_ != "ConfigurationValid"), "{:?}", plan.conditions);
}
