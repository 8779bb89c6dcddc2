//! A user deletes a key of a running cluster and sets a wrong image, and corrects both. No job ends.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, ManagedSlurm, SLURMCTLD},
    workers::annotate,
};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use slurm_operator_api::{common::conditions::reason, slinky::names::annotation::ALLOW_JOB_LOSS};
use testkit::wait_for;

#[tokio::test]
async fn a_lost_key_and_a_wrong_image_are_repaired() -> Result<()> {
    let scene = Scene::start("repair").await?;
    let cluster = ManagedSlurm::start(&scene, 1).await?;
    let job = cluster.hold("workers-0").await?;
    let parameters = cluster.run("scontrol show config | grep SlurmctldParameters").await?;
    ensure!(!parameters.contains("reconfig_on_restart"), "{parameters}");

    let secrets = scene.namespace.api::<Secret>();
    let key = secrets.get("slurm-auth-slurm").await?.data;
    let slurmctld = scene.pods().get(SLURMCTLD).await?.uid();
    secrets.delete("slurm-auth-slurm", &DeleteParams::default()).await?;
    let words = ["slurm-auth-slurm", "restore it from a backup"];
    managed::wait_for_problem(&scene, "Controller", CLUSTER, reason::REFERENCE_MISSING, &words).await?;
    // Daemons read a copy, so that workers can still be created.
    cluster.scale(2).await?;
    cluster.agree(2).await?;
    cluster.scale(1).await?;
    ensure!(secrets.get_opt("slurm-auth-slurm").await?.is_none(), "a new key was generated");
    let restored = json!({"metadata": {"name": "slurm-auth-slurm"}, "data": key});
    secrets.create(&PostParams::default(), &serde_json::from_value(restored)?).await?;
    cluster.agree(1).await?;
    managed::ready(&scene, "Controller", CLUSTER).await?;
    ensure!(scene.pods().get(SLURMCTLD).await?.uid() == slurmctld, "slurmctld was replaced");

    let image = managed::controller()?["slurmctld"]["image"].clone();
    let wrong = "localhost/slurm-operator/slurmctld:nowhere";
    managed::change(&scene, "Controller", CLUSTER, json!({"slurmctld": {"image": wrong}})).await?;
    // It cannot be tried, so what runs is left alone, unless the user insists.
    managed::wait_for_problem(&scene, "Controller", CLUSTER, "JobsWouldBeLost", &[ALLOW_JOB_LOSS]).await?;
    ensure!(scene.pods().get(SLURMCTLD).await?.uid() == slurmctld, "slurmctld was replaced");
    let controllers = managed::resources(&scene, "Controller");
    annotate(&controllers, CLUSTER, ALLOW_JOB_LOSS, json!("true")).await?;
    wait_for("slurmctld with the wrong image", SOON, async || {
        let pod = scene.pods().get(SLURMCTLD).await?;
        let found = pod.spec.and_then(|spec| spec.containers.into_iter().next()?.image).context("no image")?;
        ensure!(found == wrong, "its image is {found}");
        Ok(())
    })
    .await?;
    annotate(&controllers, CLUSTER, ALLOW_JOB_LOSS, json!(null)).await?;
    managed::change(&scene, "Controller", CLUSTER, json!({"slurmctld": {"image": image}})).await?;
    managed::ready(&scene, "Controller", CLUSTER).await?;
    cluster.agree(1).await?;
    cluster.release(&job).await?;
    scene.finish().await
}
