//! The node of the active slurmctld fails: a backup takes over without the operator, and gives back.

#![expect(clippy::indexing_slicing, reason = "test code: objects are written as JSON and changed in place")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, ManagedSlurm, SLURMCTLD, STARTED},
    node_ready, operator,
    workers::{COMMON_NODE, crowd},
    xtask_node,
};
use k8s_openapi::api::core::v1::{Endpoints, PersistentVolumeClaim};
use kube::{ResourceExt, api::PostParams};
use serde_json::json;
use slurm_operator_api::{
    common::conditions::{self, CONFIGURATION_VALID, reason},
    slinky::names::label,
};
use testkit::wait_for;

/// The backup.
const BACKUP: &str = "slurm-controller-1";

/// A minute, with room for a busy machine.
const TAKEN_OVER: Duration = Duration::from_secs(90);

#[tokio::test]
async fn a_backup_takes_over_without_the_operator_and_gives_back() -> Result<()> {
    let scene = Scene::start("ha").await?;
    let claim = json!({
        "metadata": {"name": "state"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Mi"}}},
    });
    let claims = scene.namespace.api::<PersistentVolumeClaim>();
    claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    let mut controller = managed::controller()?;
    controller["ha"] = json!({"enabled": true});
    controller["persistence"] = json!({"enabled": true, "existingClaim": "state"});
    // The first node stays, with the worker and slurmrestd.
    let elsewhere = json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [COMMON_NODE]});
    let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [elsewhere]}],
    }});
    controller["template"]["spec"] =
        json!({"affinity": {"nodeAffinity": affinity}, "terminationGracePeriodSeconds": 5});
    let cluster = ManagedSlurm::start_with(&scene, controller, crowd(2, COMMON_NODE)?).await?;
    in_charge(&scene, SLURMCTLD).await?;
    let job = cluster.hold("workers-0").await?;
    cluster.saved(&job).await?;
    let node = node_of(&scene, SLURMCTLD).await?;
    ensure!(node != node_of(&scene, BACKUP).await?, "both slurmctld are on node{node}");

    operator::run(&scene.client, 0).await?;
    let start = Instant::now();
    xtask_node("kill", node).await?;
    let output = wait_for("srun through the backup", TAKEN_OVER, async || {
        let srun = "cd /tmp; timeout 60 srun --nodelist=workers-1 hostname";
        scene.exec_in(BACKUP, "slurmctld", srun).await
    })
    .await?;
    println!("srun worked {} s after the node of the active slurmctld was gone", start.elapsed().as_secs());
    assert_eq!(output.trim(), "workers-1");

    operator::run(&scene.client, 1).await?;
    in_charge(&scene, BACKUP).await?;
    wait_for("the Controller to be ready with one slurmctld", SOON, async || {
        let ready = managed::condition(&scene, "Controller", CLUSTER, conditions::READY).await?;
        let degraded = managed::condition(&scene, "Controller", CLUSTER, conditions::DEGRADED).await?;
        ensure!(ready.status == "True" && ready.message.contains(BACKUP), "{ready:?}");
        ensure!(degraded.reason == reason::PODS_NOT_READY, "{degraded:?}");
        Ok(())
    })
    .await?;

    tried_beside_the_backup(&scene).await?;

    xtask_node("start", node).await?;
    node_ready(&scene.client, &format!("node{node}"), true).await?;
    in_charge(&scene, SLURMCTLD).await?;
    cluster.agree(2).await?;
    wait_for("the first slurmctld to have the changed configuration", STARTED, async || {
        ensure!(cluster.has("MaxJobCount=7777").await?, "it has the old one");
        Ok(())
    })
    .await?;
    assert_eq!(cluster.job_state(&job).await?, "RUNNING");
    cluster.release(&job).await?;
    scene.finish().await
}

/// The trial of a configuration is a cluster of its own: the active backup stays in charge, whatever comes of it.
async fn tried_beside_the_backup(scene: &Scene) -> Result<()> {
    let before = container_of(scene, BACKUP).await?;
    let old = managed::controller()?["extraConf"].clone();
    let old = old.as_str().context("no extraConf")?;
    for (line, status, words) in [("SchedulerType=sched/nope", "False", "sched/nope"), ("MaxJobCount=7777", "True", "")]
    {
        managed::change(scene, "Controller", CLUSTER, json!({"extraConf": format!("{old}\n{line}")})).await?;
        wait_for(&format!("ConfigurationValid={status} for {line}"), SOON, async || {
            let valid = managed::condition(scene, "Controller", CLUSTER, CONFIGURATION_VALID).await?;
            ensure!(valid.status == status && valid.message.contains(words), "{valid:?}");
            Ok(())
        })
        .await?;
        in_charge(scene, BACKUP).await?;
        ensure!(container_of(scene, BACKUP).await? == before, "the active backup has restarted because of {line}");
    }
    Ok(())
}

/// The container of slurmctld in a pod, and how often it was restarted.
async fn container_of(scene: &Scene, pod: &str) -> Result<(Option<String>, i32)> {
    let status = scene.pods().get(pod).await?.status.context("the pod has no status")?;
    let mut all = status.container_statuses.into_iter().flatten();
    let slurmctld = all.find(|container| container.name == "slurmctld").context("no slurmctld")?;
    Ok((slurmctld.container_id, slurmctld.restart_count))
}

/// The number of the node of a pod.
async fn node_of(scene: &Scene, pod: &str) -> Result<u8> {
    let pod = scene.pods().get(pod).await?;
    let node = pod.spec.and_then(|spec| spec.node_name).context("the pod has no node")?;
    Ok(node.strip_prefix("node").context("an unknown node")?.parse()?)
}

/// Waits until the status, the label and the Service say that this slurmctld is in charge.
async fn in_charge(scene: &Scene, name: &str) -> Result<()> {
    wait_for(&format!("{name} to be in charge"), STARTED, async || {
        let status = managed::resources(scene, "Controller").get(CLUSTER).await?.data["status"]["slurmctld"].clone();
        let found = status.as_array().into_iter().flatten().find(|ctld| ctld["active"] == true);
        ensure!(found.is_some_and(|found| found["host"] == name), "{status}");
        let pods = scene.pods().list(&kube::api::ListParams::default().labels(label::ACTIVE)).await?;
        let labelled: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
        ensure!(labelled == [name], "labelled: {labelled:?}");
        let service = scene.namespace.api::<Endpoints>().get("slurm-controller").await?;
        let addresses = service.subsets.into_iter().flatten().flat_map(|subset| subset.addresses.unwrap_or_default());
        let targets: Vec<String> = addresses.filter_map(|address| address.target_ref?.name).collect();
        ensure!(targets == [name], "the Service leads to {targets:?}");
        Ok(())
    })
    .await
}
