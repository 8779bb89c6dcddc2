//! What slurmctld makes of the slurmd of its nodes: it drains nodes and takes them down by itself.

use anyhow::{Context, ensure};
use slurm::client::{Call, code};
use slurm::states::NodeState;
use slurm::wire::NodeUpdate;

use super::scene::{SOON, Scene, fails_with};
use super::target::{SILENT_REASON, Slurmd};
use super::{Target, nodes};
use crate::wait_for;

/// slurmctld's reason for a machine with too few CPUs.
const FEW_CPUS: &str = "Low socket*core*thread count, Low CPUs";

const REBOOTED: &str = "Node unexpectedly rebooted";

/// A node that registers with fewer CPUs than before is drained by slurmctld. A reason that was left there stays, but that
/// of a node that was already drained is replaced.
pub(super) async fn bad_registration(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    let before = leave_reason(&scene, "left from before").await?;
    target.start_slurmd(Slurmd::small(name)).await?;
    let node = scene.node(name).await?;
    ensure!(node.state.is_drained() && node.state.has(NodeState::InvalidReg), "{}", node.state);
    ensure!(node.cpus == before.cpus, "{} CPUs instead of {}", node.cpus, before.cpus);
    let expected = if nodes::clears_reason(target) { FEW_CPUS } else { "left from before" };
    ensure!(node.reason == expected, "{:?} instead of {expected:?}", node.reason);

    scene.client.update_node(name, &NodeUpdate::new().reason("conformance")).await?;
    target.start_slurmd(Slurmd::small(name)).await?;
    let node = scene.node(name).await?;
    ensure!(node.state.is_drained() && node.reason == FEW_CPUS, "{} {:?}", node.state, node.reason);

    target.stop_slurmd(name).await?;
    let node = scene.node(name).await?;
    ensure!(!node.state.has(NodeState::InvalidReg), "{}", node.state);
    ensure!(node.state.is_drained() && node.reason == FEW_CPUS, "{} {:?}", node.state, node.reason);
    scene.in_service(name).await?;
    Ok(())
}

/// A machine that has booted before slurmctld missed it is down, and its jobs are lost. A drained one stays as it is.
pub(super) async fn rebooted(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    let job = scene.running_job().await?;
    reboot(target, &scene, REBOOTED).await?;
    let lost = scene.job_is(job.job_id, "requeued", |job| job.job_state.is_pending()).await?;
    ensure!(lost.restart_cnt == 1, "{lost:?}");
    scene.clear(job.job_id).await?;
    target.stop_slurmd(name).await?;
    ensure!(scene.node(name).await?.state.is_down(), "a registration ended it");
    scene.in_service(name).await?;

    // A reason that was left there hides that the machine was rebooted.
    if !nodes::clears_reason(target) {
        leave_reason(&scene, "left from before").await?;
        reboot(target, &scene, "left from before").await?;
        target.stop_slurmd(name).await?;
        scene.in_service(name).await?;
    }

    let before = scene.node(name).await?;
    scene.client.update_node(name, &NodeUpdate::new().drain("conformance")).await?;
    target.start_slurmd(Slurmd::rebooted(name)).await?;
    let node = scene.node(name).await?;
    ensure!(node.address != before.address, "{} is still the address", node.address);
    ensure!(node.state.is_drained() && !node.state.is_down(), "{}", node.state);
    ensure!(node.reason == "conformance", "{:?}", node.reason);
    target.stop_slurmd(name).await?;
    scene.in_service(name).await?;
    Ok(())
}

/// Leaves a reason at a node in service, if this Slurm does not clear it.
async fn leave_reason(scene: &Scene, reason: &str) -> anyhow::Result<slurm::wire::Node> {
    scene.client.update_node(scene.node_name(), &NodeUpdate::new().drain(reason)).await?;
    scene.in_service(scene.node_name()).await
}

/// Reboots the node until slurmctld notices: it may have heard of it in the meantime, for example when a job started.
async fn reboot(target: &dyn Target, scene: &Scene, reason: &str) -> anyhow::Result<()> {
    let name = scene.node_name();
    let node = wait_for(&format!("{name} to be down"), SOON, async || {
        target.start_slurmd(Slurmd::rebooted(name)).await?;
        let node = scene.node(name).await?;
        ensure!(node.state.is_down(), "{} {:?}", node.state, node.reason);
        Ok(node)
    })
    .await?;
    ensure!(node.reason == reason, "{:?} instead of {reason:?}", node.reason);
    ensure!(!node.state.is_down_unresponsive(&node.reason), "{}", node.state);
    Ok(())
}

/// A second slurmd with the name of a node takes its place. Jobs stay while they are young; later they are given up, because
/// the second slurmd does not know them.
pub(super) async fn second(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    let before = scene.node(name).await?;
    let id = scene.running_job().await?.job_id;
    target.start_slurmd(Slurmd::of(name)).await?;
    let (node, job) = (scene.node(name).await?, scene.client.job(id).await?.body);
    ensure!(node.address != before.address, "{} is still the address", node.address);
    ensure!((&node.features, node.cpus) == (&before.features, before.cpus), "{node:?} instead of {before:?}");
    let age = node.slurmd_start_time.context("no start of slurmd")?.duration_since(job.start_time.context("no start")?);
    if age.as_secs() < 5 {
        ensure!(
            job.job_state.is_running() && node.state.is_busy(),
            "{} on a node that is {}",
            job.job_state,
            node.state
        );
    }
    let lost = wait_for("the job to be given up", SOON, async || {
        target.start_slurmd(Slurmd::of(name)).await?;
        let job = scene.client.job(id).await?.body;
        ensure!(job.job_state.is_pending() && job.nodes.is_empty(), "{} on {}", job.job_state, job.nodes);
        Ok(job)
    })
    .await?;
    ensure!(lost.restart_cnt == 1, "{lost:?}");
    let node = scene.node(name).await?;
    ensure!(node.state.is_available() && node.reason.is_empty(), "{} {:?}", node.state, node.reason);
    scene.clear(id).await?;
    target.stop_slurmd(name).await?;
    let node = scene.in_service(name).await?;
    ensure!(node.address == before.address, "{} instead of {}", node.address, before.address);
    Ok(())
}

/// No node can have the name of a NodeSet.
pub(super) async fn named_as_node_set(target: &dyn Target) -> anyhow::Result<()> {
    let client = Scene::open(target).await?.client;
    let name = target.node_set();
    target.start_slurmd(Slurmd::of(name)).await?;
    fails_with("not_found", "a refused node", client.node(name).await)?;
    if client.offers(Call::NewNode) {
        let line = format!("NodeName={name} State=CLOUD CPUs=1 RealMemory=100");
        let error = client.new_node(&line).await.err().context("a node with the name of a NodeSet was created")?;
        ensure!(error.code() == Some(code::INVALID_NODE), "{error}");
    }
    target.stop_slurmd(name).await?;
    Ok(())
}

/// A drained node that does not respond goes down, with a reason that is appended to the other one.
pub(super) async fn silent(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let node = scene.node_is(target.silent_node(), "down", |node| node.state.is_down()).await?;
    ensure!(node.state.is_drain() && node.state.is_down_unresponsive(&node.reason), "{}", node.state);
    ensure!(node.reason == format!("{SILENT_REASON} : Not responding"), "{:?}", node.reason);
    ensure!(node.reason_set_by_user == "slurm", "{}", node.reason_set_by_user);
    Ok(())
}
