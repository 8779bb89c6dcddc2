mod changes;
mod conditions;
mod configuration;
mod ha;
mod keys;
mod problems;
mod reread;
mod trial;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use engine::{
    conditions::ConditionStatus,
    config::{Files, NodeSetLine},
    daemons::{
        keys::KeyState,
        monitor::{Monitor, ServiceMonitor, ServiceMonitorSpec},
    },
    gres::Demand,
    lint::lint,
    plan::{Next, Plan, SecretContent, Step},
    podset::{JobIndex, JobList, Jobs, SlurmNode, Snapshot},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_operator_api::{
    common::shared::ExternalConfig,
    slinky::{Controller, ControllerStatus, VOCABULARY},
};

use super::{
    config_server,
    model::gres_demand,
    plan::{AccountingFacts, Facts, Ping, SlurmFacts, plan},
    plan_keys::KeyFacts,
    refers_to_config_map, refers_to_secret,
};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn controller(spec: &Value) -> Controller {
    let mut full = json!({
        "slurmKeyRef": {"name": "keys", "key": "slurm.key"},
        "jwtKeyRef": {"name": "keys", "key": "jwt.key"},
        "slurmctld": {"image": "example.com/slurmctld:24.11"},
    });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": {"name": "lab", "namespace": "slurm", "uid": "u", "generation": 1},
        "spec": full,
    }))
    .unwrap()
}

fn good(hash: &str) -> KeyState {
    KeyState::Good { hash: hash.into(), weakness: None }
}

fn base_facts() -> Facts {
    Facts {
        slurm_key: good("s"),
        keys: KeyFacts::default(),
        jwt_key: good("j"),
        accounting: AccountingFacts::NotNamed,
        node_sets: Vec::new(),
        slurmd_versions: BTreeSet::new(),
        node_names: BTreeMap::new(),
        slurmd: Vec::new(),
        gres: Demand::default(),
        node_set_uids: BTreeSet::new(),
        config_maps: BTreeMap::new(),
        claim: None,
        service: None,
        internal_service: None,
        config_map: None,
        config_copies: Vec::new(),
        stateful_set: None,
        monitor: Monitor::NotInstalled,
        pods: Vec::new(),
        trial_pods: Vec::new(),
        trial_config_maps: Vec::new(),
        has_claim: false,
        has_workers: false,
        slurm: None,
        snapshot: None,
        silent_pods: BTreeSet::new(),
    }
}

/// Plans, and lints the plan.
fn planned(controller: &Controller, facts: &Facts) -> Plan<ControllerStatus> {
    let made = plan(controller, facts, NOW);
    assert_eq!(lint(controller, &made), []);
    assert_eq!(format!("{made:?}"), format!("{:?}", plan(controller, facts, NOW)), "the same facts, the same plan");
    made
}

fn names(plan: &Plan<ControllerStatus>) -> Vec<Vec<String>> {
    let name = |step: &Step| match step {
        Step::Apply(desired) => format!("{} {}", desired.resource.kind, desired.object.name_any()),
        Step::GenerateSecret(generated) => format!("mint {}", generated.secret.object.name_any()),
        Step::Delete(object, _) => format!("delete {} {}", object.resource.kind, object.name),
        Step::PatchMetadata(_) | Step::GrowClaim(..) => step.title(),
        _ => step.name().to_owned(),
    };
    plan.stages.iter().map(|stage| stage.iter().map(name).collect()).collect()
}

fn object(plan: &Plan<ControllerStatus>, kind: &str, name: &str) -> Value {
    let found = plan.stages.iter().flatten().find_map(|step| match step {
        Step::Apply(desired) if desired.resource.kind == kind && desired.object.name_any() == name => {
            Some(serde_json::to_value(&desired.object).unwrap())
        }
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no {kind} {name} in {:?}", names(plan)))
}

fn stateful_set(plan: &Plan<ControllerStatus>) -> Value {
    object(plan, "StatefulSet", "lab-controller")
}

fn slurm_conf(plan: &Plan<ControllerStatus>) -> String {
    object(plan, "ConfigMap", "lab-config")["data"]["slurm.conf"].as_str().unwrap().to_owned()
}

fn condition_of<'a>(plan: &'a Plan<ControllerStatus>, type_: &str) -> (ConditionStatus, &'static str, &'a str) {
    let new_condition = plan.conditions.iter().find(|new_condition| new_condition.type_ == type_).unwrap();
    (new_condition.status, new_condition.reason, &new_condition.message)
}

const SERVICES: [&str; 2] = ["Service lab-controller-internal", "Service lab-controller"];
/// First what the pods mount, then what nothing depends on.
const ALL: [&[&str]; 2] = [&["ConfigMap lab-config"], &SERVICES];

/// All, and this.
fn all_and(last: &str) -> Vec<Vec<&str>> {
    let [config, services] = ALL;
    vec![config.to_vec(), [services, &[last]].concat()]
}

/// The live object after executing a plan, with all pods ready.
fn running(plan: &Plan<ControllerStatus>) -> Value {
    let mut live = stateful_set(plan);
    live["metadata"]["uid"] = json!("sts");
    live["metadata"]["resourceVersion"] = json!("7");
    live["metadata"]["generation"] = json!(2);
    let replicas = live["spec"]["replicas"].clone();
    live["status"] = json!({
        "observedGeneration": 2, "replicas": replicas, "readyReplicas": replicas, "updatedReplicas": replicas,
    });
    live
}

fn facts_running(live: &Value) -> Facts {
    Facts { stateful_set: Some(serde_json::from_value(live.clone()).unwrap()), ..base_facts() }
}

/// An answer of Slurm without nodes and jobs.
fn no_jobs() -> Arc<Snapshot> {
    Arc::new(Snapshot {
        nodes: Arc::default(),
        read_at: NOW,
        period: SignedDuration::from_secs(1),
        ctld_started: None,
        clock_ahead: Some(SignedDuration::ZERO),
        version: None,
        pending: HashMap::new(),
        jobs: Jobs::Read(JobList::default()),
        reservations: None,
    })
}

fn slurm(reachable: Result<(), String>) -> SlurmFacts {
    SlurmFacts {
        reachable,
        slurm_version: Some("26.05.5".into()),
        rest_version: Some("v0.0.45".into()),
        pings: vec![Ping { host: "lab-controller-0".into(), responding: true, active: true }],
        accounting: None,
        qos: None,
    }
}

fn volume<'a>(set: &'a Value, name: &str) -> Option<&'a Value> {
    set["spec"]["template"]["spec"]["volumes"].as_array()?.iter().find(|volume| volume["name"] == name)
}

#[test]
fn a_new_controller_creates_everything_in_order() {
    let plan = planned(&controller(&json!({})), &base_facts());
    assert_eq!(names(&plan), all_and("StatefulSet lab-controller"));
    assert_eq!(
        condition_of(&plan, "Ready"),
        (ConditionStatus::False, "Starting", "slurmctld is not running yet: it is being created")
    );
    assert_eq!(condition_of(&plan, "Progressing").0, ConditionStatus::True);
    assert_eq!(condition_of(&plan, "Degraded").0, ConditionStatus::False);
    assert_eq!(condition_of(&plan, "SlurmReachable").1, "NoRestApi");

    let set = stateful_set(&plan);
    let spec = &set["spec"];
    assert_eq!((&spec["replicas"], &spec["revisionHistoryLimit"]), (&json!(1), &json!(0)));
    assert_eq!(spec["serviceName"], "lab-controller-internal");
    assert_eq!(spec["volumeClaimTemplates"][0]["metadata"]["name"], "statesave");
    assert_eq!(spec["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"], "4Gi");
    let pod = &spec["template"];
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["slinky.slurm.net/slurm-key-hash"], "s");
    assert_eq!(annotations["slinky.slurm.net/jwt-key-hash"], "j");
    assert_eq!(annotations["slinky.slurm.net/slurm-config-hash"].as_str().unwrap().len(), 64);
    assert_eq!(annotations["kubectl.kubernetes.io/default-container"], "slurmctld");
    let main = &pod["spec"]["containers"][0];
    assert_eq!((&main["name"], &main["image"]), (&json!("slurmctld"), &json!("example.com/slurmctld:24.11")));
    assert_eq!(main["command"], Value::Null, "the image has an entrypoint");
    let mounts = main["volumeMounts"].as_array().unwrap();
    assert!(
        mounts.contains(&json!({"name": "statesave", "mountPath": "/var/spool/slurmctld/slurm_lab"})),
        "{mounts:?}"
    );
    assert_eq!(
        pod["spec"]["initContainers"][0]["image"], "example.com/slurmctld:24.11",
        "it has all that the sidecar needs"
    );
    let etc = volume(&set, "slurm-etc").unwrap();
    assert_eq!(etc["projected"]["defaultMode"], 0o610);
    assert_eq!(
        etc["projected"]["sources"][2],
        json!({"secret": {"name": "keys", "items": [{"key": "jwt.key", "path": "jwt.key"}]}})
    );
}

#[test]
fn the_service_selects_by_static_labels_and_sets_no_type() {
    let plan = planned(&controller(&json!({})), &base_facts());
    let spec = object(&plan, "Service", "lab-controller")["spec"].clone();
    let expected = json!({
        "selector": {"app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "lab"},
        "ports": [{"name": "slurmctld", "port": 6817, "protocol": "TCP", "targetPort": "slurmctld"}],
    });
    assert_eq!(spec, expected);
    let asked = controller(&json!({"service": {"port": 16817, "nodePort": 30817, "spec": {"type": "NodePort"}}}));
    let plan = planned(&asked, &base_facts());
    let spec = object(&plan, "Service", "lab-controller")["spec"].clone();
    assert_eq!(
        (&spec["type"], &spec["ports"][0]["port"], &spec["ports"][0]["nodePort"]),
        (&json!("NodePort"), &json!(16817), &json!(30817))
    );
    assert!(!slurm_conf(&plan).contains("SlurmctldAddr"), "clients would use slurmctld's own port with it");
    assert_eq!(config_server(&asked), "lab-controller.slurm:16817");
    let internal = object(&plan, "Service", "lab-controller-internal")["spec"].clone();
    assert_eq!((&internal["clusterIP"], &internal["publishNotReadyAddresses"]), (&json!("None"), &json!(true)));
}

#[test]
fn probes_fit_the_version() {
    for (image, handler) in [
        ("slurmctld:24.11", "tcpSocket"),
        ("slurmctld:25.05", "tcpSocket"),
        ("slurmctld:25.11-ubuntu24.04", "httpGet"),
        ("slurmctld:26.05", "httpGet"),
        ("slurmctld:latest", "tcpSocket"),
        ("slurmctld", "tcpSocket"),
    ] {
        let mut object = controller(&json!({"slurmctld": {"image": image}}));
        // The version that Slurm reports later must not replace the pod.
        object.status = Some(ControllerStatus { slurm_version: Some("26.05.5".into()), ..ControllerStatus::default() });
        let set = stateful_set(&planned(&object, &base_facts()));
        let main = &set["spec"]["template"]["spec"]["containers"][0];
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            assert!(main[probe][handler].is_object(), "{image} {probe}: {}", main[probe]);
        }
    }
}

/// A slurmctld pod of the `StatefulSet` of `running`.
fn pod(revision: &str, status: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "lab-controller-0", "namespace": "slurm", "uid": "pod", "resourceVersion": "9",
            "labels": {"controller-revision-hash": revision},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "lab-controller", "uid": "sts", "controller": true},
            ],
        },
        "status": status,
    }))
    .unwrap()
}

#[test]
fn readiness_follows_the_stateful_set_and_explains_why_not() {
    let object = controller(&json!({}));
    let live = running(&planned(&object, &base_facts()));
    let plan = planned(&object, &facts_running(&live));
    assert_eq!(condition_of(&plan, "Ready"), (ConditionStatus::True, "AsExpected", "slurmctld is ready"));
    assert_eq!(
        (condition_of(&plan, "Progressing").0, condition_of(&plan, "Degraded").0),
        (ConditionStatus::False, ConditionStatus::False)
    );
    assert_eq!(plan.next, Next::OnChange);

    let mut other = live.clone();
    other["status"]["readyReplicas"] = json!(0);
    let mut facts = facts_running(&other);
    let text = "pod lab-controller-0 is waiting in container slurmctld, ErrImagePull: no such image";
    facts.pods = vec![pod(
        "new",
        &json!({"containerStatuses": [{
            "name": "slurmctld", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}},
            "ready": false, "restartCount": 0, "image": "", "imageID": "",
        }]}),
    )];
    let plan = planned(&object, &facts);
    let (status, reason, message) = condition_of(&plan, "Ready");
    assert_eq!((status, reason), (ConditionStatus::False, "PodsNotReady"));
    assert!(message.contains("0 of 1") && message.contains(text), "{message}");
    assert_eq!(condition_of(&plan, "Degraded"), (ConditionStatus::True, "PodsNotReady", text));
    assert_ne!(plan.next, Next::OnChange, "pod problems do not change the StatefulSet");

    // A pending change is not done yet, whatever the state of the old pods.
    let changed = controller(&json!({"extraConf": "ReturnToService=2"}));
    assert_eq!(condition_of(&planned(&changed, &facts_running(&live)), "Ready").1, "Updating");
    let mut unseen = live;
    unseen["metadata"]["generation"] = json!(3);
    assert_eq!(condition_of(&planned(&object, &facts_running(&unseen)), "Ready").1, "Updating");
}

#[test]
fn the_configuration_contains_accounting_node_sets_and_user_settings() {
    let object =
        controller(&json!({"accountingRef": {"name": "a"}, "extraConf": "AuthInfo=ttl=60\nReturnToService=2"}));
    let set = |name: &str, partition: Option<&str>| NodeSetLine {
        origin: format!("NodeSet {name}"),
        name: name.into(),
        partition: partition.map(str::to_owned),
    };
    let mut facts = base_facts();
    facts.accounting = AccountingFacts::Here { service_port: 6819, answers: true };
    facts.node_sets = vec![set("gpu", Some("Default=YES")), set("plain", None)];
    let conf = slurm_conf(&planned(&object, &facts));
    for line in [
        "ClusterName=slurm_lab",
        "SlurmctldAddr=lab-controller.slurm",
        "AccountingStorageHost=a-accounting.slurm",
        "AccountingStoragePort=6819",
        "NodeSet=gpu Feature=gpu",
        "PartitionName=gpu Nodes=gpu Default=YES",
        "NodeSet=plain Feature=plain",
        "ReturnToService=2",
        "AuthInfo=ttl=60,use_client_ids",
    ] {
        assert!(conf.lines().any(|found| found == line), "{line} is not in\n{conf}");
    }
    let place = ExternalConfig { host: "db.example.com".into(), port: 7000 };
    facts.accounting = AccountingFacts::Elsewhere { place, unreachable: None };
    let conf = slurm_conf(&planned(&object, &facts));
    assert!(conf.contains("AccountingStorageHost=db.example.com\nAccountingStoragePort=7000\n"), "{conf}");
}

#[test]
fn the_first_start_waits_for_slurmdbd_and_no_other() {
    let object = controller(&json!({"accountingRef": {"name": "a"}}));
    let silent = || AccountingFacts::Here { service_port: 6819, answers: false };
    let facts = Facts { accounting: silent(), ..base_facts() };
    let plan = planned(&object, &facts);
    assert_eq!(names(&plan), ALL, "the configuration is there for others");
    let (ready, _, message) = condition_of(&plan, "Ready");
    assert_eq!(ready, ConditionStatus::False);
    assert!(message.contains("waits until slurmdbd of the Accounting a answers at a-accounting.slurm"), "{message}");
    assert_eq!(condition_of(&plan, "Degraded").0, ConditionStatus::False, "waiting helps");

    let has_set = |object: &Controller, facts: Facts| {
        names(&planned(object, &facts)).concat().iter().any(|name| name == "StatefulSet lab-controller")
    };
    let answering = AccountingFacts::Here { service_port: 6819, answers: true };
    assert!(has_set(&object, Facts { accounting: answering, ..base_facts() }));
    assert!(has_set(&object, Facts { accounting: silent(), has_claim: true, ..base_facts() }), "it has state");
    let live = running(&planned(&controller(&json!({})), &base_facts()));
    assert!(has_set(&object, Facts { accounting: silent(), ..facts_running(&live) }), "it runs");
    let mut known = object.clone();
    known.status = Some(ControllerStatus { slurm_version: Some("26.05.5".into()), ..ControllerStatus::default() });
    assert!(has_set(&known, Facts { accounting: silent(), ..base_facts() }), "it has run");

    // A cluster that ran without accounting stays as it is until slurmdbd answers.
    let conf = |kind: &str| {
        let data = json!({"slurm.conf": format!("AccountingStorageType=accounting_storage/{kind}\n")});
        let owner = json!({"apiVersion": "x", "kind": "Controller", "name": "lab", "uid": "u", "controller": true});
        let metadata = json!({"name": "lab-config", "namespace": "slurm", "ownerReferences": [owner]});
        Some(serde_json::from_value(json!({"metadata": metadata, "data": data})).unwrap())
    };
    let plan = planned(&object, &Facts { accounting: silent(), config_map: conf("none"), ..facts_running(&live) });
    assert_eq!(names(&plan), [SERVICES]);
    assert_eq!(condition_of(&plan, "Ready").0, ConditionStatus::True);
    assert!(condition_of(&plan, "AccountingReachable").2.contains("waits until slurmdbd"));
    let with_slurmdbd = Facts { accounting: silent(), config_map: conf("slurmdbd"), ..facts_running(&live) };
    assert!(has_set(&object, with_slurmdbd));

    // The operator may be unable to reach an external slurmdbd that slurmctld can reach.
    let elsewhere = || AccountingFacts::Elsewhere {
        place: ExternalConfig { host: "db.example.com".into(), port: 7000 },
        unreachable: Some("connection refused".into()),
    };
    let of_age = |minutes| {
        let mut object = object.clone();
        object.metadata.creation_timestamp = Some(Time(NOW - SignedDuration::from_mins(minutes)));
        object
    };
    assert!(!has_set(&of_age(4), Facts { accounting: elsewhere(), ..base_facts() }));
    let plan = planned(&of_age(4), &Facts { accounting: elsewhere(), ..base_facts() });
    assert!(condition_of(&plan, "Ready").2.contains("db.example.com:7000: connection refused"));
    assert!(has_set(&of_age(6), Facts { accounting: elsewhere(), ..base_facts() }));
}

#[test]
fn a_condition_says_whether_the_cluster_is_registered_in_slurmdbd() {
    let object = controller(&json!({"accountingRef": {"name": "a"}}));
    let answered = |accounting| {
        let accounting = Some(accounting);
        let facts = AccountingFacts::Here { service_port: 6819, answers: true };
        let slurm = SlurmFacts { accounting, ..slurm(Ok(())) };
        planned(&object, &Facts { accounting: facts, slurm: Some(slurm), ..base_facts() })
    };
    let clusters = |name: &str, host: Option<&str>| Ok([(name.to_owned(), host.map(str::to_owned))].into());
    for (answer, status, reason, hint) in [
        (clusters("slurm_lab", Some("10.1.0.7")), ConditionStatus::True, "AsExpected", "slurm_lab is registered"),
        (clusters("slurm_lab", None), ConditionStatus::False, "NotConnected", "is not connected to slurmdbd"),
        (clusters("other", Some("10.1.0.7")), ConditionStatus::False, "NotRegistered", "slurm_lab is not registered"),
        (Err("no database".to_owned()), ConditionStatus::False, "SlurmdbdUnreachable", "no database. Jobs run"),
    ] {
        let plan = answered(answer);
        let found = condition_of(&plan, "AccountingReachable");
        assert_eq!((found.0, found.1), (status, reason));
        assert!(found.2.contains(hint), "{}", found.2);
    }
    let plan = planned(&controller(&json!({})), &Facts { slurm: Some(slurm(Ok(()))), ..base_facts() });
    assert!(plan.conditions.iter().all(|found| found.type_ != "AccountingReachable"));
}

#[test]
fn a_service_monitor_is_made_where_its_kind_is_installed() {
    let with = |enabled: bool| {
        controller(&json!({
            "metrics": {"enabled": true, "serviceMonitor": {"enabled": enabled, "interval": "30s", "labels": {"team": "a"}}},
            "slurmctld": {"image": "slurmctld:26.05"},
        }))
    };
    let facts = |monitor| Facts { monitor, ..base_facts() };
    let plan = planned(&with(true), &facts(Monitor::Missing));
    let monitor = object(&plan, "ServiceMonitor", "lab-controller");
    assert_eq!(monitor["metadata"]["labels"]["team"], "a");
    let endpoints = monitor["spec"]["endpoints"].as_array().unwrap();
    let paths: Vec<&str> = endpoints.iter().filter_map(|endpoint| endpoint["path"].as_str()).collect();
    assert_eq!(paths, ["/metrics/jobs", "/metrics/nodes", "/metrics/partitions", "/metrics/scheduler"]);
    assert_eq!((&endpoints[0]["interval"], &endpoints[0]["scrapeTimeout"]), (&json!("30s"), &Value::Null));
    assert_eq!(endpoints[0]["relabelings"][0]["regex"], "lab-controller", "not the headless Service, too");
    assert_eq!(endpoints[0]["relabelings"][1]["targetLabel"], "metrics_path", "each page has its own `up`");

    // Prometheus may not be there; slurmctld does not depend on it.
    let plan = planned(&with(true), &base_facts());
    assert_eq!(condition_of(&plan, "Degraded").1, "NoServiceMonitors");
    assert!(names(&plan).concat().iter().any(|name| name.contains("ConfigMap")), "{:?}", names(&plan));

    let mut live = ServiceMonitor::new("lab-controller", ServiceMonitorSpec::default());
    let foreign = Monitor::Live(Box::new(live.clone()));
    assert_eq!(condition_of(&planned(&with(true), &facts(foreign)), "Degraded").1, "NameTaken");
    (live.metadata.uid, live.metadata.resource_version) = (Some("monitor".into()), Some("1".into()));
    live.metadata.owner_references = Some(vec![engine::daemons::shared::Parent::of(&with(true), &VOCABULARY).owner]);
    let plan = planned(&with(false), &facts(Monitor::Live(Box::new(live))));
    assert!(names(&plan).concat().contains(&"delete ServiceMonitor lab-controller".to_owned()), "{:?}", names(&plan));
}

#[test]
fn metrics_are_enabled_only_if_slurm_supports_them() {
    let metrics = |image: &str| controller(&json!({"metrics": {"enabled": true}, "slurmctld": {"image": image}}));
    let plan = planned(&metrics("slurmctld:26.05"), &base_facts());
    assert!(slurm_conf(&plan).contains("MetricsType=metrics/openmetrics"));
    assert_eq!(condition_of(&plan, "Degraded").0, ConditionStatus::False);
    let plan = planned(&metrics("slurmctld:24.11"), &base_facts());
    assert!(!slurm_conf(&plan).contains("MetricsType"));
    assert_eq!(condition_of(&plan, "Degraded").1, "SlurmTooOld");
    assert_eq!(names(&plan).len(), 2, "the other steps are not blocked");

    let mut unknown = metrics("slurmctld:latest");
    assert!(!slurm_conf(&planned(&unknown, &base_facts())).contains("MetricsType"));
    unknown.status = Some(ControllerStatus { slurm_version: Some("26.05.5".into()), ..ControllerStatus::default() });
    assert!(slurm_conf(&planned(&unknown, &base_facts())).contains("MetricsType"), "Slurm reports its version");
}

#[test]
fn user_files_are_mounted_configured_and_hashed() {
    let object = controller(&json!({
        "configFileRefs": [{"name": "z-files"}], "prologScriptRefs": [{"name": "prologs"}],
        "epilogSlurmctldScriptRefs": [{"name": "epilogs"}], "jwksKeyRef": {"name": "jwks", "key": "set"},
    }));
    let content = |name: &str| match name {
        "cgroup.conf" => "IgnoreSystemd=yes",
        "gres.conf" => "AutoDetect=off",
        _ => "#!/bin/sh",
    };
    let files =
        |names: &[&str]| Some(names.iter().map(|name| ((*name).to_owned(), content(name).into())).collect::<Files>());
    let mut facts = base_facts();
    facts.config_maps = [
        ("z-files", files(&["cgroup.conf", "gres.conf"])),
        ("prologs", files(&["b.sh", "a.sh"])),
        ("epilogs", files(&["c.sh"])),
        ("jwks", files(&["set"])),
    ]
    .map(|(name, files)| (name.to_owned(), files))
    .into();
    let plan = planned(&object, &facts);
    let conf = slurm_conf(&plan);
    assert!(
        conf.contains("Prolog=a.sh\nProlog=b.sh\n") && conf.contains("EpilogSlurmctld=/etc/slurm/c.sh\n"),
        "{conf}"
    );
    assert!(conf.contains("jwks=/etc/slurm/jwks.json"), "{conf}");
    assert_eq!(object_keys(&plan), ["slurm.conf"], "the user provides cgroup.conf");
    let set = stateful_set(&plan);
    let sources = volume(&set, "slurm-etc").unwrap()["projected"]["sources"].as_array().unwrap();
    let maps: Vec<&str> = sources.iter().filter_map(|source| source["configMap"]["name"].as_str()).collect();
    assert_eq!(maps, ["lab-config", "lab-copy-of-epilogs", "lab-copy-of-prologs", "lab-copy-of-z-files", "jwks"]);

    assert_eq!(condition_of(&plan, "Degraded").1, "AsExpected");
    facts.config_maps.get_mut("epilogs").unwrap().as_mut().unwrap().insert("a.sh".into(), b"#!/bin/sh".to_vec());
    let doubled = planned(&object, &facts);
    let (_, reason, message) = condition_of(&doubled, "Degraded");
    assert_eq!(reason, "DuplicateFile");
    assert!(message.contains("epilogs, prologs all have a file a.sh, and that of prologs is used"), "{message}");
    facts.config_maps.get_mut("epilogs").unwrap().as_mut().unwrap().remove("a.sh");

    let hash =
        |set: &Value| set["spec"]["template"]["metadata"]["annotations"]["slinky.slurm.net/slurm-config-hash"].clone();
    facts
        .config_maps
        .get_mut("z-files")
        .unwrap()
        .as_mut()
        .unwrap()
        .insert("gres.conf".into(), b"AutoDetect=nvml".to_vec());
    assert_ne!(hash(&stateful_set(&planned(&object, &facts))), hash(&set), "slurmctld starts with the new file");
    assert!(refers_to_config_map(&object, "z-files") && refers_to_config_map(&object, "jwks"));
    assert!(refers_to_config_map(&object, "lab-config") && !refers_to_config_map(&object, "other"));
    assert!(refers_to_secret(&object, "keys") && !refers_to_secret(&object, "other"));
}

fn object_keys(plan: &Plan<ControllerStatus>) -> Vec<String> {
    object(plan, "ConfigMap", "lab-config")["data"].as_object().unwrap().keys().cloned().collect()
}

#[test]
fn in_place_reconfiguration_restarts_nothing() {
    let object = |extra: &str| controller(&json!({"inplaceReconfigure": true, "extraConf": extra}));
    let set = stateful_set(&planned(&object(""), &base_facts()));
    let template = &set["spec"]["template"];
    let names: Vec<&Value> =
        template["spec"]["initContainers"].as_array().unwrap().iter().map(|container| &container["name"]).collect();
    assert_eq!(names, ["reconfigure", "logfile"]);
    assert_eq!(template["metadata"]["annotations"]["slinky.slurm.net/slurm-config-hash"], Value::Null);
    assert_eq!(set, stateful_set(&planned(&object("ReturnToService=2"), &base_facts())));
}

#[test]
fn a_pod_that_cannot_become_ready_does_not_keep_its_old_template() {
    let object = controller(&json!({}));
    let mut live = running(&planned(&object, &base_facts()));
    live["status"]["readyReplicas"] = json!(0);
    live["status"]["updatedReplicas"] = json!(0);
    live["status"]["updateRevision"] = json!("new");
    let facts = |live: &Value, pod: Pod| Facts { pods: vec![pod], ..facts_running(live) };
    let deletes =
        |facts: &Facts| names(&planned(&object, facts)).concat().contains(&"delete Pod lab-controller-0".into());
    assert!(deletes(&facts(&live, pod("old", &json!({"phase": "Pending"})))));
    assert!(!deletes(&facts(&live, pod("new", &json!({"phase": "Pending"})))), "it is up to date");
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    assert!(!deletes(&facts(&live, pod("old", &ready))), "the StatefulSet controller replaces it");
    let mut other = pod("old", &json!({}));
    other.metadata.owner_references = None;
    assert!(!deletes(&facts(&live, other)), "it is not a pod of this StatefulSet");
    let mut unseen = live.clone();
    unseen["metadata"]["generation"] = json!(3);
    assert!(!deletes(&facts(&unseen, pod("old", &json!({})))), "the newest template is not known yet");
    let mut unwritten = live;
    unwritten["metadata"]["annotations"] = json!({});
    assert!(!deletes(&facts(&unwritten, pod("old", &json!({})))), "the new template is not written yet");
}
