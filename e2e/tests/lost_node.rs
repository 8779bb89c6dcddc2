//! Nodes with workers fail.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, ManagedSlurm, NODE_SET, slurm_node, uids},
    node_ready,
    operator::is_ready,
    xtask_node,
};
use kube::ResourceExt;
use slurm_operator_api::conditions;
use testkit::wait_for;
use tokio::time::{Instant, sleep_until};

/// Longer than the five minutes after which Kubernetes evicts pods from a node that does not answer.
const WITHOUT_KUBELET: Duration = Duration::from_mins(6);

/// One test, because the nodes are everybody's; and one wait of six minutes, in which another node dies and comes back.
#[tokio::test]
async fn jobs_go_on_without_a_kubelet_and_workers_return_with_their_node() -> Result<()> {
    let scene = Scene::start("lost-node").await?;
    let cluster = ManagedSlurm::start(&scene, 3).await?;
    let workers = uids(&cluster.workers().await?);
    let (on1, on2, on3) = (on(&cluster, 1).await?, on(&cluster, 2).await?, on(&cluster, 3).await?);
    // Nobody can reach into a pod without its kubelet, so this one ends by itself.
    let long = cluster.job(&on3, &format!("sleep {}", WITHOUT_KUBELET.as_secs() + 30)).await?;

    xtask_node("kubelet-stop", 3).await?;
    let patience = Instant::now() + WITHOUT_KUBELET;
    node_ready(&scene.client, "node3", false).await?;

    xtask_node("kill", 2).await?;
    node_ready(&scene.client, "node2", false).await?;
    wait_for("the status to tell of the lost worker", SOON, async || {
        let ready = managed::condition(&scene, "NodeSet", NODE_SET, conditions::READY).await?;
        ensure!(ready.status == "False", "{ready:?}");
        // Kubernetes knows nothing of the worker without a kubelet either.
        let status = managed::resources(&scene, "NodeSet").get(NODE_SET).await?.data["status"].clone();
        ensure!(status["readyReplicas"] == 1, "{status}");
        Ok(())
    })
    .await?;
    assert_eq!(cluster.srun(&format!("--nodelist={on1}"), "hostname").await?, [&*on1], "the rest goes on");
    xtask_node("start", 2).await?;
    node_ready(&scene.client, "node2", true).await?;
    wait_for("the worker to be back with its node", managed::STARTED, async || {
        let pod = cluster.worker(&on2).await?;
        ensure!(is_ready(&pod), "its pod {} is not ready", pod.name_any());
        let state = cluster.nodes().await?.remove(&on2).context("Slurm does not know it")?;
        ensure!(state == "idle", "it is {state}");
        Ok(())
    })
    .await?;
    assert_eq!(cluster.srun(&format!("--nodelist={on2}"), "hostname").await?, [&*on2]);

    sleep_until(patience).await;
    assert_eq!(cluster.job_state(&long).await?, "RUNNING", "six minutes without a kubelet");
    xtask_node("kubelet-start", 3).await?;
    node_ready(&scene.client, "node3", true).await?;
    cluster.job_is(&long, "COMPLETED").await?;
    cluster.agree(3).await?;
    assert_eq!(uids(&cluster.workers().await?), workers, "no worker was replaced");
    scene.finish().await
}

/// The Slurm node on a Kubernetes node.
async fn on(cluster: &ManagedSlurm<'_>, node: u8) -> Result<String> {
    let name = format!("node{node}");
    let workers = cluster.workers().await?;
    let here = workers.iter().find(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref() == Some(&name)));
    here.map(slurm_node).with_context(|| format!("no worker on {name}"))
}
