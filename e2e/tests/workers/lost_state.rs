//! slurmctld loses its state: idle workers register again by themselves, busy ones when their jobs have ended. And a NodeSet
//! whose image was wrong from the start.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{
    Scene,
    managed::{self, ManagedSlurm, NODE_SET, SLURMCTLD, STARTED, uids},
    operator::is_ready,
    workers::{COMMON_NODE, crowd},
};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::json;
use slurm_operator_api::common::conditions::reason;
use testkit::wait_for;
use tokio::time::Instant;

/// Longer than the time between two attempts to make a worker register.
const ATTEMPTS: Duration = Duration::from_secs(40);

/// How long idle workers may take until slurmctld knows them again.
const REGISTERED: Duration = Duration::from_mins(2);

#[tokio::test]
async fn workers_survive_the_lost_state_of_slurmctld() -> Result<()> {
    let scene = Scene::start("lost-state").await?;
    let mut controller = managed::controller()?;
    // The state is lost with the pod.
    controller["persistence"] = json!({"enabled": false});
    let cluster = ManagedSlurm::start_with(&scene, controller, crowd(3, COMMON_NODE)?).await?;
    let workers = uids(&cluster.workers().await?);
    let job = cluster.hold("workers-0").await?;

    forget(&scene).await?;
    wait_for("the idle workers to register again", REGISTERED, async || {
        let nodes = cluster.nodes().await?;
        ensure!(
            nodes.keys().eq(["workers-1", "workers-2"]) && nodes.values().all(|state| state == "idle"),
            "{nodes:?}"
        );
        Ok(())
    })
    .await?;
    assert_eq!(cluster.srun("--nodes=2", "hostname").await?, ["workers-1", "workers-2"]);
    let words = ["workers-0 run jobs that slurmctld does not know", "register again when these have ended"];
    managed::wait_for_problem(&scene, "NodeSet", NODE_SET, "UnknownToSlurm", &words).await?;
    let end = Instant::now() + ATTEMPTS;
    wait_for("the job to go on all the time", STARTED, async || {
        let steps = scene.exec_in("workers-0", "slurmd", "scontrol listjobs workers-0").await?;
        let is_same = uids(&cluster.workers().await?) == workers;
        assert!(steps.lines().any(|line| line.trim() == job.id) && is_same, "the job or a worker is gone: {steps}");
        ensure!(Instant::now() >= end, "the waiting time is not over");
        Ok(())
    })
    .await?;

    scene.exec_in("workers-0", "slurmd", &format!("touch /tmp/release-{}", job.id)).await?;
    cluster.agree(3).await?;
    assert_eq!(uids(&cluster.workers().await?), workers, "a worker was replaced");
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
