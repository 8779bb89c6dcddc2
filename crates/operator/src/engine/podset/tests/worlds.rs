//! Whole stories, each driven to rest while every deed is checked.

use super::{world::World, *};

fn names(world: &World) -> Vec<&str> {
    let mut names: Vec<&str> = world.pods.iter().map(|pod| pod.name.as_str()).collect();
    names.sort_unstable();
    names
}

fn records(world: &World) -> Vec<String> {
    let mut records: Vec<String> = world.slurm.iter().map(|(name, node)| format!("{name} {}", node.states)).collect();
    records.retain(|text| !text.starts_with("login"));
    records.sort_unstable();
    records
}

fn scale(world: &mut World, replicas: u32) {
    world.model.scaling = Scaling::Numbered { replicas, padding: 0 };
}

#[test]
fn two_three_one_with_a_job() {
    let mut world = World::new(model(2), 4);
    world.settle(100);
    assert_eq!(names(&world), ["gpu-0", "gpu-1"]);
    scale(&mut world, 3);
    world.settle(100);
    assert_eq!(records(&world), ["gpu-0 IDLE", "gpu-1 IDLE", "gpu-2 IDLE"]);
    world.start_job(2, 30);
    scale(&mut world, 1);
    for _ in 0..10 {
        world.turn();
    }
    assert_eq!((names(&world), world.jobs.len()), (vec!["gpu-2"], 1), "the idle ones go and the job goes on");
    world.settle(200);
    assert_eq!((names(&world), records(&world)), (vec!["gpu-2"], vec!["gpu-2 IDLE".to_owned()]));
    scale(&mut world, 2);
    world.settle(200);
    assert_eq!(records(&world), ["gpu-0 IDLE", "gpu-2 IDLE"], "one that comes back is in service");
}

#[test]
fn a_scale_in_beyond_the_busy_one_waits_for_it() {
    let mut world = World::new(model(3), 4);
    world.settle(100);
    world.start_job(2, 25);
    scale(&mut world, 0);
    for _ in 0..15 {
        world.turn();
    }
    assert_eq!(names(&world), ["gpu-2"]);
    assert_eq!(records(&world), ["gpu-2 MIXED+DRAIN"]);
    world.settle(200);
    assert_eq!((names(&world).len(), records(&world).len()), (0, 0));
}

#[test]
fn a_rolling_update_with_jobs_ends_with_all_in_service() {
    let mut world = World::new(rolling(4, Budget::Number(1)), 5);
    world.settle(100);
    world.start_job(0, 40);
    world.start_job(3, 20);
    world.model.revision = "newer".into();
    world.settle(400);
    assert_eq!(records(&world), ["gpu-0 IDLE", "gpu-1 IDLE", "gpu-2 IDLE", "gpu-3 IDLE"]);
    assert!(world.pods.iter().all(|pod| pod.revision.as_deref() == Some("newer")));
}

#[test]
fn a_bad_template_stops_after_the_budget_and_heals() {
    let mut world = World::new(rolling(8, Budget::Percent(25)), 9);
    world.settle(100);
    world.bad.insert("broken".into());
    world.model.revision = "broken".into();
    world.settle(300);
    let good = world.pods.iter().filter(|pod| pod.ready.is_some()).count();
    assert_eq!(good, 6, "two of eight were tried");
    world.model.revision = "fixed".into();
    world.settle(600);
    assert!(world.pods.iter().all(|pod| pod.revision.as_deref() == Some("fixed") && pod.ready.is_some()));
    world.model.revision = "broken".into();
    world.settle(300);
    world.model.revision = "fixed".into();
    world.settle(300);
    assert_eq!(world.pods.iter().filter(|pod| pod.ready.is_some()).count(), 8, "the way back works too");
}

#[test]
fn nodes_come_and_go() {
    let mut world = World::new(Model { scaling: Scaling::PerNode, ..model(0) }, 2);
    world.settle(100);
    assert_eq!(names(&world), ["gpu-n0", "gpu-n1"]);
    world.kube.insert("n2".into(), kube_node("n2"));
    world.settle(100);
    assert_eq!(records(&world), ["n0 IDLE", "n1 IDLE", "n2 IDLE"]);
    let index = world.pods.iter().position(|pod| pod.name == "gpu-n1").unwrap();
    world.start_job(index, 20);
    for name in ["n1", "n2"] {
        world.model.placement.terms = Some(vec![Term {
            fields: vec![Match {
                key: "metadata.name".into(),
                operator: "NotIn".into(),
                values: vec!["n1".into(), name.into()],
            }],
            labels: Vec::new(),
        }]);
    }
    for _ in 0..10 {
        world.turn();
    }
    assert_eq!(names(&world), ["gpu-n0", "gpu-n1"], "the busy one is waited for");
    world.settle(200);
    assert_eq!(records(&world), ["n0 IDLE"]);
    world.model.placement = Placement::default();
    world.settle(200);
    world.kube.remove("n2");
    let node = world.slurm.get_mut("n2").unwrap();
    node.states = states("DOWN+NOT_RESPONDING");
    world.settle(200);
    assert_eq!(records(&world), ["n0 IDLE", "n1 IDLE"], "a node that died leaves no record");
}

#[test]
fn switching_modes_there_and_back() {
    let mut world = World::new(model(2), 3);
    world.settle(100);
    world.start_job(0, 20);
    world.model.scaling = Scaling::PerNode;
    world.settle(400);
    assert_eq!(records(&world), ["n0 IDLE", "n1 IDLE", "n2 IDLE"]);
    scale(&mut world, 2);
    world.settle(400);
    assert_eq!(records(&world), ["gpu-0 IDLE", "gpu-1 IDLE"]);
}

#[test]
fn cordon_and_uncordon() {
    let mut world = World::new(model(2), 2);
    world.settle(100);
    world.kube.get_mut("n0").unwrap().unschedulable = true;
    world.settle(100);
    let on = |world: &World, node: &str| {
        let pod = world.pods.iter().find(|pod| pod.node.as_deref() == Some(node)).unwrap();
        world.slurm[pod.slurm_node().unwrap()].states.to_string()
    };
    assert_eq!((on(&world, "n0"), on(&world, "n1")), ("IDLE+DRAIN".into(), "IDLE".into()));
    world.kube.get_mut("n0").unwrap().unschedulable = false;
    world.settle(100);
    assert_eq!(on(&world, "n0"), "IDLE");
}

#[test]
fn a_deleted_set_drains_first_if_asked_to() {
    let mut world = World::new(model(2), 2);
    world.settle(100);
    world.start_job(1, 15);
    world.model.life = Life::Deleted;
    world.model.drain.on_delete = true;
    world.settle(200);
    assert_eq!((world.pods.len(), records(&world).len()), (0, 0));
}
