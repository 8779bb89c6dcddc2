//! Cordons of Kubernetes nodes and of pods, and drains by an admin.

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene, kubectl,
    managed::{self, ManagedSlurm, NODE_SET, uids},
    workers::{CORDON_NODE, annotate, claim_template, claims, crowd, kube_nodes, new_template, status},
};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use slurm_operator_api::{
    common::conditions::{self, reason},
    slinky::names::{self, annotation, label},
};
use testkit::wait_for;

const SCENE: &str = "e2e.example.com/scene";

#[tokio::test]
async fn cordons_drain_workers_and_drains_of_others_are_kept() -> Result<()> {
    let scene = Scene::start("cordon").await?;
    let result = scenario(&scene).await;
    // The node is shared with other tests.
    kubectl(&["uncordon", CORDON_NODE]).await?;
    annotate(&kube_nodes(&scene.client), CORDON_NODE, annotation::NODE_CORDON_REASON, Value::Null).await?;
    result?;
    scene.finish().await
}

async fn scenario(scene: &Scene) -> Result<()> {
    let mut spec = crowd(2, CORDON_NODE)?;
    spec["template"]["metadata"] = json!({"labels": {SCENE: scene.namespace.name()}});
    // A cordoned worker is not removed, so its data must be kept, too.
    spec["volumeClaimTemplates"] = claim_template();
    spec["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
    let cluster = ManagedSlurm::start_with(scene, managed::controller()?, spec).await?;
    let (workers, data) = (uids(&cluster.workers().await?), claims(scene).await?);

    of_a_node(scene, &cluster).await?;
    assert_eq!(claims(scene).await?, data, "a claim was deleted or replaced");
    assert_eq!(uids(&cluster.workers().await?), workers, "a worker was deleted or replaced");
    of_a_pod(scene, &cluster).await?;
    assert_eq!(claims(scene).await?, data, "a claim was deleted or replaced");
    drain_of_a_node(scene, &cluster).await
}

/// `kubectl cordon` and `kubectl uncordon`.
async fn of_a_node(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let drain = |node: &str| format!("scontrol update nodename={node} state=drain reason=admin");
    cluster.run(&drain("workers-1")).await?;
    kubectl(&["cordon", CORDON_NODE]).await?;
    cluster.node_is("workers-0", "drained").await?;
    let why = cluster.reason("workers-0").await?;
    assert!(why.starts_with(names::REASON_PREFIX) && why.contains(CORDON_NODE), "{why}");
    assert_eq!(cluster.reason("workers-1").await?, "admin");
    shows_cordon(cluster, "workers-0", true).await?;

    kubectl(&["uncordon", CORDON_NODE]).await?;
    cluster.node_is("workers-0", "idle").await?;
    shows_cordon(cluster, "workers-0", false).await?;
    assert_eq!(
        admins(cluster, "workers-1").await?,
        ("drained".into(), "admin".into()),
        "the admin's drain must be kept"
    );

    // The node has a reason for its cordon. While it is cordoned, the admin drains another worker.
    let nodes = kube_nodes(&scene.client);
    annotate(&nodes, CORDON_NODE, annotation::NODE_CORDON_REASON, json!("a fan is broken")).await?;
    kubectl(&["cordon", CORDON_NODE]).await?;
    cluster.node_is("workers-0", "drained").await?;
    assert_eq!(cluster.reason("workers-0").await?, format!("{}a fan is broken", names::REASON_PREFIX));
    cluster.run(&drain("workers-0")).await?;
    cluster.run("scontrol update nodename=workers-1 state=resume").await?;
    // The operator has reacted: the worker that the admin resumed is now drained for the cordon.
    cluster.node_is("workers-1", "drained").await?;
    kubectl(&["uncordon", CORDON_NODE]).await?;
    cluster.node_is("workers-1", "idle").await?;
    assert_eq!(
        admins(cluster, "workers-0").await?,
        ("drained".into(), "admin".into()),
        "the admin's drain must be kept"
    );
    cluster.run("scontrol update nodename=workers-0 state=resume").await?;
    cluster.agree(2).await
}

/// Waits until the pod of a worker shows, or no longer shows, that its Kubernetes node is cordoned.
async fn shows_cordon(cluster: &ManagedSlurm<'_>, node: &str, expected: bool) -> Result<()> {
    wait_for("the annotation of the pod", SOON, async || {
        let pod = cluster.worker(node).await?;
        let found = pod.annotations().get(annotation::POD_CORDON);
        ensure!(found.is_some_and(|value| value == "true") == expected, "{found:?}");
        Ok(())
    })
    .await
}

/// The state of a Slurm node and the reason for it.
async fn admins(cluster: &ManagedSlurm<'_>, node: &str) -> Result<(String, String)> {
    let state = cluster.nodes().await?.remove(node).unwrap_or_default();
    Ok((state, cluster.reason(node).await?))
}

/// The annotation on a worker's pod.
async fn of_a_pod(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let pod = cluster.worker("workers-1").await?;
    // The name of the field manager of most operators, among them health checkers that cordon pods, and the Go operator.
    let manager = PatchParams { field_manager: Some("manager".to_owned()), ..PatchParams::default() };
    let cordon = async |value: Value| {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {annotation::POD_CORDON: value}}}));
        scene.pods().patch_metadata(&pod.name_any(), &manager, &patch).await
    };
    cordon(json!("true")).await?;
    cluster.node_is("workers-1", "drained").await?;
    let why = cluster.reason("workers-1").await?;
    assert!(why.starts_with(names::REASON_PREFIX) && why.contains(&pod.name_any()), "{why}");
    cordon(Value::Null).await?;
    cluster.node_is("workers-1", "idle").await?;

    // An update does not replace it.
    cordon(json!("true")).await?;
    cluster.node_is("workers-1", "drained").await?;
    new_template(scene, "second").await?;
    wait_for("the other worker to be updated", SOON, async || {
        let reported = status(scene).await?;
        ensure!(reported["updatedReplicas"] == 1 && reported["readyReplicas"] == 2, "{reported}");
        let progress = managed::condition(scene, "NodeSet", NODE_SET, conditions::PROGRESSING).await?;
        ensure!(progress.reason == reason::UPDATING && progress.message.contains("workers-1"), "{progress:?}");
        Ok(())
    })
    .await?;
    cluster.node_is("workers-0", "idle").await?;
    let held = cluster.worker("workers-1").await?;
    assert_eq!(held.uid(), pod.uid(), "a worker that the user has cordoned was replaced");
    assert_eq!(held.annotations().get(annotation::POD_CORDON).map(String::as_str), Some("true"));
    assert_eq!(cluster.nodes().await?.get("workers-1").map(String::as_str), Some("drained"));

    cordon(Value::Null).await?;
    wait_for("the released worker to be updated", SOON, async || {
        let reported = status(scene).await?;
        ensure!(reported["updatedReplicas"] == 2, "{reported}");
        Ok(())
    })
    .await?;
    cluster.agree(2).await?;
    assert_ne!(cluster.worker("workers-1").await?.uid(), pod.uid());
    Ok(())
}

/// `kubectl drain` waits for jobs.
async fn drain_of_a_node(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let job = cluster.hold("workers-0").await?;
    let busy = cluster.worker("workers-0").await?;
    wait_for("the busy worker to be protected", SOON, async || {
        let pod = cluster.worker("workers-0").await?;
        ensure!(pod.labels().contains_key(label::POD_PROTECT), "it is not protected");
        Ok(())
    })
    .await?;
    let selector = format!("--pod-selector={SCENE}={}", scene.namespace.name());
    let drain = async |timeout| kubectl(&["drain", CORDON_NODE, "--delete-emptydir-data", &selector, timeout]).await;
    let refused = drain("--timeout=15s").await;
    ensure!(refused.is_err(), "the node was drained while a job runs there: {refused:?}");
    assert_eq!(cluster.worker("workers-0").await?.uid(), busy.uid());
    assert_eq!(cluster.job_state(&job).await?, "RUNNING");

    let (drained, released) = tokio::join!(drain("--timeout=90s"), cluster.release(&job));
    released?;
    drained?;
    kubectl(&["uncordon", CORDON_NODE]).await?;
    cluster.agree(2).await
}
