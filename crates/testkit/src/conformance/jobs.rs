//! Jobs: submit, watch, cancel.

use anyhow::{Context, ensure};
use slurm::client::{Call, Cursor, Poll, code};
use slurm::states::JobState;
use slurm::wire::{NodeUpdate, Signal};

use super::scene::{SOON, Scene, fails_with, sleeper};
use super::{Target, nodes};
use crate::wait_for;

/// A job that fits runs, its node becomes busy, a drain waits for it, and a cancel ends it.
pub(super) async fn runs(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    let job = scene.running_job().await?;
    ensure!(job.name == "conformance-runs" && job.nodes == name && job.user_name == target.user(), "{job:?}");
    let (start, deadline) = (job.start_time.context("no start")?, job.deadline().context("no deadline")?);
    ensure!(deadline.duration_since(start).as_mins() == 10, "{start} to {deadline}");
    ensure!(scene.node(name).await?.state.is_busy(), "the node is not busy");
    let states = scene.client.job_states().await?;
    let state = states.items.iter().find(|entry| entry.job_id == job.job_id.to_string());
    ensure!(state.is_some_and(|entry| entry.state.is_running()), "{state:?}");

    scene.client.update_node(name, &NodeUpdate::new().drain("conformance")).await?;
    let node = scene.node(name).await?;
    ensure!(node.state.is_draining() && !node.state.is_drained(), "{}", node.state);
    let busy = fails_with("refused", "deletion of a busy node", scene.client.delete_node(name).await)?;
    ensure!(busy.code().is_some(), "{busy}");
    let over = scene.clear(job.job_id).await?;
    ensure!(over.job_state.has(JobState::Cancelled), "{}", over.job_state);
    scene.node_is(name, "drained", |node| node.state.is_drained()).await?;
    scene.in_service(name).await?;
    Ok(())
}

/// A reason that is left from a drain goes with the next job.
pub(super) async fn clears_reason(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    scene.client.update_node(name, &NodeUpdate::new().drain("left from before")).await?;
    let node = scene.in_service(name).await?;
    let expected = if nodes::clears_reason(target) { "" } else { "left from before" };
    ensure!(node.reason == expected, "{:?} instead of {expected:?}", node.reason);
    let job = scene.running_job().await?;
    let node = scene.node(name).await?;
    ensure!(node.reason.is_empty(), "{} {:?}", node.state, node.reason);
    scene.clear(job.job_id).await?;
    scene.in_service(name).await?;
    Ok(())
}

/// A job that waits for a node names it in the short list, with its partition, and its node is not busy.
pub(super) async fn names_node(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    let id = scene.client.submit(&sleeper("waits").on([name]).held()).await?.job_id;
    let Poll::Changed(list) = scene.client.jobs_since(&mut Cursor::default()).await? else {
        anyhow::bail!("the first read returned nothing");
    };
    let job = list.items.iter().find(|job| job.job_id == id).context("the job is not listed")?;
    ensure!(job.required_nodes == name && !job.partition.is_empty(), "{job:?}");
    ensure!(!job.job_state.holds_nodes() && !job.job_state.is_finished(), "{}", job.job_state);
    ensure!(scene.node(name).await?.state.is_idle(), "the node is busy");
    scene.clear(id).await?;
    Ok(())
}

/// A node that a waiting job asks for can be deleted. The job then fails when slurmctld rereads its configuration.
pub(super) async fn names_a_deleted_node(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let client = &scene.client;
    if !client.offers(Call::NewNode) {
        return Ok(());
    }
    let name = "conformance-named";
    client.new_node(&format!("NodeName={name} State=CLOUD CPUs=1 RealMemory=100")).await?;
    let id = client.submit(&sleeper("named").on([name]).held()).await?.job_id;
    client.delete_node(name).await?;
    let job = client.job(id).await?.body;
    ensure!(!job.job_state.is_finished(), "{} before slurmctld has reread its configuration", job.job_state);
    client.reconfigure().await?;
    scene.job_is(id, "failed", |job| job.job_state.has(JobState::NodeFail)).await?;
    for name in &scene.nodes {
        scene.in_service(name).await?;
    }
    Ok(())
}

/// A suspended job keeps its nodes, and is listed with them.
pub(super) async fn suspended(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let id = scene.running_job().await?.job_id;
    target.suspend(id).await?;
    let job = scene.job_is(id, "suspended", |job| job.job_state.has(JobState::Suspended)).await?;
    ensure!(job.job_state.holds_nodes() && job.nodes == scene.node_name(), "{} on {}", job.job_state, job.nodes);
    target.resume(id).await?;
    scene.job_is(id, "running", |job| job.job_state.is_running()).await?;
    scene.clear(id).await?;
    Ok(())
}

/// `update_time` for jobs: "unchanged" differs from "no jobs", and the end of a job is a change.
pub(super) async fn unchanged(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let job = scene.running_job().await?;
    let mut cursor = Cursor::default();
    ensure!(matches!(scene.client.jobs_since(&mut cursor).await?, Poll::Changed(_)), "the first read returned nothing");
    wait_for("an unchanged list of jobs", SOON, async || match scene.client.jobs_since(&mut cursor).await? {
        Poll::Unchanged => Ok(()),
        Poll::Changed(list) => anyhow::bail!("changed at {}", list.last_update),
    })
    .await?;
    scene.client.cancel_job(job.job_id).await?;
    let Poll::Changed(list) = scene.client.jobs_since(&mut cursor).await? else {
        anyhow::bail!("the end of a job was not reported");
    };
    let ended = list.items.iter().find(|one| one.job_id == job.job_id).context("the job was removed at once")?;
    ensure!(!ended.job_state.is_running(), "{}", ended.job_state);
    scene.job_is(job.job_id, "over", |job| job.job_state.is_finished()).await?;
    Ok(())
}

/// A signal reaches the script: a fatal one ends it, SIGCONT does not, and SIGKILL is a cancel.
pub(super) async fn signal(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    for (signal, end) in [(Signal::Term, JobState::Failed), (Signal::Kill, JobState::Cancelled)] {
        let id = scene.running_job().await?.job_id;
        scene.client.signal_job(id, Signal::Cont).await?;
        ensure!(scene.client.job(id).await?.job_state.is_running(), "SIGCONT ended it");
        // A job counts as running before its script starts, and earlier signals are lost.
        let over = wait_for(&format!("{signal:?} to end job {id}"), SOON, async || {
            let job = scene.client.job(id).await?.body;
            if job.job_state.is_running() {
                scene.client.signal_job(id, signal).await?;
            }
            ensure!(job.job_state.is_finished(), "{}", job.job_state);
            Ok(job)
        })
        .await?;
        ensure!(over.job_state.has(end), "{} after {signal:?}", over.job_state);
    }
    Ok(())
}

/// A running or suspended job is requeued, where REST supports it. Its nodes are free then.
pub(super) async fn requeue(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    if !scene.client.offers(Call::RequeueJob) {
        fails_with("not_offered", "requeue", scene.client.requeue_job(1).await)?;
        return Ok(());
    }
    for is_suspended in [false, true] {
        let id = scene.running_job().await?.job_id;
        if is_suspended {
            target.suspend(id).await?;
            scene.job_is(id, "suspended", |job| job.job_state.has(JobState::Suspended)).await?;
        }
        scene.client.requeue_job(id).await?;
        let back = scene.job_is(id, "back in the queue", |job| {
            job.job_state.is_pending() && !job.job_state.holds_nodes() && job.nodes.is_empty()
        });
        let back = back.await?;
        ensure!(back.restart_cnt == 1, "{back:?}");
        scene.node_is(scene.node_name(), "free", |node| !node.state.is_busy()).await?;
        let again = scene.client.requeue_job(id).await.err().context("a waiting job was requeued")?;
        ensure!(again.code() == Some(code::JOB_PENDING), "{again}");
        let over = scene.clear(id).await?;
        ensure!(over.job_state.has(JobState::Cancelled), "{}", over.job_state);
    }
    fails_with("not_found", "requeue of an unknown job", scene.client.requeue_job(4_000_000).await)?;
    Ok(())
}

/// Invalid jobs are rejected with Slurm's own error code.
pub(super) async fn refused(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let nowhere = sleeper("nowhere").partition("no-such-partition");
    let error = scene.client.submit(&nowhere).await.err().context("an unknown partition was accepted")?;
    ensure!(error.code() == Some(code::INVALID_PARTITION) || error.is_not_found(), "{error}");
    let error = scene.client.submit(&sleeper("nobody").on(["no-such-node"])).await;
    let error = error.err().context("an unknown node was accepted")?;
    ensure!(error.code() == Some(code::INVALID_NODE) || error.is_not_found(), "{error}");
    // Held: submitted, but not started.
    let held = scene.client.submit(&sleeper("held").held()).await?;
    ensure!(!held.warnings.is_empty(), "no warning about the hold");
    let job = scene.client.job(held.job_id).await?;
    ensure!(job.job_state.is_pending() && job.hold && job.nodes.is_empty(), "{:?}", job.body);
    scene.clear(held.job_id).await?;
    Ok(())
}

/// All calls about an unknown job fail with not found.
pub(super) async fn unknown(target: &dyn Target) -> anyhow::Result<()> {
    let client = Scene::open(target).await?.client;
    fails_with("not_found", "get", client.job(4_000_000).await)?;
    fails_with("not_found", "cancel", client.cancel_job(4_000_000).await)?;
    fails_with("not_found", "signal", client.signal_job(4_000_000, Signal::Usr1).await)?;
    Ok(())
}
