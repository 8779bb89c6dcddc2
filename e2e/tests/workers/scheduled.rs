//! Features that not every Slurm version supports: updates in a reservation, and topology.

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, ManagedSlurm, NODE_SET, STARTED, uids},
    slurm_version,
    workers::{TOPOLOGY_NODE, annotate, crowd, kube_nodes, status},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, api::PostParams};
use serde_json::{Value, json};
use slurm::version::{Feature, SlurmVersion, supports};
use slurm_operator_api::{
    common::conditions::{self, reason},
    slinky::names::{self, annotation, finalizer},
};
use testkit::wait_for;

/// The default is flat, so that workers run jobs without a topology.
const TOPOLOGY: &str = "\
- topology: flat
  cluster_default: true
  flat: true
- topology: racks
  cluster_default: false
  tree:
    switches:
      - switch: root
        children: s[1-2]
      - switch: s1
        nodes: absent[1-2]
      - switch: s2
        nodes: absent[3-4]
";

/// Time for the operator to see the schedule before it starts.
const LEAD: SignedDuration = SignedDuration::from_secs(30);

#[tokio::test]
async fn reservations_and_topology_work_or_are_reported_as_unsupported() -> Result<()> {
    let scene = Scene::start("scheduled").await?;
    let can = supports(SlurmVersion::from_image_tag(&slurm_version()?), Feature::NodeTopology);
    let mut controller = managed::controller()?;
    if can {
        let files = json!({"metadata": {"name": "files"}, "data": {"topology.yaml": TOPOLOGY}});
        let files: ConfigMap = serde_json::from_value(files)?;
        scene.namespace.api().create(&PostParams::default(), &files).await?;
        controller["configFileRefs"] = json!([{"name": "files"}]);
    }
    let cluster = ManagedSlurm::start_with(&scene, controller, crowd(2, TOPOLOGY_NODE)?).await?;
    let result = if can { topology(&scene, &cluster).await } else { no_topology(&scene).await };
    // The node is shared with other tests.
    place(&scene, Value::Null).await?;
    result?;
    if can {
        scheduled(&scene, &cluster).await?;
    } else {
        not_scheduled(&scene, &cluster).await?;
    }
    scene.finish().await
}

/// Sets the topology of the workers' Kubernetes node.
async fn place(scene: &Scene, value: Value) -> Result<()> {
    annotate(&kube_nodes(&scene.client), TOPOLOGY_NODE, annotation::TOPOLOGY, value).await
}

async fn topology(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    for switch in ["s1", "s2"] {
        let spec = format!("racks:{switch}");
        place(scene, json!(spec)).await?;
        wait_for(&format!("the workers to be at {switch}"), SOON, async || {
            for pod in cluster.workers().await? {
                let reported = pod.annotations().get(annotation::TOPOLOGY);
                ensure!(reported == Some(&spec), "the pod {} has {reported:?}", pod.name_any());
            }
            for node in ["workers-0", "workers-1"] {
                let shown = cluster.run(&format!("scontrol show node {node}")).await?;
                let found = shown.split_whitespace().find_map(|word| word.strip_prefix("Topology=")).unwrap_or("");
                // Slurm may print the path to the switch, too.
                ensure!(found.starts_with("racks:") && found.ends_with(&format!(":{switch}")), "{node}: {shown}");
            }
            Ok(())
        })
        .await?;
    }
    cluster.agree(2).await
}

async fn no_topology(scene: &Scene) -> Result<()> {
    place(scene, json!("racks:s1")).await?;
    managed::wait_for_problem(scene, "NodeSet", NODE_SET, reason::SLURM_TOO_OLD, &["topology"]).await?;
    place(scene, Value::Null).await?;
    not_degraded(scene).await
}

/// Schedules an update that begins soon. Strategy and template change together, so that the update does not start at once.
async fn schedule(scene: &Scene) -> Result<Timestamp> {
    let start = Timestamp::from_second((Timestamp::now() + LEAD).as_second())?;
    let spec = json!({
        "updateStrategy": {"type": "ScheduledUpdate", "scheduledUpdate": {"startTime": start, "duration": "10m"}},
        "template": {"metadata": {"annotations": {"example.com/template": "second"}}},
    });
    managed::change(scene, "NodeSet", NODE_SET, spec).await?;
    Ok(start)
}

async fn scheduled(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let old = uids(&cluster.workers().await?);
    let start = schedule(scene).await?;
    wait_for("the reservation to exist", SOON, async || {
        let created = managed::condition(scene, "NodeSet", NODE_SET, conditions::RESERVATION_CREATED).await?;
        ensure!(created.status == "True" && created.reason == reason::CREATED, "{created:?}");
        Ok(())
    })
    .await?;
    let name = names::reservation(NODE_SET);
    let shown = cluster.run(&format!("scontrol show reservation {name}")).await?;
    assert!(shown.contains("Nodes=workers-[0-1]") && shown.contains("MAINT"), "{shown}");
    let workers = uids(&cluster.workers().await?);
    ensure!(Timestamp::now() < start, "the machine is too slow to see what happens before the start");
    assert_eq!(workers, old, "a worker was replaced before the start");
    let set = managed::resources(scene, "NodeSet").get(NODE_SET).await?;
    assert!(set.finalizers().iter().any(|name| name == finalizer::RESERVATION), "{:?}", set.finalizers());

    wait_for("the workers to be updated in the reservation", STARTED, async || {
        let reported = status(scene).await?;
        ensure!(
            reported["updatedReplicas"] == 2 && reported["readyReplicas"] == 2 && reported["slurmRegistered"] == 2,
            "{reported}"
        );
        let nodes = cluster.nodes().await?;
        ensure!(nodes.len() == 2 && nodes.values().all(|state| state == "maint"), "{nodes:?}");
        Ok(())
    })
    .await?;
    assert!(Timestamp::now() >= start);
    assert!(uids(&cluster.workers().await?).is_disjoint(&old));

    // Without a scheduled update, the reservation is deleted.
    managed::change(scene, "NodeSet", NODE_SET, json!({"updateStrategy": null})).await?;
    wait_for("the reservation to be gone", SOON, async || {
        let shown = cluster.run("scontrol show reservation").await?;
        ensure!(!shown.contains(&name), "{shown}");
        let set = managed::resources(scene, "NodeSet").get(NODE_SET).await?;
        ensure!(set.finalizers().is_empty(), "{:?}", set.finalizers());
        Ok(())
    })
    .await?;
    cluster.agree(2).await?;
    assert_eq!(cluster.srun("--nodes=2", "hostname").await?, ["workers-0", "workers-1"]);
    Ok(())
}

async fn not_scheduled(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let old = uids(&cluster.workers().await?);
    schedule(scene).await?;
    managed::wait_for_problem(scene, "NodeSet", NODE_SET, reason::SLURM_TOO_OLD, &["reservations", "RollingUpdate"])
        .await?;
    assert_eq!(uids(&cluster.workers().await?), old, "a worker was replaced");
    // As the condition says: use another strategy.
    managed::change(scene, "NodeSet", NODE_SET, json!({"updateStrategy": null})).await?;
    not_degraded(scene).await?;
    wait_for("the workers to be updated", STARTED, async || {
        let reported = status(scene).await?;
        ensure!(reported["updatedReplicas"] == 2 && reported["readyReplicas"] == 2, "{reported}");
        Ok(())
    })
    .await?;
    cluster.agree(2).await
}

/// Waits until the NodeSet is not degraded.
async fn not_degraded(scene: &Scene) -> Result<()> {
    wait_for("the NodeSet not to be degraded", SOON, async || {
        let degraded = managed::condition(scene, "NodeSet", NODE_SET, conditions::DEGRADED).await?;
        ensure!(degraded.status == "False", "{degraded:?}");
        Ok(())
    })
    .await
}
