//! A refused spec: no worker is created or replaced, and running workers are protected, drained, counted and deleted.

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, ManagedSlurm, NODE_SET, STARTED, uids},
    workers::{COMMON_NODE, crowd, delete_set, status},
};
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_operator_api::{common::conditions::reason, slinky::names::label};
use testkit::wait_for;

#[tokio::test]
async fn with_a_refused_spec_running_workers_are_still_managed() -> Result<()> {
    let scene = Scene::start("refused").await?;
    let mut spec = crowd(3, COMMON_NODE)?;
    spec["drain"] = json!({"onDelete": true});
    let cluster = ManagedSlurm::start_with(&scene, managed::controller()?, spec).await?;
    let before = uids(&cluster.workers().await?);

    // Zero is valid, and holds an update.
    let held = json!({"rollingUpdate": {"maxUnavailable": 0}});
    change(&scene, json!({"updateStrategy": held, "template": {"metadata": {"annotations": {"example.com/t": "1"}}}}))
        .await?;
    wait_for("the update to be held", SOON, async || {
        let status = status(&scene).await?;
        ensure!(status["updatedReplicas"] == 0 && status["nodeSetHash"].is_string(), "{status}");
        Ok(())
    })
    .await?;
    let first = cluster.hold("workers-0").await?;
    protected(&cluster, "workers-0").await?;
    assert_eq!(uids(&cluster.workers().await?), before, "a worker was replaced");

    // The operator sets the node name, so that it can identify its workers.
    let slurmd = cluster.worker("workers-0").await?;
    let runs = scene.exec_in(&slurmd.name_any(), "slurmd", "pgrep --list-full slurmd").await?;
    ensure!(runs.contains("-N workers-0"), "slurmd runs as {runs}");
    change(&scene, json!({"slurmd": {"args": ["-N", "other-0"]}})).await?;
    managed::wait_for_problem(&scene, "NodeSet", NODE_SET, reason::INVALID_SPEC, &["spec.slurmd.args", "-N"]).await?;
    change(&scene, json!({"slurmd": {"args": null}, "extraConf": "Weight"})).await?;
    managed::wait_for_problem(&scene, "NodeSet", NODE_SET, reason::INVALID_SPEC, &["extraConf", "Weight"]).await?;

    let second = cluster.hold("workers-1").await?;
    protected(&cluster, "workers-1").await?;
    cluster.scale(1).await?;
    wait_for("the idle worker to be removed and a busy one to drain", STARTED, async || {
        let (draining, workers) = (cluster.draining().await?, cluster.workers().await?);
        ensure!(draining.len() == 1 && workers.len() == 2, "{draining:?} drain, there are {} workers", workers.len());
        let status = status(&scene).await?;
        ensure!(status["replicas"] == 2 && status["slurmDrain"] == 1, "{status}");
        Ok(())
    })
    .await?;
    delete_set(&scene).await?;
    wait_for("both busy workers to drain", SOON, async || {
        let draining = cluster.draining().await?;
        ensure!(draining.len() == 2, "{draining:?}");
        Ok(())
    })
    .await?;
    cluster.release(&first).await?;
    cluster.release(&second).await?;
    cluster.set_gone().await?;
    scene.finish().await
}

async fn change(scene: &Scene, spec: Value) -> Result<()> {
    managed::change(scene, "NodeSet", NODE_SET, spec).await
}

async fn protected(cluster: &ManagedSlurm<'_>, node: &str) -> Result<()> {
    wait_for(&format!("the worker {node} to be protected"), SOON, async || {
        let pod = cluster.worker(node).await?;
        ensure!(pod.labels().contains_key(label::POD_PROTECT), "{:?}", pod.labels());
        Ok(())
    })
    .await
}
