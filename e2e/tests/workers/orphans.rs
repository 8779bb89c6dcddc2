//! Workers that lose their owner or their labels keep running, and are found again.

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, ManagedSlurm, NODE_SET, resources, uids},
    workers::{COMMON_NODE, crowd},
};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slurm_operator_api::slinky::names::label;
use testkit::wait_for;

#[tokio::test]
async fn orphans_are_adopted_and_lost_labels_restored() -> Result<()> {
    let scene = Scene::start("orphans").await?;
    let cluster = ManagedSlurm::start_with(&scene, managed::controller()?, crowd(2, COMMON_NODE)?).await?;
    let workers = uids(&cluster.workers().await?);
    let job = cluster.hold("workers-0").await?;

    // The usual way to change what is immutable.
    let sets = resources(&scene, "NodeSet");
    let old = sets.get(NODE_SET).await?.uid();
    sets.delete(
        NODE_SET,
        &DeleteParams { propagation_policy: Some(kube::api::PropagationPolicy::Orphan), ..DeleteParams::default() },
    )
    .await?;
    wait_for("the NodeSet to be gone", SOON, async || {
        ensure!(sets.get_opt(NODE_SET).await?.is_none(), "it still exists");
        Ok(())
    })
    .await?;
    managed::put(&scene, "NodeSet", NODE_SET, crowd(2, COMMON_NODE)?).await?;
    managed::ready(&scene, "NodeSet", NODE_SET).await?;
    let new = sets.get(NODE_SET).await?.uid();
    ensure!(new != old, "it is the old NodeSet");
    owned_by(&scene, "workers-0", new.as_deref()).await?;
    owned_by(&scene, "workers-1", new.as_deref()).await?;

    patch(&scene, "workers-1", json!({"ownerReferences": null})).await?;
    owned_by(&scene, "workers-1", new.as_deref()).await?;

    // Without it, the pod is not watched any more.
    patch(&scene, "workers-0", json!({"labels": {label::NAME: null, label::INSTANCE: null}})).await?;
    wait_for("the labels to be restored", SOON, async || {
        let pod = scene.pods().get("workers-0").await?;
        let labels = [label::NAME, label::INSTANCE].map(|key| pod.labels().get(key).map(String::as_str));
        ensure!(labels == [Some("slurmd"), Some(NODE_SET)], "{labels:?}");
        Ok(())
    })
    .await?;

    cluster.job_is(&job, "RUNNING").await?;
    cluster.release(&job).await?;
    cluster.agree(2).await?;
    assert_eq!(uids(&cluster.workers().await?), workers, "a worker was replaced");
    scene.finish().await
}

async fn patch(scene: &Scene, pod: &str, metadata: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    scene.pods().patch(pod, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn owned_by(scene: &Scene, pod: &str, set: Option<&str>) -> Result<()> {
    wait_for(&format!("{pod} to be adopted"), SOON, async || {
        let owners = scene.pods().get(pod).await?.owner_references().to_vec();
        ensure!(owners.iter().map(|owner| owner.uid.as_str()).eq(set), "{owners:?}");
        Ok(())
    })
    .await
}
