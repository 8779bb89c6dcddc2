//! Nodes: read, drain, update.

use anyhow::{Context, ensure};
use slurm::client::{Call, Cursor, Poll};
use slurm::states::NodeState;
use slurm::wire::NodeUpdate;

use super::Target;
use super::scene::{SOON, Scene, fails_with};
use crate::wait_for;

/// Both nodes are listed with all fields that the client reads, and a single read returns the same.
pub(super) async fn list(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    // After a start slurmctld knows less about a node until its slurmd has registered again.
    for name in &scene.nodes {
        scene.node_is(name, "described", |node| node.boot_time.is_some() && !node.version.is_empty()).await?;
    }
    let list = scene.client.nodes().await?;
    ensure!(list.last_update > 0, "no last_update");
    for name in &scene.nodes {
        let node = list.items.iter().find(|node| node.name == *name).with_context(|| format!("no {name}"))?;
        ensure!(node.state.has(NodeState::DynamicNorm) && node.state.is_registered(), "{}", node.state);
        ensure!(node.cpus > 0 && node.real_memory > 0 && node.port > 0 && !node.partitions.is_empty(), "{node:?}");
        ensure!(node.boot_time.is_some() && node.slurmd_start_time.is_some(), "{node:?}");
        ensure!(node.version.starts_with(&target.release().to_string()), "{:?}", node.version);
        let alone = scene.node(name).await?;
        ensure!((&alone.name, &alone.features, alone.cpus) == (&node.name, &node.features, node.cpus), "{alone:?}");
    }
    Ok(())
}

/// `update_time`: unchanged until something changes, and no change is lost, even within the same second.
pub(super) async fn unchanged(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    let mut cursor = Cursor::default();
    ensure!(
        matches!(scene.client.nodes_since(&mut cursor).await?, Poll::Changed(_)),
        "the first read returned nothing"
    );
    for round in 0..3 {
        // A ping may come in between, and changes of the last second are repeated; eventually the list is unchanged.
        wait_for("an unchanged list of nodes", SOON, async || match scene.client.nodes_since(&mut cursor).await? {
            Poll::Unchanged => Ok(()),
            Poll::Changed(list) => anyhow::bail!("changed at {}", list.last_update),
        })
        .await?;
        let comment = format!("round {round}");
        scene.client.update_node(name, &NodeUpdate::new().comment(&comment)).await?;
        let Poll::Changed(list) = scene.client.nodes_since(&mut cursor).await? else {
            anyhow::bail!("a changed comment was not reported");
        };
        let seen = list.items.iter().find(|node| node.name == name).context("the node is gone")?;
        ensure!(seen.comment == comment, "{:?} instead of {comment:?}", seen.comment);
        // Again in the same second: an imprecise cursor would miss this.
        let again = format!("round {round} again");
        scene.client.update_node(name, &NodeUpdate::new().comment(&again)).await?;
        let Poll::Changed(list) = scene.client.nodes_since(&mut cursor).await? else {
            anyhow::bail!("a second change within a second was not reported");
        };
        let seen = list.items.iter().find(|node| node.name == name).context("the node is gone")?;
        ensure!(seen.comment == again, "{:?} instead of {again:?}", seen.comment);
    }
    scene.client.update_node(name, &NodeUpdate::new().comment("")).await?;
    Ok(())
}

/// A drain is visible at once, with its reason and user; a second drain replaces the reason.
pub(super) async fn drain_with_reason(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    for reason in ["slurm-operator: a fan is broken", "another \"reason\", with \\ and ümlaut"] {
        scene.client.update_node(name, &NodeUpdate::new().drain(reason)).await?;
        let node = scene.node(name).await?;
        ensure!(node.state.is_drained() && !node.state.is_draining(), "{}", node.state);
        ensure!(node.reason == reason, "{:?} instead of {reason:?}", node.reason);
        ensure!(node.reason_set_by_user == target.user() && node.reason_changed_at.is_some(), "{node:?}");
    }
    scene.in_service(name).await?;
    Ok(())
}

/// An empty reason does not remove one.
pub(super) async fn empty_reason(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    scene.client.update_node(name, &NodeUpdate::new().drain("conformance")).await?;
    scene.client.update_node(name, &NodeUpdate::new().reason("").comment("still drained")).await?;
    let node = scene.node(name).await?;
    ensure!(node.state.is_drain() && node.reason == "conformance", "{} {:?}", node.state, node.reason);
    scene.client.update_node(name, &NodeUpdate::new().undrain().reason("").comment("")).await?;
    let kept = !clears_reason(target);
    let node = scene.node(name).await?;
    ensure!(node.reason == if kept { "conformance" } else { "" }, "{:?}", node.reason);
    scene.in_service(name).await?;
    Ok(())
}

/// End of a drain: the node returns to service shortly after, and the reason is as expected.
pub(super) async fn undrain(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    scene.client.update_node(name, &NodeUpdate::new().drain("conformance")).await?;
    scene.client.update_node(name, &NodeUpdate::new().undrain()).await?;
    let node = scene.node(name).await?;
    ensure!(!node.state.is_drain(), "{}", node.state);
    let kept = !clears_reason(target);
    ensure!(node.reason == if kept { "conformance" } else { "" }, "{:?}", node.reason);
    scene.node_is(name, "available", |node| node.state.is_available()).await?;
    Ok(())
}

/// With accounting the reason is cleared when a node comes up; 26.05 always clears it.
pub(super) fn clears_reason(target: &dyn Target) -> bool {
    let release = target.release();
    target.has_accounting() || (release.major, release.minor) >= (26, 5)
}

/// Down with a reason, then resume.
pub(super) async fn down_and_resume(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    scene.client.update_node(name, &NodeUpdate::new().down("conformance")).await?;
    let node = scene.node(name).await?;
    ensure!(node.state.is_down() && node.reason == "conformance", "{} {:?}", node.state, node.reason);
    ensure!(!node.state.is_down_unresponsive(&node.reason), "{}", node.state);
    scene.client.update_node(name, &NodeUpdate::new().resume()).await?;
    scene.node_is(name, "available", |node| node.state.is_available() && node.state.is_idle()).await?;
    Ok(())
}

/// A node that is neither down nor drained cannot be resumed; Slurm rejects it but resumes the other nodes of the call.
pub(super) async fn resume_of_a_good_node(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let [good, bad] = &scene.nodes;
    fails_with("refused", "resume", scene.client.update_node(good, &NodeUpdate::new().resume()).await)?;
    scene.client.update_node(bad, &NodeUpdate::new().down("conformance")).await?;
    fails_with("refused", "resume of both", scene.client.update_nodes([good, bad], &NodeUpdate::new().resume()).await)?;
    scene.node_is(bad, "back", |node| node.state.is_available()).await?;
    Ok(())
}

/// A comment is kept across drains, and can be cleared.
pub(super) async fn comment_kept(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    let comment = r#"{"namespace":"slurm","podName":"w-0","node":"kind-1"}"#;
    scene.client.update_node(name, &NodeUpdate::new().comment(comment).extra("more")).await?;
    scene.client.update_node(name, &NodeUpdate::new().drain("conformance")).await?;
    let node = scene.in_service(name).await?;
    ensure!(node.comment == comment && node.extra == "more", "{:?} {:?}", node.comment, node.extra);
    scene.client.update_node(name, &NodeUpdate::new().comment("").extra("")).await?;
    let node = scene.node(name).await?;
    ensure!(node.comment.is_empty() && node.extra.is_empty(), "{:?} {:?}", node.comment, node.extra);
    Ok(())
}

/// Features are replaced as a whole, and can be cleared.
pub(super) async fn features(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let name = scene.node_name();
    let before = scene.node(name).await?.features;
    for features in [vec!["blue", "rack-7"], vec![], vec!["red"]] {
        scene.client.update_node(name, &NodeUpdate::new().features(features.clone())).await?;
        let node = scene.node(name).await?;
        ensure!(node.features == features && node.active_features == features, "{node:?} instead of {features:?}");
    }
    scene.client.update_node(name, &NodeUpdate::new().features(before)).await?;
    Ok(())
}

/// One call for two nodes; with an unknown node none is changed.
pub(super) async fn two_at_once(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    scene.client.update_nodes(scene.nodes.clone(), &NodeUpdate::new().drain("both")).await?;
    for name in &scene.nodes {
        let node = scene.node(name).await?;
        ensure!(node.state.is_drain() && node.reason == "both", "{name} {} {:?}", node.state, node.reason);
    }
    let folded = slurm::hostlist::fold(scene.nodes.iter().map(String::as_str))?;
    scene.client.update_nodes([folded], &NodeUpdate::new().undrain()).await?;
    for name in &scene.nodes {
        scene.node_is(name, "available", |node| node.state.is_available()).await?;
    }
    let [first, _] = &scene.nodes;
    let unknown = scene.client.update_nodes([first, "no-such-node"], &NodeUpdate::new().comment("never")).await;
    fails_with("not_found", "an unknown node among others", unknown)?;
    ensure!(scene.node(first).await?.comment.is_empty(), "the known node was changed");
    Ok(())
}

/// All calls about an unknown node fail with not found.
pub(super) async fn unknown(target: &dyn Target) -> anyhow::Result<()> {
    let client = Scene::open(target).await?.client;
    fails_with("not_found", "get", client.node("no-such-node").await)?;
    fails_with("not_found", "update", client.update_node("no-such-node", &NodeUpdate::new().drain("x")).await)?;
    fails_with("not_found", "delete", client.delete_node("no-such-node").await)?;
    Ok(())
}

/// A node is created and deleted, where REST supports it.
pub(super) async fn new_node(target: &dyn Target) -> anyhow::Result<()> {
    let client = Scene::open(target).await?.client;
    let line = "NodeName=conformance-new State=CLOUD CPUs=1 RealMemory=100";
    if !client.offers(Call::NewNode) {
        fails_with("not_offered", "new node", client.new_node(line).await)?;
        return Ok(());
    }
    client.new_node(line).await?;
    let node = client.node("conformance-new").await?;
    ensure!(node.cpus == 1 && node.real_memory == 100, "{:?}", node.body);
    let twice = fails_with("refused", "the same node again", client.new_node(line).await)?;
    ensure!(twice.code() == Some(slurm::client::code::NODE_EXISTS), "{twice}");
    client.delete_node("conformance-new").await?;
    fails_with("not_found", "a deleted node", client.node("conformance-new").await)?;
    Ok(())
}
