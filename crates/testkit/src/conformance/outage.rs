//! slurmctld stops and starts again.

use std::time::{Duration, Instant};

use anyhow::ensure;
use slurm::wire::NodeUpdate;

use super::Target;
use super::scene::{SOON, Scene, builder, fails_with};
use crate::wait_for;

/// Timeout of the impatient client. slurmrestd itself tries for 9 to 10 seconds, and concurrent calls may wait for each
/// other.
const IMPATIENT: Duration = Duration::from_secs(3);

/// Enough for all attempts of slurmrestd for one call, queued behind others.
const PATIENT: Duration = Duration::from_mins(1);

/// Every call fails within its timeout with a retryable error; afterwards everything works as before.
pub(super) async fn slurmctld_down(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    target.stop_slurmctld().await?;
    let checked = while_down(target, &scene).await;
    // Restart also if the check failed: other cases may follow.
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

async fn while_down(target: &dyn Target, scene: &Scene) -> anyhow::Result<()> {
    // The list of paths is still served.
    let impatient = builder(target)?.timeout(IMPATIENT).list_timeout(IMPATIENT).connect().await?;
    let patient = builder(target)?.timeout(PATIENT).list_timeout(PATIENT).connect().await?;
    let name = scene.node_name();
    wait_for("slurmctld to be gone", SOON, async || {
        let pings = impatient.ping().await?;
        ensure!(pings.iter().all(|ping| !ping.responding), "{:?}", pings.body);
        Ok(())
    })
    .await?;
    let start = Instant::now();
    let update = NodeUpdate::new().comment("never");
    let (nodes, node, update, jobs, diag) = tokio::join!(
        impatient.nodes(),
        impatient.node(name),
        impatient.update_node(name, &update),
        impatient.jobs(),
        impatient.diag(),
    );
    ensure!(start.elapsed() < 2 * IMPATIENT, "it took {:?}", start.elapsed());
    let failed = [nodes.err(), node.err(), update.err(), jobs.err(), diag.err()];
    for error in failed {
        let outage = error.as_ref().is_some_and(slurm::client::Error::is_outage);
        ensure!(outage, "{error:?} is not an outage");
    }
    let error = fails_with("daemon_down", "nodes", patient.nodes().await)?;
    ensure!(error.code() == Some(slurm::client::code::CONTROLLER_UNREACHABLE), "{error}");
    Ok(())
}
