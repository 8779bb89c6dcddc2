//! Revisions of the worker template, and of the templates of claims.

use super::*;

#[test]
fn a_template_has_one_revision_and_reverting_reuses_it() {
    let one = set(&json!({}));
    let two = set(&json!({"slurmd": {"image": "registry.example/slurmd:26.05.1"}}));
    let first = planned(&one, &base_facts());
    let (name, data) = written(&first).unwrap();
    assert_eq!(name, format!("workers-{}", first.status.node_set_hash));
    let known = revision(1, &first.status.node_set_hash, data["data"].clone());
    let mut facts = base_facts();
    facts.revisions = vec![known.clone()];
    assert!(written(&planned(&one, &facts)).is_none(), "it exists already");
    let second = planned(&two, &facts);
    let (_, newer) = written(&second).unwrap();
    assert_eq!(newer["revision"], 2);
    assert_ne!(second.status.node_set_hash, first.status.node_set_hash);

    facts.revisions.push(revision(2, &second.status.node_set_hash, newer["data"].clone()));
    let back = planned(&one, &facts);
    assert_eq!(back.status.node_set_hash, first.status.node_set_hash);
    assert_eq!(written(&back).unwrap().1["revision"], 3);
}

#[test]
fn changed_claim_templates_are_refused() {
    let with = |size: &str, selector: Value| {
        let claim = json!({
            "metadata": {"name": "scratch"},
            "spec": {"selector": selector, "resources": {"requests": {"storage": size}}},
        });
        set(&json!({"volumeClaimTemplates": [claim]}))
    };
    let first = planned(&with("1Gi", Value::Null), &base_facts());
    let (_, data) = written(&first).unwrap();
    let recorded = recorded_claims(&first);
    let known = Revision {
        claim_templates: recorded.clone(),
        ..revision(1, &first.status.node_set_hash, data["data"].clone())
    };
    let facts =
        |claim_templates| Facts { revisions: vec![Revision { claim_templates, ..known.clone() }], ..base_facts() };
    let problem = |set: &NodeSet, facts: &Facts| {
        let plan = planned(set, facts);
        let degraded = plan.conditions.iter().find(|found| found.type_ == "Degraded").unwrap();
        let creates = titles(&plan).concat().iter().any(|step| step.contains("create Pod"));
        ((degraded.reason == "ImmutableField").then(|| degraded.message.clone()), creates, written(&plan).is_some())
    };
    // Absent, null and {} are one.
    for selector in [Value::Null, json!({})] {
        assert_eq!(problem(&with("1Gi", selector), &facts(recorded.clone())), (None, true, false));
    }
    for changed in [with("2Gi", Value::Null), set(&json!({}))] {
        let (message, creates, writes) = problem(&changed, &facts(recorded.clone()));
        let message = message.unwrap();
        assert!(message.contains("spec.volumeClaimTemplates") && message.contains(&known.object.name), "{message}");
        assert!(!creates && !writes);
        let mut deleted = changed;
        deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(NOW));
        assert_eq!(problem(&deleted, &facts(recorded.clone())).0, None);
    }
    // A revision of an earlier release gets the annotation and stays what it is.
    let plan = planned(&with("1Gi", Value::Null), &facts(None));
    let (name, data) = written(&plan).unwrap();
    assert_eq!((&name, &data["revision"]), (&known.object.name, &json!(1)));
    assert_eq!(recorded_claims(&plan), recorded);
}

#[test]
fn an_explicit_false_zero_or_null_is_a_new_revision() {
    let plain = planned(&set(&json!({})), &base_facts());
    let (_, data) = written(&plain).unwrap();
    let mut facts = base_facts();
    facts.revisions = vec![revision(1, &plain.status.node_set_hash, data["data"].clone())];
    let image = "registry.example/slurmd:26.05";
    for spec in [
        json!({"slurmd": {"image": image, "securityContext": {"privileged": false}}}),
        json!({"slurmd": {"image": image, "livenessProbe": null}}),
        json!({"template": {"spec": {"hostname": "gpu-", "terminationGracePeriodSeconds": 0}}}),
        json!({"template": {"spec": {"hostname": "gpu-", "priorityClassName": ""}}}),
    ] {
        let changed = planned(&set(&spec), &facts);
        assert_ne!(changed.status.node_set_hash, plain.status.node_set_hash, "{spec}");
    }
    assert_eq!(planned(&set(&json!({"extraConf": ""})), &facts).status.node_set_hash, plain.status.node_set_hash);
}

#[test]
fn a_revision_of_an_earlier_release_is_reused() {
    let set =
        set(&json!({"slurmd": {"image": "registry.example/slurmd:26.05", "securityContext": {"privileged": false}}}));
    let (_, data) = written(&planned(&set, &base_facts())).unwrap();
    let mut facts = base_facts();
    facts.revisions = vec![revision(
        1,
        &frontends::slinky::nodeset::plan_revision::earlier_hash(&data["data"]),
        data["data"].clone(),
    )];
    let plan = planned(&set, &facts);
    assert_eq!(plan.status.node_set_hash, facts.revisions[0].hash, "its workers need not be replaced");
    assert!(written(&plan).is_none());
}

#[test]
fn a_revision_of_the_go_operator_is_reused() {
    let set = set(&json!({}));
    let mut spec = serde_json::to_value(&set.spec).unwrap();
    let data = json!({"spec": {
        "template": {"$patch": "replace", "metadata": {"creationTimestamp": null}, "spec": spec["template"]["spec"].take()},
        "slurmd": {"$patch": "replace", "name": "", "resources": {}, "image": "registry.example/slurmd:26.05"},
        "logfile": {"$patch": "replace"}, "ssh": {"$patch": "replace", "enabled": false},
        "extraConf": "", "ordinalPadding": 0, "oversubscribeNode": false,
    }});
    let mut facts = base_facts();
    facts.revisions = vec![revision(1, "6d5f8c9b7", data)];
    let plan = planned(&set, &facts);
    assert_eq!(plan.status.node_set_hash, "6d5f8c9b7", "its workers need not be replaced");
    assert!(written(&plan).is_none());
}

#[test]
fn a_revision_of_the_go_operator_is_reused_whatever_the_notation_of_quantities() {
    let resources = |cpu: Value, memory: Value| json!({"limits": {"cpu": cpu, "memory": memory, "hugepages-2Mi": 0.5}});
    let of = |cpu: Value, memory: Value| {
        let slurmd = json!({"image": "registry.example/slurmd:26.05", "resources": resources(cpu, memory)});
        set(&json!({ "slurmd": slurmd }))
    };
    let mut facts = base_facts();
    let mut spec = serde_json::to_value(&of(json!(2), json!("2048Mi")).spec).unwrap();
    let data = json!({"spec": {
        "template": {"$patch": "replace", "metadata": {"creationTimestamp": null}, "spec": spec["template"]["spec"].take()},
        "slurmd": {
            "$patch": "replace", "name": "", "image": "registry.example/slurmd:26.05",
            "resources": {"limits": {"cpu": "2", "memory": "2Gi", "hugepages-2Mi": "500m"}},
        },
        "logfile": {"$patch": "replace", "name": "", "resources": {}}, "ssh": {"$patch": "replace", "enabled": false},
    }});
    facts.revisions = vec![revision(1, "6d5f8c9b7", data)];
    for (cpu, memory) in
        [(json!(2), json!("2048Mi")), (json!("2000m"), json!(2_147_483_648_u64)), (json!("2.0"), json!("2Gi"))]
    {
        let plan = planned(&of(cpu.clone(), memory.clone()), &facts);
        assert_eq!(plan.status.node_set_hash, "6d5f8c9b7", "{cpu} {memory}: its workers need not be replaced");
    }
    let plan = planned(&of(json!(3), json!("2Gi")), &facts);
    assert_ne!(plan.status.node_set_hash, "6d5f8c9b7", "another number of CPUs is another revision");
}

#[test]
fn old_revisions_are_pruned_unless_a_worker_uses_them() {
    let worker = Worker {
        name: "workers-0".into(),
        uid: "w0".into(),
        hostname: Some("gpu-0".into()),
        phase: Phase::Running,
        slurmd: SlurmdState::Running { since: None },
        revision: Some("used".into()),
        index: Some("0".into()),
        ..Worker::default()
    };
    let mut facts = base_facts();
    facts.podset.workers = vec![Arc::new(worker)];
    facts.revisions = (1..=3).map(|n| revision(n, &format!("old{n}"), json!({"n": n}))).collect();
    facts.revisions.push(revision(4, "used", json!({"n": 4})));
    let gone = |limit: i32| {
        let plan = planned(&set(&json!({"revisionHistoryLimit": limit})), &facts);
        let titles = titles(&plan).concat();
        titles.into_iter().filter(|title| title.starts_with("delete ControllerRevision")).count()
    };
    assert_eq!((gone(0), gone(2), gone(9)), (3, 1, 0));
}
