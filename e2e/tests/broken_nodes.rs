//! Failing nodes, and their pods.

#![expect(clippy::indexing_slicing, reason = "test code: objects are written as JSON and changed in place")]

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{SOON, Scene, ask, node_ready, operator, server_pod, shell_pod, xtask_node};
use testkit::wait_for;
use tokio::time::sleep;

/// The API server waits two seconds for the webhook; the rest is for a busy machine.
const UNNOTICED: Duration = Duration::from_secs(20);

/// One test, because all tests share the nodes.
#[tokio::test]
async fn a_node_with_the_webhook_loses_its_kubelet_and_then_its_power() -> Result<()> {
    let scene = Scene::start("broken-nodes").await?;
    // All pods are bound with a call to the webhook, which fails with its node.
    operator::pods_binding(true, &[r"webhook.nodeSelector.kubernetes\.io/hostname=node3"]).await?;
    let result = scenario(&scene).await;
    operator::pods_binding(false, &[r"webhook.nodeSelector.kubernetes\.io/hostname=null"]).await?;
    result?;
    scene.finish().await
}

async fn scenario(scene: &Scene) -> Result<()> {
    let mut server = server_pod(Some("node3"), "alive");
    server["restartPolicy"] = "Always".into();
    scene.pod("server", server).await?;
    scene.pod("client", shell_pod(Some("node2"), "sleep infinity")).await?;
    let ready = scene.ready("server").await?;
    let address = ready.status.and_then(|status| status.pod_ip).context("the server has no address")?;
    scene.ready("client").await?;

    xtask_node("kubelet-stop", 3).await?;
    node_ready(&scene.client, "node3", false).await?;
    assert_eq!(scene.exec("client", &ask(&address)).await?, "alive\n", "pods must keep running without a kubelet");
    xtask_node("kubelet-start", 3).await?;
    node_ready(&scene.client, "node3", true).await?;
    let pod = scene.ready("server").await?;
    assert_eq!(restarts(&pod), Some(0), "the pod must not have restarted");

    xtask_node("kill", 3).await?;
    assert!(scene.exec("client", &ask(&address)).await.is_err(), "a node without power must not answer");
    let is_back = Cell::new(false);
    let outage = async {
        node_ready(&scene.client, "node3", false).await?;
        xtask_node("start", 3).await?;
        node_ready(&scene.client, "node3", true).await?;
        is_back.set(true);
        anyhow::Ok(())
    };
    let ((), slowest) = tokio::try_join!(outage, schedules(scene, &is_back))?;
    ensure!(slowest < UNNOTICED, "a pod was not scheduled for {slowest:?}");
    let address = wait_for("the pod to be restarted", SOON, async || {
        let pod = scene.ready("server").await?;
        ensure!(restarts(&pod) == Some(1), "it has {:?} restarts", restarts(&pod));
        pod.status.and_then(|status| status.pod_ip).context("the server has no address")
    })
    .await?;
    assert_eq!(scene.exec("client", &ask(&address)).await?, "alive\n");
    Ok(())
}

/// Creates pods until the node is back, and returns the longest time that one has waited for the scheduler.
async fn schedules(scene: &Scene, is_back: &Cell<bool>) -> Result<Duration> {
    let mut slowest = Duration::ZERO;
    let mut pods = 0;
    while !is_back.get() {
        let start = Instant::now();
        scene.is_scheduled(&format!("other-{pods}")).await?;
        slowest = slowest.max(start.elapsed());
        pods += 1;
        sleep(Duration::from_secs(1)).await;
    }
    println!("{pods} pods were scheduled, the slowest in {slowest:?}");
    ensure!(pods > 1, "the node was away for a moment only");
    Ok(slowest)
}

fn restarts(pod: &k8s_openapi::api::core::v1::Pod) -> Option<i32> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first().map(|status| status.restart_count)
}
