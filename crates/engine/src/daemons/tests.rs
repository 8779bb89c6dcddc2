use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use slurm_operator_api::{
    common::template::Overlay,
    slinky::{Controller, VOCABULARY},
};

use super::{
    pods::{pod_problem, summary},
    shared::{Parent, SLURMCTLD, SLURMD, config_server, is_applied, log_sidecar, marked, restricted},
    slurmdbd::database_problem,
};

fn overlay(value: Value) -> Overlay {
    serde_json::from_value(value).unwrap()
}

fn parent() -> Parent {
    let object: Controller = serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": {
            "name": "lab", "namespace": "slurm", "uid": "u",
            "labels": {"team": "a", "helm.sh/chart": "slurm-1.2.3", "app.kubernetes.io/managed-by": "Helm",
                       "app.kubernetes.io/instance": "release"},
            "annotations": {"note": "b", "kubectl.kubernetes.io/last-applied-configuration": "{}",
                            "meta.helm.sh/release-name": "x", "argocd.argoproj.io/tracking-id": "y"},
        },
        "spec": {},
    }))
    .unwrap();
    Parent::of(&object, &VOCABULARY)
}

#[test]
fn children_inherit_user_metadata_but_no_tool_metadata() {
    let (labels, annotations) = parent().labels_and_annotations(SLURMCTLD, &[]);
    let expected = json!({
        "team": "a", "app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "lab",
        "app.kubernetes.io/component": "controller",
    });
    assert_eq!((json!(labels), json!(annotations)), (expected, json!({"note": "b"})));
}

#[test]
fn the_log_sidecar_uses_the_image_of_the_daemon_by_default() {
    let sidecar = log_sidecar(SLURMD, "slurmd:26.05", &overlay(json!({})), "spec.logfile").unwrap();
    assert_eq!((&sidecar["image"], &sidecar["restartPolicy"]), (&json!("slurmd:26.05"), &json!("Always")));
    assert_eq!(sidecar["env"], json!([{"name": "SOCKET", "value": "/var/log/slurm/slurmd.log"}]));
    let user = overlay(json!({"image": "alpine", "resources": {"limits": {"cpu": "1"}}}));
    let sidecar = log_sidecar(SLURMD, "slurmd:26.05", &user, "spec.logfile").unwrap();
    assert_eq!((&sidecar["image"], &sidecar["resources"]["limits"]["cpu"]), (&json!("alpine"), &json!("1")));
}

#[test]
fn the_configuration_comes_from_the_service_or_from_every_slurmctld() {
    assert_eq!(config_server(&VOCABULARY, "lab", "slurm", 16817, 1), "lab-controller.slurm:16817");
    let pod = |n| format!("lab-controller-{n}.lab-controller-internal.slurm:6817");
    assert_eq!(config_server(&VOCABULARY, "lab", "slurm", 16817, 2), format!("{},{}", pod(0), pod(1)));
}

#[test]
fn the_applied_hash_tells_whether_an_object_is_up_to_date() {
    let one = marked::<Pod>(&VOCABULARY, parent().metadata("p".into(), SLURMCTLD, &[]), json!({"spec": {"a": 1}}));
    let other = marked::<Pod>(&VOCABULARY, parent().metadata("p".into(), SLURMCTLD, &[]), json!({"spec": {"a": 2}}));
    assert!(is_applied(&VOCABULARY, &one.object, &one) && !is_applied(&VOCABULARY, &one.object, &other));
    let mut foreign = one.object.clone();
    foreign.metadata.annotations = None;
    assert!(!is_applied(&VOCABULARY, &foreign, &one));
}

fn pod(status: &Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
}

#[test]
fn pod_problems() {
    let container = |state: Value| json!({"name": "slurmctld", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let waiting = |reason: &str, message: &str| container(json!({"waiting": {"reason": reason, "message": message}}));
    for (status, expected) in [
        (json!({"conditions": [{"type": "Ready", "status": "True"}]}), None),
        (json!({}), Some(("pod p is not ready yet", false))),
        (
            json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]}),
            Some(("pod p cannot be scheduled: 0/3 nodes are available", true)),
        ),
        (
            json!({"containerStatuses": [waiting("ErrImagePull", "no such image")]}),
            Some(("pod p is waiting in container slurmctld, ErrImagePull: no such image", true)),
        ),
        (json!({"containerStatuses": [waiting("ContainerCreating", "")]}), Some(("pod p is not ready yet", false))),
        (
            json!({"containerStatuses": [container(json!({"terminated": {"exitCode": 1}}))]}),
            Some(("pod p failed in container slurmctld with exit code 1", true)),
        ),
        (
            json!({"containerStatuses": [container(json!({
                "terminated": {"exitCode": 1, "message": "started\nslurmdbd: fatal: Invalid DebugLevel x\nbye\n"},
            }))]}),
            Some(("pod p failed in container slurmctld with exit code 1: slurmdbd: fatal: Invalid DebugLevel x", true)),
        ),
    ] {
        let found = pod_problem(&pod(&status), Timestamp::UNIX_EPOCH);
        assert_eq!(found.as_ref().map(|found| (&*found.text, found.is_stuck)), expected);
    }
}

#[test]
fn a_new_pod_that_waits_for_its_claim_is_not_stuck() {
    let condition = json!({"type": "PodScheduled", "status": "False", "message": "no claim yet"});
    let mut pod = pod(&json!({"conditions": [condition]}));
    pod.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    let is_stuck = |second| pod_problem(&pod, Timestamp::from_second(second).unwrap()).unwrap().is_stuck;
    assert_eq!([is_stuck(29), is_stuck(30)], [false, true]);
}

#[test]
fn stuck_pods_come_first() {
    let all = ["b", "c", "d"].map(|name| {
        let mut pod = pod(&json!({}));
        pod.metadata.name = Some(name.into());
        pod_problem(&pod, Timestamp::UNIX_EPOCH).unwrap()
    });
    let stuck = super::pods::PodProblem { text: "pod z is stuck".into(), is_stuck: true };
    let summed = summary(&[&all[..], &[stuck]].concat()).unwrap();
    assert!(summed.is_stuck);
    assert_eq!(summed.text, "pod z is stuck; pod b is not ready yet; pod c is not ready yet; and 1 more");
    assert_eq!(summary(&[]), None);
}

#[test]
fn slurmdbd_says_why_it_has_no_database() {
    let again = "slurmdbd: error: The database must be up when starting the MYSQL plugin.  Trying again in 5 seconds.";
    let failed = |text: &str| format!("slurmdbd: error: mysql_real_connect failed: {text}\n{again}\n");
    let found = |log: &str| database_problem(log).map(|found| (found.text, found.is_refused));
    for (text, is_refused) in [
        ("2002 Can't connect to server on 'mariadb' (115)", false),
        ("2005 Unknown server host 'mariadb' (-2)", false),
        ("1040 Too many connections", false),
        ("1045 Access denied for user 'slurm'@'10.1.0.7' (using password: YES)", true),
        ("2026 TLS/SSL error: self-signed certificate in certificate chain", true),
    ] {
        assert_eq!(found(&failed(text)), Some((text.to_owned(), is_refused)));
    }
    let lost =
        "error: mysql_real_connect failed: 2002 Can't connect\nerror: unable to re-connect to as_mysql database\n";
    assert_eq!(found(lost), Some(("2002 Can't connect".to_owned(), false)), "it had a database before");
    let log = format!("{}slurmdbd: adding column tres to table qos_table\n", failed("2002 Can't connect"));
    assert_eq!(found(&log), None, "it has connected since");
    assert_eq!(found(""), None);
}

#[test]
fn containers_have_no_rights_that_they_do_not_need_unless_a_user_gives_them() {
    let nothing = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let context = |name: &str, context: Value| {
        let mut container = json!({"name": name});
        if !context.is_null() {
            container["securityContext"] = context;
        }
        let template = restricted(json!({"spec": {"containers": [container.clone()], "initContainers": [container]}}));
        assert_eq!(template["spec"]["containers"], template["spec"]["initContainers"]);
        template["spec"]["containers"][0]["securityContext"].clone()
    };
    assert_eq!(context("logfile", json!(null)), nothing);
    assert_eq!(context("slurmctld", json!({"runAsUser": 401}))["runAsUser"], 401);
    assert_eq!(context("slurmctld", json!({"runAsUser": 401}))["allowPrivilegeEscalation"], false);
    assert_eq!(context("slurmctld", json!({"allowPrivilegeEscalation": true}))["allowPrivilegeEscalation"], true);
    assert_eq!(context("of-the-user", json!(null)), json!(null));
    for more in [
        json!({"privileged": true}),
        json!({"runAsUser": 0}),
        json!({"runAsNonRoot": false}),
        json!({"capabilities": {"add": ["SYS_PTRACE"]}}),
    ] {
        assert_eq!(context("slurmctld", more.clone()), more, "the API server would refuse the combination");
    }
}
