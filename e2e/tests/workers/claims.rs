//! Volume claims of workers.

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, ManagedSlurm, NODE_SET},
    workers::{COMMON_NODE, annotate, claim_template, claims, crowd, delete_set},
};
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_operator_api::slinky::names::annotation;
use testkit::wait_for;

#[tokio::test]
async fn claims_are_kept_unless_the_policy_is_delete() -> Result<()> {
    let scene = Scene::start("claims").await?;
    let mut spec = crowd(2, COMMON_NODE)?;
    spec["slurmd"]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    spec["volumeClaimTemplates"] = claim_template();
    let cluster = ManagedSlurm::start_with(&scene, managed::controller()?, spec.clone()).await?;
    let data = claims(&scene).await?;
    assert_eq!(data.keys().collect::<Vec<_>>(), ["data-workers-0", "data-workers-1"]);
    on_worker(&scene, &cluster, "workers-1", "echo precious > /data/note").await?;

    // Kept by default.
    cluster.scale(1).await?;
    cluster.agree(1).await?;
    assert_eq!(claims(&scene).await?, data, "a scale-in must keep the claims");
    delete_set(&scene).await?;
    cluster.set_gone().await?;
    assert_eq!(claims(&scene).await?, data, "the deletion of the NodeSet must keep the claims");

    // The same NodeSet again, which gets its data back, now with policy Delete.
    spec["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
    managed::put(&scene, "NodeSet", NODE_SET, spec).await?;
    cluster.agree(2).await?;
    assert_eq!(claims(&scene).await?, data, "the claims must be used again");
    assert_eq!(on_worker(&scene, &cluster, "workers-1", "cat /data/note").await?, "precious\n");

    let pod = cluster.worker("workers-1").await?.name_any();
    annotate(&scene.pods(), &pod, annotation::POD_CORDON, json!("true")).await?;
    cluster.node_is("workers-1", "drained").await?;
    assert_eq!(claims(&scene).await?, data, "a drain must keep the claims");
    annotate(&scene.pods(), &pod, annotation::POD_CORDON, Value::Null).await?;
    cluster.node_is("workers-1", "idle").await?;

    cluster.scale(1).await?;
    cluster.agree(1).await?;
    remain(&scene, &["data-workers-0"]).await?;
    assert_eq!(claims(&scene).await?.get("data-workers-0"), data.get("data-workers-0"));
    delete_set(&scene).await?;
    cluster.set_gone().await?;
    remain(&scene, &[]).await?;
    scene.finish().await
}

async fn on_worker(scene: &Scene, cluster: &ManagedSlurm<'_>, node: &str, script: &str) -> Result<String> {
    let pod = cluster.worker(node).await?.name_any();
    scene.exec_in(&pod, "slurmd", script).await
}

/// Waits until only these claims are left.
async fn remain(scene: &Scene, names: &[&str]) -> Result<()> {
    wait_for(&format!("the claims {names:?} and no others"), SOON, async || {
        let claims = claims(scene).await?;
        ensure!(claims.keys().map(String::as_str).eq(names.iter().copied()), "{claims:?}");
        Ok(())
    })
    .await
}
