//! Backups of slurmctld, and the claim with its state.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::*;

fn with_backup() -> Controller {
    controller(&json!({
        "ha": {"enabled": true, "backups": 1}, "persistence": {"enabled": true, "existingClaim": "state"},
        "slurmctld": {"image": "slurmctld:26.05"},
    }))
}

pub(super) fn claim(name: &str, mode: &str) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "slurm", "uid": "claim", "resourceVersion": "3"},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "4Gi"}}},
    }))
    .unwrap()
}

/// Two ready slurmctld pods; the first has these labels.
fn pods(labels: &Value) -> Vec<Pod> {
    let named = |name: &str, labels: &Value| {
        let mut pod = pod("new", &json!({"conditions": [{"type": "Ready", "status": "True"}]}));
        (pod.metadata.name, pod.metadata.uid) = (Some(name.to_owned()), Some(name.to_owned()));
        pod.metadata.labels = serde_json::from_value(labels.clone()).unwrap();
        pod
    };
    vec![named("lab-controller-0", labels), named("lab-controller-1", &json!({}))]
}

fn pings(responding: [bool; 2]) -> SlurmFacts {
    let active = responding.iter().position(|responds| *responds);
    let ping = |number: usize| Ping {
        host: format!("lab-controller-{number}"),
        responding: responding[number],
        active: active == Some(number),
    };
    SlurmFacts { pings: vec![ping(0), ping(1)], ..slurm(Ok(())) }
}

/// The steps that change labels.
fn labels(plan: &Plan<ControllerStatus>) -> Vec<String> {
    names(plan).concat().into_iter().filter(|name| name.contains("active")).collect()
}

const SET: &str = "set controller.slinky.slurm.net/active of Pod";
const REMOVE: &str = "remove controller.slinky.slurm.net/active of Pod";

#[test]
fn backups_share_a_claim_and_are_all_in_the_configuration() {
    let object = with_backup();
    let mut facts = base_facts();
    facts.claim = Some(claim("state", "ReadWriteMany"));
    let plan = planned(&object, &facts);
    let set = stateful_set(&plan);
    assert_eq!((&set["spec"]["replicas"], &set["spec"]["volumeClaimTemplates"]), (&json!(2), &Value::Null));
    assert_eq!(volume(&set, "statesave").unwrap()["persistentVolumeClaim"]["claimName"], "state");
    let ready = &set["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"];
    assert_eq!(ready, "/livez", "a standby never reports ready");
    let conf = slurm_conf(&plan);
    for n in [0, 1] {
        let line = format!("SlurmctldHost=lab-controller-{n}(lab-controller-{n}.lab-controller-internal.slurm)\n");
        assert!(conf.contains(&line), "{conf}");
    }
    assert!(!conf.contains("SlurmctldAddr"), "{conf}");
    assert_eq!(config_server(&object).split(',').count(), 2);

    facts.claim = Some(claim("state", "ReadWriteOnce"));
    let plan = planned(&object, &facts);
    assert_eq!(names(&plan), ALL);
    assert!(condition_of(&plan, "Ready").2.contains("ReadWriteMany"), "{:?}", condition_of(&plan, "Ready"));
}

#[test]
fn the_service_and_the_label_follow_the_active_slurmctld() {
    let object = with_backup();
    let mut facts = base_facts();
    facts.claim = Some(claim("state", "ReadWriteMany"));
    let first = planned(&object, &facts);
    let selector = &super::object(&first, "Service", "lab-controller")["spec"]["selector"];
    assert_eq!(selector["controller.slinky.slurm.net/active"], "true");

    facts = Facts { claim: facts.claim, pods: pods(&json!({})), ..facts_running(&running(&first)) };
    assert_eq!(labels(&planned(&object, &facts)), [format!("{SET} lab-controller-0")], "nothing is known yet");
    facts.pods = pods(&json!({"controller.slinky.slurm.net/active": "true"}));
    facts.slurm = Some(pings([true, true]));
    assert_eq!(labels(&planned(&object, &facts)), [""; 0]);
    facts.slurm = Some(pings([false, true]));
    let moved = [format!("{REMOVE} lab-controller-0"), format!("{SET} lab-controller-1")];
    assert_eq!(labels(&planned(&object, &facts)), moved);
    // Without an answer the label stays where it is.
    for unknown in [None, Some(slurm(Err("no answer".into()))), Some(pings([false, false]))] {
        facts.slurm = unknown;
        assert_eq!(labels(&planned(&object, &facts)), [""; 0]);
    }
}

#[test]
fn with_a_backup_in_charge_the_cluster_is_ready_and_degraded() {
    let object = with_backup();
    let mut facts = base_facts();
    facts.claim = Some(claim("state", "ReadWriteMany"));
    let mut live = running(&planned(&object, &facts));
    live["status"]["readyReplicas"] = json!(1);
    facts = Facts { claim: facts.claim, ..facts_running(&live) };
    facts.slurm = Some(pings([false, true]));
    let plan = planned(&object, &facts);
    let message = "1 of 2 slurmctld pods are ready, and lab-controller-1 is in charge";
    assert_eq!(condition_of(&plan, "Ready"), (ConditionStatus::True, "AsExpected", message));
    assert_eq!(condition_of(&plan, "Degraded"), (ConditionStatus::True, "PodsNotReady", message));
    facts.slurm = Some(slurm(Err("no answer".into())));
    assert_eq!(condition_of(&planned(&object, &facts), "Ready").0, ConditionStatus::False);
}

#[test]
fn the_first_slurmctld_starts_only_when_no_backup_writes_the_state() {
    let object = with_backup();
    let mut facts = base_facts();
    facts.claim = Some(claim("state", "ReadWriteMany"));
    let first = planned(&object, &facts);
    let template = &stateful_set(&first)["spec"]["template"]["spec"];
    assert_eq!(template["initContainers"][0]["name"], "failback");
    let alone = stateful_set(&planned(&controller(&json!({})), &base_facts()));
    assert_ne!(alone["spec"]["template"]["spec"]["initContainers"][0]["name"], "failback");

    let mut facts = Facts { claim: facts.claim, pods: pods(&json!({})), ..facts_running(&running(&first)) };
    facts.pods[1].metadata.labels =
        serde_json::from_value(json!({"controller.slinky.slurm.net/active": "true"})).unwrap();
    facts.slurm = Some(pings([false, true]));
    let waits = |seconds: i64| {
        let since = (NOW - SignedDuration::from_secs(seconds)).to_string();
        let running = json!({"running": {"startedAt": since}});
        json!({"initContainerStatuses": [{"name": "failback", "image": "", "imageID": "", "ready": false,
                                          "restartCount": 0, "state": running}]})
    };
    let deleted = |facts: &Facts| -> Vec<String> {
        names(&planned(&object, facts)).concat().into_iter().filter(|name| name.contains("delete Pod")).collect()
    };
    facts.pods[0].status = serde_json::from_value(waits(10)).unwrap();
    assert_eq!(deleted(&facts), [""; 0], "it may find no backup");
    facts.pods[0].status = serde_json::from_value(waits(20)).unwrap();
    assert_eq!(deleted(&facts), ["delete Pod lab-controller-1"]);

    // A container that starts again does not wait; a new pod does.
    let crashes = json!({"containerStatuses": [{"name": "slurmctld", "image": "", "imageID": "", "ready": false,
        "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
    facts.pods[0].status = serde_json::from_value(crashes).unwrap();
    assert_eq!(deleted(&facts), ["delete Pod lab-controller-0"]);
    facts.slurm = Some(pings([false, false]));
    assert_eq!(deleted(&facts), [""; 0], "nobody is in charge");
}

#[test]
fn the_claim_of_slurmctld_grows() {
    let larger = controller(&json!({"persistence": {"resources": {"requests": {"storage": "8Gi"}}}}));
    let live = running(&planned(&controller(&json!({})), &base_facts()));
    let mut facts = facts_running(&live);
    facts.claim = Some(claim("statesave-lab-controller-0", "ReadWriteOnce"));
    let plan = planned(&larger, &facts);
    let grown = "grow PersistentVolumeClaim statesave-lab-controller-0 to 8Gi";
    assert!(names(&plan).concat().iter().any(|name| name == grown), "{:?}", names(&plan));
    assert_eq!(condition_of(&plan, "Degraded").0, ConditionStatus::False, "{:?}", condition_of(&plan, "Degraded"));
    assert_eq!(stateful_set(&plan)["spec"]["volumeClaimTemplates"], live["spec"]["volumeClaimTemplates"]);

    // A claim that the user made is the user's.
    let shared = with_backup();
    facts = Facts { claim: Some(claim("state", "ReadWriteMany")), ..base_facts() };
    assert!(!names(&planned(&shared, &facts)).concat().iter().any(|name| name.starts_with("grow")));
}
