//! Failing nodes, and their pods.

use anyhow::{Context, Result, ensure};
use e2e::{SOON, Scene, ask, node_ready, server_pod, shell_pod, xtask_node};
use testkit::wait_for;

/// One test, because all tests share the nodes.
#[tokio::test]
async fn a_node_loses_its_kubelet_and_then_its_power() -> Result<()> {
    let scene = Scene::start("broken-nodes").await?;
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
    node_ready(&scene.client, "node3", false).await?;
    xtask_node("start", 3).await?;
    node_ready(&scene.client, "node3", true).await?;
    let address = wait_for("the pod to be restarted", SOON, async || {
        let pod = scene.ready("server").await?;
        ensure!(restarts(&pod) == Some(1), "it has {:?} restarts", restarts(&pod));
        pod.status.and_then(|status| status.pod_ip).context("the server has no address")
    })
    .await?;
    assert_eq!(scene.exec("client", &ask(&address)).await?, "alive\n");
    scene.finish().await
}

fn restarts(pod: &k8s_openapi::api::core::v1::Pod) -> Option<i32> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first().map(|status| status.restart_count)
}
