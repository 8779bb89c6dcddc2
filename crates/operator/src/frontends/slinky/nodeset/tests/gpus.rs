//! Generic resources that follow from limits.

use super::*;

/// A set with two GPUs per worker, and with these fields.
fn gpu_set(fields: &Value) -> NodeSet {
    let mut spec = json!({"slurmd": {
        "image": "registry.example/slurmd:24.11", "resources": {"limits": {"nvidia.com/gpu": 2}},
    }});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    set(&spec)
}

/// A cluster whose slurmctld has these `GresTypes`.
fn with_gres_types(types: &[&str], is_rolled_out: bool) -> Facts {
    let mut facts = base_facts();
    let names = types.iter().map(|name| (*name).to_owned()).collect();
    facts.cluster.as_mut().unwrap().gres_types = GresTypes { names, is_rolled_out };
    facts
}

#[test]
fn limits_of_gpus_are_gres_of_the_node() {
    let conf = |set: &NodeSet, facts: &Facts| {
        let plan = planned(set, facts);
        created(&plan).first().map(|pod| pod.render()["spec"]["containers"][0]["args"][4].clone())
    };
    let ready = || with_gres_types(&["gpu"], true);
    assert_eq!(conf(&gpu_set(&json!({})), &ready()), Some(json!("'Features=gpu Gres=gpu:2'")));
    let typed = gpu_set(&json!({"gres": {"nvidia.com/gpu": "gpu:h100"}}));
    assert_eq!(conf(&typed, &ready()), Some(json!("'Features=gpu Gres=gpu:h100:2'")));
    // The user's own words win.
    let off = gpu_set(&json!({"gres": {"nvidia.com/gpu": "none"}}));
    assert_eq!(conf(&off, &base_facts()), Some(json!("'Features=gpu'")));
    let by_hand = gpu_set(&json!({"extraConf": "Gres=gpu:3"}));
    assert_eq!(conf(&by_hand, &base_facts()), Some(json!("'Features=gpu Gres=gpu:3'")));
    let mut by_user = base_facts();
    by_user.cluster.as_mut().unwrap().controller.spec.extra_conf = Some("GresTypes=fpga,gpu".into());
    assert_eq!(conf(&gpu_set(&json!({})), &by_user), Some(json!("'Features=gpu Gres=gpu:2'")));
    by_user.cluster.as_mut().unwrap().controller.spec.extra_conf = Some("GresTypes=fpga".into());
    assert_eq!(conf(&gpu_set(&json!({})), &by_user), Some(json!("'Features=gpu'")));
    let mut external = base_facts();
    external.cluster.as_mut().unwrap().controller.spec.external = true;
    assert_eq!(conf(&gpu_set(&json!({})), &external), Some(json!("'Features=gpu'")));
}

#[test]
fn first_workers_with_gpus_wait_until_slurmctld_knows_them() {
    for facts in [base_facts(), with_gres_types(&["fpga"], true), with_gres_types(&["gpu"], false)] {
        let plan = planned(&gpu_set(&json!({})), &facts);
        assert_eq!(created(&plan).len(), 0);
        let (_, reason, message) = ready(&plan);
        assert_eq!(reason, "WaitingForSlurmctld");
        assert!(message.contains("gpu:2") && message.contains("Controller slurm"), "{message}");
    }
    // Others are not kept waiting: slurmctld may wait for jobs.
    let mut facts = base_facts();
    facts.podset.workers = vec![Arc::new(busy_worker().0)];
    let plan = planned(&gpu_set(&json!({})), &facts);
    let args = created(&plan).first().unwrap().render()["spec"]["containers"][0]["args"].clone();
    assert_eq!(args[4], "'Features=gpu'");
}

#[test]
fn a_difference_from_slurms_gres_is_reported() {
    let condition = |set: &NodeSet, facts: Facts, gres: &str| {
        let hash = planned(set, &facts).status.node_set_hash;
        let (worker, mut snapshot) = busy_worker();
        Arc::make_mut(&mut snapshot.nodes).get_mut("gpu-0").unwrap().gres = gres.into();
        let podset = podset::Facts {
            workers: vec![Arc::new(Worker { revision: Some(hash), ..worker })],
            slurm: SlurmObservation::Clear(Arc::new(snapshot)),
            ..podset::Facts::default()
        };
        let plan = planned(set, &Facts { podset, ..facts });
        let found = plan.conditions.into_iter().find(|found| found.type_ == "GresMismatch");
        found.map(|found| (found.status, found.message))
    };
    let ready = || with_gres_types(&["gpu"], true);
    assert_eq!(condition(&set(&json!({})), base_facts(), ""), None, "without GPUs there is no such condition");
    let same = condition(&gpu_set(&json!({})), ready(), "gpu:2(S:0)").unwrap();
    assert_eq!(same.0, ConditionStatus::False, "{}", same.1);
    for (set, facts, gres, advice) in [
        (gpu_set(&json!({})), ready(), "", "gpu-0 hold gpu:2, but Slurm has none: slurmctld did not know them"),
        (gpu_set(&json!({})), base_facts(), "", "slurmctld does not have GresTypes=gpu yet"),
        (gpu_set(&json!({"extraConf": "Gres=gpu:3"})), ready(), "gpu:3", "has gpu:3: spec.extraConf sets Gres=gpu:3"),
    ] {
        let (status, message) = condition(&set, facts, gres).unwrap();
        assert_eq!(status, ConditionStatus::True);
        assert!(message.contains(advice), "{message}");
    }
}
