//! Changes that others make to our objects are kept.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, ManagedSlurm},
};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use slurm_operator_api::{common::conditions, slinky::names};
use testkit::wait_for;

const CONDITION: &str = "example.com/Checked";

#[tokio::test]
async fn edits_of_others_survive() -> Result<()> {
    let scene = Scene::start("edits").await?;
    let cluster = ManagedSlurm::start(&scene, 1).await?;
    service_type(&scene).await?;
    pod_metadata_and_conditions(&scene, &cluster).await?;
    scene.finish().await
}

/// The Controller does not set the type of its Service, so a user can.
async fn service_type(scene: &Scene) -> Result<()> {
    let services = scene.namespace.api::<Service>();
    let name = names::controller(CLUSTER);
    let patch = Patch::Merge(json!({"spec": {"type": "LoadBalancer"}}));
    services.patch(&name, &PatchParams::default(), &patch).await?;
    // Change one of our fields, so that the operator writes the Service.
    let spec = json!({"service": {"metadata": {"annotations": {"example.com/note": "new"}}}});
    managed::change(scene, "Controller", CLUSTER, spec).await?;
    let service = wait_for("the Service to be written by the operator", SOON, async || {
        let service = services.get(&name).await?;
        ensure!(service.annotations().get("example.com/note").is_some_and(|note| note == "new"), "not yet");
        Ok(service)
    })
    .await?;
    let type_ = service.spec.and_then(|spec| spec.type_);
    ensure!(type_.as_deref() == Some("LoadBalancer"), "the type is {type_:?}");
    Ok(())
}

/// The operator adds conditions to worker pods beside those of the kubelet and of others.
async fn pod_metadata_and_conditions(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let name = cluster.worker("workers-0").await?.name_any();
    let metadata = json!({"metadata": {
        "labels": {"example.com/rack": "r7"},
        "annotations": {(names::annotation::POD_DELETION_COST): "7"},
    }});
    scene.pods().patch(&name, &PatchParams::default(), &Patch::Merge(metadata)).await?;
    let condition = json!({"status": {"conditions": [{"type": CONDITION, "status": "True"}]}});
    scene.pods().patch_status(&name, &PatchParams::default(), &Patch::Strategic(condition)).await?;
    intact(&slurm_state(scene, &name, &["Idle"]).await?)?;

    let job = cluster.hold("workers-0").await?;
    intact(&slurm_state(scene, &name, &["Allocated", "Mixed"]).await?)?;
    cluster.release(&job).await?;
    intact(&slurm_state(scene, &name, &["Idle"]).await?)
}

/// Waits until the pod's conditions have one of these states of its Slurm node, and no other base state.
async fn slurm_state(scene: &Scene, pod: &str, states: &[&str]) -> Result<Pod> {
    wait_for(&format!("the pod {pod} to have the state {states:?}"), SOON, async || {
        let pod = scene.pods().get(pod).await?;
        let reported: Vec<_> = conditions_of(&pod)
            .into_iter()
            .filter_map(|(type_, status)| {
                Some(type_.strip_prefix(conditions::POD_PREFIX)?.to_owned()).filter(|_| status)
            })
            .filter(|state| ["Allocated", "Idle", "Mixed", "Down"].contains(&&**state))
            .collect();
        ensure!(reported.len() == 1 && reported.iter().all(|state| states.contains(&&**state)), "it has {reported:?}");
        Ok(pod)
    })
    .await
}

fn conditions_of(pod: &Pod) -> Vec<(String, bool)> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    conditions.into_iter().map(|condition| (condition.type_, condition.status == "True")).collect()
}

/// Checks that nothing that others set is missing.
fn intact(pod: &Pod) -> Result<()> {
    let conditions = conditions_of(pod);
    for type_ in ["PodScheduled", "Initialized", "ContainersReady", "Ready", CONDITION] {
        ensure!(conditions.contains(&(type_.to_owned(), true)), "{type_} is missing in {conditions:?}");
    }
    let rack = pod.labels().get("example.com/rack").context("the label is gone")?;
    let cost = pod.annotations().get(names::annotation::POD_DELETION_COST).context("the deletion cost is gone")?;
    ensure!(rack == "r7" && cost == "7", "they were changed to {rack} and {cost}");
    Ok(())
}
