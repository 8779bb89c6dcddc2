//! slurmctld loses its state; and a NodeSet whose image was wrong from the start.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{
    Scene,
    managed::{self, CLUSTER, ManagedSlurm, NODE_SET, SLURMCTLD, STARTED, uids},
    operator::is_ready,
    workers::{COMMON_NODE, crowd},
};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use slurm_operator_api::{
    common::conditions::{self, reason},
    slinky::names::label,
};
use testkit::wait_for;
use tokio::time::Instant;

/// Long enough for many reconciles with a Slurm that lists no nodes.
const MANY_RECONCILES: Duration = Duration::from_secs(20);

#[tokio::test]
async fn workers_survive_the_lost_state_of_slurmctld() -> Result<()> {
    let scene = Scene::start("lost-state").await?;
    let mut controller = managed::controller()?;
    // The state is lost with the pod.
    controller["persistence"] = json!({"enabled": false});
    let cluster = ManagedSlurm::start_with(&scene, controller, crowd(3, COMMON_NODE)?).await?;
    let workers = uids(&cluster.workers().await?);

    forget(&scene).await?;
    let end = Instant::now() + MANY_RECONCILES;
    let mut are_same = true;
    wait_for("the status to report the lost state of slurmctld", STARTED, async || {
        are_same &= uids(&cluster.workers().await?) == workers;
        ensure!(Instant::now() >= end, "the waiting time is not over");
        let reachable = managed::condition(&scene, "Controller", CLUSTER, conditions::SLURM_REACHABLE).await?;
        ensure!(reachable.status == "True", "{reachable:?}");
        if cluster.nodes().await?.is_empty() {
            let ready = managed::condition(&scene, "NodeSet", NODE_SET, conditions::READY).await?;
            ensure!(ready.status == "Unknown" && ready.message.contains("lists no nodes"), "{ready:?}");
        }
        Ok(())
    })
    .await?;
    assert!(are_same, "a worker was removed");

    // slurmd does not register again by itself. Only the user can decide to delete its pod.
    if cluster.nodes().await?.len() < 3 {
        let labels = ListParams::default().labels(&format!("{}={NODE_SET},{}=slurmd", label::INSTANCE, label::NAME));
        scene.pods().delete_collection(&DeleteParams::default(), &labels).await?;
    }
    cluster.agree(3).await?;
    assert_eq!(cluster.srun("--nodes=3", "hostname").await?, ["workers-0", "workers-1", "workers-2"]);
    wrong_from_the_start(&scene).await?;
    assert_eq!(cluster.srun("--nodelist=late-1", "hostname").await?, ["late-1"]);
    scene.finish().await
}

/// Deletes slurmctld with its state and waits until the new one answers.
async fn forget(scene: &Scene) -> Result<()> {
    let old = scene.pods().get(SLURMCTLD).await?.uid();
    scene.pods().delete(SLURMCTLD, &DeleteParams::default()).await?;
    wait_for("another slurmctld", STARTED, async || {
        let pod = scene.pods().get(SLURMCTLD).await?;
        ensure!(pod.uid() != old && is_ready(&pod), "it is the old pod, or not ready");
        scene.exec_in(SLURMCTLD, "slurmctld", "scontrol ping | grep UP").await?;
        Ok(())
    })
    .await
}

/// Once the image is corrected, the pods are replaced without manual work.
async fn wrong_from_the_start(scene: &Scene) -> Result<()> {
    let mut spec = crowd(2, COMMON_NODE)?;
    let image = spec["slurmd"]["image"].clone();
    spec["slurmd"]["image"] = json!("localhost/slurm-operator/slurmd:nowhere");
    spec["template"]["spec"]["hostname"] = json!("late-");
    spec["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}});
    managed::put(scene, "NodeSet", "late", spec).await?;
    managed::wait_for_problem(scene, "NodeSet", "late", reason::PODS_NOT_READY, &["slurmd:nowhere"]).await?;
    managed::change(scene, "NodeSet", "late", json!({"slurmd": {"image": image}})).await?;
    managed::ready(scene, "NodeSet", "late").await
}
