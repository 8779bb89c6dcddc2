use std::collections::BTreeMap;

use engine::{
    conditions::ConditionStatus,
    daemons::keys::KeyState,
    lint::lint,
    plan::{Next, Plan, Step},
};
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_operator_api::{
    common::shared::SecretKeySelector,
    slinky::{Controller, RestApi, RestApiStatus},
};

use super::plan::{ControllerFacts, Facts, plan};
use crate::{
    frontends::slinky::keys::Ring,
    machine::Kind,
    trigger::{Trigger, TriggerKind},
};

fn rest_api(spec: &Value) -> RestApi {
    let mut full = json!({"controllerRef": {"name": "lab"}, "slurmrestd": {"image": "slurmrestd:24.11"}});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "RestApi",
        "metadata": {"name": "rest", "namespace": "slurm", "uid": "u", "generation": 1},
        "spec": full,
    }))
    .unwrap()
}

fn cluster() -> ControllerFacts {
    ControllerFacts {
        accounting: false,
        slurm_key: Some(SecretKeySelector { name: "keys".into(), key: "slurm.key".into(), optional: None }),
        key: KeyState::Good { hash: "k".into(), weakness: None },
        ring: Ring::NotUsed,
        included: BTreeMap::new(),
        config_hash: Some("c".into()),
    }
}

fn facts_of(controller: Option<ControllerFacts>) -> Facts {
    Facts { controller, service: None, deployment: None, pod_problems: Vec::new() }
}

/// Plans, and lints the plan.
fn planned(rest_api: &RestApi, facts: &Facts) -> Plan<RestApiStatus> {
    let made = plan(rest_api, facts);
    assert_eq!(lint(rest_api, &made), []);
    assert_eq!(format!("{made:?}"), format!("{:?}", plan(rest_api, facts)), "the same facts, the same plan");
    made
}

fn objects(plan: &Plan<RestApiStatus>) -> Vec<(String, Value)> {
    let object = |step: &Step| match step {
        Step::Apply(desired) => {
            let title = format!("{} {}", desired.resource.kind, desired.object.name_any());
            (title, serde_json::to_value(&desired.object).unwrap())
        }
        other => panic!("{other:?}"),
    };
    plan.stages.iter().flatten().map(object).collect()
}

fn titles(plan: &Plan<RestApiStatus>) -> Vec<String> {
    objects(plan).into_iter().map(|(title, _)| title).collect()
}

fn deployment(rest_api: &RestApi, controller: ControllerFacts) -> Value {
    let mut objects = objects(&planned(rest_api, &facts_of(Some(controller))));
    let (title, object) = objects.remove(1);
    assert_eq!(title, "Deployment rest-restapi");
    object
}

fn condition_of<'a>(plan: &'a Plan<RestApiStatus>, type_: &str) -> (ConditionStatus, &'static str, &'a str) {
    let new_condition = plan.conditions.iter().find(|new_condition| new_condition.type_ == type_).unwrap();
    (new_condition.status, new_condition.reason, &new_condition.message)
}

#[test]
fn slurmrestd_runs_as_nobody_with_the_configuration_and_one_key() {
    let object = deployment(&rest_api(&json!({"replicas": 2})), cluster());
    assert_eq!(object["spec"]["replicas"], 2);
    let template = &object["spec"]["template"];
    assert_eq!(template["spec"]["securityContext"]["runAsUser"], 65534);
    let expected = json!([
        {"configMap": {"name": "lab-config", "items": [{"key": "slurm.conf", "path": "slurm.conf"}]}},
        {"secret": {"name": "keys", "items": [{"key": "slurm.key", "path": "slurm.key"}]}},
    ]);
    assert_eq!(template["spec"]["volumes"][0]["projected"]["sources"], expected);
    assert_eq!(template["spec"]["volumes"][0]["projected"]["defaultMode"], 0o600);
    let includes =
        |hash: &str| ControllerFacts { included: [("files".to_owned(), Some(hash.to_owned()))].into(), ..cluster() };
    let object = deployment(&rest_api(&json!({})), includes("a"));
    let sources = &object["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"];
    assert_eq!(
        sources[2],
        json!({"configMap": {"name": "files"}}),
        "slurmrestd reads the files that slurm.conf includes"
    );
}

#[test]
fn the_address_is_the_last_argument() {
    let args = |spec: Value, controller| {
        deployment(&rest_api(&spec), controller)["spec"]["template"]["spec"]["containers"][0]["args"].clone()
    };
    assert_eq!(args(json!({}), cluster()), json!(["-s", "openapi/slurmctld", "[::]:6820"]));
    let user = json!({"slurmrestd": {"image": "x", "args": ["-vv"]}});
    assert_eq!(args(user.clone(), cluster()), json!(["-s", "openapi/slurmctld", "-vv", "[::]:6820"]));
    assert_eq!(args(user, ControllerFacts { accounting: true, ..cluster() }), json!(["-vv", "[::]:6820"]));
}

#[test]
fn a_new_pod_is_ready_before_an_old_one_ends() {
    let strategy = |spec: Value| {
        let strategy = deployment(&rest_api(&spec), cluster())["spec"]["strategy"].clone();
        assert_eq!(strategy["type"], "RollingUpdate");
        (strategy["rollingUpdate"]["maxSurge"].clone(), strategy["rollingUpdate"]["maxUnavailable"].clone())
    };
    assert_eq!(strategy(json!({})), (json!(1), json!(0)));
    assert_eq!(strategy(json!({"replicas": 3})), (json!(1), json!(0)));
    // With a pod on every host, there is none for a new pod until an old one ends.
    let apart = json!({"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"});
    let apart = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}});
    let own_host = [
        json!({"template": {"spec": {"affinity": apart}}}),
        json!({"template": {"spec": {"hostNetwork": true}}}),
        json!({"slurmrestd": {"image": "x", "ports": [{"containerPort": 6820, "hostPort": 6820}]}}),
    ];
    for mut spec in own_host {
        spec["replicas"] = json!(3);
        assert_eq!(strategy(spec.clone()), (json!(1), json!(1)), "{spec}");
        spec["replicas"] = json!(1);
        assert_eq!(strategy(spec.clone()), (json!(1), json!(0)), "never without a ready pod: {spec}");
    }
}

#[test]
fn pods_prefer_different_hosts() {
    let preferred = |spec: Value| {
        let object = deployment(&rest_api(&spec), cluster());
        object["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
            ["preferredDuringSchedulingIgnoredDuringExecution"]
            .clone()
    };
    let ours = json!({"weight": 100, "podAffinityTerm": {
        "labelSelector": {"matchLabels": {
            "app.kubernetes.io/name": "slurmrestd", "app.kubernetes.io/instance": "rest",
        }},
        "topologyKey": "kubernetes.io/hostname",
    }});
    assert_eq!(preferred(json!({})), json!([ours]));
    let zone = json!({"weight": 1, "podAffinityTerm": {"topologyKey": "topology.kubernetes.io/zone"}});
    let affinity = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [zone]}});
    assert_eq!(preferred(json!({"template": {"spec": {"affinity": affinity}}})), json!([ours, zone]));
    let none = json!({"template": {"spec": {"affinity": null}}});
    assert_eq!(preferred(none), Value::Null, "null removes it");
}

#[test]
fn it_ends_after_its_last_request() {
    let lifecycle = |spec: Value| {
        deployment(&rest_api(&spec), cluster())["spec"]["template"]["spec"]["containers"][0]["lifecycle"].clone()
    };
    let ours = lifecycle(json!({}));
    let script = ours["preStop"]["exec"]["command"][2].as_str().unwrap();
    assert!(script.starts_with("sleep 5\n"), "the Service must have forgotten it: {script}");
    assert!(script.contains("':1AA4 [0-9A-F:]* 0[18] '"), "6820 in hexadecimal: {script}");
    let mine = json!({"preStop": {"sleep": {"seconds": 1}}});
    assert_eq!(lifecycle(json!({"slurmrestd": {"image": "x", "lifecycle": mine}})), mine);
}

#[test]
fn it_rolls_only_when_key_or_configuration_change() {
    let template = |controller| deployment(&rest_api(&json!({})), controller)["spec"]["template"].clone();
    let first = template(cluster());
    assert_eq!(first, template(cluster()));
    assert_ne!(first, template(ControllerFacts { config_hash: Some("d".into()), ..cluster() }));
    assert_ne!(
        first,
        template(ControllerFacts { key: KeyState::Good { hash: "l".into(), weakness: None }, ..cluster() })
    );
}

#[test]
fn the_service_has_the_configured_port_and_no_type() {
    let spec =
        |spec: Value| objects(&planned(&rest_api(&spec), &facts_of(Some(cluster())))).remove(0).1["spec"].clone();
    let port = |port: u16| json!([{"name": "slurmrestd", "port": port, "protocol": "TCP", "targetPort": "slurmrestd"}]);
    assert_eq!(spec(json!({}))["ports"], port(6820));
    assert_eq!(spec(json!({"service": {"port": 80}}))["ports"], port(80));
    assert_eq!(spec(json!({}))["type"], Value::Null);
}

#[test]
fn ready_when_all_pods_are() {
    let object = rest_api(&json!({}));
    let mut live = deployment(&object, cluster());
    live["metadata"]["generation"] = json!(1);
    live["status"] = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1});
    let plan_with = |live: &Value, controller| {
        let deployment = Some(serde_json::from_value(live.clone()).unwrap());
        planned(&object, &Facts { deployment, ..facts_of(Some(controller)) })
    };
    let plan = plan_with(&live, cluster());
    assert_eq!((condition_of(&plan, "Ready").0, plan.next), (ConditionStatus::True, Next::OnChange));
    assert_eq!(
        condition_of(&plan_with(&live, ControllerFacts { config_hash: Some("d".into()), ..cluster() }), "Ready").1,
        "Updating"
    );
    // slurmrestd is left as it is while the configuration is missing.
    let plan = plan_with(&live, ControllerFacts { config_hash: None, ..cluster() });
    assert_eq!((condition_of(&plan, "Ready").0, titles(&plan).len()), (ConditionStatus::True, 1));
    live["status"]["readyReplicas"] = json!(0);
    assert_eq!(condition_of(&plan_with(&live, cluster()), "Ready").1, "PodsNotReady");
}

#[test]
fn missing_dependencies_are_reported_and_waited_for() {
    for (spec, controller, expected, hint) in [
        (json!({}), None, "ReferenceMissing", "create the Controller lab or correct spec.controllerRef"),
        (json!({"slurmrestd": {}}), Some(cluster()), "InvalidSpec", "spec.slurmrestd.image"),
        (
            json!({}),
            Some(ControllerFacts { key: KeyState::NoEntry, ..cluster() }),
            "ReferenceMissing",
            "no entry slurm.key",
        ),
        (
            json!({}),
            Some(ControllerFacts { slurm_key: None, key: KeyState::NotNamed, ..cluster() }),
            "InvalidSpec",
            "spec.slurmKeyRef of the Controller lab",
        ),
        (
            json!({}),
            Some(ControllerFacts { key: KeyState::NoSecret, ..cluster() }),
            "Starting",
            "waiting for the Secret keys",
        ),
        (
            json!({}),
            Some(ControllerFacts { config_hash: None, ..cluster() }),
            "Starting",
            "waiting for the configuration",
        ),
    ] {
        let plan = planned(&rest_api(&spec), &facts_of(controller));
        assert_eq!(titles(&plan), ["Service rest-restapi"], "{hint}");
        let (ready, reason, message) = condition_of(&plan, "Ready");
        assert_eq!((ready, reason), (ConditionStatus::False, expected), "{message}");
        assert!(message.contains(hint), "{message}");
        assert_eq!(condition_of(&plan, "Degraded").0 == ConditionStatus::True, expected != "Starting", "{hint}");
        assert_eq!(plan.next, Next::OnChange, "a change triggers the next reconcile");
    }
}

#[test]
fn it_is_affected_by_its_dependencies() {
    let object = rest_api(&json!({}));
    let trigger = |what, namespace: &str, name: &str| Trigger {
        what,
        namespace: namespace.into(),
        name: name.into(),
        owners: Vec::new(),
    };
    for (what, namespace, name, affected) in [
        (TriggerKind::of::<Controller>(), "slurm", "lab", true),
        (TriggerKind::of::<Controller>(), "other", "lab", false),
        (TriggerKind::of::<Controller>(), "slurm", "other", false),
        (TriggerKind::ConfigMap, "slurm", "lab-config", true),
        (TriggerKind::ConfigMap, "slurm", "x-config", false),
        (TriggerKind::Secret, "slurm", "keys", true),
        (TriggerKind::Pod, "slurm", "rest-restapi-6687b976f-2js96", true),
        // It may be left by an earlier RestApi of this name, and go.
        (TriggerKind::Deployment, "slurm", "rest-restapi", true),
        (TriggerKind::Deployment, "slurm", "other-restapi", false),
    ] {
        assert_eq!(object.is_affected(&trigger(what, namespace, name)), affected, "{what:?} {namespace}/{name}");
    }
}
