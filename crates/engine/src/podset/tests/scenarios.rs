//! Scenarios that run until the cluster is stable. Every action is checked.

use super::{fake_cluster::FakeCluster, *};

fn names(cluster: &FakeCluster) -> Vec<&str> {
    let mut names: Vec<&str> = cluster.pods.iter().map(|pod| pod.name.as_str()).collect();
    names.sort_unstable();
    names
}

fn records(cluster: &FakeCluster) -> Vec<String> {
    let mut records: Vec<String> = cluster.slurm.iter().map(|(name, node)| format!("{name} {}", node.states)).collect();
    records.retain(|text| !text.starts_with("login"));
    records.sort_unstable();
    records
}

fn scale(cluster: &mut FakeCluster, replicas: u32) {
    cluster.model.scaling = numbered(replicas, 0);
}

#[test]
fn two_three_one_with_a_job() {
    let mut cluster = FakeCluster::new(model(2), 4);
    cluster.settle(100);
    assert_eq!(names(&cluster), ["gpu-0", "gpu-1"]);
    scale(&mut cluster, 3);
    cluster.settle(100);
    assert_eq!(records(&cluster), ["gpu-0 IDLE", "gpu-1 IDLE", "gpu-2 IDLE"]);
    cluster.start_job(2, 30);
    scale(&mut cluster, 1);
    for _ in 0..10 {
        cluster.turn();
    }
    assert_eq!(
        (names(&cluster), cluster.jobs.len()),
        (vec!["gpu-2"], 1),
        "idle workers are removed and the job keeps running"
    );
    cluster.settle(200);
    assert_eq!((names(&cluster), records(&cluster)), (vec!["gpu-2"], vec!["gpu-2 IDLE".to_owned()]));
    scale(&mut cluster, 2);
    cluster.settle(200);
    assert_eq!(records(&cluster), ["gpu-0 IDLE", "gpu-2 IDLE"], "a recreated worker is in service");
}

#[test]
fn a_scale_in_beyond_the_busy_one_waits_for_it() {
    let mut cluster = FakeCluster::new(model(3), 4);
    cluster.settle(100);
    cluster.start_job(2, 25);
    scale(&mut cluster, 0);
    for _ in 0..15 {
        cluster.turn();
    }
    assert_eq!(names(&cluster), ["gpu-2"]);
    assert_eq!(records(&cluster), ["gpu-2 MIXED+DRAIN"]);
    cluster.settle(200);
    assert_eq!((names(&cluster).len(), records(&cluster).len()), (0, 0));
}

#[test]
fn a_rolling_update_with_jobs_ends_with_all_in_service() {
    let mut cluster = FakeCluster::new(rolling(4, Budget::Number(1)), 5);
    cluster.settle(100);
    cluster.start_job(0, 40);
    cluster.start_job(3, 20);
    cluster.model.revision = "newer".into();
    cluster.settle(400);
    assert_eq!(records(&cluster), ["gpu-0 IDLE", "gpu-1 IDLE", "gpu-2 IDLE", "gpu-3 IDLE"]);
    assert!(cluster.pods.iter().all(|pod| pod.revision.as_deref() == Some("newer")));
}

#[test]
fn a_bad_template_stops_at_the_budget_and_recovers_when_fixed() {
    let mut cluster = FakeCluster::new(rolling(8, Budget::Percent(25)), 9);
    cluster.settle(100);
    cluster.bad.insert("broken".into());
    cluster.model.revision = "broken".into();
    cluster.settle(300);
    let good = cluster.pods.iter().filter(|pod| pod.ready.is_some()).count();
    assert_eq!(good, 6, "two of eight were tried");
    cluster.model.revision = "fixed".into();
    cluster.settle(600);
    assert!(cluster.pods.iter().all(|pod| pod.revision.as_deref() == Some("fixed") && pod.ready.is_some()));
    cluster.model.revision = "broken".into();
    cluster.settle(300);
    cluster.model.revision = "fixed".into();
    cluster.settle(300);
    assert_eq!(cluster.pods.iter().filter(|pod| pod.ready.is_some()).count(), 8, "a rollback works too");
}

#[test]
fn nodes_are_added_and_removed() {
    let mut cluster = FakeCluster::new(Model { scaling: Scaling::PerNode, ..model(0) }, 2);
    cluster.settle(100);
    assert_eq!(names(&cluster), ["gpu-n0", "gpu-n1"]);
    cluster.kube.insert("n2".into(), kube_node("n2"));
    cluster.settle(100);
    assert_eq!(records(&cluster), ["n0 IDLE", "n1 IDLE", "n2 IDLE"]);
    let index = cluster.pods.iter().position(|pod| pod.name == "gpu-n1").unwrap();
    cluster.start_job(index, 20);
    for name in ["n1", "n2"] {
        cluster.model.placement.terms = Some(vec![Term {
            fields: vec![Match {
                key: "metadata.name".into(),
                operator: "NotIn".into(),
                values: vec!["n1".into(), name.into()],
            }],
            labels: Vec::new(),
        }]);
    }
    for _ in 0..10 {
        cluster.turn();
    }
    assert_eq!(names(&cluster), ["gpu-n0", "gpu-n1"], "the busy worker is not removed yet");
    cluster.settle(200);
    assert_eq!(records(&cluster), ["n0 IDLE"]);
    cluster.model.placement = Placement::default();
    cluster.settle(200);
    cluster.kube.remove("n2");
    let node = cluster.slurm.get_mut("n2").unwrap();
    node.states = states("DOWN+NOT_RESPONDING");
    cluster.settle(200);
    assert_eq!(records(&cluster), ["n0 IDLE", "n1 IDLE"], "no Slurm node is left behind");
}

#[test]
fn switching_modes_there_and_back() {
    let mut cluster = FakeCluster::new(model(2), 3);
    cluster.settle(100);
    cluster.start_job(0, 20);
    cluster.model.scaling = Scaling::PerNode;
    cluster.settle(400);
    assert_eq!(records(&cluster), ["n0 IDLE", "n1 IDLE", "n2 IDLE"]);
    scale(&mut cluster, 2);
    cluster.settle(400);
    assert_eq!(records(&cluster), ["gpu-0 IDLE", "gpu-1 IDLE"]);
}

#[test]
fn cordon_and_uncordon() {
    let mut cluster = FakeCluster::new(model(2), 2);
    cluster.settle(100);
    cluster.kube.get_mut("n0").unwrap().unschedulable = true;
    cluster.settle(100);
    let on = |cluster: &FakeCluster, node: &str| {
        let pod = cluster.pods.iter().find(|pod| pod.node.as_deref() == Some(node)).unwrap();
        cluster.slurm[pod.slurm_node().unwrap()].states.to_string()
    };
    let cordons = |cluster: &FakeCluster| {
        let of = |node: &str| cluster.pods.iter().find(|pod| pod.node.as_deref() == Some(node)).unwrap().cordon;
        [of("n0"), of("n1")]
    };
    assert_eq!((on(&cluster, "n0"), on(&cluster, "n1")), ("IDLE+DRAIN".into(), "IDLE".into()));
    assert_eq!(cordons(&cluster), [Cordon::Node, Cordon::None], "shown on the pod");
    cluster.kube.get_mut("n0").unwrap().unschedulable = false;
    cluster.settle(100);
    assert_eq!(on(&cluster, "n0"), "IDLE");
    assert_eq!(cordons(&cluster), [Cordon::None, Cordon::None]);
}

#[test]
fn a_deleted_set_drains_first_if_asked_to() {
    let mut cluster = FakeCluster::new(model(2), 2);
    cluster.settle(100);
    cluster.start_job(1, 15);
    cluster.model.life = Life::Deleted;
    cluster.model.drain.on_delete = true;
    cluster.settle(200);
    assert_eq!((cluster.pods.len(), records(&cluster).len()), (0, 0));
}
