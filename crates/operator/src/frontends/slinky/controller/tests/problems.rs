//! What is wrong, and what must stay as it is.

use super::*;

#[test]
fn problems_say_what_to_do_and_are_waited_for() {
    let maps =
        |name: &str, files: Option<Files>| Facts { config_maps: [(name.to_owned(), files)].into(), ..base_facts() };
    let file = |name: &str, text: &str| Some(Files::from([(name.to_owned(), text.as_bytes().to_vec())]));
    let with_config = json!({"configFileRefs": [{"name": "files"}]});
    for (spec, facts, reason, hint, steps) in vec![
        (
            json!({}),
            Facts { slurm_key: KeyState::NoSecret, ..base_facts() },
            "ReferenceMissing",
            "create it with the key slurm.key, or set spec.generateKeys",
            3,
        ),
        (
            json!({}),
            Facts { jwt_key: KeyState::NoEntry, ..base_facts() },
            "ReferenceMissing",
            "has no entry jwt.key",
            3,
        ),
        (json!({"slurmctld": {}}), base_facts(), "InvalidSpec", "spec.slurmctld.image", 3),
        (json!({"slurmctld": {"image": ""}}), base_facts(), "InvalidSpec", "spec.slurmctld.image", 3),
        (json!({"extraConf": "A=1\nprose"}), base_facts(), "InvalidSpec", "spec.extraConf: line 2 is not Key=Value", 2),
        (
            json!({"template": {"spec": {"volumes": {}}}}),
            base_facts(),
            "InvalidSpec",
            "spec.template.spec.volumes must be a list",
            3,
        ),
        (
            json!({"service": {"spec": {"ports": 7}}}),
            base_facts(),
            "InvalidSpec",
            "spec.service.spec.ports must be a list",
            3,
        ),
        (
            json!({"accountingRef": {"name": "a"}}),
            Facts { accounting: AccountingFacts::Missing, ..base_facts() },
            "ReferenceMissing",
            "the Accounting a does not exist",
            2,
        ),
        (with_config.clone(), maps("files", None), "ReferenceMissing", "the ConfigMap files does not exist", 2),
        (with_config.clone(), maps("files", file("slurm.conf", "")), "InvalidSpec", "must not contain slurm.conf", 2),
        (
            with_config,
            maps("files", file("gres.conf", "what?")),
            "InvalidSpec",
            "gres.conf in the ConfigMap files: line 1",
            2,
        ),
        (
            json!({"jwksKeyRef": {"name": "j", "key": "k"}}),
            maps("j", file("x", "")),
            "ReferenceMissing",
            "the ConfigMap j has no k",
            2,
        ),
    ] {
        let plan = planned(&controller(&spec), &facts);
        let (status, said, message) = condition_of(&plan, "Ready");
        assert_eq!((status, said), (ConditionStatus::False, reason), "{message}");
        assert!(message.contains(hint), "{message}");
        assert_eq!(condition_of(&plan, "Degraded").0, ConditionStatus::True);
        assert_eq!(plan.stages.iter().flatten().count(), steps, "{hint}: {:?}", names(&plan));
        assert!(plan.events[0].is_warning && plan.events[0].text.contains(hint));
    }
}

#[test]
fn a_running_slurmctld_stays_ready_while_the_next_change_has_a_problem() {
    let live = running(&planned(&controller(&json!({})), &base_facts()));
    let plan = planned(&controller(&json!({"extraConf": "prose"})), &facts_running(&live));
    assert_eq!(names(&plan), [SERVICES], "neither configuration nor slurmctld is changed");
    assert_eq!(
        (condition_of(&plan, "Ready").0, condition_of(&plan, "Degraded").1),
        (ConditionStatus::True, "InvalidSpec")
    );
}

#[test]
fn objects_of_other_owners_are_not_changed() {
    let mut live = running(&planned(&controller(&json!({})), &base_facts()));
    live["metadata"]["ownerReferences"][0]["uid"] = json!("somebody");
    let plan = planned(&controller(&json!({})), &facts_running(&live));
    assert!(plan.stages.is_empty());
    assert_eq!(condition_of(&plan, "Degraded").1, "NameTaken");
}

#[test]
fn a_stateful_set_of_another_service_is_replaced() {
    let object = controller(&json!({}));
    let mut live = running(&planned(&object, &base_facts()));
    live["spec"]["serviceName"] = json!("lab-controller");
    let plan = planned(&object, &facts_running(&live));
    assert_eq!(names(&plan), all_and("delete StatefulSet lab-controller"));
    assert_eq!(condition_of(&plan, "Ready").1, "Replacing");
    live["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
    assert_eq!(names(&planned(&object, &facts_running(&live))), ALL, "it is already being deleted");
}

#[test]
fn claims_are_kept_and_reported() {
    let object = controller(&json!({}));
    let mut live = running(&planned(&object, &base_facts()));
    // Defaults set by the API server are not differences.
    live["spec"]["volumeClaimTemplates"][0]["spec"]["volumeMode"] = json!("Filesystem");
    live["spec"]["volumeClaimTemplates"][0]["status"] = json!({"phase": "Pending"});
    let kept = live["spec"]["volumeClaimTemplates"].clone();
    let plan = planned(&object, &facts_running(&live));
    assert_eq!(
        (condition_of(&plan, "Ready").0, condition_of(&plan, "Degraded").0),
        (ConditionStatus::True, ConditionStatus::False)
    );
    assert_eq!(stateful_set(&plan)["spec"]["volumeClaimTemplates"][0]["spec"], kept[0]["spec"]);

    for persistence in [
        json!({"resources": {"requests": {"storage": "2Gi"}}}),
        json!({"existingClaim": "other"}),
        json!({"enabled": false}),
    ] {
        let plan = planned(&controller(&json!({ "persistence": persistence })), &facts_running(&live));
        assert_eq!(stateful_set(&plan)["spec"]["volumeClaimTemplates"][0]["spec"], kept[0]["spec"], "{persistence}");
        assert_eq!(condition_of(&plan, "Degraded").1, "ClaimKept", "{persistence}");
    }

    let scratch = running(&planned(&controller(&json!({"persistence": {"enabled": false}})), &base_facts()));
    let plan = planned(&object, &Facts { snapshot: Some(no_jobs()), ..facts_running(&scratch) });
    let set = stateful_set(&plan);
    assert_eq!(set["spec"]["volumeClaimTemplates"], Value::Null);
    assert_eq!(volume(&set, "statesave").unwrap()["emptyDir"], json!({}));
    assert_eq!(condition_of(&plan, "Degraded").1, "ClaimKept");
}
