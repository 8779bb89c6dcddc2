//! Scaling while jobs run.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{ManagedSlurm, slurm_node},
};
use testkit::wait_for;

#[tokio::test]
async fn a_worker_is_removed_only_after_its_job_and_works_when_it_is_created_again() -> Result<()> {
    let scene = Scene::start("scale").await?;
    let cluster = ManagedSlurm::start(&scene, 2).await?;
    // Whichever of the two is removed, a job runs there.
    let jobs = [cluster.hold("workers-0").await?, cluster.hold("workers-1").await?];

    cluster.scale(3).await?;
    cluster.agree(3).await?;

    cluster.scale(1).await?;
    // The idle worker is removed at once. One of the busy workers drains, and both stay.
    let drains = wait_for("the idle worker to be removed and one to drain", SOON, async || {
        let names: Vec<_> = cluster.workers().await?.iter().map(slurm_node).collect();
        let nodes = cluster.nodes().await?;
        ensure!(names.len() == 2 && nodes.len() == 2, "workers {names:?}, Slurm {nodes:?}");
        let mut draining = nodes.into_iter().filter(|(_, state)| state == "draining");
        draining.next().map(|(node, _)| node).context("none is draining")
    })
    .await?;
    let (leaving, staying): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| job.node == drains);
    let ([leaving], [staying]) = (&*leaving, &*staying) else {
        anyhow::bail!("{drains} has none of the jobs {jobs:?}")
    };
    for job in &jobs {
        assert_eq!(cluster.job_state(job).await?, "RUNNING");
        let worker = cluster.worker(&job.node).await?;
        assert_eq!(worker.metadata.deletion_timestamp, None, "{} is being deleted while its job runs", job.node);
    }

    cluster.release(leaving).await?;
    cluster.agree(1).await?;
    assert_eq!(cluster.job_state(staying).await?, "RUNNING");
    cluster.release(staying).await?;

    // The new worker has the name of one that was drained and removed.
    cluster.scale(2).await?;
    cluster.agree(2).await?;
    for node in ["workers-0", "workers-1"] {
        assert_eq!(cluster.srun(&format!("--nodelist={node}"), "hostname").await?, [node]);
    }
    scene.finish().await
}
