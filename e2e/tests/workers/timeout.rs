//! Jobs that run longer than the drain timeout.

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, Job, ManagedSlurm, NODE_SET},
    slurm_version,
    workers::{COMMON_NODE, crowd},
};
use serde_json::json;
use slurm::version::{Feature, SlurmVersion, supports};
use slurm_operator_api::common::conditions::reason;
use testkit::wait_for;

#[tokio::test]
async fn jobs_that_exceed_the_drain_timeout_are_handled_as_configured() -> Result<()> {
    let scene = Scene::start("timeout").await?;
    let mut spec = crowd(2, COMMON_NODE)?;
    spec["drain"] = json!({"timeout": "5s", "onTimeout": "Wait"});
    let cluster = ManagedSlurm::start_with(&scene, managed::controller()?, spec).await?;
    // This job must not be disturbed.
    let other = cluster.hold("workers-0").await?;

    // Wait: nothing happens to the job, but the condition reports it.
    let job = alone(&cluster).await?;
    cluster.scale(1).await?;
    managed::wait_for_problem(&scene, "NodeSet", NODE_SET, "DrainTimeout", &["workers-1"]).await?;
    assert_eq!(cluster.job_state(&job).await?, "RUNNING");

    // Kill: the job ends, and the worker is removed.
    on_timeout(&scene, "Kill").await?;
    cluster.job_is(&job, "CANCELLED").await?;
    cluster.agree(1).await?;
    assert_eq!(cluster.job_state(&other).await?, "RUNNING", "a job on another worker was disturbed");

    on_timeout(&scene, "Requeue").await?;
    cluster.scale(2).await?;
    cluster.agree(2).await?;
    let job = alone(&cluster).await?;
    cluster.scale(1).await?;
    if supports(SlurmVersion::from_image_tag(&slurm_version()?), Feature::RestRequeue) {
        cluster.job_is(&job, "PENDING").await?;
        cluster.agree(1).await?;
        let reported = cluster.run(&format!("scontrol show job {}", job.id)).await?;
        assert!(reported.contains("JobState=PENDING") && reported.contains("Restarts=1"), "{reported}");
    } else {
        managed::wait_for_problem(&scene, "NodeSet", NODE_SET, reason::SLURM_TOO_OLD, &["requeue"]).await?;
        assert_eq!(cluster.job_state(&job).await?, "RUNNING", "the job must keep running");
        on_timeout(&scene, "Kill").await?;
        cluster.job_is(&job, "CANCELLED").await?;
        cluster.agree(1).await?;
    }
    assert_eq!(cluster.job_state(&other).await?, "RUNNING", "a job on another worker was disturbed");
    cluster.release(&other).await?;
    scene.finish().await
}

async fn on_timeout(scene: &Scene, what: &str) -> Result<()> {
    managed::change(scene, "NodeSet", NODE_SET, json!({"drain": {"onTimeout": what}})).await
}

/// Starts a job that needs a whole node, so that it runs on the idle worker and, after a requeue, on none. It does not
/// name the worker, which will be removed.
async fn alone(cluster: &ManagedSlurm<'_>) -> Result<Job> {
    let sbatch = "sbatch --parsable --exclusive --requeue --output=/tmp/job-%j.out --wrap='sleep 1000'";
    let id = cluster.run(sbatch).await?.trim().to_owned();
    let job = Job { id, node: "workers-1".to_owned() };
    cluster.job_is(&job, "RUNNING").await?;
    wait_for("the job to be on the idle worker", SOON, async || {
        let place = cluster.run(&format!("squeue --job={} --noheader --format=%N", job.id)).await?;
        ensure!(place.trim() == job.node, "it is on {place}");
        Ok(())
    })
    .await?;
    Ok(job)
}
