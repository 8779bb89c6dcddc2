//! Nodes with workers fail.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, ManagedSlurm, NODE_SET, slurm_node, uids},
    node_ready,
    operator::is_ready,
    shell_pod, xtask_node,
};
use kube::ResourceExt;
use slurm_operator_api::common::conditions;
use testkit::wait_for;

/// One test, because all tests share the nodes; another node fails and returns during the same wait.
#[tokio::test]
async fn jobs_go_on_without_a_kubelet_and_workers_return_with_their_node() -> Result<()> {
    let scene = Scene::start("lost-node").await?;
    let cluster = ManagedSlurm::start(&scene, 3).await?;
    let workers = uids(&cluster.workers().await?);
    let (on1, on2, on3) = (on(&cluster, 1).await?, on(&cluster, 2).await?, on(&cluster, 3).await?);
    // An ordinary pod, to see when pods are evicted.
    scene.pod("ordinary", shell_pod(Some("node3"), "sleep infinity")).await?;
    scene.ready("ordinary").await?;
    let long = cluster.hold(&on3).await?;

    xtask_node("kubelet-stop", 3).await?;
    node_ready(&scene.client, "node3", false).await?;

    xtask_node("kill", 2).await?;
    node_ready(&scene.client, "node2", false).await?;
    wait_for("the status to show the lost worker", SOON, async || {
        let ready = managed::condition(&scene, "NodeSet", NODE_SET, conditions::READY).await?;
        ensure!(ready.status == "False", "{ready:?}");
        // The worker without a kubelet is not ready either.
        let status = managed::resources(&scene, "NodeSet").get(NODE_SET).await?.data["status"].clone();
        ensure!(status["readyReplicas"] == 1, "{status}");
        Ok(())
    })
    .await?;
    assert_eq!(
        cluster.srun(&format!("--nodelist={on1}"), "hostname").await?,
        [&*on1],
        "the other worker must still run jobs"
    );
    xtask_node("start", 2).await?;
    node_ready(&scene.client, "node2", true).await?;
    wait_for("the worker to return with its node", managed::STARTED, async || {
        let pod = cluster.worker(&on2).await?;
        ensure!(is_ready(&pod), "its pod {} is not ready", pod.name_any());
        let state = cluster.nodes().await?.remove(&on2).context("it is not in Slurm")?;
        ensure!(state == "idle", "it is {state}");
        Ok(())
    })
    .await?;
    assert_eq!(cluster.srun(&format!("--nodelist={on2}"), "hostname").await?, [&*on2]);

    wait_for("Kubernetes to evict ordinary pods", managed::STARTED, async || {
        let pod = scene.pods().get_opt("ordinary").await?;
        ensure!(pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()), "not yet");
        Ok(())
    })
    .await?;
    assert_eq!(cluster.job_state(&long).await?, "RUNNING", "a job must run on where other pods are evicted");
    assert_eq!(uids(&cluster.workers().await?), workers);
    xtask_node("kubelet-start", 3).await?;
    node_ready(&scene.client, "node3", true).await?;
    cluster.release(&long).await?;
    assert_eq!(uids(&cluster.workers().await?), workers, "a worker was replaced");
    scene.finish().await
}

/// The Slurm node of the worker on a Kubernetes node.
async fn on(cluster: &ManagedSlurm<'_>, node: u8) -> Result<String> {
    let name = format!("node{node}");
    let workers = cluster.workers().await?;
    let here = workers.iter().find(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref() == Some(&name)));
    here.map(slurm_node).with_context(|| format!("no worker on {name}"))
}
