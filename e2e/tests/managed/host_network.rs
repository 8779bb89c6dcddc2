//! Workers on the host network have the name of their Kubernetes node in Slurm, whatever the host name of the machine is.

use anyhow::{Result, ensure};
use e2e::{
    Scene,
    managed::{self, CLUSTER, ManagedSlurm, NODE_SET, STARTED},
};
use serde_json::json;
use testkit::wait_for;

#[tokio::test]
async fn a_worker_on_the_host_network_is_known_drained_and_removed() -> Result<()> {
    let scene = Scene::start("host-network").await?;
    let mut spec = managed::node_set(1)?;
    spec["template"]["spec"] = json!({
        "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet", "terminationGracePeriodSeconds": 5,
        "nodeSelector": {"kubernetes.io/hostname": "node2"},
    });
    // All nodes of the local cluster share one network, where other tests may use the default port.
    spec["extraConf"] = json!("Port=16818");
    managed::put(&scene, "Controller", CLUSTER, managed::controller()?).await?;
    managed::put(&scene, "RestApi", CLUSTER, managed::rest_api()?).await?;
    managed::put(&scene, "NodeSet", NODE_SET, spec).await?;
    let cluster = ManagedSlurm::of(&scene);
    cluster.ready().await?;
    let nodes = cluster.nodes().await?;
    ensure!(nodes.keys().eq(["node2"]), "{nodes:?}");

    let job = cluster.job("node2", "sleep 5").await?;
    cluster.scale(0).await?;
    wait_for("the worker to be removed after its job", STARTED, async || {
        ensure!(cluster.workers().await?.is_empty() && cluster.nodes().await?.is_empty(), "it still exists");
        Ok(())
    })
    .await?;
    cluster.job_is(&job, "COMPLETED").await?;
    scene.finish().await
}
