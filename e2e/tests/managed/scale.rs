//! More and fewer workers, while jobs run.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{ManagedSlurm, slurm_node},
};
use testkit::wait_for;

#[tokio::test]
async fn a_worker_goes_only_after_its_job_and_works_when_it_comes_back() -> Result<()> {
    let scene = Scene::start("scale").await?;
    let cluster = ManagedSlurm::start(&scene, 2).await?;
    // Whichever of the two has to go, a job runs there.
    let jobs = [cluster.hold("workers-0").await?, cluster.hold("workers-1").await?];

    cluster.scale(3).await?;
    cluster.agree(3).await?;

    cluster.scale(1).await?;
    // The idle one goes at once. Of the busy ones, one drains, and both stay.
    let drains = wait_for("one idle worker to go and one to drain", SOON, async || {
        let names: Vec<_> = cluster.workers().await?.iter().map(slurm_node).collect();
        let nodes = cluster.nodes().await?;
        ensure!(names.len() == 2 && nodes.len() == 2, "workers {names:?}, Slurm {nodes:?}");
        let mut draining = nodes.into_iter().filter(|(_, state)| state == "draining");
        draining.next().map(|(node, _)| node).context("none is draining")
    })
    .await?;
    let (goes, stays): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| job.node == drains);
    let ([goes], [stays]) = (&*goes, &*stays) else { anyhow::bail!("{drains} runs none of {jobs:?}") };
    for job in &jobs {
        assert_eq!(cluster.job_state(job).await?, "RUNNING");
        let worker = cluster.worker(&job.node).await?;
        assert_eq!(worker.metadata.deletion_timestamp, None, "{} goes while its job runs", job.node);
    }

    cluster.release(goes).await?;
    cluster.agree(1).await?;
    assert_eq!(cluster.job_state(stays).await?, "RUNNING");
    cluster.release(stays).await?;

    // The one that comes back has the name of one that was drained and removed.
    cluster.scale(2).await?;
    cluster.agree(2).await?;
    for node in ["workers-0", "workers-1"] {
        assert_eq!(cluster.srun(&format!("--nodelist={node}"), "hostname").await?, [node]);
    }
    scene.finish().await
}
