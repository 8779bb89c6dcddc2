//! Decision tables: cordons, removals, removal order, budgets, placement and trust.

use super::*;

/// The cordon table: state and reason in Slurm, whether the Kubernetes node and the pod are cordoned, and the action.
#[test]
fn cordon_table() {
    let by_node = "slurm-operator: Node (node0) was cordoned, Pod (slurm/gpu-0) must be cordoned";
    let by_user = "slurm-operator: Pod (slurm/gpu-0) was cordoned";
    let drain = |reason: &str| vec![format!("drain gpu-0: {reason}")];
    let shown = "patch gpu-0 pod-cordon=true";
    let (down, mine) = ("slurm-operator: Pod is terminating", "slurm-operator: whatever");
    let table: Vec<(&str, &str, bool, bool, Vec<String>)> = vec![
        // unknown to Slurm
        ("", "", true, true, vec!["register gpu-0".into()]),
        // set by someone else
        ("IDLE+DRAIN", "bad disk", true, true, nothing()),
        ("IDLE+DRAIN", "bad disk", false, false, nothing()),
        ("IDLE+DRAIN", "", false, false, nothing()),
        ("DOWN", "bad disk", true, false, nothing()),
        // not responding
        ("DOWN+NOT_RESPONDING", "Not responding", true, true, nothing()),
        ("DOWN", "Not responding", false, false, vec!["resume gpu-0".into()]),
        ("DOWN", "slurm-operator: Node (n) was cordoned : Not responding", false, false, vec!["resume gpu-0".into()]),
        // what is left of a drain that has ended; slurmctld adds nothing to the reason of a node that is down
        ("DOWN", "bad disk : Not responding", false, false, vec!["resume gpu-0".into()]),
        ("DOWN+DRAIN", "bad disk : Not responding", false, false, nothing()),
        ("DOWN", "BMC Not responding", false, false, nothing()),
        // ours or free
        ("IDLE", "", true, false, drain(by_node)),
        ("IDLE", "", true, true, drain(by_node)),
        ("IDLE", mine, true, false, drain(by_node)),
        ("MIXED", "", true, false, drain(by_node)),
        ("MIXED", "", false, true, drain(by_user)),
        ("IDLE", "left by an admin who brought it back", false, true, drain(by_user)),
        ("IDLE+DRAIN", mine, true, false, nothing()),
        ("IDLE+DRAIN", mine, false, true, nothing()),
        ("IDLE+DRAIN", OURS, true, false, drain(by_node)),
        ("IDLE+DRAIN", mine, false, false, vec!["undrain gpu-0".into()]),
        ("MIXED+DRAIN", OURS, false, false, vec!["undrain gpu-0".into()]),
        ("IDLE+DRAIN+INVALID_REG", mine, false, false, nothing()),
        ("IDLE+DRAIN+UNDRAIN", mine, false, false, nothing()),
        ("IDLE", "", false, false, nothing()),
        // we had added the drain while slurmd did not respond
        ("IDLE+DRAIN", "Not responding", false, false, vec!["undrain gpu-0".into()]),
        // it came back
        ("DOWN", down, false, false, vec!["resume gpu-0".into()]),
        ("DOWN+NOT_RESPONDING", down, false, false, vec!["resume gpu-0".into()]),
        ("DOWN+DRAIN", down, false, false, vec!["resume gpu-0".into()]),
        ("DOWN", down, true, false, nothing()),
        ("DOWN+NOT_RESPONDING", mine, false, false, nothing()),
    ];
    for (text, reason, node, pod, expected) in table {
        let mut facts = facts_of(vec![(worker(0), text, reason), (worker(1), "IDLE", "")]);
        edit_node(&mut facts, "node0", |kube| kube.unschedulable = node);
        edit_worker(&mut facts, "gpu-0", |worker| {
            worker.cordon = if pod { Cordon::User } else { Cordon::None };
            worker.conditions.retain(|_, _| !text.is_empty());
        });
        let mut found = actions(&decide(&model(2), &facts));
        assert_eq!(found.iter().any(|action| action == shown), node && !pod, "{text} {reason}: {found:?}");
        found.retain(|action| action != shown);
        assert_eq!(found, expected, "{text} {reason} node={node} pod={pod}");
    }
}

#[test]
fn a_cordon_is_explained_by_the_node() {
    let condition = |type_: &str, reason: &str, message: &str| NodeCondition {
        type_: type_.into(),
        reason: reason.into(),
        message: message.into(),
    };
    let conditions = vec![condition("Disk", "Full", "95%"), condition("Gpu", "Xid", "79"), condition("Odd", "A", "b")];
    let listed = Model { propagated_conditions: vec!["Gpu".into(), "Disk".into()], ..model(1) };
    let table = [
        (&listed, None, "(Xid: 79); (Full: 95%)"),
        (&model(1), None, "Node (node0) was cordoned, Pod (slurm/gpu-0) must be cordoned"),
        (&listed, Some("  fan\tis\u{7} dead\n"), "fan is dead"),
        (&listed, Some(" \n"), "unknown"),
    ];
    for (model, annotation, expected) in table {
        let mut facts = facts_of(idle([0]));
        edit_worker(&mut facts, "gpu-0", |worker| worker.cordon = Cordon::Node);
        edit_node(&mut facts, "node0", |node| {
            node.unschedulable = true;
            node.conditions.clone_from(&conditions);
            let key = slurm_operator_api::slinky::names::annotation::NODE_CORDON_REASON;
            node.annotations.extend(annotation.map(|text| (key.to_owned(), text.to_owned())));
        });
        assert_eq!(actions(&decide(model, &facts)), [format!("drain gpu-0: slurm-operator: {expected}")]);
    }
    let mut facts = facts_of(idle([0]));
    edit_worker(&mut facts, "gpu-0", |worker| worker.cordon = Cordon::Node);
    edit_node(&mut facts, "node0", |node| {
        node.unschedulable = true;
        let key = slurm_operator_api::slinky::names::annotation::NODE_CORDON_REASON;
        node.annotations.insert(key.into(), "é".repeat(300));
    });
    let [WorkerAction::Drain { reason, .. }] = &decide(&model(1), &facts).actions[..] else { panic!() };
    assert_eq!(reason.chars().count(), "slurm-operator: ".len() + 256);
}

/// Actions for a worker that is to be removed, by the state in Slurm and Kubernetes.
#[test]
fn removal_table() {
    let running = SlurmdState::Running { since: Some(ago(3600)) };
    let young = SlurmdState::Running { since: Some(ago(5)) };
    let drain = "drain gpu-0: slurm-operator: NodeSet (slurm/gpu) is scaling in";
    let delete = "delete gpu-0";
    let table: Vec<(&str, &str, SlurmdState, bool, Vec<&str>)> = vec![
        ("IDLE", "", running, true, vec![drain]),
        ("MIXED", "", running, true, vec![drain]),
        ("ALLOCATED+DRAIN", OURS, running, true, vec![]),
        ("IDLE+COMPLETING+DRAIN", OURS, running, true, vec![]),
        ("IDLE+DRAIN+UNDRAIN", OURS, running, true, vec![drain]),
        ("IDLE+DRAIN", OURS, running, true, vec![delete]),
        ("DOWN+DRAIN", OURS, running, true, vec![delete]),
        ("IDLE+DRAIN", "bad disk", running, true, vec![delete]),
        ("MIXED+DRAIN", "bad disk", running, true, vec![]),
        // The drain was for a cordon and is now for the removal; its timeout starts again.
        ("MIXED+DRAIN", "slurm-operator: Pod (slurm/gpu-0) was cordoned", running, true, vec![drain]),
        ("MIXED+DRAIN", "slurm-operator: Pod (slurm/gpu-0) is pending termination for scale-in", running, true, vec![]),
        // Down is not drained, but a drain can be added without changing the reason.
        ("DOWN", "", running, true, vec![drain]),
        ("DOWN", "bad disk", running, true, vec!["drain gpu-0: bad disk"]),
        ("DOWN+NOT_RESPONDING", "Not responding", running, true, vec![drain]),
        ("DOWN", "Node unexpectedly rebooted", running, true, vec![drain]),
        ("DOWN+DRAIN+NOT_RESPONDING", "Not responding", running, true, vec![delete]),
        // slurmd is not running, so no job is.
        ("MIXED", "", SlurmdState::Stopped, true, vec![delete]),
        ("", "", SlurmdState::Stopped, false, vec![delete]),
        // Slurm does not know it.
        ("", "", running, false, vec![delete]),
        ("", "", young, false, vec![]),
        ("", "", running, true, vec!["register gpu-0"]),
        // No container state from the kubelet.
        ("IDLE+DRAIN", OURS, SlurmdState::Unknown, true, vec![delete]),
        ("IDLE", "", SlurmdState::Unknown, true, vec![drain]),
    ];
    for (text, reason, slurmd, registered, expected) in table {
        let first = Worker { slurmd, ready: None, ..worker(0) };
        let mut facts = facts_of(vec![(first, text, reason), (worker(1), "IDLE", ""), (worker(2), "IDLE", "")]);
        edit_worker(&mut facts, "gpu-0", |worker| match (registered, worker.conditions.is_empty()) {
            (false, _) => worker.conditions.clear(),
            (true, true) => worker.conditions = conditions_of("IDLE", ""),
            (true, false) => {}
        });
        let decision = decide(&model(2), &facts);
        let about: Vec<String> =
            actions(&decision).into_iter().filter(|action| !action.starts_with("conditions")).collect();
        let about: Vec<&str> = about.iter().map(String::as_str).filter(|action| !action.starts_with("patch")).collect();
        assert_eq!(about, expected, "{text} {reason} {slurmd:?} registered={registered}");
    }
}

/// Each row: of these two workers, the first is removed.
#[test]
fn scale_in_order() {
    type Edit = fn(&mut Worker);
    let table: Vec<(&str, Edit, &str, Edit, &str)> = vec![
        ("no node", |w| w.node = None, "IDLE", |w| w.deletion_cost = Some("-5".into()), "IDLE"),
        ("pending", |w| w.phase = Phase::Pending, "IDLE", |w| w.phase = Phase::Unknown, "IDLE"),
        ("unknown", |w| w.phase = Phase::Unknown, "IDLE", |w| w.ready = None, "IDLE"),
        ("ended", |w| w.phase = Phase::Failed, "IDLE", |w| w.phase = Phase::Running, "IDLE"),
        ("not ready", |w| w.ready = None, "MIXED", |w| w.deletion_cost = Some("-5".into()), "IDLE"),
        ("cost", |w| w.deletion_cost = Some("-1".into()), "MIXED", |_| (), "IDLE"),
        ("cost not plain", |_| (), "IDLE", |w| w.deletion_cost = Some("+5".into()), "MIXED"),
        ("cost padded", |_| (), "IDLE", |w| w.deletion_cost = Some("-007".into()), "MIXED"),
        ("half drained", |_| (), "MIXED+DRAIN", |_| (), "IDLE"),
        ("cost beats half drained", |w| w.deletion_cost = Some("-1".into()), "IDLE", |_| (), "MIXED+DRAIN"),
        ("idle", |_| (), "IDLE", |_| (), "MIXED"),
        ("cordoned", |w| w.cordon = Cordon::User, "IDLE", |_| (), "IDLE"),
        ("younger", |w| w.created = Some(ago(10)), "IDLE", |_| (), "IDLE"),
        ("ready lately", |w| w.ready = Some(ago(10)), "IDLE", |w| w.created = Some(ago(1)), "IDLE"),
    ];
    for (label, first, first_state, second, second_state) in table {
        for swap in [false, true] {
            let (mut a, mut b) = (worker(0), worker(1));
            let (one, other) = if swap { (&mut b, &mut a) } else { (&mut a, &mut b) };
            first(one);
            second(other);
            if ["younger", "ready lately"].contains(&label) {
                // These matter only for workers with the same ordinal.
                (a.index, b.index) = (Some("3".into()), Some("3".into()));
            }
            let reason = |text: &str| if text.contains("DRAIN") { OURS } else { "" };
            let (x, y) = if swap { (second_state, first_state) } else { (first_state, second_state) };
            let facts = facts_of(vec![(a, x, reason(x)), (b, y, reason(y))]);
            let model = model(1);
            let context = Context::new(&model, &facts, NOW);
            let workers = worker_state::gather(&context);
            let picked = removal_order::pick(&context, &workers, vec![0, 1], 1, &mut DecisionBuilder::default());
            let name = &workers[picked[0]].worker.name;
            assert_eq!(name, if swap { "gpu-1" } else { "gpu-0" }, "{label}, swapped: {swap}");
        }
    }
}

#[test]
fn the_highest_ordinal_is_removed_first_in_any_order_of_the_facts() {
    let mut facts = facts_of(idle([10, 2, 9]));
    for _ in 0..3 {
        facts.workers.rotate_left(1);
        assert_eq!(actions(&decide(&model(2), &facts)), [format!("drain gpu-10: {OURS}")]);
    }
}

#[test]
fn workers_whose_jobs_end_sooner_are_removed_first() {
    let job = |id, end| Job { id, ends: end, is_ending: false };
    let mut facts = facts_of((0..3).map(|ordinal| (worker(ordinal), "ALLOCATED", "")).collect());
    let at = |minutes| Some(NOW + SignedDuration::from_mins(minutes));
    edit_snapshot(&mut facts, |snapshot| snapshot.jobs = Jobs::Unread);
    let decision = decide(&model(2), &facts);
    assert_eq!((actions(&decision), decision.needs_jobs), (nothing(), true), "no choice before the jobs are known");
    edit_snapshot(&mut facts, |snapshot| {
        let jobs = [(0, vec![job(1, at(5)), job(2, at(90))]), (1, vec![job(3, at(60))]), (2, vec![job(4, None)])];
        let jobs = jobs.into_iter().map(|(ordinal, jobs)| (format!("gpu-{ordinal}"), jobs));
        snapshot.jobs = jobs_of(jobs);
    });
    let decision = decide(&model(2), &facts);
    assert!(actions(&decision).contains(&format!("drain gpu-1: {OURS}")), "{:?}", actions(&decision));
    assert!(actions(&decision).contains(&"patch gpu-2 pod-deadline=9999-01-01T00:00:00Z".into()));
    assert!(actions(&decision).contains(&"patch gpu-0 pod-deadline=2027-01-15T09:30:00Z".into()));
}

/// Name, replicas, budget, workers with their Slurm states, actions.
type Row = (&'static str, u32, Budget, Vec<(Worker, &'static str, &'static str)>, Vec<String>);

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn rolling_update_arithmetic() {
    fn old(ordinal: u32) -> Worker {
        Worker { revision: Some("old".into()), ..worker(ordinal) }
    }
    let gone = |ordinal| Worker { terminating: true, ..old(ordinal) };
    let unready = |ordinal| Worker { ready: None, ..worker(ordinal) };
    let bad = |ordinal| Worker { revision: Some("old".into()), ..unborn(ordinal) };
    let all = |list: Vec<Worker>| list.into_iter().map(|worker| (worker, "IDLE", "")).collect::<Vec<_>>();
    let drain = |nodes: &str| vec![format!("drain {nodes}: {UPDATE}")];
    let percent = Budget::Percent;
    let four = || vec![old(0), old(1), old(2), old(3)];
    let table: Vec<Row> = vec![
        (
            "one new unavailable of two allowed",
            4,
            percent(50),
            all(vec![unready(0), old(1), old(2), old(3)]),
            drain("gpu-3"),
        ),
        (
            "a new one that does not answer yet",
            2,
            Budget::Number(1),
            vec![(worker(0), "IDLE+NOT_RESPONDING", ""), (old(1), "IDLE", "")],
            nothing(),
        ),
        (
            "one that Slurm has lost",
            3,
            Budget::Number(1),
            vec![(old(0), "", ""), (old(1), "IDLE", ""), (old(2), "IDLE", "")],
            vec!["conditions gpu-0 +Unknown -Idle".to_owned(), "register gpu-0".to_owned()],
        ),
        ("an empty slot uses the budget", 2, Budget::Number(1), all(vec![old(0), gone(1)]), nothing()),
        (
            "leftovers do not make it negative",
            1,
            Budget::Number(1),
            all(vec![old(0), gone(1), gone(2)]),
            drain("gpu-0"),
        ),
        ("a quarter of four", 4, percent(25), all(four()), drain("gpu-3")),
        ("more than all", 4, percent(300), all(four()), drain("gpu-0,gpu-1,gpu-2,gpu-3")),
        ("none", 4, Budget::Number(0), all(four()), nothing()),
        (
            "broken ones are replaced beyond the budget, and nothing else until they serve",
            4,
            Budget::Number(1),
            {
                let mut list = all(vec![old(0), old(1)]);
                list.extend([(bad(2), "", ""), (bad(3), "", "")]);
                list
            },
            vec!["delete gpu-2".into(), "delete gpu-3".into()],
        ),
        (
            "broken ones leave what else the budget allows",
            4,
            Budget::Number(3),
            {
                let mut list = all(vec![old(0), old(1)]);
                list.extend([(bad(2), "", ""), (bad(3), "", "")]);
                list
            },
            {
                let mut actions = drain("gpu-1");
                actions.extend(["delete gpu-2".into(), "delete gpu-3".into()]);
                actions
            },
        ),
        (
            "an outdated worker that does not answer uses the budget",
            2,
            Budget::Number(1),
            vec![(old(0), "IDLE+NOT_RESPONDING", ""), (old(1), "IDLE", "")],
            drain("gpu-0"),
        ),
        (
            "broken ones are replaced even without a budget",
            3,
            Budget::Number(1),
            {
                let mut list = all(vec![old(0), unready(1)]);
                list.push((bad(2), "", ""));
                list
            },
            vec!["delete gpu-2".into()],
        ),
        (
            "what drains counts",
            4,
            percent(50),
            {
                let mut list = all(vec![old(0), old(1), old(2)]);
                list.push((old(3), "MIXED+DRAIN", UPDATE));
                list
            },
            drain("gpu-2"),
        ),
        (
            "what drains stays chosen",
            4,
            Budget::Number(1),
            {
                let mut list = all(vec![old(0), old(1), old(2)]);
                list.push((Worker { deletion_cost: Some("9".into()), ..old(3) }, "MIXED+DRAIN", UPDATE));
                list
            },
            nothing(),
        ),
        (
            "new but down in Slurm is not available",
            2,
            Budget::Number(1),
            { vec![(old(0), "IDLE", ""), (worker(1), "DOWN", "bad disk")] },
            nothing(),
        ),
        (
            "an admin's drain is not ours to lose",
            2,
            Budget::Number(1),
            { vec![(old(0), "IDLE", ""), (old(1), "IDLE+DRAIN", "bad disk")] },
            drain("gpu-0"),
        ),
    ];
    for (label, replicas, budget, workers, expected) in table {
        let decision = decide(&rolling(replicas, budget), &facts_of(workers));
        assert_eq!(actions(&decision), expected, "{label}");
    }
    let on_delete = Model { update: Update::OnDelete, ..model(4) };
    assert_eq!(actions(&decide(&on_delete, &facts_of(all(four())))), nothing());
    let empty = rolling(0, percent(100));
    assert_eq!(actions(&decide(&empty, &facts_of(Vec::new()))), nothing());
    assert_eq!([1, 4, 5, 8, 9].map(|total| percent(25).of(total)), [1, 1, 2, 2, 3]);
}

#[test]
fn a_worker_fits_a_node() {
    let toleration = |key: &str, operator: &str, value: &str, effect: &str| Toleration {
        key: key.into(),
        operator: operator.into(),
        value: value.into(),
        effect: effect.into(),
    };
    let demand = |key: &str, operator: &str, values: &[&str]| Match {
        key: key.into(),
        operator: operator.into(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let labels = |list: Vec<Match>| Some(vec![Term { labels: list, fields: Vec::new() }]);
    let fields = |list: Vec<Match>| Some(vec![Term { labels: Vec::new(), fields: list }]);
    let mut node = kube_node("a");
    node.labels = [("zone", "x"), ("gpus", "8")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let terms = [
        (None, true),
        (Some(Vec::new()), false),
        (Some(vec![Term::default()]), false),
        (labels(vec![demand("zone", "In", &["y", "x"])]), true),
        (labels(vec![demand("zone", "NotIn", &["x"])]), false),
        (labels(vec![demand("none", "NotIn", &["x"])]), true),
        (labels(vec![demand("zone", "Exists", &[])]), true),
        (labels(vec![demand("zone", "DoesNotExist", &[])]), false),
        (labels(vec![demand("gpus", "Gt", &["7"])]), true),
        (labels(vec![demand("gpus", "Lt", &["8"])]), false),
        (labels(vec![demand("zone", "Gt", &["1"])]), false),
        (labels(vec![demand("zone", "Like", &["x"])]), false),
        (labels(vec![demand("zone", "Exists", &[]), demand("gpus", "In", &["4"])]), false),
        (fields(vec![demand("metadata.name", "In", &["a"])]), true),
        (fields(vec![demand("metadata.name", "NotIn", &["a"])]), false),
        (fields(vec![demand("spec.unschedulable", "Exists", &[])]), false),
    ];
    for (terms, expected) in terms {
        let placement = Placement { terms: terms.clone(), ..Placement::default() };
        assert_eq!(fit(&placement, false, &node).runs, expected, "{terms:?}");
    }
    for (selector, expected) in [(("zone", "x"), true), (("zone", "y"), false), (("none", ""), false)] {
        let selector = vec![(selector.0.to_owned(), selector.1.to_owned())];
        let placement = Placement { selector, ..Placement::default() };
        assert_eq!(fit(&placement, false, &node).runs, expected);
    }
    let mine = vec![toleration("k", "Exists", "", ""), toleration("v", "", "1", "NoSchedule")];
    let taints = [
        // key, value, effect, whether a worker is created, whether one stays
        ("x", "", "NoSchedule", false, true),
        ("x", "", "NoExecute", false, false),
        ("x", "", "PreferNoSchedule", true, true),
        ("k", "9", "NoExecute", true, true),
        ("v", "1", "NoSchedule", true, true),
        ("v", "2", "NoSchedule", false, true),
        ("v", "1", "NoExecute", false, false),
        ("node.kubernetes.io/unschedulable", "", "NoSchedule", true, true),
        ("node.kubernetes.io/not-ready", "", "NoExecute", true, true),
        ("node.kubernetes.io/not-ready", "", "NoSchedule", false, true),
        ("node.kubernetes.io/disk-pressure", "", "NoSchedule", true, true),
        ("node.kubernetes.io/network-unavailable", "", "NoSchedule", false, true),
        ("nodeset.slinky.slurm.net/worker", "", "NoExecute", true, true),
        ("nodeset.slinky.slurm.net/worker", "x", "NoExecute", false, false),
    ];
    let placement = Placement { tolerations: mine, ..Placement::default() };
    for (key, value, effect, runs, continues) in taints {
        let taint = Taint { key: key.into(), value: value.into(), effect: effect.into() };
        let node = KubeNode { taints: vec![taint], ..node.clone() };
        assert_eq!(fit(&placement, false, &node), placement::Fit { runs, continues }, "{key} {effect}");
    }
    let taint =
        Taint { key: "node.kubernetes.io/network-unavailable".into(), effect: "NoSchedule".into(), ..Taint::default() };
    assert!(fit(&placement, true, &KubeNode { taints: vec![taint.clone()], ..node.clone() }).runs);
    let all = Placement { tolerations: vec![toleration("", "Exists", "", "")], ..Placement::default() };
    assert!(fit(&all, false, &KubeNode { taints: vec![taint], ..node.clone() }).runs);
    assert!(!fit(&all, false, &KubeNode { deleting: true, ..node }).continues);
}

fn fit(placement: &Placement, host_network: bool, node: &KubeNode) -> placement::Fit {
    let naming = Naming { host_network, ..Naming::default() };
    placement::fit(&Model { placement: placement.clone(), naming, ..model(1) }, node)
}

/// Whether a node list is trusted: registered before, listed now, its age, slurmctld's age.
#[test]
fn trust() {
    let table = [
        (4, 4, 1, Some(600), true),
        (4, 4, 6, Some(600), true),
        (4, 4, 7, Some(600), false),
        (4, 4, -7, Some(600), false),
        (4, 2, 1, Some(10), true),
        (4, 1, 1, Some(10), false),
        (4, 1, 1, Some(299), false),
        (4, 1, 1, Some(300), true),
        (4, 1, 1, None, false),
        (4, 4, 1, None, true),
        (4, 0, 1, Some(86_400), false),
        (0, 0, 1, Some(10), true),
    ];
    for (registered, listed, age, ctld, expected) in table {
        for from_status in [false, true] {
            let mut facts = facts_of(idle(0..4));
            for ordinal in 0..4 {
                edit_worker(&mut facts, &format!("gpu-{ordinal}"), |worker| {
                    worker.conditions.retain(|_, _| !from_status && ordinal < registered);
                });
            }
            facts.recall.slurm.registered = if from_status { registered } else { 0 };
            edit_snapshot(&mut facts, |snapshot| {
                Arc::make_mut(&mut snapshot.nodes).retain(|name, _| name[4..].parse::<u32>().unwrap() < listed);
                snapshot.read_at = ago(age);
                snapshot.ctld_started = ctld.map(ago);
            });
            let clear = TrustedSlurm::of(&facts, NOW).snapshot().is_some();
            assert_eq!(
                clear, expected,
                "registered {registered} listed {listed} age {age} ctld {ctld:?} {from_status}"
            );
        }
    }
}

/// No other event occurs when the warm-up of slurmctld ends.
#[test]
fn plans_again_when_the_warm_up_of_slurmctld_ends() {
    let mut facts = facts_of(idle(0..4));
    edit_snapshot(&mut facts, |snapshot| {
        Arc::make_mut(&mut snapshot.nodes).retain(|name, _| name == "gpu-0");
        snapshot.ctld_started = Some(ago(100));
    });
    // None is asked to register again.
    for name in ["gpu-1", "gpu-2", "gpu-3"] {
        edit_worker(&mut facts, name, |worker| worker.slurmd = SlurmdState::Unknown);
    }
    assert_eq!(plan(&model(4), &facts, NOW).next, Some(NOW + SignedDuration::from_secs(200)));
}
