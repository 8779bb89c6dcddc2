//! Deletion of `NodeSets`, releases and namespaces.

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene, chart,
    managed::{self, ManagedSlurm, NODE_SET, STARTED, slurm_node},
    workers::{COMMON_NODE, crowd, delete_set},
};
use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slurm_operator_api::{
    common::conditions::{self, reason},
    slinky::names::{self, finalizer, label},
};
use testkit::wait_for;

#[tokio::test]
async fn a_deleted_node_set_waits_for_its_jobs_only_if_configured_and_possible() -> Result<()> {
    let scene = Scene::start("ending").await?;
    let cluster = ManagedSlurm::start_with(&scene, managed::controller()?, draining(true)?).await?;
    waits(&scene, &cluster, &DeleteParams::background()).await?;

    // As Argo CD does it. An admission policy keeps the garbage collector from the workers.
    for blocks in [false, true] {
        managed::put(&scene, "NodeSet", NODE_SET, draining(true)?).await?;
        cluster.agree(2).await?;
        if blocks {
            block_owner_deletion(&scene, &cluster).await?;
        }
        waits(&scene, &cluster, &DeleteParams::foreground()).await?;
    }

    // Without onDelete the jobs end with the NodeSet.
    managed::put(&scene, "NodeSet", NODE_SET, draining(false)?).await?;
    cluster.agree(2).await?;
    let job = cluster.hold("workers-0").await?;
    delete_set(&scene).await?;
    cluster.set_gone().await?;
    let state = cluster.job_state(&job).await?;
    assert_ne!(state, "COMPLETED", "the job completed without being released");

    // The deletion of the namespace does not wait for jobs.
    managed::put(&scene, "NodeSet", NODE_SET, draining(true)?).await?;
    cluster.agree(2).await?;
    cluster.hold("workers-1").await?;
    namespace_terminating(scene).await
}

fn draining(on_delete: bool) -> Result<Value> {
    let mut spec = crowd(2, COMMON_NODE)?;
    spec["drain"] = json!({"onDelete": on_delete});
    Ok(spec)
}

/// Makes the pods block the deletion of their owner, as those of other operators do.
async fn block_owner_deletion(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    for pod in cluster.workers().await? {
        let mut owners = pod.owner_references().to_vec();
        for owner in &mut owners {
            owner.block_owner_deletion = Some(true);
        }
        let patch = Patch::Merge(json!({"metadata": {"ownerReferences": owners}}));
        scene.pods().patch(&pod.name_any(), &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

/// With a busy worker, the NodeSet remains until the job has ended.
async fn waits(scene: &Scene, cluster: &ManagedSlurm<'_>, how: &DeleteParams) -> Result<()> {
    let job = cluster.hold("workers-0").await?;
    managed::resources(scene, "NodeSet").delete(NODE_SET, how).await?;
    wait_for("the idle worker to be removed and the busy one to drain", SOON, async || {
        let names: Vec<_> = cluster.workers().await?.iter().map(slurm_node).collect();
        ensure!(names == ["workers-0"] && cluster.draining().await? == names, "there are {names:?}");
        let progress = managed::condition(scene, "NodeSet", NODE_SET, conditions::PROGRESSING).await?;
        ensure!(progress.reason == reason::DRAINING && progress.message.contains("workers-0"), "{progress:?}");
        Ok(())
    })
    .await?;
    let why = cluster.reason("workers-0").await?;
    assert!(why.starts_with(names::REASON_PREFIX), "{why}");
    let set = managed::resources(scene, "NodeSet").get(NODE_SET).await?;
    assert!(set.metadata.deletion_timestamp.is_some());
    assert!(set.finalizers().contains(&finalizer::DRAIN.to_owned()), "{:?}", set.finalizers());
    let shared = names::worker_disruption_budget(managed::CLUSTER);
    let budget = scene.namespace.api::<PodDisruptionBudget>().get_opt(&shared).await?;
    assert!(budget.is_some(), "the busy worker is no longer protected");
    assert_eq!(cluster.job_state(&job).await?, "RUNNING");
    cluster.release(&job).await?;
    cluster.set_gone().await
}

/// `helm uninstall` deletes everything at once, including the Controller, so there is no Slurm to wait for.
#[tokio::test]
async fn a_release_is_uninstalled_in_both_settings() -> Result<()> {
    let scene = Scene::start("uninstall").await?;
    for on_delete in [true, false] {
        let workers = json!({
            "replicas": 2,
            "oversubscribeNode": true,
            "drain": {"onDelete": on_delete},
            "podSpec": {"nodeSelector": {"kubernetes.io/hostname": COMMON_NODE}, "terminationGracePeriodSeconds": 5},
        });
        chart::install(&scene, workers).await?;
        managed::ready(&scene, "NodeSet", chart::NODE_SET).await?;
        let cluster = ManagedSlurm::of(&scene);
        assert_eq!(cluster.srun("--nodes=2 --partition=all", "hostname").await?, ["cpu-0", "cpu-1"]);
        chart::uninstall(&scene).await?;
        let pods: Api<Pod> = scene.namespace.api();
        wait_for("all objects of the release to be deleted", STARTED, async || {
            let set = managed::resources(&scene, "NodeSet").get_opt(chart::NODE_SET).await?;
            ensure!(set.is_none(), "the NodeSet has finalizers {:?}", set.map(|set| set.metadata.finalizers));
            let left = pods.list(&ListParams::default().labels(label::NAME)).await?.items;
            ensure!(left.is_empty(), "{} pods are left", left.len());
            Ok(())
        })
        .await?;
    }
    // A namespace whose NodeSet would not wait.
    chart::install(&scene, json!({"replicas": 1})).await?;
    managed::ready(&scene, "NodeSet", chart::NODE_SET).await?;
    namespace_terminating(scene).await
}

/// Deletes the namespace and waits until it is gone.
async fn namespace_terminating(scene: Scene) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    let name = scene.namespace.name().to_owned();
    scene.finish().await?;
    wait_for(&format!("the namespace {name} to be gone"), STARTED, async || {
        let left = namespaces.get_opt(&name).await?;
        ensure!(left.is_none(), "{}", json!(left.and_then(|namespace| namespace.status)));
        Ok(())
    })
    .await
}
