//! slurmctld goes and comes back.

use std::time::{Duration, Instant};

use anyhow::ensure;
use slurm::wire::NodeUpdate;

use super::Target;
use super::scene::{SOON, Scene};
use crate::wait_for;

/// No call may hang for longer than this, whatever slurmrestd waits for.
const PATIENCE: Duration = Duration::from_secs(15);

/// Every call fails in time with an error that says "try later"; then all is as before.
pub(super) async fn slurmctld_down(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    target.stop_slurmctld().await?;
    let checked = while_down(&scene).await;
    // Back it comes, also if the check failed: other cases may follow.
    target.start_slurmctld().await?;
    checked?;
    wait_for("slurmctld to answer again", SOON, async || {
        let pings = scene.client.ping().await?;
        ensure!(pings.iter().any(|ping| ping.responding), "{:?}", pings.body);
        for name in &scene.nodes {
            scene.node(name).await?;
        }
        Ok(())
    })
    .await?;
    for name in &scene.nodes {
        scene.in_service(name).await?;
    }
    Ok(())
}

async fn while_down(scene: &Scene) -> anyhow::Result<()> {
    let client = &scene.client;
    let name = scene.node_name();
    wait_for("slurmctld to be gone", SOON, async || {
        let pings = client.ping().await?;
        ensure!(pings.iter().all(|ping| !ping.responding), "{:?}", pings.body);
        Ok(())
    })
    .await?;
    let start = Instant::now();
    let update = NodeUpdate::new().comment("never");
    let (nodes, node, update, jobs, diag) = tokio::join!(
        client.nodes(),
        client.node(name),
        client.update_node(name, &update),
        client.jobs(),
        client.diag(),
    );
    ensure!(start.elapsed() < PATIENCE, "it took {:?}", start.elapsed());
    let failed = [nodes.err(), node.err(), update.err(), jobs.err(), diag.err()];
    for error in failed {
        let outage = error.as_ref().is_some_and(slurm::client::Error::is_outage);
        ensure!(outage, "{error:?} is no outage");
    }
    Ok(())
}
