//! A paused NodeSet.

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, ManagedSlurm, NODE_SET, uids},
    workers::{COMMON_NODE, annotate, crowd, status},
};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use slurm_operator_api::{
    common::conditions::{self, reason},
    slinky::names::annotation,
};
use testkit::wait_for;

#[tokio::test]
async fn a_paused_node_set_is_not_changed_and_says_so() -> Result<()> {
    let scene = Scene::start("pause").await?;
    let cluster = ManagedSlurm::start_with(&scene, managed::controller()?, crowd(2, COMMON_NODE)?).await?;
    let sets = managed::resources(&scene, "NodeSet");
    annotate(&sets, NODE_SET, annotation::PAUSED, json!("true")).await?;
    paused(&scene).await?;

    // The status is of this generation, so the operator has seen the change and done nothing.
    let workers = uids(&cluster.workers().await?);
    for replicas in [3_u8, 0, 1] {
        cluster.scale(replicas).await?;
        paused(&scene).await?;
        let reported = status(&scene).await?;
        assert_eq!((&reported["desired"], &reported["replicas"]), (&json!(replicas), &json!(2)), "{reported}");
        assert_eq!(uids(&cluster.workers().await?), workers);
        let nodes = cluster.nodes().await?;
        assert!(nodes.values().all(|state| state == "idle"), "{nodes:?}");
    }
    // The status is still updated.
    let job = cluster.hold("workers-0").await?;
    allocated(&scene, 1).await?;
    cluster.release(&job).await?;
    allocated(&scene, 0).await?;

    annotate(&sets, NODE_SET, annotation::PAUSED, Value::Null).await?;
    cluster.agree(1).await?;

    // A deleted pod is created again when the pause is over.
    annotate(&sets, NODE_SET, annotation::PAUSED, json!("true")).await?;
    paused(&scene).await?;
    scene.pods().delete("workers-0", &DeleteParams::default()).await?;
    wait_for("the status to show no worker", SOON, async || {
        let reported = status(&scene).await?;
        ensure!(reported["replicas"] == 0, "{reported}");
        Ok(())
    })
    .await?;
    annotate(&sets, NODE_SET, annotation::PAUSED, Value::Null).await?;
    cluster.agree(1).await?;
    scene.finish().await
}

/// Waits until the condition reports the pause.
async fn paused(scene: &Scene) -> Result<()> {
    wait_for("the NodeSet to report that it is paused", SOON, async || {
        let progress = managed::condition(scene, "NodeSet", NODE_SET, conditions::PROGRESSING).await?;
        ensure!(progress.status == "False" && progress.reason == reason::PAUSED, "{progress:?}");
        status(scene).await?;
        Ok(())
    })
    .await
}

async fn allocated(scene: &Scene, workers: u8) -> Result<()> {
    wait_for(&format!("the status to show {workers} busy workers"), SOON, async || {
        let reported = status(scene).await?;
        ensure!(reported["slurmAllocated"] == workers, "{reported}");
        Ok(())
    })
    .await
}
