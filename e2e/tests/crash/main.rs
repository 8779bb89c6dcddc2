//! The operator is killed at random moments, also while a change of the configuration is reread, and nothing is lost or duplicated.
//! Then it takes over what the Go operator left.

#![expect(clippy::indexing_slicing, reason = "test code: indices and keys of JSON")]

mod takeover;

use std::{
    env,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use e2e::{
    Scene, kubectl,
    managed::{self, CLUSTER, SLURMCTLD, STARTED, change},
    operator,
};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::{Value, json};
use testkit::{Rng, wait_for};
use tokio::time::sleep;

/// Enough to be killed while pods are created, while they start, and while workers drain.
const LONGEST: u64 = 3000;

#[tokio::test]
async fn the_operator_is_killed_while_it_scales_and_takes_over_from_the_go_operator() -> Result<()> {
    let seed = match env::var("SEED") {
        Ok(seed) => seed.parse().context("SEED must be a number")?,
        Err(_) => u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos()),
    };
    println!("SEED={seed} repeats this test with the same moments");
    let mut random = Rng::new(seed);

    let scene = Scene::start("crash").await?;
    let cluster = takeover::start_numbered(&scene).await?;
    let other_scene = Scene::start("crash-nodes").await?;
    let other = takeover::start_on_nodes(&other_scene).await?;
    let job = cluster.hold("workers-0").await?;
    let controller = managed::controller()?;
    let good = controller.get("extraConf").and_then(Value::as_str).unwrap_or_default();
    for workers in [3, 1, 2] {
        cluster.scale(workers).await?;
        let parameter = format!("MaxJobCount={}", 7000 + u16::from(workers));
        change(&scene, "Controller", CLUSTER, json!({"extraConf": format!("{good}\n{parameter}")})).await?;
        let moment = Duration::from_millis(random.below(LONGEST));
        println!("scaled to {workers} workers; killed after {moment:?}");
        sleep(moment).await;
        operator::kill(&scene.client).await?;
        cluster.agree(usize::from(workers)).await?;
        cluster.in_effect(&parameter).await?;
        assert_eq!(cluster.job_state(&job).await?, "RUNNING");
    }
    cluster.release(&job).await?;
    assert_eq!(cluster.srun("--nodes=2", "hostname").await?, ["workers-0", "workers-1"]);

    // Slurm works without the operator: workers find a slurmctld that was replaced.
    let without = async {
        operator::run(&scene.client, 0).await?;
        scene.pods().delete(SLURMCTLD, &DeleteParams::default()).await?;
        wait_for("workers to find the new slurmctld", STARTED, async || {
            let worker = cluster.worker("workers-1").await?.name_any();
            scene.exec_in(&worker, "slurmd", "scontrol ping | grep UP").await
        })
        .await?;
        assert_eq!(cluster.srun("--nodes=2", "hostname").await?, ["workers-0", "workers-1"]);
        let numbered = Box::pin(takeover::prepare_numbered(&scene, &cluster));
        let on_nodes = Box::pin(takeover::prepare_on_nodes(&other_scene, &other));
        tokio::try_join!(numbered, on_nodes)
    }
    .await;
    operator::run(&scene.client, 1).await?;
    let taken_over = async {
        let Ok((numbered, on_nodes)) = &without else { return Ok(()) };
        takeover::check_numbered(&scene, &cluster, numbered).await?;
        takeover::check_on_nodes(&other_scene, &other, on_nodes).await
    }
    .await;
    // Nodes are shared with other tests.
    kubectl(&["uncordon", "node1", "node2", "node3"]).await?;
    without?;
    taken_over?;
    other_scene.finish().await?;
    scene.finish().await
}
