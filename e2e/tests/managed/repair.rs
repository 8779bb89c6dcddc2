//! A user deletes a key of a running cluster and sets a wrong image, and corrects both. No job ends.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, Job, ManagedSlurm, SLURMCTLD},
    workers::annotate,
};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use slurm_operator_api::{
    common::conditions::{SLURM_KEY_IN_USE, reason},
    slinky::names::annotation::ALLOW_JOB_LOSS,
};
use testkit::wait_for;

#[tokio::test]
async fn a_lost_key_and_a_wrong_image_are_repaired() -> Result<()> {
    let scene = Scene::start("repair").await?;
    let mut controller = managed::controller()?;
    let conf = controller["extraConf"].as_str().context("no extraConf")?.to_owned();
    // Without it there are no step managers.
    controller["extraConf"] = json!(format!("{conf}\nPrologFlags=Contain"));
    let cluster = ManagedSlurm::start_with(&scene, controller, managed::node_set(1)?).await?;
    let job = cluster.hold_with("--stepmgr", "workers-0").await?;
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
    another_key_waits(&scene, &job).await?;
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

/// The step manager of a job would not learn another key.
async fn another_key_waits(scene: &Scene, job: &Job) -> Result<()> {
    let secrets = scene.namespace.api::<Secret>();
    let old = secrets.get("slurm-auth-slurm").await?.data;
    let another = json!({"stringData": {"slurm.key": "another key, which nobody ever uses"}});
    let named = format!(": {}", job.id);
    for (data, status, words) in [(another, "False", named.as_str()), (json!({"data": old}), "True", "")] {
        secrets.patch("slurm-auth-slurm", &PatchParams::default(), &Patch::Merge(data)).await?;
        wait_for(&format!("SlurmKeyInUse={status}"), SOON, async || {
            let found = managed::condition(scene, "Controller", CLUSTER, SLURM_KEY_IN_USE).await?;
            ensure!(found.status == status && found.message.ends_with(words), "{found:?}");
            ensure!(status == "True" || found.reason == "JobsWithStepManager", "{found:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
