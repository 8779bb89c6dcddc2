//! What conditions and the status say of Slurm.

use super::*;

#[test]
fn an_external_slurmctld_gets_a_configuration_and_nothing_else() {
    let object = controller(&json!({
        "external": true, "externalConfig": {"host": "head.example.com", "port": 16817},
        "slurmKeyRef": null, "jwtKeyRef": null, "generateKeys": true,
    }));
    let mut facts = base_facts();
    (facts.slurm_key, facts.jwt_key) = (KeyState::NotNamed, KeyState::NotNamed);
    let plan = planned(&object, &facts);
    assert_eq!(names(&plan), [["ConfigMap lab-config"]]);
    assert!(slurm_conf(&plan).contains("SlurmctldHost=head.example.com\nSlurmctldPort=16817\n"));
    assert_eq!(condition_of(&plan, "Ready"), (ConditionStatus::True, "AsExpected", "slurmctld is external"));
    assert_eq!(config_server(&object), "head.example.com:16817");
    for host in ["fd00::1", "[fd00::1]"] {
        let ipv6 = json!({"external": true, "externalConfig": {"host": host, "port": 6817}});
        assert_eq!(config_server(&controller(&ipv6)), "[fd00::1]:6817");
    }

    facts.slurm = Some(slurm(Err("no answer".into())));
    assert_eq!(
        condition_of(&planned(&object, &facts), "Ready"),
        (ConditionStatus::Unknown, "SlurmUnreachable", "no answer")
    );

    let live = running(&planned(&controller(&json!({})), &base_facts()));
    let plan = planned(&object, &facts_running(&live));
    assert_eq!(
        names(&plan)[1],
        ["delete StatefulSet lab-controller"],
        "a cluster must not have two independent slurmctld"
    );
}

#[test]
fn the_status_reports_what_slurm_says_and_keeps_it() {
    let mut object = controller(&json!({}));
    let mut facts = base_facts();
    facts.slurm = Some(slurm(Ok(())));
    let plan = planned(&object, &facts);
    assert_eq!(condition_of(&plan, "SlurmReachable").0, ConditionStatus::True);
    assert_eq!(
        (plan.status.slurm_version.as_deref(), plan.status.rest_version.as_deref()),
        (Some("26.05.5"), Some("v0.0.45"))
    );
    assert_eq!(plan.status.slurmctld[0].since.as_ref().unwrap().0, NOW);

    let mut old = plan.status.clone();
    old.slurmctld[0].since.as_mut().unwrap().0 = NOW - SignedDuration::from_hours(1);
    object.status = Some(old.clone());
    assert_eq!(planned(&object, &facts).status.slurmctld, old.slurmctld, "the time is kept");
    let gone = SlurmFacts { slurm_version: None, rest_version: None, pings: Vec::new(), ..slurm(Err("gone".into())) };
    facts.slurm = Some(gone);
    let plan = planned(&object, &facts);
    assert_eq!(condition_of(&plan, "SlurmReachable"), (ConditionStatus::False, "SlurmUnreachable", "gone"));
    assert_eq!(plan.status.slurm_version.as_deref(), Some("26.05.5"), "the last known version is kept");
    let silent = plan.status.slurmctld.clone();
    assert_eq!((silent[0].host.as_str(), silent[0].responding, silent[0].active), ("lab-controller-0", false, false));
    assert_eq!(silent[0].since.as_ref().unwrap().0, NOW, "since it is not known any more");
    old = plan.status;
    old.slurmctld[0].since.as_mut().unwrap().0 = NOW - SignedDuration::from_hours(1);
    object.status = Some(old.clone());
    assert_eq!(planned(&object, &facts).status.slurmctld, old.slurmctld, "that time is kept as well");
}

#[test]
fn what_is_easy_to_attack_is_said() {
    let weak = KeyState::Good { hash: "j".into(), weakness: Some("short".into()) };
    let facts = Facts { jwt_key: weak, ..base_facts() };
    let made = planned(&controller(&json!({})), &facts);
    assert!(!made.stages.is_empty(), "the key is used");
    let (status, reason, message) = condition_of(&made, "Insecure");
    assert_eq!((status, reason, message), (ConditionStatus::True, "KeyTooShort", "jwt.key in the Secret keys: short"));
    let at = |url: &str| planned(&controller(&json!({"externalRestApi": {"url": url}})), &base_facts());
    let made = at("http://rest.example.com:6820");
    assert_eq!(condition_of(&made, "Insecure").1, "PlainHttp");
    assert!(made.events.iter().any(|event| event.is_warning && event.reason == "PlainHttp"), "{:?}", made.events);
    let made = at("https://rest.example.com:6820");
    assert!(made.conditions.iter().all(|condition| condition.type_ != "Insecure"));
}
